//! Waiting for admission: first come, first served, up to a timeout.
//!
//! Requests for the same budgets share one queue per process. Only the first in the queue asks the
//! store, sleeps until the time that the store answered, and asks again. Leaving the queue
//! (admitted, timed out or cancelled) wakes the next.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use super::Limiter;
use crate::store::{OnExpiry, Store};
use crate::{AsRequest, Decision, Error, SECOND, Verdict};

impl<S: Store> Limiter<S> {
    /// Waits until the request is admitted, for at most `timeout` from the first poll, in order of
    /// arrival among the requests of this process for the same budgets. A denial has taken nothing:
    /// the request can never fit, could not be admitted in time, or was not first in the queue by
    /// then. Dropping the future leaves the queue and gives back the units it had taken.
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
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted.
    pub async fn wait(&self, request: impl AsRequest, timeout: Duration) -> Result<Decision, Error> {
        let (mut plan, cost) = self.plan(&request)?;
        plan.without_slots()?;
        let caller = request.with_request(|request| request.sender());
        let clock = &self.shared.clock;
        let deadline = clock.now().saturating_add(timeout);
        let ticket = self.shared.queues.join(plan.identity());
        let mut expiry = clock.sleep_until(deadline);
        let is_first = poll_fn(|context| match ticket.poll(context.waker()) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => expiry.as_mut().poll(context).map(|()| false),
        });
        let decision = if is_first.await {
            loop {
                // If this is cancelled during the store call, the units come back when the
                // reservation expires.
                let ttl = self.shared.deadline.saturating_add(SECOND);
                let asked_at = clock.now();
                let reservation = self.hold(plan.clone(), cost, ttl, OnExpiry::GiveBack, caller).await?;
                let decision = reservation.decision();
                let Verdict::Denied { retry_after } = decision.verdict() else {
                    match reservation.keep(cost).await {
                        Some(kept) => break kept,
                        None => continue,
                    }
                };
                // On this limiter's clock: the store may have another.
                let at = asked_at.saturating_add(retry_after);
                if at > deadline || decision.degraded() {
                    break decision.clone();
                }
                drop(reservation);
                clock.sleep_until(at).await;
                // The rules may have changed meanwhile.
                (plan, _) = self.plan(&request)?;
                plan.without_slots()?;
            }
        } else {
            self.shared.decide(crate::store::Op::Peek, &plan, cost, clock.now()).await?.overtaken()
        };
        self.shared.observe(&request, &decision);
        Ok(decision)
    }
}

/// The queues of a limiter, one per set of budgets with waiting requests.
#[derive(Clone, Debug, Default)]
pub(super) struct Queues(Arc<Mutex<HashMap<Vec<u8>, Queue>>>);

#[derive(Debug, Default)]
struct Queue {
    tickets: u64,
    waiting: VecDeque<(u64, Waker)>,
}

/// A request's position in a queue. Dropping it leaves the queue.
struct QueueTicket {
    queues: Queues,
    identity: Vec<u8>,
    ticket: u64,
}

impl Queues {
    fn join(&self, identity: Vec<u8>) -> QueueTicket {
        let mut queues = self.lock();
        let queue = queues.entry(identity.clone()).or_default();
        queue.tickets = queue.tickets.wrapping_add(1);
        let ticket = queue.tickets;
        queue.waiting.push_back((ticket, Waker::noop().clone()));
        QueueTicket { queues: self.clone(), identity, ticket }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Queue>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl QueueTicket {
    /// Ready when this ticket is the first in the queue.
    fn poll(&self, waker: &Waker) -> Poll<()> {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&self.identity) else { return Poll::Ready(()) };
        if queue.waiting.front().is_none_or(|(first, _)| *first == self.ticket) {
            return Poll::Ready(());
        }
        if let Some((_, registered)) = queue.waiting.iter_mut().find(|(ticket, _)| *ticket == self.ticket) {
            registered.clone_from(waker);
        }
        Poll::Pending
    }
}

impl Drop for QueueTicket {
    fn drop(&mut self) {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.get_mut(&self.identity) else { return };
        queue.waiting.retain(|(ticket, _)| *ticket != self.ticket);
        let next = queue.waiting.front().map(|(_, waker)| waker.clone());
        if next.is_none() {
            queues.remove(&self.identity);
        }
        drop(queues);
        if let Some(next) = next {
            next.wake();
        }
    }
}
