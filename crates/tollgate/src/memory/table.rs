//! A flat table of fixed-width slots: open addressing, linear probing, no tombstones.
//!
//! ```text
//! slot:  | identity, upper 64 bits | lower 32 bits : tag's number | state word | … |
//! ```
//!
//! Sixteen bytes say whose the state is and which tag wrote it, and the state follows in the same
//! cache line or the next. A slot whose number is 0 is empty. Removing shifts back what probed past
//! the hole, so a table does not age. Its size need not be a power of two: a small table doubles, a
//! large one grows by a quarter or less, at different fillings in different shards, so that all
//! shards together waste little at any time.

use super::hash::{Id, Secrets};
// Not `shuttle`'s: views are hints, and the more interleavings of them the fewer of what counts.
use std::sync::atomic::{AtomicUsize, Ordering};

/// Slots of the smallest table.
const SMALLEST: usize = 16;

/// Words before the state.
const HEADER: usize = 2;

/// The bits of the second word that hold the tag's number.
const NUMBER: u64 = 0xffff_ffff;

/// A table whose slots have a fixed number of state words.
#[derive(Debug)]
pub(super) struct Table {
    /// Words of a slot.
    stride: usize,
    words: Vec<u64>,
    slots: usize,
    used: usize,
}

/// The index of a slot; good until the table changes.
pub(super) type Place = usize;

impl Table {
    /// An empty table for states of this many words.
    pub(super) const fn new(width: usize) -> Self {
        Self { stride: HEADER + width, words: Vec::new(), slots: 0, used: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.used
    }

    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    /// Where its memory is, for a [`View`].
    pub(super) fn view(&self) -> (usize, usize) {
        (self.words.as_ptr().addr(), self.slots)
    }

    pub(super) fn find(&self, id: Id, home: u64) -> Option<Place> {
        let mut place = start(home, self.slots);
        while let Some([high, low, ..]) = self.words.get(place * self.stride..) {
            if low & NUMBER == 0 {
                return None;
            }
            if *high == id.high && low >> 32 == u64::from(id.low) {
                return Some(place);
            }
            place = self.after(place);
        }
        None
    }

    /// The state of an identity that this tag, and no other, wrote.
    #[inline(always)]
    pub(super) fn written_by(&mut self, id: Id, home: u64, number: u32) -> Option<&mut [u64]> {
        let wanted = header(id, number);
        let mut at = start(home, self.slots) * self.stride;
        loop {
            let [high, low, ..] = *self.words.get(at..at + self.stride)? else { return None };
            if [high, low] == wanted {
                return self.words.get_mut(at + HEADER..at + self.stride);
            }
            if low & NUMBER == 0 {
                return None;
            }
            at += self.stride;
            if at >= self.words.len() {
                at = 0;
            }
        }
    }

    /// The same in a table of states of one word.
    #[inline(always)]
    pub(super) fn word_written_by(&mut self, id: Id, home: u64, number: u32) -> Option<&mut u64> {
        let wanted = header(id, number);
        let (slots, _) = self.words.as_chunks_mut::<{ HEADER + 1 }>();
        let mut place = start(home, slots.len());
        loop {
            let [high, low, _] = *slots.get(place)?;
            if [high, low] == wanted {
                return slots.get_mut(place).map(|[_, _, word]| word);
            }
            if low & NUMBER == 0 {
                return None;
            }
            place = if place + 1 < slots.len() { place + 1 } else { 0 };
        }
    }

    /// The number of the tag that wrote a slot; 0 if it is empty.
    #[inline]
    pub(super) fn number(&self, place: Place) -> u32 {
        let low = self.words.get(place * self.stride + 1).copied().unwrap_or(0);
        u32::try_from(low & NUMBER).unwrap_or(0)
    }

    #[inline]
    pub(super) fn state(&self, place: Place) -> &[u64] {
        self.words.get(place * self.stride + HEADER..(place + 1) * self.stride).unwrap_or_default()
    }

    #[inline]
    pub(super) fn state_mut(&mut self, place: Place) -> &mut [u64] {
        self.words.get_mut(place * self.stride + HEADER..(place + 1) * self.stride).unwrap_or_default()
    }

    pub(super) fn id(&self, place: Place) -> Id {
        match self.words.get(place * self.stride..) {
            Some([high, low, ..]) => Id { high: *high, low: u32::try_from(low >> 32).unwrap_or(0) },
            _ => Id { high: 0, low: 0 },
        }
    }

    pub(super) fn set_number(&mut self, place: Place, number: u32) {
        if let Some(low) = self.words.get_mut(place * self.stride + 1) {
            *low = (*low & !NUMBER) | u64::from(number);
        }
    }

    /// The slots in use.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.slots).filter(|place| self.number(*place) != 0)
    }

