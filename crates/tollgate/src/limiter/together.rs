//! Several requests, one decision.

use super::Limiter;
use super::plan::Plan;
use crate::store::{Op, Store};
use crate::{AsRequest, Decision, Error, Report};

/// What became of several requests that were decided as one: all admitted, or nothing taken.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a decision that nobody looks at limits nothing"]
pub struct Together {
    whole: Decision,
    each: Vec<Decision>,
}

impl Together {
    /// The one decision, with what every limit said to any of the requests. A budget that several
    /// draw on is in it once.
    pub const fn whole(&self) -> &Decision {
        &self.whole
    }

    /// What each request would have got by itself, in order. One that is allowed here was still
    /// not admitted if the whole was denied.
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// The same, to keep.
    pub fn into_each(self) -> Vec<Decision> {
        self.each
    }
}

impl<S: Store> Limiter<S> {
    /// Decides several requests as one: what all of them cost is taken if every rule that covers
    /// any of them admits it, and nothing otherwise. Each has its own attributes and cost; where
    /// several draw on the same budget it is charged once, with the largest cost, under the limits that
    /// the first of them has.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Request, block_on};
    ///
    /// let limiter = Limiter::new(Limit::per_minute(2));
    /// let both = |cost| block_on(limiter.check_together(&[
    ///     Request::client("sender"),
    ///     Request::client("receiver").cost(cost),
    /// ]));
    /// let denied = both(3)?;
    /// assert!(!denied.whole().allowed());
    /// assert!(denied.each()[0].allowed(), "it was the other");
    /// assert_eq!(both(1)?.each()[0].remaining(), 1, "nothing had been taken");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`check_async`](Self::check_async), if any of them cannot be counted.
    pub async fn check_together<R: AsRequest>(&self, requests: &[R]) -> Result<Together, Error> {
        let mut plan = Plan::empty();
        let mut ends = Vec::with_capacity(requests.len());
        for request in requests {
            request.with_request(|request| self.add(&mut plan, &request, request.checked_cost()?))?;
            ends.push(plan.lines().len());
        }
        let decision = self.shared.decide(Op::Take, &plan, 1, self.shared.clock.now()).await?;
        let merge = |reports: &mut dyn Iterator<Item = Report>| decision.merged(reports);
        let starts = [0].into_iter().chain(ends.iter().copied());
        let parts = starts.zip(&ends).map(|(start, end)| decision.limits().get(start..*end));
        let each = parts.map(|part| merge(&mut part.unwrap_or_default().iter().copied())).collect();
        let once = decision.limits().iter().enumerate().filter(|(index, _)| !plan.is_repeated(*index));
        let whole = merge(&mut once.map(|(_, report)| *report));
        self.shared.count(&whole, &plan);
        for request in requests {
            self.shared.tell(request, &whole);
        }
        Ok(Together { whole, each })
    }
}
