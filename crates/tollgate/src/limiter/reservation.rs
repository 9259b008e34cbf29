//! Reserve an estimated cost now, settle the actual cost later.

use std::fmt;
use std::future::Future;
use std::hash::{BuildHasher, RandomState};
use std::pin::pin;
use std::task::{Context, Waker};
use std::time::Duration;

use super::Limiter;
use super::plan::Plan;
use crate::store::{HoldId, Op, Store};
use crate::{Decision, Error, Request};

/// Units held for work whose cost is not known yet.
///
/// Dropped unsettled, it gives everything back: at once where the store answers at once, otherwise
/// when it expires in the store.
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
    pub async fn reserve<'a>(
        &self,
        request: impl Into<Request<'a>>,
        ttl: Duration,
    ) -> Result<Reservation<S>, Error> {
        let request = request.into();
        let cost = request.checked_cost()?;
        let reservation = self.hold(self.plan(&request)?, cost, ttl).await;
        self.shared.observe(&reservation.decision, &reservation.plan);
        Ok(reservation)
    }

    pub(super) async fn hold(&self, plan: Plan, cost: u64, ttl: Duration) -> Reservation<S> {
        let now = self.shared.clock.now();
        let hold = HoldId::random();
        // Made before it is known to be held: if this is cancelled half-way, the drop gives back what may
        // have been taken.
        let pending = Decision::merge(now, false, Default::default());
        let mut reservation =
            Reservation { limiter: self.clone(), plan, decision: pending, hold: Some(hold) };
        let op = Op::Reserve { hold, expires_at: now.saturating_add(ttl) };
        let decision = self.shared.decide(op, &reservation.plan, cost, now).await;
        if !decision.allowed() || decision.degraded() {
            reservation.hold = None;
        }
        reservation.decision = decision;
        reservation
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
        let Some(hold) = self.hold.take() else { return Err(Error::NotReserved) };
        let applied = self.limiter.shared.act(Op::Settle { hold }, &self.plan, cost).await?;
        if !applied.answers.iter().any(|answer| answer.held) && cost > 0 {
            return Err(Error::NotReserved);
        }
        Ok(Settlement { shortfall: applied.answers.iter().map(|answer| answer.units).max().unwrap_or(0) })
    }

    /// Keeps what was reserved: the estimate was the cost. Where the store is gone this is all that
    /// can be done anyway.
    pub(super) async fn keep(mut self, cost: u64) -> Decision {
        if let Some(hold) = self.hold.take() {
            let _ = self.limiter.shared.act(Op::Settle { hold }, &self.plan, cost).await;
        }
        self.decision.clone()
    }
}

impl<S: Store> Drop for Reservation<S> {
    fn drop(&mut self) {
        let Some(hold) = self.hold.take() else { return };
        let charges = self.plan.charges(0);
        let release =
            self.limiter.shared.store.apply(Op::Settle { hold }, &charges, self.limiter.shared.clock.now());
        // A store that needs longer than one poll gives the units back when the reservation expires.
        let _ = pin!(release).poll(&mut Context::from_waker(Waker::noop()));
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

impl HoldId {
    /// A reservation that nobody else has: 128 bits out of the process's secret hash keys.
    fn random() -> Self {
        let half = || u128::from(RandomState::new().hash_one(0));
        Self(half() << 64 | half())
    }
}
