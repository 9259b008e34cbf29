//! The answer to a request: what every limit said, merged.

use std::time::Duration;

use smallvec::SmallVec;

use crate::{Limit, Limits, Outcome, Rule, RuleName, Timestamp, Verdict};

/// What one limit said to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    /// The rule it belongs to.
    pub rule: RuleName,
    /// Which of the rule's limits, counted from 0.
    pub place: u16,
    /// The limit that applied.
    pub limit: &'static Limit,
    /// What the rule charges for each unit of a request's cost.
    pub unit_cost: u64,
    /// Whether the rule only watches.
    pub shadow: bool,
    /// Its verdict and numbers.
    pub outcome: Outcome,
}

impl Report {
    fn new(rule: &Rule, place: u16, limit: &'static Limit, outcome: Outcome) -> Self {
        Self {
            rule: rule.name(),
            place,
            limit,
            unit_cost: rule.unit_cost(),
            shadow: rule.is_shadow(),
            outcome,
        }
    }

    /// How many more requests of cost 1 this limit has room for.
    #[inline]
    fn requests_left(&self) -> u64 {
        match self.unit_cost {
            // Nearly always, and a division costs as much as all the rest.
            1 => self.outcome.remaining,
            cost => self.outcome.remaining.checked_div(cost).unwrap_or(0),
        }
    }
}

/// The answer to a request, with the numbers of every limit that covered it.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a decision that nobody looks at limits nothing"]
pub struct Decision {
    now: Timestamp,
    verdict: Verdict,
    deciding: Option<u16>,
    remaining: u64,
    degraded: Degraded,
    limits: SmallVec<[Report; 4]>,
}

/// Whether the store had a say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Degraded {
    No,
    /// It did not.
    Yes,
    /// It did not, and a rule denies then.
    Closed,
}

impl Decision {
    /// Merges what the limits said: all that enforce have to admit. On a denial the limit with the
    /// longest wait decides, on an admission the one with the least left; the first of them on
    /// a tie.
    pub(crate) fn merge(
        now: Timestamp,
        degraded: Degraded,
        limits: impl IntoIterator<Item = Report>,
    ) -> Self {
        let mut decision = Self {
            now,
            verdict: Verdict::Allowed,
            deciding: None,
            remaining: u64::MAX,
            degraded,
            limits: SmallVec::new(),
        };
        for (index, report) in (0..).zip(limits) {
            if !report.shadow && decision.is_outweighed_by(&report) {
                decision.verdict = report.outcome.verdict;
                decision.deciding = Some(index);
            }
            if !report.shadow {
                decision.remaining = decision.remaining.min(report.requests_left());
            }
            decision.limits.push(report);
        }
        decision
    }

    /// Whether a limit has more of a say than those before it.
    fn is_outweighed_by(&self, report: &Report) -> bool {
        match (self.verdict, report.outcome.verdict) {
            (Verdict::Allowed, Verdict::Allowed) => {
                self.deciding.is_none() || report.requests_left() < self.remaining
            }
            (before, now) => self.deciding.is_none() || wait(now) > wait(before),
        }
    }

    /// What the one limit of the one rule that covers a request, and enforces, said.
    #[inline]
    pub(crate) fn of_limit(now: Timestamp, rule: &Rule, limit: &'static Limit, outcome: Outcome) -> Self {
        let report = Report::new(rule, 0, limit, outcome);
        let mut limits = SmallVec::new();
        limits.push(report);
        Self {
            now,
            verdict: outcome.verdict,
            deciding: Some(0),
            remaining: report.requests_left(),
            degraded: Degraded::No,
            limits,
        }
    }

    /// What the limits of the one rule that covers a request, and enforces, said.
    pub(crate) fn of_limits(now: Timestamp, rule: &Rule, limits: Limits, outcomes: &[Outcome]) -> Self {
        let reports = (0..).zip(limits).zip(outcomes);
        let reports = reports.map(|((place, limit), outcome)| Report::new(rule, place, limit, *outcome));
        Self::merge(now, Degraded::No, reports)
    }

    /// Whether the request may go ahead.
    #[must_use]
    pub fn allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }

    /// Allowed, denied for a while, or never.
    #[must_use]
    pub const fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// How long until the same request is admitted, if nothing else happens: zero if it was, `None`
    /// if it never will be.
    #[must_use]
    pub const fn retry_after(&self) -> Option<Duration> {
        self.verdict.retry_after()
    }

    /// How many more requests like this one, of cost 1, would be admitted right now. [`u64::MAX`]
    /// if no limit enforces anything on it.
    #[must_use]
    pub const fn remaining(&self) -> u64 {
        self.remaining
    }

    /// The whole of the deciding limit. [`u64::MAX`] if no limit enforces anything.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.deciding().map_or(u64::MAX, |report| report.limit.capacity())
    }

    /// When the deciding limit is wholly available again if nothing more arrives.
    #[must_use]
    pub fn reset_at(&self) -> Timestamp {
        self.deciding().map_or(self.now, |report| report.outcome.reset_at)
    }

    /// The rule that decided, if any enforces.
    #[must_use]
    pub fn rule(&self) -> Option<RuleName> {
        self.deciding().map(|report| report.rule)
    }

    /// The limit that decided: of those that enforce, the one with the longest wait; on an
    /// admission, the least left.
    #[must_use]
    pub fn deciding(&self) -> Option<&Report> {
        self.limits.get(usize::from(self.deciding?))
    }

    /// What each limit that covered the request said, in the order of the rules.
    #[must_use]
    pub fn limits(&self) -> &[Report] {
        &self.limits
    }

    /// Whether the store failed, so that this answer follows the rules' failure policies.
    #[must_use]
    pub const fn degraded(&self) -> bool {
        !matches!(self.degraded, Degraded::No)
    }

    /// Whether it was denied because the store failed and a rule's policy is to deny then. That is
    /// not the client's fault: over HTTP it is a 503 and not a 429.
    #[must_use]
    pub const fn unavailable(&self) -> bool {
        matches!(self.degraded, Degraded::Closed)
    }

    /// The time it was decided at.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// The same decision, made without the store's word that it will last.
    pub(crate) const fn degrade(mut self) -> Self {
        self.degraded = Degraded::Yes;
        self
    }

    /// What some of the limits amount to.
    pub(crate) fn merged(&self, limits: impl IntoIterator<Item = Report>) -> Self {
        Self::merge(self.now, self.degraded, limits)
    }

    /// The same numbers, denied all the same: there may be enough, but others were there first.
    pub(crate) fn overtaken(mut self) -> Self {
        if self.allowed() {
            self.verdict = Verdict::Denied { retry_after: Duration::ZERO };
        }
        self
    }
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
        let outcome = Outcome { verdict, remaining, reset_at: now, grows_at: now };
        const LIMIT: &Limit = &Limit::per_second(100);
        Report { rule: RuleName::intern(rule), place: 0, limit: LIMIT, unit_cost, shadow: false, outcome }
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
