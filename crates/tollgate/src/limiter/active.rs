//! The rules in force, read by every request without writing anything that another thread reads.
//!
//! Rules change rarely and are read all the time. Each thread keeps the set that it used last, and
//! one load of a version number says whether that is still the one in force. Only after a change,
//! or when a thread goes from one limiter to another, is the shared pointer read, under a lock.

use std::cell::Cell;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::stats::Tally;
use crate::{RuleName, RuleSet};

/// The rules in force, with their running counts.
#[derive(Debug)]
pub(super) struct Active {
    pub(super) rules: RuleSet,
    pub(super) tallies: Vec<Arc<Tally>>,
}

/// Where a limiter keeps them.
#[derive(Debug)]
pub(super) struct Current {
    active: Mutex<Arc<Active>>,
    /// Different for every set of rules of every limiter of the process.
    version: AtomicU64,
}

/// What a thread used last.
struct Last {
    version: u64,
    active: Arc<Active>,
}

thread_local!(static LAST: Cell<Option<Last>> = const { Cell::new(None) });

impl Current {
    pub(super) fn new(rules: RuleSet) -> Self {
        let tallies = rules.rules().iter().map(|_| Arc::default()).collect();
        Self {
            active: Mutex::new(Arc::new(Active { rules, tallies })),
            version: AtomicU64::new(next_version()),
        }
    }

    /// The rules in force.
    #[inline]
    pub(super) fn load(&self) -> Used {
        let version = self.version.load(Ordering::Acquire);
        // Taken out while it is used: whoever asks again from within reads the pointer.
        let last = LAST.try_with(Cell::take).unwrap_or_default();
        Used(Some(match last {
            Some(last) if last.version == version => last,
            _ => self.read(version),
        }))
    }

    /// Other rules from now on: those that keep their names keep their counts.
    pub(super) fn replace(&self, rules: &RuleSet) {
        let mut active = self.active.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = |name| active.tally(0, name).cloned().unwrap_or_default();
        let tallies = rules.rules().iter().map(|rule| kept(rule.name())).collect();
        *active = Arc::new(Active { rules: rules.clone(), tallies });
        // After the pointer: whoever sees the new version sees the new rules.
        self.version.store(next_version(), Ordering::Release);
    }

    #[cold]
    fn read(&self, version: u64) -> Last {
        Last { version, active: Arc::clone(&self.active.lock().unwrap_or_else(PoisonError::into_inner)) }
    }
}

/// The rules in force, as a thread uses them; put back when dropped.
pub(super) struct Used(Option<Last>);

impl Deref for Used {
    type Target = Active;

    #[inline]
    fn deref(&self) -> &Active {
        match &self.0 {
            Some(last) => &last.active,
            None => unreachable!("it is put back only when dropped"),
        }
    }
}

impl Drop for Used {
    #[inline]
    fn drop(&mut self) {
        let _ = LAST.try_with(|kept| kept.set(self.0.take()));
    }
}

impl Active {
    /// The counts of a rule, which is probably at `index`.
    pub(super) fn tally(&self, index: usize, name: RuleName) -> Option<&Arc<Tally>> {
        let rules = self.rules.rules();
        let there = rules.get(index).is_some_and(|rule| rule.name() == name);
        let index = if there { Some(index) } else { rules.iter().position(|rule| rule.name() == name) };
        self.tallies.get(index?)
    }
}

fn next_version() -> u64 {
    static VERSIONS: AtomicU64 = AtomicU64::new(0);
    VERSIONS.fetch_add(1, Ordering::Relaxed)
}
