//! The limiter's observer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Clock as _, Decision, Observer, Request, SECOND, StoreError};
use tracing::warn;

use super::STOPWATCH;
use super::log_throttle::LogThrottle;
use super::refusals::Refusals;
use crate::top::Top;

/// Counts every decision once, whichever protocol asked, and logs failures of the store.
pub(super) struct DecisionObserver {
    top: Arc<Top>,
    uncovered: Arc<AtomicU64>,
    refusals: Arc<Refusals>,
    failures: LogThrottle,
}

impl DecisionObserver {
    pub(super) const fn new(top: Arc<Top>, uncovered: Arc<AtomicU64>, refusals: Arc<Refusals>) -> Self {
        Self { top, uncovered, refusals, failures: LogThrottle::new(SECOND) }
    }
}

impl Observer for DecisionObserver {
    fn decided(&self, request: &Request<'_>, decision: &Decision) {
        self.top.count(request, decision);
        self.refusals.count(decision);
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
