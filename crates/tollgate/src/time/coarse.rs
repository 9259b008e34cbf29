//! A cheaper, coarser clock.

use super::{Clock, Sleep, SystemClock, Timestamp};

/// The system's monotonic clock as of the kernel's last tick, counted from the Unix epoch.
///
/// Reading it costs less than half of [`SystemClock`] and does not stall the processor. In return
/// it stands still between ticks, which come every 1 to 10 milliseconds (4 on most systems): a
/// request may be decided as of up to a tick ago, and then be denied where the precise clock would
/// just have admitted it. Over any span of its own time a limit is exact. With limits per second or
/// longer the difference does not matter.
///
/// On systems other than Linux it is as precise, and as expensive, as [`SystemClock`].
#[derive(Clone, Copy, Debug, Default)]
pub struct CoarseClock;

impl Clock for CoarseClock {
    #[inline]
    fn now(&self) -> Timestamp {
        #[cfg(target_os = "linux")]
        return Timestamp::from_nanos(nanos());
        #[cfg(not(target_os = "linux"))]
        return SystemClock.now();
    }

    fn sleep_until(&self, at: Timestamp) -> Sleep {
        Box::pin(async move {
            // Sleep for a duration, not until a time: this clock is behind the other.
            loop {
                let left = at.since(Self.now());
                if left.is_zero() {
                    return;
                }
                // At least one millisecond, so that this clock can tick.
                let left = left.max(std::time::Duration::from_millis(1));
                SystemClock.sleep_until(SystemClock.now().saturating_add(left)).await;
            }
        })
    }
}

#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "only the clocks of this crate read the system's")]
fn nanos() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    use std::sync::OnceLock;

    /// Nanoseconds from the kernel's monotonic clock to the Unix epoch, as of the first reading.
    static EPOCH_OFFSET: OnceLock<u64> = OnceLock::new();
    let read = |clock| {
        let time = clock_gettime(clock);
        let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
    };
    let offset =
        EPOCH_OFFSET.get_or_init(|| SystemClock.now().as_nanos().saturating_sub(read(ClockId::Monotonic)));
    offset.saturating_add(read(ClockId::MonotonicCoarse))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on;
    use std::time::Duration;

    #[test]
    fn b7_the_coarse_clock_never_goes_back_and_is_never_ahead_of_the_precise_clock() {
        let mut last = CoarseClock.now();
        for _ in 0..100_000 {
            let now = CoarseClock.now();
            assert!(now >= last);
            // The precise clock may be late for a moment.
            assert!(now <= SystemClock.now().saturating_add(Duration::from_millis(1)));
            last = now;
        }
    }

    #[test]
    fn b7_after_a_sleep_the_clock_shows_at_least_its_end() {
        let at = CoarseClock.now().saturating_add(Duration::from_millis(2));
        block_on(CoarseClock.sleep_until(at));
        assert!(CoarseClock.now() >= at);
    }
}
