//! The processor's counter, kept true by the operating system's clock.
//!
//! Reading the counter is twice as fast as asking the operating system. But how fast it counts is measured
//! anew by each process, to some 30 parts in a million: seconds a day, of which two processes that share a
//! file would not agree. So it is only trusted for a quarter of a millisecond. Then the operating system
//! says how late it is.
//!
//! What is shown never goes back, and is never ahead of the operating system's monotonic clock: the counter
//! is read as a little slow, more so than it may be fast, so that only ever something has to be added. It
//! is late by a microsecond, unless the process was interrupted just when it asked; then, for a quarter of
//! a millisecond, by up to four thousandths of that interruption.
//!
//! A counter may also start again (a machine that slept), run on while the operating system's clock stood
//! still, or count faster than was measured (another processor). The first is only a reason to ask. The
//! others are found out when it is asked, before they are shown; from then on it is not used any more.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime};

use super::nanos_of;

/// For how many nanoseconds the counter is trusted.
const TRUSTED: u64 = 250_000;

/// A counter that is ahead by so many nanoseconds is wrong.
const WRONG: u64 = 100_000;

/// No count is near this.
const NEVER: u64 = 1 << 63;

/// Nanoseconds since the epoch, as of the moment the process first asked and what has passed since by the
/// monotonic clock.
#[inline]
pub(super) fn nanos() -> u64 {
    static COUNTER: OnceLock<Counter> = OnceLock::new();
    let counter = COUNTER.get_or_init(Counter::new);
    counter.corrected.show(counter.count(), || (counter.real(), counter.count()))
}

struct Counter {
    clock: quanta::Clock,
    /// A moment by the monotonic clock, and what the time was then.
    anchor: (Instant, u64),
    corrected: Corrected,
}

impl Counter {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads the operating system's clock")]
    fn new() -> Self {
        // This takes a while, in which time goes on: it comes before anything that says what the time is.
        let clock = quanta::Clock::new();
        let anchor = (Instant::now(), SystemTime::now());
        let since_epoch = anchor.1.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let counter =
            Self { clock, anchor: (anchor.0, nanos_of(since_epoch)), corrected: Corrected::default() };
        counter.corrected.correct(counter.real(), counter.count());
        counter
    }

    fn count(&self) -> u64 {
        self.clock.delta_as_nanos(0, self.clock.raw())
    }

    fn real(&self) -> u64 {
        self.anchor.1.saturating_add(nanos_of(self.anchor.0.elapsed()))
    }
}

/// What has to be added to a count to have the time.
#[derive(Debug, Default)]
struct Corrected {
    late_by: AtomicU64,
    /// The count when that was found out.
    found_at: AtomicU64,
    /// If the counter is not used any more: what it may have shown.
    shown: AtomicU64,
}

impl Corrected {
    /// The time at a count. `truth` says what the time is, and what the count was no sooner.
    #[inline]
    fn show(&self, count: u64, truth: impl FnOnce() -> (u64, u64)) -> u64 {
        // One that is before that has started again.
        if count.wrapping_sub(self.found_at.load(Ordering::Acquire)) <= TRUSTED {
            return slow(count).saturating_add(self.late_by.load(Ordering::Relaxed));
        }
        self.ask(count, truth())
    }

    #[cold]
    fn ask(&self, count: u64, (real, later): (u64, u64)) -> u64 {
        let shown = self.shown.load(Ordering::Relaxed);
        if shown > 0 {
            return real.max(shown);
        }
        let late_by = self.late_by.load(Ordering::Relaxed);
        // Whoever is interrupted in between sees a later time, never an earlier one.
        if slow(count).saturating_add(late_by) > real.saturating_add(WRONG) {
            let trusted = self.found_at.swap(NEVER, Ordering::Relaxed).saturating_add(TRUSTED);
            let shown = slow(trusted).saturating_add(late_by).min(real.saturating_add(WRONG));
            self.shown.fetch_max(shown, Ordering::Relaxed);
            return real.max(shown);
        }
        // If it has jumped just now, the next who asks finds out.
        if slow(later).saturating_add(late_by) <= real.saturating_add(WRONG) {
            self.correct(real, later);
        }
        slow(count).saturating_add(self.late_by.load(Ordering::Relaxed)).min(real)
    }

