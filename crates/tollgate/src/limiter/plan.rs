//! The charges of a request.

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use super::prepared::Prepared;
use crate::decision::Degraded;
use crate::rule::{FailurePolicy, Tag};
use crate::store::{Answer, Charge};
use crate::{Algorithm, Budget, Decision, Error, Key, Limit, Report, Request, RuleName, Timestamp};

/// The charges of one request, independent of the rule set they came from: a reservation is settled
/// under the rules it was made under.
///
/// Several requests that are decided as one share a plan; each has a range of its charges.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    planned: SmallVec<[PlannedCharge; 4]>,
    /// The subjects of all charges, concatenated.
    subjects: SmallVec<[u8; 64]>,
    /// The inline limits.
    inline: SmallVec<[Limit; 1]>,
}

/// A charge on one limit, for any cost.
#[derive(Clone, Debug)]
pub(crate) struct PlannedCharge {
    tag: Tag,
    budget: Budget,
    index: u16,
    /// The index of the plan's inline limit, if this charge has one.
    inline: Option<usize>,
    /// Units to charge per unit of the plan's cost: the rule's unit cost, times the request's cost
    /// where several requests are decided as one.
    multiplier: u64,
    pub(crate) shadow: bool,
    warn_at: Option<u8>,
    pub(crate) policy: FailurePolicy,
    subject: Range<usize>,
    /// The index of the charge with the same key that stands for both: a key is charged once, with
    /// the largest cost.
    duplicate_of: Option<usize>,
}

impl PlannedCharge {
    pub(crate) fn rule(&self) -> RuleName {
        self.tag.rule
    }

    /// Whether an earlier charge has the same key.
    pub(crate) const fn is_duplicate(&self) -> bool {
        self.duplicate_of.is_some()
    }
}

impl Plan {
    /// No charges.
    pub(crate) fn empty() -> Self {
        Self { planned: SmallVec::new(), subjects: SmallVec::new(), inline: SmallVec::new() }
    }

    /// Adds the charges of all rules that cover `request`, with the rule's cost in the request or
    /// `multiplier`.
    pub(crate) fn add(
        &mut self,
        prepared: &Prepared,
        request: &Request<'_>,
        multiplier: u64,
    ) -> Result<(), Error> {
        prepared.rules.cover(request, |covered| {
            let Some((rule, budget)) = prepared.get(covered, request.inline_limit()) else { return Ok(()) };
            let costs = request.rule_costs().iter();
            let named = costs.copied().find(|(name, _)| *name == rule.name().as_str());
            let multiplier = named.map_or(multiplier, |(_, cost)| cost);
            let start = self.subjects.len();
            rule.encode_key(request, &mut self.subjects)?;
            let charge = PlannedCharge {
                tag: budget.tag,
                budget: budget.tag.budget,
                index: 0,
                inline: None,
                multiplier: multiplier.saturating_mul(rule.unit_cost()),
                shadow: rule.is_shadow(),
                warn_at: rule.warns_at(),
                policy: rule.failure_policy(),
                subject: start..self.subjects.len(),
                duplicate_of: None,
            };
            match request.inline_limit().filter(|_| rule.is_inline()) {
                Some(limit) => self.push_inline(charge, limit),
                None => (0..)
                    .zip(budget.tag.limits)
                    .for_each(|(index, _)| self.push(PlannedCharge { index, ..charge.clone() })),
            }
            Ok(())
        })
    }

    fn push_inline(&mut self, charge: PlannedCharge, limit: &Limit) {
        self.inline.push(*limit);
        let budget = match limit.algorithm() {
            Algorithm::FixedWindow { period, .. } => Budget::InlineCount(period),
            _ => Budget::InlineTime,
        };
        self.push(PlannedCharge { budget, inline: self.inline.len().checked_sub(1), ..charge });
    }

