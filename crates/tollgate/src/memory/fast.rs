//! The short way: one rule, one subject, states that pack.
//!
//! This is what nearly every request is, and what the engine is measured by: an identity, one lock,
//! one slot, and the arithmetic done in place. Whatever is out of the ordinary (a limit that
//! changed, a block, a reservation, a log, a full table) is left to the long way, which can do
//! everything.

use smallvec::SmallVec;

use super::shard::{Found, Shard, WIDEST};
use super::{MemoryStore, Room, SWEPT_BY_EACH, SWEPT_BY_NEW, in_order, lock, shard_of};
use crate::sync::atomic::Ordering;
use crate::{Clock, Limits, Meter, Outcome, RuleName, Timestamp};

/// What a rule's limits said, and when.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) now: Timestamp,
    pub(crate) outcomes: Outcomes,
}

/// What each limit said. Most rules have one, and moving room for four around would cost more than
/// deciding.
#[derive(Debug)]
pub(crate) enum Outcomes {
    One(Outcome),
    Several(SmallVec<[Outcome; 4]>),
}

/// What a rule counts by.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    /// One attribute's value, of a length that can be part of a key.
    Value(&'a str),
    /// Anything, encoded.
    Encoded(&'a [u8]),
}

impl MemoryStore {
    /// Takes `cost` from each of a rule's limits if all have it. `None` is for the long way:
    /// nothing has been done.
    #[inline]
    pub(crate) fn take_one(
        &self,
        rule: RuleName,
        subject: Subject<'_>,
        limits: Limits,
        cost: u64,
        clock: &dyn Clock,
    ) -> Option<Taken> {
        let width = limits.words().filter(|width| *width <= WIDEST)?;
        let id = match subject {
            Subject::Value(value) => self.secrets.identify_value(rule.digest(), value.as_bytes()),
            Subject::Encoded(subject) => self.secrets.identify(rule.digest(), subject),
        };
        let home = self.secrets.home(id);
        let now = clock.now();
        let mut shard = lock(&self.shards[shard_of(home)].0);
        let now = in_order(shard.latest, now);
        shard.set_time(now);
        if shard.sweep_is_due(now) {
            self.go_on_sweeping(&mut shard, now);
        }
        if let Some(words) = shard.packed(width, id, home, limits) {
            let (outcomes, idle_at) = take(limits, words, now, cost);
            shard.next_idle = shard.next_idle.min(idle_at);
            return Some(Taken { now, outcomes });
        }
        if shard.find(id, home, Some(width)) != Found::Nowhere || !self.promise(1, Room::Bounded) {
            return None;
        }
        let mut fresh = [0; WIDEST];
        let (outcomes, idle_at) = take(limits, &mut fresh[..width], now, cost);
        if fresh.iter().all(|word| *word == 0) {
            self.live.fetch_sub(1, Ordering::Relaxed);
            return Some(Taken { now, outcomes });
        }
        if shard.table(width).is_filled(width) {
            // Rather than grow, make use of what has been idle for long. Who was here a moment ago is likely
            // to come back, and a place is cheaper to keep than to make again.
            let since = now.saturating_sub(self.idle_for).as_nanos();
            self.forgot(shard.reclaim_some(width, SWEPT_BY_NEW, since, &self.secrets));
        }
        shard.insert(width, id, limits, &self.secrets).copy_from_slice(&fresh[..width]);
        shard.next_idle = shard.next_idle.min(idle_at);
        Some(Taken { now, outcomes })
    }

    #[cold]
    pub(super) fn go_on_sweeping(&self, shard: &mut Shard, now: Timestamp) {
        let since = now.saturating_sub(self.idle_for).as_nanos();
        let next = now.saturating_add(self.sweep_interval);
        self.forgot(shard.sweep_some(SWEPT_BY_EACH, now, since, next, &self.secrets));
    }
}

/// Takes `cost` from all of the packed states if all have it. Says what each limit says, and when
/// nothing will be in use any more.
#[inline]
fn take(limits: Limits, words: &mut [u64], now: Timestamp, cost: u64) -> (Outcomes, u64) {
    if let [limit] = limits.as_slice() {
        let outcome = Meter::decide_packed(limit, words, now, cost);
        return (Outcomes::One(outcome), outcome.reset_at.as_nanos());
    }
    take_several(limits, words, now, cost)
}

fn take_several(limits: Limits, mut words: &mut [u64], now: Timestamp, cost: u64) -> (Outcomes, u64) {
    let mut rest = &*words;
    let admitted = limits.into_iter().all(|limit| {
        let (state, others) = rest.split_at(Meter::words(limit).unwrap_or(0));
        rest = others;
        Meter::packed_fits(limit, state, now, cost)
    });
    let mut outcomes: SmallVec<[Outcome; 4]> = SmallVec::new();
    for limit in limits {
        let (state, others) = words.split_at_mut(Meter::words(limit).unwrap_or(0));
        outcomes.push(match admitted {
            true => Meter::decide_packed(limit, state, now, cost),
            false => Meter::refuse_packed(limit, state, now, cost),
        });
        words = others;
    }
    let idle_at = outcomes.iter().map(|outcome| outcome.reset_at.as_nanos()).max().unwrap_or(0);
    (Outcomes::Several(outcomes), idle_at)
}
