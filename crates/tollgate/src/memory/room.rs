//! Capacity: how many keys are kept, how many may be, and what happens when there is no room.
//!
//! The whole store is bounded, and a rule can have a lower bound: a client that can name keys
//! freely cannot use up the room of other rules. A global budget needs no room, so a flood of
//! clients cannot crowd it out.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::shard::Shard;
use super::{MemoryStore, Padded};
use crate::rule::Tag;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{RuleName, Timestamp};

/// Nanoseconds between two searches for idle keys while new keys are denied: one millisecond.
const SEARCH_INTERVAL_NANOS: u64 = 1_000_000;

/// Nanoseconds for which a denial repeats the last known `retry_after`: computing it walks all
/// keys.
const NEXT_IDLE_INTERVAL_NANOS: u64 = 100_000_000;

/// What happens to a new key when every slot is busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// Deny it.
    #[default]
    Deny,
    /// Let it draw on a pool, one budget shared by all new keys of the rule.
    Pool,
}

/// The number of keys kept and its bounds.
#[derive(Debug)]
pub(super) struct Room {
    /// Keys kept, and room reserved by requests under way.
    pub(super) all: KeyCount,
    pub(super) reclaimed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) pooled: AtomicU64,
    /// When idle keys were last searched for because there was no room.
    searched_at: AtomicU64,
    rules: RwLock<HashMap<RuleName, Arc<KeyCount>>>,
}

/// The number of keys of the whole store, or of one rule, and its bound.
#[derive(Debug)]
pub(crate) struct KeyCount {
    live: AtomicU64,
    max: AtomicU64,
    /// When `next_idle` was last computed.
    next_idle_computed_at: AtomicU64,
    /// When the first busy key turns idle.
    next_idle: AtomicU64,
}

impl KeyCount {
    fn new(max: u64) -> Self {
        let [live, next_idle_computed_at, next_idle] = [0; 3].map(AtomicU64::new);
        Self { live, max: AtomicU64::new(max), next_idle_computed_at, next_idle }
    }

    pub(super) fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    pub(super) fn bound(&self, max: u64) {
        self.max.store(max, Ordering::Relaxed);
    }

    fn has_room(&self) -> bool {
        self.live() < self.max.load(Ordering::Relaxed)
    }

    fn take(&self, is_bounded: bool) -> bool {
        let max = if is_bounded { self.max.load(Ordering::Relaxed) } else { u64::MAX };
        let more = |live: u64| live.checked_add(1).filter(|live| *live <= max);
        self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn release(&self, keys: u64) {
        self.live.fetch_sub(keys, Ordering::Relaxed);
    }
}

/// The number of forgotten keys, by rule.
#[derive(Debug, Default)]
pub(super) struct Freed(Vec<(RuleName, u64)>);

impl Freed {
    pub(super) fn add(&mut self, tag: Tag) {
        match self.0.iter_mut().find(|(rule, _)| *rule == tag.rule) {
            Some((_, keys)) => *keys = keys.saturating_add(1),
            None => self.0.push((tag.rule, 1)),
        }
    }

    pub(super) fn keys(&self) -> u64 {
        self.0.iter().map(|(_, keys)| keys).sum()
    }
}

impl Room {
    pub(super) fn new(max: u64) -> Self {
        let [reclaimed, refused, pooled, searched_at] = [0; 4].map(AtomicU64::new);
        Self { all: KeyCount::new(max), reclaimed, refused, pooled, searched_at, rules: RwLock::default() }
    }

    /// The key count of a rule.
    pub(super) fn of(&self, rule: RuleName) -> Arc<KeyCount> {
        let known = self.rules.read().unwrap_or_else(PoisonError::into_inner).get(&rule).cloned();
        known.unwrap_or_else(|| {
            let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(rules.entry(rule).or_insert_with(|| Arc::new(KeyCount::new(u64::MAX))))
        })
    }

    /// The number of keys of each rule.
    pub(super) fn by_rule(&self) -> Vec<(RuleName, u64)> {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.iter().map(|(rule, count)| (*rule, count.live())).collect()
    }

    /// Whether there is room for one more key of a rule.
    pub(super) fn has_room(&self, rule: &KeyCount) -> bool {
        self.all.has_room() && rule.has_room()
    }

    /// Reserves room for one more key of a rule. For a key that is exempt from the bounds there
    /// always is room.
    pub(super) fn take(&self, rule: &KeyCount, is_bounded: bool) -> bool {
        if !rule.take(is_bounded) {
            return false;
        }
        let taken = self.all.take(is_bounded);
        if !taken {
            rule.release(1);
        }
        taken
    }

    /// Releases the room of a key.
    pub(super) fn release(&self, rule: &KeyCount) {
        rule.release(1);
        self.all.release(1);
    }

    /// Releases the room of the keys that `forget` forgets, and returns how many there were.
    pub(super) fn reclaim(&self, forget: impl FnOnce(&mut Freed)) -> u64 {
        let mut freed = Freed::default();
        forget(&mut freed);
        for (rule, keys) in &freed.0 {
            self.of(*rule).release(*keys);
        }
        let keys = freed.keys();
        self.all.release(keys);
        self.reclaimed.fetch_add(keys, Ordering::Relaxed);
        keys
    }
}

impl MemoryStore {
    /// Forgets every idle key, a shard at a time, and returns how many there were.
    pub fn reclaim(&self, now: Timestamp) -> u64 {
        self.forget(|shard, freed| shard.reclaim(now, freed))
    }

    /// Makes room for one more key of a rule by forgetting idle keys, at most once per millisecond.
    /// Returns whether there is room.
    pub(super) fn search(&self, rule: &KeyCount, now: Timestamp) -> bool {
        let searched_at = self.room.searched_at.load(Ordering::Relaxed);
        if now.as_nanos().abs_diff(searched_at) >= SEARCH_INTERVAL_NANOS {
            self.room.searched_at.store(now.as_nanos(), Ordering::Relaxed);
            self.reclaim(now);
        }
        self.room.has_room(rule)
    }

    /// When there may be room for one more key of a rule: when the first busy key turns idle, if no
    /// other new key takes its room.
    pub(super) fn room_at(&self, name: RuleName, rule: &KeyCount, now: Timestamp) -> Timestamp {
        let (count, name) = if rule.has_room() { (&self.room.all, None) } else { (rule, Some(name)) };
        let next_idle_computed_at = count.next_idle_computed_at.load(Ordering::Relaxed);
        if now.as_nanos().abs_diff(next_idle_computed_at) >= NEXT_IDLE_INTERVAL_NANOS {
            count.next_idle_computed_at.store(now.as_nanos(), Ordering::Relaxed);
            let next = self.shards.iter().map(|shard| shard.0.lock().next_idle_of(name)).min();
            count.next_idle.store(next.unwrap_or(0), Ordering::Relaxed);
        }
        Timestamp::from_nanos(count.next_idle.load(Ordering::Relaxed))
    }

    /// Forgets every key of a rule, idle or busy, and returns how many there were.
    pub fn clear(&self, rule: &str) -> u64 {
        let rule = RuleName::intern(rule);
        self.forget(|shard, freed| shard.clear(rule, freed))
    }

    /// Forgets keys, a shard at a time, and returns how many there were.
    fn forget(&self, forget: impl Fn(&mut Shard, &mut Freed)) -> u64 {
        let forget = |shard: &Padded| self.room.reclaim(|freed| forget(&mut shard.0.lock(), freed));
        self.shards.iter().map(forget).sum()
    }
}
