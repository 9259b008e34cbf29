//! The active rules, prepared for requests. Reading them writes nothing that another thread reads.
//!
//! Rules change rarely and are read by every request. Each thread caches the rules it used last,
//! and one load of a version number tells whether they are still active. The shared pointer is
//! read, under a lock, only after a change or when a thread switches between limiters.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::plain::{PlainInline, PlainRule, PlainRules};
use super::snapshot::{RulesSnapshot, entered};
use crate::decision::{TAGS_MAX, WORDS_MAX};
use crate::memory::Lookup;
use crate::rule::{Covered, Tag};
use crate::stats::Tally;
use crate::{Budget, Limit, MemoryStore, Request, Rule, RuleName, RuleSet};

/// The active rules with their precomputed lookups.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) rules: RuleSet,
    prepared_rules: Vec<PreparedRule>,
}

/// A rule with its decision counts and its budgets: the rule's first, then its overrides' in order.
#[derive(Debug)]
pub(super) struct PreparedRule {
    pub(super) tally: Arc<Tally>,
    budgets: Vec<PreparedBudget>,
    /// The budgets of inline windows and of inline slots.
    inline: Option<(PreparedBudget, PreparedBudget)>,
}

/// A budget and the limits in force for it.
#[derive(Debug)]
pub(super) struct PreparedBudget {
    pub(super) tag: Tag,
    /// The lookup of its states in a memory store.
    pub(super) lookup: Option<Lookup>,
}

impl PreparedBudget {
    fn new(tag: Tag, memory: Option<&MemoryStore>, rule: &Rule, tally: &Arc<Tally>) -> Self {
        Self { tag, lookup: memory.map(|memory| memory.lookup(tag, rule, Arc::clone(tally))) }
    }
}

