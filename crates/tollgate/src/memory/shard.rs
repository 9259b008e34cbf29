//! A part of the keys behind one lock: packed states in flat tables, the rest in a map.
//!
//! What packs (every state but a sliding log's) lies in the table of its width, all limits of one
//! rule and subject side by side in one slot. What does not, and what has a block or a reservation,
//! is kept as whole [`Cell`]s in a map, and comes back into a table when it can.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use smallvec::SmallVec;

use super::SHARDS;
use super::changes::{Changes, Flags};
use super::hash::{Id, Secrets};
use super::table::{Place, Table, View};
use crate::cell::Cell;
use crate::{Limits, Meter, Timestamp};

/// The widest state that is packed, in words.
pub(super) const WIDEST: usize = 8;

/// The cells of one rule and subject, one for each of the rule's limits.
pub(super) type Cells = SmallVec<[Cell; 2]>;

/// A part of the keys. What every request reads comes first, on the lock's own cache line.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Shard {
    /// The newest reading of the clock.
    pub(super) latest: Timestamp,
    /// Nothing turns idle before this: until then there is no use in looking.
    pub(super) next_idle: u64,
    /// When the next sweep is due: at once, while one is under way.
    pub(super) sweep_due: Timestamp,
    /// Which pages have changed, if anyone asks.
    pub(super) changes: Changes,
    /// By width, from 1.
    tables: [Table; WIDEST],
    pub(super) whole: HashMap<Id, Cells>,
    /// Which of those have changed.
    pub(super) changed_whole: HashSet<Id>,
    /// The table and the slot that a sweep has got to, while one is under way.
    pub(super) sweep_at: Option<(usize, Place)>,
    /// Where new keys have got to in their looking for idle slots.
    pub(super) cursor: Place,
    /// Where between two sizes its tables are, of 256.
    stagger: usize,
    /// Which shard it is.
    pub(super) index: usize,
    pub(super) views: Arc<Views>,
}

/// What is known of all shards outside their locks.
#[derive(Debug)]
pub(super) struct Views {
    /// Where all tables have their memory.
    tables: Box<[View]>,
    /// Which shards have changed.
    pub(super) flags: Flags,
}

impl Views {
    pub(super) fn new() -> Self {
        Self { tables: (0..SHARDS * WIDEST).map(|_| View::default()).collect(), flags: Flags::default() }
    }