    /// Adds a charge, and merges it into the charge with the same key if there is one. Of two
    /// inline limits, the smaller applies.
    fn push(&mut self, mut charge: PlannedCharge) {
        let key = self.key(&charge);
        let same =
            self.planned.iter().position(|other| other.duplicate_of.is_none() && self.key(other) == key);
        if let Some(first) = same.and_then(|index| self.planned.get_mut(index)) {
            first.multiplier = first.multiplier.max(charge.multiplier);
            first.shadow &= charge.shadow;
            if let (Some(one), Some(other)) = (first.inline, charge.inline) {
                let size = |index: usize| {
                    self.inline
                        .get(index)
                        .map_or((0, Duration::ZERO), |limit| (limit.capacity(), limit.period()))
                };
                if size(other) < size(one) {
                    first.inline = Some(other);
                }
                charge.inline = first.inline;
            }
            charge.duplicate_of = same;
        }
        self.planned.push(charge);
    }

    /// Drops the charges on global budgets: an administrative verb on a client must not affect
    /// other clients.
    pub(crate) fn keyed(mut self) -> Self {
        self.planned.retain(|charge| !charge.subject.is_empty());
        self
    }

    pub(crate) fn planned(&self) -> &[PlannedCharge] {
        &self.planned
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }

    /// The store's charges for a request of `cost`, with no key twice.
    pub(crate) fn charges(&self, cost: u64) -> SmallVec<[Charge<'_>; 4]> {
        self.distinct().map(|charge| self.charge(charge, cost)).collect()
    }

    /// The charges with distinct keys.
    pub(crate) fn distinct(&self) -> impl Iterator<Item = &PlannedCharge> {
        self.planned.iter().filter(|charge| charge.duplicate_of.is_none())
    }

    pub(crate) fn charge<'a>(&'a self, charge: &PlannedCharge, cost: u64) -> Charge<'a> {
        Charge {
            key: self.key(charge),
            limit: self.limit(charge),
            cost: cost.saturating_mul(charge.multiplier),
            shadow: charge.shadow,
            tag: charge.tag,
        }
    }

    fn key(&self, charge: &PlannedCharge) -> Key<'_> {
        let subject = self.subjects.get(charge.subject.clone()).unwrap_or_default();
        Key::new(charge.rule(), charge.budget, charge.index, subject)
    }

    fn limit(&self, charge: &PlannedCharge) -> &Limit {
        let inline = charge.inline.and_then(|index| self.inline.get(index));
        let listed = || charge.tag.limits.as_slice().get(usize::from(charge.index));
        // The index is within the tag's list; see `add`.
        inline.or_else(listed).unwrap_or(&Limit::API)
    }

    /// Bytes that are equal for requests on the same budgets: the identity of a waiting queue.
    pub(crate) fn identity(&self) -> Vec<u8> {
        let mut identity = Vec::new();
        self.distinct().for_each(|charge| self.key(charge).encode(&mut identity));
        identity
    }

    /// The decision that follows from a store's answers, one per distinct charge.
    pub(crate) fn decision(&self, now: Timestamp, degraded: Degraded, answers: &[Answer]) -> Decision {
        let mut of_planned: SmallVec<[Option<&Answer>; 4]> = SmallVec::new();
        let mut answers = answers.iter();
        for charge in &self.planned {
            of_planned.push(match charge.duplicate_of {
                Some(first) => of_planned.get(first).copied().flatten(),
                None => answers.next(),
            });
        }
        let report = |(charge, answer): (&PlannedCharge, Option<&Answer>)| {
            let answer = answer?;
            Some(Report {
                rule: charge.rule(),
                budget: charge.budget,
                index: charge.index,
                limit: self.limit(charge).plain(),
                unit_cost: charge.tag.unit_cost,
                shadow: charge.shadow,
                warn_at: charge.warn_at,
                outcome: answer.outcome,
                cause: answer.cause,
            })
        };
        Decision::merge(now, degraded, self.planned.iter().zip(of_planned).filter_map(report))
    }
}
