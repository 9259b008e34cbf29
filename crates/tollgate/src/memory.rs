//! The in-memory store: exact, concurrent, compact, and bounded by a number of keys.
//!
//! Keys are spread over shards, each behind a lock that is held for one request's arithmetic. A
//! request that touches several shards locks them in ascending order, so that requests in opposite
//! orders cannot wait for each other. In a shard, states lie packed in flat tables; `ARCHITECTURE.md` has a
//! drawing.
//!
//! Forgetting happens in passing: what is idle after a request is not kept, a new key's arrival
//! looks at a few slots for ones that turned idle since, and now and then a sweep goes through a
//! shard, a few slots with each request. Nothing ever stops to clean up.
//!
//! Two threads may read the clock and then reach a shard in the opposite order. A shard therefore
//! takes a reading that is a little older than its newest ([`LATE`]) for that newest one.

use std::future::{Future, ready};
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::LATE;
use crate::cell::{Cell, transact};
use crate::store::{Answer, Applied, Charge, Op, Store, StoreError};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::{Algorithm, Error, Limit, Limits, Outcome, Timestamp, Verdict};

mod dump;
mod fast;
mod hash;
#[expect(
    clippy::arithmetic_side_effects,
    reason = "places and counts within one allocation; none comes near the width of its integer"
)]
mod shard;
#[expect(
    clippy::arithmetic_side_effects,
    reason = "places and counts within one allocation; none comes near the width of its integer"
)]
mod table;

pub(crate) use fast::{Outcomes, Subject, Taken};
use hash::{Id, Secrets};
use shard::{Cells, Found, Shard};

/// How long a new key is told to wait when every slot is busy.
const FULL_RETRY: Duration = Duration::from_secs(1);

const SHARDS: usize = if cfg!(shuttle) { 2 } else { 256 };

/// How many slots the arrival of a new key looks at for ones that turned idle.
const SWEPT_BY_NEW: usize = 2;

/// How many slots each request goes through while a sweep is under way.
const SWEPT_BY_EACH: usize = 8;

/// What a subject's encoding never is: the one budget of all new keys of a rule when the table is full.
const POOLED: &[u8] = &[0xff, 0xff];

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
    secrets: Secrets,
    /// Keys in the tables, and room promised to requests under way.
    live: AtomicU64,
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
struct Padded(Mutex<Shard>);

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

/// One rule and subject of a request.
struct Group {
    id: Id,
    home: u64,
    shard: usize,
    limits: Limits,
}

/// A charge on one place of a group, which stands for all of the request's charges there.
type Merged<'a> = (usize, Charge<'a>);

