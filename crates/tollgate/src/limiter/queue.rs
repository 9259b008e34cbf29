//! The queue in front of a store that answers later.
//!
//! The charges in flight to the store are bounded, and callers take turns for them: a caller's
//! calls wait behind each other, and not other callers' calls behind them. In each round every
//! caller with a waiting call has a turn, of as many charges as its share. A call of more charges
//! than that sits out the rounds that it has used up.
//!
//! When more waits than may, the caller with the most waiting charges, relative to its share, loses
//! its newest call, whoever came last. A wait is bounded in time, too. Both are overload, and no
//! failure of the store. A store that has answered nothing in time for a whole deadline has failed,
//! and fails those that wait for it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use smallvec::SmallVec;

use crate::store::StoreError;
use crate::time::AnyClock;
use crate::{Caller, Timestamp};

/// A wait in the queue is at most this many deadlines long.
const DEADLINES_WAITING_MAX: u32 = 10;

/// The digest of a caller; `None` is the program itself.
type CallerId = Option<u64>;

#[derive(Debug)]
pub(super) struct Queue {
    state: Mutex<State>,
    /// How long the store may take to answer.
    deadline: Duration,
}

#[derive(Debug)]
struct State {
    in_flight_max: usize,
    waiting_max: usize,
    /// Charges of the calls in flight.
    in_flight: usize,
    /// Charges of the calls that wait.
    waiting: usize,
    /// The callers with calls that wait.
    lines: HashMap<CallerId, Line>,
    /// The callers with calls that wait, in the order of their turns.
    turns: VecDeque<CallerId>,
    /// The same callers, by their load.
    by_load: BTreeSet<(u64, CallerId)>,
    /// When the store last answered in time, or became busy.
    answered_at: Timestamp,
}

/// The calls of one caller that wait.
#[derive(Debug)]
struct Line {
    share: u32,
    /// The charges that the caller may still send in this round; negative after a large call.
    credit: i64,
    charges: usize,
    calls: VecDeque<Arc<Call>>,
}

impl Line {
    /// The waiting charges, relative to the caller's share.
    fn load(&self) -> u64 {
        let charges = u64::try_from(self.charges).unwrap_or(u64::MAX >> 20).min(u64::MAX >> 20);
        (charges << 20).checked_div(self.share.into()).expect("a share is at least 1")
    }
}

/// A call that waits, or has waited.
#[derive(Debug)]
struct Call {
    charges: usize,
    progress: Mutex<Progress>,
}

#[derive(Debug)]
enum Progress {
    Waiting(Waker),
    /// It is in flight, and its caller does not know yet.
    Granted,
    Refused,
    /// It is in flight under a [`Permit`].
    Sent,
}

/// Wakers of calls that wait no longer. They are called without the lock: a waker may drop a call.
type Woken = SmallVec<[Waker; 8]>;

impl Call {
    /// Locked after the state of the queue, or without it.
    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, end: Progress, woken: &mut Woken) {
        if let Progress::Waiting(waker) = std::mem::replace(&mut *self.progress(), end) {
            woken.push(waker);
        }
    }
}

impl Queue {
    pub(super) fn new(in_flight_max: usize, waiting_max: usize, deadline: Duration) -> Self {
        let state = State {
            in_flight_max,
            waiting_max,
            in_flight: 0,
            waiting: 0,
            lines: HashMap::new(),
            turns: VecDeque::new(),
            by_load: BTreeSet::new(),
            answered_at: Timestamp::EPOCH,
        };
        Self { state: Mutex::new(state), deadline }
    }

