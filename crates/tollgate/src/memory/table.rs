//! A flat table of fixed-width slots: open addressing, linear probing, no tombstones.
//!
//! ```text
//! slot:  | identity, upper 64 bits | lower 32 bits : limits' number | state word | … |
//! ```
//!
//! Sixteen bytes say whose the state is and which limits wrote it, and the state follows in the
//! same cache line or the next. A slot whose number is 0 is empty. Removing shifts back what probed
//! past the hole, so a table does not age. Its size need not be a power of two: a small
//! table doubles, a large one grows by a quarter or less, at different fillings in different
//! shards, so that all shards together waste little at any time.

use super::hash::{Id, Secrets};
// Not `shuttle`'s: views are hints, and the more interleavings of them the fewer of what counts.
use std::sync::atomic::{AtomicUsize, Ordering};

/// Slots of the smallest table.
const SMALLEST: usize = 16;

/// A table whose slots have a fixed number of state words.
#[derive(Debug, Default)]
pub(super) struct Table {
    words: Vec<u64>,
    slots: usize,
    used: usize,
}

/// Where a slot is; good until the table changes.
pub(super) type Place = usize;

impl Table {
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

    pub(super) fn find(&self, width: usize, id: Id, home: u64) -> Option<Place> {
        self.probe(width, home, |high, low| high == id.high && low >> 32 == u64::from(id.low))
    }

    /// The state of an identity that these limits, and no others, wrote.
    #[inline]
    pub(super) fn written_by(&mut self, width: usize, id: Id, home: u64, number: u32) -> Option<&mut [u64]> {
        let wanted = header(id, number);
        let place = self.probe(width, home, |high, low| [high, low] == wanted)?;
        let start = place * stride(width) + HEADER;
        self.words.get_mut(start..start + width)
    }

    /// The first slot from an identity's start on that is the one, unless a hole comes before it.
    #[inline]
    fn probe(&self, width: usize, home: u64, is_it: impl Fn(u64, u64) -> bool) -> Option<Place> {
        if self.used == 0 {
            return None;
        }
        let stride = stride(width);
        let mut place = start(home, self.slots);
        loop {
            let [high, low, ..] = *self.words.get(place * stride..)? else { return None };
            if low & NUMBER == 0 {
                return None;
            }
            if is_it(high, low) {
                return Some(place);
            }
            place = self.after(place);
        }
    }

    /// The number of the limits that wrote a slot; 0 if it is empty.
    #[inline]
    pub(super) fn number(&self, width: usize, place: Place) -> u32 {
        let low = self.words.get(place * stride(width) + 1).copied().unwrap_or(0);
        u32::try_from(low & NUMBER).unwrap_or(0)
    }

    #[inline]
    pub(super) fn state(&self, width: usize, place: Place) -> &[u64] {
        let start = place * stride(width) + HEADER;
        self.words.get(start..start + width).unwrap_or_default()
    }

    #[inline]
    pub(super) fn state_mut(&mut self, width: usize, place: Place) -> &mut [u64] {
        let start = place * stride(width) + HEADER;
        self.words.get_mut(start..start + width).unwrap_or_default()
    }

    pub(super) fn id(&self, width: usize, place: Place) -> Id {
        match self.words.get(place * stride(width)..) {
            Some([high, low, ..]) => Id { high: *high, low: u32::try_from(low >> 32).unwrap_or(0) },
            _ => Id { high: 0, low: 0 },
        }
    }

    pub(super) fn set_number(&mut self, width: usize, place: Place, number: u32) {
        if let Some(low) = self.words.get_mut(place * stride(width) + 1) {
            *low = (*low & !NUMBER) | u64::from(number);
        }
    }

    /// Whether one more slot would make it grow.
    #[inline]
    pub(super) const fn is_filled(&self, width: usize) -> bool {
        let (most, of) = fullest(width);
        (self.used + 1) * of > self.slots * most
    }

    /// Adds a slot, all zeroes, for an identity that has none. `stagger` of 256 is where in its
    /// growth this shard is.
    pub(super) fn insert(
        &mut self,
        width: usize,
        id: Id,
        number: u32,
        secrets: &Secrets,
        stagger: usize,
    ) -> Place {
        if self.is_filled(width) {
            let larger = match self.slots {
                0 => SMALLEST + SMALLEST * stagger / 512,
                slots => slots + slots / growth(width, slots),
            };
            self.resize(width, larger, secrets);
        }
        self.used += 1;
        self.place_new(width, id, number, secrets)
    }