    /// Whether one more slot would make it grow.
    #[inline]
    pub(super) const fn is_filled(&self) -> bool {
        let (most, of) = self.fullest();
        (self.used + 1) * of > self.slots * most
    }

    /// Adds a slot, all zeroes, for an identity that has none. `stagger` of 256 is where in its
    /// growth this shard is.
    pub(super) fn insert(&mut self, id: Id, number: u32, secrets: &Secrets, stagger: usize) -> &mut [u64] {
        if self.is_filled() {
            let larger = match self.slots {
                0 => SMALLEST + SMALLEST * stagger / 512,
                slots => slots + slots / self.growth(),
            };
            self.resize(larger, secrets);
        }
        self.used += 1;
        let place = self.place_new(id, number, secrets);
        self.state_mut(place)
    }

    /// Removes a slot, and shifts back those that had probed past it.
    pub(super) fn remove(&mut self, place: Place, secrets: &Secrets) {
        let stride = self.stride;
        let (mut hole, mut next) = (place, self.after(place));
        while self.number(next) != 0 {
            let start = start(secrets.home(self.id(next)), self.slots);
            // It may move into the hole unless its own start lies behind the hole.
            if self.distance(start, next) >= self.distance(hole, next) {
                self.words.copy_within(next * stride..(next + 1) * stride, hole * stride);
                hole = next;
            }
            next = self.after(next);
        }
        if let Some(slot) = self.words.get_mut(hole * stride..(hole + 1) * stride) {
            slot.fill(0);
        }
        self.used -= 1;
    }

    /// Gives back room that a flood needed and nobody needs now.
    pub(super) fn shrink(&mut self, secrets: &Secrets) {
        if self.slots > 4 * SMALLEST && self.used * 4 < self.slots {
            self.resize((self.used * 2).max(SMALLEST), secrets);
        }
    }

    fn resize(&mut self, slots: usize, secrets: &Secrets) {
        let old = std::mem::replace(&mut self.words, vec![0; slots * self.stride]);
        self.slots = slots;
        for slot in old.chunks_exact(self.stride) {
            let [high, low, state @ ..] = slot else { continue };
            let number = u32::try_from(low & NUMBER).unwrap_or(0);
            if number != 0 {
                let id = Id { high: *high, low: u32::try_from(low >> 32).unwrap_or(0) };
                let place = self.place_new(id, number, secrets);
                self.state_mut(place).copy_from_slice(state);
            }
        }
    }

    /// Writes the header of a new slot into the first hole from its start on.
    fn place_new(&mut self, id: Id, number: u32, secrets: &Secrets) -> Place {
        let mut place = start(secrets.home(id), self.slots);
        while self.number(place) != 0 {
            place = self.after(place);
        }
        let slot = self.words.get_mut(place * self.stride..).and_then(|slot| slot.first_chunk_mut());
        if let Some(slot) = slot {
            *slot = header(id, number);
        }
        place
    }

    /// The slots in use of the stretch that holds, among others, every identity of one of 128 pages:
    /// from the page's first start on to the first hole after its last.
    pub(super) fn stretch(&self, page: u32) -> impl Iterator<Item = Place> {
        let home = u64::from(page) << 25;
        let (first, last) = (start(home, self.slots), start(home | ((1 << 25) - 1), self.slots));
        (0..self.slots)
            .map(move |step| {
                (step, if first + step < self.slots { first + step } else { first + step - self.slots })
            })
            .map(move |(step, place)| (first + step <= last, place, self.number(place) != 0))
            .take_while(|(within, _, used)| *within || *used)
            .filter_map(|(_, place, used)| used.then_some(place))
    }

    #[inline]
    const fn after(&self, place: Place) -> Place {
        if place + 1 >= self.slots { 0 } else { place + 1 }
    }

