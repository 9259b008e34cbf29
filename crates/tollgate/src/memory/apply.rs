//! The general path: any operation on any number of keys, all or nothing.

use std::sync::Arc;

use smallvec::SmallVec;

use super::locked::{Locked, LockedList};
use super::lookup::Slot;
use super::room::{KeyCount, Room};
use super::shard::{Cells, Location, Unpacked};
use super::{MemoryStore, OnFull, SHARDS};
use crate::Timestamp;
use crate::cell::{Cell, Transaction, transact_in_place};
use crate::rule::Tag;
use crate::store::{Answer, Applied, Cause, Charge, Effect, Op, Part, StoreError, Until};
use crate::sync::atomic::Ordering;

mod draft;

use draft::Draft;

/// One budget of a request, with its charges.
#[derive(Clone)]
struct Group<'a> {
    slot: Slot,
    tag: Tag,
    key_count: Arc<KeyCount>,
    charges: &'a [Charge<'a>],
}

impl Group<'_> {
    /// Whether an overflow covers what the budget lacks.
    fn draws_first(&self) -> bool {
        self.charges.iter().any(|charge| matches!(charge.part, Part::First(_)))
    }

    /// Whether it is an overflow that is not charged by itself.
    fn only_lends(&self) -> bool {
        self.charges.iter().all(|charge| charge.cost == 0 && matches!(charge.part, Part::Rest(_)))
    }
}

/// What happens to a request with new keys when there is no room for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WhenFull<'a> {
    /// The request is not applied; the caller tries another way.
    Abort,
    /// The request is denied until the given times, one per budget.
    Deny(&'a [Timestamp]),
    /// The bound is exceeded: the new keys are pools, which are few.
    Exceed,
}

impl MemoryStore {
    /// [`Store::apply`](crate::Store::apply), synchronously.
    ///
    /// # Errors
    /// [`StoreError::Full`] if a block, a penalty or a record needs a new key and there is no room.
    /// Requests are denied or pooled instead.
    pub fn apply_now(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let pools = self.on_full == OnFull::Pool;
        if pools && op == Op::Refund {
            return self.apply_pooled(op, charges, now, |group| self.is_unknown(group));
        }
        let groups = self.groups(charges);
        if let Some(mut applied) = self.apply_groups(op, &groups, now, WhenFull::Abort) {
            let not_reserved = |answer: &Answer| answer.effect == Effect::NotReserved;
            if pools && applied.answers.iter().any(not_reserved) {
                // The reservation may have been made in a pool, when there was no room.
                let pooled = self.apply_pooled(op, charges, now, |_| true)?;
                for (answer, pooled) in applied.answers.iter_mut().zip(pooled.answers) {
                    *answer = if not_reserved(answer) { pooled } else { *answer };
                }
            }
            return Ok(applied);
        }
        if groups.iter().all(|group| self.search(&group.key_count, now))
            && let Some(applied) = self.apply_groups(op, &groups, now, WhenFull::Abort)
        {
            return Ok(applied);
        }
        let count = |counter: &crate::sync::atomic::AtomicU64| {
            counter.fetch_add(u64::from(op != Op::Peek), Ordering::Relaxed)
        };
        if pools && is_decided(op) {
            count(&self.room.pooled);
            return self.apply_pooled(op, charges, now, |group| self.is_unknown(group));
        }
        let room_at = |group: &Group<'_>| self.room_at(group.tag.rule, &group.key_count, now);
        let room_at: SmallVec<[Timestamp; 4]> = groups.iter().map(room_at).collect();
        let applied =
            self.apply_groups(op, &groups, now, WhenFull::Deny(&room_at)).ok_or(StoreError::Full)?;
        if applied.answers.iter().any(|answer| answer.cause == Cause::StoreFull) {
            count(&self.room.refused);
        }
        Ok(applied)
    }

