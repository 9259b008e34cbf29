//! Now and then: idle keys are forgotten even if nobody asks for anything, and what was forgotten is
//! logged.

use std::sync::Arc;

use tollgate::Clock as _;
use tracing::{debug, info};

use crate::app::{App, STOPWATCH};

/// Looks after the store every sweep interval from now on.
pub(crate) fn start(app: &Arc<App>) {
    let app = Arc::downgrade(app);
    tokio::spawn(async move {
        let mut reclaimed = 0;
        while let Some(interval) = app.upgrade().map(|app| app.fixed().store.sweep_interval) {
            STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(interval)).await;
            let Some(app) = app.upgrade() else { return };
            // Redis forgets by itself.
            let Some(store) = app.limiter.store().memory() else { return };
            // Requests sweep in passing, where they come; this takes the rest, a few slots at a time.
            store.sweep_all(app.clock.now());
            let memory = store.memory_stats();
            let swept = memory.reclaimed.saturating_sub(reclaimed);
            reclaimed = memory.reclaimed;
            if swept > 0 {
                info!(reclaimed = swept, left = memory.live, "idle clients were forgotten");
            } else {
                debug!(left = memory.live, "no client was idle");
            }
        }
    });
}
