//! Reclaiming idle keys, a few slots at a time or a whole shard at once.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "indexes and counts within one allocation, far below the width of their integers"
)]

use super::room::Freed;
use super::shard::{Location, Shard, UNPACKED, Unpacked, idle_at, pack};
use super::table::{SlotIndex, WIDEST};
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
        }
    }

    /// Forgets every key of a rule, idle or busy.
    pub(super) fn clear(&mut self, rule: RuleName, freed: &mut Freed) {
        for width in 1..=WIDEST {
            self.forget_slots(width, 0, usize::MAX, freed, |_, _, tag| tag.rule == rule);
        }
    }

    /// The earliest time at which any key (of `rule`, if given) turns idle.
    pub(super) fn next_idle_of(&self, rule: Option<RuleName>) -> u64 {
        let keys = self.occupied().filter_map(|found| Some((found, self.tag(found)?)));
        let keys = keys.filter(|(_, tag)| rule.is_none_or(|rule| tag.rule == rule));
        keys.map(|(found, tag)| self.idle_at(found, tag)).min().unwrap_or(u64::MAX)
    }

    /// When no unit of a key is in use any more.
    fn idle_at(&self, found: Location, tag: Tag) -> u64 {
        match self.unpacked_of(found) {
            Some(unpacked) => idle_at(&unpacked.cells),
            None => packed::idle_at(&tag.limits, self.table(found.width).state(found.index)),
        }
    }

    /// Re-bases, after the clock has gone back, every state that a wild reading wrote: it is
    /// exactly empty as of now, even if its client never returns.
    fn rebase_wild(&mut self, now: Timestamp) {
        self.note_all();
        for width in 1..=WIDEST {
            for index in 0..self.table(width).slots() {
                let unpacked = self.unpack(Location { width, index }, None);
                let unpacked = unpacked.filter(|unpacked| !unpacked.tag.is_inline());
                if let Some(mut unpacked) = unpacked {
                    unpacked.cells.iter_mut().for_each(|cell| cell.rebase_wild(now));
                    pack(&unpacked.cells, self.table_mut(width).state_mut(index));
                }
            }
        }
        let cells = self.unpacked.iter_mut().flat_map(|(_, unpacked)| &mut unpacked.cells);
        cells.for_each(|cell| cell.rebase_wild(now));
    }

    /// Continues a sweep that is due: forgets keys in a few slots that had turned idle by `since`.
    pub(super) fn sweep_some(&mut self, slots: usize, since: u64, next: Timestamp, freed: &mut Freed) {
        let Location { mut width, mut index } = self.sweep_at;
        while width <= WIDEST && self.table(width).len() == 0 {
            self.shrink(width);
            (width, index) = (width + 1, 0);
        }
        if width <= WIDEST {
            index = self.sweep_slots(width, index, slots, since, freed);
            if index >= self.table(width).slots() {
                self.shrink(width);
                (width, index) = (width + 1, 0);
            }
        }
        self.sweep_due = Timestamp::EPOCH;
        if width > WIDEST {
            (width, index, self.sweep_due) = (1, 0, next);
            let spare = self.unpacked.len() * 2;
            self.unpacked.shrink_to(spare);
        }
        self.sweep_at = Location { width, index };
    }

    /// Sweeps up to `count` slots of one table from `index` on, and returns the index where it
    /// stopped.
    fn sweep_slots(
        &mut self,
        width: usize,
        index: SlotIndex,
        count: usize,
        since: u64,
        freed: &mut Freed,
    ) -> SlotIndex {
        let mut next_idle = self.next_idle;
        let index = self.forget_slots(width, index, count, freed, |shard, found, tag| {
            let idle_at = shard.idle_at(found, tag);
            // A reservation that has expired may have made a key idle earlier.
            let is_idle = match shard.unpacked_of(found) {
                Some(Unpacked { cells, .. }) => {
                    cells.iter().all(|cell| cell.is_idle(Timestamp::from_nanos(since)))
                }
                None => idle_at <= since,
            };
            if !is_idle {
                next_idle = next_idle.min(idle_at);
            }
            is_idle
        });
        self.next_idle = next_idle;
        index
    }

    /// Forgets the keys that `is_over` selects, in up to `count` slots of one table from `index`
    /// on, and returns the index where it stopped.
    fn forget_slots(
        &mut self,
        width: usize,
        mut index: SlotIndex,
        count: usize,
        freed: &mut Freed,
        mut is_over: impl FnMut(&Self, Location, Tag) -> bool,
    ) -> SlotIndex {
        let mut known = None;
        let end = index.saturating_add(count).min(self.table(width).slots());
        while index < end {
            let (number, found) = (self.table(width).number(index), Location { width, index });
            if number == 0 {
                index += 1;
                continue;
            }
            if number == UNPACKED || known.is_none_or(|tag: Tag| tag.number() != number) {
                known = self.tag(found);
            }
            match known.filter(|tag| is_over(self, found, *tag)) {
                // Removal shifts another key into this slot: it is examined next.
                Some(tag) => {
                    freed.add(tag);
                    self.forget(found);
                }
                None => index += 1,
            }
        }
        index
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash::Secrets;
    use super::super::shard::Views;
    use super::*;
    use crate::key::Budget;
    use crate::request::Client;
    use crate::{Limit, Limits};
    use std::sync::Arc;

    #[test]
    fn e5_a_sweep_frees_the_memory_of_a_table_without_keys() {
        let (secrets, views) = (Arc::new(Secrets::from_seed([1, 2])), Arc::new(Views::new()));
        let mut shard = Shard::new(0, Arc::clone(&secrets), views);
        let rule = RuleName::intern("r");
        let tag = Tag::new(rule, Budget::Rule, Limits::from(Limit::per_minute(10)), 1);
        for number in 0..1_000 {
            shard.insert_packed(secrets.identify_client(&secrets.prefix(0), Client::Numbered(number)), tag);
        }
        let mut freed = Freed::default();
        shard.clear(rule, &mut freed);
        assert_eq!((freed.keys(), shard.table(1).slots() > 1_000), (1_000, true));
        shard.sweep_some(8, 0, Timestamp::EPOCH, &mut freed);
        assert!(shard.table(1).slots() <= 64, "{} slots", shard.table(1).slots());
    }
}
