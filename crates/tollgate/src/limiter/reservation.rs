//! Reservations: hold an estimated cost now, settle the actual cost later.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::plan::{Plan, PlannedCharge};
use super::task::{run_detached, run_to_end};
use super::{Limiter, Shared, Slot};
use crate::decision::Degraded;
use crate::store::{Answer, Applied, Effect, HoldId, OnExpiry, Op, Store};
use crate::{AsRequest, Caller, Decision, Error, Verdict};

const ONE_COST: &str = "a reservation settles all rules at one cost; reserve without Request::costs";

/// A reservation: units held for work whose cost is not known yet.
///
/// Dropped unsettled, it gives all units back ([`OnExpiry::GiveBack`]): at once if the store is
/// synchronous, by a task in a tokio runtime (feature `tokio`), and otherwise when it expires in
/// the store. With [`OnExpiry::Keep`] they stay charged.
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limit, Limiter, OnExpiry, Request, block_on};
///
/// let limiter = Limiter::new(Limit::per_day(1_000_000)); // tokens of a language model, say
/// let estimate = Request::client("alice").cost(4_000);
/// let reservation = block_on(limiter.reserve(estimate, Duration::from_secs(30), OnExpiry::GiveBack))?;
/// assert!(reservation.decision().allowed());
/// // … the model answers, and it was less:
/// block_on(reservation.settle(1_234))?;
/// assert_eq!(limiter.check("alice")?.remaining(), 1_000_000 - 1_234 - 1);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use = "dropping a reservation gives its units back"]
pub struct Reservation<S: Store> {
    limiter: Limiter<S>,
    plan: Plan,
    decision: Decision,
    /// The reservation, until it is settled; `None` after a denial.
    hold: Option<HoldId>,
    /// The cost of a settlement under way: if the reservation is dropped meanwhile, the store may
    /// have settled it.
    settling: u64,
    /// The cost to settle at when the reservation is dropped.
    if_dropped: u64,
}

/// How a reservation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Units of the actual cost that were not recorded because they exceed the debt of a limit, the
    /// largest number of any limit.
    pub shortfall: u64,
}

impl<S: Store> Limiter<S> {
    /// Takes the request's cost, an estimate, and holds it for at most `ttl`. If the reservation
    /// expires or is dropped unsettled, its units are given back, or stay charged: for work that
    /// counts even if it never finishes, such as a login attempt. A denied reservation holds
    /// nothing. Under a [concurrent](crate::Limit::concurrent) limit the reservation takes a slot,
    /// until it is settled or expires.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted;
    /// [`Error::InvalidRule`] if a rule has a [cost of its own](crate::Request::costs): one cost
    /// settles all rules.
    pub async fn reserve(
        &self,
        request: impl AsRequest,
        ttl: Duration,
        on_expiry: OnExpiry,
    ) -> Result<Reservation<S>, Error> {
        request.with_request(|request| match request.rule_costs() {
            [(rule, _), ..] => {
                let (rule, reason) = ((*rule).into(), ONE_COST.into());
                Err(Error::InvalidRule { rule, field: "cost", reason })
            }
            [] => Ok(()),
        })?;
        let (plan, cost) = self.plan(&request)?;
        let caller = request.with_request(|request| request.sender());
        let reservation = self.hold(plan, cost, ttl, on_expiry, caller).await?;
        self.shared.observe(&request, &reservation.decision);
        Ok(reservation)
    }

    /// Settles a [detached](Reservation::detach) reservation, by its id and the request that made
    /// it, with the actual cost: 0 gives all units back. The rules in force apply: a rule added
    /// since is not charged, and units held under a removed rule come back when they expire.
    ///
    /// A reservation that no rule covered, or that was made while the store failed, is in no store.
    /// The limiter that made it remembers it: settling it there records all of the cost, once, and
    /// in another process it is not reserved.
    ///
    /// # Errors
    /// As [`Reservation::settle`].
    pub async fn settle(&self, hold: HoldId, request: impl AsRequest) -> Result<Settlement, Error> {
        let (plan, cost) = self.plan(&request)?;
        let Shared { holds, clock, .. } = &*self.shared;
        if let Some(entry) = holds.take_unstored(hold, clock.now()) {
            let recorded = self.shared.record(&plan.only(false), cost).await;
            let recorded = recorded.inspect_err(|_| holds.put_back(hold, entry, clock.now()))?;
            return Ok(Settlement { shortfall: recorded.shortfall() });
        }
        let applied = self.shared.act(Op::Settle { hold }, &plan, cost).await?;
        let is_known = holds.leave(hold, clock.now());
        let settlement = Settlement { shortfall: self.shared.count_shortfall(&applied) };
        if was_held(&plan, &applied, |effect| effect != Effect::NotReserved).unwrap_or(is_known) {
            Ok(settlement)
        } else {
            Err(Error::NotReserved)
        }
    }

