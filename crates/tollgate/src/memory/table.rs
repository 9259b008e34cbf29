//! A flat table of fixed-width slots: open addressing, linear probing, no tombstones.
//!
//! ```text
//! slot:  | identity, upper 64 bits | lower 32 bits : tag's number | state word | … |
//! ```
//!
//! The 16-byte header names the key's identity and the tag that wrote the state, which follows in
//! the same cache line or the next. A slot whose tag number is 0 is empty. Removal shifts back the
//! slots that probed past the hole, so a table does not degrade. Its size need not be a power of
//! two: a small table doubles, a large one grows by a third, at different numbers of keys in
//! different shards, so that all shards together waste little memory at any time.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "indexes and counts within one allocation, far below the width of their integers"
)]

use super::hash::{Id, Secrets};
use super::words::Words;
// Not `shuttle`'s: views are only hints, and exploring them would crowd out interleavings that
// matter.
use std::sync::atomic::{AtomicUsize, Ordering};

/// The widest state that a table has, in words.
pub(crate) const WIDEST: usize = 8;

/// Slots in the smallest table.
const SMALLEST: usize = 16;

/// Words in a slot's header.
const HEADER: usize = 2;

/// Mask of the tag number in the header's second word.
const NUMBER: u64 = 0xffff_ffff;

/// A table whose slots hold a fixed number of state words.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Table {
    words: Words,
    slots: usize,
    /// Words per slot.
    stride: usize,
    used: usize,
}

/// The index of a slot, valid until the table changes.
pub(super) type SlotIndex = usize;

/// The offset of a state's first word, valid until the table changes.
pub(super) type StateOffset = usize;

/// The offset of no state.
pub(super) const NO_SLOT: StateOffset = usize::MAX;

impl Table {
    /// An empty table for states of `width` words.
    pub(super) fn new(width: usize) -> Self {
        Self { words: Words::zeroed(0, 0), slots: 0, stride: HEADER + width, used: 0 }
    }

    pub(super) const fn len(&self) -> usize {
        self.used
    }

    pub(super) const fn slots(&self) -> usize {
        self.slots
    }

    pub(super) fn find(&self, id: Id, home: u64) -> Option<SlotIndex> {
        let mut index = first_probe(home, self.slots);
        while let Some([high, low, ..]) = self.words.get(index * self.stride..) {
            if low & NUMBER == 0 {
                return None;
            }
            if *high == id.high && low >> 32 == u64::from(id.low) {
                return Some(index);
            }
            index = self.after(index);
        }
        None
    }

    /// The state of `id`, if the tag with this number wrote it, and where it is. `W` is the table's
    /// width, or [`WIDEST`] if the caller does not know it: the state is zero-padded then.
    #[inline(always)]
    pub(super) fn state_written_by<const W: usize>(
        &self,
        id: Id,
        home: u64,
        number: u32,
    ) -> Option<(StateOffset, [u64; W])> {
        let (wanted, stride, mut state) = (header(id, number), self.stride_of::<W>(), [0; W]);
        let mut at = first_probe(home, self.slots) * stride;
        loop {
            let slot = self.words.get(at..at + stride)?;
            let [high, low] = *slot.first_chunk()?;
            if [high, low] == wanted {
                copy(&mut state, slot.get(HEADER..)?);
                return Some((at + HEADER, state));
            }
            if low & NUMBER == 0 {
                return None;
            }
            at = if at + stride < self.words.len() { at + stride } else { 0 };
        }
    }

    /// Writes the state at an offset. `W` is as in [`state_written_by`](Self::state_written_by).
    #[inline(always)]
    pub(super) fn write<const W: usize>(&mut self, at: StateOffset, state: &[u64; W]) {
        let end = at.wrapping_add(self.stride_of::<W>() - HEADER);
        if let Some(words) = self.words.get_mut(at..end) {
            copy(words, state);
        }
    }

    /// Words per slot, known to the compiler if `W` is the width of the table.
    #[inline(always)]
    const fn stride_of<const W: usize>(&self) -> usize {
        if W < WIDEST { HEADER + W } else { self.stride }
    }

