//! Reclaiming idle keys, a few slots at a time or a whole shard at once.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "indexes and counts within one allocation, far below the width of their integers"
)]

use super::room::Freed;
use super::shard::{Shard, pack};
use super::table::{SlotIndex, WIDEST};
use crate::cell::Cell;
use crate::meter::packed;
use crate::rule::Tag;
use crate::{RuleName, Timestamp};

impl Shard {
    #[inline]
    pub(super) fn sweep_is_due(&self, now: Timestamp) -> bool {
        now >= self.sweep_due
    }

    /// Forgets idle keys in the next few slots of one table, continuing where the last call
    /// stopped.
    pub(super) fn reclaim_some(&mut self, width: usize, slots: usize, since: u64, freed: &mut Freed) {
        let index = if self.cursor < self.table(width).slots() { self.cursor } else { 0 };
        self.cursor = self.sweep_slots(width, index, slots, since, freed);
    }

    /// Forgets every idle key.
    pub(super) fn reclaim(&mut self, now: Timestamp, freed: &mut Freed) {
        if now < self.latest {
            self.set_time(now);
        }
        if std::mem::take(&mut self.went_back) {
            self.rebase_wild(now);
        }
        if now.as_nanos() >= self.next_idle {
            self.next_idle = u64::MAX;
            for width in 1..=WIDEST {
                self.sweep_slots(width, 0, usize::MAX, now.as_nanos(), freed);
            }
            self.reclaim_unpacked(now.as_nanos(), freed);
        }
    }

    /// Forgets every key of a rule, idle or busy.
    pub(super) fn clear(&mut self, rule: RuleName, freed: &mut Freed) {
        for width in 1..=WIDEST {
            let mut index = 0;
            while index < self.table(width).slots() {
                let tag = Tag::of_number(self.table(width).number(index)).filter(|tag| tag.rule == rule);
                match tag {
                    Some(tag) => {
                        freed.add(tag);
                        self.remove(width, index);
                    }
                    None => index += 1,
                }
            }
        }
        let gone = self.unpacked.iter().filter(|(_, unpacked)| unpacked.tag.rule == rule);
        for (id, tag) in gone.map(|(id, unpacked)| (*id, unpacked.tag)).collect::<Vec<_>>() {
            freed.add(tag);
            self.note_unpacked(id);
            self.unpacked.remove(&id);
        }
    }

    /// The earliest time at which any key (of `rule`, if given) turns idle.
    pub(super) fn next_idle_of(&self, rule: Option<RuleName>) -> u64 {
        let (mut next, is_of) = (u64::MAX, |tag: &Tag| rule.is_none_or(|rule| tag.rule == rule));
        for width in 1..=WIDEST {
            let table = self.table(width);
            for index in table.occupied() {
                let tag = Tag::of_number(table.number(index)).filter(is_of);
                next = tag.map_or(next, |tag| packed::idle_at(&tag.limits, table.state(index)).min(next));
            }
        }
        let of_rule = self.unpacked.values().filter(|unpacked| is_of(&unpacked.tag));
        of_rule.flat_map(|unpacked| unpacked.cells.iter().map(Cell::idle_at).max()).fold(next, u64::min)
    }

    /// Re-bases, after the clock has gone back, every state that a wild reading wrote: it is
    /// exactly empty as of now, even if its client never returns.
    fn rebase_wild(&mut self, now: Timestamp) {
        self.note_all();
        for width in 1..=WIDEST {
            for index in 0..self.table(width).slots() {
                let unpacked = self.unpack(width, index, None).filter(|unpacked| !unpacked.tag.is_inline());
                if let Some(mut unpacked) = unpacked {
                    unpacked.cells.iter_mut().for_each(|cell| cell.rebase_wild(now));
                    pack(&unpacked.cells, self.table_mut(width).state_mut(index));
                }
            }
        }
        self.unpacked
            .values_mut()
            .flat_map(|unpacked| &mut unpacked.cells)
            .for_each(|cell| cell.rebase_wild(now));
    }

    /// Forgets unpacked keys that had turned idle by `since`.
    fn reclaim_unpacked(&mut self, since: u64, freed: &mut Freed) {
        let since = Timestamp::from_nanos(since);
        let (mut next_idle, mut gone) = (self.next_idle, Vec::new());
        self.unpacked.retain(|id, unpacked| {
            let busy = unpacked.cells.iter().any(|cell| !cell.is_idle(since));
            if busy {
                next_idle = unpacked.cells.iter().map(Cell::idle_at).max().unwrap_or(0).min(next_idle);
            } else {
                freed.add(unpacked.tag);
                gone.push(*id);
            }
            busy
        });
        self.next_idle = next_idle;
        gone.into_iter().for_each(|id| self.note_unpacked(id));
    }

    /// Continues a sweep that is due: forgets keys in a few slots that had turned idle by `since`.
    pub(super) fn sweep_some(&mut self, slots: usize, since: u64, next: Timestamp, freed: &mut Freed) {
        let (mut width, mut index) = self.sweep_at.unwrap_or((1, 0));
        while width <= WIDEST && self.table(width).len() == 0 {
            (width, index) = (width + 1, 0);
        }
        if width <= WIDEST {
            index = self.sweep_slots(width, index, slots, since, freed);
            if index >= self.table(width).slots() {
                let secrets = std::sync::Arc::clone(&self.secrets);
                self.table_mut(width).shrink(&secrets);
                self.publish(width);
                (width, index) = (width + 1, 0);
            }
        }
        self.sweep_at = (width <= WIDEST).then_some((width, index));
        self.sweep_due = Timestamp::EPOCH;
        if self.sweep_at.is_none() {
            self.sweep_due = next;
            self.reclaim_unpacked(since, freed);
        }
    }

    /// Sweeps up to `count` slots of one table from `index` on, and returns the index where it
    /// stopped.
    fn sweep_slots(
        &mut self,
        width: usize,
        mut index: SlotIndex,
        count: usize,
        since: u64,
        freed: &mut Freed,
    ) -> SlotIndex {
        let (mut known, mut next_idle) = (None, self.next_idle);
        let end = index.saturating_add(count).min(self.table(width).slots());
        while index < end {
            let table = self.table(width);
            let number = table.number(index);
            if number == 0 {
                index += 1;
                continue;
            }
            if known.is_none_or(|tag: Tag| tag.number() != number) {
                known = Tag::of_number(number);
            }
            let idle_at = known.map_or(u64::MAX, |tag| packed::idle_at(&tag.limits, table.state(index)));
            match known.filter(|_| idle_at <= since) {
                // Removal shifts another key into this slot: it is examined next.
                Some(tag) => {
                    freed.add(tag);
                    self.remove(width, index);
                }
                None => {
                    next_idle = next_idle.min(idle_at);
                    index += 1;
                }
            }
        }
        self.next_idle = next_idle;
        index
    }

    fn remove(&mut self, width: usize, index: SlotIndex) {
        let secrets = std::sync::Arc::clone(&self.secrets);
        let home = secrets.home(self.table(width).id(index));
        self.note(home);
        self.table_mut(width).remove(index, &secrets);
    }
}
