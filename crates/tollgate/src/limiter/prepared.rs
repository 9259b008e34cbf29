//! The rules in force, prepared for requests, and read by every request without writing anything
//! that another thread reads.
//!
//! Rules change rarely and are read all the time. Each thread keeps the set that it used last, and
//! one load of a version number says whether that is still the one in force. Only after a change,
//! or when a thread goes from one limiter to another, is the shared pointer read, under a lock.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::memory::Aim;
use crate::rule::{Covered, Tag};
use crate::stats::Tally;
use crate::{Budget, Limit, MemoryStore, Rule, RuleName, RuleSet};

/// The rules in force.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(super) rules: RuleSet,
    each: Vec<PreparedRule>,
}

/// The one rule of a set, if it covers everyone alike and there is nothing to look for.
#[derive(Debug)]
pub(super) struct Plain {
    /// Whether it counts by client; otherwise by nothing.
    pub(super) by_client: bool,
    pub(super) aim: Aim,
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
    fn new(tag: Tag, memory: Option<&MemoryStore>, tally: &Arc<Tally>) -> Self {
        Self { tag, aim: memory.map(|memory| memory.aim(tag, Arc::clone(tally))) }
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
            let tally = before.and_then(|before| before.tally(name)).unwrap_or_default();
            let budget = |tag| PreparedBudget::new(tag, memory, &tally);
            let budgets: Vec<_> = rules.limited(rule).map(|limited| budget(tag(limited))).collect();
            let inline_count = rule.is_inline().then(|| budget(count(Duration::ZERO)));
            PreparedRule { tally, budgets, inline_count }
        };
        let each = rules.rules().iter().map(prepare).collect();
        Self { rules, each }
    }

    fn plain(&self) -> Option<Plain> {
        let (rule, prepared) = self.rules.plain().zip(self.each.first())?;
        let aim = prepared.budgets.first()?.aim.clone()?;
        let plain = Plain { by_client: rule.is_by_client(), aim };
        (plain.by_client || rule.key_attributes().is_empty()).then_some(plain)
    }

    /// A rule that covers a request, and the budget that the request draws on.
    #[inline]
    pub(super) fn get(&self, covered: Covered, inline: Option<&Limit>) -> Option<(&Rule, &PreparedBudget)> {
        let (rule, prepared) = (self.rules.rules().get(covered.rule)?, self.each.get(covered.rule)?);
        let counts = |limit: &Limit| matches!(limit.0, crate::limit::Kind::InlineWindow(_));
        let budget = match &prepared.inline_count {
            Some(count) if inline.is_some_and(counts) => count,
            _ => prepared.budgets.get(covered.replacement.map_or(0, |index| index.saturating_add(1)))?,
        };
        Some((rule, budget))
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
    /// Which of `plains` is in force, if one is.
    plain: AtomicUsize,
    /// The plain rules that there have been: few, and kept, so that nobody has to say for how long
    /// one is used.
    plains: Box<[OnceLock<Plain>; PLAINS]>,
    prepared: Mutex<Arc<Prepared>>,
    /// Different for every set of rules of every limiter of the process.
    version: AtomicU64,
}

/// How many plain rules a limiter keeps. Whoever changes rules more often than that has them looked
/// for as if there were several.
const PLAINS: usize = 64;

/// What a thread used last.
struct Last {
    prepared: Arc<Prepared>,
    version: u64,
}

thread_local!(static LAST: Cell<Option<Last>> = const { Cell::new(None) });

impl Current {
    pub(super) fn new(rules: RuleSet, memory: Option<&MemoryStore>) -> Self {
        let prepared = Prepared::new(rules, memory, None);
        let current = Self {
            plain: AtomicUsize::new(PLAINS),
            plains: Box::new([const { OnceLock::new() }; PLAINS]),
            prepared: Mutex::new(Arc::new(Prepared { rules: RuleSet::default(), each: Vec::new() })),
            version: AtomicU64::new(0),
        };
        current.put(prepared);
        current
    }

    /// The rule in force, if there is one that covers everyone alike.
    #[inline(always)]
    pub(super) fn plain(&self) -> Option<&Plain> {
        self.plains.get(self.plain.load(Ordering::Acquire))?.get()
    }

    /// The rules in force.
    #[inline]
    pub(super) fn load(&self) -> Used {
        let version = self.version.load(Ordering::Acquire);
        // Taken out while it is used: whoever asks again from within reads the pointer.
        match LAST.try_with(Cell::take).unwrap_or_default() {
            Some(last) if last.version == version => Used(last),
            other => self.read(version, other),
        }
    }

    /// Other rules from now on.
    pub(super) fn replace(&self, rules: RuleSet, memory: Option<&MemoryStore>) {
        let before = Arc::clone(&self.prepared.lock().unwrap_or_else(PoisonError::into_inner));
        self.put(Prepared::new(rules, memory, Some(&before)));
    }

    fn put(&self, new: Prepared) {
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        let plain = new.plain();
        *prepared = Arc::new(new);
        // After the pointer: whoever sees the new version sees the new rules.
        self.version.store(next_version(), Ordering::Release);
        let place = plain.and_then(|plain| {
            let same = |known: &OnceLock<Plain>| known.get().is_none_or(|known| known.is_same(&plain));
            let place = self.plains.iter().position(same)?;
            self.plains.get(place)?.get_or_init(|| plain);
            Some(place)
        });
        self.plain.store(place.unwrap_or(PLAINS), Ordering::Release);
    }

    #[cold]
    fn read(&self, version: u64, other: Option<Last>) -> Used {
        drop(other);
        let prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        Used(Last { version, prepared: Arc::clone(&prepared) })
    }
}

impl Plain {
    fn is_same(&self, other: &Self) -> bool {
        self.by_client == other.by_client && self.aim.is_same(&other.aim)
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
