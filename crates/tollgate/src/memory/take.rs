//! The fast path of a check: take from a few budgets whose states are packed, all or nothing.
//!
//! First *locate*: hash the budgets' keys and prefetch their slots. Reading the clock, or locating
//! the other requests of a batch, then hides the memory latency. Then *lock* the shards, *admit* if
//! every state has enough left, *write*, and *answer* with the new states. A global budget is
//! handled like any other; its shard just has few others.
//!
//! One budget with an existing state takes one lock and no loop ([`MemoryStore::take_one`]).
//! Several budgets, or a new one, take the same steps over several locks
//! ([`MemoryStore::take_all`]). Everything else (a replaced limit, a denial that counts, a block, a
//! reservation, a log, a state ahead of the clock, a full store) is left to
//! [`apply`](super::apply).

use super::locked::Locked;
use super::lookup::Target;
use super::room::Freed;
use super::shard::{Location, Shard};
use super::{MemoryStore, SHARDS};
use crate::decision::{TAGS_MAX, WORDS_MAX};
use crate::limit::Kind;
use crate::meter::packed;
use crate::rule::Tag;
use crate::{Decision, Limit, Timestamp};

/// Slots that each request sweeps while a sweep is under way.
pub(super) const SWEEP_PER_REQUEST: usize = 8;

/// Slots that a new key searches for idle ones before a table grows.
const SWEEP_PER_NEW_KEY: usize = 16;

impl MemoryStore {
    /// Takes the cost from a request's only budget, if its one-word state exists. `None` leaves the
    /// request to [`take_all`](Self::take_all): nothing has been done.
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

    /// Takes the cost from a request's only budget, under any limits, if its state exists. `inline`
    /// is the limit that came with the request. `None`: nothing has been done.
    pub(crate) fn take_known(
        &self,
        target: &Target<'_>,
        inline: Option<&Limit>,
        now: Timestamp,
        denied: &mut u32,
    ) -> Option<Decision> {
        let Target { lookup, slot, cost, charge } = *target;
        let shard = &mut *self.shards[slot.shard].0.lock();
        let now = self.observe_clock(shard, now);
        let (state, next_idle) = shard.state_of(lookup, &slot)?;
        let mut left = [0; WORDS_MAX];
        let (words, rest) = left.split_at_mut_checked(lookup.width)?;
        copy(words, state);
        let taken = packed::take(target.limits(inline), words, now.as_nanos(), charge)?;
        match taken {
            Some(idle_at) if cost > 0 => {
                copy(state, words);
                *next_idle = idle_at.min(*next_idle);
                shard.note(slot.home);
            }
            None if cost > 0 && lookup.tag.counts_denied => return None,
            _ => copy(words, state),
        }
        write_inline(inline, rest);
        *denied = u32::from(taken.is_none());
        Some(Decision::of_states(now, cost, taken.is_some(), [Some(lookup.tag), None, None, None], left))
    }

    /// Takes the cost from all budgets of a request if every one has enough. Sets a bit of `denied`
    /// for each budget that has too little. `None` leaves the request to
    /// [`apply_now`](Self::apply_now): nothing has been done.
    #[inline(never)]
    pub(crate) fn take_all(
        &self,
        targets: &[Target<'_>],
        inline: Option<&Limit>,
        cost: u64,
        now: Timestamp,
        denied: &mut u32,
    ) -> Option<Decision> {
        if targets.is_empty() {
            return None;
        }
        let mut shards = Locked::new(self, targets.iter().map(|target| target.slot.shard));
        let now = shards.observe_clock(self, now);
        let (mut tags, mut left, mut is_new) = ([None; TAGS_MAX], [0; WORDS_MAX], [false; TAGS_MAX]);
        let mut rest = left.as_mut_slice();
        let (mut too_little, mut bit) = (0, 1);
        for ((target, tag), is_new) in targets.iter().zip(&mut tags).zip(&mut is_new) {
            let (lookup, shard) = (target.lookup, shards.of(target.slot.shard));
            let (words, after) = rest.split_at_mut_checked(lookup.width)?;
            if let Some((state, _)) = shard.state_of(lookup, &target.slot) {
                copy(words, state);
            } else if self.has_legacy() || shard.find(target.slot.id, Some(lookup.width)) != Location::Absent
            {
                return None;
            } else {
                *is_new = true;
            }
            if packed::take(target.limits(inline), words, now.as_nanos(), target.charge)?.is_none() {
                too_little |= bit;
            }
            (*tag, bit) = (Some(lookup.tag), bit << 1);
            let written = write_inline(inline, after);
            rest = after.get_mut(written..)?;
        }
        let takes = too_little == 0 && cost > 0;
        if too_little != 0 && cost > 0 && targets.iter().any(|target| target.lookup.tag.counts_denied) {
            return None;
        }
        if is_new.contains(&true) {
            self.make_room(targets, &is_new, takes)?;
        }
        let mut rest = left.as_mut_slice();
        for (target, is_new) in targets.iter().zip(is_new) {
            let (lookup, shard) = (target.lookup, shards.of(target.slot.shard));
            let (words, after) = rest.split_at_mut_checked(lookup.width)?;
            rest = after.get_mut(target.words().saturating_sub(lookup.width)..)?;
            if takes && is_new {
                self.add_slot(shard, target, now);
            }
            let Some((state, next_idle)) = shard.state_of(lookup, &target.slot) else {
                words.fill(0);
                continue;
            };
            if takes {
                copy(state, words);
                *next_idle = packed::idle_at(target.limits(inline), state).min(*next_idle);
                shard.note(target.slot.home);
            } else {
                copy(words, state);
            }
        }
        *denied = too_little;
        Some(Decision::of_states(now, cost, too_little == 0, tags, left))
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

    /// Reserves room for the new keys of a request if they are to be kept. `None` if there is not
    /// enough; a request that keeps nothing gets the same answer.
    fn make_room(&self, targets: &[Target<'_>], is_new: &[bool], keeps: bool) -> Option<()> {
        let new = || targets.iter().zip(is_new).filter(|(_, is_new)| **is_new).map(|(target, _)| target);
        for (index, target) in new().enumerate() {
            if !keeps {
                let has_room = target.slot.shard >= SHARDS || self.room.has_room(&target.lookup.key_count);
                has_room.then_some(())?;
            } else if target.slot.shard >= SHARDS {
                self.room.take_unbounded(&target.lookup.key_count);
            } else if !self.room.take(&target.lookup.key_count) {
                new().take(index).for_each(|target| self.room.release(&target.lookup.key_count));
                return None;
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
        let mut words = [0; WORDS_MAX];
        words[0] = self.left;
        Decision::of_states(self.now, self.cost, self.allowed, [Some(self.tag), None, None, None], words)
    }
}

/// Writes an inline limit into `words`, and returns how many words that takes.
#[inline]
fn write_inline(limit: Option<&Limit>, words: &mut [u64]) -> usize {
    match limit.map(|limit| &limit.0) {
        Some(Kind::InlineBucket(inline)) => {
            let (token, parts) = inline.bucket.token();
            copy(words, &[inline.bucket.capacity, token, parts]);
            3
        }
        Some(Kind::InlineWindow(window)) => {
            copy(words, &[window.limit, window.period]);
            2
        }
        _ => 0,
    }
}

#[inline(always)]
fn copy(to: &mut [u64], from: &[u64]) {
    for (to, from) in to.iter_mut().zip(from) {
        *to = *from;
    }
}
