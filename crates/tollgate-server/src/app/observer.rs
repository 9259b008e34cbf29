//! The limiter's observer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Clock as _, Decision, Observer, Request, SECOND, StoreError};
use tracing::warn;

use super::STOPWATCH;
use super::log_throttle::LogThrottle;
use super::refusals::Refusals;
use crate::top::Top;

/// Counters of decisions, whichever protocol asked.
#[derive(Debug)]
pub(crate) struct DecisionCounts {
    pub(crate) top: Top,
    /// Requests that no rule covered.
    pub(crate) uncovered: AtomicU64,
    /// Requests refused because the store was full.
    pub(crate) refusals: Refusals,
}

impl DecisionCounts {
    pub(super) fn new() -> Self {
        Self { top: Top::new(), uncovered: AtomicU64::new(0), refusals: Refusals::new() }
    }
}

/// Counts every decision once, and logs failures of the store.
pub(super) struct DecisionObserver {
    counts: Arc<DecisionCounts>,
    failures: LogThrottle,
}

impl DecisionObserver {
    pub(super) const fn new(counts: Arc<DecisionCounts>) -> Self {
        Self { counts, failures: LogThrottle::new(SECOND) }
    }
}

impl Observer for DecisionObserver {
    fn decided(&self, request: &Request<'_>, decision: &Decision) {
        self.counts.top.count(request, decision);
        self.counts.refusals.count(decision);
        if decision.limits().is_empty() {
            self.counts.uncovered.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn store_failed(&self, error: &StoreError) {
        if let Some(failures) = self.failures.count(STOPWATCH.now()) {
            warn!(%error, failures, "the store failed; decisions follow on_store_error");
        }
    }
}
