//! Everything else: any operation, on any number of keys, all or nothing.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::room::Kept;
use super::shard::{Cells, Found, Whole};
use super::take::{Locked, Slot};
use super::{MemoryStore, OnFull, SHARDS};
use crate::cell::{Cell, Transaction, transact};
use crate::rule::Tag;
use crate::store::{Answer, Applied, Cause, Charge, Op, StoreError, Until};
use crate::sync::atomic::Ordering;
use crate::{Limit, Outcome, Timestamp, Verdict};

/// How long a new key is told to wait at least when every slot is busy.
const FULL_RETRY: Duration = Duration::from_millis(1);

/// One budget of a request, and which of the charges are its.
#[derive(Clone)]
struct Group<'a> {
    slot: Slot,
    tag: Tag,
    kept: Arc<Kept>,
    charges: &'a [Charge<'a>],
    /// The limit, if it came with the request.
    inline: Option<&'a Limit>,
}

/// What a request that brings new keys gets if there is no room for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Full<'a> {
    /// Nothing: it is tried otherwise.
    Stop,
    /// A denial, which says for each budget when there may be room.
    Deny(&'a [Timestamp]),
    /// Room all the same: they are pools, of which there are few.
    Ignore,
}

impl MemoryStore {
    /// What [`Store::apply`](crate::Store::apply) does, at once.
    ///
    /// # Errors
    /// [`StoreError::Full`] if a block or a penalty needs a new key and there is no room. Requests
    /// are denied or pooled instead.
    pub fn apply_now(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        if self.has_legacy() {
            charges.iter().filter(|charge| charge.key.index() == 0).for_each(|charge| self.take_over(charge));
        }
        let pools = self.on_full == OnFull::Pool;
        if pools && op == Op::Refund {
            return self.apply_pooled(op, charges, now, |group| self.is_unknown(group));
        }
        let groups = self.groups(charges);
        if let Some(mut applied) = self.apply_groups(op, &groups, now, Full::Stop) {
            if pools && matches!(op, Op::Settle { .. }) && applied.answers.iter().any(|answer| !answer.held) {
                // It may have been made in a pool, when there was no room.
                let pooled = self.apply_pooled(op, charges, now, |_| true)?;
                for (answer, pooled) in applied.answers.iter_mut().zip(pooled.answers) {
                    *answer = if answer.held { *answer } else { pooled };
                }
            }
            return Ok(applied);
        }
        if groups.iter().all(|group| self.search(&group.kept, now))
            && let Some(applied) = self.apply_groups(op, &groups, now, Full::Stop)
        {
            return Ok(applied);
        }
        let count = |counter: &crate::sync::atomic::AtomicU64| {
            counter.fetch_add(u64::from(op != Op::Peek), Ordering::Relaxed)
        };
        match self.on_full {
            _ if matches!(op, Op::Block { .. } | Op::Penalise) => Err(StoreError::Full),
            OnFull::Pool => {
                count(&self.room.pooled);
                self.apply_pooled(op, charges, now, |group| self.is_unknown(group))
            }
            OnFull::Deny => {
                count(&self.room.refused);
                let room_at = |group: &Group<'_>| self.room_at(group.tag.rule, &group.kept, now);
                let room_at: SmallVec<[Timestamp; 4]> = groups.iter().map(room_at).collect();
                self.apply_groups(op, &groups, now, Full::Deny(&room_at)).ok_or(StoreError::Full)
            }
        }
    }

