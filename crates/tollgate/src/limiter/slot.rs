//! Slots: how many requests may be under way at once.

use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::plan::Plan;
use super::task::{run_detached, run_to_end};
use super::wait::{Ask, Asked, Waited, Waiting};
use super::{Limiter, Shared};
use crate::decision::Degraded;
use crate::store::{Charge, Effect, HoldId, Op, Store};
use crate::{AsRequest, Caller, Decision, Error, Timestamp};

/// Renewals in a slot's time to live: one may be lost, and the next still comes in time.
const RENEWALS: u32 = 3;

/// A slot of every [concurrent](crate::Limit::concurrent) limit that covers a request, for as long
/// as the request is under way.
///
/// Dropped, the slot is released: at once if the store is synchronous, by a task in a tokio runtime
/// (feature `tokio`), and otherwise when it expires. A process that dies gives back its own slots
/// when they expire, and nobody else's. A holder that takes longer than the time to live renews its
/// slot: [`renew`](Self::renew), [`hold_during`](Self::hold_during) or `renewing` (feature
/// `tokio`).
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Limit, Limiter, block_on};
///
/// let limiter = Limiter::new(Limit::concurrent(1));
/// let slot = block_on(limiter.acquire("alice", Duration::from_secs(30)))?;
/// assert!(slot.decision().allowed());
/// let answer = block_on(slot.hold_during(async { "the work, renewed while it lasts" }))?;
/// # let _ = answer;
/// let denied = block_on(limiter.acquire("alice", Duration::from_secs(30)))?;
/// assert!(!denied.decision().allowed(), "one is under way");
/// drop(slot);
/// assert!(block_on(limiter.acquire("alice", Duration::from_secs(30)))?.decision().allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use = "dropping a slot releases it"]
pub struct Slot<S: Store> {
    /// Ends before the slot is released.
    #[cfg(feature = "tokio")]
    renewal: Option<RenewalTask>,
    decision: Decision,
    ttl: Duration,
    /// What is held; `None` after a denial, and if no concurrent limit covers the request.
    lease: Option<Lease<S>>,
}

/// A slot in the store, or in the local store that decided while the store failed.
struct Lease<S> {
    limiter: Limiter<S>,
    /// The charges on concurrent limits.
    plan: Plan,
    hold: HoldId,
    is_local: bool,
}

impl<S> Clone for Lease<S> {
    fn clone(&self) -> Self {
        let (limiter, plan) = (self.limiter.clone(), self.plan.clone());
        Self { limiter, plan, hold: self.hold, is_local: self.is_local }
    }
}

impl<S: Store> Limiter<S> {
    /// Takes the request's cost and one slot of every [concurrent](crate::Limit::concurrent) limit,
    /// whatever the cost, if every rule that covers the request admits it. The slot is held for at
    /// most `ttl`, unless it is renewed. A denial takes nothing; its retry time is the earliest
    /// expiry of a slot.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted. A store
    /// that fails is a degraded decision.
    pub async fn acquire(&self, request: impl AsRequest, ttl: Duration) -> Result<Slot<S>, Error> {
        let (plan, cost) = self.plan(&request)?;
        // A slot that nobody waits for any more is dropped, and so released.
        let caller = request.with_request(|request| request.sender());
        let slot = run_to_end(self.clone().slot(plan, cost, ttl, caller)).await?;
        self.shared.observe(&request, &slot.decision);
        Ok(slot)
    }

