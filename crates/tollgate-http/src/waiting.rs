//! Requests that the layer holds until they are admitted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::{Decision, Error, RequestBuf, Slot, Store};

use crate::layer::Gate;

/// The most requests that wait by default.
pub(crate) const WAITERS_MAX: usize = 10_000;

/// How long requests wait, and how many.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) timeout: Duration,
    pub(crate) waiters_max: usize,
    pub(crate) counts: Arc<WaiterCounts>,
}

/// How many requests wait, and how many were denied because too many did.
#[derive(Debug, Default)]
pub(crate) struct WaiterCounts {
    pub(crate) waiting: AtomicUsize,
    pub(crate) refused: AtomicUsize,
}

/// A request that may wait, until it is dropped.
struct Waiter<'a>(&'a WaiterCounts);

impl Waiting {
    /// Lets one more request wait, if there is room.
    fn enter(&self) -> Option<Waiter<'_>> {
        let WaiterCounts { waiting, .. } = &*self.counts;
        let enter = |count: usize| (count < self.waiters_max).then_some(count + 1);
        waiting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, enter).ok()?;
        Some(Waiter(&self.counts))
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The decision on a request, and its slot if a limit on concurrency covers it.
pub(crate) type Admission<S> = (Decision, Option<Slot<S>>);

impl<S: Store> Gate<S> {
    /// Decides a request, when it is admitted or its time is up.
    pub(crate) async fn admit(&self, asked: &RequestBuf<'_>) -> Result<Admission<S>, Error> {
        let Some(waiting) = &self.waiting else {
            return match self.limiter.check_async(asked).await {
                Err(Error::SlotNeeded { .. }) => {
                    self.limiter.acquire(asked, self.slots.ttl).await.map(with_slot)
                }
                decided => decided.map(|decision| (decision, None)),
            };
        };
        let waiter = waiting.enter();
        let timeout = if waiter.is_some() { waiting.timeout } else { Duration::ZERO };
        let admitted = match self.limiter.wait(asked, timeout).await {
            Err(Error::SlotNeeded { .. }) => {
                self.limiter.acquire_within(asked, self.slots.ttl, timeout).await.map(with_slot)
            }
            decided => decided.map(|decision| (decision, None)),
        };
        if waiter.is_none() && admitted.as_ref().is_ok_and(|(decision, _)| !decision.allowed()) {
            waiting.counts.refused.fetch_add(1, Ordering::Relaxed);
        }
        admitted
    }
}

fn with_slot<S: Store>(slot: Slot<S>) -> Admission<S> {
    let decision = slot.decision().clone();
    let slot = Some(slot).filter(|_| decision.allowed());
    (decision, slot)
}