    /// The same with some of the keys replaced by their rules' pools, each charged once, with the
    /// largest cost of those that share it.
    fn apply_pooled(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Timestamp,
        pools: impl Fn(&Group<'_>) -> bool,
    ) -> Result<Applied, StoreError> {
        let mut groups = self.groups(charges);
        let mut first_of: SmallVec<[usize; 4]> = SmallVec::new();
        let mut merged: SmallVec<[SmallVec<[Charge<'_>; 2]>; 4]> = SmallVec::new();
        for (index, group) in groups.iter_mut().enumerate() {
            if group.slot.shard < SHARDS && pools(group) {
                group.slot = self.pool_slot(group.tag);
            }
            merged.push(group.charges.into());
            first_of.push(index);
        }
        for index in 0..groups.len() {
            let same = |other: &Group<'_>| other.slot.id == groups[index].slot.id;
            let first = groups.iter().position(same).unwrap_or(index);
            first_of[index] = first;
            for (place, charge) in groups[index].charges.iter().enumerate() {
                if let Some(into) = merged[first].get_mut(place) {
                    into.cost = into.cost.max(charge.cost);
                    into.shadow &= charge.shadow;
                }
            }
        }
        let once = groups.iter().zip(&merged).enumerate().filter(|(index, _)| first_of[*index] == *index);
        let once: SmallVec<[Group<'_>; 4]> =
            once.map(|(_, (group, charges))| Group { charges, ..group.clone() }).collect();
        let applied = self.apply_groups(op, &once, now, Full::Ignore).ok_or(StoreError::Full)?;
        // An answer for each charge, of the pool that it became.
        let mut starts: SmallVec<[usize; 4]> = SmallVec::new();
        let mut start = 0_usize;
        for (index, group) in groups.iter().enumerate() {
            starts.push(start);
            start = start.saturating_add(if first_of[index] == index { group.charges.len() } else { 0 });
        }
        let answers = groups.iter().zip(&first_of).flat_map(|(group, first)| {
            let start = starts.get(*first).copied().unwrap_or(0);
            (start..start.saturating_add(group.charges.len()))
                .filter_map(|at| applied.answers.get(at).copied())
        });
        Ok(Applied { answers: answers.collect(), ..applied })
    }

    fn is_unknown(&self, group: &Group<'_>) -> bool {
        let shard = self.shards[group.slot.shard].0.lock();
        shard.find(group.slot.id, group.tag.words()) == Found::Nowhere
    }

    /// A request's budgets in the order of its charges.
    fn groups<'a>(&self, charges: &'a [Charge<'a>]) -> SmallVec<[Group<'a>; 4]> {
        let budgets = charges.chunk_by(|one, other| one.key.is_beside(&other.key));
        let groups = budgets.filter_map(|charges| {
            let first = charges.first()?;
            let inline = first.limit.inline_longest().is_some().then_some(first.limit);
            let (slot, kept) = (self.slot_of(&first.key), self.room.of(first.key.rule()));
            Some(Group { slot, tag: first.tag, kept, charges, inline })
        });
        groups.collect()
    }

    /// Applies `op`, if there is room for the keys that are new.
    fn apply_groups(&self, op: Op, groups: &[Group<'_>], now: Timestamp, full: Full<'_>) -> Option<Applied> {
        let mut shards = Locked::new(self, groups.iter().map(|group| group.slot.shard));
        let (reading, now) = (now, shards.arrive(self, now));
        let found: SmallVec<[Found; 4]> = groups.iter().map(|group| find(&mut shards, group)).collect();
        // The budgets of everyone are few, and never turned away: the table may be full of others.
        let is_new = |index: usize| found[index] == Found::Nowhere;
        let needs_room = |index: usize| is_new(index) && groups[index].slot.shard < SHARDS;
        let mut promised = Promised { store: self, rules: SmallVec::new() };
        let without_room: SmallVec<[bool; 4]> = groups
            .iter()
            .enumerate()
            .map(|(index, group)| match keeps_new(op, now) {
                _ if !is_new(index) => false,
                Some(false) => false,
                Some(true) if full != Full::Ignore && needs_room(index) => !promised.take(&group.kept),
                Some(true) => !promised.take_anyway(&group.kept),
                None => full != Full::Ignore && needs_room(index) && !self.room.has_room(&group.kept),
            })
            .collect();
        if full == Full::Stop && without_room.contains(&true) {
            return None;
        }
        // Without room a new key is denied, and nothing is taken from the others either. But one that
        // is only watched denies nobody.
        let enforces = |group: &Group<'_>| group.charges.iter().any(|charge| !charge.shadow);
        let denied = groups.iter().zip(&without_room).any(|(group, lacks)| *lacks && enforces(group));
        let op = if denied { Op::Peek } else { op };
        let mut all: SmallVec<[Whole; 4]> =
            groups.iter().zip(&found).map(|(group, found)| load(&mut shards, group, *found)).collect();
        let mut cells: SmallVec<[Cell; 4]> = SmallVec::new();
        let mut charges: SmallVec<[Charge<'_>; 4]> = SmallVec::new();
        for (group, whole) in groups.iter().zip(&mut all) {
            for (charge, cell) in group.charges.iter().zip(&mut whole.cells) {
                charges.push(*charge);
                cells.push(std::mem::replace(cell, Cell::new(*charge.limit)));
            }
        }
        let Transaction { mut applied, changed } = transact(op, &charges, &mut cells, reading, now);
        let now = applied.now;
        shards.set_time(now);
        let (mut cells, mut changed, mut answers) =
            (cells.into_iter(), changed.into_iter(), applied.answers.iter_mut());
        for (index, (group, mut whole)) in groups.iter().zip(all).enumerate() {
            let mut group_changed = false;
            for (cell, _) in whole.cells.iter_mut().zip(group.charges) {
                if let (Some(kept), Some(changed), Some(answer)) =
                    (cells.next(), changed.next(), answers.next())
                {
                    *cell = kept;
                    group_changed |= changed;
                    if let (true, Full::Deny(room_at)) = (without_room[index], full) {
                        refuse(answer, now, room_at[index]);
                    }
                }
            }
            // Storing one key may move others of the same shard.
            let found = if groups.len() > 1 { find(&mut shards, group) } else { found[index] };
            let found = if found == Found::Nowhere && !is_new(index) { Found::Whole } else { found };
            if !group_changed || without_room[index] {
                shards.of(group.slot.shard).put_back(found, group.slot.id, whole);
                continue;
            }
            whole.tag = group.tag;
            shorten(&mut whole.cells, group.charges.len(), op, now);
            let kept = shards.of(group.slot.shard).store(found, group.slot.id, whole, now);
            match (is_new(index), kept) {
                (true, true) => promised.keep(&group.kept),
                (false, false) => self.room.give(&group.kept),
                _ => {}
            }
        }
        Some(applied)
    }
}

/// Room that was taken for new keys, and is given back unless they are kept.
struct Promised<'a> {
    store: &'a MemoryStore,
    rules: SmallVec<[Arc<Kept>; 4]>,
}

impl Promised<'_> {
    fn take(&mut self, rule: &Arc<Kept>) -> bool {
        let taken = self.store.room.take(rule);
        self.rules.extend(taken.then(|| Arc::clone(rule)));
        taken
    }

    fn take_anyway(&mut self, rule: &Arc<Kept>) -> bool {
        self.store.room.take_anyway(rule);
        self.rules.push(Arc::clone(rule));
        true
    }

    fn keep(&mut self, rule: &Arc<Kept>) {
        if let Some(place) = self.rules.iter().position(|other| Arc::ptr_eq(other, rule)) {
            self.rules.swap_remove(place);
        }
    }
}

impl Drop for Promised<'_> {
    fn drop(&mut self) {
        self.rules.iter().for_each(|rule| self.store.room.give(rule));
    }
}

/// A list may have become shorter, and longer again tomorrow: what is in use is not dropped.
fn shorten(cells: &mut Cells, limits: usize, op: Op, now: Timestamp) {
    let is_over = |cell: &Cell| op == Op::Reset || cell.is_idle(now);
    while cells.len() > limits && cells.last().is_some_and(is_over) {
        cells.pop();
    }
}

/// Whether a key that is new may be kept after this; `None` if it is only asked for.
fn keeps_new(op: Op, now: Timestamp) -> Option<bool> {
    match op {
        Op::Peek => None,
        Op::Refund | Op::Reset | Op::Settle { .. } => Some(false),
        Op::Block { until: Until::Date(until) } => Some(until > now),
        Op::Block { .. } | Op::Take | Op::Penalise | Op::Reserve { .. } => Some(true),
    }
}

/// A new key that finds every slot busy until `room_at`.
fn refuse(answer: &mut Answer, now: Timestamp, room_at: Timestamp) {
    if answer.outcome.verdict == Verdict::Never {
        return;
    }
    let later = room_at.max(now.saturating_add(FULL_RETRY));
    let verdict = Verdict::Denied { retry_after: later.since(now) };
    let outcome = Outcome { now, verdict, remaining: 0, reset_at: later, grows_at: later };
    *answer = Answer { outcome, cause: Cause::StoreFull, ..*answer };
}

/// The cells of a budget, at least one for each of its limits.
fn load(shards: &mut Locked<'_>, group: &Group<'_>, found: Found) -> Whole {
    let loaded = shards.of(group.slot.shard).load(found, group.slot.id, group.inline);
    let mut whole = loaded.unwrap_or(Whole { tag: group.tag, cells: Cells::new() });
    for charge in group.charges.iter().skip(whole.cells.len()) {
        whole.cells.push(Cell::new(*charge.limit));
    }
    whole
}

fn find(shards: &mut Locked<'_>, group: &Group<'_>) -> Found {
    shards.of(group.slot.shard).find(group.slot.id, group.tag.words())
}
