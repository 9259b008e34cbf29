//! The processor's cycle counter, corrected by the operating system's clock.
//!
//! Reading the counter is twice as fast as a call to the operating system. But each process
//! measures its rate anew, with an error of some 30 parts per million: seconds a day, by which two
//! processes that share a file would disagree. So a count is trusted for a quarter of a millisecond
//! only. Then the operating system's clock corrects it.
//!
//! The corrected time never goes back, and is never ahead of the operating system's monotonic
//! clock: a count is slowed by four parts in a thousand, more than any error of its rate, so every
//! correction is an addition. The time is late by a microsecond. If the process was interrupted
//! during a correction, it is late by up to four thousandths of that interruption, for a quarter of
//! a millisecond.
//!
//! A counter may also restart (after suspend), run on while the operating system's clock stood
//! still, or run faster than measured (on another processor). A restart only forces a correction.
//! The others are detected at a correction, before the wrong time is returned; from then on the
//! counter is not used.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use super::nanos_of;
use crate::algorithm::{narrow, product};

/// Nanoseconds for which a count is trusted after a correction.
const TRUSTED_NANOS: u64 = 250_000;

/// A counter that is ahead by more nanoseconds than this is broken.
const MAX_AHEAD_NANOS: u64 = 100_000;

/// A count that is never reached.
const NEVER: u64 = 1 << 63;

/// Binary logarithm of the cycles by which the rate is measured.
const SCALE_LOG2: u32 = 48;

/// Nanoseconds since the epoch: the wall clock at the first call, plus the monotonic time since.
#[inline]
pub(super) fn nanos() -> u64 {
    static COUNTER: OnceLock<Counter> = OnceLock::new();
    let counter = COUNTER.get_or_init(Counter::new);
    counter.corrected.time_at(counter.count(), || (counter.real(), counter.count()))
}

struct Counter {
    clock: quanta::Clock,
    /// Slowed nanoseconds of `1 << SCALE_LOG2` cycles.
    scale: u64,
    /// A reading of the monotonic clock, and the nanoseconds since the epoch at that moment.
    anchor: (Instant, u64),
    corrected: Corrected,
}

impl Counter {
    #[expect(clippy::disallowed_methods, reason = "only the clocks of this crate read the system's")]
    fn new() -> Self {
        // Calibration takes a while, so it comes before the anchor is read.
        let clock = quanta::Clock::new();
        let scale = slowed(clock.delta_as_nanos(0, 1 << SCALE_LOG2));
        let anchor = (Instant::now(), SystemTime::now());
        let since_epoch = anchor.1.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let anchor = (anchor.0, nanos_of(since_epoch));
        let counter = Self { clock, scale, anchor, corrected: Corrected::default() };
        counter.corrected.correct(counter.real(), counter.count());
        counter
    }

    /// The counter, in slowed nanoseconds.
    #[inline]
    fn count(&self) -> u64 {
        narrow(product(self.clock.raw(), self.scale) >> SCALE_LOG2)
    }

    fn real(&self) -> u64 {
        self.anchor.1.saturating_add(nanos_of(self.anchor.0.elapsed()))
    }
}

/// The correction from a slowed count to the time.
#[derive(Debug, Default)]
struct Corrected {
    late_by: AtomicU64,
    /// The count at the last correction.
    corrected_at: AtomicU64,
    /// The latest time that may have been returned, once the counter is given up; 0 before.
    max_returned: AtomicU64,
}

impl Corrected {
    /// The time at a count. `truth` reads the true time, then the count.
    #[inline]
    fn time_at(&self, count: u64, truth: impl FnOnce() -> (u64, u64)) -> u64 {
        // A count below the last correction wraps around: the counter has restarted.
        if count.wrapping_sub(self.corrected_at.load(Ordering::Acquire)) <= TRUSTED_NANOS {
            return count.saturating_add(self.late_by.load(Ordering::Relaxed));
        }
        self.correct_and_read(count, truth())
    }

    #[cold]
    fn correct_and_read(&self, count: u64, (real, later): (u64, u64)) -> u64 {
        let max_returned = self.max_returned.load(Ordering::Relaxed);
        if max_returned > 0 {
            return real.max(max_returned);
        }
        let late_by = self.late_by.load(Ordering::Relaxed);
        // A thread interrupted in between returns a later time, never an earlier one.
        if count.saturating_add(late_by) > real.saturating_add(MAX_AHEAD_NANOS) {
            let trusted = self.corrected_at.swap(NEVER, Ordering::Relaxed).saturating_add(TRUSTED_NANOS);
            let max_returned = trusted.saturating_add(late_by).min(real.saturating_add(MAX_AHEAD_NANOS));
            self.max_returned.fetch_max(max_returned, Ordering::Relaxed);
            return real.max(max_returned);
        }
        // A counter that jumped just now is detected by the next correction.
        if later.saturating_add(late_by) <= real.saturating_add(MAX_AHEAD_NANOS) {
            self.correct(real, later);
        }
        count.saturating_add(self.late_by.load(Ordering::Relaxed)).min(real)
    }

