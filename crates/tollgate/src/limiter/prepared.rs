//! The rules in force, prepared for requests, and read by every request without writing anything
//! that another thread reads.
//!
//! Rules change rarely and are read all the time. Each thread keeps the set that it used last, and
//! one load of a version number says whether that is still the one in force. Only after a change,
//! or when a thread goes from one limiter to another, is the shared pointer read, under a lock.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::memory::Aim;
use crate::rule::{Covered, Tag};
use crate::stats::Tally;
use crate::{Budget, Limit, MemoryStore, Request, Rule, RuleName, RuleSet};

/// The rules in force.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) rules: RuleSet,
    each: Vec<PreparedRule>,
}

/// One rule, with its running counts and its budgets: its own, and its overrides' in their order.
#[derive(Debug)]
pub(super) struct PreparedRule {
    pub(super) tally: Arc<Tally>,
    budgets: Vec<PreparedBudget>,
    /// For windows that come with requests.
    inline_count: Option<PreparedBudget>,
}

/// A budget under the limits that are in force for it.
#[derive(Debug)]
pub(super) struct PreparedBudget {
    pub(super) tag: Tag,
    /// Where a memory store looks for its states.
    pub(super) aim: Option<Aim>,
}

impl PreparedBudget {
    fn new(tag: Tag, memory: Option<&MemoryStore>) -> Self {
        Self { tag, aim: memory.map(|memory| memory.aim(tag)) }
    }
}

impl Prepared {
    /// Gets ready for requests. Rules that keep their names keep their counts.
    fn new(rules: RuleSet, memory: Option<&MemoryStore>, before: Option<&Self>) -> Self {
        let prepare = |rule: &Rule| {
            if let Some(memory) = memory {
                memory.bound(rule.name(), rule.key_bound());
            }
            let (name, cost) = (rule.name(), rule.unit_cost());
            let count = |period| Tag::inline(name, Budget::InlineCount(period), cost);
            let tag = |(budget, limits)| match rule.is_inline() {
                true => Tag::inline(name, budget, cost),
                false => Tag::new(name, budget, limits, cost),
            };
            let budgets = rules.limited(rule).map(|limited| PreparedBudget::new(tag(limited), memory));
            let inline_count =
                rule.is_inline().then(|| PreparedBudget::new(count(std::time::Duration::ZERO), memory));
            let tally = before.and_then(|before| before.tally(name)).unwrap_or_default();
            PreparedRule { tally, budgets: budgets.collect(), inline_count }
        };
        let each = rules.rules().iter().map(prepare).collect();
        Self { rules, each }
    }

    /// A rule that covers a request, and the budget that the request draws on.
    #[inline]
    pub(super) fn get(
        &self,
        covered: Covered,
        inline: Option<&Limit>,
    ) -> Option<(&Rule, &PreparedRule, &PreparedBudget)> {
        let (rule, prepared) = (self.rules.rules().get(covered.rule)?, self.each.get(covered.rule)?);
        let counts = |limit: &Limit| matches!(limit.0, crate::limit::Kind::InlineWindow(_));
        let budget = match &prepared.inline_count {
            Some(count) if inline.is_some_and(counts) => count,
            _ => prepared.budgets.get(covered.replacement.map_or(0, |index| index.saturating_add(1)))?,
        };
        Some((rule, prepared, budget))
    }

    /// The one rule of the set, if it covers every request and there is nothing to look for.
    #[inline]
    pub(super) fn plain(&self, request: &Request<'_>) -> Option<(&Rule, &PreparedRule, &PreparedBudget)> {
        let rule = self.rules.plain().filter(|_| request.is_unscoped())?;
        let prepared = self.each.first()?;
        Some((rule, prepared, prepared.budgets.first()?))
    }

    /// The counts of a rule.
    pub(super) fn tally(&self, name: RuleName) -> Option<Arc<Tally>> {
        let index = self.rules.index(&name)?;
        self.each.get(index).map(|rule| Arc::clone(&rule.tally))
    }

    /// The counts of each rule, in their order.
    pub(super) fn tallies(&self) -> impl Iterator<Item = (RuleName, &Tally)> {
        self.rules.rules().iter().zip(&self.each).map(|(rule, prepared)| (rule.name(), &*prepared.tally))
    }
}

/// Where a limiter keeps the rules in force.
#[derive(Debug)]
pub(super) struct Current {
    prepared: Mutex<Arc<Prepared>>,
    /// Different for every set of rules of every limiter of the process.
    version: AtomicU64,
}

/// What a thread used last.
struct Last {
    version: u64,
    prepared: Arc<Prepared>,
}

thread_local!(static LAST: Cell<Option<Last>> = const { Cell::new(None) });

impl Current {
    pub(super) fn new(rules: RuleSet, memory: Option<&MemoryStore>) -> Self {
        Self {
            prepared: Mutex::new(Arc::new(Prepared::new(rules, memory, None))),
            version: AtomicU64::new(next_version()),
        }
    }

    /// The rules in force.
    #[inline]
    pub(super) fn load(&self) -> Used {
        let version = self.version.load(Ordering::Acquire);
        // Taken out while it is used: whoever asks again from within reads the pointer.
        let last = LAST.try_with(Cell::take).unwrap_or_default();
        Used(match last {
            Some(last) if last.version == version => last,
            _ => self.read(version),
        })
    }

    /// Other rules from now on.
    pub(super) fn replace(&self, rules: RuleSet, memory: Option<&MemoryStore>) {
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        *prepared = Arc::new(Prepared::new(rules, memory, Some(&prepared)));
        // After the pointer: whoever sees the new version sees the new rules.
        self.version.store(next_version(), Ordering::Release);
    }

    #[cold]
    fn read(&self, version: u64) -> Last {
        let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        Last { version, prepared: Arc::clone(&prepared) }
    }
}

/// The rules in force, as a thread uses them.
pub(super) struct Used(Last);

impl Used {
    /// Keeps them for the thread's next request.
    #[inline]
    pub(super) fn put_back(self) {
        let _ = LAST.try_with(|kept| kept.set(Some(self.0)));
    }
}

impl Deref for Used {
    type Target = Prepared;

    #[inline]
    fn deref(&self) -> &Prepared {
        &self.0.prepared
    }
}

fn next_version() -> u64 {
    static VERSIONS: AtomicU64 = AtomicU64::new(0);
    VERSIONS.fetch_add(1, Ordering::Relaxed)
}
