//! The usual request: it takes from a few budgets whose states are packed, all or nothing.
//!
//! *Aim*: find out who the budgets are, and have their slots fetched. What is done in between,
//! reading the clock or aiming at the other requests of a batch, hides the time that memory takes.
//! Then *lock* the shards, *admit* if all states have room, *write*, and *answer* with the states
//! that are left. A budget of everyone is a budget like any other, in a shard with few others.
//!
//! One budget whose state is there takes one lock and no loop ([`MemoryStore::take_one`]). Several,
//! or one that is new, go the same steps over several locks ([`MemoryStore::take_all`]). Whatever is
//! out of the ordinary (a limit that was replaced, a denial that counts, a block, a reservation, a
//! log, a state ahead of the clock, a full table) is left to [`apply`](super::apply), which can do
//! everything.

use super::hash::{Id, POOLED, Prefix};
use super::room::{Freed, Kept};
use super::shard::{Found, Shard, WIDEST, in_order};
use super::table::prefetch;
use super::{GLOBALS, MemoryStore, SHARDS};
use crate::decision::{TAGS_MAX, WORDS_MAX};
use crate::key::{Budget, Key, digest};
use crate::limit::Kind;
use crate::algorithm::token_bucket::Word;
use crate::meter::packed;
use crate::stats::Tally;
use crate::request::Client;
use crate::rule::Tag;
use crate::sync::Guard;
use crate::{Decision, Limit, Timestamp};

use smallvec::SmallVec;
use std::sync::Arc;

/// How many slots each request goes through while a sweep is under way.
pub(super) const SWEPT_BY_EACH: usize = 8;

/// How many slots the arrival of a new key looks at for ones that turned idle, before a table
/// grows.
const SWEPT_BY_NEW: usize = 16;

/// What is known of a budget before any request for it: made when rules are set.
#[derive(Clone, Debug)]
pub(crate) struct Aim {
    tag: Tag,
    prefix: Prefix,
    limits: &'static [Limit],
    /// How many words its states have; none if they do not pack.
    width: usize,
    unit_cost: u64,
    /// Its limits, if they are one bucket whose state is one word.
    word: Option<Word>,
    kept: Arc<Kept>,
    /// The counts of its rule.
    tally: Arc<Tally>,
    /// The one slot, of a budget of everyone.
    global: Slot,
}

/// Where a state is looked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) id: Id,
    pub(super) home: u64,
    pub(super) shard: usize,
}

/// A budget that a request draws on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target<'a> {
    aim: &'a Aim,
    slot: Slot,
    cost: u64,
    charge: u64,
}

