//! The short way: one rule, one subject, states that pack.
//!
//! This is what nearly every request is, and what the engine is measured by: an identity, one lock,
//! one slot, and the arithmetic done in place. Whatever is out of the ordinary (a limit that
//! changed, a block, a reservation, a log, a full table) is left to the long way, which can do
//! everything.
//!
//! It has two steps. [`MemoryStore::aim`] finds out where the state should be and has that memory
//! fetched; [`MemoryStore::take`] decides. What is done in between, reading the clock or aiming at
//! the other requests of a batch, hides the time that memory takes.

use smallvec::SmallVec;

use super::changes::Before;
use super::hash::Id;
use super::shard::{Found, Shard, WIDEST};
use super::table::prefetch;
use super::{MemoryStore, SWEPT_BY_EACH, SWEPT_BY_NEW, in_order, shard_of};
use crate::meter::Numbers;
use crate::sync::Guard;
use crate::sync::atomic::Ordering;
use crate::{Limit, Limits, Meter, Outcome, RuleName, Timestamp};

/// What each of several limits said.
pub(crate) type Outcomes = SmallVec<[Outcome; 4]>;

/// What a rule counts by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// One attribute's value, of a length that can be part of a key.
    Value(&'a str),
    /// Values, encoded.
    Encoded(&'a [u8]),
    /// Nothing: everyone together.
    Everyone,
}

/// Where a request's state should be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Aim {
    /// In a table.
    Slot(Slot),
    /// By itself, as that of a rule that counts everything together.
    Lone { rule: RuleName, limits: Limits, width: usize },
}

/// A slot in a table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    pub(super) id: Id,
    pub(super) home: u64,
    pub(super) limits: Limits,
    pub(super) width: usize,
}

impl MemoryStore {
    /// Finds out where a subject's state should be, and has it fetched. `None` is for the long way.
    #[inline(always)]
    pub(crate) fn aim(&self, rule: RuleName, subject: Subject<'_>, limits: Limits) -> Option<Aim> {
        let width = limits.words().filter(|width| *width <= WIDEST)?;
        let id = match subject {
            Subject::Value(value) => self.secrets.identify_value(rule.digest(), value.as_bytes()),
            Subject::Encoded(subject) => self.secrets.identify(rule.digest(), subject),
            Subject::Everyone => return Some(Aim::Lone { rule, limits, width }),
        };
        let slot = self.slot(id, limits, width);
        self.views.of(width, shard_of(slot.home)).prefetch(width, slot.home);
        Some(Aim::Slot(slot))
    }

    pub(super) fn slot(&self, id: Id, limits: Limits, width: usize) -> Slot {
        Slot { id, home: self.secrets.home(id), limits, width }
    }

    /// Has the lock of what was aimed at fetched, for a batch: between two threads it moves about.
    #[inline]
    pub(crate) fn prefetch_lock(&self, aim: &Aim) {
        if let Aim::Slot(slot) = aim {
            prefetch(std::ptr::from_ref(&self.shards[shard_of(slot.home)]).addr());
        }
    }

    /// Takes `cost` from the one limit there is, if it has that much. Says when that was, and puts
    /// the rest of the answer into `numbers`. `None` is for the long way: nothing has been done.
    #[inline(always)]
    pub(crate) fn take(
        &self,
        aim: &Aim,
        cost: u64,
        now: Timestamp,
        numbers: &mut Numbers,
    ) -> Option<Timestamp> {
        self.with_state(aim, now, |limits, words, now| {
            *numbers = Meter::decide_packed(limits.first()?, words, now, cost);
            Some(numbers.reset_at)
        })
    }

    /// Takes `cost` from each of several limits, if all have it.
    pub(crate) fn take_several(
        &self,
        aim: &Aim,
        cost: u64,
        now: Timestamp,
        outcomes: &mut Outcomes,
    ) -> Option<Timestamp> {
        self.with_state(aim, now, |limits, words, now| {
            take_all(limits, words, now, cost, outcomes);
            outcomes.iter().map(|outcome| outcome.reset_at.as_nanos()).max()
        })
    }

