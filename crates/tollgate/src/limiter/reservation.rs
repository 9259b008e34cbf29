//! Reserve an estimated cost now, settle the actual cost later.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::plan::{Line, Plan};
use super::{Limiter, Shared};
use crate::decision::Degraded;
use crate::store::{Answer, Applied, HoldId, Op, Store};
use crate::{AsRequest, Decision, Error, Verdict};

/// Units held for work whose cost is not known yet.
///
/// Dropped unsettled, it gives everything back: at once where the store answers at once, otherwise
/// when it expires in the store. Made [firmly](Limiter::reserve_firmly), it stays charged instead.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limit, Limiter, Request, block_on};
///
/// let limiter = Limiter::new(Limit::per_day(1_000_000)); // tokens of a language model, say
/// let estimate = Request::client("alice").cost(4_000);
/// let reservation = block_on(limiter.reserve(estimate, Duration::from_secs(30)))?;
/// assert!(reservation.decision().allowed());
/// // … the model answers, and it was less:
/// block_on(reservation.settle(1_234))?;
/// assert_eq!(limiter.check("alice")?.remaining(), 1_000_000 - 1_234 - 1);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use = "a reservation that is dropped is given back"]
pub struct Reservation<S: Store> {
    limiter: Limiter<S>,
    plan: Plan,
    decision: Decision,
    /// The reservation in the store, until it is settled.
    hold: Option<HoldId>,
    /// Whether the estimate was 0: then nothing is held, and all of the cost is taken later.
    of_nothing: bool,
    /// What is being settled, while it is on its way: should this be dropped then, it may have
    /// arrived.
    settling: u64,
    /// What it costs if it is dropped.
    if_dropped: u64,
}

/// How a reservation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// By how many units the actual cost exceeded what was reserved and what was left, at the limit
    /// that lacked most.
    pub shortfall: u64,
}

impl<S: Store> Limiter<S> {
    /// Takes the request's cost, an estimate, and holds it for at most `ttl`. Denied, it holds
    /// nothing.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted.
    pub async fn reserve(&self, request: impl AsRequest, ttl: Duration) -> Result<Reservation<S>, Error> {
        self.reserve_as(request, ttl, false).await
    }

    /// The same, but what is not settled within `ttl`, or is dropped, stays charged: for work that
    /// counts even if nobody waits for its end, such as an attempt to log in.
    ///
    /// # Errors
    /// As [`reserve`](Self::reserve).
    pub async fn reserve_firmly(
        &self,
        request: impl AsRequest,
        ttl: Duration,
    ) -> Result<Reservation<S>, Error> {
        self.reserve_as(request, ttl, true).await
    }

    async fn reserve_as(
        &self,
        request: impl AsRequest,
        ttl: Duration,
        firm: bool,
    ) -> Result<Reservation<S>, Error> {
        let (plan, cost) = self.plan(&request)?;
        let holder = request.with_request(|request| request.holder());
        let reservation = self.hold(plan, cost, ttl, firm, holder).await?;
        self.shared.observe(&request, &reservation.decision);
        Ok(reservation)
    }

    /// Ends a reservation that was [left](Reservation::leave) in the store, by its id and the
    /// request that it was made for, whose cost is now the actual one: 0 gives all back. By the
    /// rules of now: one that came since is not charged, and what is held under one that went
    /// comes back when it expires.
    ///
    /// # Errors
    /// As [`Reservation::settle`].
    pub async fn settle(&self, hold: HoldId, request: impl AsRequest) -> Result<Settlement, Error> {
        let (plan, cost) = self.plan(&request)?;
        if hold == HoldId::NOTHING {
            return self.shared.settle_nothing(&plan, cost).await;
        }
        let applied = self.shared.act(Op::Settle { hold }, &plan, cost).await?;
        let enforced = plan.once().zip(&applied.answers).filter(|(line, _)| !line.shadow);
        let mut held = enforced.map(|(_, answer)| answer.held).peekable();
        if held.peek().is_some() && !held.any(|held| held) {
            return Err(Error::NotReserved);
        }
        Ok(Settlement::of(&applied))
    }

    pub(super) async fn hold(
        &self,
        plan: Plan,
        cost: u64,
        ttl: Duration,
        firm: bool,
        holder: u64,
    ) -> Result<Reservation<S>, Error> {
        let now = self.shared.clock.now();
        let hold = HoldId::random();
        // Made before it is known to be held: if this is cancelled half-way, the drop gives back what may
        // have been taken.
        let pending = Decision::merge(now, Degraded::No, []);
        let mut reservation = Reservation {
            limiter: self.clone(),
            plan,
            decision: pending,
            hold: Some(hold),
            of_nothing: cost == 0,
            settling: 0,
            if_dropped: if firm { cost } else { 0 },
        };
        let op = Op::Reserve { hold, holder, ttl, firm };
        let decision = self.shared.decide(op, &reservation.plan, cost, now).await?;
        if !decision.allowed() || decision.degraded() {
            reservation.hold = None;
        }
        reservation.decision = decision;
        Ok(reservation)
    }
}

