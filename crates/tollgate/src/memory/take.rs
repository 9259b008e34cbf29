//! The fast path of a check: take from a few budgets whose states are packed, all or nothing.
//!
//! First *locate*: hash the budgets' keys and prefetch their slots. Reading the clock, or locating
//! the other requests of a batch, then hides the memory latency. Then *lock* the shards, *admit* if
//! every state has enough left, *write*, and *answer* with the new states. A global budget is
//! handled like any other; its shard just has few others.
//!
//! One budget with an existing one-word state takes one lock and no loop
//! ([`MemoryStore::take_one`]). Any other budgets, new or not, take the same steps in a loop
//! ([`MemoryStore::take`]). Everything else (a replaced limit, a denial that counts, a block, a
//! reservation, a log, a state ahead of the clock, a full store) is left to
//! [`apply`](super::apply).

use super::locked::{Shards, lock, observe_clocks};
use super::lookup::Target;
use super::room::Freed;
use super::shard::{Location, Shard};
use super::table::StateOffset;
use super::{MemoryStore, SHARDS};
use crate::decision::{States, StatesBuilder, TAGS_MAX};
use crate::meter::packed;
use crate::rule::Tag;
use crate::{Decision, Limit, Timestamp};

/// Slots that each request sweeps while a sweep is under way.
pub(super) const SWEEP_PER_REQUEST: usize = 8;

/// Slots that a new key searches for idle ones before a table grows.
const SWEEP_PER_NEW_KEY: usize = 16;

impl MemoryStore {
    /// Takes the cost from a request's only budget, if its one-word state exists. `None` leaves the
    /// request to [`take`](Self::take): nothing has been done.
    #[inline(always)]
    pub(crate) fn take_one(&self, target: &Target<'_>, now: Timestamp) -> Option<Taken> {
        let Target { lookup, slot, cost, charge } = *target;
        let bucket = lookup.word.as_ref()?;
        let shard = &mut *self.shards[slot.shard].0.lock();
        let now = self.observe_clock(shard, now);
        let (word, next_idle) = shard.word_of(lookup, &slot)?;
        let Some(full_at) = bucket.take(*word, now.as_nanos(), charge)? else {
            return Some(Taken { tag: lookup.tag, now, cost, allowed: false, left: *word });
        };
        // A cost of 0 leaves the state unchanged, even a full bucket's.
        let left = if charge == 0 { *word } else { full_at };
        *word = left;
        *next_idle = left.min(*next_idle);
        shard.note(slot.home);
        Some(Taken { tag: lookup.tag, now, cost, allowed: true, left })
    }

