//! The locked shards of one request.

use smallvec::SmallVec;

use super::MemoryStore;
use super::shard::{Shard, monotonic};
use super::take::SWEEP_PER_REQUEST;
use crate::Timestamp;
use crate::decision::TAGS_MAX;
use crate::sync::Guard;

/// Shards that a request has locked.
pub(super) trait Shards {
    /// One of the shards.
    fn of(&mut self, index: usize) -> &mut Shard;
}

/// The only shard of a request.
impl Shards for Shard {
    #[inline(always)]
    fn of(&mut self, _: usize) -> &mut Shard {
        self
    }
}

/// The shards of a request, in ascending order.
pub(super) type Locked<'a> = SmallVec<[(usize, Guard<'a, Shard>); TAGS_MAX]>;

/// Locks shards. Locking in ascending order rules out deadlock.
#[inline(always)]
pub(super) fn lock(store: &MemoryStore, shards: impl Iterator<Item = usize> + Clone) -> Locked<'_> {
    let (mut locked, mut above) = (Locked::new(), 0);
    while let Some(next) = shards.clone().filter(|shard| *shard >= above).min() {
        locked.push((next, store.shards[next].0.lock()));
        above = next.saturating_add(1);
    }
    locked
}

impl Shards for [(usize, Guard<'_, Shard>)] {
    /// A caller asks only for shards that it gave to [`lock`], and gave at least one.
    #[inline(always)]
    fn of(&mut self, index: usize) -> &mut Shard {
        let position = self.iter().position(|(locked, _)| *locked == index).unwrap_or(0);
        &mut self[position].1
    }
}

/// Advances the clocks of locked shards, continues sweeps that are due, and returns the time to
/// decide at.
#[inline(always)]
pub(super) fn observe_clocks(
    shards: &mut [(usize, Guard<'_, Shard>)],
    store: &MemoryStore,
    now: Timestamp,
) -> Timestamp {
    let newest = shards.iter().map(|(_, shard)| shard.latest).max().unwrap_or(now);
    let now = monotonic(newest, now);
    for (_, shard) in shards {
        shard.set_time(now);
        if shard.sweep_is_due(now) {
            store.continue_sweep(shard, SWEEP_PER_REQUEST, now);
        }
    }
    now
}