impl<S: Store> Reservation<S> {
    /// Whether the estimate was admitted, with the numbers.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Ends the reservation at the actual cost: what was not needed is given back; what was lacking
    /// is taken as far as it goes, and the rest reported.
    ///
    /// # Errors
    /// [`Error::NotReserved`] if it has expired (all was given back then) or was never granted, and
    /// whatever keeps the store from settling.
    pub async fn settle(mut self, cost: u64) -> Result<Settlement, Error> {
        if cost > crate::MAX_COUNT {
            return Err(Error::InvalidCost { value: cost });
        }
        if self.decision.degraded() || self.plan.is_empty() {
            self.hold = None;
            return Ok(Settlement { shortfall: 0 });
        }
        let Some(hold) = self.hold else { return Err(Error::NotReserved) };
        if self.of_nothing {
            self.hold = None;
            return self.limiter.shared.settle_nothing(&self.plan, cost).await;
        }
        // Should this be cancelled on its way, the drop settles the same.
        self.if_dropped = cost;
        let settled = self.limiter.shared.act(Op::Settle { hold }, &self.plan, cost).await;
        self.hold = None;
        let applied = settled?;
        if self.is_lost(&applied) {
            return Err(Error::NotReserved);
        }
        Ok(Settlement::of(&applied))
    }

    /// Leaves it in the store, to be [settled](Limiter::settle) by its id, in another process if
    /// need be. [`HoldId::NOTHING`] if the estimate was 0. `None` if it was denied, decided without
    /// the store, or no rule covers it.
    pub fn leave(mut self) -> Option<HoldId> {
        let hold = if self.of_nothing { HoldId::NOTHING } else { self.hold? };
        self.hold.take().filter(|_| !self.plan.is_empty()).map(|_| hold)
    }

    /// Keeps what was reserved, because the estimate was the cost: the decision, with the numbers
    /// that are left when nothing is held. If the store does not confirm it, the units come back
    /// when the reservation expires, and the decision says that it is degraded. `None` if it is
    /// not held any more: then nothing was taken.
    pub(super) async fn keep(mut self, cost: u64) -> Option<Decision> {
        let Some(hold) = self.hold.filter(|_| !self.of_nothing) else {
            self.hold = None;
            return Some(self.decision.clone());
        };
        self.settling = cost;
        let settled = self.limiter.shared.act(Op::Settle { hold }, &self.plan, cost).await;
        self.hold = None;
        match settled {
            Ok(applied) if self.is_lost(&applied) => None,
            Ok(mut applied) => {
                applied.answers.iter_mut().for_each(|answer| answer.outcome.verdict = Verdict::Allowed);
                Some(self.plan.decision(applied.now, Degraded::No, &applied.answers))
            }
            Err(_) => Some(self.decision.clone().degrade()),
        }
    }

    /// Whether a settlement found nothing held where something counts.
    fn is_lost(&self, applied: &Applied) -> bool {
        let lost = |(line, answer): (&Line, &Answer)| !line.shadow && !answer.held;
        self.plan.once().zip(&applied.answers).any(lost)
    }
}

impl<S: Store> Shared<S> {
    /// Ends a reservation of nothing: all of the cost is taken now, as far as it goes.
    async fn settle_nothing(&self, plan: &Plan, cost: u64) -> Result<Settlement, Error> {
        let applied = self.act(Op::Penalise, plan, cost).await?;
        let charges = plan.charges(cost);
        let each = charges.iter().zip(&applied.answers);
        let lacking = each.map(|(charge, answer)| charge.cost.saturating_sub(answer.units));
        Ok(Settlement { shortfall: lacking.max().unwrap_or(0) })
    }
}

impl Settlement {
    fn of(applied: &Applied) -> Self {
        Self { shortfall: applied.answers.iter().map(|answer| answer.units).max().unwrap_or(0) }
    }
}

impl<S: Store> Drop for Reservation<S> {
    fn drop(&mut self) {
        let Some(hold) = self.hold.take().filter(|_| !self.of_nothing) else { return };
        let Shared { store, clock, .. } = &*self.limiter.shared;
        // A store that needs longer than one poll gives the units back when the reservation expires.
        let charges = self.plan.charges(self.if_dropped);
        let released = poll_once(store.apply(Op::Settle { hold }, &charges, clock.now()));
        let settled_before = |applied: &Applied| !applied.answers.iter().any(|answer| answer.held);
        if self.settling > 0 && matches!(&released, Poll::Ready(Ok(applied)) if settled_before(applied)) {
            // It had been settled already, but nobody was told.
            let _ = poll_once(store.apply(Op::Refund, &self.plan.charges(self.settling), clock.now()));
        }
    }
}

impl<S: Store> fmt::Debug for Reservation<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reservation")
            .field("decision", &self.decision)
            .field("hold", &self.hold)
            .finish_non_exhaustive()
    }
}

fn poll_once<F: Future>(future: F) -> Poll<F::Output> {
    pin!(future).poll(&mut Context::from_waker(Waker::noop()))
}

impl HoldId {
    /// A reservation that nobody else has: 128 bits out of the process's secret hash keys.
    fn random() -> Self {
        let half = || u128::from(RandomState::new().hash_one(0));
        Self(half() << 64 | half())
    }
}
