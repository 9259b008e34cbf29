//! The locked shards of one request.

use smallvec::SmallVec;

use super::MemoryStore;
use super::shard::{Shard, monotonic};
use super::take::SWEEP_PER_REQUEST;
use crate::Timestamp;
use crate::decision::TAGS_MAX;
use crate::sync::Guard;

/// The locked shards of one request. Locking in ascending order rules out deadlock.
pub(super) struct Locked<'a>(SmallVec<[(usize, Guard<'a, Shard>); TAGS_MAX]>);

impl<'a> Locked<'a> {
    pub(super) fn new(store: &'a MemoryStore, shards: impl Iterator<Item = usize> + Clone) -> Self {
        let (mut locked, mut above) = (SmallVec::new(), 0);
        while let Some(next) = shards.clone().filter(|shard| *shard >= above).min() {
            locked.push((next, store.shards[next].0.lock()));
            above = next.saturating_add(1);
        }
        Self(locked)
    }

    /// One of the locked shards: a caller asks only for those that it gave to [`new`](Self::new),
    /// of which there is at least one.
    pub(super) fn of(&mut self, shard: usize) -> &mut Shard {
        let position = self.0.iter().position(|(index, _)| *index == shard).unwrap_or(0);
        &mut self.0[position].1
    }

    /// Advances the clocks of all locked shards, continues sweeps that are due, and returns the
    /// time to decide at.
    pub(super) fn observe_clock(&mut self, store: &MemoryStore, now: Timestamp) -> Timestamp {
        let newest = self.0.iter().map(|(_, shard)| shard.latest).max().unwrap_or(now);
        let now = monotonic(newest, now);
        self.set_time(now);
        for (_, shard) in self.0.iter_mut().filter(|(_, shard)| shard.sweep_is_due(now)) {
            store.continue_sweep(shard, SWEEP_PER_REQUEST, now);
        }
        now
    }

    pub(super) fn set_time(&mut self, now: Timestamp) {
        self.0.iter_mut().for_each(|(_, shard)| shard.set_time(now));
    }
}
