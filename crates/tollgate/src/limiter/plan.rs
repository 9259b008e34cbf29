//! The charges of a request.

use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use super::failure::assumed;
use super::prepared::Prepared;
use crate::decision::Degraded;
use crate::rule::{FailurePolicy, Tag};
use crate::store::{Answer, Cause, Charge, Op, Part};
use crate::{
    Algorithm, Budget, Caller, Decision, Error, Key, Limit, Report, Request, Rule, RuleName, RuleSet,
    Timestamp, Verdict,
};

/// The charges of one request, independent of the rule set they came from: a reservation is settled
/// on the budgets it was made on, under the limits [in force](Self::in_force).
///
/// Several requests that are decided as one share a plan; each has a range of its charges.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    planned: SmallVec<[PlannedCharge; 4]>,
    /// The subjects of all charges, concatenated.
    subjects: SmallVec<[u8; 64]>,
    /// The inline limits.
    inline: SmallVec<[Limit; 1]>,
    /// Whether its rules deny a request that none of them covers.
    denies_uncovered: bool,
    /// Who sends the request; of several that are decided as one, the first.
    caller: Option<Caller>,
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
    record_denied: bool,
    warn_at: Option<u8>,
    pub(crate) policy: FailurePolicy,
    pub(crate) part: Part,
    subject: Range<usize>,
    /// The index of the charge with the same key that stands for both: a key is charged once, with
    /// the largest cost.
    duplicate_of: Option<usize>,
}

impl PlannedCharge {
    pub(crate) fn rule(&self) -> RuleName {
        self.tag.rule
    }

    /// Whether it is an overflow, which is settled with the rule that draws on it.
    pub(crate) const fn lends(&self) -> bool {
        matches!(self.part, Part::Rest(_))
    }

    /// Whether an earlier charge has the same key.
    pub(crate) const fn is_duplicate(&self) -> bool {
        self.duplicate_of.is_some()
    }
}

impl Plan {
    /// A plan under these rules, without charges yet.
    pub(crate) fn under(rules: &RuleSet) -> Self {
        Self { denies_uncovered: rules.denies_uncovered(), ..Self::default() }
    }

    /// Whether no rule covers the request, which is denied then.
    pub(crate) fn is_refused(&self) -> bool {
        self.planned.is_empty() && self.denies_uncovered
    }

    /// Adds the charges of all rules that cover `request`, with the rule's cost in the request or
    /// `multiplier`.
    pub(crate) fn add(
        &mut self,
        prepared: &Prepared,
        request: &Request<'_>,
        multiplier: u64,
    ) -> Result<(), Error> {
        self.caller = self.caller.or(request.sender());
        prepared.rules.cover(request, |covered| {
            let Some((rule, budget)) = prepared.get(covered, request.inline_limit()) else { return Ok(()) };
            let costs = request.rule_costs().iter();
            let named = costs.copied().find(|(name, _)| *name == rule.name().as_str());
            let multiplier = named.map_or(multiplier, |(_, cost)| cost);
            let mut charge = PlannedCharge {
                tag: budget.tag,
                budget: budget.tag.budget,
                index: 0,
                inline: None,
                multiplier: multiplier.saturating_mul(rule.unit_cost()),
                shadow: rule.is_shadow(),
                // A shadow rule denies nothing.
                record_denied: rule.records_denied() && !rule.is_shadow(),
                warn_at: rule.warns_at(),
                policy: rule.failure_policy(),
                part: Part::Whole,
                subject: self.encode_key(rule, request)?,
                duplicate_of: None,
            };
            if let Some(limit) = request.inline_limit().filter(|_| rule.is_inline()) {
                self.push_inline(charge, limit);
                return Ok(());
            }
            // An administrative verb reaches each budget by itself.
            let overflow = if request.is_own() { None } else { prepared.overflow(covered, request) };
            let Some((rule, budget)) = overflow else {
                self.push_all(&charge);
                // A client's budgets under a rule of inline limits: the slots are one.
                if let Some(tag) = prepared.inline_slots(covered) {
                    self.push(PlannedCharge { tag, budget: tag.budget, ..charge });
                }
                return Ok(());
            };
            // If the store fails, both follow the policy of the rule that covers the request.
            let mut rest = PlannedCharge {
                tag: budget.tag,
                budget: budget.tag.budget,
                multiplier: 0,
                subject: self.encode_key(rule, request)?,
                ..charge.clone()
            };
            let number = self.overflow_number(&rest);
            (charge.part, rest.part) = (Part::First(number), Part::Rest(number));
            self.push_all(&charge);
            self.push_all(&rest);
            Ok(())
        })
    }

    /// Appends the values of a rule's key, and returns where they are.
    fn encode_key(&mut self, rule: &Rule, request: &Request<'_>) -> Result<Range<usize>, Error> {
        let start = self.subjects.len();
        rule.encode_key(request, &mut self.subjects)?;
        Ok(start..self.subjects.len())
    }

    /// The number of the overflow into this budget: the same for all rules that share it.
    fn overflow_number(&self, rest: &PlannedCharge) -> u16 {
        let number = |charge: &PlannedCharge| match charge.part {
            Part::Rest(number) => Some((number, self.key(charge) == self.key(rest))),
            _ => None,
        };
        let mut numbers = self.planned.iter().filter_map(number);
        let known = numbers.clone().find(|(_, is_same)| *is_same).map(|(number, _)| number);
        known.unwrap_or_else(|| {
            numbers.by_ref().map(|(number, _)| number).max().unwrap_or(0).saturating_add(1)
        })
    }