    fn correct(&self, real: u64, count: u64) {
        self.late_by.fetch_max(real.saturating_sub(count), Ordering::Relaxed);
        // A thread that sees this store sees the one above.
        self.corrected_at.store(count, Ordering::Release);
    }
}

/// Nanoseconds, slowed by four parts in a thousand.
const fn slowed(count: u64) -> u64 {
    count.saturating_sub(count >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Over random counter rates and random gaps between readings.
        #[test]
        fn b7_the_corrected_time_tracks_the_system_s_and_never_goes_back(
            wrong_by_ppm in -3_000_i64..=3_000,
            spans in prop::collection::vec(prop_oneof![0_u64..100, 0_u64..1_000_000, 0_u64..1_000_000_000_000], 1..200),
        ) {
            let count_at = |real: u64| {
                let count = i128::from(real) * i128::from(1_000_000 + wrong_by_ppm) / 1_000_000;
                slowed(u64::try_from(count).unwrap())
            };
            let corrected = Corrected::default();
            let (mut real, mut last) = (0, 0);
            corrected.correct(1 << 60, 0);
            for span in spans {
                real += span;
                let epoch = (1 << 60) + real;
                let time = corrected.time_at(count_at(real), || (epoch, count_at(real)));
                prop_assert!(time >= last, "{time} after {last}");
                prop_assert!(time <= epoch + 1, "{} ahead, which is not rounding", time - epoch);
                prop_assert!(epoch <= time + 2_000, "{} late", epoch - time);
                last = time;
            }
        }
    }

    /// A process may be interrupted anywhere, also between reading two clocks.
    #[test]
    fn b7_an_interrupted_correction_never_returns_a_future_time() {
        let corrected = Corrected::default();
        corrected.correct(1_000_000_000, 0);
        let time = corrected.time_at(10_000_000, || (1_010_000_000, 50_000_000));
        assert!(time <= 1_010_000_000, "{time}");
        let time = corrected.time_at(51_000_000, || (1_051_000_000, 51_000_000));
        assert_eq!(time, 1_051_000_000, "corrected soon");
    }

    /// Reads the time every 100 microseconds for a second. After half of it the count is `broken`.
    fn time_is_right_although(broken: impl Fn(u64) -> u64) {
        const HOUR: u64 = 3_600_000_000_000;
        let corrected = Corrected::default();
        corrected.correct(1 << 60, 0);
        let mut last = 0;
        for real in (HOUR..HOUR + 1_000_000_000).step_by(100_000) {
            let count = slowed(if real < HOUR + 500_000_000 { real } else { broken(real) });
            let epoch = (1 << 60) + real;
            let time = corrected.time_at(count, || (epoch, count));
            assert!(time >= last, "{time} after {last}");
            assert!(time <= epoch + 2 * MAX_AHEAD_NANOS, "{} ahead", time - epoch);
            assert!(epoch <= time + 2_000, "{} late", epoch - time);
            last = time;
        }
    }

    #[test]
    fn b7_a_counter_that_restarts_is_corrected() {
        time_is_right_although(|real| real - 3_600_500_000_000);
        time_is_right_although(|real| real - 1_000_000);
    }

    #[test]
    fn b7_a_counter_that_ran_on_while_time_stood_still_is_given_up() {
        time_is_right_although(|real| real + 8 * 3_600_000_000_000);
        time_is_right_although(|real| real + 200_000);
    }

    #[test]
    fn b7_a_counter_that_jumps_during_a_correction_is_given_up() {
        const JUMP: u64 = 8 * 3_600_000_000_000;
        let corrected = Corrected::default();
        corrected.correct(1_000_000_000, 0);
        let time = corrected.time_at(10_000_000, || (1_010_000_000, 10_000_000 + JUMP));
        assert!(time <= 1_010_000_000, "{time}");
        let later = corrected.time_at(10_100_000 + JUMP, || (1_010_100_000, 10_100_000 + JUMP));
        assert!((time..=1_010_100_000 + MAX_AHEAD_NANOS).contains(&later), "{later}");
    }

    #[test]
    fn b7_a_counter_that_is_too_fast_is_given_up() {
        time_is_right_although(|real| real + (real - 3_600_500_000_000) / 50);
        time_is_right_although(|real| real * 2);
    }
}