    /// Holds a [detached](Reservation::detach) reservation or [slot](crate::Slot::detach) for `ttl`
    /// from now, for work that lasts, such as a stream.
    ///
    /// # Errors
    /// As [`Reservation::renew`].
    pub async fn renew(&self, hold: HoldId, request: impl AsRequest, ttl: Duration) -> Result<(), Error> {
        let (plan, _) = self.plan(&request)?;
        if hold == HoldId::NO_SLOT {
            return Ok(());
        }
        let lasts = if plan.clone().only(false).is_empty() { ttl } else { ttl.saturating_mul(2) };
        self.shared.renew(hold, &plan, ttl, lasts).await
    }

    pub(super) async fn hold(
        &self,
        plan: Plan,
        cost: u64,
        ttl: Duration,
        on_expiry: OnExpiry,
        caller: Option<Caller>,
    ) -> Result<Reservation<S>, Error> {
        // A reservation that nobody waits for any more is dropped, and so settled.
        run_to_end(self.clone().hold_to_end(plan, cost, ttl, on_expiry, caller)).await
    }

    /// Makes a reservation.
    async fn hold_to_end(
        self,
        plan: Plan,
        cost: u64,
        ttl: Duration,
        on_expiry: OnExpiry,
        caller: Option<Caller>,
    ) -> Result<Reservation<S>, Error> {
        let now = self.shared.clock.now();
        let hold = HoldId::random();
        // A slot cannot be empty.
        let plan = if cost == 0 { plan.only(false) } else { plan };
        // Built before the store answers: if this is cancelled midway, the drop gives back any
        // units taken.
        let pending = Decision::merge(now, Degraded::No, []);
        let mut reservation = Reservation {
            limiter: self.clone(),
            plan,
            decision: pending,
            hold: Some(hold),
            settling: 0,
            if_dropped: if on_expiry == OnExpiry::Keep { cost } else { 0 },
        };
        // It can be settled for twice its time to live.
        let ends_at = now.saturating_add(ttl).saturating_add(ttl);
        if let Err(full) = self.shared.holds.enter(hold, caller, now, ends_at) {
            reservation.hold = None;
            reservation.decision = Decision::full(now, full.cause, full.room_at);
            return Ok(reservation);
        }
        let op = Op::Reserve { hold, ttl, on_expiry };
        let applied = self.shared.apply_here(op, &reservation.plan, cost, now).await;
        let decision = self.shared.decided(applied, op, &reservation.plan, cost)?;
        if !decision.allowed() {
            reservation.hold = None;
            self.shared.holds.leave(hold, now);
        } else if decision.degraded() || reservation.plan.is_empty() {
            self.shared.holds.mark_unstored(hold, now);
        }
        reservation.decision = decision;
        Ok(reservation)
    }
}

impl<S: Store> Reservation<S> {
    /// The decision on the estimate.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Ends the reservation at the actual cost: the excess is given back; a cost beyond the
    /// estimate is [recorded](Limiter::record), up to the debt of each limit, and the rest is
    /// reported. It can be settled for as long again after it has expired: the units that the
    /// expiry gave back are recorded then. All of the cost is recorded if the store failed when the
    /// reservation was made: no store has it.
    ///
    /// # Errors
    /// [`Error::NotReserved`] if it expired longer ago or was never granted, and any failure of the
    /// store.
    pub async fn settle(mut self, cost: u64) -> Result<Settlement, Error> {
        if cost > crate::MAX_COUNT {
            return Err(Error::InvalidCost { value: cost });
        }
        let Some(hold) = self.hold else { return Err(Error::NotReserved) };
        if self.held().is_none() {
            // No store has it, and it cannot be settled again.
            let recorded = self.limiter.shared.record(&self.plan_in_force().only(false), cost).await?;
            return Ok(Settlement { shortfall: recorded.shortfall() });
        }
        // If this is cancelled midway, the drop settles at the same cost.
        self.if_dropped = cost;
        let settled = self.limiter.shared.act(Op::Settle { hold }, &self.plan_in_force(), cost).await;
        self.leave();
        let applied = settled?;
        if self.is_lost(&applied) {
            return Err(Error::NotReserved);
        }
        Ok(Settlement { shortfall: self.limiter.shared.count_shortfall(&applied) })
    }

    /// Holds the reservation for `ttl` from now, for work that lasts, such as a stream.
    ///
    /// # Errors
    /// [`Error::NotReserved`] if it has expired or was never granted, and any failure of the store.
    pub async fn renew(&self, ttl: Duration) -> Result<(), Error> {
        let Some(hold) = self.hold else { return Err(Error::NotReserved) };
        self.limiter.shared.renew(hold, &self.plan_in_force(), ttl, ttl.saturating_mul(2)).await
    }

    /// Takes the slot out of the reservation, if it has one: settling does not release it then. For
    /// work whose cost is known before it ends, such as a response whose body is still sent. The
    /// slot has the reservation's time to live, and `ttl` from each renewal.
    pub fn take_slot(&mut self, ttl: Duration) -> Option<Slot<S>> {
        let hold = self.held()?;
        let Shared { holds, clock, .. } = &*self.limiter.shared;
        holds.share(hold, clock.now());
        let slot = Slot::new(self.limiter.clone(), &self.plan, hold, ttl, self.decision.clone());
        self.plan = std::mem::take(&mut self.plan).only(false);
        Some(slot)
    }

