//! Forgetting: what has turned idle is removed, a few slots at a time or all at once.

use super::changes::page_bit;
use super::hash::Secrets;
use super::shard::{Shard, WIDEST, lapse_at, pack, packed_idle_at};
use super::table::Place;
use crate::algorithm::LATE;
use crate::{Limits, Timestamp};

impl Shard {
    #[inline]
    pub(super) fn sweep_is_due(&self, now: Timestamp) -> bool {
        now >= self.sweep_due
    }

    /// Goes on, from wherever it got last time, to forget what is idle in a few slots of one table.
    pub(super) fn reclaim_some(&mut self, width: usize, slots: usize, since: u64, secrets: &Secrets) -> u64 {
        let place = if self.cursor < self.table(width).slots() { self.cursor } else { 0 };
        let (freed, reached) = self.sweep_slots(width, place, slots, since, secrets);
        self.cursor = reached;
        freed
    }

    /// Forgets everything idle, and says how many keys that were.
    pub(super) fn reclaim(&mut self, now: Timestamp, secrets: &Secrets) -> u64 {
        if now.as_nanos().saturating_add(LATE) < self.latest.as_nanos() {
            self.heal(now);
        }
        if now.as_nanos() < self.next_idle {
            return 0;
        }
        self.next_idle = u64::MAX;
        let mut freed: u64 = 0;
        for width in 1..=WIDEST {
            freed += self.sweep_slots(width, 0, usize::MAX, now.as_nanos(), secrets).0;
        }
        freed + self.reclaim_whole(now)
    }

    /// The clock has gone back: what was written later counts as exactly empty as of now, and not
    /// only when its owner comes next.
    fn heal(&mut self, now: Timestamp) {
        self.set_time(now);
        self.note_all();
        for width in 1..=WIDEST {
            for place in 0..self.table(width).slots() {
                let number = self.table(width).number(width, place);
                if number != 0 {
                    let mut cells = self.unpack(width, place);
                    cells.iter_mut().for_each(|cell| cell.roll(now));
                    pack(&cells, self.table_mut(width).state_mut(width, place));
                }
            }
        }
    }

    fn reclaim_whole(&mut self, now: Timestamp) -> u64 {
        let (before, mut next_idle) = (self.whole.len(), self.next_idle);
        let mut changed = Vec::new();
        self.whole.retain(|id, cells| {
            let lapsed_at = lapse_at(cells);
            cells.iter_mut().for_each(|cell| cell.roll(now));
            let busy = cells.iter().any(|cell| !cell.is_idle(now));
            if busy {
                next_idle =
                    cells.iter().map(|cell| cell.idle_at(now).as_nanos()).max().unwrap_or(0).min(next_idle);
            }
            if !busy || lapse_at(cells) != lapsed_at {
                changed.push(*id);
            }
            busy
        });
        self.next_idle = next_idle;
        changed.into_iter().for_each(|id| self.note_whole(id));
        u64::try_from(before - self.whole.len()).unwrap_or(0)
    }

    /// Goes on with a sweep that is due: a few slots, forgetting what had turned idle by `since`.
    /// Says how many keys that were.
    pub(super) fn sweep_some(
        &mut self,
        slots: usize,
        now: Timestamp,
        since: u64,
        next: Timestamp,
        secrets: &Secrets,
    ) -> u64 {
        let (mut width, mut place) = self.sweep_at.unwrap_or((1, 0));
        let mut freed = 0;
        while width <= WIDEST && self.table(width).len() == 0 {
            (width, place) = (width + 1, 0);
        }
        if width <= WIDEST {
            let (some, reached) = self.sweep_slots(width, place, slots, since, secrets);
            freed = some;
            if reached >= self.table(width).slots() {
                self.table_mut(width).shrink(width, secrets);
                self.show(width);
                (width, place) = (width + 1, 0);
            } else {
                place = reached;
            }
        }
        self.sweep_at = (width <= WIDEST).then_some((width, place));
        self.sweep_due = Timestamp::EPOCH;
        if self.sweep_at.is_none() {
            self.sweep_due = next;
            freed += self.reclaim_whole(now);
        }
        freed
    }

    /// Sweeps up to `count` slots of one table from `place` on. Says how many keys it forgot and
    /// where it stopped.
    fn sweep_slots(
        &mut self,
        width: usize,
        mut place: Place,
        count: usize,
        since: u64,
        secrets: &Secrets,
    ) -> (u64, Place) {
        let (mut freed, mut known, mut next_idle) = (0, None, self.next_idle);
        let mut changed = 0;
        let table = self.table_mut(width);
        let end = place.saturating_add(count).min(table.slots());
        while place < end {
            let number = table.number(width, place);
            if number != 0 {
                if known.is_none_or(|limits: Limits| limits.number() != number) {
                    known = Limits::of_number(number);
                }
                let idle_at =
                    known.map_or(u64::MAX, |limits| packed_idle_at(limits, table.state(width, place)));
                if idle_at <= since {
                    // What shifts into this place is looked at next.
                    changed |= page_bit(secrets.home(table.id(width, place)));
                    table.remove(width, place, secrets);
                    freed += 1;
                    continue;
                }
                next_idle = next_idle.min(idle_at);
            }
            place += 1;
        }
        self.next_idle = next_idle;
        self.note_pages(changed);
        (freed, place)
    }
}
