//! Now and then: idle keys are forgotten even if nobody asks for anything, and what was forgotten is
//! logged; and limits that fight over a state are.

use std::sync::Arc;

use tollgate::Clock as _;
use tracing::{debug, info, warn};

use crate::app::{App, STOPWATCH};

/// After how many intervals in a row with conversions it is said that they do not end.
const LASTING: u32 = 3;

/// Looks after the store every sweep interval from now on.
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
    // Redis forgets by itself.
    let Some(store) = app.limiter.store().memory() else { return };
    // Requests sweep in passing, where they come; this takes the rest, a few slots at a time.
    store.sweep_all(app.clock.now());
    let memory = store.memory_stats();
    let swept = memory.reclaimed.saturating_sub(*reclaimed);
    *reclaimed = memory.reclaimed;
    if swept > 0 {
        info!(reclaimed = swept, left = memory.live, "idle clients were forgotten");
    } else {
        debug!(left = memory.live, "no client was idle");
    }
}

/// States that were converted, as seen at the end of each interval.
#[derive(Debug, Default)]
struct Conversions {
    total: u64,
    intervals: u32,
}

impl Conversions {
    /// How many there were in the last interval, if there have been some in each for a while.
    fn last(&mut self, total: u64) -> Option<u64> {
        let converted = total.saturating_sub(self.total);
        self.total = total;
        self.intervals = if converted > 0 { self.intervals.saturating_add(1) } else { 0 };
        (self.intervals >= LASTING).then_some(converted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b11_conversions_that_do_not_end_are_told_and_those_after_a_reload_are_not() {
        let mut conversions = Conversions::default();
        let told = [0, 5, 9, 9, 10, 11, 14, 15, 15, 16].map(|total| conversions.last(total));
        assert_eq!(told, [None, None, None, None, None, None, Some(3), Some(1), None, None]);
    }
}
