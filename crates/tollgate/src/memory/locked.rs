//! The locked shards of one request.

use smallvec::SmallVec;

use super::MemoryStore;
use super::lookup::Target;
use super::shard::{Shard, late_reading};
use crate::Timestamp;
use crate::decision::TAGS_MAX;
use crate::sync::Guard;

/// Slots that each request sweeps while a sweep is under way.
const SWEEP_PER_REQUEST: usize = 8;

/// The locked shards of a request. Locking in ascending order rules out deadlock.
pub(super) trait Locked {
    /// Each shard once.
    fn shards(&mut self) -> impl Iterator<Item = &mut Shard>;

    /// Advances the shards' clocks, continues sweeps that are due, and returns the time to decide
    /// at.
    #[inline(always)]
    fn observe_clocks(&mut self, store: &MemoryStore, now: Timestamp) -> Timestamp {
        let newest = self.shards().map(|shard| shard.latest).max().unwrap_or(now);
        let (is_late, reading) = (now < newest, now);
        let now = if is_late { late_reading(newest, reading) } else { reading };
        for shard in self.shards() {
            if is_late {
                shard.set_time(now);
            } else {
                shard.latest = now;
            }
            if shard.sweep_is_due(now) {
                store.continue_sweep(shard, SWEEP_PER_REQUEST, now);
            }
        }
        now
    }
}

/// The locked shards of a list of budgets.
pub(super) trait LockedBudgets: Locked {
    /// The shard of a budget. There always is one.
    fn of(&mut self, budget: usize) -> Option<&mut Shard>;
}

/// The shard of one budget.
impl Locked for Guard<'_, Shard> {
    #[inline(always)]
    fn shards(&mut self) -> impl Iterator<Item = &mut Shard> {
        std::iter::once(&mut **self)
    }
}

impl LockedBudgets for Guard<'_, Shard> {
    #[inline(always)]
    fn of(&mut self, _: usize) -> Option<&mut Shard> {
        Some(self)
    }
}

/// The locked shards of `N` budgets.
pub(super) struct LockedShards<'a, const N: usize> {
    /// Each shard once, at the position of one of its budgets.
    guards: [Option<Guard<'a, Shard>>; N],
    /// The position of the guard of each budget.
    positions: [usize; N],
}

impl<'a, const N: usize> LockedShards<'a, N> {
    #[inline(always)]
    pub(super) fn lock(targets: &[Target<'a>; N]) -> Self {
        let mut order: [usize; N] = std::array::from_fn(|index| index);
        order.sort_by_key(|index| std::ptr::from_ref(targets[*index].shard));
        let mut locked = Self { guards: [const { None }; N], positions: [0; N] };
        let mut last = None;
        for index in order {
            let shard = targets[index].shard;
            let position = match last {
                Some((last, position)) if std::ptr::eq(last, shard) => position,
                _ => {
                    locked.guards[index] = Some(shard.0.lock());
                    index
                }
            };
            locked.positions[index] = position;
            last = Some((shard, position));
        }
        locked
    }
}

impl<const N: usize> Locked for LockedShards<'_, N> {
    #[inline(always)]
    fn shards(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.guards.iter_mut().flatten().map(|guard| &mut **guard)
    }
}

impl<const N: usize> LockedBudgets for LockedShards<'_, N> {
    #[inline(always)]
    fn of(&mut self, budget: usize) -> Option<&mut Shard> {
        self.guards.get_mut(*self.positions.get(budget)?)?.as_deref_mut()
    }
}

/// The locked shards of any number of budgets.
pub(super) struct LockedList<'a>(SmallVec<[(usize, Guard<'a, Shard>); TAGS_MAX]>);

impl<'a> LockedList<'a> {
    pub(super) fn lock(store: &'a MemoryStore, shards: impl Iterator<Item = usize> + Clone) -> Self {
        let (mut locked, mut above) = (SmallVec::new(), 0);
        while let Some(next) = shards.clone().filter(|shard| *shard >= above).min() {
            locked.push((next, store.shards[next].0.lock()));
            above = next.saturating_add(1);
        }
        Self(locked)
    }

    /// A shard. A caller asks only for shards that it locked, and locked at least one.
    pub(super) fn shard(&mut self, index: usize) -> &mut Shard {
        let position = self.0.iter().position(|(locked, _)| *locked == index).unwrap_or(0);
        &mut self.0[position].1
    }
}

impl Locked for LockedList<'_> {
    fn shards(&mut self) -> impl Iterator<Item = &mut Shard> {
        self.0.iter_mut().map(|(_, guard)| &mut **guard)
    }
}