    /// Detaches the reservation: it stays in the store, to be [settled](Limiter::settle) by its id,
    /// by any process. One that was decided without the store, or that no rule covers, is settled
    /// by [this limiter](Limiter::settle) alone. `None` if it was denied.
    pub fn detach(mut self) -> Option<HoldId> {
        self.hold.take()
    }

    fn plan_in_force(&self) -> Plan {
        self.limiter.shared.in_force(&self.plan)
    }

    /// The reservation in the store.
    fn held(&self) -> Option<HoldId> {
        self.hold.filter(|_| !self.decision.degraded() && !self.plan.is_empty())
    }

    /// Takes the reservation out of the ledger: it has ended.
    fn leave(&mut self) {
        let Shared { holds, clock, .. } = &*self.limiter.shared;
        if let Some(hold) = self.hold.take() {
            holds.leave(hold, clock.now());
        }
    }

    /// Settles at the estimate and returns the decision, with the numbers after settling. If the
    /// store does not confirm, the units come back when the reservation expires, and the decision
    /// is degraded. `None` if the reservation no longer exists: then nothing was taken.
    pub(super) async fn keep(mut self, cost: u64) -> Option<Decision> {
        let Some(hold) = self.held() else {
            self.leave();
            return Some(self.decision.clone());
        };
        self.settling = cost;
        let settled = self.limiter.shared.act(Op::Settle { hold }, &self.plan_in_force(), cost).await;
        self.leave();
        match settled {
            Ok(applied) if self.is_lost(&applied) => None,
            Ok(applied) if has_expired(&applied) => {
                // It was recorded, and not admitted.
                let _ = self.limiter.shared.act(Op::Refund, &self.plan_in_force(), cost).await;
                None
            }
            Ok(mut applied) => {
                applied.answers.iter_mut().for_each(|answer| answer.outcome.verdict = Verdict::Allowed);
                Some(self.plan.decision(applied.now, Degraded::No, &applied.answers))
            }
            Err(_) => Some(self.decision.clone().degrade()),
        }
    }

    /// Whether a limit that enforces held nothing at settlement. A slot is gone once it has
    /// expired, and units can still be settled then.
    fn is_lost(&self, applied: &Applied) -> bool {
        let is_slot = |charge: &PlannedCharge| self.plan.charge(charge, 0).limit.is_concurrent();
        let only_slots = self.plan.distinct().all(is_slot);
        let lost = |(charge, answer): (&PlannedCharge, &Answer)| {
            let counts = only_slots || !is_slot(charge);
            !charge.shadow && !charge.lends() && counts && answer.effect == Effect::NotReserved
        };
        self.plan.distinct().zip(&applied.answers).any(lost)
    }
}

impl<S: Store> Shared<S> {
    /// Holds a reservation or a slot for `ttl` from now. The ledger has it for as long as it
    /// `lasts`.
    pub(super) async fn renew(
        self: &Arc<Self>,
        hold: HoldId,
        plan: &Plan,
        ttl: Duration,
        lasts: Duration,
    ) -> Result<(), Error> {
        let now = self.clock.now();
        let ends_at = now.saturating_add(lasts);
        if self.holds.is_unstored(hold, now) {
            self.holds.renew(hold, now, ends_at);
            return Ok(());
        }
        let applied = self.act(Op::Renew { hold, ttl }, plan, 0).await?;
        let is_held = was_held(plan, &applied, |effect| effect == Effect::Renewed);
        if is_held != Some(false) && self.holds.renew(hold, now, ends_at) || is_held == Some(true) {
            Ok(())
        } else {
            Err(Error::NotReserved)
        }
    }
}

/// Whether any limit that enforces held what was settled or renewed, of those that hold anything.
/// `None` if no limit enforces.
fn was_held(plan: &Plan, applied: &Applied, is_held: impl Fn(Effect) -> bool) -> Option<bool> {
    let enforced = plan.distinct().zip(&applied.answers).filter(|(charge, _)| !charge.shadow);
    let mut held = enforced.map(|(_, answer)| is_held(answer.effect)).peekable();
    held.peek()?;
    Some(held.any(|held| held))
}

fn has_expired(applied: &Applied) -> bool {
    applied.answers.iter().any(|answer| matches!(answer.effect, Effect::SettledLate { .. }))
}

impl<S: Store> Drop for Reservation<S> {
    fn drop(&mut self) {
        let held = self.held();
        self.leave();
        let Some(hold) = held else { return };
        let (limiter, plan) = (self.limiter.clone(), self.plan_in_force());
        let (settling, if_dropped) = (self.settling, self.if_dropped);
        run_detached(async move {
            let shared = &limiter.shared;
            let released =
                shared.apply_here(Op::Settle { hold }, &plan, if_dropped, shared.clock.now()).await;
            let settled_before =
                |applied: &Applied| applied.answers.iter().all(|answer| answer.effect == Effect::NotReserved);
            if settling > 0 && released.is_ok_and(|applied| settled_before(&applied)) {
                // The store had settled it, but the caller never received the result.
                let _ = shared.apply_here(Op::Refund, &plan, settling, shared.clock.now()).await;
            }
        });
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
