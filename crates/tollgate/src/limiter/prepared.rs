//! Rules prepared for requests: each budget with its lookup in a memory store.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{Array, SmallVec};

use crate::algorithm::token_bucket::Word;
use crate::decision::{TAGS_MAX, WORDS_MAX};
use crate::key::values;
use crate::limit::Kind;
use crate::memory::{Lookup, Subject, Target, WIDEST};
use crate::rule::{Covered, Tag};
use crate::stats::Tally;
use crate::{Budget, Limit, MemoryStore, Request, Rule, RuleName, RuleSet};

/// Rules with their precomputed lookups.
#[derive(Clone, Debug)]
pub(super) struct Prepared {
    pub(super) rules: RuleSet,
    prepared_rules: Vec<PreparedRule>,
    /// The rules, if every one applies to every client's requests alike: no search is needed.
    pub(super) plain: Option<PlainRules>,
}

/// Rules that apply to every client's requests alike.
#[derive(Clone, Debug)]
pub(super) struct PlainRules {
    /// The limit, if there is one rule with one limit, a token bucket with a one-word state.
    pub(super) bucket: Option<Word>,
    /// Words of the state of each rule's budget; 0 if they differ.
    pub(super) width: usize,
    pub(super) first: PlainRule,
    pub(super) others: Box<[PlainRule]>,
}

#[derive(Clone, Debug)]
pub(super) struct PlainRule {
    /// Whether the rule counts by client; otherwise its budget is global.
    by_client: bool,
    pub(super) lookup: Lookup,
}

/// A rule with its decision counts and its budgets: the rule's first, then its overrides' in order.
#[derive(Clone, Debug)]
pub(super) struct PreparedRule {
    pub(super) tally: Arc<Tally>,
    budgets: Vec<PreparedBudget>,
    /// The budgets of inline windows and of inline slots.
    inline: Option<(PreparedBudget, PreparedBudget)>,
}

/// A budget and the limits in force for it.
#[derive(Clone, Debug)]
pub(super) struct PreparedBudget {
    pub(super) tag: Tag,
    /// The lookup of its states in a memory store, if the fast path can decide on them.
    pub(super) lookup: Option<Lookup>,
}

impl PreparedBudget {
    fn new(tag: Tag, memory: Option<&MemoryStore>, rule: &Rule, tally: &Arc<Tally>) -> Self {
        Self { tag, lookup: memory.and_then(|memory| memory.lookup(tag, rule, Arc::clone(tally))) }
    }
}

impl Prepared {
    /// Prepares rules. A rule that keeps its name keeps its counts.
    pub(super) fn new(rules: RuleSet, memory: Option<&MemoryStore>, before: Option<&Self>) -> Self {
        let prepare = |rule: &Rule| {
            if let Some(memory) = memory {
                memory.bound(rule.name(), rule.key_bound());
            }
            let (name, cost) = (rule.name(), rule.unit_cost());
            let inline = |kind| Tag::inline(name, kind, cost);
            let tag = |(budget, limits)| match rule.is_inline() {
                true => Tag::inline(name, budget, cost),
                false => Tag::new(name, budget, limits, cost),
            };
            let tally = before.and_then(|before| before.tally(name)).unwrap_or_default();
            let memory = memory.filter(|_| is_fast(rule));
            let budget = |tag| PreparedBudget::new(tag, memory, rule, &tally);
            let budgets: Vec<_> = rules.budgets(rule).map(|limits| budget(tag(limits))).collect();
            let inline = rule.is_inline().then(|| {
                let counts = inline(Budget::InlineCount(Duration::ZERO));
                (budget(counts), budget(inline(Budget::InlineSlots)))
            });
            PreparedRule { tally, budgets, inline }
        };
        let prepared_rules: Vec<_> = rules.rules().iter().map(prepare).collect();
        let plain = PlainRules::new(&rules, &prepared_rules);
        Self { rules, prepared_rules, plain }
    }