    /// How many slots from one to another, going forward.
    const fn distance(&self, from: Place, to: Place) -> usize {
        if to >= from { to - from } else { to + self.slots - from }
    }

    /// How full it may get, as a fraction. Wide slots are dearer, and their probes longer anyway.
    #[inline]
    const fn fullest(&self) -> (usize, usize) {
        if self.stride < HEADER + 3 { (5, 6) } else { (9, 10) }
    }

    /// It grows by one in this many of its slots: by more while it is small and growing is
    /// frequent, by less when the room that is not used yet begins to weigh.
    const fn growth(&self) -> usize {
        match (self.slots < 2048, self.stride < HEADER + 3) {
            (true, _) => 1,
            (false, true) => 4,
            (false, false) => 6,
        }
    }
}

/// What stands before the state.
#[inline]
fn header(id: Id, number: u32) -> [u64; HEADER] {
    [id.high, (u64::from(id.low) << 32) | u64::from(number)]
}

/// The slot that an identity's probing starts at: its home's lower half, scaled to the table.
#[inline]
fn start(home: u64, slots: usize) -> Place {
    let slots = u64::try_from(slots).unwrap_or(0);
    usize::try_from(((home & NUMBER) * slots) >> 32).unwrap_or(0)
}

/// Where a table's memory is, for whoever wants it fetched before taking the lock. It may be out of
/// date: then something else is fetched, which costs time and nothing else.
#[derive(Debug)]
pub(super) struct View {
    address: AtomicUsize,
    slots: AtomicUsize,
}

impl View {
    pub(super) const fn new() -> Self {
        Self { address: AtomicUsize::new(0), slots: AtomicUsize::new(0) }
    }

    /// Has the slot of a state of this many words fetched.
    #[inline]
    pub(super) fn prefetch(&self, width: usize, home: u64) {
        let place = start(home, self.slots.load(Ordering::Relaxed));
        let offset = place * (HEADER + width) * size_of::<u64>();
        let slot = self.address.load(Ordering::Relaxed).wrapping_add(offset);
        prefetch(slot);
        // The slot may reach into the next line, or the key may be in the slot after.
        prefetch(slot.wrapping_add(64));
    }

    pub(super) fn show(&self, (address, slots): (usize, usize)) {
        if self.address.load(Ordering::Relaxed) != address || self.slots.load(Ordering::Relaxed) != slots {
            self.address.store(address, Ordering::Relaxed);
            self.slots.store(slots, Ordering::Relaxed);
        }
    }
}

/// Has the processor fetch a line of memory, whatever is there, to write to it: another processor
/// that has it gives it up now and not when it is written.
#[inline]
pub(super) fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[expect(unsafe_code, reason = "there is no intrinsic that fetches for writing")]
    // SAFETY: prefetching is a hint. It reads nothing that the program sees, and does not fault, wherever
    // the address points. A processor that does not know it does nothing.
    unsafe {
        std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::Client;
    use std::collections::HashMap;

    #[test]
    fn a_table_agrees_with_a_map_whatever_is_inserted_and_removed() {
        let secrets = Secrets::from_seed([1, 2]);
        for width in 1..=4 {
            let (mut table, mut map) = (Table::new(width), HashMap::new());
            let mut random = 12345_u64;
            for step in 0..20_000_u64 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let client = Client::Numbered(random >> 40 & 0x1ff);
                let id = secrets.identify_client(&secrets.prefix(0), client);
                let home = secrets.home(id);
                match (table.find(id, home), random >> 63) {
                    (Some(place), 0) => {
                        assert_eq!(map.remove(&id), Some(table.state(place)[0]));
                        table.remove(place, &secrets);
                    }
                    (Some(place), _) => assert_eq!(map[&id], table.state(place)[0]),
                    (None, _) => {
                        table.insert(id, 9, &secrets, 77).fill(step);
                        assert_eq!(map.insert(id, step), None);
                    }
                }
                assert_eq!(table.len(), map.len());
                if step % 1000 == 0 {
                    table.shrink(&secrets);
                }
            }
            for (id, step) in &map {
                let place = table.find(*id, secrets.home(*id)).unwrap();
                assert_eq!((table.state(place)[0], table.id(place)), (*step, *id));
            }
        }
    }
}