impl Prepared {
    /// Prepares rules. A rule that keeps its name keeps its counts.
    fn new(rules: RuleSet, memory: Option<&MemoryStore>, before: Option<&Self>) -> Self {
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
            // The fast path charges each limit by itself: without a lookup, the slow path decides.
            let memory = memory.filter(|_| rule.overflow_rule().is_none());
            let budget = |tag| PreparedBudget::new(tag, memory, rule, &tally);
            let budgets: Vec<_> = rules.budgets(rule).map(|limits| budget(tag(limits))).collect();
            let inline = rule.is_inline().then(|| {
                let counts = inline(Budget::InlineCount(Duration::ZERO));
                (budget(counts), budget(inline(Budget::InlineSlots)))
            });
            PreparedRule { tally, budgets, inline }
        };
        let prepared_rules = rules.rules().iter().map(prepare).collect();
        Self { rules, prepared_rules }
    }

    fn plain(&self) -> Option<PlainRules> {
        let (rules, mut words) = (self.rules.plain().filter(|rules| rules.len() <= TAGS_MAX)?, 0_usize);
        let mut plain = rules.iter().zip(&self.prepared_rules).map(|(rule, prepared)| {
            let lookup = prepared.budgets.first()?.lookup.clone()?;
            words = words.saturating_add(lookup.words());
            let packs = lookup.width() > 0 && words <= WORDS_MAX;
            packs.then(|| PlainRule { by_client: rule.is_by_client(), lookup })
        });
        let (first, others): (_, Box<[_]>) = (plain.next()??, plain.collect::<Option<_>>()?);
        let bucket = first.lookup.bucket().filter(|_| others.is_empty());
        let width = first.lookup.width();
        let width = if others.iter().all(|rule| rule.lookup.width() == width) { width } else { 0 };
        Some(PlainRules { bucket, width, first, others, inline: self.plain_inline() })
    }

    /// The inline rules that count by client.
    fn plain_inline(&self) -> Box<[PlainInline]> {
        let inline = self.rules.rules().iter().zip(&self.prepared_rules).filter_map(|(rule, prepared)| {
            let lookup = |budget: &PreparedBudget| budget.lookup.clone();
            let buckets = prepared.budgets.first().and_then(lookup)?;
            let windows = prepared.inline.as_ref().and_then(|(windows, _)| lookup(windows))?;
            let is_plain = self.rules.is_unconditional(rule) && rule.is_by_client();
            is_plain.then(|| PlainInline { name: rule.name(), lookups: [buckets, windows] })
        });
        inline.collect()
    }

    /// The rule that covers a request, and the budget that the request draws on.
    #[inline]
    pub(super) fn get(&self, covered: Covered, inline: Option<&Limit>) -> Option<(&Rule, &PreparedBudget)> {
        let (rule, prepared) =
            (self.rules.rules().get(covered.rule)?, self.prepared_rules.get(covered.rule)?);
        let counts = |limit: &Limit| matches!(limit.0, crate::limit::Kind::InlineWindow(_));
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

/// The active rules of a limiter.
#[derive(Debug)]
pub(super) struct ActiveRules {
    /// The index in `all_plain` of the active ones; [`PLAIN_MAX`] if the active rules are not
    /// plain.
    plain: AtomicUsize,
    /// All plain rules so far. They are kept for the limiter's life, so that a reference needs no
    /// count.
    all_plain: Box<[OnceLock<PlainRules>; PLAIN_MAX]>,
    prepared: Mutex<Arc<Prepared>>,
    /// Unique to every limiter in the process.
    id: u64,
    /// Unique to every rule set of every limiter in the process.
    version: AtomicU64,
}

/// The most sets of plain rules, with their inline rules, that a limiter keeps. Those beyond that
/// are searched like others.
const PLAIN_MAX: usize = 64;

/// The version of a snapshot's rules, which no active rules have.
const SNAPSHOT: u64 = u64::MAX;

/// The rules a thread used last.
pub(super) struct CachedRules {
    prepared: Arc<Prepared>,
    version: u64,
}

thread_local!(static CACHED: Cell<Option<CachedRules>> = const { Cell::new(None) });

/// Replaces the rules that this thread has cached, and returns them.
pub(super) fn swap_cached(rules: Option<CachedRules>) -> Option<CachedRules> {
    CACHED.try_with(|cached| cached.replace(rules)).unwrap_or_default()
}

impl ActiveRules {
    pub(super) fn new(rules: RuleSet, memory: Option<&MemoryStore>) -> Self {
        let prepared = Arc::new(Prepared::new(rules, memory, None));
        let active = Self {
            plain: AtomicUsize::new(PLAIN_MAX),
            all_plain: Box::new([const { OnceLock::new() }; PLAIN_MAX]),
            prepared: Mutex::new(Arc::clone(&prepared)),
            id: next_version(),
            version: AtomicU64::new(next_version()),
        };
        active.activate_plain(&prepared);
        active
    }

    /// The rules of the entered snapshot or, without one, the active rules, if they are plain. A
    /// snapshot of older rules counts as not plain.
    pub(super) fn plain_in_snapshot(&self) -> Option<&PlainRules> {
        // The version is read last: a change sets it first.
        let plain = self.plain();
        let is_older = |snapshot: &RulesSnapshot| snapshot.version != self.version.load(Ordering::Acquire);
        plain.filter(|_| !entered(self.id, is_older).unwrap_or(false))
    }

    /// The active rules, if they are plain.
    #[inline(always)]
    pub(super) fn plain(&self) -> Option<&PlainRules> {
        self.all_plain.get(self.plain.load(Ordering::Acquire))?.get()
    }

    /// The active rules.
    pub(super) fn load(&self) -> RulesGuard {
        let version = self.version.load(Ordering::Acquire);
        // The cache is taken out during use: a nested call reads the shared pointer.
        let cached = swap_cached(None);
        RulesGuard(cached.filter(|cached| cached.version == version).or_else(|| Some(self.read(version))))
    }

    /// Replaces the rules.
    pub(super) fn replace(&self, rules: RuleSet, memory: Option<&MemoryStore>) {
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        *prepared = Arc::new(Prepared::new(rules, memory, Some(&prepared)));
        // Stored after the pointer: a thread that sees the new version sees the new rules.
        self.version.store(next_version(), Ordering::Release);
        self.activate_plain(&prepared);
    }

    fn activate_plain(&self, prepared: &Prepared) {
        let index = prepared.plain().and_then(|plain| {
            let same = |known: &OnceLock<PlainRules>| known.get().is_none_or(|known| known.same(&plain));
            let index = self.all_plain.iter().position(same)?;
            self.all_plain.get(index)?.get_or_init(|| plain);
            Some(index)
        });
        self.plain.store(index.unwrap_or(PLAIN_MAX), Ordering::Release);
    }

    /// A snapshot of the active rules.
    pub(super) fn snapshot(&self) -> RulesSnapshot {
        let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let version = self.version.load(Ordering::Acquire);
        RulesSnapshot { limiter: self.id, version, prepared: Arc::clone(&prepared) }
    }

    #[cold]
    fn read(&self, version: u64) -> CachedRules {
        match entered(self.id, |snapshot| Arc::clone(&snapshot.prepared)) {
            Some(prepared) => CachedRules { version: SNAPSHOT, prepared },
            None => CachedRules { version, prepared: self.snapshot().prepared },
        }
    }
}

/// The active rules, borrowed by a thread. Dropped, they are cached for the thread's next request.
pub(super) struct RulesGuard(Option<CachedRules>);

impl Drop for RulesGuard {
    fn drop(&mut self) {
        drop(swap_cached(self.0.take()));
    }
}

impl Deref for RulesGuard {
    type Target = Prepared;

    #[expect(clippy::expect_used, reason = "`load` sets it, and only `drop` takes it")]
    fn deref(&self) -> &Prepared {
        &self.0.as_ref().expect("set until the guard is dropped").prepared
    }
}

fn next_version() -> u64 {
    static VERSIONS: AtomicU64 = AtomicU64::new(0);
    VERSIONS.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Limiter};

    #[test]
    fn d1_a_thread_caches_the_rules_it_used_however_the_request_ended() {
        let limiter = Limiter::new(Limit::sliding_log(10, crate::MINUTE));
        let active = &limiter.shared.rules;
        let holders = || Arc::strong_count(&active.prepared.lock().unwrap());
        assert_eq!(holders(), 1, "nobody asked yet");
        assert!(limiter.check("alice").unwrap().allowed());
        assert_eq!(holders(), 2, "the limiter and this thread");
        assert!(matches!(limiter.check(""), Err(Error::InvalidKey { .. })));
        assert!(crate::block_on(limiter.check_async("alice")).unwrap().allowed());
        assert!(crate::block_on(limiter.check_all(&["alice", "bob"])).unwrap().whole().allowed());
        assert_eq!(holders(), 2);
    }
}
