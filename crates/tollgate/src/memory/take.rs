//! The fast path of a check: take from a few budgets whose states are packed, all or nothing.
//!
//! First *locate*: hash the budgets' keys and prefetch their slots. Reading the clock, or locating
//! the other requests of a batch, then hides the memory latency. Then *lock* the shards, *admit* if
//! every state that enforces has enough left, *write*, and *answer* with the new states. A global
//! budget is handled like any other; its shard just has few others, and its slot is cached without
//! a prefetch.
//!
//! Budgets whose states exist and have the same width are decided on arrays
//! ([`MemoryStore::take_known`]); one budget takes one lock and no list. Any other budgets, new or
//! not, take the same steps on slices ([`MemoryStore::take`]), and so do shadow rules and denials
//! that count. Everything else (a replaced limit, a block, a reservation, a log, a state ahead of
//! the clock, a full store, a shadow rule that counts) is left to [`apply`](super::apply).

use super::MemoryStore;
use super::locked::{Locked, LockedShards};
use super::lookup::{Decider, Target};
use super::room::Freed;
use super::shard::{Location, Shard};
use super::table::StateOffset;
use crate::decision::{StatesBuilder, TAGS_MAX};
use crate::meter::packed;
use crate::{Limit, Timestamp};

/// Slots that each request sweeps while a sweep is under way.
pub(super) const SWEEP_PER_REQUEST: usize = 8;

/// Slots that a new key searches for idle ones before a table grows.
const SWEEP_PER_NEW_KEY: usize = 16;

