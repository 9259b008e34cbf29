//! The limiter's observer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use tollgate::{Clock as _, Decision, MINUTE, Observer, Request, SECOND, StoreError, Timestamp};
use tracing::warn;

use super::denials::Denials;
use super::log_names::LogNames;
use super::log_throttle::LogThrottle;
use super::outages::Outages;
use super::refusals::Refusals;
use super::{LOGGED_BYTES_MAX, STOPWATCH};
use crate::config::{BUILT_IN, meant as meant_by};
use crate::telemetry::Telemetry;
use crate::top::Top;

/// The most names of attributes in a log line.
const NAMES_MAX: usize = 8;

/// Counters of decisions, whichever protocol asked.
#[derive(Debug)]
pub(crate) struct DecisionCounts {
    pub(crate) top: Top,
    /// Requests that no rule covered.
    pub(crate) uncovered: AtomicU64,
    /// Throttles the log of those requests.
    uncovered_log: LogThrottle,
    /// Requests refused because the store was full.
    pub(crate) refusals: Refusals,
    /// The log of denials.
    denials: Denials,
    pub(crate) names: LogNames,
    /// How long the store has been failing.
    pub(crate) outages: Outages,
    /// The export of metrics and spans, once it has started.
    pub(crate) telemetry: OnceLock<Telemetry>,
}

impl DecisionCounts {
    /// # Errors
    /// As [`LogNames::new`].
    pub(super) fn new(mask_names: bool) -> Result<Self, String> {
        Ok(Self {
            top: Top::new(),
            uncovered: AtomicU64::new(0),
            uncovered_log: LogThrottle::new(MINUTE),
            refusals: Refusals::new(),
            denials: Denials::new(),
            names: LogNames::new(mask_names)?,
            outages: Outages::default(),
            telemetry: OnceLock::new(),
        })
    }

    /// Logs a denial by a limit of 0, which takes no decision of the limiter.
    pub(crate) fn denied_by_zero<'a>(
        &self,
        attributes: impl Iterator<Item = (&'a str, &'a str)>,
        rule: &str,
        now: Timestamp,
    ) {
        self.denials.count_zero(attributes, rule, now, &self.names);
    }

    /// Counts a request that no rule covers, and logs at most one a minute. Clients choose the
    /// names of attributes, so a line has a few of them, shortened.
    pub(crate) fn uncovered<'a>(&self, names: impl Iterator<Item = &'a str>) {
        self.uncovered.fetch_add(1, Ordering::Relaxed);
        let Some(requests) = self.uncovered_log.count(STOPWATCH.now()) else { return };
        let names: Vec<&str> = names.take(NAMES_MAX).map(shortened).collect();
        let meant = names.iter().filter(|name| !BUILT_IN.contains(name));
        let meant =
            meant.filter_map(|name| Some(format!("; for {name:?}, did you mean {:?}?", meant_by(name)?)));
        let meant = meant.collect::<String>();
        warn!(
            requests,
            attributes = ?names,
            "no rule covers a request with these attributes, and on_uncovered decides it{meant}"
        );
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
        if !decision.allowed() {
            self.counts.denials.count(request, decision, &self.counts.names);
        }
        if !decision.is_covered() {
            self.counts.uncovered(request.names());
        }
        if let Some(telemetry) = self.counts.telemetry.get() {
            telemetry.note(request, decision, &self.counts.names);
        }
    }

    fn store_failed(&self, error: &StoreError) {
        let now = STOPWATCH.now();
        self.counts.outages.failed(now);
        if let Some(failures) = self.failures.count(now) {
            warn!(%error, failures, "the store failed; decisions follow on_store_error");
        }
    }
}

/// A name of at most 64 bytes.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(LOGGED_BYTES_MAX)]
}
