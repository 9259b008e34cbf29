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
//! takes a reading that is a little older than its newest for that newest one.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use crate::store::{Applied, Charge, Op, Store, StoreError};
use crate::sync::Spin;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::{Algorithm, Error, Limit, RuleName, Timestamp};

macro_rules! places {
    ($($module:ident),*) => {$(
        #[expect(
            clippy::arithmetic_side_effects,
            reason = "places and counts within one allocation; none comes near the width of its integer"
        )]
        mod $module;
    )*};
}

mod apply;
#[cfg(feature = "dump")]
mod dump;
mod hash;
mod legacy;
mod room;
places!(changes, pages, shard, sweep, table, take);

use hash::Secrets;
pub use pages::Loader;
pub use room::OnFull;
use room::Room;
use shard::{Shard, Views};
pub(crate) use take::{Aim, Subject, Taken, Target};

/// Shards for keys by their hash.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 256 };

/// Shards for the budgets of everyone, which every request goes for.
const GLOBALS: usize = if cfg!(shuttle) { 1 } else { 16 };

const ALL_SHARDS: usize = SHARDS + GLOBALS;

/// How many slots are gone through under one lock by whoever does nothing else.
const SWEPT_AT_ONCE: usize = 256;

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
    secrets: Arc<Secrets>,
    room: Room,
    /// Whether anything that version 1 wrote may be left.
    has_legacy: AtomicBool,
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
        let secrets = Arc::new(Secrets::random());
        let (shards, views) = shards(&secrets);
        Self {
            shards,
            views,
            secrets,
            room: Room::new(1_000_000),
            has_legacy: AtomicBool::new(false),
            on_full: OnFull::default(),
            log_ceiling: 10_000,
            sweep_interval: Duration::from_secs(60),
            idle_for: Duration::from_secs(300),
        }
    }

    /// Makes identities with this seed, so that pages can be loaded that were written under it. For a
    /// store that nothing was asked of yet.
    #[must_use]
    pub fn seeded(mut self, seed: [u64; 2]) -> Self {
        self.secrets = Arc::new(Secrets::from_seed(seed));
        (self.shards, self.views) = shards(&self.secrets);
        self
    }

    /// Keeps at most this many keys: combinations of a rule and what it counts by. A table full of
    /// busy keys denies or pools new ones; it never forgets a busy key. The one budget of a
    /// rule that counts by nothing is always kept, so that a flood of clients cannot crowd it out.
    #[must_use]
    pub fn max_keys(self, keys: u64) -> Self {
        self.room.all.bound(keys);
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
            live: self.room.all.live(),
            reclaimed: self.room.reclaimed.load(Ordering::Relaxed),
            refused: self.room.refused.load(Ordering::Relaxed),
            pooled: self.room.pooled.load(Ordering::Relaxed),
        }
    }

    /// How many keys each rule has in use.
    #[must_use]
    pub fn live_by_rule(&self) -> Vec<(RuleName, u64)> {
        self.room.by_rule()
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

    /// Bounds the keys of a rule.
    pub(crate) fn bound(&self, rule: RuleName, keys: Option<u64>) {
        self.room.of(rule).bound(keys.unwrap_or(u64::MAX));
    }
}

fn shards(secrets: &Arc<Secrets>) -> (Box<[Padded]>, Arc<Views>) {
    let views = Arc::new(Views::new());
    let shard = |index| Padded(Spin::new(Shard::new(index, Arc::clone(secrets), Arc::clone(&views))));
    ((0..ALL_SHARDS).map(shard).collect(), views)
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

    fn clear(&self, rule: &str) -> impl Future<Output = Result<u64, StoreError>> + Send {
        // The method of the same name.
        ready(Ok(Self::clear(self, rule)))
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
        Some(self.room.all.live())
    }

    #[inline]
    fn as_memory(&self) -> Option<&MemoryStore> {
        Some(self)
    }
}