impl MemoryStore {
    /// Takes the cost from all budgets of a request if every one has enough, where all states exist
    /// and have `W` words. `None` leaves the request to [`take`](Self::take): nothing has been
    /// done.
    #[inline(always)]
    pub(crate) fn take_known<const N: usize, const W: usize>(
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
        mut locked: impl Locked,
        targets: &[Target<'_>; N],
        decider: Decider<'_>,
        now: Timestamp,
    ) -> Option<Taken<N, W>> {
        let now = locked.observe_clocks(self, now);
        let (mut offsets, mut before, mut left) = ([0; N], [[0; W]; N], [[0; W]; N]);
        let mut denied = 0;
        for (index, target) in targets.iter().enumerate() {
            let (offset, state) = locked.of(index)?.state_of(target)?;
            (offsets[index], before[index], left[index]) = (offset, *state, *state);
            denied |= u32::from(!target.step(decider, &mut left[index], now.as_nanos())?) << index;
        }
        if denied != 0 && targets.iter().any(Target::counts_denied) {
            return None;
        }
        // A cost of 0 leaves the state unchanged, even a full bucket's.
        if denied != 0 || targets.iter().any(|target| target.charge == 0) {
            return Some(Taken { now, denied, left: before });
        }
        for (index, target) in targets.iter().enumerate() {
            let shard = locked.of(index)?;
            *shard.state_at(offsets[index])? = left[index];
            shard.note(target.home);
        }
        Some(Taken { now, denied, left })
    }

    /// Takes the cost from all budgets of a request if every one that enforces has enough, and
    /// pushes the states it leaves. A denial counts as an attempt where a limit counts those.
    /// `inline` is the limit that came with the request. `None` leaves the request to
    /// [`apply_now`](Self::apply_now): nothing has been done.
    pub(crate) fn take(
        &self,
        targets: &[Target<'_>],
        inline: Option<&Limit>,
        now: Timestamp,
        left: &mut StatesBuilder,
    ) -> Option<Verdicts> {
        // The same steps, compiled for each length of the list.
        match targets.len() {
            1 => self.take_list::<1>(targets.first_chunk()?, inline, now, left),
            2 => self.take_list::<2>(targets.first_chunk()?, inline, now, left),
            3 => self.take_list::<3>(targets.first_chunk()?, inline, now, left),
            TAGS_MAX => self.take_list::<TAGS_MAX>(targets.first_chunk()?, inline, now, left),
            _ => None,
        }
    }

    #[inline(always)]
    fn take_list<const N: usize>(
        &self,
        targets: &[Target<'_>; N],
        inline: Option<&Limit>,
        now: Timestamp,
        left: &mut StatesBuilder,
    ) -> Option<Verdicts> {
        let mut locked = LockedShards::lock(targets);
        let now = locked.observe_clocks(self, now);
        let (mut slots, mut has_new) = ([None; N], false);
        let (mut denied, mut bit, mut takes, mut allowed) = (0, 1, true, true);
        for (index, (target, slot)) in targets.iter().zip(&mut slots).enumerate() {
            let (lookup, shard) = (target.lookup, locked.of(index)?);
            *slot = shard.offset_of(target);
            let draft = left.push(lookup.tag, lookup.width)?;
            match *slot {
                Some(at) => copy(draft, shard.table(lookup.width).words_at(at)?),
                None if self.has_other_state(shard, target) => return None,
                None => has_new = true,
            }
            takes &= target.charge > 0;
            let fits = match inline {
                None => packed::take(&lookup.steps, draft, now.as_nanos(), target.charge)?,
                Some(limit) => packed::take_other(limit, draft, now.as_nanos(), target.charge)?.0,
            };
            denied |= if fits { 0 } else { bit };
            allowed &= fits || lookup.shadow;
            bit <<= 1;
            left.push_inline(inline);
        }
        // A key without a slot may get one, or a shadow rule may count an attempt that its report
        // does not show.
        let is_rare = |target: &Target<'_>| match (target.counts_denied(), target.lookup.shadow) {
            (true, true) => true,
            (false, false) => false,
            _ => has_new,
        };
        if denied != 0 && targets.iter().any(is_rare) {
            return None;
        }
        takes &= allowed;
        if has_new {
            self.add_slots(targets, &mut slots, &mut locked, takes, now)?;
        }
        let mut drafts = left.words_mut();
        for (index, (target, slot)) in targets.iter().zip(&slots).enumerate() {
            let (lookup, shard) = (target.lookup, locked.of(index)?);
            let (draft, _) = drafts.split_at_mut_checked(lookup.width)?;
            match slot.and_then(|at| shard.table_mut(lookup.width).words_at_mut(at)) {
                Some(state) if takes && denied >> index & 1 == 0 => {
                    copy(state, draft);
                    if has_new {
                        shard.next_idle = packed::idle_at(&lookup.tag.limits, draft).min(shard.next_idle);
                    }
                    shard.note(target.home);
                }
                Some(state) => {
                    let counts = denied != 0 && target.counts_denied();
                    let limits = &lookup.tag.limits;
                    let refuse = || packed::refuse(limits, state, now.as_nanos(), target.charge);
                    let refused = counts.then(refuse);
                    copy(draft, state);
                    if let Some(refused) = refused {
                        denied |= u32::from(!refused.fits) << index;
                        if refused.counted {
                            shard.note(target.home);
                        }
                    }
                }
                None => draft.fill(0),
            }
            drafts = drafts.get_mut(lookup.words()..)?;
        }
        Some(Verdicts { now, denied, allowed })
    }

    /// Whether a key without a state of its tag has one elsewhere: of another tag, unpacked, or in
    /// the version 1 format.
    #[cold]
    fn has_other_state(&self, shard: &Shard, target: &Target<'_>) -> bool {
        self.has_legacy() || shard.find(target.id, Some(target.lookup.width)) != Location::Absent
    }

    /// Adds slots for the new keys of a request that takes. `None` if there is no room; a request
    /// that takes nothing gets the same answer.
    #[cold]
    fn add_slots<const N: usize>(
        &self,
        targets: &[Target<'_>; N],
        slots: &mut [Option<StateOffset>; N],
        locked: &mut LockedShards<'_, N>,
        takes: bool,
        now: Timestamp,
    ) -> Option<()> {
        let is_new = slots.map(|slot| slot.is_none());
        let new = || targets.iter().enumerate().filter(|(index, _)| is_new[*index]);
        if !takes && new().count() > 1 {
            // The room that each leaves to the next is not asked for here.
            return None;
        }
        for (nth, (_, target)) in new().enumerate() {
            let key_count = &target.lookup.key_count;
            if !takes {
                (target.is_global() || self.room.has_room(key_count)).then_some(())?;
            } else if target.is_global() {
                self.room.take_unbounded(key_count);
            } else if !self.room.take(key_count) {
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
                *slot = locked.of(index)?.offset_of(target);
            }
        }
        Some(())
    }

    /// Advances the shard's clock, continues a sweep that is due, and returns the time to decide
    /// at.
    #[inline(always)]
    pub(super) fn observe_clock(&self, shard: &mut Shard, now: Timestamp) -> Timestamp {
        let now = shard.observe_clock(now);
        if shard.sweep_is_due(now) {
            self.continue_sweep(shard, SWEEP_PER_REQUEST, now);
        }
        now
    }

    /// Adds a slot for a new key.
    fn add_slot(&self, shard: &mut Shard, target: &Target<'_>, now: Timestamp) {
        let width = target.lookup.width;
        if shard.table(width).is_filled() {
            // Reuse a slot that has long been idle rather than grow. A key idle for a short time is
            // likely to return, and its slot is cheaper to keep than to make again.
            let (since, mut freed) = (now.saturating_sub(self.idle_for).as_nanos(), Freed::default());
            shard.reclaim_some(width, SWEEP_PER_NEW_KEY, since, &mut freed);
            self.room.reclaim(&freed);
        }
        shard.insert(target.id, target.lookup.tag);
    }

    #[cold]
    pub(super) fn continue_sweep(&self, shard: &mut Shard, slots: usize, now: Timestamp) -> u64 {
        let since = now.saturating_sub(self.idle_for).as_nanos();
        let mut freed = Freed::default();
        shard.sweep_some(slots, since, now.saturating_add(self.sweep_interval), &mut freed);
        self.room.reclaim(&freed);
        freed.keys()
    }
}

/// The result of [`MemoryStore::take`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Verdicts {
    pub(crate) now: Timestamp,
    /// A bit for each budget that has too little.
    pub(crate) denied: u32,
    /// Whether only shadow rules have too little.
    pub(crate) allowed: bool,
}

/// The result of [`MemoryStore::take_known`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken<const N: usize, const W: usize> {
    pub(crate) now: Timestamp,
    /// A bit for each budget that has too little.
    pub(crate) denied: u32,
    /// The states after the request.
    pub(crate) left: [[u64; W]; N],
}

/// Copies a state. Most have one word or two.
#[inline(always)]
fn copy(to: &mut [u64], from: &[u64]) {
    match (to, from) {
        ([to], [from]) => *to = *from,
        ([to, to_next], [from, from_next]) => (*to, *to_next) = (*from, *from_next),
        (to, from) if to.len() == from.len() => to.copy_from_slice(from),
        _ => {}
    }
}