    /// The number of the tag that wrote a slot; 0 if the slot is empty.
    #[inline]
    pub(super) fn number(&self, index: SlotIndex) -> u32 {
        let low = self.words.get(index * self.stride + 1).copied().unwrap_or(0);
        low_half(low)
    }

    #[inline]
    pub(super) fn state(&self, index: SlotIndex) -> &[u64] {
        self.words.get(index * self.stride + HEADER..(index + 1) * self.stride).unwrap_or_default()
    }

    #[inline]
    pub(super) fn state_mut(&mut self, index: SlotIndex) -> &mut [u64] {
        self.words.get_mut(index * self.stride + HEADER..(index + 1) * self.stride).unwrap_or_default()
    }

    pub(super) fn id(&self, index: SlotIndex) -> Id {
        match self.words.get(index * self.stride..) {
            Some([high, low, ..]) => Id { high: *high, low: low_half(low >> 32) },
            _ => Id { high: 0, low: 0 },
        }
    }

    pub(super) fn set_number(&mut self, index: SlotIndex, number: u32) {
        if let Some(low) = self.words.get_mut(index * self.stride + 1) {
            *low = (*low & !NUMBER) | u64::from(number);
        }
    }

    /// The occupied slots.
    pub(super) fn occupied(&self) -> impl Iterator<Item = SlotIndex> {
        (0..self.slots).filter(|index| self.number(*index) != 0)
    }

    /// Whether one more key would make the table grow: four fifths of its slots are used. Fuller
    /// tables have longer probes, and so more cache misses.
    #[inline]
    pub(super) const fn is_filled(&self) -> bool {
        (self.used + 1) * 5 > self.slots * 4
    }

    /// Adds a zeroed slot for a new identity. `stagger`, of 256, offsets this shard's sizes from
    /// those of the others.
    pub(super) fn insert(&mut self, id: Id, number: u32, secrets: &Secrets, stagger: usize) -> SlotIndex {
        if self.is_filled() {
            // A small table grows often. In a large one, unused memory matters.
            let larger = match self.slots {
                0 => SMALLEST + SMALLEST * stagger / 512,
                slots @ ..4096 => slots * 2,
                slots => slots + slots / 3,
            };
            self.resize(larger, secrets);
        }
        self.used += 1;
        let index = self.first_empty(secrets.home(id));
        copy(self.words.get_mut(index * self.stride..).unwrap_or_default(), &header(id, number));
        index
    }