    /// Waits until the request is admitted and there is a slot for it, as [`wait`](Self::wait)
    /// does: in order of arrival, for at most `timeout` from the first poll. The slot is then held
    /// for at most `ttl`, unless it is renewed.
    ///
    /// A slot that this process releases goes to the first that waits, at once. Where other
    /// processes use the same store, it is asked again when the first slot expires, and every 50 to
    /// 250 milliseconds before.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, SECOND, block_on};
    ///
    /// let limiter = Limiter::new(Limit::concurrent(1));
    /// let first = block_on(limiter.acquire_within("alice", 30 * SECOND, SECOND))?;
    /// let second = std::thread::spawn({
    ///     let limiter = limiter.clone();
    ///     move || block_on(limiter.acquire_within("alice", 30 * SECOND, 10 * SECOND))
    /// });
    /// drop(first);
    /// assert!(second.join().unwrap()?.decision().allowed());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn acquire_within(
        &self,
        request: impl AsRequest,
        ttl: Duration,
        timeout: Duration,
    ) -> Result<Slot<S>, Error> {
        let mut waiting = Waiting::new(self, request, Slots { ttl }, timeout);
        let slot = match poll_fn(|context| waiting.poll(context)).await? {
            Waited::Granted(slot) => slot,
            Waited::Denied(decision) => Slot::denied(ttl, decision),
        };
        self.shared.observe(&waiting.request, &slot.decision);
        Ok(slot)
    }

    /// Acquires a slot.
    async fn slot(
        self,
        plan: Plan,
        cost: u64,
        ttl: Duration,
        caller: Option<Caller>,
    ) -> Result<Slot<S>, Error> {
        let (hold, now) = (HoldId::random(), self.shared.clock.now());
        // Built before the store answers: if this is cancelled midway, the drop releases the slot.
        let pending = Decision::merge(now, Degraded::No, []);
        let mut slot = Slot::new(self.clone(), &plan, hold, ttl, pending);
        if slot.lease.is_some() {
            let ends_at = now.saturating_add(ttl);
            if let Err(full) = self.shared.holds.enter(hold, caller, now, ends_at) {
                slot.lease = None;
                slot.decision = Decision::full(now, full.cause, full.room_at);
                return Ok(slot);
            }
        }
        let op = Op::Acquire { hold, ttl };
        let applied = self.shared.apply_here(op, &plan, cost, now).await;
        slot.decision = self.shared.decided(applied, op, &plan, cost)?;
        if !slot.decision.allowed() {
            slot.lease = None;
            self.shared.holds.leave(hold, now);
        } else if let Some(lease) = &mut slot.lease {
            lease.is_local = slot.decision.degraded();
        }
        Ok(slot)
    }

    /// Releases a [detached](Slot::detach) slot, by its id and the request that acquired it.
    ///
    /// # Errors
    /// [`Error::NotReserved`] if it was released before, has expired or was never acquired, and any
    /// failure of the store.
    pub async fn release(&self, hold: HoldId, request: impl AsRequest) -> Result<(), Error> {
        let (plan, _) = self.plan(&request)?;
        if hold == HoldId::NO_SLOT {
            return Ok(());
        }
        self.shared.release(hold, &plan.only(true)).await?;
        self.shared.holds.leave(hold, self.shared.clock.now());
        Ok(())
    }
}

/// Waits for slots.
struct Slots {
    ttl: Duration,
}

impl<S: Store> Ask<S> for Slots {
    type Granted = Slot<S>;

    fn accepts(&self, _: &Plan) -> Result<(), Error> {
        Ok(())
    }

    fn ask(
        &self,
        limiter: &Limiter<S>,
        plan: Plan,
        cost: u64,
        caller: Option<Caller>,
        _: Timestamp,
    ) -> Asked<Slot<S>> {
        let slot = run_to_end(limiter.clone().slot(plan, cost, self.ttl, caller));
        Asked::Pending(Box::pin(async move {
            let slot = slot.await?;
            let decision = slot.decision.clone();
            Ok(if decision.allowed() { Waited::Granted(slot) } else { Waited::Denied(decision) })
        }))
    }
}

impl<S: Store> Slot<S> {
    /// A denial.
    const fn denied(ttl: Duration, decision: Decision) -> Self {
        Self {
            #[cfg(feature = "tokio")]
            renewal: None,
            decision,
            ttl,
            lease: None,
        }
    }

    /// The slot that a hold has of the concurrent limits in a plan.
    pub(super) fn new(
        limiter: Limiter<S>,
        plan: &Plan,
        hold: HoldId,
        ttl: Duration,
        decision: Decision,
    ) -> Self {
        let plan = plan.clone().only(true);
        let lease = (!plan.is_empty()).then_some(Lease { limiter, plan, hold, is_local: false });
        Self {
            #[cfg(feature = "tokio")]
            renewal: None,
            decision,
            ttl,
            lease,
        }
    }

    /// The decision on the request.
    pub const fn decision(&self) -> &Decision {
        &self.decision
    }

    /// Holds the slot for its time to live from now.
    ///
    /// # Errors
    /// [`Error::NotReserved`] if it has expired or was never granted, and any failure of the store.
    pub async fn renew(&self) -> Result<(), Error> {
        match &self.lease {
            Some(lease) => lease.renew(self.ttl).await,
            None if self.decision.allowed() => Ok(()),
            None => Err(Error::NotReserved),
        }
    }

