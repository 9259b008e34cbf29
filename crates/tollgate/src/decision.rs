//! The decision on a request: the outcomes of all limits, merged.
//!
//! A decision is small and lazy. It carries the packed states after the request and computes the
//! numbers on demand: most callers only ask whether the request is allowed.

use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;

use crate::key::Budget;
use crate::store::Cause;
use crate::{Limit, Outcome, RuleName, Timestamp, Verdict};

mod states;

pub(crate) use states::{States, StatesBuilder, TAGS_MAX, WORDS_MAX, words_of};

/// The outcome of one limit for a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// The rule of the limit.
    pub rule: RuleName,
    /// The budget of the limit.
    pub budget: Budget,
    /// The index of the limit in the budget's list.
    pub index: u16,
    /// The limit that applied.
    pub limit: Limit,
    /// Units that the rule charges per unit of a request's cost.
    pub unit_cost: u64,
    /// Whether the rule is a shadow rule, which never denies.
    pub shadow: bool,
    /// The verdict and the numbers.
    pub outcome: Outcome,
    /// The cause of a denial.
    pub cause: Cause,
}

impl Report {
    /// How many more requests of cost 1 this limit admits.
    fn requests_left(&self) -> u64 {
        self.outcome.remaining.checked_div(self.unit_cost).unwrap_or(0)
    }
}

/// The outcomes of all limits that cover a request, in the order of the rules.
pub type Reports = SmallVec<[Report; 4]>;

/// The numbers of a decision, computed at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    /// Allowed, denied for a while, or never.
    pub verdict: Verdict,
    /// How many more requests like this one, of cost 1, would be admitted right now. [`u64::MAX`]
    /// if no limit enforces anything on it.
    pub remaining: u64,
    /// The limit that decided: of those that enforce, the one with the longest wait; on an
    /// admission, the one with the fewest requests left.
    pub deciding: Option<Report>,
}

/// The answer to a request, with the numbers of every limit that covered it.
#[derive(Clone)]
#[must_use = "an unread decision limits nothing"]
pub struct Decision {
    now: Timestamp,
    /// The request's cost.
    cost: u64,
    allowed: bool,
    degraded: Degraded,
    detail: Detail,
}

/// What the numbers are computed from.
#[derive(Clone)]
enum Detail {
    /// The packed states after the request, of rules that enforce.
    States(States),
    /// The reports, where packed states do not suffice.
    Reports(Box<(Summary, Reports)>),
}

/// Whether the store failed, and what followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Degraded {
    /// The store answered.
    No,
    /// The store failed.
    Yes,
    /// The store failed, and the policy of a rule is to deny then.
    Closed,
}

impl Decision {
    /// The decision that left these packed states.
    #[inline(always)]
    pub(crate) const fn of_states(now: Timestamp, cost: u64, allowed: bool, states: States) -> Self {
        Self { now, cost, allowed, degraded: Degraded::No, detail: Detail::States(states) }
    }

    /// Merges the reports of all limits.
    pub(crate) fn merge(
        now: Timestamp,
        degraded: Degraded,
        limits: impl IntoIterator<Item = Report>,
    ) -> Self {
        let reports: Reports = limits.into_iter().collect();
        let summary = summarise(&reports);
        let allowed = summary.verdict == Verdict::Allowed;
        Self { now, cost: 0, allowed, degraded, detail: Detail::Reports(Box::new((summary, reports))) }
    }

    /// Whether the request may go ahead.
    #[must_use]
    #[inline]
    pub const fn allowed(&self) -> bool {
        self.allowed
    }

    /// All numbers at once.
    #[must_use]
    pub fn summary(&self) -> Summary {
        match &self.detail {
            Detail::Reports(reported) => reported.0,
            Detail::States(_) => summarise(&self.limits()),
        }
    }

    /// Allowed, denied for a while, or never.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.allowed { Verdict::Allowed } else { self.summary().verdict }
    }

    /// How long until the same request is admitted if no other arrives: zero if it was allowed,
    /// `None` if it never will be.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.verdict().retry_after()
    }

    /// How many more requests like this one, of cost 1, would be admitted right now. [`u64::MAX`]
    /// if no limit enforces anything on it.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.summary().remaining
    }

    /// The capacity of the deciding limit. [`u64::MAX`] if no limit enforces anything.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.deciding().map_or(u64::MAX, |report| report.limit.capacity())
    }

    /// When the deciding limit is wholly available again if no more requests arrive.
    #[must_use]
    pub fn reset_at(&self) -> Timestamp {
        self.deciding().map_or(self.now, |report| report.outcome.reset_at)
    }

    /// The rule of the deciding limit, if any limit enforces.
    #[must_use]
    pub fn rule(&self) -> Option<RuleName> {
        self.deciding().map(|report| report.rule)
    }

    /// The limit that decided: of those that enforce, the one with the longest wait; on an
    /// admission, the one with the fewest requests left.
    #[must_use]
    pub fn deciding(&self) -> Option<Report> {
        self.summary().deciding
    }

    /// The outcomes of all limits that cover the request, in the order of the rules.
    #[must_use]
    pub fn limits(&self) -> Reports {
        match &self.detail {
            Detail::Reports(reported) => reported.1.clone(),
            Detail::States(states) => states.reports(self.now, self.cost, self.allowed),
        }
    }

    /// Whether the store failed, so that this decision follows the rules' failure policies.
    #[must_use]
    pub const fn degraded(&self) -> bool {
        !matches!(self.degraded, Degraded::No)
    }

    /// Whether the request was denied for lack of a store: the store failed and the policy of a
    /// rule is to deny then, or the store is full. That is not the client's fault: over HTTP it is
    /// a 503 and not a 429.
    #[must_use]
    pub fn unavailable(&self) -> bool {
        matches!(self.degraded, Degraded::Closed) || self.cause() == Cause::StoreFull
    }

    /// The cause of a denial: the deciding limit, a block, or a full store.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match &self.detail {
            Detail::Reports(reports) if !self.allowed => {
                reports.0.deciding.map_or(Cause::Limit, |report| report.cause)
            }
            // Packed states come from limits alone.
            _ => Cause::Limit,
        }
    }

    /// The time of the decision.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// This decision marked degraded: the store did not confirm it.
    pub(crate) const fn degrade(mut self) -> Self {
        self.degraded = Degraded::Yes;
        self
    }

    /// The decision on some of the limits.
    pub(crate) fn merged(&self, limits: impl IntoIterator<Item = Report>) -> Self {
        Self::merge(self.now, self.degraded, limits)
    }

    /// This decision turned into a denial with `retry_after` 0: the budget may have enough left,
    /// but earlier requests are still waiting.
    pub(crate) fn overtaken(self) -> Self {
        if !self.allowed {
            return self;
        }
        let mut denied = self.merged(self.limits());
        denied.allowed = false;
        if let Detail::Reports(reported) = &mut denied.detail {
            reported.0.verdict = Verdict::Denied { retry_after: Duration::ZERO };
        }
        denied
    }
}

impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        (self.now, self.allowed, self.degraded) == (other.now, other.allowed, other.degraded)
            && self.summary() == other.summary()
            && self.limits() == other.limits()
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("now", &self.now)
            .field("verdict", &self.verdict())
            .field("degraded", &self.degraded)
            .field("limits", &self.limits())
            .finish()
    }
}

/// Merges reports: every limit that enforces has to admit. On a denial the limit with the longest
/// wait decides, on an admission the one with the fewest requests left; on a tie, the first.
fn summarise(reports: &[Report]) -> Summary {
    let mut summary = Summary { verdict: Verdict::Allowed, remaining: u64::MAX, deciding: None };
    for report in reports.iter().filter(|report| !report.shadow) {
        let outweighs = match (summary.verdict, report.outcome.verdict) {
            (Verdict::Allowed, Verdict::Allowed) => report.requests_left() < summary.remaining,
            (before, now) => wait(now) > wait(before),
        };
        if summary.deciding.is_none() || outweighs {
            summary.verdict = report.outcome.verdict;
            summary.deciding = Some(*report);
        }
        summary.remaining = summary.remaining.min(report.requests_left());
    }
    summary
}

/// Orders verdicts by how long they keep a request waiting.
const fn wait(verdict: Verdict) -> Option<Duration> {
    match verdict {
        Verdict::Allowed => None,
        Verdict::Denied { retry_after } => Some(retry_after),
        Verdict::Never => Some(Duration::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rule: &str, verdict: Verdict, remaining: u64, unit_cost: u64) -> Report {
        let now = Timestamp::EPOCH;
        let outcome = Outcome { now, verdict, remaining, reset_at: now, grows_at: now };
        Report {
            rule: RuleName::intern(rule),
            budget: Budget::Rule,
            index: 0,
            limit: Limit::per_second(100),
            unit_cost,
            shadow: false,
            outcome,
            cause: Cause::Limit,
        }
    }

    fn merge(limits: &[Report]) -> Decision {
        Decision::merge(Timestamp::EPOCH, Degraded::No, limits.iter().copied())
    }

    const fn denied(secs: u64) -> Verdict {
        Verdict::Denied { retry_after: Duration::from_secs(secs) }
    }

    #[test]
    fn b8_on_a_denial_the_longest_wait_decides_and_the_first_on_a_tie() {
        let limits = [
            report("a", Verdict::Allowed, 0, 1),
            report("b", denied(5), 7, 1),
            report("c", denied(9), 8, 1),
            report("d", denied(9), 9, 1),
        ];
        let decision = merge(&limits);
        assert_eq!(decision.rule().unwrap().as_str(), "c");
        assert_eq!(decision.retry_after(), Some(Duration::from_secs(9)));
        assert_eq!(decision.remaining(), 0, "the least left may belong to another limit");
        let never = merge(&[limits[2], report("e", Verdict::Never, 1, 1)]);
        assert_eq!((never.rule().unwrap().as_str(), never.retry_after()), ("e", None));
    }

    #[test]
    fn b8_on_an_admission_the_least_left_decides_and_the_first_on_a_tie() {
        let limits = [
            report("a", Verdict::Allowed, 9, 1),
            report("b", Verdict::Allowed, 20, 10),
            report("c", Verdict::Allowed, 2, 1),
        ];
        let decision = merge(&limits);
        assert_eq!(decision.rule().unwrap().as_str(), "b");
        assert_eq!(decision.remaining(), 2, "twenty units, ten a request");
    }

    #[test]
    fn c2_a_shadow_rule_never_denies_and_never_decides() {
        let shadow = Report { shadow: true, ..report("s", denied(5), 0, 1) };
        let decision = merge(&[shadow, report("a", Verdict::Allowed, 3, 1)]);
        assert!(decision.allowed());
        assert_eq!((decision.rule().unwrap().as_str(), decision.remaining()), ("a", 3));
        assert_eq!(merge(&[shadow]).rule(), None);
    }
}
