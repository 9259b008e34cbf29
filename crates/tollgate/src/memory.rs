//! The in-memory store: exact, concurrent, compact, and bounded by a number of keys.
//!
//! Keys are spread over shards, each behind a lock that is held for one request's arithmetic. A
//! request that touches several shards locks them in ascending order, so that requests in opposite
//! orders cannot wait for each other. In a shard, states lie packed in flat tables;
//! `ARCHITECTURE.md` has a drawing.
//!
//! Forgetting happens in passing: before a table grows for a new key, a few slots are searched for
//! ones that turned idle, and now and then a sweep goes through a shard, a few slots with each
//! request. Only what does not pack, which is rare, is gone through at once.
//!
//! Two threads may read the clock and then reach a shard in the opposite order. A shard therefore
//! takes a reading that is a little older than its newest ([`LATE`]) for that newest one.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use crate::algorithm::LATE;
use crate::store::{Applied, Charge, Op, Store, StoreError};
use crate::sync::Spin;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::{Algorithm, Error, Limit, Timestamp};

#[expect(
    clippy::arithmetic_side_effects,
    reason = "places and counts within one allocation; none comes near the width of its integer"
)]
mod changes;
#[cfg(feature = "dump")]
mod dump;
mod fast;
mod hash;
mod lone;
mod long;
#[expect(
    clippy::arithmetic_side_effects,
    reason = "places and counts within one allocation; none comes near the width of its integer"
)]
mod pages;
#[expect(
    clippy::arithmetic_side_effects,
    reason = "places and counts within one allocation; none comes near the width of its integer"
)]
mod shard;
#[expect(
    clippy::arithmetic_side_effects,
    reason = "places and counts within one allocation; none comes near the width of its integer"
)]
mod sweep;
#[expect(
    clippy::arithmetic_side_effects,
    reason = "places and counts within one allocation; none comes near the width of its integer"
)]
mod table;

pub(crate) use fast::{Aim, Subject};
use hash::Secrets;
use lone::Lone;
use long::{Group, Room};
pub use pages::Loader;
use shard::{Shard, Views};

const SHARDS: usize = if cfg!(shuttle) { 2 } else { 256 };

/// How long to go on denying newcomers before searching for idle keys again: a millisecond.
const BETWEEN_SEARCHES: u64 = 1_000_000;

/// How many slots the arrival of a new key looks at for ones that turned idle, before a table
/// grows.
const SWEPT_BY_NEW: usize = 16;

/// How many slots each request goes through while a sweep is under way.
const SWEPT_BY_EACH: usize = 8;

/// How many slots are gone through under one lock by whoever does nothing else.
const SWEPT_AT_ONCE: usize = 256;

/// What a new key gets when every slot is busy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFull {
    /// A denial.
    #[default]
    Deny,
    /// A share in one budget for all new keys of the rule.
    Pool,
}

/// The in-memory store.
///
/// ```
/// use tollgate::{Limit, Limiter, MemoryStore, Rule, RuleSet};
///
/// let rules = RuleSet::new([Rule::new("per-client", Limit::per_minute(10)).key(["client"])])?;
/// let limiter = Limiter::builder(rules).store(MemoryStore::new().max_keys(100_000)).build()?;
/// assert!(limiter.check("alice")?.allowed());
/// assert_eq!(limiter.stats().live_keys, Some(1));
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Debug)]
pub struct MemoryStore {
    shards: Box<[Padded]>,
    views: Arc<Views>,
    lones: Box<[Lone]>,
    secrets: Secrets,
    /// Keys in the tables, and room promised to requests under way.
    live: AtomicU64,
    /// When all shards were last searched for idle keys because there was no room.
    searched_at: AtomicU64,
    reclaimed: AtomicU64,
    refused: AtomicU64,
    pooled: AtomicU64,
    max_keys: u64,
    on_full: OnFull,
    log_ceiling: u64,
    sweep_interval: Duration,
    idle_for: Duration,
}

/// A shard on cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Padded(Spin<Shard>);

