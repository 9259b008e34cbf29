//! The outcome of each limit for a request, and how the outcomes are merged.

use std::time::Duration;

use smallvec::SmallVec;

use crate::key::Budget;
use crate::store::{Cause, Overflow};
use crate::{Limit, Outcome, RuleName, Verdict};

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
    /// The percentage of the limit from which its rule warns, if it does.
    pub warn_at: Option<u8>,
    /// The verdict and the numbers.
    pub outcome: Outcome,
    /// The cause of a denial.
    pub cause: Cause,
    /// The limit's part in an overflow: how much of the cost was drawn on it.
    pub overflow: Overflow,
}

impl Report {
    /// The percentage of the limit that is in use, rounded down, if the rule warns of it: the limit
    /// admits, enforces, and at least [`warn_at`](Self::warn_at) is in use.
    #[must_use]
    pub fn warning(&self) -> Option<u64> {
        let (percent, capacity) = (self.warn_at?, self.limit.capacity());
        let used = capacity.saturating_sub(self.outcome.remaining).saturating_mul(100);
        let used = used.checked_div(capacity)?;
        (!self.shadow && self.outcome.allowed() && used >= percent.into()).then_some(used)
    }

    /// Units left, with those of the rule's overflow.
    #[must_use]
    pub const fn units_left(&self) -> u64 {
        self.outcome.remaining.saturating_add(self.overflow.lent())
    }

    /// How many more requests of cost 1 this limit admits.
    fn requests_left(&self) -> u64 {
        self.units_left().checked_div(self.unit_cost).unwrap_or(0)
    }

    /// Whether it is an overflow that denies nothing. It is counted as what it lends.
    pub(crate) fn only_lends(&self) -> bool {
        matches!(self.overflow, Overflow::Into { .. }) && self.outcome.allowed()
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

/// Merges reports: every limit that enforces has to admit. On a denial the limit with the longest
/// wait decides, on an admission the one with the fewest requests left; on a tie, the first.
pub(super) fn summarise(reports: &[Report]) -> Summary {
    let mut summary = Summary { verdict: Verdict::Allowed, remaining: u64::MAX, deciding: None };
    for report in reports.iter().filter(|report| !report.shadow && !report.only_lends()) {
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
    use crate::decision::Degraded;
    use crate::{Decision, Timestamp};

    fn report(rule: &str, verdict: Verdict, remaining: u64, unit_cost: u64) -> Report {
        let now = Timestamp::EPOCH;
        let outcome = Outcome { now, verdict, remaining, owed: 0, reset_at: now, grows_at: now };
        Report {
            rule: RuleName::intern(rule),
            budget: Budget::Rule,
            index: 0,
            limit: Limit::per_second(100),
            unit_cost,
            shadow: false,
            warn_at: None,
            outcome,
            cause: Cause::Limit,
            overflow: Overflow::None,
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
