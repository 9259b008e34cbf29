//! A shard: keys behind one lock, each with a slot in a flat table.
//!
//! Every state packs, except a sliding log's. The packed states of all limits of one budget share a
//! slot in the table of their total width. A key with a log, a block or a reservation is kept as
//! whole [`Cell`]s, *unpacked*: its slot, in the table of width 1, has the index of the cells. It
//! is packed again when it can be.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "indexes and counts within one allocation, far below the width of their integers"
)]

use std::sync::Arc;

use smallvec::SmallVec;

use super::changes::{Changes, Flags};
use super::hash::{Id, Secrets};
use super::lookup::Target;
use super::table::{SlotIndex, StateOffset, Table, TableView, WIDEST};
use super::{ALL_SHARDS, SHARDS};
use crate::algorithm::LATE;
use crate::cell::Cell;
use crate::rule::Tag;
use crate::{Limit, Limits, Meter, Timestamp};

/// The cells of one budget, one per limit.
pub(super) type Cells = SmallVec<[Cell; 1]>;

/// A shard. The fields that every request reads come first, on the lock's cache line: with one-word
/// states and without change tracking, a request reads no other.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shard {
    /// The newest reading of the clock.
    pub(super) latest: Timestamp,
    /// When the next sweep is due: the epoch while one is under way.
    pub(super) sweep_due: Timestamp,
    /// What has changed, if changes are tracked.
    pub(super) changes: Option<Box<Changes>>,
    /// Tables by width, from 1.
    tables: [Table; WIDEST],
    /// No key turns idle before this time: until then a search finds nothing. Taking from a key
    /// only delays the time at which it turns idle, so only a new key lowers this.
    pub(super) next_idle: u64,
    /// Whether the clock has gone back since the last search for idle keys.
    pub(super) went_back: bool,
    /// The unpacked keys, in no order.
    pub(super) unpacked: Vec<(Id, Box<Unpacked>)>,
    /// The slot at which a sweep begins or continues.
    pub(super) sweep_at: Location,
    /// The slot at which the next new key searches for idle ones.
    pub(super) cursor: SlotIndex,
    /// The offset of this shard's table sizes, of 256.
    stagger: usize,
    pub(super) index: usize,
    pub(super) secrets: Arc<Secrets>,
    pub(super) views: Arc<Views>,
}

/// The tag and the cells of a key, not packed.
#[derive(Clone, Debug)]
pub(super) struct Unpacked {
    pub(super) tag: Tag,
    pub(super) cells: Cells,
}

/// What all shards publish outside their locks.
#[derive(Debug)]
pub(super) struct Views {
    /// The tables' views, by width and shard: those of one width are close together.
    tables: Box<[[TableView; ALL_SHARDS]; WIDEST]>,
    /// The shards that have changed.
    pub(super) flags: Flags,
}

impl Views {
    pub(super) fn new() -> Self {
        Self {
            tables: Box::new([const { [const { TableView::new() }; ALL_SHARDS] }; WIDEST]),
            flags: Flags::default(),
        }
    }

    /// Prefetches the slot of a state of this width.
    #[inline(always)]
    pub(super) fn prefetch(&self, width: usize, shard: usize, home: u64) {
        if let Some(view) = self.tables[width.wrapping_sub(1) % WIDEST].get(shard) {
            view.prefetch(width, home);
        }
    }
}

/// The tag number in the slot of an unpacked key.
pub(super) const UNPACKED: u32 = u32::MAX;

/// The slot of a key, valid until the table changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub(super) width: usize,
    pub(super) index: SlotIndex,
}

impl Shard {
    pub(super) fn new(index: usize, secrets: Arc<Secrets>, views: Arc<Views>) -> Self {
        Self {
            latest: Timestamp::EPOCH,
            sweep_due: Timestamp::EPOCH,
            changes: None,
            tables: std::array::from_fn(|index| Table::new(index + 1)),
            next_idle: u64::MAX,
            went_back: false,
            unpacked: Vec::new(),
            sweep_at: Location { width: 1, index: 0 },
            cursor: 0,
            stagger: index * 256 / SHARDS % 256,
            index,
            secrets,
            views,
        }
    }

    /// Sets the shard's clock to the time of a decision.
    #[inline]
    pub(super) fn set_time(&mut self, now: Timestamp) {
        if now < self.latest {
            // The clock has gone back: the times of the next idle key and of the next sweep are
            // void.
            self.next_idle = 0;
            self.sweep_due = Timestamp::EPOCH;
            self.went_back = true;
        }
        self.latest = now;
    }

    /// The state that a budget's tag wrote, and where it is. `W` is its width, or [`WIDEST`] if the
    /// caller does not know it.
    #[inline(always)]
    pub(super) fn state_of<const W: usize>(&self, target: &Target<'_>) -> Option<(StateOffset, [u64; W])> {
        let table = self.tables.get(target.width::<W>() - 1)?;
        table.state_written_by(target.id, target.home, target.lookup.number)
    }

