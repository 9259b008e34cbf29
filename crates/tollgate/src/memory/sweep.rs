//! Forgetting: what has turned idle is removed, a few slots at a time or all at once.

use super::changes::page_bit;
use super::room::Freed;
use super::shard::{Shard, WIDEST, pack};
use super::table::Place;
use crate::cell::Cell;
use crate::meter::packed;
use crate::rule::Tag;
use crate::{RuleName, Timestamp};

impl Shard {
    #[inline]
    pub(super) fn sweep_is_due(&self, now: Timestamp) -> bool {
        now >= self.sweep_due
    }

    /// Goes on, from wherever it got last time, to forget what is idle in a few slots of one table.
    pub(super) fn reclaim_some(&mut self, width: usize, slots: usize, since: u64, freed: &mut Freed) {
        let place = if self.cursor < self.table(width).slots() { self.cursor } else { 0 };
        self.cursor = self.sweep_slots(width, place, slots, since, freed);
    }

    /// Forgets everything idle.
    pub(super) fn reclaim(&mut self, now: Timestamp, freed: &mut Freed) {
        if now < self.latest {
            self.set_time(now);
        }
        if std::mem::take(&mut self.went_back) {
            self.heal(now);
        }
        if now.as_nanos() >= self.next_idle {
            self.next_idle = u64::MAX;
            for width in 1..=WIDEST {
                self.sweep_slots(width, 0, usize::MAX, now.as_nanos(), freed);
            }
            self.reclaim_whole(now.as_nanos(), freed);
        }
    }

    /// Forgets every key of a rule, whatever it has in use.
    pub(super) fn clear(&mut self, rule: RuleName, freed: &mut Freed) {
        for width in 1..=WIDEST {
            let mut place = 0;
            while place < self.table(width).slots() {
                let tag = Tag::of_number(self.table(width).number(place)).filter(|tag| tag.rule == rule);
                match tag {
                    Some(tag) => {
                        freed.add(tag);
                        self.remove(width, place);
                    }
                    None => place += 1,
                }
            }
        }
        let gone = self.whole.iter().filter(|(_, whole)| whole.tag.rule == rule);
        for (id, tag) in gone.map(|(id, whole)| (*id, whole.tag)).collect::<Vec<_>>() {
            freed.add(tag);
            self.note_whole(id);
            self.whole.remove(&id);
        }
    }

    /// When a key, or a key of this rule, turns idle first.
    pub(super) fn next_idle_of(&self, rule: Option<RuleName>) -> u64 {
        let (mut next, is_of) = (u64::MAX, |tag: &Tag| rule.is_none_or(|rule| tag.rule == rule));
        for width in 1..=WIDEST {
            let table = self.table(width);
            for place in table.places() {
                let tag = Tag::of_number(table.number(place)).filter(is_of);
                next = tag.map_or(next, |tag| packed::idle_at(&tag.limits, table.state(place)).min(next));
            }
        }
        let of_rule = self.whole.values().filter(|whole| is_of(&whole.tag));
        of_rule.flat_map(|whole| whole.cells.iter().map(Cell::idle_at).max()).fold(next, u64::min)
    }

    /// The clock has gone back: what a wild reading wrote is exactly empty as of now, and not only
    /// when its owner comes next.
    fn heal(&mut self, now: Timestamp) {
        self.note_all();
        for width in 1..=WIDEST {
            for place in 0..self.table(width).slots() {
                let whole = self.unpack(width, place, None).filter(|whole| !whole.tag.is_inline());
                if let Some(mut whole) = whole {
                    whole.cells.iter_mut().for_each(|cell| cell.heal(now));
                    pack(&whole.cells, self.table_mut(width).state_mut(place));
                }
            }
        }
        self.whole.values_mut().flat_map(|whole| &mut whole.cells).for_each(|cell| cell.heal(now));
    }

    /// Forgets what does not pack and had turned idle by `since`.
    fn reclaim_whole(&mut self, since: u64, freed: &mut Freed) {
        let since = Timestamp::from_nanos(since);
        let (mut next_idle, mut gone) = (self.next_idle, Vec::new());
        self.whole.retain(|id, whole| {
            let busy = whole.cells.iter().any(|cell| !cell.is_idle(since));
            if busy {
                next_idle = whole.cells.iter().map(Cell::idle_at).max().unwrap_or(0).min(next_idle);
            } else {
                freed.add(whole.tag);
                gone.push(*id);
            }
            busy
        });
        self.next_idle = next_idle;
        gone.into_iter().for_each(|id| self.note_whole(id));
    }

    /// Goes on with a sweep that is due: a few slots, forgetting what had turned idle by `since`.
    pub(super) fn sweep_some(&mut self, slots: usize, since: u64, next: Timestamp, freed: &mut Freed) {
        let (mut width, mut place) = self.sweep_at.unwrap_or((1, 0));
        while width <= WIDEST && self.table(width).len() == 0 {
            (width, place) = (width + 1, 0);
        }
        if width <= WIDEST {
            place = self.sweep_slots(width, place, slots, since, freed);
            if place >= self.table(width).slots() {
                let secrets = std::sync::Arc::clone(&self.secrets);
                self.table_mut(width).shrink(&secrets);
                self.show(width);
                (width, place) = (width + 1, 0);
            }
        }
        self.sweep_at = (width <= WIDEST).then_some((width, place));
        self.sweep_due = Timestamp::EPOCH;
        if self.sweep_at.is_none() {
            self.sweep_due = next;
            self.reclaim_whole(since, freed);
        }
    }

    /// Sweeps up to `count` slots of one table from `place` on, and says where it stopped.
    fn sweep_slots(
        &mut self,
        width: usize,
        mut place: Place,
        count: usize,
        since: u64,
        freed: &mut Freed,
    ) -> Place {
        let (mut known, mut next_idle) = (None, self.next_idle);
        let end = place.saturating_add(count).min(self.table(width).slots());
        while place < end {
            let table = self.table(width);
            let number = table.number(place);
            if number == 0 {
                place += 1;
                continue;
            }
            if known.is_none_or(|tag: Tag| tag.number() != number) {
                known = Tag::of_number(number);
            }
            let idle_at = known.map_or(u64::MAX, |tag| packed::idle_at(&tag.limits, table.state(place)));
            match known.filter(|_| idle_at <= since) {
                // What shifts into this place is looked at next.
                Some(tag) => {
                    freed.add(tag);
                    self.remove(width, place);
                }
                None => {
                    next_idle = next_idle.min(idle_at);
                    place += 1;
                }
            }
        }
        self.next_idle = next_idle;
        place
    }

    fn remove(&mut self, width: usize, place: Place) {
        let secrets = std::sync::Arc::clone(&self.secrets);
        let home = secrets.home(self.table(width).id(place));
        self.note_pages(page_bit(home));
        self.table_mut(width).remove(place, &secrets);
    }
}
