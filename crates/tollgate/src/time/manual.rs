//! A manual clock, for tests.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::{Clock, Sleep, Timestamp};

/// A clock for tests and simulations. It stands still until [`advance`](Self::advance) or
/// [`set`](Self::set) moves it, forwards or back, and then wakes exactly the sleepers that are due.
/// Clones share one clock.
///
/// ```
/// use tollgate::{Clock, ManualClock, SECOND, Timestamp};
///
/// let clock = ManualClock::at(Timestamp::from_secs(1_000));
/// clock.advance(5 * SECOND);
/// assert_eq!(clock.now(), Timestamp::from_secs(1_005));
/// clock.set(Timestamp::from_secs(3)); // clocks do go back
/// assert_eq!(clock.now(), Timestamp::from_secs(3));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    now: Timestamp,
    next_sleeper: u64,
    sleepers: Vec<Sleeper>,
}

#[derive(Debug)]
struct Sleeper {
    id: u64,
    until: Timestamp,
    waker: Waker,
}

impl ManualClock {
    /// A clock set to `now`.
    #[must_use]
    pub fn at(now: Timestamp) -> Self {
        let clock = Self::default();
        clock.set(now);
        clock
    }

    /// Moves the clock ahead by `span`.
    pub fn advance(&self, span: Duration) {
        self.set(self.now().saturating_add(span));
    }

    /// Sets the clock to `now`, later or earlier than before.
    pub fn set(&self, now: Timestamp) {
        let due = self.with(|state| {
            state.now = now;
            state.sleepers.extract_if(.., |sleeper| sleeper.until <= now).collect::<Vec<_>>()
        });
        for sleeper in due {
            sleeper.waker.wake();
        }
    }

    /// When the next sleeper is due, if there is one: a simulation can jump there.
    #[must_use]
    pub fn next_wake(&self) -> Option<Timestamp> {
        self.with(|state| state.sleepers.iter().map(|sleeper| sleeper.until).min())
    }

    /// The number of sleepers: a test waits for it before it moves the clock.
    #[must_use]
    pub fn sleepers(&self) -> usize {
        self.with(|state| state.sleepers.len())
    }

    fn with<R>(&self, f: impl FnOnce(&mut State) -> R) -> R {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        self.with(|state| state.now)
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        let id = self.with(|state| {
            state.next_sleeper = state.next_sleeper.wrapping_add(1);
            state.next_sleeper
        });
        Box::pin(ManualSleep { clock: self.clone(), id, until: at })
    }
}

struct ManualSleep {
    clock: ManualClock,
    id: u64,
    until: Timestamp,
}

impl Future for ManualSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let (id, until) = (self.id, self.until);
        self.clock.with(|state| {
            state.sleepers.retain(|sleeper| sleeper.id != id);
            if state.now >= until {
                return Poll::Ready(());
            }
            state.sleepers.push(Sleeper { id, until, waker: context.waker().clone() });
            Poll::Pending
        })
    }
}

impl Drop for ManualSleep {
    fn drop(&mut self) {
        let id = self.id;
        self.clock.with(|state| state.sleepers.retain(|sleeper| sleeper.id != id));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn poll(sleep: &mut Sleep) -> Poll<()> {
        sleep.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn c6_a_sleeper_wakes_exactly_when_its_time_has_come() {
        let clock = ManualClock::at(Timestamp::from_nanos(10));
        let mut sleep = clock.sleep_until(Timestamp::from_nanos(20));
        assert!(poll(&mut sleep).is_pending());
        assert_eq!(clock.next_wake(), Some(Timestamp::from_nanos(20)));
        clock.set(Timestamp::from_nanos(19));
        assert!(poll(&mut sleep).is_pending());
        clock.set(Timestamp::from_nanos(20));
        assert!(poll(&mut sleep).is_ready());
    }

    #[test]
    fn c6_a_dropped_sleep_is_forgotten() {
        let clock = ManualClock::default();
        let mut sleep = clock.sleep_until(Timestamp::from_nanos(1));
        assert!(poll(&mut sleep).is_pending());
        assert_eq!(clock.sleepers(), 1);
        drop(sleep);
        assert_eq!(clock.sleepers(), 0);
    }
}