    /// Writes the state of a budget.
    #[inline(always)]
    pub(super) fn write<const W: usize>(&mut self, target: &Target<'_>, at: StateOffset, state: &[u64; W]) {
        if let Some(table) = self.tables.get_mut(target.width::<W>() - 1) {
            table.write(at, state);
            self.note(target.home);
        }
    }

    #[inline]
    pub(super) fn table(&self, width: usize) -> &Table {
        &self.tables[width.wrapping_sub(1) % WIDEST]
    }

    #[inline]
    pub(super) fn table_mut(&mut self, width: usize) -> &mut Table {
        &mut self.tables[width.wrapping_sub(1) % WIDEST]
    }

    /// Finds a key: first in the table of its `likely` width, then everywhere else, since its
    /// limits may have had another width.
    pub(super) fn find(&self, id: Id, likely: Option<usize>) -> Option<Location> {
        let home = self.secrets.home(id);
        let likely = likely.filter(|width| (1..=WIDEST).contains(width));
        let others = (1..=WIDEST).filter(|width| Some(*width) != likely);
        let in_table = |width| Some(Location { width, index: self.table(width).find(id, home)? });
        likely.into_iter().chain(others).find_map(in_table)
    }

    /// Adds a zeroed state for a new key, written by the tag with this number.
    fn insert(&mut self, id: Id, width: usize, number: u32) -> &mut [u64] {
        let table = &mut self.tables[width.wrapping_sub(1) % WIDEST];
        let index = table.insert(id, number, &self.secrets, self.stagger);
        self.publish(width);
        self.table_mut(width).state_mut(index)
    }

    /// Adds a zeroed packed state for a new key.
    pub(super) fn insert_packed(&mut self, id: Id, tag: Tag) -> &mut [u64] {
        self.note(self.secrets.home(id));
        self.insert(id, tag.words().unwrap_or(0), tag.number())
    }

    /// Adds the cells of a new key.
    pub(super) fn insert_cells(&mut self, id: Id, unpacked: Unpacked, packed: bool) {
        if packed {
            return pack(&unpacked.cells, self.insert_packed(id, unpacked.tag));
        }
        self.note_unpacked(id);
        let at = word_of(self.unpacked.len());
        self.unpacked.push((id, Box::new(unpacked)));
        self.insert(id, 1, UNPACKED).fill(at);
    }

    /// The index of an unpacked key; `None` if the key is packed.
    pub(super) fn unpacked_at(&self, Location { width, index }: Location) -> Option<usize> {
        let table = self.table(width);
        let at = table.state(index).first().filter(|_| table.number(index) == UNPACKED)?;
        usize::try_from(*at).ok()
    }

    /// An unpacked key; `None` if the key is packed.
    pub(super) fn unpacked_of(&self, found: Location) -> Option<&Unpacked> {
        self.unpacked.get(self.unpacked_at(found)?).map(|(_, unpacked)| &**unpacked)
    }

    /// An unpacked key; `None` if the key is packed.
    pub(super) fn unpacked_mut(&mut self, found: Location) -> Option<&mut Unpacked> {
        let at = self.unpacked_at(found)?;
        self.unpacked.get_mut(at).map(|(_, unpacked)| &mut **unpacked)
    }

    /// The tag of a key.
    pub(super) fn tag(&self, found: Location) -> Option<Tag> {
        match self.unpacked_of(found) {
            Some(unpacked) => Some(unpacked.tag),
            None => Tag::of_number(self.table(found.width).number(found.index)),
        }
    }

    /// The tag and the cells of a key, to be changed and put back. `inline` is the limit in force
    /// if it came with the request.
    pub(super) fn load(&mut self, found: Location, inline: Option<&Limit>) -> Option<Unpacked> {
        match self.unpacked_mut(found) {
            // Moved, not copied: a log may be long. The entry stays, for when they are put back.
            Some(entry) => Some(Unpacked { tag: entry.tag, cells: std::mem::take(&mut entry.cells) }),
            None => self.unpack(found, inline),
        }
    }

    /// The tag and the cells of a packed key.
    pub(super) fn unpack(
        &self,
        Location { width, index }: Location,
        inline: Option<&Limit>,
    ) -> Option<Unpacked> {
        let table = self.table(width);
        let tag = Tag::of_number(table.number(index))?;
        let (mut cells, mut words) = (Cells::new(), table.state(index));
        let inline = inline.filter(|_| tag.is_inline()).map(std::slice::from_ref);
        for limit in inline.unwrap_or(tag.limits.as_slice()) {
            let (state, rest) = words.split_at(Meter::words(limit).unwrap_or(0).min(words.len()));
            cells.push(Cell::plain(Meter::load(*limit, state)));
            words = rest;
        }
        Some(Unpacked { tag, cells })
    }

    /// Puts back the unchanged cells of a key, without those that only a longer list of limits has.
    pub(super) fn put_back(&mut self, found: Location, Unpacked { tag, mut cells }: Unpacked) {
        if let Some(entry) = self.unpacked_mut(found) {
            cells.truncate(tag.limits.len());
            *entry = Unpacked { tag, cells };
        }
    }