/// What a memory store has done and has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Keys in use.
    pub live: u64,
    /// Keys forgotten because they had turned idle.
    pub reclaimed: u64,
    /// Requests of new keys denied because every slot was busy.
    pub refused: u64,
    /// Requests of new keys that shared a budget because every slot was busy.
    pub pooled: u64,
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryStore {
    /// A store for a million keys, and sliding logs of up to ten thousand entries.
    #[must_use]
    pub fn new() -> Self {
        Self::with_secrets(Secrets::random())
    }

    fn with_secrets(secrets: Secrets) -> Self {
        let views = Arc::new(Views::new());
        let shard = |index| Padded(Spin::new(Shard::new(index, Arc::clone(&views))));
        Self {
            shards: (0..SHARDS).map(shard).collect(),
            views,
            lones: (0..lone::LONES).map(|_| Lone::new()).collect(),
            secrets,
            live: AtomicU64::new(0),
            searched_at: AtomicU64::new(0),
            reclaimed: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            pooled: AtomicU64::new(0),
            max_keys: 1_000_000,
            on_full: OnFull::default(),
            log_ceiling: 10_000,
            sweep_interval: Duration::from_secs(60),
            idle_for: Duration::from_secs(300),
        }
    }

    /// Keeps at most this many keys: combinations of a rule and what it counts by. A table full of
    /// busy keys denies or pools new ones; it never forgets a busy key. The one budget of a
    /// rule that counts by nothing comes on top, so that a flood of clients cannot crowd it out.
    #[must_use]
    pub const fn max_keys(mut self, keys: u64) -> Self {
        self.max_keys = keys;
        self
    }

    /// What a new key gets when every slot is busy.
    #[must_use]
    pub const fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }

    /// Accepts sliding logs of at most this limit.
    #[must_use]
    pub const fn log_ceiling(mut self, limit: u64) -> Self {
        self.log_ceiling = limit;
        self
    }

    /// Sweeps each shard this often, and forgets what has been idle for this long.
    #[must_use]
    pub const fn sweep(mut self, interval: Duration, idle_for: Duration) -> Self {
        self.sweep_interval = interval;
        self.idle_for = idle_for;
        self
    }

    /// What it has done and has.
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        MemoryStats {
            live: self.live.load(Ordering::Relaxed),
            reclaimed: self.reclaimed.load(Ordering::Relaxed),
            refused: self.refused.load(Ordering::Relaxed),
            pooled: self.pooled.load(Ordering::Relaxed),
        }
    }

    /// What [`Store::apply`] does, at once.
    ///
    /// # Errors
    /// [`StoreError::Full`] if a block needs a new key and there is no room. Requests are denied or
    /// pooled instead.
    pub fn apply_now(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let pools = self.on_full == OnFull::Pool;
        if pools && op == Op::Refund {
            return self.apply_pooled(op, charges, now, |group| self.is_unknown(group));
        }
        let groups = self.groups(charges, |_| false);
        if let Some(mut applied) = self.apply_groups(op, &groups, now, Room::Bounded) {
            if pools && matches!(op, Op::Settle { .. }) && applied.answers.iter().any(|answer| !answer.held) {
                // It may have been made in a pool, when there was no room.
                let pooled = self.apply_pooled(op, charges, now, |_| true)?;
                for (answer, pooled) in applied.answers.iter_mut().zip(pooled.answers) {
                    *answer = if answer.held { *answer } else { pooled };
                }
            }
            return Ok(applied);
        }
        if self.search_is_due(now) {
            self.reclaim(now);
            if let Some(applied) = self.apply_groups(op, &groups, now, Room::Bounded) {
                return Ok(applied);
            }
        }
        let count = |counter: &AtomicU64| counter.fetch_add(u64::from(op != Op::Peek), Ordering::Relaxed);
        match self.on_full {
            _ if matches!(op, Op::Block { .. } | Op::Penalise) => Err(StoreError::Full),
            OnFull::Pool => {
                count(&self.pooled);
                self.apply_pooled(op, charges, now, |group| self.is_unknown(group))
            }
            OnFull::Deny => {
                count(&self.refused);
                self.apply_groups(op, &groups, now, Room::None).ok_or(StoreError::Full)
            }
        }
    }

    /// The same with some of the keys replaced by their rules' pools.
    fn apply_pooled(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Timestamp,
        pools: impl Fn(&Group) -> bool,
    ) -> Result<Applied, StoreError> {
        let groups = self.groups(charges, pools);
        self.apply_groups(op, &groups, now, Room::Unbounded).ok_or(StoreError::Full)
    }

    /// Whether to go through all shards for idle keys once more: in a flood of newcomers, at most
    /// once in a while.
    fn search_is_due(&self, now: Timestamp) -> bool {
        let now = now.as_nanos();
        let searched_at = self.searched_at.load(Ordering::Relaxed);
        let due = now.abs_diff(searched_at) >= BETWEEN_SEARCHES;
        if due {
            self.searched_at.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Forgets every idle key, a shard at a time, and says how many there were.
    pub fn reclaim(&self, now: Timestamp) -> u64 {
        let freed = self.shards.iter().enumerate().map(|(index, shard)| {
            let mut shard = shard.0.lock();
            self.take_all_home(index, &mut shard);
            let freed = shard.reclaim(now, &self.secrets);
            self.forgot(freed);
            freed
        });
        freed.fold(0, u64::saturating_add)
    }

    /// Goes on with every sweep that is due, to its end, and says how many keys were forgotten.
    /// Requests sweep too, but only the shards that they touch. Each lock is taken for a few slots
    /// at a time.
    pub fn sweep_all(&self, now: Timestamp) -> u64 {
        let sweep = |shard: &Padded| {
            let mut freed: u64 = 0;
            loop {
                let mut shard = shard.0.lock();
                if !shard.sweep_is_due(now) {
                    return freed;
                }
                freed = freed.saturating_add(self.go_on_sweeping(&mut shard, SWEPT_AT_ONCE, now));
            }
        };
        self.shards.iter().map(sweep).fold(0, u64::saturating_add)
    }

    /// Makes room for `keys` more keys, if there is any for the `bounded` ones among them.
    fn promise(&self, keys: u64, bounded: u64) -> bool {
        if keys == 0 {
            return true;
        }
        let fits = |live: u64| {
            let has_room = bounded == 0 || live.saturating_add(bounded) <= self.max_keys;
            live.checked_add(keys).filter(|_| has_room)
        };
        self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn has_room_for(&self, keys: u64) -> bool {
        keys == 0 || self.live.load(Ordering::Relaxed).saturating_add(keys) <= self.max_keys
    }

    fn forgot(&self, keys: u64) {
        if keys > 0 {
            self.live.fetch_sub(keys, Ordering::Relaxed);
            self.reclaimed.fetch_add(keys, Ordering::Relaxed);
        }
    }
}

impl Store for MemoryStore {
    fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Applied, StoreError>> + Send {
        ready(self.apply_now(op, charges, now))
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        match limit.algorithm() {
            Algorithm::SlidingLog { limit, .. } if limit > self.log_ceiling => Err(Error::InvalidLimit {
                field: "limit",
                value: limit.to_string(),
                reason: "at most the store's log_ceiling for a sliding log; raise that, or choose a sliding window",
            }),
            _ => Ok(()),
        }
    }

    fn live_keys(&self) -> Option<u64> {
        Some(self.live.load(Ordering::Relaxed))
    }

    #[inline]
    fn as_memory(&self) -> Option<&MemoryStore> {
        Some(self)
    }
}

/// Of two readings of the clock, the one that counts: the newest, if the other merely came late.
#[inline]
fn in_order(newest: Timestamp, now: Timestamp) -> Timestamp {
    let late = newest.as_nanos().saturating_sub(now.as_nanos());
    if late <= LATE { now.max(newest) } else { now }
}

/// The top bits: the tables use the lower half.
fn shard_of(home: u64) -> usize {
    usize::try_from(home >> 56).unwrap_or(0) % SHARDS
}
