//! The waiters of a limiter, and the timer that they share.
//!
//! One waiter sleeps for all: until the first of them is due. When the sleep ends, those that are
//! due are woken on the thread of the clock, and one of them sets the timer anew. So a waiter costs
//! no timer of its own, and the task of the one that sleeps may be busy. If the one that is to set
//! the timer is busy, another is asked after a few milliseconds.

use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use super::lines::{Lines, QueueId};
use super::slab::WaiterId;
use super::state::{Ahead, OfferChange, Standing, State, Turn, Wakers};
use crate::Timestamp;
use crate::limiter::plan::Plan;
use crate::time::{AnyClock, Sleep};

/// How long the waiter that was woken to set the timer may take.
const OFFER_TIMEOUT: Duration = Duration::from_millis(5);

/// The requests of a limiter that wait.
pub(in crate::limiter) struct Waiters {
    state: Mutex<State>,
    /// Ends when a waiter that was woken to set the timer has not done so.
    offer_timeout: Mutex<Option<Sleep>>,
    clock: AnyClock,
    max: usize,
    len: AtomicUsize,
    refused: AtomicU64,
    generation: AtomicU64,
}

impl Waiters {
    pub(in crate::limiter) fn new(max: usize, clock: AnyClock) -> Self {
        Self {
            state: Mutex::default(),
            offer_timeout: Mutex::default(),
            clock,
            max,
            len: AtomicUsize::new(0),
            refused: AtomicU64::new(0),
            generation: AtomicU64::new(0),
        }
    }

    /// The waiters, and how many were refused because there were too many.
    pub(in crate::limiter) fn counts(&self) -> (u64, u64) {
        let len = u64::try_from(self.len.load(Ordering::Relaxed)).unwrap_or(u64::MAX);
        (len, self.refused.load(Ordering::Relaxed))
    }

    /// How often the rules were replaced.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// The rules were replaced: everyone looks at them, in order.
    pub(in crate::limiter) fn rules_changed(self: &Arc<Self>) {
        let now = self.clock.now();
        self.change(|state, woken| {
            let generation = state.generation.wrapping_add(1);
            state.rules_changed(generation);
            self.generation.store(generation, Ordering::Release);
            state.wake_due(now, woken);
        });
    }

    /// The budgets of a plan may have more, or less: the first that waits for each asks again.
    pub(in crate::limiter) fn budgets_changed(self: &Arc<Self>, plan: &Plan) {
        self.each_queue(plan, |state, lines, woken| {
            lines.queues().for_each(|queue| state.call_first(queue, woken));
        });
    }

    /// The budgets of a plan are blocked until then.
    pub(in crate::limiter) fn budgets_blocked(self: &Arc<Self>, plan: &Plan, until: Timestamp) {
        let now = self.clock.now();
        self.each_queue(plan, |state, lines, woken| {
            for queue in lines.queues() {
                state.blocked(queue, until);
                state.call_first(queue, woken);
            }
            state.wake_due(now, woken);
        });
    }

    /// Calls `f` with the queues of a plan's budgets: those of requests with a cost, and those of
    /// requests without.
    fn each_queue(self: &Arc<Self>, plan: &Plan, f: impl Fn(&mut State, &Lines, &mut Wakers)) {
        // A waiter is counted before it asks: it sees the change, or is seen here.
        if self.len.load(Ordering::Acquire) == 0 {
            return;
        }
        let queues = [Lines::new(plan, 1), Lines::new(plan, 0)];
        self.change(|state, woken| queues.iter().for_each(|lines| f(state, lines, woken)));
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and then wakes whom that concerns: a waker may poll or drop another
    /// waiter.
    fn change<R>(self: &Arc<Self>, change: impl FnOnce(&mut State, &mut Wakers) -> R) -> R {
        let mut woken = Wakers::new();
        let mut state = self.lock();
        let result = change(&mut state, &mut woken);
        self.len.store(state.len(), Ordering::Release);
        let offer = state.offer_change();
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        match offer {
            Some(OfferChange::Made) => self.expect_timer(),
            Some(OfferChange::Taken) => self.replace_offer_timeout(None),
            None => {}
        }
        result
    }

    /// Asks another waiter, if the one that was woken to set the timer does not do so.
    fn expect_timer(self: &Arc<Self>) {
        let mut timeout = self.clock.sleep_until(self.clock.now().saturating_add(OFFER_TIMEOUT));
        let waker = Waker::from(Arc::new(OfferTimeout(Arc::downgrade(self))));
        let polled = timeout.as_mut().poll(&mut Context::from_waker(&waker));
        self.replace_offer_timeout(Some(timeout).filter(|_| polled.is_pending()));
        if polled.is_ready() {
            waker.wake();
        }
    }

    fn replace_offer_timeout(&self, timeout: Option<Sleep>) {
        let mut current = self.offer_timeout.lock().unwrap_or_else(PoisonError::into_inner);
        let last = std::mem::replace(&mut *current, timeout);
        // A sleep may run code of its clock when it is dropped.
        drop(current);
        drop(last);
    }
}

impl fmt::Debug for Waiters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Waiters").field("len", &self.len).finish_non_exhaustive()
    }
}