    /// Puts back the changed cells of a key: packed if possible, dropped if idle. Returns whether
    /// the key is kept.
    pub(super) fn store(
        &mut self,
        found: Option<Location>,
        id: Id,
        Unpacked { tag, cells }: Unpacked,
        now: Timestamp,
    ) -> bool {
        let keeps = cells.iter().any(|cell| !cell.is_idle(now));
        let tag = tag_of(&cells, tag);
        let plain = keeps && cells.iter().all(|cell| cell.is_plain(now));
        let width = tag.words().filter(|width| plain && *width <= WIDEST);
        if keeps {
            self.next_idle = idle_at(&cells).min(self.next_idle);
        }
        let is_unpacked = found.is_some_and(|found| self.unpacked_at(found).is_some());
        match (width, found) {
            (Some(width), Some(found)) if found.width == width && !is_unpacked => {
                self.note(self.secrets.home(id));
                let table = self.table_mut(width);
                table.set_number(found.index, tag.number());
                pack(&cells, table.state_mut(found.index));
            }
            (None, Some(found)) if keeps && is_unpacked => {
                self.note_unpacked(id);
                self.put_back(found, Unpacked { tag, cells });
            }
            (width, found) => {
                found.into_iter().for_each(|found| self.forget(found));
                if keeps {
                    self.insert_cells(id, Unpacked { tag, cells }, width.is_some());
                }
            }
        }
        keeps
    }

    /// Forgets a key.
    pub(super) fn forget(&mut self, found: Location) {
        let (Location { width, index }, at) = (found, self.unpacked_at(found));
        let id = self.table(width).id(index);
        self.tables[width.wrapping_sub(1) % WIDEST].remove(index, &self.secrets);
        let Some(at) = at else { return self.note(self.secrets.home(id)) };
        self.note_unpacked(id);
        self.unpacked.swap_remove(at);
        // The last one is there now.
        let moved = self.unpacked.get(at).and_then(|(moved, _)| self.find(*moved, Some(1)));
        if let Some(Location { width, index }) = moved {
            self.table_mut(width).state_mut(index).fill(word_of(at));
        }
    }

    /// Frees memory of a table that is mostly empty.
    pub(super) fn shrink(&mut self, width: usize) {
        self.tables[width.wrapping_sub(1) % WIDEST].shrink(&self.secrets);
        self.publish(width);
    }

    /// Publishes the address of a table, which may have moved.
    fn publish(&self, width: usize) {
        self.views.tables[width.wrapping_sub(1) % WIDEST][self.index].publish(self.table(width));
    }

    /// The slots of all keys.
    pub(super) fn occupied(&self) -> impl Iterator<Item = Location> {
        let in_table = |width| self.table(width).occupied().map(move |index| Location { width, index });
        (1..=WIDEST).flat_map(in_table)
    }

    /// Calls `each` for every cell that is not packed.
    pub(super) fn each_unpacked(&self, each: impl FnMut(&Cell)) {
        self.unpacked.iter().flat_map(|(_, unpacked)| &unpacked.cells).for_each(each);
    }

    /// Calls `each` for every key.
    #[cfg(any(test, feature = "dump"))]
    pub(super) fn each(&self, mut each: impl FnMut(Id, &Unpacked)) {
        for found in self.occupied() {
            let id = self.table(found.width).id(found.index);
            match self.unpacked_of(found) {
                Some(unpacked) => each(id, unpacked),
                None => self.unpack(found, None).iter().for_each(|unpacked| each(id, unpacked)),
            }
        }
    }
}

/// The reading that counts, of one before the newest: the newest if it merely came late.
#[cold]
pub(super) fn late_reading(newest: Timestamp, now: Timestamp) -> Timestamp {
    let late = newest.as_nanos().saturating_sub(now.as_nanos());
    if late <= LATE { newest } else { now }
}

pub(super) fn pack(cells: &Cells, mut words: &mut [u64]) {
    for cell in cells {
        let length = Meter::words(&cell.limit()).unwrap_or(0).min(words.len());
        let (state, rest) = words.split_at_mut(length);
        cell.meter().save(state);
        words = rest;
    }
}

/// When no unit of these cells is in use any more.
pub(super) fn idle_at(cells: &Cells) -> u64 {
    cells.iter().map(Cell::idle_at).max().unwrap_or(0)
}

fn word_of(index: usize) -> u64 {
    u64::try_from(index).unwrap_or(u64::MAX)
}

/// The tag of these cells: `likely`, unless their limits differ from its list.
fn tag_of(cells: &Cells, likely: Tag) -> Tag {
    let same_limits = || cells.iter().zip(likely.limits).all(|(cell, limit)| cell.limit() == *limit);
    if likely.is_inline() || (cells.len() == likely.limits.len() && same_limits()) {
        return likely;
    }
    likely.under(Limits::from(cells.iter().map(Cell::limit).collect::<Vec<_>>()))
}
