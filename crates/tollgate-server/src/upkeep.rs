//! Periodic upkeep: sweeps idle keys, and watches a Redis that others share: states that are
//! converted again and again, and evicted keys.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tollgate::{Clock as _, MINUTE, Timestamp};
use tracing::{debug, info, warn};

use crate::app::{App, LogThrottle, STOPWATCH};

/// How often a shared store is looked at.
const WATCH_INTERVAL: Duration = Duration::from_secs(3);

/// Consecutive intervals with conversions before a warning: less than ten seconds.
const CONVERTING_INTERVALS: u32 = 3;

/// Intervals between two questions about eviction.
const EVICTION_INTERVALS: u32 = 5;

/// Starts the upkeep tasks.
pub(crate) fn start(app: &Arc<App>) {
    tokio::spawn(sweep_for_ever(Arc::downgrade(app)));
    if app.limiter.store().as_redis().is_some() {
        tokio::spawn(watch_for_ever(Arc::downgrade(app)));
    }
}

async fn sweep_for_ever(app: Weak<App>) {
    let mut reclaimed = 0;
    while let Some(interval) = app.upgrade().map(|app| app.fixed().store.sweep_interval) {
        STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(interval)).await;
        let Some(app) = app.upgrade() else { return };
        sweep(&app, &mut reclaimed);
    }
}

async fn watch_for_ever(app: Weak<App>) {
    let mut conversions = Conversions::new();
    let mut intervals = 0_u32;
    while let Some(app) = app.upgrade() {
        if intervals.is_multiple_of(EVICTION_INTERVALS) {
            app.watch_eviction().await;
        }
        intervals = intervals.wrapping_add(1);
        if let Some(converted) = conversions.due(app.limiter.stats().converted, STOPWATCH.now()) {
            warn!(
                converted,
                "states are converted again and again: servers that share them disagree about a limit, or a \
                 replaced limit is still finding old ones"
            );
        }
        drop(app);
        STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(WATCH_INTERVAL)).await;
    }
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
#[derive(Debug)]
struct Conversions {
    total: u64,
    intervals: u32,
    /// Conversions that no line has told of.
    untold: u64,
    log: LogThrottle,
}

impl Conversions {
    const fn new() -> Self {
        Self { total: 0, intervals: 0, untold: 0, log: LogThrottle::new(MINUTE) }
    }

    /// The conversions to log: if several intervals in a row had some, and at most once a minute.
    fn due(&mut self, total: u64, now: Timestamp) -> Option<u64> {
        let converted = total.saturating_sub(self.total);
        self.total = total;
        if converted == 0 {
            self.intervals = 0;
            self.untold = 0;
            return None;
        }
        self.intervals = self.intervals.saturating_add(1);
        self.untold = self.untold.saturating_add(converted);
        if self.intervals < CONVERTING_INTERVALS || self.log.count(now).is_none() {
            return None;
        }
        Some(std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use tollgate::SECOND;

    use super::*;

    /// The conversions to log, by how many states were converted at the end of each interval.
    fn logged<const N: usize>(totals: [u64; N]) -> [Option<u64>; N] {
        let mut conversions = Conversions::new();
        let mut now = Timestamp::from_secs(1_000_000);
        totals.map(|total| {
            now = now.saturating_add(WATCH_INTERVAL);
            conversions.due(total, now)
        })
    }

    #[test]
    fn b11_lasting_conversions_are_reported_and_those_after_a_reload_are_not() {
        assert_eq!(
            logged([0, 5, 9, 9, 10, 11, 14, 15, 15, 16]),
            [None, None, None, None, None, None, Some(5), None, None, None]
        );
    }

    #[test]
    fn b11_servers_that_disagree_are_reported_within_ten_seconds_and_once_a_minute() {
        assert!(WATCH_INTERVAL * CONVERTING_INTERVALS < 10 * SECOND);
        let totals = std::array::from_fn::<u64, 50, _>(|interval| 2 * (u64::try_from(interval).unwrap() + 1));
        let lines: Vec<(usize, u64)> = logged(totals)
            .into_iter()
            .enumerate()
            .filter_map(|(interval, converted)| Some((interval, converted?)))
            .collect();
        assert_eq!(lines, [(2, 6), (22, 40), (42, 40)]);
    }
}