    /// Those of one width lie side by side.
    #[inline]
    pub(super) fn of(&self, width: usize, shard: usize) -> &View {
        &self.tables[width.saturating_sub(1).min(WIDEST - 1) * SHARDS + shard % SHARDS]
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
    pub(super) fn new(index: usize, views: Arc<Views>) -> Self {
        Self {
            latest: Timestamp::EPOCH,
            next_idle: u64::MAX,
            sweep_due: Timestamp::EPOCH,
            changes: Changes::default(),
            tables: Default::default(),
            whole: HashMap::new(),
            changed_whole: HashSet::new(),
            sweep_at: None,
            cursor: 0,
            stagger: index * (256 / SHARDS),
            index,
            views,
        }
    }

    /// Takes note of the time that a request is decided at.
    #[inline]
    pub(super) fn set_time(&mut self, now: Timestamp) {
        if now < self.latest {
            // The clock has gone back: what is known of when keys turn idle, and when to sweep, is worth
            // nothing.
            self.next_idle = 0;
            self.sweep_due = Timestamp::EPOCH;
        }
        self.latest = now;
    }

    #[inline]
    pub(super) fn table(&self, width: usize) -> &Table {
        &self.tables[width.saturating_sub(1).min(WIDEST - 1)]
    }

    #[inline]
    pub(super) fn table_mut(&mut self, width: usize) -> &mut Table {
        &mut self.tables[width.saturating_sub(1).min(WIDEST - 1)]
    }

    /// Looks where it should be first, and then where else it could be: its limits may have had
    /// another width.
    pub(super) fn find(&self, id: Id, home: u64, likely: Option<usize>) -> Found {
        let packed = |width: usize| {
            self.table(width).find(width, id, home).map(|place| Found::Packed { width, place })
        };
        if let Some(found) = likely.filter(|width| (1..=WIDEST).contains(width)).and_then(packed) {
            return found;
        }
        if !self.whole.is_empty() && self.whole.contains_key(&id) {
            return Found::Whole;
        }
        (1..=WIDEST).filter(|width| Some(*width) != likely).find_map(packed).unwrap_or(Found::Nowhere)
    }

    /// The packed state of a key that these very limits wrote.
    #[inline]
    pub(super) fn packed(&mut self, width: usize, id: Id, home: u64, limits: Limits) -> Option<&mut [u64]> {
        self.table_mut(width).written_by(width, id, home, limits.number())
    }

    /// Adds a packed state, all zeroes, for a key that has none.
    #[inline]
    pub(super) fn insert(&mut self, width: usize, id: Id, limits: Limits, secrets: &Secrets) -> &mut [u64] {
        self.note(secrets.home(id));
        self.insert_unnoted(width, id, limits, secrets)
    }

    /// The same for one that was only elsewhere for a while.
    pub(super) fn insert_unnoted(
        &mut self,
        width: usize,
        id: Id,
        limits: Limits,
        secrets: &Secrets,
    ) -> &mut [u64] {
        let stagger = self.stagger;
        let place = self.table_mut(width).insert(width, id, limits.number(), secrets, stagger);
        self.show(width);
        self.table_mut(width).state_mut(width, place)
    }

    /// Shows where the memory of a table is, which may have moved.
    pub(super) fn show(&self, width: usize) {
        self.views.of(width, self.index).show(self.table(width).view());
    }

    /// The cells of a key, taken out to be changed and [put back](Self::store).
    pub(super) fn load(&mut self, found: Found, id: Id) -> Cells {
        match found {
            Found::Packed { width, place } => self.unpack(width, place),
            // Taken, not copied: a log may be long.
            Found::Whole => self.whole.get_mut(&id).map(std::mem::take).unwrap_or_default(),
            Found::Nowhere => Cells::new(),
        }
    }

    pub(super) fn unpack(&self, width: usize, place: Place) -> Cells {
        let table = self.table(width);
        unpack(Limits::of_number(table.number(width, place)), table.state(width, place))
    }

    /// Puts a key's cells back: nowhere if they are idle, packed if they can be. Says whether
    /// anything is kept. What did not change is not noted as such, wherever it stays where it was.
    pub(super) fn store(
        &mut self,
        found: Found,
        id: Id,
        cells: Cells,
        likely: Limits,
        (now, changed): (Timestamp, bool),
        secrets: &Secrets,
    ) -> bool {
        let keeps = cells.iter().any(|cell| !cell.is_idle(now));
        let plain = keeps && cells.iter().all(|cell| cell.is_plain(now));
        let limits = plain.then(|| limits_of(&cells, likely));
        let width = limits.and_then(Limits::words).filter(|width| *width <= WIDEST);
        if keeps {
            let idle_at = cells.iter().map(|cell| cell.idle_at(now).as_nanos()).max().unwrap_or(0);
            self.next_idle = self.next_idle.min(idle_at);
        }
        match (limits, width, found) {
            (Some(limits), Some(width), Found::Packed { width: was, place }) if was == width => {
                let table = self.table_mut(width);
                table.set_number(width, place, limits.number());
                pack(&cells, table.state_mut(width, place));
                if changed {
                    self.note(secrets.home(id));
                }
            }
            (Some(limits), Some(width), _) => {
                self.forget(found, id, secrets);
                pack(&cells, self.insert(width, id, limits, secrets));
            }
            (_, _, Found::Whole) if keeps => {
                self.whole.insert(id, cells);
                if changed {
                    self.note_whole(id);
                }
            }
            _ => {
                self.forget(found, id, secrets);
                if keeps {
                    self.whole.insert(id, cells);
                    self.note_whole(id);
                }
            }
        }
        keeps
    }

    /// Forgets a key.
    pub(super) fn forget(&mut self, found: Found, id: Id, secrets: &Secrets) {
        match found {
            Found::Packed { .. } => self.note(secrets.home(id)),
            Found::Whole => self.note_whole(id),
            Found::Nowhere => {}
        }
        self.forget_unnoted(found, id, secrets);
    }

    /// The same for one that is only elsewhere for a while.
    pub(super) fn forget_unnoted(&mut self, found: Found, id: Id, secrets: &Secrets) {
        match found {
            Found::Packed { width, place } => self.table_mut(width).remove(width, place, secrets),
            Found::Whole => drop(self.whole.remove(&id)),
            Found::Nowhere => {}
        }
    }

    /// Everything that is kept.
    #[cfg(any(test, feature = "dump"))]
    pub(super) fn each(&self, mut each: impl FnMut(Id, &Cells)) {
        for width in 1..=WIDEST {
            let table = self.table(width);
            for place in (0..table.slots()).filter(|place| table.number(width, *place) != 0) {
                each(table.id(width, place), &self.unpack(width, place));
            }
        }
        self.whole.iter().for_each(|(id, cells)| each(*id, cells));
    }
}

/// When the packed states of one slot have nothing in use any more.
pub(super) fn packed_idle_at(limits: Limits, mut words: &[u64]) -> u64 {
    let mut idle_at = 0;
    for limit in limits {
        let (state, rest) = words.split_at(Meter::words(limit).unwrap_or(0).min(words.len()));
        idle_at = Meter::packed_idle_at(limit, state).max(idle_at);
        words = rest;
    }
    idle_at
}

/// When, by the cells just as they are stored, nothing of each is in use any more: sooner than it was only
/// where the clock has gone back, and it counts as exactly empty as of now.
pub(super) fn lapse_at(cells: &Cells) -> SmallVec<[u64; 4]> {
    cells.iter().map(|cell| cell.meter().lapses_at()).collect()
}

fn unpack(limits: Option<Limits>, mut words: &[u64]) -> Cells {
    let mut cells = Cells::new();
    for limit in limits.into_iter().flatten() {
        let (state, rest) = words.split_at(Meter::words(limit).unwrap_or(0).min(words.len()));
        cells.push(Cell::plain(Meter::load(*limit, state)));
        words = rest;
    }
    cells
}

pub(super) fn pack(cells: &Cells, mut words: &mut [u64]) {
    for cell in cells {
        let length = Meter::words(&cell.limit()).unwrap_or(0).min(words.len());
        let (state, rest) = words.split_at_mut(length);
        cell.meter().save(state);
        words = rest;
    }
}

/// The limits of these cells, which are `likely` these.
fn limits_of(cells: &Cells, likely: Limits) -> Limits {
    if cells.len() == likely.len() && cells.iter().zip(likely).all(|(cell, limit)| cell.limit() == *limit) {
        return likely;
    }
    cells.iter().map(Cell::limit).collect::<Vec<_>>().into()
}