/// Whose budget it is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Subject<'a> {
    Client(Client<'a>),
    /// Values, encoded; none for everyone's.
    Values(&'a [u8]),
}

impl MemoryStore {
    /// Gets ready for requests under a tag.
    pub(crate) fn aim(&self, tag: Tag, tally: Arc<Tally>) -> Aim {
        let digest = tag.budget.digest(tag.rule);
        let prefix = self.secrets.prefix(digest);
        let global = self.global_slot(self.secrets.identify(&prefix, &[]), digest);
        let width = tag.words().filter(|width| *width <= WIDEST).unwrap_or(0);
        let (limits, kept) = (tag.limits.as_slice(), self.room.of(tag.rule));
        let word = match limits {
            [Limit(Kind::TokenBucket(bucket))] => bucket.word(),
            _ => None,
        };
        Aim { tag, prefix, limits, width, unit_cost: tag.unit_cost, word, kept, tally, global }
    }

    /// Finds out where a budget's state is, and has it fetched. `None` if it does not pack.
    #[inline(always)]
    pub(crate) fn target<'a>(
        &self,
        aim: &'a Aim,
        subject: Subject<'_>,
        inline: Option<&Limit>,
        cost: u64,
    ) -> Option<Target<'a>> {
        if aim.width == 0 {
            return None;
        }
        let mut prefix = &aim.prefix;
        let with_period;
        if let Some(Limit(Kind::InlineWindow(window))) = inline {
            with_period = self.secrets.with_period(prefix, window.period);
            prefix = &with_period;
        }
        let slot = match subject {
            Subject::Values([]) => aim.global,
            Subject::Client(client) => self.slot(self.secrets.identify_client(prefix, client)),
            Subject::Values(values) => self.slot(self.secrets.identify(prefix, values)),
        };
        prefetch(std::ptr::from_ref(&self.shards[slot.shard]).addr());
        match aim.word {
            Some(_) => self.views.prefetch(1, slot.shard, slot.home),
            None => self.views.prefetch(aim.width, slot.shard, slot.home),
        }
        Some(Target { aim, slot, cost, charge: cost.saturating_mul(aim.unit_cost) })
    }

    #[inline]
    fn slot(&self, id: Id) -> Slot {
        let home = self.secrets.home(id);
        Slot { id, home, shard: shard_of(home) }
    }

    fn global_slot(&self, id: Id, digest: u64) -> Slot {
        let [byte, ..] = digest.to_le_bytes();
        Slot { id, home: self.secrets.home(id), shard: SHARDS + usize::from(byte) % GLOBALS }
    }

    /// The slot of the pool of all new keys of a budget, under the same limits, when the table is
    /// full.
    pub(super) fn pool_slot(&self, tag: Tag) -> Slot {
        let limits = tag.limits.iter().flat_map(|limit| limit.to_string().into_bytes());
        let digest = digest([tag.budget.digest(tag.rule).to_le_bytes().to_vec(), limits.collect()].concat());
        self.slot(self.secrets.identify(&self.secrets.prefix(digest), POOLED))
    }

    /// The slot of a key.
    pub(super) fn slot_of(&self, key: &Key<'_>) -> Slot {
        let id = self.secrets.identify_key(key);
        match key.subject().is_empty() {
            true => self.global_slot(id, key.budget().digest(key.rule())),
            false => self.slot(id),
        }
    }

    /// Takes what a request costs from its one budget, if that is one word that is there and has it.
    /// `None` is for [`take_all`](Self::take_all): nothing has been done.
    #[inline(always)]
    pub(crate) fn take_one(&self, target: &Target<'_>, now: Timestamp) -> Option<Taken> {
        let Target { aim, slot, cost, charge } = *target;
        let bucket = aim.word.as_ref()?;
        let shard = &mut *self.shards[slot.shard].0.lock();
        let now = self.arrive(shard, now);
        let (word, next_idle) = shard.word_of(aim, &slot)?;
        let Some(full_at) = bucket.take(*word, now.as_nanos(), charge)? else {
            return Some(Taken { tag: aim.tag, now, cost, allowed: false, left: *word });
        };
        // A cost of nothing leaves even a full bucket as it is.
        let left = if charge == 0 { *word } else { full_at };
        *word = left;
        *next_idle = left.min(*next_idle);
        shard.note(slot.home);
        Some(Taken { tag: aim.tag, now, cost, allowed: true, left })
    }

    /// The same whatever its limits are. `inline` is the one that came with the request.
    pub(crate) fn take_known(
        &self,
        target: &Target<'_>,
        inline: Option<&Limit>,
        now: Timestamp,
        denied: &mut u32,
    ) -> Option<Decision> {
        let Target { aim, slot, cost, charge } = *target;
        let shard = &mut *self.shards[slot.shard].0.lock();
        let now = self.arrive(shard, now);
        let (state, next_idle) = shard.state_of(aim, &slot)?;
        let mut left = [0; WORDS_MAX];
        let (words, rest) = left.split_at_mut_checked(aim.width)?;
        copy(words, state);
        let taken = packed::take(target.limits(inline), words, now.as_nanos(), charge)?;
        match taken {
            Some(idle_at) if cost > 0 => {
                copy(state, words);
                *next_idle = idle_at.min(*next_idle);
                shard.note(slot.home);
            }
            None if cost > 0 && aim.tag.counts_denied => return None,
            _ => copy(words, state),
        }
        tell_inline(inline, rest);
        *denied = u32::from(taken.is_none());
        Some(Decision::of_states(now, cost, taken.is_some(), [Some(aim.tag), None, None, None], left))
    }

    /// Takes what a request costs from all of its budgets if all have it. `denied` is told which have
    /// too little, a bit for each. `None` is for [`apply`](Self::apply): nothing has been done.
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
        let now = shards.arrive(self, now);
        let (mut tags, mut left, mut is_new) = ([None; TAGS_MAX], [0; WORDS_MAX], [false; TAGS_MAX]);
        let mut rest = left.as_mut_slice();
        let (mut not_fitting, mut place) = (0, 1);
        for ((target, tag), is_new) in targets.iter().zip(&mut tags).zip(&mut is_new) {
            let (aim, shard) = (target.aim, shards.of(target.slot.shard));
            let (words, after) = rest.split_at_mut_checked(aim.width)?;
            if let Some((state, _)) = shard.state_of(aim, &target.slot) {
                copy(words, state);
            } else if self.has_legacy() || shard.find(target.slot.id, Some(aim.width)) != Found::Nowhere {
                return None;
            } else {
                *is_new = true;
            }
            if packed::take(target.limits(inline), words, now.as_nanos(), target.charge)?.is_none() {
                not_fitting |= place;
            }
            (*tag, place) = (Some(aim.tag), place << 1);
            let told = tell_inline(inline, after);
            rest = after.get_mut(told..)?;
        }
        let takes = not_fitting == 0 && cost > 0;
        if not_fitting != 0 && cost > 0 && targets.iter().any(|target| target.aim.tag.counts_denied) {
            return None;
        }
        if is_new.contains(&true) {
            self.make_room(targets, &is_new, takes)?;
        }
        let mut rest = left.as_mut_slice();
        for (target, is_new) in targets.iter().zip(is_new) {
            let (aim, shard) = (target.aim, shards.of(target.slot.shard));
            let (words, after) = rest.split_at_mut_checked(aim.width)?;
            rest = after.get_mut(target.words() - aim.width..)?;
            if takes && is_new {
                self.first_seen(shard, target, now);
            }
            let Some((state, next_idle)) = shard.state_of(aim, &target.slot) else {
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
        *denied = not_fitting;
        Some(Decision::of_states(now, cost, not_fitting == 0, tags, left))
    }

    /// The time that a request is decided at. Goes on with a sweep that is due.
    #[inline(always)]
    fn arrive(&self, shard: &mut Shard, now: Timestamp) -> Timestamp {
        let now = shard.arrive(now);
        if shard.sweep_is_due(now) {
            self.go_on_sweeping(shard, SWEPT_BY_EACH, now);
        }
        now
    }

    /// Takes room for those of a request's keys that are new, if they are to be kept. `None` if there
    /// is not enough: whoever only asks is told the same.
    fn make_room(&self, targets: &[Target<'_>], is_new: &[bool], kept: bool) -> Option<()> {
        let new = || targets.iter().zip(is_new).filter(|(_, is_new)| **is_new).map(|(target, _)| target);
        for (index, target) in new().enumerate() {
            if !kept {
                let has_room = target.slot.shard >= SHARDS || self.room.has_room(&target.aim.kept);
                has_room.then_some(())?;
            } else if target.slot.shard >= SHARDS {
                self.room.take_anyway(&target.aim.kept);
            } else if !self.room.take(&target.aim.kept) {
                new().take(index).for_each(|target| self.room.give(&target.aim.kept));
                return None;
            }
        }
        Some(())
    }

    /// A slot for a key that is new.
    fn first_seen(&self, shard: &mut Shard, target: &Target<'_>, now: Timestamp) {
        let width = target.aim.width;
        if shard.table(width).is_filled() {
            // Rather than grow, make use of what has been idle for long. Who was here a moment ago is
            // likely to come back, and a place is cheaper to keep than to make again.
            let (since, mut freed) = (now.saturating_sub(self.idle_for).as_nanos(), Freed::default());
            shard.reclaim_some(width, SWEPT_BY_NEW, since, &mut freed);
            self.room.reclaim(&freed);
        }
        shard.insert(target.slot.id, target.aim.tag);
    }

    #[cold]
    pub(super) fn go_on_sweeping(&self, shard: &mut Shard, slots: usize, now: Timestamp) -> u64 {
        let since = now.saturating_sub(self.idle_for).as_nanos();
        let mut freed = Freed::default();
        shard.sweep_some(slots, since, now.saturating_add(self.sweep_interval), &mut freed);
        self.room.reclaim(&freed);
        freed.keys()
    }
}

/// What became of a request on the shortest way.
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

impl Target<'_> {
    /// Counts what its rule said.
    #[inline(always)]
    pub(crate) fn count(&self, stripe: usize, allowed: bool) {
        self.aim.tally.count_at(stripe, allowed);
    }

    #[inline]
    fn limits<'a>(&self, inline: Option<&'a Limit>) -> &'a [Limit] {
        match inline {
            None => self.aim.limits,
            Some(limit) => std::slice::from_ref(limit),
        }
    }

    /// How many words a decision needs for it.
    pub(crate) fn words(&self) -> usize {
        match self.aim.tag.budget {
            Budget::InlineTime => 6,
            Budget::InlineCount(_) => 4,
            Budget::Rule | Budget::Override(_) => self.aim.width,
        }
    }
}