/// A request's keys in the order in which they are locked, its charges merged, and which of them each charge became.
struct Groups<'a> {
    groups: SmallVec<[Group; 4]>,
    merged: SmallVec<[Merged<'a>; 4]>,
    merged_of: SmallVec<[usize; 4]>,
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
        let stagger = |shard: usize| shard.wrapping_mul(256 / SHARDS);
        Self {
            shards: (0..SHARDS).map(|shard| Padded(Mutex::new(Shard::new(stagger(shard))))).collect(),
            secrets,
            live: AtomicU64::new(0),
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

    /// Keeps at most this many keys: combinations of a rule and what it counts by. A table full of busy keys
    /// denies or pools new ones; it never forgets a busy key.
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
        let groups = self.groups(charges, |_| false);
        if let Some(applied) = self.apply_groups(op, &groups, now, Room::Bounded) {
            return Ok(applied);
        }
        self.reclaim(now);
        if let Some(applied) = self.apply_groups(op, &groups, now, Room::Bounded) {
            return Ok(applied);
        }
        match self.on_full {
            _ if matches!(op, Op::Block { .. } | Op::Penalise) => Err(StoreError::Full),
            OnFull::Pool => {
                self.pooled.fetch_add(1, Ordering::Relaxed);
                let pooled = self.groups(charges, |group| self.is_unknown(group));
                self.apply_groups(op, &pooled, now, Room::Unbounded).ok_or(StoreError::Full)
            }
            OnFull::Deny => {
                self.refused.fetch_add(1, Ordering::Relaxed);
                self.apply_groups(op, &groups, now, Room::None).ok_or(StoreError::Full)
            }
        }
    }

    /// Forgets every idle key, a shard at a time, and says how many there were.
    pub fn reclaim(&self, now: Timestamp) -> u64 {
        let freed = self.shards.iter().map(|shard| {
            let freed = lock(&shard.0).reclaim(now, &self.secrets);
            self.forgot(freed);
            freed
        });
        freed.fold(0, u64::saturating_add)
    }

    fn forgot(&self, keys: u64) {
        if keys > 0 {
            self.live.fetch_sub(keys, Ordering::Relaxed);
            self.reclaimed.fetch_add(keys, Ordering::Relaxed);
        }
    }

    fn group(&self, charge: &Charge<'_>, subject: &[u8]) -> Group {
        let id = self.secrets.identify(charge.key.rule().digest(), subject);
        let home = self.secrets.home(id);
        Group { id, home, shard: shard_of(home), limits: charge.limits }
    }

    fn is_unknown(&self, group: &Group) -> bool {
        lock(&self.shards[group.shard].0).find(group.id, group.home, group.limits.words()) == Found::Nowhere
    }

    /// The request's keys in the order in which they are locked, each once; those that `pools` says so are replaced by their rule's pool.
    fn groups<'a>(&self, charges: &[Charge<'a>], pools: impl Fn(&Group) -> bool) -> Groups<'a> {
        let mut sorted: SmallVec<[(Group, Charge<'a>, usize); 4]> = SmallVec::new();
        for (charge, index) in charges.iter().zip(0..) {
            let group = self.group(charge, charge.key.subject());
            let group = if pools(&group) { self.group(charge, POOLED) } else { group };
            sorted.push((group, *charge, index));
        }
        sorted.sort_by_key(|(group, charge, _)| (group.shard, group.id, charge.key.place()));
        let mut groups: SmallVec<[Group; 4]> = SmallVec::new();
        let mut merged: SmallVec<[Merged<'a>; 4]> = SmallVec::new();
        let mut merged_of: SmallVec<[usize; 4]> = SmallVec::from_elem(0, charges.len());
        for (group, charge, index) in sorted {
            let same = groups.last().is_some_and(|last| last.id == group.id);
            if !same {
                groups.push(group);
            }
            match merged.last_mut().filter(|(_, last)| same && last.key.place() == charge.key.place()) {
                Some((_, last)) => {
                    last.cost = last.cost.max(charge.cost);
                    last.shadow &= charge.shadow;
                }
                None => merged.push((groups.len().saturating_sub(1), charge)),
            }
            merged_of[index] = merged.len().saturating_sub(1);
        }
        Groups { groups, merged, merged_of }
    }

    /// Applies `op`, if there is room for the keys that are new.
    fn apply_groups(&self, op: Op, request: &Groups<'_>, now: Timestamp, room: Room) -> Option<Applied> {
        let Groups { groups, merged, merged_of } = request;
        let mut locked = Locked::new(self, groups);
        let now = locked.in_order(now);
        let found: SmallVec<[Found; 4]> = groups.iter().map(|group| locked.find(group)).collect();
        let new = to_u64(found.iter().filter(|found| **found == Found::Nowhere).count());
        let is_new = |group: usize| found[group] == Found::Nowhere;
        let keeps_new = match op {
            Op::Refund | Op::Reset | Op::Settle { .. } | Op::Peek => false,
            Op::Block { until } => until > now,
            _ => room != Room::None,
        };
        // Without room a new key is denied, and nothing is taken from the others either. But one that is
        // only watched denies nobody.
        let denied =
            room == Room::None && merged.iter().any(|(group, charge)| is_new(*group) && !charge.shadow);
        let op = if denied { Op::Peek } else { op };
        let promised = if keeps_new { new } else { 0 };
        if !self.promise(promised, room) {
            return None;
        }
        let mut cells: SmallVec<[Cells; 4]> =
            groups.iter().zip(&found).map(|(group, found)| locked.load(group, *found)).collect();
        let mut flat: SmallVec<[Cell; 4]> = SmallVec::new();
        for (group, charge) in merged {
            let place = usize::from(charge.key.place());
            flat.push(std::mem::replace(&mut cells[*group][place], Cell::new(*charge.limit())));
        }
        let charges: SmallVec<[Charge<'_>; 4]> = merged.iter().map(|(_, charge)| *charge).collect();
        let mut answers = transact(op, &charges, &mut flat, now);
        for ((group, charge), cell) in merged.iter().zip(flat) {
            cells[*group][usize::from(charge.key.place())] = cell;
        }
        if room == Room::None {
            let refused = merged.iter().map(|(group, _)| is_new(*group));
            answers
                .iter_mut()
                .zip(refused)
                .filter(|(_, new)| *new)
                .for_each(|(answer, _)| answer.refuse(now));
        }
        let mut kept: u64 = 0;
        for ((group, found), mut cells) in groups.iter().zip(&found).zip(cells) {
            if !matches!(op, Op::Refund | Op::Settle { .. }) {
                cells.truncate(group.limits.len());
            }
            if room == Room::None && *found == Found::Nowhere {
                continue;
            }
            // Storing one key may move others of the same shard.
            let found = if groups.len() > 1 { locked.find(group) } else { *found };
            kept = kept.saturating_add(u64::from(locked.store(group, found, cells, now)));
        }
        let had = to_u64(groups.len()).saturating_sub(new).saturating_add(promised);
        self.live.fetch_sub(had.saturating_sub(kept), Ordering::Relaxed);
        let answers = merged_of.iter().map(|index| answers[*index]).collect();
        Some(Applied { now, answers })
    }

    /// Makes room for `keys` more keys, if there is any.
    fn promise(&self, keys: u64, room: Room) -> bool {
        if keys == 0 {
            return true;
        }
        let most = if room == Room::Bounded { self.max_keys } else { u64::MAX };
        let fits = |live: u64| live.checked_add(keys).filter(|sum| *sum <= most);
        self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }
}

/// Whether a request may bring new keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    /// As many as `max_keys` allows.
    Bounded,
    /// The pools of its rules, of which there are few.
    Unbounded,
    /// None: it is only looked at.
    None,
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
}

impl Answer {
    /// A new key that finds every slot busy.
    fn refuse(&mut self, now: Timestamp) {
        let later = now.saturating_add(FULL_RETRY);
        let verdict = Verdict::Denied { retry_after: FULL_RETRY };
        self.outcome = Outcome { verdict, remaining: 0, reset_at: later, grows_at: later };
    }
}

/// The shards of one request, locked.
struct Locked<'a> {
    store: &'a MemoryStore,
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl<'a> Locked<'a> {
    /// Locks in the order of the groups, which is ascending: this is what keeps opposite requests
    /// from deadlock.
    fn new(store: &'a MemoryStore, groups: &[Group]) -> Self {
        let mut shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]> = SmallVec::new();
        for group in groups {
            if shards.last().is_none_or(|(last, _)| *last != group.shard) {
                shards.push((group.shard, lock(&store.shards[group.shard].0)));
            }
        }
        Self { store, shards }
    }

    fn shard(&mut self, group: &Group) -> &mut Shard {
        let place = self.shards.iter().position(|(shard, _)| *shard == group.shard).unwrap_or(0);
        &mut self.shards[place].1
    }

    fn find(&mut self, group: &Group) -> Found {
        self.shard(group).find(group.id, group.home, group.limits.words())
    }

    /// The reading to decide by: the newest, if this one merely came late.
    fn in_order(&mut self, now: Timestamp) -> Timestamp {
        let newest = self.shards.iter().map(|(_, shard)| shard.latest).max().unwrap_or(now);
        let now = in_order(newest, now);
        self.shards.iter_mut().for_each(|(_, shard)| shard.set_time(now));
        now
    }

    /// The cells of a group, at least one for each of its limits.
    fn load(&mut self, group: &Group, found: Found) -> Cells {
        let mut cells = self.shard(group).load(found, group.id);
        for limit in group.limits.as_slice().iter().skip(cells.len()) {
            cells.push(Cell::new(*limit));
        }
        cells
    }

    fn store(&mut self, group: &Group, found: Found, cells: Cells, now: Timestamp) -> bool {
        let secrets = &self.store.secrets;
        self.shard(group).store(found, group.id, cells, group.limits, now, secrets)
    }
}

/// Of two readings of the clock, the one that counts: the newest, if the other merely came late.
fn in_order(newest: Timestamp, now: Timestamp) -> Timestamp {
    if newest.since(now) <= Duration::from_nanos(LATE) { now.max(newest) } else { now }
}

/// The top bits: the tables use the lower half.
fn shard_of(home: u64) -> usize {
    usize::try_from(home >> 56).unwrap_or(0) % SHARDS
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