    /// Waits for the turn of a call of so many charges.
    ///
    /// # Errors
    /// [`StoreError::Overloaded`] if it is refused, and [`StoreError::TimedOut`] if the store does
    /// not answer.
    pub(super) async fn enter(
        &self,
        caller: Option<Caller>,
        charges: usize,
        clock: &AnyClock,
    ) -> Result<Permit<'_>, StoreError> {
        let now = clock.now();
        let Some(turn) = self.join(caller, charges, now)? else { return Ok(Permit { queue: self, charges }) };
        let overloaded_at = now.saturating_add(self.longest_wait());
        loop {
            let silent_at = self.state().answered_at.saturating_add(self.deadline);
            let mut timer = clock.sleep_until(overloaded_at.min(silent_at));
            let granted = poll_fn(|context| match turn.poll(context.waker()) {
                Poll::Ready(granted) => Poll::Ready(Some(granted)),
                Poll::Pending => timer.as_mut().poll(context).map(|()| None),
            });
            match granted.await {
                Some(true) => return Ok(Permit { queue: self, charges }),
                Some(false) => return Err(self.overloaded()),
                None if self.state().is_silent(clock.now(), self.deadline) => {
                    return Err(StoreError::TimedOut);
                }
                None if clock.now() >= overloaded_at => return Err(self.overloaded()),
                None => {}
            }
        }
    }

    /// Takes a place in flight, or in the queue.
    fn join(
        &self,
        caller: Option<Caller>,
        charges: usize,
        now: Timestamp,
    ) -> Result<Option<Turn<'_>>, StoreError> {
        let mut woken = Woken::new();
        let mut state = self.state();
        if state.in_flight == 0 {
            state.answered_at = now;
        }
        if state.waiting == 0 && state.has_room(charges) {
            state.in_flight = state.in_flight.saturating_add(charges);
            return Ok(None);
        }
        if state.is_silent(now, self.deadline) {
            return Err(StoreError::TimedOut);
        }
        let call = Arc::new(Call { charges, progress: Mutex::new(Progress::Waiting(Waker::noop().clone())) });
        let id = caller.map(Caller::id);
        state.push(id, caller.map_or(1, Caller::share), Arc::clone(&call));
        state.refuse_excess(&mut woken);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
        Ok(Some(Turn { queue: self, caller: id, call }))
    }

    /// Frees the room of a call that was in flight.
    fn release(&self, charges: usize) {
        let mut woken = Woken::new();
        let mut state = self.state();
        state.in_flight = state.in_flight.saturating_sub(charges);
        state.grant(&mut woken);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }

    const fn longest_wait(&self) -> Duration {
        self.deadline.saturating_mul(DEADLINES_WAITING_MAX)
    }

    const fn overloaded(&self) -> StoreError {
        StoreError::Overloaded { retry_after: self.longest_wait() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A call of any size fits if nothing else is in flight.
    fn has_room(&self, charges: usize) -> bool {
        self.in_flight == 0 || self.in_flight.saturating_add(charges) <= self.in_flight_max
    }

    /// Whether the store has answered nothing in time for a deadline.
    fn is_silent(&self, now: Timestamp, deadline: Duration) -> bool {
        self.in_flight > 0 && now >= self.answered_at.saturating_add(deadline)
    }

    fn push(&mut self, caller: CallerId, share: u32, call: Arc<Call>) {
        if !self.lines.contains_key(&caller) {
            self.turns.push_back(caller);
        }
        self.change(caller, share, |line| {
            line.charges = line.charges.saturating_add(call.charges);
            line.calls.push_back(Arc::clone(&call));
        });
        self.waiting = self.waiting.saturating_add(call.charges);
    }

    /// Changes a caller's line, and keeps its load in order.
    fn change(&mut self, caller: CallerId, share: u32, change: impl FnOnce(&mut Line)) {
        let new = || Line { share, credit: share.into(), charges: 0, calls: VecDeque::new() };
        let line = self.lines.entry(caller).or_insert_with(new);
        self.by_load.remove(&(line.load(), caller));
        change(line);
        if line.calls.is_empty() {
            self.lines.remove(&caller);
            // Usually the caller whose turn it is.
            match self.turns.front() == Some(&caller) {
                true => drop(self.turns.pop_front()),
                false => self.turns.retain(|other| *other != caller),
            }
        } else {
            self.by_load.insert((line.load(), caller));
        }
    }

    /// Takes a call that waits out of its line.
    fn remove(&mut self, caller: CallerId, call: &Arc<Call>) {
        self.change(caller, 1, |line| {
            line.calls.retain(|other| !Arc::ptr_eq(other, call));
            line.charges = line.charges.saturating_sub(call.charges);
        });
        self.waiting = self.waiting.saturating_sub(call.charges);
    }

    /// Refuses the newest calls of the callers with the highest loads, until no more wait than may.
    fn refuse_excess(&mut self, woken: &mut Woken) {
        while self.waiting > self.waiting_max {
            let (_, caller) = *self.by_load.last().expect("whatever waits is in a caller's line");
            let newest = self.lines.get(&caller).and_then(|line| line.calls.back()).map(Arc::clone);
            let newest = newest.expect("a line has a call");
            self.remove(caller, &newest);
            newest.end(Progress::Refused, woken);
        }
    }

    /// Grants turns while there is room.
    fn grant(&mut self, woken: &mut Woken) {
        while let Some(caller) = self.turns.front().copied() {
            let line = self.lines.get_mut(&caller).expect("a caller has turns while it has a line");
            if line.credit <= 0 {
                line.credit = line.credit.saturating_add(line.share.into());
                self.turns.rotate_left(1);
                continue;
            }
            let first = line.calls.front().map(Arc::clone).expect("a line has a call");
            if !self.has_room(first.charges) {
                return;
            }
            self.in_flight = self.in_flight.saturating_add(first.charges);
            let line = self.lines.get_mut(&caller).expect("a caller has turns while it has a line");
            line.credit =
                line.credit.saturating_sub_unsigned(u64::try_from(first.charges).unwrap_or(u64::MAX));
            self.remove(caller, &first);
            first.end(Progress::Granted, woken);
        }
    }
}

/// A place in the queue. Dropping it leaves the queue.
struct Turn<'a> {
    queue: &'a Queue,
    caller: CallerId,
    call: Arc<Call>,
}

impl Turn<'_> {
    /// Ready when the call is granted (true) or refused.
    fn poll(&self, waker: &Waker) -> Poll<bool> {
        match &mut *self.call.progress() {
            Progress::Waiting(registered) => {
                registered.clone_from(waker);
                Poll::Pending
            }
            granted @ Progress::Granted => {
                *granted = Progress::Sent;
                Poll::Ready(true)
            }
            Progress::Refused => Poll::Ready(false),
            Progress::Sent => panic!("a call that was sent was polled again"),
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut woken = Woken::new();
        let mut state = self.queue.state();
        let progress = std::mem::replace(&mut *self.call.progress(), Progress::Sent);
        match progress {
            // What waited behind it may fit.
            Progress::Waiting(_) => state.remove(self.caller, &self.call),
            Progress::Granted => state.in_flight = state.in_flight.saturating_sub(self.call.charges),
            Progress::Refused | Progress::Sent => return,
        }
        state.grant(&mut woken);
        drop(state);
        woken.into_iter().for_each(Waker::wake);
    }
}

/// Room in flight for one call. Dropping it makes room for others.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    queue: &'a Queue,
    charges: usize,
}

impl Permit<'_> {
    /// The store has answered in time.
    pub(super) fn answered(&self, now: Timestamp) {
        self.queue.state().answered_at = now;
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.queue.release(self.charges);
    }
}