impl Aim {
    /// Whether it is ready for the same, and counts in the same place.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.tag == other.tag && Arc::ptr_eq(&self.tally, &other.tally)
    }

    /// How many words its states have.
    #[inline]
    pub(super) const fn width(&self) -> usize {
        self.width
    }

    /// The number of its tag.
    #[inline]
    pub(super) const fn number(&self) -> u32 {
        self.tag.number()
    }
}

/// Writes down a limit that came with a request, and says how many words that takes.
#[inline]
fn tell_inline(limit: Option<&Limit>, words: &mut [u64]) -> usize {
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

/// The shards of one request, locked in ascending order: this is what keeps opposite requests from
/// deadlock.
pub(super) struct Locked<'a>(SmallVec<[(usize, Guard<'a, Shard>); TAGS_MAX]>);

impl<'a> Locked<'a> {
    pub(super) fn new(store: &'a MemoryStore, shards: impl Iterator<Item = usize> + Clone) -> Self {
        let (mut locked, mut above) = (SmallVec::new(), 0);
        while let Some(next) = shards.clone().filter(|shard| *shard >= above).min() {
            locked.push((next, store.shards[next].0.lock()));
            above = next + 1;
        }
        Self(locked)
    }

    /// One of the shards that it was made of.
    pub(super) fn of(&mut self, shard: usize) -> &mut Shard {
        let place = self.0.iter().position(|(index, _)| *index == shard).unwrap_or(0);
        &mut self.0[place].1
    }

    /// The reading to decide by: the newest, if this one merely came late. Goes on with sweeps that
    /// are due.
    pub(super) fn arrive(&mut self, store: &MemoryStore, now: Timestamp) -> Timestamp {
        let newest = self.0.iter().map(|(_, shard)| shard.latest).max().unwrap_or(now);
        let now = in_order(newest, now);
        self.set_time(now);
        for (_, shard) in self.0.iter_mut().filter(|(_, shard)| shard.sweep_is_due(now)) {
            store.go_on_sweeping(shard, SWEPT_BY_EACH, now);
        }
        now
    }

    pub(super) fn set_time(&mut self, now: Timestamp) {
        self.0.iter_mut().for_each(|(_, shard)| shard.set_time(now));
    }
}

/// The top bits: the tables use the lower half.
#[inline]
pub(super) fn shard_of(home: u64) -> usize {
    usize::try_from(home >> 56).unwrap_or(0) % SHARDS
}
