//! Who sees every decision and every failure of the store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Clock as _, Decision, Observer, Request, SECOND, StoreError};
use tracing::warn;

use super::STOPWATCH;
use super::full::Full;
use super::quiet::Quiet;
use crate::top::Top;

/// Sees every decision once, whatever protocol it was asked for in.
pub(super) struct Watcher {
    top: Arc<Top>,
    uncovered: Arc<AtomicU64>,
    full: Arc<Full>,
    failures: Quiet,
}

impl Watcher {
    pub(super) const fn new(top: Arc<Top>, uncovered: Arc<AtomicU64>, full: Arc<Full>) -> Self {
        Self { top, uncovered, full, failures: Quiet::new(SECOND) }
    }
}

impl Observer for Watcher {
    fn decided(&self, request: &Request<'_>, decision: &Decision) {
        self.top.count(request, decision);
        self.full.count(decision);
        if decision.limits().is_empty() {
            self.uncovered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn store_failed(&self, error: &StoreError) {
        if let Some(failures) = self.failures.count(STOPWATCH.now()) {
            warn!(%error, failures, "the store failed; decisions follow on_store_error");
        }
    }
}