    /// Whether both have the same rules and the same decision counts.
    pub(super) fn same(&self, other: &Self) -> bool {
        let mut tallies = self.prepared_rules.iter().zip(&other.prepared_rules);
        self.rules == other.rules && tallies.all(|(one, other)| Arc::ptr_eq(&one.tally, &other.tally))
    }

    /// Appends the budgets that a request draws on; none if the request needs the general path: too
    /// many rules cover it for one decision, one of them records denied costs or has a cost of its
    /// own, a state does not pack, or the request is invalid.
    pub(super) fn locate<'a, A: Array<Item = Target<'a>>>(
        &'a self,
        memory: &'a MemoryStore,
        request: &Request<'_>,
        targets: &mut SmallVec<A>,
    ) {
        self.rules.seeing(request, |request| self.locate_seen(memory, request, targets));
    }

    #[inline]
    fn locate_seen<'a, A: Array<Item = Target<'a>>>(
        &'a self,
        memory: &'a MemoryStore,
        request: &Request<'_>,
        targets: &mut SmallVec<A>,
    ) {
        let (before, inline, mut words) = (targets.len(), request.inline_limit(), 0_usize);
        let mut locate = || {
            let cost =
                request.valid_cost().filter(|_| !request.is_own() && request.rule_costs().is_empty())?;
            for (index, rule) in self.rules.matching(request) {
                let values;
                let subject = match request.only_client() {
                    _ if rule.key_attributes().is_empty() => Subject::Global,
                    Some(client) if rule.is_by_client() => Subject::Client(client),
                    // Its key has another attribute.
                    Some(_) => continue,
                    None => {
                        let Some(present) = rule.key_values(request) else { continue };
                        values = present;
                        Subject::Values(&values)
                    }
                };
                subject.is_valid().then_some(())?;
                let (_, budget) = self.get(self.rules.covered(index, request), inline)?;
                let lookup = budget.lookup.as_ref().filter(|_| rule.is_inline() == inline.is_some())?;
                targets.push(memory.target::<WIDEST>(lookup, subject, inline, cost));
                words = words.saturating_add(lookup.words);
                let fits = targets.len().wrapping_sub(before) <= TAGS_MAX && words <= WORDS_MAX;
                fits.then_some(())?;
            }
            Some(())
        };
        if locate().is_none() {
            targets.truncate(before);
        }
    }

    /// The rule that covers a request, and the budget that the request draws on.
    #[inline]
    pub(super) fn get(&self, covered: Covered, inline: Option<&Limit>) -> Option<(&Rule, &PreparedBudget)> {
        let (rule, prepared) =
            (self.rules.rules().get(covered.rule)?, self.prepared_rules.get(covered.rule)?);
        let counts = |limit: &Limit| matches!(limit.0, Kind::InlineWindow(_));
        let budget = match &prepared.inline {
            Some((count, _)) if inline.is_some_and(counts) => count,
            Some((_, slots)) if inline.is_some_and(Limit::is_concurrent) => slots,
            _ => prepared.budgets.get(covered.replacement.map_or(0, |index| index.saturating_add(1)))?,
        };
        Some((rule, budget))
    }

    /// The rule that covers what a rule lacks of a request, and the budget drawn on there.
    pub(super) fn overflow(
        &self,
        covered: Covered,
        request: &Request<'_>,
    ) -> Option<(&Rule, &PreparedBudget)> {
        self.get(self.rules.overflow(covered, request)?, None)
    }

    /// The tag in force of a budget, whose subject is `subject`, if its rule still has it.
    pub(super) fn tag_in_force(&self, tag: Tag, subject: &[u8]) -> Option<Tag> {
        let rule = self.rules.index(&tag.rule)?;
        let budgets = &self.prepared_rules.get(rule)?.budgets;
        let budget = if tag.budget == Budget::Rule {
            let replacement = self.rules.replacement(rule, values(subject));
            budgets.get(replacement.map_or(0, |index| index.saturating_add(1)))
        } else {
            budgets.iter().find(|budget| budget.tag.budget == tag.budget)
        };
        budget.map(|budget| budget.tag).filter(|tag| !tag.is_inline())
    }

