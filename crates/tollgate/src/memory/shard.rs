//! A part of the keys behind one lock: packed states in flat tables, the rest in a map.
//!
//! What packs (every state but a sliding log's) lies in the table of its width, all limits of one
//! budget side by side in one slot. What does not, and what has a block or a reservation, is kept
//! as whole [`Cell`]s in a map, and comes back into a table when it can.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::changes::{Changes, Flags};
use super::hash::{Id, Secrets};
use super::table::{Place, Table, View};
use super::take::{Aim, Slot};
use super::{ALL_SHARDS, SHARDS};
use crate::algorithm::LATE;
use crate::cell::Cell;
use crate::rule::Tag;
use crate::{Limit, Limits, Meter, Timestamp};

/// The widest state that is packed, in words.
pub(super) const WIDEST: usize = 8;

/// The cells of one budget, one for each of its limits.
pub(super) type Cells = SmallVec<[Cell; 2]>;

/// A part of the keys. What every request reads comes first, on the lock's own cache line.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shard {
    /// The newest reading of the clock.
    pub(super) latest: Timestamp,
    /// When the next sweep is due: at once, while one is under way.
    pub(super) sweep_due: Timestamp,
    /// Nothing turns idle before this: until then there is no use in looking.
    pub(super) next_idle: u64,
    /// Which pages have changed, if anyone asks.
    pub(super) changes: Changes,
    /// By width, from 1.
    tables: [Table; WIDEST],
    /// Whether the clock has gone back since idle keys were last looked for.
    pub(super) went_back: bool,
    pub(super) whole: HashMap<Id, Whole>,
    /// Which of those have changed.
    pub(super) changed_whole: HashSet<Id>,
    /// The table and the slot that a sweep has got to, while one is under way.
    pub(super) sweep_at: Option<(usize, Place)>,
    /// Where new keys have got to in their looking for idle slots.
    pub(super) cursor: Place,
    /// Where between two sizes its tables are, of 256.
    stagger: usize,
    pub(super) index: usize,
    pub(super) secrets: Arc<Secrets>,
    pub(super) views: Arc<Views>,
}

/// What does not pack.
#[derive(Clone, Debug)]
pub(super) struct Whole {
    pub(super) tag: Tag,
    pub(super) cells: Cells,
}

/// What is known of all shards outside their locks.
#[derive(Debug)]
pub(super) struct Views {
    /// Where all tables have their memory, by shard and width.
    tables: Box<[[View; WIDEST]; ALL_SHARDS]>,
    /// Which shards have changed.
    pub(super) flags: Flags,
}

impl Views {
    pub(super) fn new() -> Self {
        Self { tables: Box::new([const { [const { View::new() }; WIDEST] }; ALL_SHARDS]), flags: Flags::default() }
    }

    /// Has the slot of a state of this width fetched.
    #[inline(always)]
    pub(super) fn prefetch(&self, width: usize, shard: usize, home: u64) {
        if let Some(tables) = self.tables.get(shard) {
            tables[width.wrapping_sub(1) % WIDEST].prefetch(width, home);
        }
    }

    fn show(&self, width: usize, shard: usize, table: &Table) {
        if let Some(tables) = self.tables.get(shard) {
            tables[width.wrapping_sub(1) % WIDEST].show(table.view());
        }
    }
}

/// Where a key's state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Packed { width: usize, place: Place },
    Whole,
    Nowhere,
}

impl Shard {
    pub(super) fn new(index: usize, secrets: Arc<Secrets>, views: Arc<Views>) -> Self {
        Self {
            latest: Timestamp::EPOCH,
            next_idle: u64::MAX,
            sweep_due: Timestamp::EPOCH,
            changes: Changes::default(),
            tables: std::array::from_fn(|index| Table::new(index + 1)),
            went_back: false,
            whole: HashMap::new(),
            changed_whole: HashSet::new(),
            sweep_at: None,
            cursor: 0,
            stagger: index * 256 / SHARDS % 256,
            index,
            secrets,
            views,
        }
    }

