//! The live view of the server: one snapshot a second for everyone who watches.
//!
//! The dashboard and `tollgate top` read the same snapshots. A snapshot is made and encoded once,
//! however many watch. Nobody watching costs nothing: the sampler ends with the last viewer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;
use tollgate::{Clock as _, SECOND};

use crate::app::{App, STOPWATCH};

mod resident;
mod sampler;
mod snapshot;

use sampler::Sampler;
pub(crate) use snapshot::{Frequency, LiveRule, Snapshot, TopRow};

/// The time between two snapshots.
const INTERVAL: Duration = SECOND;

/// The snapshots, and whether they are being made.
#[derive(Debug)]
pub(crate) struct Live {
    /// The newest snapshot as a server-sent event. Empty while nobody watches.
    events: watch::Sender<Bytes>,
    is_sampling: Mutex<bool>,
}

impl Default for Live {
    fn default() -> Self {
        Self { events: watch::Sender::new(Bytes::new()), is_sampling: Mutex::new(false) }
    }
}

impl App {
    /// Watches the snapshots, as server-sent events. An empty one is to be skipped.
    pub(crate) fn watch(self: &Arc<Self>) -> watch::Receiver<Bytes> {
        // Under the lock a sampler cannot end between the subscription and the test.
        let mut is_sampling = self.live.is_sampling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut events = self.live.events.subscribe();
        // A viewer begins with the newest snapshot.
        events.mark_changed();
        if !*is_sampling {
            *is_sampling = true;
            tokio::spawn(sample(Arc::clone(self)));
        }
        events
    }
}

/// Makes snapshots while there are viewers.
async fn sample(app: Arc<App>) {
    let mut sampler = Sampler::default();
    loop {
        let snapshot = sampler.sample(&app);
        app.live.events.send_replace(event(&snapshot));
        STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(INTERVAL)).await;
        let mut is_sampling = app.live.is_sampling.lock().unwrap_or_else(PoisonError::into_inner);
        if app.live.events.is_closed() {
            *is_sampling = false;
            app.live.events.send_replace(Bytes::new());
            return;
        }
    }
}

/// A snapshot as a server-sent event. JSON has no line breaks, so it is one line of data.
fn event(snapshot: &Snapshot) -> Bytes {
    // Does not fail: a snapshot has no map with keys that are not strings.
    let json = serde_json::to_string(snapshot).unwrap_or_default();
    Bytes::from(format!("event: snapshot\ndata: {json}\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Origin;
    use serde_json::Value;
    use tollgate::{Request, TokioClock};

    fn app() -> Arc<App> {
        let origin = Origin::default();
        let config = origin.load().unwrap();
        Arc::new(App::new(origin, config, Arc::new(TokioClock)).unwrap())
    }

    async fn next(events: &mut watch::Receiver<Bytes>) -> Value {
        loop {
            events.changed().await.unwrap();
            let event = events.borrow_and_update().clone();
            if let Some(json) = event.strip_prefix(b"event: snapshot\ndata: ") {
                return serde_json::from_slice(json).unwrap();
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_sampler_runs_only_while_somebody_watches() {
        let app = app();
        let is_sampling = || *app.live.is_sampling.lock().unwrap();
        assert!(!is_sampling());
        let (mut one, mut other) = (app.watch(), app.watch());
        let first = next(&mut one).await;
        assert_eq!(first, next(&mut other).await, "one snapshot for all");
        assert!(is_sampling());
        drop(one);
        assert!(next(&mut other).await["uptimeMs"].as_u64() > first["uptimeMs"].as_u64());
        drop(other);
        while is_sampling() {
            STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(INTERVAL)).await;
        }
        assert!(app.live.events.borrow().is_empty(), "and keeps no snapshot");
        next(&mut app.watch()).await;
    }

    /// Ten are admitted and five denied within a second.
    #[tokio::test(start_paused = true)]
    async fn g1_a_snapshot_has_the_rates_of_the_last_second() {
        let app = app();
        let mut events = app.watch();
        let first = next(&mut events).await;
        assert_eq!(first["total"]["perSecond"], Value::Null, "no rate of a single moment");
        for _ in 0..15 {
            let _ = app.check(Request::client("alice")).await.unwrap();
        }
        let second = next(&mut events).await;
        let total = &second["total"];
        assert_eq!((&total["allowed"], &total["denied"]), (&10.into(), &5.into()));
        assert_eq!(total["perSecond"]["allowed"].as_f64().unwrap().round(), 10.0);
        assert_eq!(total["perSecond"]["denied"].as_f64().unwrap().round(), 5.0);
        let rule = &second["rules"][0];
        assert_eq!(
            (&rule["rule"], rule["rejectionRate"].as_f64()),
            (&"per-client".into(), Some(100.0 / 3.0))
        );
        assert_eq!(second["mostDenied"][0]["client"], "alice");
        let third = next(&mut events).await;
        assert_eq!(third["total"]["perSecond"]["denied"], 0.0);
        assert_eq!(third["total"]["denied"], 5);
    }
}
