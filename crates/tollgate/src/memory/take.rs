//! The usual request: it takes from a few budgets whose states are packed, all or nothing.
//!
//! *Aim*: find out who the budgets are, and have their slots fetched. What is done in between,
//! reading the clock or aiming at the other requests of a batch, hides the time that memory takes.
//! Then *lock* the shards, *admit* if all states have room, *write*, and *answer* with the states
//! that are left. A budget of everyone is a budget like any other, in a shard with few others.
//!
//! Whatever is out of the ordinary (a limit that was replaced, a block, a reservation, a log, a
//! state ahead of the clock, a full table) is left to [`apply`](super::apply), which can do
//! everything.

use super::hash::{Id, POOLED, Prefix};
use super::room::{Freed, Kept};
use super::shard::{Found, Shard, WIDEST};
use super::table::prefetch;
use super::{GLOBALS, MemoryStore, SHARDS};
use crate::decision::{TAGS_MAX, WORDS_MAX};
use crate::key::{Budget, Key, digest};
use crate::limit::Kind;
use crate::meter::packed;
use crate::request::Client;
use crate::rule::Tag;
use crate::sync::Guard;
use crate::{Decision, Limit, Timestamp};

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
    /// How many words its states have; none if they do not pack.
    width: usize,
    kept: Arc<Kept>,
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
    pub(crate) fn aim(&self, tag: Tag) -> Aim {
        let digest = tag.budget.digest(tag.rule);
        let prefix = self.secrets.prefix(digest);
        let global = self.global_slot(self.secrets.identify(&prefix, &[]), digest);
        let width = tag.words().filter(|width| *width <= WIDEST).unwrap_or(0);
        Aim { tag, prefix, width, kept: self.room.of(tag.rule), global }
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
        self.views.of(aim.width, slot.shard).prefetch(aim.width, slot.home);
        Some(Target { aim, slot, charge: cost.saturating_mul(aim.tag.unit_cost) })
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

    /// Has the lock of a target fetched, for a batch: between two threads it moves about.
    #[inline]
    pub(crate) fn prefetch_lock(&self, target: &Target<'_>) {
        prefetch(std::ptr::from_ref(&self.shards[target.slot.shard]).addr());
    }

    /// Takes what a request of `cost` costs from all of its budgets if all have it. `inline` is the
    /// limit that came with it. `denied` is told which of the budgets have too little, a bit for
    /// each. `None` is for [`apply`](Self::apply): nothing has been done.
    #[inline(always)]
    pub(crate) fn take<const N: usize>(
        &self,
        targets: &[Target<'_>; N],
        inline: Option<&Limit>,
        cost: u64,
        now: Timestamp,
        denied: &mut u32,
    ) -> Option<Decision> {
        let mut shards = Locked::new(self, targets);
        let now = shards.arrive(self, now);
        let mut places = [None; N];
        for (index, target) in targets.iter().enumerate() {
            let (shard, slot, width) = (shards.of(index), &target.slot, target.aim.width);
            let table = shard.table(width);
            let place = table.written_by(slot.id, slot.home, target.aim.tag.number());
            if place.is_none()
                && (self.has_legacy() || shard.find(slot.id, Some(width)) != Found::Nowhere)
            {
                return None;
            }
            places[index] = place;
            let words = place.map_or(&[0; WIDEST][..width], |place| table.state(place));
            let fits = packed::fits(target.limits(inline), words, now.as_nanos(), target.charge)?;
            *denied |= u32::from(!fits) << index;
        }
        let admitted = *denied == 0;
        if places.contains(&None) {
            self.make_room(targets, &places, admitted && cost > 0)?;
        }
        if admitted && cost > 0 {
            for (index, target) in targets.iter().enumerate() {
                let limits = target.limits(inline);
                self.draw(shards.of(index), target, limits, places[index], now);
            }
        } else if cost > 0 && targets.iter().any(|target| target.aim.tag.counts_denied) {
            if places.contains(&None) {
                return None;
            }
            for (index, target) in targets.iter().enumerate() {
                count_attempt(shards.of(index), target, places[index], now);
            }
        }
        let (mut tags, mut words, mut end) = ([None; TAGS_MAX], [0; WORDS_MAX], 0);
        for (index, target) in targets.iter().enumerate() {
            let (width, shard) = (target.aim.width, shards.of(index));
            tags[index] = Some(target.aim.tag);
            let place = match places[index] {
                // It is there now, if anything was taken.
                None if admitted && cost > 0 => shard.table(width).find(target.slot.id, target.slot.home),
                place => place,
            };
            if let Some(place) = place {
                copy(&mut words, end, shard.table(width).state(place));
            }
            end += width;
            if let Some(inline) = inline {
                end += tell_inline(inline, words.get_mut(end..).unwrap_or_default());
            }
        }
        Some(Decision::of_states(now, cost, admitted, tags, words))
    }

    /// Takes room for those of a request's keys that are new, if they are to be kept. `None` if there
    /// is not enough: whoever only asks is told the same.
    #[inline(never)]
    fn make_room(&self, targets: &[Target<'_>], places: &[Option<usize>], kept: bool) -> Option<()> {
        for (index, target) in targets.iter().enumerate().filter(|(index, _)| places[*index].is_none()) {
            if !kept {
                let has_room = target.slot.shard >= SHARDS || self.room.has_room(&target.aim.kept);
                has_room.then_some(())?;
            } else if target.slot.shard >= SHARDS {
                self.room.take_anyway(&target.aim.kept);
            } else if !self.room.take(&target.aim.kept) {
                let before = targets.iter().zip(places).take(index).filter(|(_, place)| place.is_none());
                before.for_each(|(target, _)| self.room.give(&target.aim.kept));
                return None;
            }
        }
        Some(())
    }

    /// Takes a target's charge, which fits.
    #[inline(always)]
    fn draw(
        &self,
        shard: &mut Shard,
        target: &Target<'_>,
        limits: &[Limit],
        place: Option<usize>,
        now: Timestamp,
    ) {
        let (width, now_nanos) = (target.aim.width, now.as_nanos());
        let idle_at = match place {
            Some(place) => {
                let words = shard.table_mut(width).state_mut(place);
                let idle_at = packed::take(limits, words, now_nanos, target.charge);
                shard.note(target.slot.home);
                idle_at
            }
            None => packed::take(limits, self.first_seen(shard, target, now), now_nanos, target.charge),
        };
        shard.next_idle = shard.next_idle.min(idle_at);
    }

    /// A slot for a key that is new.
    #[inline(never)]
    fn first_seen<'s>(&self, shard: &'s mut Shard, target: &Target<'_>, now: Timestamp) -> &'s mut [u64] {
        let width = target.aim.width;
        if shard.table(width).is_filled() {
            // Rather than grow, make use of what has been idle for long. Who was here a moment ago is
            // likely to come back, and a place is cheaper to keep than to make again.
            let (since, mut freed) = (now.saturating_sub(self.idle_for).as_nanos(), Freed::default());
            shard.reclaim_some(width, SWEPT_BY_NEW, since, &mut freed);
            self.room.reclaim(&freed);
        }
        shard.insert(target.slot.id, target.aim.tag)
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

impl Target<'_> {
    #[inline]
    fn limits<'a>(&self, inline: Option<&'a Limit>) -> &'a [Limit] {
        match inline {
            None => self.aim.tag.limits.as_slice(),
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

/// Writes down a limit that came with a request, and says how many words that takes.
fn tell_inline(limit: &Limit, words: &mut [u64]) -> usize {
    match &limit.0 {
        Kind::InlineBucket(inline) => {
            let (token, parts) = inline.bucket.token();
            copy(words, 0, &[inline.bucket.capacity, token, parts]);
            3
        }
        Kind::InlineWindow(window) => {
            copy(words, 0, &[window.limit, window.period]);
            2
        }
        _ => 0,
    }
}

/// Counts a denied attempt where those count. (Limits that come with requests count none.)
fn count_attempt(shard: &mut Shard, target: &Target<'_>, place: Option<usize>, now: Timestamp) {
    let words = place.map(|place| shard.table_mut(target.aim.width).state_mut(place));
    if let Some(words) = words.filter(|_| target.aim.tag.counts_denied) {
        packed::refuse(&target.aim.tag.limits, words, now.as_nanos(), target.charge);
        let idle_at = packed::idle_at(&target.aim.tag.limits, words);
        shard.next_idle = shard.next_idle.min(idle_at);
        shard.note(target.slot.home);
    }
}

#[inline(always)]
fn copy(to: &mut [u64], start: usize, from: &[u64]) {
    for (to, from) in to.iter_mut().skip(start).zip(from) {
        *to = *from;
    }
}

/// The shards of a request's targets, locked in ascending order: this is what keeps opposite
/// requests from deadlock.
struct Locked<'a, const N: usize> {
    guards: [Option<Guard<'a, Shard>>; N],
    /// Which of them each target's is.
    holders: [usize; N],
}

impl<'a, const N: usize> Locked<'a, N> {
    #[inline(always)]
    fn new(store: &'a MemoryStore, targets: &[Target<'_>; N]) -> Self {
        let mut order: [usize; N] = std::array::from_fn(|index| index);
        if N > 1 {
            order.sort_unstable_by_key(|index| targets[*index].slot.shard);
        }
        let (mut guards, mut holders) = ([const { None }; N], [0; N]);
        let mut last: Option<(usize, usize)> = None;
        for (place, index) in order.into_iter().enumerate() {
            let shard = targets[index].slot.shard;
            let holder = match last {
                Some((locked, holder)) if locked == shard => holder,
                _ => {
                    guards[place] = Some(store.shards[shard].0.lock());
                    place
                }
            };
            holders[index] = holder;
            last = Some((shard, holder));
        }
        Self { guards, holders }
    }

    /// The shard of a target.
    #[inline(always)]
    fn of(&mut self, index: usize) -> &mut Shard {
        match &mut self.guards[self.holders[index]] {
            Some(guard) => guard,
            None => unreachable!("every holder is locked in `new`"),
        }
    }

    /// The time that the request is decided at. Goes on with sweeps that are due.
    #[inline(always)]
    fn arrive(&mut self, store: &MemoryStore, now: Timestamp) -> Timestamp {
        let mut at = now;
        for guard in self.guards.iter_mut().flatten() {
            at = guard.arrive(at);
        }
        for guard in self.guards.iter_mut().flatten() {
            if N > 1 {
                guard.arrive(at);
            }
            if guard.sweep_is_due(at) {
                store.go_on_sweeping(guard, SWEPT_BY_EACH, at);
            }
        }
        at
    }
}

/// The top bits: the tables use the lower half.
#[inline]
pub(super) fn shard_of(home: u64) -> usize {
    usize::try_from(home >> 56).unwrap_or(0) % SHARDS
}
