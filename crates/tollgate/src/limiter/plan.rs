//! From a request to the charges it makes.

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use super::prepared::Prepared;
use crate::decision::Degraded;
use crate::rule::{FailurePolicy, Tag};
use crate::store::{Answer, Charge};
use crate::{Algorithm, Budget, Decision, Error, Key, Limit, Report, Request, RuleName, Timestamp};

/// The charges of one request, independent of the rules they came from: a reservation is settled by
/// the rules it was made under.
///
/// Several requests that are decided together make one plan: each has a part of its lines.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    lines: SmallVec<[Line; 4]>,
    /// The lines' subjects, one after the other.
    subjects: SmallVec<[u8; 64]>,
    /// Limits that came with requests.
    inline: SmallVec<[Limit; 1]>,
}

/// What one limit is charged.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    tag: Tag,
    budget: Budget,
    index: u16,
    /// Which of the plan's inline limits, if it is one.
    inline: Option<usize>,
    /// What is charged of each unit of the plan's cost: the rule's unit cost, times the request's
    /// cost where requests of different costs are decided together.
    times: u64,
    pub(crate) shadow: bool,
    pub(crate) policy: FailurePolicy,
    subject: Range<usize>,
    /// The line that stands for all with the same key, if that is another: a key is charged once,
    /// with the largest cost.
    same_as: Option<usize>,
}

impl Line {
    pub(crate) fn rule(&self) -> RuleName {
        self.tag.rule
    }

    /// Whether an earlier line has the same key.
    pub(crate) const fn is_repeated(&self) -> bool {
        self.same_as.is_some()
    }
}

impl Plan {
    /// No charges.
    pub(crate) fn empty() -> Self {
        Self { lines: SmallVec::new(), subjects: SmallVec::new(), inline: SmallVec::new() }
    }

    /// Adds the charges of all rules that cover `request`, `times` the plan's cost each.
    pub(crate) fn add(
        &mut self,
        prepared: &Prepared,
        request: &Request<'_>,
        times: u64,
    ) -> Result<(), Error> {
        let mut all = SmallVec::new();
        prepared.rules.cover(request, &mut all);
        for covered in all {
            let Some((rule, budget)) = prepared.get(covered, request.inline_limit()) else { continue };
            let start = self.subjects.len();
            rule.encode_key(request, &mut self.subjects)?;
            let line = Line {
                tag: budget.tag,
                budget: budget.tag.budget,
                index: 0,
                inline: None,
                times: times.saturating_mul(rule.unit_cost()),
                shadow: rule.is_shadow(),
                policy: rule.failure_policy(),
                subject: start..self.subjects.len(),
                same_as: None,
            };
            match request.inline_limit().filter(|_| rule.is_inline()) {
                Some(limit) => self.push_inline(line, limit),
                None => (0..)
                    .zip(budget.tag.limits)
                    .for_each(|(index, _)| self.push(Line { index, ..line.clone() })),
            }
        }
        Ok(())
    }

    fn push_inline(&mut self, line: Line, limit: &Limit) {
        self.inline.push(*limit);
        let budget = match limit.algorithm() {
            Algorithm::FixedWindow { period, .. } => Budget::InlineCount(period),
            _ => Budget::InlineTime,
        };
        self.push(Line { budget, inline: self.inline.len().checked_sub(1), ..line });
    }

    /// Adds a line, or adds to the one that has the same key already. Of two limits that came with
    /// requests, the smaller holds.
    fn push(&mut self, mut line: Line) {
        let key = self.key(&line);
        let same = self.lines.iter().position(|other| other.same_as.is_none() && self.key(other) == key);
        if let Some(first) = same.and_then(|index| self.lines.get_mut(index)) {
            first.times = first.times.max(line.times);
            first.shadow &= line.shadow;
            if let (Some(one), Some(other)) = (first.inline, line.inline) {
                let size = |index: usize| {
                    self.inline
                        .get(index)
                        .map_or((0, Duration::ZERO), |limit| (limit.capacity(), limit.period()))
                };
                if size(other) < size(one) {
                    first.inline = Some(other);
                }
                line.inline = first.inline;
            }
            line.same_as = same;
        }
        self.lines.push(line);
    }

    /// Only the charges on keys of someone's own: what is done to a client must not be done to
    /// everyone.
    pub(crate) fn keyed(mut self) -> Self {
        self.lines.retain(|line| !line.subject.is_empty());
        self
    }

    pub(crate) fn lines(&self) -> &[Line] {
        &self.lines
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The charges for a request of `cost`, no key twice.
    pub(crate) fn charges(&self, cost: u64) -> SmallVec<[Charge<'_>; 4]> {
        self.once().map(|line| self.charge(line, cost)).collect()
    }

    /// The lines that stand for all.
    pub(crate) fn once(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter().filter(|line| line.same_as.is_none())
    }

    pub(crate) fn charge<'a>(&'a self, line: &Line, cost: u64) -> Charge<'a> {
        Charge {
            key: self.key(line),
            limit: self.limit(line),
            cost: cost.saturating_mul(line.times),
            shadow: line.shadow,
            tag: line.tag,
        }
    }

    fn key(&self, line: &Line) -> Key<'_> {
        let subject = self.subjects.get(line.subject.clone()).unwrap_or_default();
        Key::new(line.rule(), line.budget, line.index, subject)
    }

    fn limit(&self, line: &Line) -> &Limit {
        let inline = line.inline.and_then(|index| self.inline.get(index));
        let listed = || line.tag.limits.as_slice().get(usize::from(line.index));
        // A line's index is one of its tag's list; see `add`.
        inline.or_else(listed).unwrap_or(&Limit::API)
    }

    /// What tells requests that queue for the same budgets from others.
    pub(crate) fn identity(&self) -> Vec<u8> {
        let mut identity = Vec::new();
        self.once().for_each(|line| self.key(line).encode(&mut identity));
        identity
    }

    /// The decision that a store's answers, one for each charge, amount to.
    pub(crate) fn decision(&self, now: Timestamp, degraded: Degraded, answers: &[Answer]) -> Decision {
        let mut of_lines: SmallVec<[Option<&Answer>; 4]> = SmallVec::new();
        let mut answers = answers.iter();
        for line in &self.lines {
            of_lines.push(match line.same_as {
                Some(first) => of_lines.get(first).copied().flatten(),
                None => answers.next(),
            });
        }
        let report = |(line, answer): (&Line, Option<&Answer>)| {
            let answer = answer?;
            Some(Report {
                rule: line.rule(),
                budget: line.budget,
                index: line.index,
                limit: self.limit(line).plain(),
                unit_cost: line.tag.unit_cost,
                shadow: line.shadow,
                outcome: answer.outcome,
                cause: answer.cause,
            })
        };
        Decision::merge(now, degraded, self.lines.iter().zip(of_lines).filter_map(report))
    }
}