    /// Takes the cost from all budgets of a request if every one has enough, and pushes the states
    /// it leaves. `inline` is the limit that came with the request. `None` leaves the request to
    /// [`apply_now`](Self::apply_now): nothing has been done.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        targets: &[Target<'_>],
        inline: Option<&Limit>,
        now: Timestamp,
        left: &mut StatesBuilder,
    ) -> Option<Verdicts> {
        match targets {
            [] => None,
            // The same steps, compiled for a list of one.
            [target] => {
                let shard = &mut *self.shards[target.slot.shard].0.lock();
                let now = self.observe_clock(shard, now);
                self.take_locked(shard, std::slice::from_ref(target), inline, now, left)
            }
            _ => {
                let mut locked = lock(self, targets.iter().map(|target| target.slot.shard));
                let shards = locked.as_mut_slice();
                let now = observe_clocks(shards, self, now);
                self.take_locked(shards, targets, inline, now, left)
            }
        }
    }

    #[inline(always)]
    fn take_locked(
        &self,
        shards: &mut (impl Shards + ?Sized),
        targets: &[Target<'_>],
        inline: Option<&Limit>,
        now: Timestamp,
        left: &mut StatesBuilder,
    ) -> Option<Verdicts> {
        let (mut slots, mut idle_at) = ([None; TAGS_MAX], u64::MAX);
        let (mut denied, mut bit, mut takes, mut has_new) = (0, 1, true, false);
        for (target, slot) in targets.iter().zip(&mut slots) {
            let (lookup, shard) = (target.lookup, shards.of(target.slot.shard));
            *slot = shard.offset_of(lookup, &target.slot);
            let draft = left.push(lookup.tag, lookup.width)?;
            match *slot {
                Some(at) => copy(draft, shard.table(lookup.width).words_at(at)?),
                None if self.has_other_state(shard, target) => return None,
                None => has_new = true,
            }
            takes &= target.cost > 0;
            match packed::take(target.limits(inline), draft, now.as_nanos(), target.charge)? {
                Some(next) => idle_at = next.min(idle_at),
                None => denied |= bit,
            }
            bit <<= 1;
            left.push_inline(inline);
        }
        if denied != 0 {
            if takes && targets.iter().any(|target| target.lookup.tag.counts_denied) {
                return None;
            }
            takes = false;
        }
        if has_new {
            self.add_slots(targets, &mut slots, shards, takes, now)?;
        }
        let mut drafts = left.words_mut();
        for (target, slot) in targets.iter().zip(&slots) {
            let (lookup, shard) = (target.lookup, shards.of(target.slot.shard));
            let (draft, _) = drafts.split_at_mut_checked(lookup.width)?;
            match slot.and_then(|at| shard.table_mut(lookup.width).words_at_mut(at)) {
                Some(state) if takes => {
                    copy(state, draft);
                    shard.next_idle = idle_at.min(shard.next_idle);
                    shard.note(target.slot.home);
                }
                Some(state) => copy(draft, state),
                None => draft.fill(0),
            }
            drafts = drafts.get_mut(lookup.words()..)?;
        }
        Some(Verdicts { now, denied })
    }

    /// Whether a key without a state of its tag has one elsewhere: of another tag, unpacked, or in
    /// the version 1 format.
    #[cold]
    fn has_other_state(&self, shard: &Shard, target: &Target<'_>) -> bool {
        self.has_legacy() || shard.find(target.slot.id, Some(target.lookup.width)) != Location::Absent
    }

    /// Adds slots for the new keys of a request that takes. `None` if there is no room; a request
    /// that takes nothing gets the same answer.
    #[cold]
    fn add_slots(
        &self,
        targets: &[Target<'_>],
        slots: &mut [Option<StateOffset>; TAGS_MAX],
        shards: &mut (impl Shards + ?Sized),
        takes: bool,
        now: Timestamp,
    ) -> Option<()> {
        let is_new = slots.map(|slot| slot.is_none());
        let new = targets.iter().zip(is_new).filter(|(_, is_new)| *is_new).map(|(target, _)| target);
        for (index, target) in new.clone().enumerate() {
            if !takes {
                let has_room = target.slot.shard >= SHARDS || self.room.has_room(&target.lookup.key_count);
                has_room.then_some(())?;
            } else if target.slot.shard >= SHARDS {
                self.room.take_unbounded(&target.lookup.key_count);
            } else if !self.room.take(&target.lookup.key_count) {
                new.take(index).for_each(|target| self.room.release(&target.lookup.key_count));
                return None;
            }
        }
        if takes {
            new.for_each(|target| self.add_slot(shards.of(target.slot.shard), target, now));
            // A new slot may have moved others.
            for (target, slot) in targets.iter().zip(slots) {
                *slot = shards.of(target.slot.shard).offset_of(target.lookup, &target.slot);
            }
        }
        Some(())
    }

    /// Advances the shard's clock, continues a sweep that is due, and returns the time to decide
    /// at.
    #[inline(always)]
    fn observe_clock(&self, shard: &mut Shard, now: Timestamp) -> Timestamp {
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
        shard.insert(target.slot.id, target.lookup.tag);
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
}

/// The result of [`MemoryStore::take_one`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    tag: Tag,
    now: Timestamp,
    cost: u64,
    pub(crate) allowed: bool,
    left: u64,
}

impl Taken {
    #[inline(always)]
    pub(crate) const fn decision(self) -> Decision {
        Decision::of_states(self.now, self.cost, self.allowed, States::of_word(self.tag, self.left))
    }
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
