//! The short way: one rule, one subject, states that pack.
//!
//! This is what nearly every request is, and what the engine is measured by: an identity, one lock, one slot, and the
//! arithmetic done in place. Whatever is out of the ordinary (a limit that changed, a block, a
//! reservation, a log, a full table) is left to the long way, which can do everything.

use smallvec::SmallVec;

use super::shard::{Found, WIDEST};
use super::{MemoryStore, SWEPT_BY_EACH, SWEPT_BY_NEW, in_order, lock, shard_of};
use crate::sync::atomic::Ordering;
use crate::{Limits, Meter, Outcome, RuleName, Timestamp};

/// What each limit of the rule said.
pub(crate) type Outcomes = SmallVec<[Outcome; 4]>;

impl MemoryStore {
    /// Takes `cost` from each of a rule's limits if all have it. `None` is for the long way: nothing has been done.
    #[inline]
    pub(crate) fn take_one(
        &self,
        rule: RuleName,
        subject: &[u8],
        limits: Limits,
        cost: u64,
        now: Timestamp,
    ) -> Option<(Timestamp, Outcomes)> {
        let width = limits.words().filter(|width| *width <= WIDEST)?;
        let id = self.secrets.identify(rule.digest(), subject);
        let home = self.secrets.home(id);
        let mut shard = lock(&self.shards[shard_of(home)].0);
        let now = in_order(shard.latest, now);
        shard.set_time(now);
        if shard.sweep_is_due(now) {
            let since = now.saturating_sub(self.idle_for).as_nanos();
            let next = now.saturating_add(self.sweep_interval);
            self.forgot(shard.sweep_some(SWEPT_BY_EACH, now, since, next, &self.secrets));
        }
        if let Some(words) = shard.packed(width, id, home, limits) {
            let outcomes = take(limits, words, now, cost);
            shard.note_idle(&outcomes);
            return Some((now, outcomes));
        }
        if shard.find(id, home, Some(width)) != Found::Nowhere || !self.promise(1, super::Room::Bounded) {
            return None;
        }
        let mut fresh = [0; WIDEST];
        let outcomes = take(limits, &mut fresh[..width], now, cost);
        if fresh.iter().all(|word| *word == 0) {
            self.live.fetch_sub(1, Ordering::Relaxed);
            return Some((now, outcomes));
        }
        self.forgot(shard.reclaim_some(width, SWEPT_BY_NEW, now, &self.secrets));
        shard.insert(width, id, limits, &self.secrets).copy_from_slice(&fresh[..width]);
        shard.note_idle(&outcomes);
        Some((now, outcomes))
    }
}

/// Takes `cost` from all of the packed states if all have it, and says what each limit says.
#[inline]
fn take(limits: Limits, mut words: &mut [u64], now: Timestamp, cost: u64) -> Outcomes {
    if let [limit] = limits.as_slice() {
        return SmallVec::from_iter([Meter::decide_packed(limit, words, now, cost)]);
    }
    let mut rest = &*words;
    let admitted = limits.into_iter().all(|limit| {
        let (state, others) = rest.split_at(Meter::words(limit).unwrap_or(0));
        rest = others;
        Meter::packed_fits(limit, state, now, cost)
    });
    let mut outcomes = Outcomes::new();
    for limit in limits {
        let (state, others) = words.split_at_mut(Meter::words(limit).unwrap_or(0));
        outcomes.push(match admitted {
            true => Meter::decide_packed(limit, state, now, cost),
            false => Meter::refuse_packed(limit, state, now, cost),
        });
        words = others;
    }
    outcomes
}
