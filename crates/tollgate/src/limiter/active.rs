//! The active rules of a limiter. Reading them writes nothing that another thread reads.
//!
//! Rules change rarely and are read by every request. [Plain](Prepared::plain) rules are kept for
//! the limiter's life, so that a reference needs no count. Of others, each thread caches those that
//! it used last, and one load of a version number tells whether they are still active. The shared
//! pointer is read, under a lock, only after a change or when a thread switches between limiters.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::prepared::Prepared;
use super::snapshot::{RulesSnapshot, entered};
use crate::{MemoryStore, RuleSet};

/// The active rules of a limiter.
#[derive(Debug)]
pub(super) struct ActiveRules {
    /// The index in `all_kept` of the active rules; [`KEPT_MAX`] if they are not kept.
    kept: AtomicUsize,
    /// All kept rules so far, by value: a check follows one pointer.
    all_kept: Box<[OnceLock<Prepared>; KEPT_MAX]>,
    prepared: Mutex<Arc<Prepared>>,
    /// Unique to every limiter in the process.
    id: u64,
    /// Unique to every rule set of every limiter in the process.
    version: AtomicU64,
}

/// The most rule sets that a limiter keeps, and the most rules of one that is kept.
const KEPT_MAX: usize = 64;

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
            kept: AtomicUsize::new(KEPT_MAX),
            all_kept: Box::new([const { OnceLock::new() }; KEPT_MAX]),
            prepared: Mutex::new(Arc::clone(&prepared)),
            id: next_version(),
            version: AtomicU64::new(next_version()),
        };
        active.keep(&prepared);
        active
    }

    pub(super) const fn id(&self) -> u64 {
        self.id
    }

    /// The active rules, if they are kept.
    #[inline(always)]
    pub(super) fn kept(&self) -> Option<&Prepared> {
        self.all_kept.get(self.kept.load(Ordering::Acquire))?.get()
    }

    /// The active rules.
    pub(super) fn current(&self) -> Rules<'_> {
        self.kept().map_or_else(|| self.load(), Rules::Kept)
    }

    /// The active rules, if they are kept and no snapshot of older rules is entered.
    pub(super) fn kept_in_snapshot(&self) -> Option<&Prepared> {
        // The version is read last: a change sets it first.
        let kept = self.kept();
        let is_older = |snapshot: &RulesSnapshot| snapshot.version != self.version.load(Ordering::Acquire);
        kept.filter(|_| !entered(self.id, is_older).unwrap_or(false))
    }

    /// The rules of the entered snapshot or, without one, the active rules, as this thread caches
    /// them.
    pub(super) fn load(&self) -> Rules<'_> {
        let version = self.version.load(Ordering::Acquire);
        // The cache is taken out during use: a nested call reads the shared pointer.
        let cached = swap_cached(None);
        Rules::Cached(cached.filter(|cached| cached.version == version).or_else(|| Some(self.read(version))))
    }

    /// Replaces the rules.
    pub(super) fn replace(&self, rules: RuleSet, memory: Option<&MemoryStore>) {
        let mut prepared = self.prepared.lock().unwrap_or_else(PoisonError::into_inner);
        *prepared = Arc::new(Prepared::new(rules, memory, Some(&prepared)));
        // Stored after the pointer: a thread that sees the new version sees the new rules.
        self.version.store(next_version(), Ordering::Release);
        self.keep(&prepared);
    }

    /// Keeps the active rules if they are plain, few and without overrides: kept rules are never
    /// freed.
    fn keep(&self, prepared: &Prepared) {
        let is_small =
            prepared.rules.rules().len() <= KEPT_MAX && prepared.rules.overrides().next().is_none();
        let is_kept = prepared.plain.is_some() && is_small;
        let same = |known: &OnceLock<Prepared>| known.get().is_none_or(|known| known.same(prepared));
        let index = if is_kept { self.all_kept.iter().position(same) } else { None };
        let slot = index.and_then(|index| self.all_kept.get(index));
        slot.map(|kept| kept.get_or_init(|| prepared.clone()));
        self.kept.store(index.unwrap_or(KEPT_MAX), Ordering::Release);
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

/// Rules, borrowed by a request.
pub(super) enum Rules<'a> {
    Kept(&'a Prepared),
    /// The thread's cached rules. Dropped, they are cached again.
    Cached(Option<CachedRules>),
}

impl Drop for Rules<'_> {
    fn drop(&mut self) {
        if let Rules::Cached(cached) = self {
            drop(swap_cached(cached.take()));
        }
    }
}

impl Deref for Rules<'_> {
    type Target = Prepared;

    #[expect(clippy::expect_used, reason = "`load` sets it, and only `drop` takes it")]
    fn deref(&self) -> &Prepared {
        match self {
            Rules::Kept(kept) => kept,
            Rules::Cached(cached) => &cached.as_ref().expect("set until they are dropped").prepared,
        }
    }
}

fn next_version() -> u64 {
    static VERSIONS: AtomicU64 = AtomicU64::new(0);
    VERSIONS.fetch_add(1, Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Limit, Limiter};

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
