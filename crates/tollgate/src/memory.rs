//! The in-memory store: exact, concurrent, compact, and bounded by a number of keys.
//!
//! Keys are spread over shards. A shard's lock is held for the arithmetic of one request. A request
//! that touches several shards locks them in ascending order, which rules out deadlock. A shard
//! packs states into flat tables; `ARCHITECTURE.md` has a drawing.
//!
//! Idle keys are reclaimed incrementally. Before a table grows for a new key, a few slots are
//! searched for idle keys. Once in `sweep_interval` a sweep walks a shard, a few slots with each
//! request.
//!
//! Two threads may read the clock and then reach a shard in the opposite order. A shard therefore
//! replaces a reading that is slightly older than its newest with the newest.

use std::future::{Future, ready};
use std::sync::Arc;
use std::time::Duration;

use crate::store::{Applied, Charge, HoldId, Op, Store, StoreError};
use crate::sync::Spin;
use crate::sync::atomic::Ordering;
use crate::{Algorithm, Error, Limit, RuleName, Timestamp};

mod apply;
mod changes;
#[cfg(feature = "dump")]
mod dump;
mod hash;
mod locked;
mod lookup;
mod pages;
mod room;
mod shard;
mod sweep;
mod table;
mod take;
mod words;

use hash::Secrets;
pub(crate) use lookup::{Decider, Lookup, Subject, Target};
pub use pages::Loader;
pub use room::OnFull;
use room::Room;
use shard::{Shard, Views};
pub(crate) use table::WIDEST;
pub(crate) use take::Taken;

/// Shards of keyed budgets, chosen by hash.
const SHARDS: usize = if cfg!(shuttle) { 2 } else { 256 };

/// Shards of global budgets, which every request draws on.
const GLOBALS: usize = if cfg!(shuttle) { 1 } else { 16 };

const ALL_SHARDS: usize = SHARDS + GLOBALS;

/// Slots that `sweep_all` sweeps under one lock.
const SWEEP_BATCH: usize = 256;

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
    shards: Box<[Padded; ALL_SHARDS]>,
    views: Arc<Views>,
    secrets: Arc<Secrets>,
    room: Room,
    on_full: OnFull,
    log_ceiling: u64,
    sweep_interval: Duration,
    idle_for: Duration,
}

/// A shard on cache lines of its own. Their number is odd, so that the first lines of all shards,
/// which every request reads, spread over the whole of a processor's cache.
#[derive(Debug)]
#[repr(C, align(64))]
struct Padded(Spin<Shard>, [u64; PADDING]);

const PADDING: usize = if size_of::<Spin<Shard>>().div_ceil(64).is_multiple_of(2) { 8 } else { 0 };

/// Statistics of a memory store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Keys kept.
    pub live: u64,
    /// Idle keys forgotten.
    pub reclaimed: u64,
    /// Requests with a new key that were denied because every slot was busy.
    pub refused: u64,
    /// Requests with a new key that drew on a shared pool because every slot was busy.
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
            on_full: OnFull::default(),
            log_ceiling: 20_000,
            sweep_interval: Duration::from_secs(60),
            idle_for: Duration::from_secs(300),
        }
    }

    /// Derives key identities from this seed, so that pages written under it can be loaded. Call it
    /// before the first request.
    #[must_use]
    pub fn seeded(mut self, seed: [u64; 2]) -> Self {
        self.secrets = Arc::new(Secrets::from_seed(seed));
        (self.shards, self.views) = shards(&self.secrets);
        self
    }

    /// Keeps at most this many keys: combinations of a rule and the attribute values it counts by.
    /// When every slot is busy, a new key is denied or pooled; a busy key is never forgotten. A
    /// rule without a key has one global budget, which is always kept: a flood of clients cannot
    /// crowd it out.
    #[must_use]
    pub fn max_keys(self, keys: u64) -> Self {
        self.room.all.bound(keys);
        self
    }

    /// What happens to a new key when every slot is busy.
    #[must_use]
    pub const fn on_full(mut self, on_full: OnFull) -> Self {
        self.on_full = on_full;
        self
    }

    /// Accepts sliding logs whose limit and debt are at most this together: 20 000 by default.
    #[must_use]
    pub const fn log_ceiling(mut self, units: u64) -> Self {
        self.log_ceiling = units;
        self
    }

    /// Sweeps each shard once per `interval`, and forgets keys that have been idle for `idle_for`.
    #[must_use]
    pub const fn sweep(mut self, interval: Duration, idle_for: Duration) -> Self {
        self.sweep_interval = interval;
        self.idle_for = idle_for;
        self
    }

    /// The store's statistics.
    #[must_use]
    pub fn memory_stats(&self) -> MemoryStats {
        MemoryStats {
            live: self.room.all.live(),
            reclaimed: self.room.reclaimed.load(Ordering::Relaxed),
            refused: self.room.refused.load(Ordering::Relaxed),
            pooled: self.room.pooled.load(Ordering::Relaxed),
        }
    }

    /// The number of keys kept for each rule.
    #[must_use]
    pub fn live_by_rule(&self) -> Vec<(RuleName, u64)> {
        self.room.by_rule()
    }

    /// Finishes every sweep that is due and returns how many keys it forgot. Requests sweep only
    /// the shards they touch. Each lock is held for a few slots at a time.
    pub fn sweep_all(&self, now: Timestamp) -> u64 {
        let sweep = |shard: &Padded| {
            let mut shard = shard.0.lock();
            shard.sweep_is_due(now).then(|| self.continue_sweep(&mut shard, SWEEP_BATCH, now))
        };
        self.shards.iter().flat_map(|shard| std::iter::from_fn(move || sweep(shard))).sum()
    }

    /// The reservations and slots of all keys, and when they end. One that several keys hold occurs
    /// several times.
    pub(crate) fn holds(&self) -> Vec<(HoldId, Timestamp)> {
        let mut holds = Vec::new();
        for shard in &*self.shards {
            shard.0.lock().each_unpacked(|cell| holds.extend(cell.holds()));
        }
        holds
    }

    /// Bounds the keys of a rule.
    pub(crate) fn bound(&self, rule: RuleName, keys: Option<u64>) {
        self.room.of(rule).bound(keys.unwrap_or(u64::MAX));
    }
}

#[expect(clippy::expect_used, reason = "as many are made as the array holds")]
fn shards(secrets: &Arc<Secrets>) -> (Box<[Padded; ALL_SHARDS]>, Arc<Views>) {
    let views = Arc::new(Views::new());
    let shard =
        |index| Padded(Spin::new(Shard::new(index, Arc::clone(secrets), Arc::clone(&views))), [0; PADDING]);
    let shards: Box<[Padded]> = (0..ALL_SHARDS).map(shard).collect();
    (shards.try_into().expect("`ALL_SHARDS` shards"), views)
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
            Algorithm::SlidingLog { limit: count, .. } if limit.longest_log() > self.log_ceiling => {
                Err(Error::InvalidLimit {
                    field: "limit",
                    value: format!("{count} with a debt of {}", limit.max_debt()),
                    reason: "at most the store's log_ceiling in all; raise that, write a smaller debt, or choose a sliding window",
                })
            }
            _ => Ok(()),
        }
    }

    fn live_keys(&self) -> Option<u64> {
        Some(self.room.all.live())
    }

    #[inline]
    fn decides_in(&self) -> Option<&MemoryStore> {
        Some(self)
    }
}
