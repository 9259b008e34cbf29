//! The fast path of a check: take from a few budgets whose states are packed, all or nothing.
//!
//! The budgets are located first (see [`lookup`](super::lookup)), and the clock is read while their
//! slots are fetched. Then *lock* the shards, *admit* if every budget that enforces has enough
//! left, *write*, and *answer* with the new states. One budget takes one lock and no list. A global
//! budget is handled like any other; its shard just has few others.
//!
//! Everything else (a replaced limit, a block, a reservation, a log, a state ahead of the clock, a
//! full store, a shadow rule that counts attempts) is left to [`apply`](super::apply).

use super::MemoryStore;
use super::locked::{LockedBudgets, LockedShards};
use super::lookup::{Decider, Target};
use super::shard::Shard;
use super::table::{NO_SLOT, StateOffset, WIDEST};
use crate::Timestamp;
use crate::meter::packed;

/// Slots that a new key searches for idle ones before a table grows.
const SWEEP_PER_NEW_KEY: usize = 16;

/// The result of [`MemoryStore::take`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken<const N: usize, const W: usize> {
    pub(crate) now: Timestamp,
    /// Whether only shadow rules have too little.
    pub(crate) allowed: bool,
    /// A bit for each budget that has too little.
    pub(crate) denied: u32,
    /// The states after the request, zero-padded.
    pub(crate) left: [[u64; W]; N],
}

impl MemoryStore {
    /// Takes the cost from all budgets of a request if every one that enforces has enough. A denial
    /// counts as an attempt where a limit counts those. `None` if this path cannot decide the
    /// request: nothing has been taken.
    ///
    /// The steps are compiled for the number of budgets and for the width of their states. With a
    /// `W` of [`WIDEST`] the states have any widths, keys may be new and rules may be shadows: each
    /// `W == WIDEST` below is something that the shapes with one width need not ask.
    #[inline(always)]
    pub(crate) fn take<const N: usize, const W: usize>(
        &self,
        targets: &[Target<'_>; N],
        decider: Decider<'_>,
        now: Timestamp,
    ) -> Option<Taken<N, W>> {
        match targets.as_slice() {
            [target] => self.take_locked(target.shard.0.lock(), targets, decider, now),
            _ => self.take_locked(LockedShards::lock(targets), targets, decider, now),
        }
    }

    #[inline(always)]
    fn take_locked<const N: usize, const W: usize>(
        &self,
        mut locked: impl LockedBudgets,
        targets: &[Target<'_>; N],
        decider: Decider<'_>,
        now: Timestamp,
    ) -> Option<Taken<N, W>> {
        let now = locked.observe_clocks(self, now);
        let (mut slots, mut before, mut left, mut denied) = ([NO_SLOT; N], [[0; W]; N], [[0; W]; N], 0);
        for (index, target) in targets.iter().enumerate() {
            let shard = locked.of(index)?;
            match shard.state_of(target) {
                Some((at, state)) => (slots[index], before[index]) = (at, state),
                None if W < WIDEST || self.has_other_state(shard, target) => return None,
                None => {}
            }
            left[index] = before[index];
            denied |= u32::from(!target.step(decider, &mut left[index], now.as_nanos())?) << index;
        }
        let has_new = W == WIDEST && slots.contains(&NO_SLOT);
        // A cost of 0 leaves the state unchanged, even a full bucket's.
        let mut takes = targets.iter().all(|target| target.charge > 0);
        if denied == 0 && takes && !has_new {
            for (index, target) in targets.iter().enumerate() {
                locked.of(index)?.write(target, slots[index], &left[index]);
            }
            return Some(Taken { now, allowed: true, denied, left });
        }
        let enforces =
            |(index, target): (usize, &Target<'_>)| denied >> index & 1 == 1 && !target.lookup.shadow;
        let allowed = denied == 0 || W == WIDEST && !targets.iter().enumerate().any(enforces);
        if W == WIDEST && denied != 0 && targets.iter().any(|target| target.is_rare(has_new)) {
            return None;
        }
        takes &= allowed;
        if has_new {
            self.add_slots(targets, &mut slots, &mut locked, takes, now)?;
        }
        for (index, target) in targets.iter().enumerate() {
            let (limits, shard) = (&target.lookup.tag.limits, locked.of(index)?);
            if !(takes && denied >> index & 1 == 0) {
                left[index] = before[index];
                if denied == 0 || !target.counts_denied() {
                    continue;
                }
                let mut counted = before[index];
                let refused = packed::refuse(limits, &mut counted, now.as_nanos(), target.charge);
                denied |= u32::from(!refused.fits) << index;
                if !refused.counted {
                    continue;
                }
                left[index] = counted;
            }
            if has_new {
                shard.next_idle = packed::idle_at(limits, &left[index]).min(shard.next_idle);
            }
            shard.write(target, slots[index], &left[index]);
        }
        Some(Taken { now, allowed, denied, left })
    }

    /// Whether a key without a state of its tag has one elsewhere: of another tag, or unpacked.
    #[cold]
    fn has_other_state(&self, shard: &Shard, target: &Target<'_>) -> bool {
        shard.find(target.id, Some(target.lookup.width)).is_some()
    }

    /// Adds slots for the new keys of a request that takes. `None` if there is no room; a request
    /// that takes nothing gets the same answer.
    #[cold]
    fn add_slots<const N: usize>(
        &self,
        targets: &[Target<'_>; N],
        slots: &mut [StateOffset; N],
        locked: &mut impl LockedBudgets,
        takes: bool,
        now: Timestamp,
    ) -> Option<()> {
        let is_new = slots.map(|slot| slot == NO_SLOT);
        let new = || targets.iter().enumerate().filter(|(index, _)| is_new[*index]);
        if !takes && new().count() > 1 {
            // The room that each leaves to the next is not asked for here.
            return None;
        }
        for (nth, (_, target)) in new().enumerate() {
            let key_count = &target.lookup.key_count;
            if !takes {
                (target.is_global() || self.room.has_room(key_count)).then_some(())?;
            } else if !self.room.take(key_count, !target.is_global()) {
                new().take(nth).for_each(|(_, target)| self.room.release(&target.lookup.key_count));
                return None;
            }
        }
        if takes {
            for (index, target) in new() {
                self.add_slot(locked.of(index)?, target, now);
            }
            // A new slot may have moved others.
            for (index, (target, slot)) in targets.iter().zip(slots).enumerate() {
                (*slot, _) = locked.of(index)?.state_of::<WIDEST>(target)?;
            }
        }
        Some(())
    }

    /// Adds a slot for a new key.
    fn add_slot(&self, shard: &mut Shard, target: &Target<'_>, now: Timestamp) {
        let width = target.lookup.width;
        if shard.table(width).is_filled() {
            // Reuse a slot that has long been idle rather than grow. A key idle for a short time is
            // likely to return, and its slot is cheaper to keep than to make again.
            let since = now.saturating_sub(self.idle_for).as_nanos();
            self.room.reclaim(|freed| shard.reclaim_some(width, SWEEP_PER_NEW_KEY, since, freed));
        }
        shard.insert_packed(target.id, target.lookup.tag);
    }

    #[cold]
    pub(super) fn continue_sweep(&self, shard: &mut Shard, slots: usize, now: Timestamp) -> u64 {
        let since = now.saturating_sub(self.idle_for).as_nanos();
        let next = now.saturating_add(self.sweep_interval);
        self.room.reclaim(|freed| shard.sweep_some(slots, since, next, freed))
    }
}