    /// Removes a slot, and shifts back the slots that probed past it.
    pub(super) fn remove(&mut self, index: SlotIndex, secrets: &Secrets) {
        let stride = self.stride;
        let (mut hole, mut next) = (index, self.after(index));
        while self.number(next) != 0 {
            let start = first_probe(secrets.home(self.id(next)), self.slots);
            // A slot may move into the hole unless its first probe lies behind the hole.
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

    /// Frees memory that a flood of keys needed and that is no longer used.
    pub(super) fn shrink(&mut self, secrets: &Secrets) {
        if self.slots > 4 * SMALLEST && self.used * 4 < self.slots {
            self.resize((self.used * 2).max(SMALLEST), secrets);
        }
    }

    fn resize(&mut self, slots: usize, secrets: &Secrets) {
        let old = std::mem::replace(&mut self.words, Words::zeroed(slots * self.stride, self.stride));
        self.slots = slots;
        // Slots are in the order of their homes, but for collisions: the new table is written from
        // its start to its end.
        for slot in
            old.chunks_exact(self.stride).filter(|slot| slot.get(1).is_some_and(|low| low & NUMBER != 0))
        {
            let [high, low, ..] = slot else { continue };
            let index = self.first_empty(secrets.home(Id { high: *high, low: low_half(*low >> 32) }));
            copy(self.words.get_mut(index * self.stride..).unwrap_or_default(), slot);
        }
    }

    /// The first empty slot from the first probe on.
    #[inline]
    fn first_empty(&self, home: u64) -> SlotIndex {
        let mut index = first_probe(home, self.slots);
        while self.number(index) != 0 {
            index = self.after(index);
        }
        index
    }

    /// The occupied slots of the range that holds every identity of a page, among others: from the
    /// page's first probe to the first empty slot after its last.
    pub(super) fn page_range(&self, page: u32) -> impl Iterator<Item = SlotIndex> {
        let home = u64::from(page) << 25;
        let (first, last) = (first_probe(home, self.slots), first_probe(home | ((1 << 25) - 1), self.slots));
        (first..first + self.slots)
            .map(move |at| (at <= last, if at < self.slots { at } else { at - self.slots }))
            .take_while(|(within, index)| *within || self.number(*index) != 0)
            .filter_map(|(_, index)| (self.number(index) != 0).then_some(index))
    }

    #[inline]
    const fn after(&self, index: SlotIndex) -> SlotIndex {
        if index + 1 >= self.slots { 0 } else { index + 1 }
    }

    /// Slots between two indexes, going forward.
    const fn distance(&self, from: SlotIndex, to: SlotIndex) -> usize {
        if to >= from { to - from } else { to + self.slots - from }
    }
}

/// Copies as many words as both have. Not `copy_from_slice`, which calls a function for these few
/// words.
#[inline(always)]
fn copy(to: &mut [u64], from: &[u64]) {
    to.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
}

/// The header of a slot.
#[inline]
fn header(id: Id, number: u32) -> [u64; HEADER] {
    [id.high, (u64::from(id.low) << 32) | u64::from(number)]
}

#[expect(clippy::cast_possible_truncation, clippy::as_conversions, reason = "the lower half is wanted")]
const fn low_half(word: u64) -> u32 {
    word as u32
}

/// The first slot that is probed: the lower half of the home, scaled to the table.
#[inline]
fn first_probe(home: u64, slots: usize) -> SlotIndex {
    let slots = u64::try_from(slots).unwrap_or(0);
    usize::try_from(((home & NUMBER) * slots) >> 32).unwrap_or(0)
}

/// The address and size of a table, readable without the lock, so that a slot can be prefetched. It
/// may be out of date: then the wrong line is fetched, which costs time and nothing else.
#[derive(Debug)]
pub(super) struct TableView {
    address: AtomicUsize,
    slots: AtomicUsize,
}

impl TableView {
    pub(super) const fn new() -> Self {
        Self { address: AtomicUsize::new(0), slots: AtomicUsize::new(0) }
    }

    /// Prefetches the slot of a state of `width` words.
    #[inline(always)]
    pub(super) fn prefetch(&self, width: usize, home: u64) {
        let index = first_probe(home, self.slots.load(Ordering::Relaxed));
        let offset = index * (HEADER + width) * size_of::<u64>();
        let slot = self.address.load(Ordering::Relaxed).wrapping_add(offset);
        prefetch(slot);
        // The slot may reach into the next cache line, or the key may be in the next slot.
        prefetch(slot.wrapping_add(64));
    }

    pub(super) fn publish(&self, table: &Table) {
        let (address, slots) = (table.words.as_ptr().addr(), table.slots);
        if self.address.load(Ordering::Relaxed) != address || self.slots.load(Ordering::Relaxed) != slots {
            self.address.store(address, Ordering::Relaxed);
            self.slots.store(slots, Ordering::Relaxed);
        }
    }
}

/// Prefetches a cache line for writing: another processor that holds the line gives it up now, not
/// at the write.
#[inline]
pub(super) fn prefetch(address: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    #[expect(unsafe_code, reason = "no intrinsic prefetches for writing")]
    // SAFETY: a prefetch is a hint. It reads nothing that the program sees, and it does not fault,
    // wherever the address points. A processor without the instruction does nothing.
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
    fn a_table_agrees_with_a_map_under_random_inserts_and_removals() {
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
                    (Some(index), 0) => {
                        assert_eq!(map.remove(&id), Some(table.state(index)[0]));
                        table.remove(index, &secrets);
                    }
                    (Some(index), _) => assert_eq!(map[&id], table.state(index)[0]),
                    (None, _) => {
                        let index = table.insert(id, 9, &secrets, 77);
                        table.state_mut(index).fill(step);
                        assert_eq!(map.insert(id, step), None);
                    }
                }
                assert_eq!(table.len(), map.len());
                if step % 1000 == 0 {
                    table.shrink(&secrets);
                }
            }
            for (id, step) in &map {
                let index = table.find(*id, secrets.home(*id)).unwrap();
                assert_eq!((table.state(index)[0], table.id(index)), (*step, *id));
            }
        }
    }
}
