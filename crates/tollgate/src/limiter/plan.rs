//! From a request to the charges it makes.

use std::ops::Range;

use smallvec::SmallVec;

use crate::decision::Degraded;
use crate::rule::FailurePolicy;
use crate::store::{Answer, Charge};
use crate::{Decision, Error, Key, Limit, Limits, Report, Request, RuleName, RuleSet, Timestamp};

/// The charges of one request, independent of the rules they came from: a reservation is settled by
/// the rules it was made under.
///
/// Several requests that are decided together make one plan: each has a part of its lines.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    lines: SmallVec<[Line; 4]>,
    /// The lines' subjects, one after the other.
    subjects: SmallVec<[u8; 64]>,
}

#[derive(Clone, Debug)]
pub(crate) struct Line {
    /// The rule's place in the rule set.
    pub(crate) rule_index: usize,
    pub(crate) rule: RuleName,
    place: u16,
    pub(crate) limits: Limits,
    unit_cost: u64,
    /// What is charged of each unit of the plan's cost: 1, unless requests of different costs are
    /// decided together.
    times: u64,
    pub(crate) shadow: bool,
    pub(crate) policy: FailurePolicy,
    subject: Range<usize>,
}

impl Line {
    pub(crate) fn limit(&self) -> &'static Limit {
        &self.limits.as_slice()[usize::from(self.place)]
    }
}

impl Plan {
    /// No charges.
    pub(crate) fn empty() -> Self {
        Self { lines: SmallVec::new(), subjects: SmallVec::new() }
    }

    /// Adds the charges of all rules that cover `request`, `times` the plan's cost each.
    pub(crate) fn add(&mut self, rules: &RuleSet, request: &Request<'_>, times: u64) -> Result<(), Error> {
        for (rule_index, rule, limits) in rules.covering(request) {
            let start = self.subjects.len();
            rule.encode_key(request, &mut self.subjects)?;
            let end = self.subjects.len();
            let limits = self.limits_of(rule.name(), start..end).unwrap_or(limits);
            for (place, _) in (0..).zip(limits.iter()) {
                self.lines.push(Line {
                    rule_index,
                    rule: rule.name(),
                    place,
                    limits,
                    unit_cost: rule.unit_cost(),
                    times,
                    shadow: rule.is_shadow(),
                    policy: rule.failure_policy(),
                    subject: start..end,
                });
            }
        }
        Ok(())
    }

    /// The limits under which a budget is drawn on already, by a request that is decided together with
    /// this one: one budget has one list of limits, or nobody could say what is left of it.
    fn limits_of(&self, rule: RuleName, subject: Range<usize>) -> Option<Limits> {
        let named = |subject: Range<usize>| self.subjects.get(subject);
        let mut same = self.lines.iter().filter(|line| line.rule == rule);
        let subject = named(subject);
        same.find(|line| named(line.subject.clone()) == subject).map(|line| line.limits)
    }

    /// Only the charges on keys of someone's own: what is done to a client must not be done to
    /// everyone.
    pub(crate) fn keyed(mut self) -> Self {
        self.lines.retain(|line| !line.subject.is_empty());
        self
    }

    /// Whether an earlier line draws on the same budget.
    pub(crate) fn is_repeated(&self, index: usize) -> bool {
        let Some(key) = self.lines.get(index).map(|line| self.charge(line, 0).key) else { return false };
        self.lines.iter().take(index).any(|earlier| self.charge(earlier, 0).key == key)
    }

    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The charges for a request of `cost`.
    pub(crate) fn charges(&self, cost: u64) -> SmallVec<[Charge<'_>; 4]> {
        self.lines.iter().map(|line| self.charge(line, cost)).collect()
    }

    pub(crate) fn charge<'a>(&'a self, line: &'a Line, cost: u64) -> Charge<'a> {
        let subject = self.subjects.get(line.subject.clone()).unwrap_or_default();
        Charge {
            key: Key::new(line.rule, line.place, subject),
            limits: line.limits,
            cost: cost.saturating_mul(line.unit_cost).saturating_mul(line.times),
            shadow: line.shadow,
        }
    }

    /// What tells requests that queue for the same budgets from others.
    pub(crate) fn identity(&self) -> Vec<u8> {
        let mut identity = Vec::new();
        self.charges(0).iter().for_each(|charge| charge.key.encode(&mut identity));
        identity
    }

    /// The decision that a store's answers amount to.
    pub(crate) fn decision(&self, now: Timestamp, degraded: Degraded, answers: &[Answer]) -> Decision {
        let report = |(line, answer): (&Line, &Answer)| Report {
            rule: line.rule,
            place: line.place,
            limit: line.limit(),
            unit_cost: line.unit_cost,
            shadow: line.shadow,
            outcome: answer.outcome,
        };
        Decision::merge(now, degraded, self.lines.iter().zip(answers).map(report))
    }
}