    /// The time that a request is decided at: its reading of the clock, or the newest if it merely
    /// came late.
    #[inline]
    pub(super) fn arrive(&mut self, now: Timestamp) -> Timestamp {
        if now < self.latest {
            let now = in_order(self.latest, now);
            self.set_time(now);
            return now;
        }
        self.latest = now;
        now
    }

    /// Takes note of the time that a request is decided at.
    pub(super) fn set_time(&mut self, now: Timestamp) {
        if now < self.latest {
            // The clock has gone back: what is known of when keys turn idle, and when to sweep, is
            // worth nothing.
            self.next_idle = 0;
            self.sweep_due = Timestamp::EPOCH;
            self.went_back = true;
        }
        self.latest = now;
    }

    /// The state that this budget's tag, and no other, wrote; and [`next_idle`](Self::next_idle).
    #[inline(always)]
    pub(super) fn state_of(&mut self, aim: &Aim, slot: &Slot) -> Option<(&mut [u64], &mut u64)> {
        let table = &mut self.tables[aim.width().wrapping_sub(1) % WIDEST];
        Some((table.written_by(slot.id, slot.home, aim.number())?, &mut self.next_idle))
    }

    /// The same for a state of one word.
    #[inline(always)]
    pub(super) fn word_of(&mut self, aim: &Aim, slot: &Slot) -> Option<(&mut u64, &mut u64)> {
        let [table, ..] = &mut self.tables;
        Some((table.word_written_by(slot.id, slot.home, aim.number())?, &mut self.next_idle))
    }

    #[inline]
    pub(super) fn table(&self, width: usize) -> &Table {
        &self.tables[width.wrapping_sub(1) % WIDEST]
    }

    #[inline]
    pub(super) fn table_mut(&mut self, width: usize) -> &mut Table {
        &mut self.tables[width.wrapping_sub(1) % WIDEST]
    }

    /// Looks where it should be first, and then where else it could be: its limits may have had
    /// another width.
    pub(super) fn find(&self, id: Id, likely: Option<usize>) -> Found {
        let home = self.secrets.home(id);
        let packed =
            |width: usize| self.table(width).find(id, home).map(|place| Found::Packed { width, place });
        if let Some(found) = likely.filter(|width| (1..=WIDEST).contains(width)).and_then(packed) {
            return found;
        }
        if !self.whole.is_empty() && self.whole.contains_key(&id) {
            return Found::Whole;
        }
        (1..=WIDEST).filter(|width| Some(*width) != likely).find_map(packed).unwrap_or(Found::Nowhere)
    }

    /// Adds a packed state, all zeroes, for a key that has none.
    pub(super) fn insert(&mut self, id: Id, tag: Tag) -> &mut [u64] {
        self.note(self.secrets.home(id));
        let width = tag.words().unwrap_or(0);
        let table = &mut self.tables[width.wrapping_sub(1) % WIDEST];
        table.insert(id, tag.number(), &self.secrets, self.stagger);
        self.views.show(width, self.index, table);
        let place = table.find(id, self.secrets.home(id)).unwrap_or(0);
        table.state_mut(place)
    }

    /// The tag of a key.
    pub(super) fn tag(&self, found: Found, id: Id) -> Option<Tag> {
        match found {
            Found::Packed { width, place } => Tag::of_number(self.table(width).number(place)),
            Found::Whole => self.whole.get(&id).map(|whole| whole.tag),
            Found::Nowhere => None,
        }
    }

    /// The tag and the cells of a key, taken out to be changed and put back. Limits that come with
    /// a request are those of `inline`.
    pub(super) fn load(&mut self, found: Found, id: Id, inline: Option<&Limit>) -> Option<Whole> {
        match found {
            Found::Packed { width, place } => self.unpack(width, place, inline),
            // Taken, not copied: a log may be long.
            Found::Whole => self.whole.remove(&id),
            Found::Nowhere => None,
        }
    }