    /// Adds a charge for each limit of its budget.
    fn push_all(&mut self, charge: &PlannedCharge) {
        for (index, _) in (0..).zip(charge.tag.limits) {
            self.push(PlannedCharge { index, ..charge.clone() });
        }
    }

    fn push_inline(&mut self, charge: PlannedCharge, limit: &Limit) {
        self.inline.push(*limit);
        let budget = match limit.algorithm() {
            Algorithm::FixedWindow { period, .. } => Budget::InlineCount(period),
            Algorithm::Concurrent { .. } => Budget::InlineSlots,
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
            if let Part::Rest(_) = charge.part {
                first.part = charge.part;
            }
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

    /// Drops the charges on overflows: an administrative verb reaches them only by name.
    pub(crate) fn without_overflow(mut self) -> Self {
        self.planned.retain(|charge| !charge.lends());
        self.planned.iter_mut().for_each(|charge| charge.part = Part::Whole);
        self
    }

    /// The charges on concurrent limits, or all others.
    pub(crate) fn only(mut self, slots: bool) -> Self {
        let planned = std::mem::take(&mut self.planned);
        self.planned =
            planned.into_iter().filter(|charge| self.limit(charge).is_concurrent() == slots).collect();
        self
    }

    /// The same charges under the limits that are in force for their budgets now. A budget that
    /// rules no longer have, or that has fewer limits, keeps its own.
    pub(super) fn in_force(&self, prepared: &Prepared) -> Self {
        let mut plan = self.clone();
        for charge in plan.planned.iter_mut().filter(|charge| !charge.tag.is_inline()) {
            let subject = self.subjects.get(charge.subject.clone()).unwrap_or_default();
            let tag = prepared.tag_in_force(charge.tag, subject);
            let has_all = |tag: &Tag| tag.limits.as_slice().len() >= charge.tag.limits.as_slice().len();
            charge.tag = tag.filter(has_all).unwrap_or(charge.tag);
        }
        plan
    }

    /// Refuses a plan with a charge on a concurrent limit, for verbs that cannot return the name of
    /// a slot: nobody could release it.
    pub(crate) fn without_slots(&self) -> Result<(), Error> {
        match self.planned.iter().find(|charge| self.limit(charge).is_concurrent()) {
            Some(charge) => Err(Error::SlotNeeded { rule: charge.rule().to_string() }),
            None => Ok(()),
        }
    }

    pub(super) const fn caller(&self) -> Option<Caller> {
        self.caller
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

    /// The store's charges for ending a hold at `cost`. A slot is given back whole.
    pub(crate) fn settling(&self, cost: u64) -> SmallVec<[Charge<'_>; 4]> {
        let mut charges = self.charges(cost);
        charges.iter_mut().filter(|charge| charge.limit.is_concurrent()).for_each(|charge| charge.cost = 0);
        charges
    }

    /// The store's charges for an operation.
    pub(crate) fn charges_of(&self, op: Op, cost: u64) -> SmallVec<[Charge<'_>; 4]> {
        if matches!(op, Op::Settle { .. }) { self.settling(cost) } else { self.charges(cost) }
    }

    /// The charges with distinct keys.
    pub(crate) fn distinct(&self) -> impl Iterator<Item = &PlannedCharge> {
        self.planned.iter().filter(|charge| charge.duplicate_of.is_none())
    }

    pub(crate) fn charge<'a>(&'a self, charge: &PlannedCharge, cost: u64) -> Charge<'a> {
        let limit = self.limit(charge);
        Charge {
            key: self.key(charge),
            limit,
            // One slot, whatever the cost.
            cost: if limit.is_concurrent() { 1 } else { cost.saturating_mul(charge.multiplier) },
            shadow: charge.shadow,
            record_denied: charge.record_denied,
            // A slot is no unit that an overflow could lend.
            part: if limit.is_concurrent() { Part::Whole } else { charge.part },
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

    /// The denial of a request that waited for this budget in vain. Nobody asked for its numbers:
    /// no unit is known to be left there, and the other budgets are assumed to have enough.
    pub(super) fn overtaken(
        &self,
        denied_by: Option<(RuleName, Budget)>,
        retry_after: Duration,
        cause: Cause,
        now: Timestamp,
    ) -> Decision {
        let answer = |charge: &PlannedCharge| {
            if denied_by == Some((charge.rule(), charge.budget)) {
                let denied = assumed(charge.part, Verdict::Denied { retry_after }, 0, now);
                return Answer { cause, ..denied };
            }
            assumed(charge.part, Verdict::Allowed, self.limit(charge).capacity(), now)
        };
        let answers: SmallVec<[Answer; 4]> = self.distinct().map(answer).collect();
        self.decision(now, Degraded::No, &answers).overtaken(retry_after)
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
            let (answer, limit) = (answer?, self.limit(charge).plain());
            Some(Report {
                rule: charge.rule(),
                budget: charge.budget,
                index: charge.index,
                limit,
                unit_cost: if limit.is_concurrent() { 1 } else { charge.tag.unit_cost },
                shadow: charge.shadow,
                warn_at: charge.warn_at,
                outcome: answer.outcome,
                cause: answer.cause,
                overflow: answer.overflow,
            })
        };
        Decision::merge(now, degraded, self.planned.iter().zip(of_planned).filter_map(report))
    }
}