    /// Applies `op` with the keys that `pools` selects replaced by their rules' pools. Each pool is
    /// charged once, with the largest cost of the charges that share it.
    fn apply_pooled(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Timestamp,
        pools: impl Fn(&Group<'_>) -> bool,
    ) -> Result<Applied, StoreError> {
        let mut groups = self.groups(charges);
        for group in &mut groups {
            if group.slot.shard < SHARDS && pools(group) {
                group.slot = self.pool_slot(group.tag);
            }
        }
        let mut merged: Vec<(&Group<'_>, SmallVec<[Charge<'_>; 2]>)> = Vec::new();
        for group in &groups {
            match merged.iter_mut().find(|(first, _)| first.slot.id == group.slot.id) {
                None => merged.push((group, group.charges.into())),
                Some((_, charges)) => {
                    for (into, charge) in charges.iter_mut().zip(group.charges) {
                        into.cost = into.cost.max(charge.cost);
                        into.shadow &= charge.shadow;
                    }
                }
            }
        }
        let merged = merged.iter().map(|(group, charges)| Group { charges, ..(*group).clone() });
        let merged: SmallVec<[Group<'_>; 4]> = merged.collect();
        let applied = self.apply_groups(op, &merged, now, WhenFull::Exceed).ok_or(StoreError::Full)?;
        // One answer per charge: that of the pool it was merged into.
        let answers = groups.iter().flat_map(|group| {
            let before = merged.iter().take_while(|first| first.slot.id != group.slot.id);
            let start = before.map(|first| first.charges.len()).sum();
            applied.answers.iter().skip(start).take(group.charges.len()).copied()
        });
        Ok(Applied { answers: answers.collect(), ..applied })
    }

    fn is_unknown(&self, group: &Group<'_>) -> bool {
        let shard = self.shards[group.slot.shard].0.lock();
        shard.find(group.slot.id, group.tag.words()).is_none()
    }

    /// The budgets of a request, in the order of its charges.
    fn groups<'a>(&self, charges: &'a [Charge<'a>]) -> SmallVec<[Group<'a>; 4]> {
        let budgets = charges.chunk_by(|one, other| one.key.same_budget(&other.key));
        let groups = budgets.filter_map(|charges| {
            let Charge { key, tag, .. } = charges.first()?;
            Some(Group { slot: self.slot_of(key), tag: *tag, key_count: self.room.of(key.rule()), charges })
        });
        groups.collect()
    }

    /// Applies `op`, if there is room for the new keys.
    fn apply_groups(
        &self,
        op: Op,
        groups: &[Group<'_>],
        now: Timestamp,
        full: WhenFull<'_>,
    ) -> Option<Applied> {
        let mut locked = LockedList::lock(self, groups.iter().map(|group| group.slot.shard));
        let (reading, now) = (now, locked.observe_clocks(self, now));
        let mut drafts: SmallVec<[Draft<'_>; 4]> = SmallVec::new();
        for group in groups {
            let found = find(&mut locked, group);
            let (has_room, reserved) =
                if found.is_some() { (true, None) } else { self.reserve(group, op, now, full) };
            if !has_room && full == WhenFull::Abort {
                return None;
            }
            let unpacked = Unpacked { tag: group.tag, cells: Cells::new() };
            drafts.push(Draft { group, found, lacks_room: !has_room, reserved, unpacked });
        }
        drafts.iter_mut().for_each(|draft| draft.load(&mut locked));
        // A new key without room is denied, and nothing is drawn on the other keys either.
        let is_refused = drafts.iter().any(Draft::is_refused);
        if is_refused && !is_decided(op) {
            drafts.into_iter().for_each(|draft| draft.put_back(&mut locked));
            return None;
        }
        let op = if is_refused { Op::Peek } else { op };
        let charges: SmallVec<[Charge<'_>; 4]> = drafts.iter().flat_map(Draft::charges).collect();
        let Transaction { mut applied, changed } = {
            let mut cells: SmallVec<[&mut Cell; 4]> = drafts.iter_mut().flat_map(Draft::cells).collect();
            transact_in_place(op, &charges, &mut cells, reading, now)
        };
        locked.shards().for_each(|shard| shard.set_time(applied.now));
        let (mut answers, mut changed) = (applied.answers.iter_mut(), changed.into_iter());
        for (index, mut draft) in drafts.drain(..).enumerate() {
            let (charges, mut is_changed) = (draft.group.charges.len(), false);
            for (answer, changed) in answers.by_ref().zip(changed.by_ref()).take(charges) {
                is_changed |= changed;
                if let (true, WhenFull::Deny(room_at)) = (draft.lacks_room, full) {
                    draft.refuse(answer, applied.now, room_at[index]);
                }
            }
            // Storing another key of the same shard may have moved this one.
            draft.found = draft.found.and_then(|_| find(&mut locked, draft.group));
            if is_changed && !draft.lacks_room {
                self.store_draft(&mut locked, draft, op, applied.now);
            } else {
                draft.put_back(&mut locked);
            }
        }
        Some(applied)
    }

    /// Whether there is room for a new key. Room that `op` may use is reserved. Global budgets are
    /// few and exempt from the bound: a store full of clients still admits them.
    fn reserve<'a>(
        &'a self,
        group: &'a Group<'_>,
        op: Op,
        now: Timestamp,
        full: WhenFull<'_>,
    ) -> (bool, Option<ReservedRoom<'a>>) {
        let (room, rule) = (&self.room, &*group.key_count);
        // A settlement that is due cannot be refused.
        let is_due = matches!(op, Op::Settle { .. }) && group.draws_first();
        let is_bounded = full != WhenFull::Exceed && group.slot.shard < SHARDS && !is_due;
        match may_create(op, group, now) {
            Some(true) if room.take(rule, is_bounded) => (true, Some(ReservedRoom { room, rule })),
            Some(creates) => (!creates, None),
            None => (!is_bounded || room.has_room(rule), None),
        }
    }

    /// Stores the changed cells of a budget.
    fn store_draft(&self, locked: &mut LockedList<'_>, draft: Draft<'_>, op: Op, now: Timestamp) {
        let Draft { group, found, reserved, mut unpacked, .. } = draft;
        unpacked.tag = group.tag;
        // A list of limits may shrink and grow again, so cells beyond it stay until they are idle.
        let is_over = |cell: &Cell| op == Op::Reset || cell.is_idle(now);
        while unpacked.cells.len() > group.tag.limits.len() && unpacked.cells.last().is_some_and(is_over) {
            unpacked.cells.pop();
        }
        let kept = locked.shard(group.slot.shard).store(found, group.slot.id, unpacked, now);
        match (found, kept) {
            (None, true) => std::mem::forget(reserved),
            (Some(_), false) => self.room.release(&group.key_count),
            _ => {}
        }
    }
}

/// Room reserved for a new key. It is released on drop, and forgotten if the key is kept.
struct ReservedRoom<'a> {
    room: &'a Room,
    rule: &'a KeyCount,
}

impl Drop for ReservedRoom<'_> {
    fn drop(&mut self) {
        self.room.release(self.rule);
    }
}

/// Whether `op` decides a request: a new key without room is then denied or pooled.
const fn is_decided(op: Op) -> bool {
    matches!(op, Op::Take | Op::Refuse | Op::Peek | Op::Reserve { .. } | Op::Acquire { .. })
}

/// Whether `op` may create a key; `None` if it only reads.
fn may_create(op: Op, group: &Group<'_>, now: Timestamp) -> Option<bool> {
    match op {
        Op::Peek => None,
        // One part of the cost may be reserved, and the other be recorded.
        Op::Settle { .. } => Some(group.draws_first() || group.only_lends()),
        Op::Refund | Op::Reset | Op::Renew { .. } => Some(false),
        Op::Block { until: Until::Date(until) } => Some(until > now),
        Op::Block { .. } | Op::Take | Op::Refuse | Op::Penalise | Op::Record => Some(true),
        Op::Reserve { .. } | Op::Acquire { .. } => Some(true),
    }
}

fn find(locked: &mut LockedList<'_>, group: &Group<'_>) -> Option<Location> {
    locked.shard(group.slot.shard).find(group.slot.id, group.tag.words())
}