    /// Removes a slot, and shifts back those that had probed past it.
    pub(super) fn remove(&mut self, width: usize, place: Place, secrets: &Secrets) {
        let stride = stride(width);
        let (mut hole, mut next) = (place, self.after(place));
        while self.number(width, next) != 0 {
            let start = start(secrets.home(self.id(width, next)), self.slots);
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
    pub(super) fn shrink(&mut self, width: usize, secrets: &Secrets) {
        if self.slots > 4 * SMALLEST && self.used * 4 < self.slots {
            self.resize(width, (self.used * 2).max(SMALLEST), secrets);
        }
    }

    fn resize(&mut self, width: usize, slots: usize, secrets: &Secrets) {
        let stride = stride(width);
        let old = std::mem::replace(&mut self.words, vec![0; slots * stride]);
        self.slots = slots;
        for slot in old.chunks_exact(stride) {
            let [high, low, state @ ..] = slot else { continue };
            let number = u32::try_from(low & NUMBER).unwrap_or(0);
            if number != 0 {
                let id = Id { high: *high, low: u32::try_from(low >> 32).unwrap_or(0) };
                let place = self.place_new(width, id, number, secrets);
                self.state_mut(width, place).copy_from_slice(state);
            }
        }
    }

    /// Writes the header of a new slot into the first hole from its start on.
    fn place_new(&mut self, width: usize, id: Id, number: u32, secrets: &Secrets) -> Place {
        let mut place = start(secrets.home(id), self.slots);
        while self.number(width, place) != 0 {
            place = self.after(place);
        }
        if let Some(slot) =
            self.words.get_mut(place * stride(width)..).and_then(|slot| slot.first_chunk_mut())
        {
            *slot = header(id, number);
        }
        place
    }

    /// The slots in use of the stretch that holds, among others, every identity of one of 128 pages: from
    /// the page's first start on to the first hole after its last.
    pub(super) fn stretch(&self, width: usize, page: u32) -> impl Iterator<Item = Place> {
        let home = u64::from(page) << 25;
        let (first, last) = (start(home, self.slots), start(home | ((1 << 25) - 1), self.slots));
        (0..self.slots)
            .map(move |step| {
                (step, if first + step < self.slots { first + step } else { first + step - self.slots })
            })
            .map(move |(step, place)| (first + step <= last, place, self.number(width, place) != 0))
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
}

/// Words before the state.
const HEADER: usize = 2;

/// The bits of the second word that hold the limits' number.
const NUMBER: u64 = 0xffff_ffff;

const fn stride(width: usize) -> usize {
    HEADER + width
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
#[derive(Debug, Default)]
pub(super) struct View {
    address: AtomicUsize,
    slots: AtomicUsize,
}

impl View {
    #[inline]
    pub(super) fn prefetch(&self, width: usize, home: u64) {
        let place = start(home, self.slots.load(Ordering::Relaxed));
        let offset = place * stride(width) * size_of::<u64>();
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

/// Has the processor fetch a line of memory, whatever is there.
#[inline]
pub(super) fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[expect(unsafe_code, reason = "the intrinsic takes a pointer")]
    // SAFETY: prefetching is a hint. It reads nothing that the program sees, and does not fault, wherever
    // the address points.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::without_provenance(address));
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

/// How full a table may get, as a fraction. Wide slots are dearer, and their probes longer anyway.
const fn fullest(width: usize) -> (usize, usize) {
    if width < 3 { (5, 6) } else { (9, 10) }
}

/// A table grows by one in this many of its slots: by more while it is small and growing is
/// frequent, by less when the room that is not used yet begins to weigh.
const fn growth(width: usize, slots: usize) -> usize {
    match (slots < 2048, width < 3) {
        (true, _) => 1,
        (false, true) => 4,
        (false, false) => 6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn a_table_agrees_with_a_map_whatever_is_inserted_and_removed() {
        let secrets = Secrets::from_seed([1, 2]);
        for width in 1..=4 {
            let (mut table, mut map) = (Table::default(), HashMap::new());
            let mut random = 12345_u64;
            for step in 0..20_000_u64 {
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let id = secrets.identify(0, &(random >> 40 & 0x1ff).to_le_bytes());
                let home = secrets.home(id);
                match (table.find(width, id, home), random >> 63) {
                    (Some(place), 0) => {
                        assert_eq!(map.remove(&id), Some(table.state(width, place)[0]));
                        table.remove(width, place, &secrets);
                    }
                    (Some(place), _) => assert_eq!(map[&id], table.state(width, place)[0]),
                    (None, _) => {
                        let place = table.insert(width, id, 9, &secrets, 77);
                        table.state_mut(width, place).fill(step);
                        assert_eq!(map.insert(id, step), None);
                    }
                }
                assert_eq!(table.len(), map.len());
                if step % 1000 == 0 {
                    table.shrink(width, &secrets);
                }
            }
            for (id, step) in &map {
                let place = table.find(width, *id, secrets.home(*id)).unwrap();
                assert_eq!((table.state(width, place)[0], table.id(width, place)), (*step, *id));
            }
        }
    }
}
