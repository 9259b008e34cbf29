//! The locked shards of one request.

use smallvec::SmallVec;

use super::MemoryStore;
use super::lookup::Target;
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
    shards.iter_mut().for_each(|(_, shard)| set_time(shard, store, now));
    now
}

/// The locked shards of a request with `N` budgets.
pub(super) struct LockedShards<'a, const N: usize> {
    /// In ascending order, each once.
    guards: [Option<Guard<'a, Shard>>; N],
    /// Which of the guards is of each budget.
    positions: [usize; N],
}

impl<'a, const N: usize> LockedShards<'a, N> {
    /// Locks the shards of all budgets. Locking in ascending order rules out deadlock.
    #[inline(always)]
    pub(super) fn lock(targets: &[Target<'a>; N]) -> Self {
        let mut locked = Self { guards: [const { None }; N], positions: [0; N] };
        let mut above = 0;
        for (position, guard) in locked.guards.iter_mut().enumerate() {
            let mut next: Option<&Target<'a>> = None;
            for target in targets {
                let shard = target.slot.shard;
                if shard >= above && next.is_none_or(|next| shard < next.slot.shard) {
                    next = Some(target);
                }
            }
            let Some(next) = next else { break };
            *guard = Some(next.shard.0.lock());
            for (target, of) in targets.iter().zip(&mut locked.positions) {
                if target.slot.shard == next.slot.shard {
                    *of = position;
                }
            }
            above = next.slot.shard.saturating_add(1);
        }
        locked
    }

    /// The shard of a budget. There always is one.
    #[inline(always)]
    pub(super) fn of(&mut self, target: usize) -> Option<&mut Shard> {
        self.guards.get_mut(*self.positions.get(target)?)?.as_deref_mut()
    }

    /// Advances the shards' clocks, continues sweeps that are due, and returns the time to decide
    /// at.
    #[inline(always)]
    pub(super) fn observe_clocks(&mut self, store: &MemoryStore, now: Timestamp) -> Timestamp {
        let newest = self.guards.iter().flatten().map(|shard| shard.latest).max().unwrap_or(now);
        let now = monotonic(newest, now);
        self.guards.iter_mut().flatten().for_each(|shard| set_time(shard, store, now));
        now
    }
}

/// Sets a shard's clock to the time of a decision on several shards, and continues a sweep that is
/// due.
#[inline(always)]
fn set_time(shard: &mut Shard, store: &MemoryStore, now: Timestamp) {
    shard.set_time(now);
    if shard.sweep_is_due(now) {
        store.continue_sweep(shard, SWEEP_PER_REQUEST, now);
    }
}
