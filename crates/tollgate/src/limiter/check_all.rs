//! Several requests decided as one.

use std::ops::Range;

use super::Limiter;
use super::plan::{Plan, PlannedCharge};
use crate::store::{Op, Store};
use crate::{AsRequest, Decision, Error};

/// The decision on several requests as one: all admitted, or nothing taken.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "an unread decision limits nothing"]
pub struct AllOrNothing {
    whole: Decision,
    each: Vec<Decision>,
}

impl AllOrNothing {
    /// The decision on all requests, with the reports of every limit. A budget that several
    /// requests draw on is reported once.
    pub const fn whole(&self) -> &Decision {
        &self.whole
    }

    /// The decision each request would have got alone, in order. An allowed one was still not
    /// admitted if the whole was denied.
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// The decision each request would have got alone, by value.
    pub fn into_each(self) -> Vec<Decision> {
        self.each
    }
}

impl<S: Store> Limiter<S> {
    /// Decides several requests as one: all costs are taken if every rule that covers any of them
    /// admits, and nothing otherwise. Each request has its own attributes and cost. A budget that
    /// several requests draw on is charged once, with the largest cost. Of two inline limits for
    /// the same budget, the smaller applies.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Request, block_on};
    ///
    /// let limiter = Limiter::new(Limit::per_minute(2));
    /// let both = |cost| block_on(limiter.check_all(&[
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
    /// As [`check_async`](Self::check_async), if any request cannot be counted.
    pub async fn check_all<R: AsRequest>(&self, requests: &[R]) -> Result<AllOrNothing, Error> {
        let (whole, each) = self.decide_all(Op::Take, requests).await?;
        self.shared.count(&whole, &self.shared.rules.load());
        for request in requests {
            self.shared.notify(request, &whole);
        }
        Ok(AllOrNothing { whole, each })
    }

    /// Returns the decision that each request would get alone, in order, where something else has
    /// denied them all. Nothing is taken. Attempts are counted and denied costs recorded as by
    /// [`check_all`](Self::check_all), for limits that
    /// [count](crate::Limit::counting_denied) and rules that [record](crate::Rule::record_denied)
    /// them.
    ///
    /// # Errors
    /// As [`check_all`](Self::check_all).
    pub async fn refuse_all<R: AsRequest>(&self, requests: &[R]) -> Result<Vec<Decision>, Error> {
        self.decide_all(Op::Refuse, requests).await.map(|(_, each)| each)
    }

    /// The decision on all requests, and on each.
    async fn decide_all<R: AsRequest>(
        &self,
        op: Op,
        requests: &[R],
    ) -> Result<(Decision, Vec<Decision>), Error> {
        let shared = &self.shared;
        let mut parts = Vec::<Range<usize>>::with_capacity(requests.len());
        let plan = {
            let prepared = shared.rules.load();
            let mut plan = Plan::under(&prepared.rules);
            for request in requests {
                let start = plan.planned().len();
                request.with_request(|request| {
                    shared.add(&mut plan, &prepared, &request, request.checked_cost()?)
                })?;
                parts.push(start..plan.planned().len());
            }
            plan
        };
        plan.without_slots()?;
        let decision = shared.decide(op, &plan, 1, shared.clock.now()).await?;
        if plan.is_empty() {
            return Ok((decision.clone(), vec![decision; requests.len()]));
        }
        let (each, whole) = split(&decision, &plan, &parts);
        Ok((whole, each))
    }
}

/// The decision on each request of a plan, and on all of them.
fn split(decision: &Decision, plan: &Plan, parts: &[Range<usize>]) -> (Vec<Decision>, Decision) {
    let reports = decision.limits();
    let part = |part: &Range<usize>| reports.get(part.clone()).unwrap_or_default().iter().copied();
    let each = parts.iter().map(|range| decision.merged(part(range))).collect();
    let duplicate = plan.planned().iter().map(PlannedCharge::is_duplicate);
    let distinct = reports.iter().zip(duplicate).filter(|(_, duplicate)| !duplicate);
    (each, decision.merged(distinct.map(|(report, _)| *report)))
}
