//! The in-memory store: exact, concurrent, and bounded by a number of keys.
//!
//! Cells live in shards, each behind a lock that is held for one request's arithmetic. A request
//! that touches several shards locks them in ascending order, so that requests in opposite orders
//! cannot wait for each other. While a request is decided its cells are out of the table; those
//! that are idle afterwards do not go back in, which is all the forgetting that a key in use ever
//! needs. Keys that turned idle untouched are reclaimed when room is needed.
//!
//! Two threads may read the clock and then reach a shard in the opposite order. A shard therefore
//! takes a reading that is a little older than its newest ([`LATE`]) for that newest one.

use std::collections::HashMap;
use std::future::{Future, ready};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::LATE;
use crate::cell::{Cell, transact};
use crate::store::{Answer, Applied, Charge, Op, Store, StoreError};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard, lock};
use crate::{Algorithm, Error, Limit, Outcome, Timestamp, Verdict};

/// How long a new key is told to wait when every slot is busy.
const FULL_RETRY: Duration = Duration::from_secs(1);

const SHARDS: usize = if cfg!(shuttle) { 2 } else { 64 };

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
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    /// Keys in the table, and room promised to requests under way.
    live: AtomicU64,
    max_keys: u64,
    log_ceiling: u64,
}

#[derive(Debug, Default)]
struct Shard {
    cells: HashMap<KeyBytes, Cell>,
    /// The newest reading of the clock.
    latest: Timestamp,
    /// No cell turns idle before this: there is no use in looking for one.
    next_idle: Timestamp,
}

type KeyBytes = SmallVec<[u8; 48]>;

