//! Sleeping on tokio's timer.

use super::{Clock, Sleep, SystemClock, Timestamp};

/// The time of [`SystemClock`], and the timer of the tokio runtime it is used in; outside of one,
/// the timer of [`SystemClock`].
#[derive(Clone, Copy, Debug, Default)]
pub struct TokioClock;

impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        SystemClock.now()
    }

    #[expect(clippy::disallowed_methods, reason = "this is the clock that other code is told to use")]
    fn sleep_until(&self, at: Timestamp) -> Sleep {
        Box::pin(async move {
            if ::tokio::runtime::Handle::try_current().is_err() {
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