    fn correct(&self, real: u64, count: u64) {
        self.late_by.fetch_max(real.saturating_sub(slow(count)), Ordering::Relaxed);
        // Whoever sees this sees the other too.
        self.found_at.store(count, Ordering::Release);
    }
}

/// A count, by four parts in a thousand slower.
const fn slow(count: u64) -> u64 {
    count.saturating_sub(count >> 8)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However the counter runs, and for however long nobody asks.
        #[test]
        fn b7_it_follows_the_operating_system_and_never_goes_back(
            wrong_by_ppm in -3_000_i64..=3_000,
            spans in prop::collection::vec(prop_oneof![0_u64..100, 0_u64..1_000_000, 0_u64..1_000_000_000_000], 1..200),
        ) {
            let count_at = |real: u64| {
                let count = i128::from(real) * i128::from(1_000_000 + wrong_by_ppm) / 1_000_000;
                u64::try_from(count).unwrap()
            };
            let corrected = Corrected::default();
            let (mut real, mut last) = (0, 0);
            corrected.correct(1 << 60, 0);
            for span in spans {
                real += span;
                let epoch = (1 << 60) + real;
                let shown = corrected.show(count_at(real), || (epoch, count_at(real)));
                prop_assert!(shown >= last, "{shown} after {last}");
                prop_assert!(shown <= epoch + 1, "{} ahead, which is not rounding", shown - epoch);
                prop_assert!(epoch <= shown + 2_000, "{} late", epoch - shown);
                last = shown;
            }
        }
    }

    /// A process may be kept waiting anywhere, also between two looks at clocks.
    #[test]
    fn b7_who_is_interrupted_shows_no_time_that_has_not_come() {
        let corrected = Corrected::default();
        corrected.correct(1_000_000_000, 0);
        let shown = corrected.show(10_000_000, || (1_010_000_000, 50_000_000));
        assert!(shown <= 1_010_000_000, "{shown}");
        let shown = corrected.show(51_000_000, || (1_051_000_000, 51_000_000));
        assert_eq!(shown, 1_051_000_000, "found out again soon");
    }

    /// Asks every 100 microseconds for a second. At its middle the count goes from what it was to what
    /// `broken` says.
    fn shows_the_time_although(broken: impl Fn(u64) -> u64) {
        const HOUR: u64 = 3_600_000_000_000;
        let corrected = Corrected::default();
        corrected.correct(1 << 60, 0);
        let mut last = 0;
        for real in (HOUR..HOUR + 1_000_000_000).step_by(100_000) {
            let count = if real < HOUR + 500_000_000 { real } else { broken(real) };
            let epoch = (1 << 60) + real;
            let shown = corrected.show(count, || (epoch, count));
            assert!(shown >= last, "{shown} after {last}");
            assert!(shown <= epoch + 2 * WRONG, "{} ahead", shown - epoch);
            assert!(epoch <= shown + 2_000, "{} late", epoch - shown);
            last = shown;
        }
    }

    #[test]
    fn b7_a_counter_that_starts_again_is_followed() {
        shows_the_time_although(|real| real - 3_600_500_000_000);
        shows_the_time_although(|real| real - 1_000_000);
    }

    #[test]
    fn b7_a_counter_that_ran_on_while_time_stood_still_is_not_shown() {
        shows_the_time_although(|real| real + 8 * 3_600_000_000_000);
        shows_the_time_although(|real| real + 200_000);
    }

    #[test]
    fn b7_a_counter_that_jumps_while_it_is_asked_is_not_shown() {
        const JUMP: u64 = 8 * 3_600_000_000_000;
        let corrected = Corrected::default();
        corrected.correct(1_000_000_000, 0);
        let shown = corrected.show(10_000_000, || (1_010_000_000, 10_000_000 + JUMP));
        assert!(shown <= 1_010_000_000, "{shown}");
        let later = corrected.show(10_100_000 + JUMP, || (1_010_100_000, 10_100_000 + JUMP));
        assert!((shown..=1_010_100_000 + WRONG).contains(&later), "{later}");
    }

    #[test]
    fn b7_a_counter_that_is_too_fast_is_given_up() {
        shows_the_time_although(|real| real + (real - 3_600_500_000_000) / 50);
        shows_the_time_although(|real| real * 2);
    }
}
