//! Waiting for admission: first come, first served, up to a timeout.
//!
//! A request that is denied stands in the queue of the budget that denies it. Only the first in a
//! queue asks the store, sleeps until the time that the store answered, and asks again, each time
//! by the rules in force. Whoever leaves a queue (admitted, timed out or cancelled) wakes the next,
//! and so does every operation that changes the budget.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::time::Duration;

use super::Limiter;
use super::plan::Plan;
use crate::store::{OnExpiry, Op, Store};
use crate::{AsRequest, Caller, Decision, Error, MemoryStore, SECOND, Timestamp};

mod lines;
mod slab;
mod state;
mod waiters;
mod waiting;

pub(super) use waiters::Waiters;
pub(super) use waiting::Waiting;

impl<S: Store> Limiter<S> {
    /// Waits until the request is admitted, for at most `timeout` from the first poll. Requests of
    /// this process that the same budget keeps waiting are served in order of arrival, and by the
    /// rules in force when they are admitted. A request that can never fit, or that cannot be
    /// admitted in time when it is first in its queue, is denied at once; the others at their
    /// timeout. A denial has taken nothing. A timeout of zero asks once. After a change of the
    /// rules, requests that several budgets can deny may change places.
    ///
    /// Dropping the future leaves the queue and gives back the units it had taken. A future that is
    /// first in its queue and is not polled holds up those behind it, until their timeouts.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, SECOND, block_on};
    ///
    /// let limiter = Limiter::new(Limit::per_second(1_000).burst(1));
    /// for _ in 0..3 {
    ///     assert!(block_on(limiter.wait("alice", SECOND))?.allowed()); // one millisecond apart
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted;
    /// [`Error::SlotNeeded`] if a rule [limits concurrency](crate::Limit::concurrent): see
    /// [`acquire_within`](Self::acquire_within).
    pub async fn wait(&self, request: impl AsRequest, timeout: Duration) -> Result<Decision, Error> {
        let mut waiting = Waiting::new(self, request, Units, timeout);
        let waited = poll_fn(|context| waiting.poll(context)).await?;
        let (Waited::Granted(decision) | Waited::Denied(decision)) = waited;
        self.shared.observe(&waiting.request, &decision);
        Ok(decision)
    }
}

/// What a request waits for.
pub(super) trait Ask<S: Store> {
    type Granted;

    /// Refuses a plan that it cannot ask for.
    fn accepts(&self, plan: &Plan) -> Result<(), Error>;

    /// Asks the store once. A denial takes nothing, and what is granted is given back if the future
    /// is dropped.
    fn ask(
        &self,
        limiter: &Limiter<S>,
        plan: Plan,
        cost: u64,
        caller: Option<Caller>,
        now: Timestamp,
    ) -> Asked<Self::Granted>;
}

/// A question to the store.
pub(super) enum Asked<T> {
    Answered(Result<Waited<T>, Error>),
    Pending(Asking<T>),
}

type Asking<T> = Pin<Box<dyn Future<Output = Result<Waited<T>, Error>> + Send>>;

/// How a wait, or one question, ended.
pub(super) enum Waited<T> {
    Granted(T),
    Denied(Decision),
}

impl Waited<Decision> {
    fn of(decision: Decision) -> Self {
        if decision.allowed() { Self::Granted(decision) } else { Self::Denied(decision) }
    }
}

/// Waits for units.
struct Units;

impl<S: Store> Ask<S> for Units {
    type Granted = Decision;

    fn accepts(&self, plan: &Plan) -> Result<(), Error> {
        plan.without_slots()
    }

    fn ask(
        &self,
        limiter: &Limiter<S>,
        plan: Plan,
        cost: u64,
        caller: Option<Caller>,
        now: Timestamp,
    ) -> Asked<Decision> {
        match limiter.shared.store.decides_in() {
            // Nothing can be dropped between the taking and the answer.
            Some(memory) => {
                Asked::Answered(limiter.apply_in(memory, Op::Take, &plan, cost, now).map(Waited::of))
            }
            None => Asked::Pending(Box::pin(limiter.clone().reserve_and_keep(plan, cost, caller))),
        }
    }
}

impl<S: Store> Limiter<S> {
    fn apply_in(
        &self,
        memory: &MemoryStore,
        op: Op,
        plan: &Plan,
        cost: u64,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let applied = memory.apply_now(op, &plan.charges(cost), now);
        self.shared.decided(applied, op, plan, cost)
    }

    /// Takes units from a store that answers later. If this is dropped meanwhile, they are given
    /// back, at the latest when the reservation expires.
    async fn reserve_and_keep(
        self,
        plan: Plan,
        cost: u64,
        caller: Option<Caller>,
    ) -> Result<Waited<Decision>, Error> {
        let ttl = self.shared.deadline.saturating_add(SECOND);
        loop {
            let reservation = self.hold(plan.clone(), cost, ttl, OnExpiry::GiveBack, caller).await?;
            if !reservation.decision().allowed() {
                return Ok(Waited::Denied(reservation.decision().clone()));
            }
            if let Some(kept) = reservation.keep(cost).await {
                return Ok(Waited::Granted(kept));
            }
        }
    }
}
