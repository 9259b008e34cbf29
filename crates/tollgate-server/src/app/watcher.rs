//! Who sees every decision and every failure of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{Clock as _, Decision, Observer, Request, SECOND, StoreError};
use tracing::warn;

use super::STOPWATCH;
use crate::top::Top;

/// Sees every decision once, whatever protocol it was asked for in.
pub(super) struct Watcher {
    top: Arc<Top>,
    uncovered: Arc<AtomicU64>,
    /// Failures come in thousands, and a line for each would be a failure of its own: until this moment they are only
    /// counted.
    quiet_until: AtomicU64,
    untold: AtomicU64,
}

/// How often the store's failures are told at most.
const QUIET: Duration = SECOND;

impl Watcher {
    pub(super) const fn new(top: Arc<Top>, uncovered: Arc<AtomicU64>) -> Self {
        Self { top, uncovered, quiet_until: AtomicU64::new(0), untold: AtomicU64::new(0) }
    }
}

impl Observer for Watcher {
    fn decided(&self, request: &Request<'_>, decision: &Decision) {
        self.top.count(request, decision);
        if decision.limits().is_empty() {
            self.uncovered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn store_failed(&self, error: &StoreError) {
        let (now, until) = (STOPWATCH.now(), self.quiet_until.load(Ordering::Relaxed));
        let next = now.saturating_add(QUIET).as_nanos();
        let told = now.as_nanos() >= until
            && self.quiet_until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let failures = self.untold.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if told {
            self.untold.fetch_sub(failures, Ordering::Relaxed);
            warn!(%error, failures, "the store failed; decisions follow on_store_error");
        }
    }
}
