//! Periodic upkeep: sweeps idle keys, and warns of states that are converted again and again.

use std::sync::Arc;

use tollgate::Clock as _;
use tracing::{debug, info, warn};

use crate::app::{App, STOPWATCH};

/// Consecutive intervals with conversions before a warning.
const CONVERTING_INTERVALS: u32 = 3;

/// Starts the upkeep task, which runs every sweep interval.
pub(crate) fn start(app: &Arc<App>) {
    let app = Arc::downgrade(app);
    tokio::spawn(async move {
        let (mut reclaimed, mut conversions) = (0, Conversions::default());
        while let Some(interval) = app.upgrade().map(|app| app.fixed().store.sweep_interval) {
            STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(interval)).await;
            let Some(app) = app.upgrade() else { return };
            if let Some(converted) = conversions.last(app.limiter.stats().converted) {
                warn!(
                    converted,
                    "states are converted again and again: servers that share them disagree about a limit, \
                     or a replaced limit is still finding old ones"
                );
            }
            sweep(&app, &mut reclaimed);
        }
    });
}

fn sweep(app: &App, reclaimed: &mut u64) {
    // Redis expires keys itself.
    let Some(store) = app.limiter.store().memory() else { return };
    // Requests sweep the shards they touch; this sweeps the rest, a few slots at a time.
    store.sweep_all(app.clock.now());
    let memory = store.memory_stats();
    let swept = memory.reclaimed.saturating_sub(*reclaimed);
    *reclaimed = memory.reclaimed;
    if swept > 0 {
        info!(reclaimed = swept, left = memory.live, "idle keys were reclaimed");
    } else {
        debug!(left = memory.live, "no key was idle");
    }
}

/// Conversions of states, as read at the end of each interval.
#[derive(Debug, Default)]
struct Conversions {
    total: u64,
    intervals: u32,
}

impl Conversions {
    /// The conversions of the last interval, if several intervals in a row had some.
    fn last(&mut self, total: u64) -> Option<u64> {
        let converted = total.saturating_sub(self.total);
        self.total = total;
        self.intervals = if converted > 0 { self.intervals.saturating_add(1) } else { 0 };
        (self.intervals >= CONVERTING_INTERVALS).then_some(converted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b11_lasting_conversions_are_reported_and_those_after_a_reload_are_not() {
        let mut conversions = Conversions::default();
        let reported = [0, 5, 9, 9, 10, 11, 14, 15, 15, 16].map(|total| conversions.last(total));
        assert_eq!(reported, [None, None, None, None, None, None, Some(3), Some(1), None, None]);
    }
}