    pub(super) fn unpack(&self, width: usize, place: Place, inline: Option<&Limit>) -> Option<Whole> {
        let table = self.table(width);
        let tag = Tag::of_number(table.number(place))?;
        let (mut cells, mut words) = (Cells::new(), table.state(place));
        let inline = inline.filter(|_| tag.is_inline()).map(std::slice::from_ref);
        for limit in inline.unwrap_or(tag.limits.as_slice()) {
            let (state, rest) = words.split_at(Meter::words(limit).unwrap_or(0).min(words.len()));
            cells.push(Cell::plain(Meter::load(*limit, state)));
            words = rest;
        }
        Some(Whole { tag, cells })
    }

    /// Puts back a key's cells that nothing was done to.
    pub(super) fn put_back(&mut self, found: Found, id: Id, whole: Whole) {
        if found == Found::Whole {
            self.whole.insert(id, whole);
        }
    }

    /// Puts back a key's cells that have changed: nowhere if they are idle, packed if they can be.
    /// Says whether anything is kept.
    pub(super) fn store(&mut self, found: Found, id: Id, Whole { tag, cells }: Whole, now: Timestamp) -> bool {
        let keeps = cells.iter().any(|cell| !cell.is_idle(now));
        let tag = tag_of(&cells, tag);
        let plain = keeps && cells.iter().all(|cell| cell.is_plain(now));
        let width = tag.words().filter(|width| plain && *width <= WIDEST);
        if keeps {
            self.next_idle = cells.iter().map(Cell::idle_at).max().unwrap_or(0).min(self.next_idle);
        }
        match (width, found) {
            (Some(width), Found::Packed { width: was, place }) if was == width => {
                self.note(self.secrets.home(id));
                let table = self.table_mut(width);
                table.set_number(place, tag.number());
                pack(&cells, table.state_mut(place));
            }
            (Some(_), _) => {
                self.forget(found, id);
                pack(&cells, self.insert(id, tag));
            }
            (None, _) => {
                self.forget(found, id);
                if keeps {
                    self.whole.insert(id, Whole { tag, cells });
                    self.note_whole(id);
                }
            }
        }
        keeps
    }

    /// Forgets a key.
    pub(super) fn forget(&mut self, found: Found, id: Id) {
        match found {
            Found::Packed { width, place } => {
                self.note(self.secrets.home(id));
                self.tables[width.wrapping_sub(1) % WIDEST].remove(place, &self.secrets);
            }
            Found::Whole => {
                self.note_whole(id);
                self.whole.remove(&id);
            }
            Found::Nowhere => {}
        }
    }

    /// Shows where the memory of a table is, which may have moved.
    pub(super) fn show(&self, width: usize) {
        self.views.show(width, self.index, self.table(width));
    }

    /// Everything that is kept.
    #[cfg(any(test, feature = "dump"))]
    pub(super) fn each(&self, mut each: impl FnMut(Id, &Whole)) {
        for width in 1..=WIDEST {
            let table = self.table(width);
            for place in table.places() {
                self.unpack(width, place, None).iter().for_each(|whole| each(table.id(place), whole));
            }
        }
        self.whole.iter().for_each(|(id, whole)| each(*id, whole));
    }
}

/// Of two readings of the clock, the one that counts: the newest, if the other merely came late.
#[inline]
pub(super) fn in_order(newest: Timestamp, now: Timestamp) -> Timestamp {
    let late = newest.as_nanos().saturating_sub(now.as_nanos());
    if late <= LATE { now.max(newest) } else { now }
}

pub(super) fn pack(cells: &Cells, mut words: &mut [u64]) {
    for cell in cells {
        let length = Meter::words(&cell.limit()).unwrap_or(0).min(words.len());
        let (state, rest) = words.split_at_mut(length);
        cell.meter().save(state);
        words = rest;
    }
}

/// The tag of these cells, which is `likely` this one.
fn tag_of(cells: &Cells, likely: Tag) -> Tag {
    let as_said = || cells.iter().zip(likely.limits).all(|(cell, limit)| cell.limit() == *limit);
    if likely.is_inline() || (cells.len() == likely.limits.len() && as_said()) {
        return likely;
    }
    likely.under(Limits::from(cells.iter().map(Cell::limit).collect::<Vec<_>>()))
}