/// The waker of the sleep after an offer.
struct OfferTimeout(Weak<Waiters>);

impl Wake for OfferTimeout {
    fn wake(self: Arc<Self>) {
        let Some(waiters) = self.0.upgrade() else { return };
        let now = waiters.clock.now();
        waiters.change(|state, woken| state.offer_ended(now, woken));
    }
}

/// The waker of the timer.
impl Wake for Waiters {
    fn wake(self: Arc<Self>) {
        let now = self.clock.now();
        self.change(|state, woken| state.timer_ended(now, woken));
    }
}

/// A request's place among the waiters. Dropping it leaves them.
pub(super) struct Place<'a> {
    waiters: &'a Arc<Waiters>,
    deadline: Timestamp,
    id: Option<WaiterId>,
    /// The sleep for all, if it is this one that sleeps.
    timer: Option<Sleep>,
}

impl<'a> Place<'a> {
    /// The place of a request that has not arrived yet.
    pub(super) const fn new(waiters: &'a Arc<Waiters>, deadline: Timestamp) -> Self {
        Self { waiters, deadline, id: None, timer: None }
    }

    pub(super) const fn deadline(&self) -> Timestamp {
        self.deadline
    }

    /// Whether it is one of the waiters.
    pub(super) const fn is_taken(&self) -> bool {
        self.id.is_some()
    }

    /// Finds out whether the request may ask the store.
    pub(super) fn stand(&mut self, lines: &Lines, generation: u64, now: Timestamp) -> Standing {
        let max = self.waiters.max;
        self.waiters.change(|state, woken| {
            let id = match self.id {
                Some(id) => id,
                None if state.len() < max => *self.id.insert(state.arrive(self.deadline)),
                None if state.is_free(lines) => return Standing::First,
                None => {
                    self.waiters.refused.fetch_add(1, Ordering::Relaxed);
                    return Standing::Refused;
                }
            };
            state.stand(id, lines, generation, now, woken)
        })
    }

    /// Notes that the budget of `queue` is blocked until then.
    pub(super) fn blocked(&self, queue: QueueId, until: Timestamp) {
        self.waiters.change(|state, _| state.blocked(queue, until));
    }

    /// Notes that the store has denied the request until `at`. Returns false if it is to ask again
    /// at once.
    pub(super) fn denied(&self, queue: QueueId, lines: &Lines, at: Timestamp) -> bool {
        let Some(id) = self.id else { return true };
        self.waiters.change(|state, woken| state.denied(id, queue, lines, at, woken))
    }

    /// What the request does next. Before it sleeps it sets the timer, unless that is set.
    pub(super) fn turn(&mut self, now: Timestamp, is_asking: bool, context: &Context<'_>) -> Turn {
        let Some(id) = self.id else {
            let is_late = now >= self.deadline;
            return if is_late { Turn::GiveUp } else { Turn::Sleep { timer: None, is_timer: false } };
        };
        let mut waker = Some(context.waker().clone());
        let turn = self.waiters.change(|state, woken| state.turn(id, now, is_asking, &mut waker, woken));
        match turn {
            Turn::Sleep { timer: Some(until), .. } => self.set_timer(until),
            // Another waiter sleeps until an earlier time.
            Turn::Sleep { is_timer: false, .. } => self.timer = None,
            _ => {}
        }
        turn
    }

    fn set_timer(&mut self, until: Timestamp) {
        let mut sleep = self.waiters.clock.sleep_until(until);
        let waker = Waker::from(Arc::clone(self.waiters));
        let polled = sleep.as_mut().poll(&mut Context::from_waker(&waker));
        self.timer = Some(sleep);
        if polled.is_ready() {
            waker.wake();
        }
    }

    /// Leaves the waiters, and returns what had to be admitted before.
    pub(super) fn leave(&mut self, now: Timestamp) -> Ahead {
        let Some(id) = self.id.take() else { return Ahead::default() };
        let ahead = self.waiters.change(|state, woken| {
            let ahead = state.ahead(id);
            state.leave(id, now, woken);
            ahead
        });
        self.timer = None;
        ahead
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if self.id.is_some() {
            self.leave(self.waiters.clock.now());
        }
    }
}