/// A key of a request: where its cell is, and the one charge that stands for all of the request's
/// charges on it.
struct Slot<'a> {
    shard: usize,
    key: KeyBytes,
    charge: Charge<'a>,
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
        Self {
            shards: std::array::from_fn(|_| Mutex::new(Shard::default())),
            hasher: RandomState::new(),
            live: AtomicU64::new(0),
            max_keys: 1_000_000,
            log_ceiling: 10_000,
        }
    }

    /// Keeps at most this many keys. A table full of busy keys denies new ones; it never forgets a
    /// busy key.
    #[must_use]
    pub const fn max_keys(mut self, keys: u64) -> Self {
        self.max_keys = keys;
        self
    }

    /// Accepts sliding logs of at most this limit.
    #[must_use]
    pub const fn log_ceiling(mut self, limit: u64) -> Self {
        self.log_ceiling = limit;
        self
    }

    /// What [`Store::apply`] does, at once.
    ///
    /// # Errors
    /// [`StoreError::Full`] if a block needs a new key and there is no room. Requests are denied
    /// instead.
    pub fn apply_now(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let (slots, slot_of) = self.slots(charges);
        let merged: SmallVec<[Charge<'_>; 4]> = slots.iter().map(|slot| slot.charge).collect();
        let mut locked = Locked::new(self, &slots);
        let mut missing = locked.missing(&slots);
        let keeps_new = !matches!(op, Op::Refund | Op::Reset | Op::Settle { .. });
        let mut room = self.promise(if keeps_new { missing } else { 0 });
        if room.is_none() {
            drop(locked);
            self.reclaim(now);
            locked = Locked::new(self, &slots);
            missing = locked.missing(&slots);
            room = self.promise(missing);
        }
        if room.is_none() && matches!(op, Op::Block { .. }) {
            return Err(StoreError::Full);
        }
        let now = locked.in_order(now);
        let known: SmallVec<[bool; 4]> = slots.iter().map(|slot| locked.has(slot)).collect();
        let mut cells = locked.take_out(&slots);
        let op = if room.is_none() { Op::Peek } else { op };
        let mut answers = transact(op, &merged, &mut cells, now);
        if room.is_none() {
            answers
                .iter_mut()
                .zip(known)
                .filter(|(_, known)| !known)
                .for_each(|(answer, _)| answer.refuse(now));
        }
        let found = to_u64(slots.len()).saturating_sub(missing);
        let kept = locked.put_back(slots, cells, now);
        let spare = found.saturating_add(room.unwrap_or(0)).saturating_sub(kept);
        self.live.fetch_sub(spare, Ordering::Relaxed);
        Ok(Applied { now, answers: slot_of.iter().filter_map(|slot| answers.get(*slot)).copied().collect() })
    }

    /// Forgets every idle key, a shard at a time, and says how many there were.
    pub fn reclaim(&self, now: Timestamp) -> u64 {
        self.shards.iter().map(|shard| lock(shard).reclaim(now)).fold(0, |sum, freed| {
            self.live.fetch_sub(freed, Ordering::Relaxed);
            u64::saturating_add(sum, freed)
        })
    }

    /// The request's keys in the order in which they are locked, each once, and which of them each
    /// charge belongs to.
    fn slots<'a>(&self, charges: &[Charge<'a>]) -> (SmallVec<[Slot<'a>; 4]>, SmallVec<[usize; 4]>) {
        let mut slots: SmallVec<[(Slot<'a>, usize); 4]> = SmallVec::new();
        for (charge, index) in charges.iter().zip(0..) {
            let mut key = KeyBytes::new();
            charge.key.encode(&mut key);
            let shard = shard_of(self.hasher.hash_one(&key));
            slots.push((Slot { shard, key, charge: *charge }, index));
        }
        slots.sort_by(|(a, _), (b, _)| (a.shard, &a.key).cmp(&(b.shard, &b.key)));
        let mut merged: SmallVec<[Slot<'a>; 4]> = SmallVec::new();
        let mut slot_of: SmallVec<[usize; 4]> = SmallVec::from_elem(0, charges.len());
        for (slot, index) in slots {
            match merged.last_mut().filter(|last| last.key == slot.key) {
                Some(last) => {
                    last.charge.cost = last.charge.cost.max(slot.charge.cost);
                    last.charge.shadow &= slot.charge.shadow;
                }
                None => merged.push(slot),
            }
            if let Some(of) = slot_of.get_mut(index) {
                *of = merged.len().saturating_sub(1);
            }
        }
        (merged, slot_of)
    }

    /// Makes room for `keys` more keys, or says that there is none.
    fn promise(&self, keys: u64) -> Option<u64> {
        let fits = |live: u64| live.checked_add(keys).filter(|sum| keys == 0 || *sum <= self.max_keys);
        self.live.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).ok().map(|_| keys)
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
    shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>,
}

impl<'a> Locked<'a> {
    /// Locks in the order of the slots, which is ascending: this is what keeps opposite requests
    /// from deadlock.
    fn new(store: &'a MemoryStore, slots: &[Slot<'_>]) -> Self {
        let mut shards: SmallVec<[(usize, MutexGuard<'a, Shard>); 4]> = SmallVec::new();
        for slot in slots {
            if shards.last().is_none_or(|(last, _)| *last != slot.shard)
                && let Some(mutex) = store.shards.get(slot.shard)
            {
                shards.push((slot.shard, lock(mutex)));
            }
        }
        Self { shards }
    }

    fn shard(&mut self, index: usize) -> Option<&mut Shard> {
        self.shards.iter_mut().find(|(shard, _)| *shard == index).map(|(_, guard)| &mut **guard)
    }

    fn has(&mut self, slot: &Slot<'_>) -> bool {
        self.shard(slot.shard).is_some_and(|shard| shard.cells.contains_key(&slot.key))
    }

    fn missing(&mut self, slots: &[Slot<'_>]) -> u64 {
        to_u64(slots.iter().filter(|slot| !self.has(slot)).count())
    }

    /// The reading to decide by: the newest, if this one merely came late.
    fn in_order(&mut self, now: Timestamp) -> Timestamp {
        let newest = self.shards.iter().map(|(_, shard)| shard.latest).max().unwrap_or(now);
        let late = newest.since(now) <= Duration::from_nanos(LATE);
        let now = if late { now.max(newest) } else { now };
        self.shards.iter_mut().for_each(|(_, shard)| shard.latest = now);
        now
    }

    fn take_out(&mut self, slots: &[Slot<'_>]) -> SmallVec<[Cell; 4]> {
        let mut known = |slot: &Slot<'_>| self.shard(slot.shard)?.cells.remove(&slot.key);
        slots.iter().map(|slot| known(slot).unwrap_or_else(|| Cell::new(*slot.charge.limit))).collect()
    }

    /// Puts back what is not idle, and says how many cells that were.
    fn put_back(
        &mut self,
        slots: SmallVec<[Slot<'_>; 4]>,
        cells: SmallVec<[Cell; 4]>,
        now: Timestamp,
    ) -> u64 {
        let mut kept: u64 = 0;
        for (slot, cell) in slots.into_iter().zip(cells).filter(|(_, cell)| !cell.is_idle(now)) {
            if let Some(shard) = self.shard(slot.shard) {
                shard.next_idle = shard.next_idle.min(cell.idle_at(now));
                shard.cells.insert(slot.key, cell);
                kept = kept.saturating_add(1);
            }
        }
        kept
    }
}

impl Shard {
    fn reclaim(&mut self, now: Timestamp) -> u64 {
        if now < self.next_idle {
            return 0;
        }
        let before = self.cells.len();
        let mut next_idle = Timestamp::MAX;
        self.cells.retain(|_, cell| {
            cell.roll(now);
            let busy = !cell.is_idle(now);
            if busy {
                next_idle = next_idle.min(cell.idle_at(now));
            }
            busy
        });
        self.next_idle = next_idle;
        to_u64(before.saturating_sub(self.cells.len()))
    }
}

/// The top bits: the table uses the others.
fn shard_of(hash: u64) -> usize {
    usize::try_from(hash >> 48).unwrap_or(0).checked_rem(SHARDS).unwrap_or(0)
}

fn to_u64(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}
