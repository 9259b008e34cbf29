//! Requests refused because the store has no room for another key.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate::{Cause, Decision, MINUTE, RuleName, Timestamp};
use tracing::warn;

use super::log_throttle::LogThrottle;

/// Refused requests, by rule.
#[derive(Debug)]
pub(crate) struct Refusals {
    rules: Mutex<BTreeMap<&'static str, RuleRefusals>>,
    /// A full table refuses thousands of requests.
    log: LogThrottle,
}

/// How many requests were refused, and when the last one.
#[derive(Clone, Copy, Debug)]
struct RuleRefusals {
    count: u64,
    last: Timestamp,
}

impl Refusals {
    pub(super) const fn new() -> Self {
        Self { rules: Mutex::new(BTreeMap::new()), log: LogThrottle::new(MINUTE) }
    }

    /// Counts a decision that refused a new key, and logs at most one a minute.
    pub(super) fn count(&self, decision: &Decision) {
        if decision.cause() != Cause::StoreFull {
            return;
        }
        let Some(rule) = decision.rule() else { return };
        let (rule, last) = (rule.as_str(), decision.now());
        let mut rules = self.rules();
        let refusals = rules.entry(rule).or_insert(RuleRefusals { count: 0, last });
        *refusals = RuleRefusals { count: refusals.count.saturating_add(1), last };
        drop(rules);
        if let Some(refused) = self.log.count(last) {
            warn!(rule, refused, "the table is full of keys in use, and new keys are denied; raise max_keys");
        }
    }

    /// How many requests a rule has refused.
    pub(crate) fn refused(&self, rule: RuleName) -> u64 {
        self.rules().get(rule.as_str()).map_or(0, |refusals| refusals.count)
    }

    /// The rules that refused a request within the last minute.
    pub(crate) fn recent(&self, now: Timestamp) -> Vec<&'static str> {
        let rules = self.rules();
        let recent = rules.iter().filter(|(_, refusals)| now.since(refusals.last) < MINUTE);
        recent.map(|(rule, _)| *rule).collect()
    }

    fn rules(&self) -> MutexGuard<'_, BTreeMap<&'static str, RuleRefusals>> {
        self.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