    /// Does `work`, and renews the slot meanwhile: three times in each time to live, by the
    /// limiter's clock.
    ///
    /// # Errors
    /// [`Error::NotReserved`] if the slot has expired all the same, or was never granted. `work` is
    /// dropped then: another request may have the slot.
    pub async fn hold_during<F: Future>(&self, work: F) -> Result<F::Output, Error> {
        if !self.decision.allowed() {
            return Err(Error::NotReserved);
        }
        let renewal = async {
            match &self.lease {
                Some(lease) => lease.renew_until_lost(self.ttl).await,
                None => pending().await,
            }
        };
        let (mut work, mut renewal) = (pin!(work), pin!(renewal));
        poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(done) => Poll::Ready(Ok(done)),
            Poll::Pending => renewal.as_mut().poll(context).map(Err),
        })
        .await
    }

    /// Renews the slot by a task of the current tokio runtime until the slot is dropped or
    /// detached. For a slot that is kept where nothing polls it, such as in the body of a response.
    /// Outside of a runtime it lasts its time to live.
    #[cfg(feature = "tokio")]
    pub fn renewing(mut self) -> Self {
        if let (Some(lease), Ok(runtime)) = (self.lease.clone(), tokio::runtime::Handle::try_current()) {
            let ttl = self.ttl;
            let task = runtime.spawn(async move { lease.renew_until_lost(ttl).await });
            self.renewal = Some(RenewalTask(task.abort_handle()));
        }
        self
    }

    /// Releases the slot. A drop does so too, without saying whether the slot was still held.
    ///
    /// # Errors
    /// [`Error::NotReserved`] if it has expired or was never granted, and any failure of the store.
    pub async fn release(mut self) -> Result<(), Error> {
        match self.lease.take() {
            Some(lease) => lease.release().await,
            None if self.decision.allowed() => Ok(()),
            None => Err(Error::NotReserved),
        }
    }

    /// Detaches the slot: it stays in the store, to be [renewed](Limiter::renew) and
    /// [released](Limiter::release) by its id, by any process. `None` if nothing is held in the
    /// store: it was denied, decided without the store, or no concurrent limit covers the request.
    pub fn detach(mut self) -> Option<HoldId> {
        self.lease.take().filter(|lease| !lease.is_local).map(|lease| lease.hold)
    }
}

impl<S: Store> Lease<S> {
    async fn renew(&self, ttl: Duration) -> Result<(), Error> {
        match self.is_local {
            true => self.act_locally(Op::Renew { hold: self.hold, ttl }, &self.plan.charges(1)),
            false => self.limiter.shared.renew(self.hold, &self.plan_in_force(), ttl, ttl).await,
        }
    }

    /// Renews the slot again and again, and returns why it is lost. A store that fails is asked
    /// again.
    async fn renew_until_lost(&self, ttl: Duration) -> Error {
        let clock = &self.limiter.shared.clock;
        let interval = ttl.checked_div(RENEWALS).unwrap_or(ttl);
        loop {
            clock.sleep_until(clock.now().saturating_add(interval)).await;
            match self.renew(ttl).await {
                Ok(())
                | Err(Error::StoreUnavailable { .. } | Error::Overloaded { .. } | Error::StoreFull) => {}
                Err(lost) => return lost,
            }
        }
    }

    async fn release(&self) -> Result<(), Error> {
        let Shared { holds, clock, .. } = &*self.limiter.shared;
        holds.leave(self.hold, clock.now());
        match self.is_local {
            true => self.act_locally(Op::Settle { hold: self.hold }, &self.plan.settling(0)),
            false => self.limiter.shared.release(self.hold, &self.plan_in_force()).await,
        }
    }

    fn plan_in_force(&self) -> Plan {
        self.limiter.shared.in_force(&self.plan)
    }

    fn act_locally(&self, op: Op, charges: &[Charge<'_>]) -> Result<(), Error> {
        let Shared { local, clock, .. } = &*self.limiter.shared;
        let applied = local.apply_now(op, charges, clock.now()).map(drop).map_err(Error::from);
        self.limiter.shared.waiters.budgets_changed(&self.plan);
        applied
    }
}

impl<S: Store> Shared<S> {
    /// Ends a hold on concurrent limits.
    async fn release(self: &Arc<Self>, hold: HoldId, slots: &Plan) -> Result<(), Error> {
        let applied = self.act(Op::Settle { hold }, slots, 0).await?;
        let was_held = applied.answers.iter().any(|answer| answer.effect != Effect::NotReserved);
        if was_held { Ok(()) } else { Err(Error::NotReserved) }
    }
}

impl<S: Store> Drop for Slot<S> {
    fn drop(&mut self) {
        #[cfg(feature = "tokio")]
        drop(self.renewal.take());
        if let Some(lease) = self.lease.take() {
            run_detached(async move {
                let _ = lease.release().await;
            });
        }
    }
}

impl<S: Store> fmt::Debug for Slot<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hold = self.lease.as_ref().map(|lease| lease.hold);
        f.debug_struct("Slot").field("decision", &self.decision).field("hold", &hold).finish_non_exhaustive()
    }
}

/// A task that renews a slot, until it is dropped.
#[cfg(feature = "tokio")]
struct RenewalTask(tokio::task::AbortHandle);

#[cfg(feature = "tokio")]
impl Drop for RenewalTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}
