//! Room: how many keys there are, how many there may be, and what becomes of one too many.
//!
//! The table as a whole is bounded, and a rule can be bounded by less: whoever may name keys freely
//! cannot take the others' room. The one budget of a rule that counts by nothing needs no room, so
//! that a flood of clients cannot crowd it out.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use super::MemoryStore;
use crate::rule::Tag;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{RuleName, Timestamp};

/// How long to go on denying newcomers before searching for idle keys again: a millisecond.
const BETWEEN_SEARCHES: u64 = 1_000_000;

/// How long to tell newcomers the same time to come back at, before finding out again: that means
/// going through all keys.
const BETWEEN_TELLINGS: u64 = 100_000_000;

/// What a new key gets when every slot is busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// A denial.
    #[default]
    Deny,
    /// A share in one budget for all new keys of the rule.
    Pool,
}

/// How many keys are kept, and how many may be.
#[derive(Debug)]
pub(super) struct Room {
    /// Keys in the tables, and room promised to requests under way.
    pub(super) all: Kept,
    pub(super) reclaimed: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) pooled: AtomicU64,
    rules: RwLock<HashMap<RuleName, Arc<Kept>>>,
}

/// The keys of the whole table, or of one rule.
#[derive(Debug)]
pub(crate) struct Kept {
    live: AtomicU64,
    most: AtomicU64,
    /// When idle ones were last searched for because there was no room.
    searched_at: AtomicU64,
    /// When it was last found out which of them turns idle first, and when that is.
    told_at: AtomicU64,
    next_idle: AtomicU64,
}

impl Kept {
    fn new(most: u64) -> Self {
        let [live, searched_at, told_at, next_idle] = [0; 4].map(AtomicU64::new);
        Self { live, most: AtomicU64::new(most), searched_at, told_at, next_idle }
    }

    pub(super) fn live(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }

    pub(super) fn bound(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }

    fn has_room(&self) -> bool {
        self.live() < self.most.load(Ordering::Relaxed)
    }

    fn take(&self) -> bool {
        let most = self.most.load(Ordering::Relaxed);
        let more = |live: u64| live.checked_add(1).filter(|live| *live <= most);
        self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    fn take_anyway(&self) {
        self.live.fetch_add(1, Ordering::Relaxed);
    }

    fn give(&self, keys: u64) {
        self.live.fetch_sub(keys, Ordering::Relaxed);
    }
}

/// Keys that were forgotten, by rule.
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
        self.0.iter().map(|(_, keys)| keys).fold(0, |sum, keys| sum.saturating_add(*keys))
    }
}

impl Room {
    pub(super) fn new(most: u64) -> Self {
        let [reclaimed, refused, pooled] = [0; 3].map(AtomicU64::new);
        Self { all: Kept::new(most), reclaimed, refused, pooled, rules: RwLock::default() }
    }

    /// The keys of a rule.
    pub(super) fn of(&self, rule: RuleName) -> Arc<Kept> {
        let known = self.rules.read().unwrap_or_else(PoisonError::into_inner).get(&rule).cloned();
        known.unwrap_or_else(|| {
            let mut rules = self.rules.write().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(rules.entry(rule).or_insert_with(|| Arc::new(Kept::new(u64::MAX))))
        })
    }

    /// How many keys each rule has.
    pub(super) fn by_rule(&self) -> Vec<(RuleName, u64)> {
        let rules = self.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.iter().map(|(rule, kept)| (*rule, kept.live())).collect()
    }

    /// Whether there is room for one more key of a rule.
    pub(super) fn has_room(&self, rule: &Kept) -> bool {
        self.all.has_room() && rule.has_room()
    }

    /// Takes room for one more key of a rule, if there is any.
    pub(super) fn take(&self, rule: &Kept) -> bool {
        if !rule.take() {
            return false;
        }
        let taken = self.all.take();
        if !taken {
            rule.give(1);
        }
        taken
    }

    /// Takes room for a key that needs none.
    pub(super) fn take_anyway(&self, rule: &Kept) {
        rule.take_anyway();
        self.all.take_anyway();
    }

    /// Gives back the room of a key.
    pub(super) fn give(&self, rule: &Kept) {
        rule.give(1);
        self.all.give(1);
    }

    /// Gives back the room of keys that were forgotten.
    pub(super) fn reclaim(&self, freed: &Freed) {
        for (rule, keys) in &freed.0 {
            self.of(*rule).give(*keys);
        }
        self.all.give(freed.keys());
        self.reclaimed.fetch_add(freed.keys(), Ordering::Relaxed);
    }
}

impl MemoryStore {
    /// Forgets every idle key, a shard at a time, and says how many there were.
    pub fn reclaim(&self, now: Timestamp) -> u64 {
        let mut sum = 0_u64;
        for shard in &self.shards {
            let mut freed = Freed::default();
            shard.0.lock().reclaim(now, &mut freed);
            self.room.reclaim(&freed);
            sum = sum.saturating_add(freed.keys());
        }
        sum
    }

    /// Makes room for one more key of a rule by forgetting idle ones: in a flood of newcomers, at
    /// most once in a while. Says whether there is room now.
    pub(super) fn search(&self, rule: &Kept, now: Timestamp) -> bool {
        let searched_at = self.room.all.searched_at.load(Ordering::Relaxed);
        if now.as_nanos().abs_diff(searched_at) >= BETWEEN_SEARCHES {
            self.room.all.searched_at.store(now.as_nanos(), Ordering::Relaxed);
            self.reclaim(now);
        }
        self.room.has_room(rule)
    }

    /// When there may be room for one more key of a rule, if nobody else takes it: when the first
    /// that is busy turns idle.
    pub(super) fn room_at(&self, name: RuleName, rule: &Kept, now: Timestamp) -> Timestamp {
        let (kept, name) = if rule.has_room() { (&self.room.all, None) } else { (rule, Some(name)) };
        let told_at = kept.told_at.load(Ordering::Relaxed);
        if now.as_nanos().abs_diff(told_at) >= BETWEEN_TELLINGS {
            kept.told_at.store(now.as_nanos(), Ordering::Relaxed);
            let next = self.shards.iter().map(|shard| shard.0.lock().next_idle_of(name)).min();
            kept.next_idle.store(next.unwrap_or(0), Ordering::Relaxed);
        }
        Timestamp::from_nanos(kept.next_idle.load(Ordering::Relaxed))
    }

    /// Forgets every key of a rule, whatever it has in use, and says how many there were.
    pub fn clear(&self, rule: &str) -> u64 {
        let rule = RuleName::intern(rule);
        let mut sum = 0_u64;
        for shard in &self.shards {
            let mut freed = Freed::default();
            shard.0.lock().clear(rule, &mut freed);
            self.room.reclaim(&freed);
            sum = sum.saturating_add(freed.keys());
        }
        sum
    }
}
