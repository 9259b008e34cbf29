//! Sleeping on tokio's timer.

use std::time::Duration;

use super::{Clock, Sleep, SystemClock, Timestamp};
use crate::block_on::is_blocked;

/// Sleeps up to this long use the timer of [`SystemClock`], which is precise. Tokio's counts whole
/// milliseconds and rounds up, and under `1000/s burst 1` that is half of the rate.
const PRECISE_MAX: Duration = Duration::from_millis(10);

/// The time of [`SystemClock`], and the timer of the tokio runtime it is used in.
///
/// Sleeps of at most ten milliseconds are precise: they use the timer of [`SystemClock`]. So do
/// sleeps outside of a runtime, and sleeps inside [`block_on`](crate::block_on), which blocks the
/// thread that a runtime's timers may need. Longer sleeps end up to two milliseconds late, as all
/// sleeps of tokio do. A bucket with a burst of 1 loses what it would have gained in that time:
/// where a limit of many a second has to be used up by waiting, give it a burst that covers a few
/// milliseconds.
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock that other code is told to use")]
    fn sleep_until(&self, at: Timestamp) -> Sleep {
        Box::pin(async move {
            let has_timer = ::tokio::runtime::Handle::try_current().is_ok() && !is_blocked();
            if !has_timer || at.since(SystemClock.now()) <= PRECISE_MAX {
                return SystemClock.sleep_until(at).await;
            }
            // Tokio's timer counts whole milliseconds; a sleep that ended early continues.
            loop {
                let left = at.since(SystemClock.now());
                if left.is_zero() {
                    return;
                }
                ::tokio::time::sleep(left).await;
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, Limiter, SECOND, block_on};

    /// The thread that the runtime's timers need is blocked.
    #[tokio::test]
    async fn c6_a_wait_ends_inside_block_on_on_a_current_thread_runtime() {
        let limiter =
            Limiter::builder(crate::RuleSet::per_client(Limit::per(1, 20 * PRECISE_MAX))).clock(TokioClock);
        let limiter = limiter.build().expect("a limiter");
        for _ in 0..2 {
            let admitted = block_on(limiter.wait("alice", SECOND)).expect("a decision");
            assert!(admitted.allowed());
        }
        assert!(!is_blocked());
    }
}
