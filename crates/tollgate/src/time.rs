//! Time: timestamps and clocks.
//!
//! A decision is a function of a [`Timestamp`]; the decision core never reads a clock. A
//! [`Limiter`](crate::Limiter) reads the time and sleeps through a [`Clock`], so a test controls
//! both: [`ManualClock`] moves only when it is told to.
//!
//! [`SystemClock`] and [`CoarseClock`] are the only readers of the operating system's clock. They
//! read the monotonic clock and add an epoch offset taken once per process, so stepping the wall
//! clock neither locks a client out nor refills its budget.
//!
//! A clock may stand still, jump and go back: no limit admits more than it allows over the times
//! that the clock showed. There are two exceptions. The clock goes back by more than a limit's
//! period, or it goes back after a store has forgotten a key, whose whole limit was available: the
//! key then has the budget of an earlier window once more.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

mod coarse;
mod counter;
mod manual;
mod timer;
#[cfg(feature = "tokio")]
mod tokio;

pub use coarse::CoarseClock;
pub use manual::ManualClock;

#[cfg(feature = "tokio")]
pub use self::tokio::TokioClock;

/// One second, for limits that read like sentences.
pub const SECOND: Duration = Duration::from_secs(1);
/// One minute.
pub const MINUTE: Duration = Duration::from_secs(60);
/// One hour.
pub const HOUR: Duration = Duration::from_secs(60 * 60);
/// One day.
pub const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// A moment: whole nanoseconds since the Unix epoch.
///
/// Times saturate at [`Timestamp::MAX`], in the year 2262, so that adding the longest wait of any
/// limit does not overflow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch.
    pub const EPOCH: Self = Self(0);
    /// The latest timestamp (11 April 2262).
    pub const MAX: Self = Self(i64::MAX.unsigned_abs());

    /// The moment `nanos` nanoseconds after the epoch, at most [`Timestamp::MAX`].
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        if nanos > Self::MAX.0 { Self::MAX } else { Self(nanos) }
    }

    /// The moment `millis` milliseconds after the epoch, at most [`Timestamp::MAX`].
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self::from_nanos(millis.saturating_mul(1_000_000))
    }

    /// The moment `secs` seconds after the epoch, at most [`Timestamp::MAX`].
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self::from_nanos(secs.saturating_mul(1_000_000_000))
    }

    /// Whole nanoseconds since the epoch.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the epoch, rounded up: a wait until then is never too short.
    #[must_use]
    pub const fn as_millis_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// This moment and `span` later, at most [`Timestamp::MAX`].
    #[must_use]
    pub fn saturating_add(self, span: Duration) -> Self {
        Self::from_nanos(self.0.saturating_add(nanos_of(span)))
    }

    /// This moment and `span` earlier, at least the epoch.
    #[must_use]
    pub fn saturating_sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos_of(span)))
    }

    /// The time elapsed since `earlier`; zero if this is not after it.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}ns", self.0)
    }
}

/// A duration in nanoseconds, saturating.
pub(crate) fn nanos_of(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// The clock of a limiter: the system's, called without dynamic dispatch, or another.
#[derive(Clone, Debug)]
pub(crate) enum AnyClock {
    System,
    Other(Arc<dyn Clock>),
}

impl AnyClock {
    pub(crate) fn new(clock: impl Clock + 'static) -> Self {
        let any: &dyn std::any::Any = &clock;
        if any.is::<SystemClock>() { Self::System } else { Self::Other(Arc::new(clock)) }
    }

    #[inline]
    pub(crate) fn now(&self) -> Timestamp {
        match self {
            Self::System => SystemClock.now(),
            Self::Other(clock) => clock.now(),
        }
    }

    pub(crate) fn sleep_until(&self, until: Timestamp) -> Sleep {
        match self {
            Self::System => SystemClock.sleep_until(until),
            Self::Other(clock) => clock.sleep_until(until),
        }
    }
}

/// A sleep under way; see [`Clock::sleep_until`].
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A clock, and sleeping by it.
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time now.
    fn now(&self) -> Timestamp;

    /// Completes once [`now`](Clock::now) has reached `at`. Dropping it cancels it.
    fn sleep_until(&self, at: Timestamp) -> Sleep;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        (**self).sleep_until(at)
    }
}

/// The system's monotonic clock, counted from the Unix epoch.
///
/// It sleeps without an async runtime: one timer thread serves the whole process, started by the
/// first sleep. Inside tokio, `TokioClock` (feature `tokio`) needs no such thread.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_nanos(counter::nanos())
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        Box::pin(timer::Wait::new(at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timestamp_saturates_at_both_ends() {
        assert_eq!(Timestamp::from_nanos(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_secs(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::MAX.saturating_add(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::EPOCH.saturating_sub(SECOND), Timestamp::EPOCH);
        assert_eq!(Timestamp::EPOCH.since(Timestamp::MAX), Duration::ZERO);
    }

    #[test]
    fn milliseconds_are_rounded_up() {
        assert_eq!(Timestamp::from_nanos(1_000_001).as_millis_ceil(), 2);
        assert_eq!(Timestamp::from_nanos(1_000_000).as_millis_ceil(), 1);
    }

    #[test]
    fn b7_the_system_clock_never_goes_back() {
        let mut last = SystemClock.now();
        for _ in 0..10_000 {
            let now = SystemClock.now();
            assert!(now >= last);
            last = now;
        }
    }
}