    /// Does `decide`, which says when nothing will be in use any more, to the state that was aimed
    /// at. Says when that was.
    #[inline(always)]
    fn with_state(
        &self,
        aim: &Aim,
        now: Timestamp,
        decide: impl FnOnce(Limits, &mut [u64], Timestamp) -> Option<u64>,
    ) -> Option<Timestamp> {
        let slot = match aim {
            Aim::Slot(slot) => slot,
            Aim::Lone { rule, limits, width } => return self.with_lone(*rule, *limits, *width, now, decide),
        };
        let mut shard = self.shards[shard_of(slot.home)].0.lock();
        let now = shard.arrive(now);
        if shard.sweep_is_due(now) {
            self.go_on_sweeping(&mut shard, SWEPT_BY_EACH, now);
        }
        let followed = shard.changes.followed;
        let Some(words) = shard.packed(slot.width, slot.id, slot.home, slot.limits) else {
            return self.first_seen(slot, shard, now, decide);
        };
        let before = followed.then(|| Before::new(words));
        let idle_at = decide(slot.limits, words, now)?;
        if before.is_some_and(|before| before.is_not(words)) {
            shard.note(slot.home);
        }
        shard.next_idle = shard.next_idle.min(idle_at);
        Some(now)
    }

    /// The same for a key that is new, or is not what was expected.
    #[inline(never)]
    fn first_seen(
        &self,
        slot: &Slot,
        mut shard: Guard<'_, Shard>,
        now: Timestamp,
        decide: impl FnOnce(Limits, &mut [u64], Timestamp) -> Option<u64>,
    ) -> Option<Timestamp> {
        let Slot { id, home, limits, width } = *slot;
        if shard.find(id, home, Some(width)) != Found::Nowhere || !self.promise(1, 1) {
            return None;
        }
        let mut fresh = [0; WIDEST];
        let idle_at = decide(limits, &mut fresh[..width], now)?;
        if fresh.iter().all(|word| *word == 0) {
            self.live.fetch_sub(1, Ordering::Relaxed);
            return Some(now);
        }
        if shard.table(width).is_filled(width) {
            // Rather than grow, make use of what has been idle for long. Who was here a moment ago is likely
            // to come back, and a place is cheaper to keep than to make again.
            let since = now.saturating_sub(self.idle_for).as_nanos();
            self.forgot(shard.reclaim_some(width, SWEPT_BY_NEW, since, &self.secrets));
        }
        shard.insert(width, id, limits, &self.secrets).copy_from_slice(&fresh[..width]);
        shard.next_idle = shard.next_idle.min(idle_at);
        Some(now)
    }

    #[cold]
    pub(super) fn go_on_sweeping(&self, shard: &mut Shard, slots: usize, now: Timestamp) -> u64 {
        let since = now.saturating_sub(self.idle_for).as_nanos();
        let next = now.saturating_add(self.sweep_interval);
        let freed = shard.sweep_some(slots, now, since, next, &self.secrets);
        self.forgot(freed);
        freed
    }
}

impl Shard {
    /// The time that a request is decided at: its reading of the clock, or the newest if it merely
    /// came late.
    #[inline]
    pub(super) fn arrive(&mut self, now: Timestamp) -> Timestamp {
        if now < self.latest {
            return self.arrive_late(now);
        }
        self.latest = now;
        now
    }

    #[cold]
    fn arrive_late(&mut self, now: Timestamp) -> Timestamp {
        let now = in_order(self.latest, now);
        self.set_time(now);
        now
    }

    /// Takes note that a state is put back that was last used at `latest`.
    pub(super) fn come_back(&mut self, latest: Timestamp) {
        self.latest = self.latest.max(latest);
        self.next_idle = 0;
    }
}

/// Takes `cost` from all of the packed states if all have it, and says what each limit says.
fn take_all(limits: Limits, words: &mut [u64], now: Timestamp, cost: u64, outcomes: &mut Outcomes) {
    // On a copy, which is kept if nobody objects: nearly always.
    let mut copy = [0; WIDEST];
    let copy = &mut copy[..words.len()];
    copy.copy_from_slice(words);
    each_state(limits, copy, |limit, state| {
        let numbers = Meter::decide_packed(limit, state, now, cost);
        outcomes.push(numbers.into());
        numbers.allowed()
    });
    if outcomes.iter().all(Outcome::allowed) {
        words.copy_from_slice(copy);
        return;
    }
    outcomes.clear();
    each_state(limits, words, |limit, state| {
        outcomes.push(Meter::refuse_packed(limit, state, now, cost));
        true
    });
}

/// Does something to each limit's part of a packed state, for as long as it says so.
fn each_state(limits: Limits, mut words: &mut [u64], mut each: impl FnMut(&Limit, &mut [u64]) -> bool) {
    for limit in limits {
        let (state, others) = words.split_at_mut(Meter::words(limit).unwrap_or(0));
        if !each(limit, state) {
            return;
        }
        words = others;
    }
}