    /// The budget of a rule's inline slots, if its limits come with requests.
    pub(super) fn inline_slots(&self, covered: Covered) -> Option<Tag> {
        let (_, slots) = self.prepared_rules.get(covered.rule)?.inline.as_ref()?;
        Some(slots.tag)
    }

    /// The decision counts of a rule.
    pub(super) fn tally(&self, name: RuleName) -> Option<Arc<Tally>> {
        let index = self.rules.index(&name)?;
        self.prepared_rules.get(index).map(|rule| Arc::clone(&rule.tally))
    }

    /// The decision counts of each rule, in order.
    pub(super) fn tallies(&self) -> impl Iterator<Item = (RuleName, &Tally)> {
        self.rules
            .rules()
            .iter()
            .zip(&self.prepared_rules)
            .map(|(rule, prepared)| (rule.name(), &*prepared.tally))
    }
}

/// Whether the fast path can decide on a rule's budgets. It charges each limit by itself, and only
/// if the request is admitted. The identity of an inline window has its period, and a global
/// budget's is prepared.
fn is_fast(rule: &Rule) -> bool {
    let is_special = rule.is_inline() && (rule.needs_reports() || rule.key_attributes().is_empty());
    rule.overflow_rule().is_none() && !rule.records_denied() && !is_special
}

impl PlainRules {
    fn new(rules: &RuleSet, prepared_rules: &[PreparedRule]) -> Option<Self> {
        let (rules, mut words) = (rules.plain().filter(|rules| rules.len() <= TAGS_MAX)?, 0_usize);
        let mut plain = rules.iter().zip(prepared_rules).map(|(rule, prepared)| {
            let lookup = prepared.budgets.first()?.lookup.clone()?;
            words = words.saturating_add(lookup.words);
            (words <= WORDS_MAX).then(|| PlainRule { by_client: rule.is_by_client(), lookup })
        });
        let (first, others): (_, Box<[_]>) = (plain.next()??, plain.collect::<Option<_>>()?);
        let bucket = first.lookup.bucket().filter(|_| others.is_empty());
        let width = first.lookup.width;
        let width = if others.iter().all(|rule| rule.lookup.width == width) { width } else { 0 };
        Some(Self { bucket, width, first, others })
    }

    /// Whether the first budget of a request can be located: see [`locate`](Self::locate).
    pub(super) fn covers(&self, request: &Request<'_>) -> bool {
        let has_client = || request.only_client().is_some_and(|client| Subject::Client(client).is_valid());
        request.valid_cost().is_some() && request.is_unscoped() && (!self.first.by_client || has_client())
    }

    /// Locates the budgets of a request under these `N` rules, whose states have `W` words. `None`
    /// if the request has to be searched for.
    #[inline(always)]
    pub(super) fn locate<'a, const N: usize, const W: usize>(
        &'a self,
        memory: &'a MemoryStore,
        request: &Request<'_>,
    ) -> Option<[Target<'a>; N]> {
        let cost = request.valid_cost().filter(|_| request.is_unscoped())?;
        let mut targets = [self.first.locate::<W>(memory, request, cost)?; N];
        for (target, rule) in targets.iter_mut().skip(1).zip(&self.others) {
            *target = rule.locate::<W>(memory, request, cost)?;
        }
        Some(targets)
    }
}

impl PlainRule {
    #[inline(always)]
    fn locate<'a, const W: usize>(
        &'a self,
        memory: &'a MemoryStore,
        request: &Request<'_>,
        cost: u64,
    ) -> Option<Target<'a>> {
        let subject = if self.by_client { Subject::Client(request.only_client()?) } else { Subject::Global };
        subject.is_valid().then(|| memory.target::<W>(&self.lookup, subject, None, cost))
    }
}
