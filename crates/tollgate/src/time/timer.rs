//! Sleeping without an async runtime: one thread that wakes the sleepers of the whole process.
//!
//! A sleep registers its waker under its end; the thread parks until the earliest is due. A process
//! that was forked has none of its parent's threads, so it starts a timer of its own.

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Condvar, Mutex, MutexGuard, Once, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Clock, SystemClock, Timestamp};

/// A sleep of [`SystemClock`].
pub(super) struct Wait {
    until: Timestamp,
    /// Where it is registered, since the first poll that was too early.
    registered: Option<Registered>,
}

/// A sleep in a schedule.
struct Registered {
    timer: &'static Timer,
    ticket: u64,
}

impl Wait {
    pub(super) const fn new(until: Timestamp) -> Self {
        Self { until, registered: None }
    }

    fn leave(&mut self) {
        // The lock of a parent's timer may be held by a thread that this process does not have.
        if let Some(Registered { timer, ticket }) = self.registered.take()
            && timer.process == std::process::id()
        {
            timer.schedule().sleepers.remove(&(self.until, ticket));
        }
    }
}

impl Future for Wait {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if SystemClock.now() >= self.until {
            return Poll::Ready(());
        }
        let timer = Timer::running();
        let mut schedule = timer.schedule();
        let registered = self.registered.as_ref().filter(|known| std::ptr::eq(known.timer, timer));
        let ticket = registered.map_or_else(|| schedule.next_ticket(), |known| known.ticket);
        self.registered = Some(Registered { timer, ticket });
        let place = (self.until, ticket);
        let is_first = schedule.sleepers.first_key_value().is_none_or(|(first, _)| place < *first);
        schedule.sleepers.insert(place, context.waker().clone());
        if is_first {
            timer.changed.notify_one();
        }
        Poll::Pending
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        self.leave();
    }
}

struct Timer {
    /// The process that its thread belongs to.
    process: u32,
    thread: Once,
    schedule: Mutex<Schedule>,
    changed: Condvar,
    /// The timer of a process that was forked from that one.
    forked: OnceLock<Box<Self>>,
}

#[derive(Default)]
struct Schedule {
    sleepers: BTreeMap<(Timestamp, u64), Waker>,
    tickets: u64,
}

impl Schedule {
    fn next_ticket(&mut self) -> u64 {
        self.tickets = self.tickets.wrapping_add(1);
        self.tickets
    }

    fn due(&mut self, now: Timestamp) -> Vec<Waker> {
        let mut due = Vec::new();
        while let Some(first) = self.sleepers.first_entry().filter(|first| first.key().0 <= now) {
            due.push(first.remove());
        }
        due
    }
}

impl Timer {
    fn new() -> Self {
        Self {
            process: std::process::id(),
            thread: Once::new(),
            schedule: Mutex::default(),
            changed: Condvar::new(),
            forked: OnceLock::new(),
        }
    }

    /// The timer of this process; the first call starts its thread.
    fn running() -> &'static Self {
        static FIRST: OnceLock<Timer> = OnceLock::new();
        let mut timer = FIRST.get_or_init(Self::new);
        while timer.process != std::process::id() {
            timer = timer.forked.get_or_init(|| Box::new(Self::new()));
        }
        timer.thread.call_once(|| {
            // Best effort: a process that cannot start a thread has worse problems than a sleep
            // that lasts.
            let _ = std::thread::Builder::new().name("tollgate-timer".into()).spawn(|| timer.run());
        });
        timer
    }

    fn schedule(&self) -> MutexGuard<'_, Schedule> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        let mut schedule = self.schedule();
        loop {
            let now = SystemClock.now();
            let due = schedule.due(now);
            if !due.is_empty() {
                drop(schedule);
                due.into_iter().for_each(Waker::wake);
                schedule = self.schedule();
                continue;
            }
            let nap = schedule.sleepers.keys().next().map_or(Duration::MAX, |(until, _)| until.since(now));
            schedule = match nap {
                Duration::MAX => self.changed.wait(schedule).unwrap_or_else(PoisonError::into_inner),
                nap => self.changed.wait_timeout(schedule, nap).unwrap_or_else(PoisonError::into_inner).0,
            };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;

    #[test]
    fn c6_the_system_clock_sleeps_without_a_runtime() {
        let until = SystemClock.now().saturating_add(Duration::from_millis(20));
        block_on(SystemClock.sleep_until(until));
        assert!(SystemClock.now() >= until);
    }

    #[test]
    fn c6_an_earlier_sleep_is_woken_before_a_later_one() {
        let now = SystemClock.now();
        let late = SystemClock.sleep_until(now.saturating_add(crate::HOUR));
        let mut late = late;
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        block_on(SystemClock.sleep_until(now.saturating_add(Duration::from_millis(5))));
        assert!(late.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
}
