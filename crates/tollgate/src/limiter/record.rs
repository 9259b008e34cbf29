//! Records: costs that are known only afterwards.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{Limiter, Shared};
use crate::decision::Degraded;
use crate::limiter::plan::Plan;
use crate::store::{Applied, Op, Store};
use crate::{AsRequest, Decision, Error};

/// What a [record](Limiter::record) left.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    decision: Decision,
    shortfall: u64,
}

impl Recorded {
    /// The numbers of every limit afterwards, for a request of cost 0: it is denied while units are
    /// owed, and its retry time is when they are paid off.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Units that were not recorded because they exceed the debt of a limit, the largest number of
    /// any limit.
    #[must_use]
    pub const fn shortfall(&self) -> u64 {
        self.shortfall
    }
}

impl<S: Store> Limiter<S> {
    /// Records a cost that was already used, such as the tokens or the bytes of a response, at
    /// every rule that covers the request. No limit denies it. Units beyond a limit are owed, up to
    /// its [debt](crate::Limit::debt), and nothing is admitted until they are paid off at the
    /// limit's own rate.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Request, block_on};
    ///
    /// let limiter = Limiter::new(Limit::per_hour(1000));
    /// assert!(limiter.check(Request::client("alice").cost(0))?.allowed()); // may it start?
    /// let used = block_on(limiter.record(Request::client("alice").cost(1300)))?;
    /// assert_eq!((used.decision().remaining(), used.decision().owed()), (0, 300));
    /// assert!(!limiter.check(Request::client("alice").cost(0))?.allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted, and any
    /// failure of the store, whatever the rules' failure policies: the cost may not be recorded
    /// then.
    pub async fn record(&self, request: impl AsRequest) -> Result<Recorded, Error> {
        let (plan, cost) = self.plan(&request)?;
        self.shared.record(&plan.only(false), cost).await
    }
}

impl<S: Store> Shared<S> {
    pub(super) async fn record(self: &Arc<Self>, plan: &Plan, cost: u64) -> Result<Recorded, Error> {
        let applied = self.act(Op::Record, plan, cost).await?;
        let shortfall = self.count_shortfall(&applied);
        Ok(Recorded { decision: plan.decision(applied.now, Degraded::No, &applied.answers), shortfall })
    }

    /// Counts the units that could not be recorded, the largest number of any limit, and returns
    /// them.
    pub(super) fn count_shortfall(&self, applied: &Applied) -> u64 {
        let shortfall = applied.answers.iter().map(|answer| answer.effect.shortfall()).max().unwrap_or(0);
        if shortfall > 0 {
            self.shortfall.fetch_add(shortfall, Ordering::Relaxed);
        }
        shortfall
    }
}
