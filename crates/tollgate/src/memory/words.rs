//! The memory of a table: words, zeroed when they are allocated.
//!
//! A processor caches the addresses of some thousand pages. A million keys fill ten thousand pages
//! of 4 KiB, so a check waits for the address of its slot and then for the slot. Huge pages of
//! 2 MiB save the first wait.
//!
//! A table is smaller than a huge page, because keys are spread over many shards. So the tables of
//! all shards share *regions* of huge pages. A region is filled once, from its start to its end. It
//! is unmapped when its last table is dropped. The tables of one width grow in the same order each
//! time. So each width fills regions of its own: they empty in the order in which they were filled,
//! and little of their memory is unused. (Reusing the space of dropped tables was measured: it
//! fragments, since each table is larger than the last.)
//!
//! The smallest tables are on the heap, and so are all tables on systems other than Linux.

#![expect(unsafe_code, reason = "several tables share a mapping; each block has its proof")]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

/// Owned words.
pub(super) struct Words {
    start: NonNull<u64>,
    length: usize,
    /// The region of these words; `None` if they are on the heap.
    region: Option<Arc<region::Region>>,
}

// SAFETY: these words are reached only through this value, as those of a `Box<[u64]>` are.
unsafe impl Send for Words {}
// SAFETY: a shared reference gives shared access to the words and nothing else.
unsafe impl Sync for Words {}

impl Words {
    /// Allocates zeroed words for a table whose slots have `stride` words.
    pub(super) fn zeroed(length: usize, stride: usize) -> Self {
        if let Some((start, region)) = region::allocate(length, stride) {
            return Self { start, length, region: Some(region) };
        }
        let words: &mut [u64] = Box::leak(vec![0; length].into_boxed_slice());
        Self { start: NonNull::from(words).cast(), length, region: None }
    }
}

impl Deref for Words {
    type Target = [u64];

    #[inline(always)]
    fn deref(&self) -> &[u64] {
        // SAFETY: `start` is aligned and begins `length` initialised words that nothing else refers
        // to, on the heap or in a region, until `self` is dropped.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Words {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u64] {
        // SAFETY: as in `deref`, and `&mut self` proves that no other reference is in use.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        if self.region.is_none() {
            let words = std::ptr::slice_from_raw_parts_mut(self.start.as_ptr(), self.length);
            // SAFETY: words without a region were a box of this length in `zeroed`.
            drop(unsafe { Box::from_raw(words) });
        }
    }
}

impl fmt::Debug for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Words({})", self.length)
    }
}

#[cfg(target_os = "linux")]
mod region {
    use std::ffi::c_void;
    use std::ptr::{NonNull, null_mut};
    use std::sync::{Arc, Mutex, PoisonError, Weak};

    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    /// Bytes of a huge page.
    const HUGE_PAGE: usize = 2 << 20;

    /// Smaller tables are on the heap: those of all shards together fill one huge page.
    const SMALLEST_TABLE: usize = 8 << 10;

    /// Tables that a region has room for at least, so that the rest at its end is small.
    const TABLES: usize = 12;

    /// Tables start at multiples of a cache line.
    const ALIGNMENT: usize = 64;

    /// A mapping that tables share.
    pub(super) struct Region {
        mapped: NonNull<c_void>,
        bytes: usize,
    }

    // SAFETY: a region gives access to nothing. It is only unmapped, once, by any thread.
    unsafe impl Send for Region {}
    // SAFETY: as above.
    unsafe impl Sync for Region {}

    impl Drop for Region {
        fn drop(&mut self) {
            // SAFETY: this is the whole mapping, and no table is left in it, since each keeps its
            // region alive. A failure leaks memory and does no other harm.
            let _ = unsafe { munmap(self.mapped.as_ptr(), self.bytes) };
        }
    }

    /// The region that is being filled.
    struct Filling {
        region: Weak<Region>,
        /// The first byte that belongs to no table yet.
        next: NonNull<u8>,
        /// Bytes from there to the region's end.
        left: usize,
    }

    // SAFETY: `next` is an address that is used only under the lock, while the region is alive.
    unsafe impl Send for Filling {}

    /// The regions being filled, by the words of a slot. All stores of the process fill them.
    static FILLING: Mutex<[Option<Filling>; 16]> = Mutex::new([const { None }; 16]);

    /// Zeroed words in a region, unless they are few.
    pub(super) fn allocate(words: usize, stride: usize) -> Option<(NonNull<u64>, Arc<Region>)> {
        let bytes = words.checked_mul(size_of::<u64>()).filter(|bytes| *bytes >= SMALLEST_TABLE)?;
        let bytes = bytes.checked_next_multiple_of(ALIGNMENT)?;
        let mut all = FILLING.lock().unwrap_or_else(PoisonError::into_inner);
        let filling = all.get_mut(stride)?;
        let with_room = filling.as_mut().filter(|filling| filling.left >= bytes);
        if let Some(region) = with_room.as_ref().and_then(|filling| filling.region.upgrade()) {
            return Some((with_room?.take(bytes), region));
        }
        let (region, mut fresh) = Filling::map(bytes.checked_mul(TABLES)?)?;
        let start = fresh.take(bytes);
        *filling = Some(fresh);
        Some((start, region))
    }

    impl Filling {
        /// Maps a region for so many bytes or some more.
        fn map(bytes: usize) -> Option<(Arc<Region>, Self)> {
            let left = bytes.checked_next_multiple_of(HUGE_PAGE)?;
            // A mapping may start anywhere. What is not touched takes no memory.
            let bytes = left.checked_add(HUGE_PAGE)?;
            let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping, at an address of the kernel's choice, changes no other memory.
            let mapped = NonNull::new(unsafe { mmap_anonymous(null_mut(), bytes, access, private) }.ok()?)?;
            let region = Arc::new(Region { mapped, bytes });
            // SAFETY: advice about these pages, which does not change what they hold. A kernel
            // without huge pages ignores it.
            let _ = unsafe { madvise(mapped.as_ptr(), bytes, Advice::LinuxHugepage) };
            let skipped = mapped.cast::<u8>().align_offset(HUGE_PAGE).min(HUGE_PAGE);
            // SAFETY: the mapping is longer than `left` by a huge page.
            let next = unsafe { mapped.cast::<u8>().add(skipped) };
            let filling = Self { region: Arc::downgrade(&region), next, left };
            Some((region, filling))
        }

        /// Takes bytes, of which at least so many are left, in whole cache lines. The kernel zeroed
        /// them, and no table had them before.
        fn take(&mut self, bytes: usize) -> NonNull<u64> {
            assert!(bytes <= self.left, "a table fits into the region");
            let start = self.next;
            self.left = self.left.saturating_sub(bytes);
            // SAFETY: so many bytes are left, as was just asserted.
            self.next = unsafe { start.add(bytes) };
            start.cast()
        }
    }
}

/// No regions: every table is on the heap.
#[cfg(not(target_os = "linux"))]
mod region {
    use std::ptr::NonNull;
    use std::sync::Arc;

    pub(super) enum Region {}

    pub(super) fn allocate(_words: usize, _stride: usize) -> Option<(NonNull<u64>, Arc<Region>)> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tables of many sizes are allocated and dropped in another order, all of them on threads that
    /// share the region being filled.
    #[test]
    fn words_are_zeroed_and_belong_to_one_table() {
        let lengths = [0, 1, 48, 8_191, 8_192, 20_000, 300_000];
        std::thread::scope(|scope| {
            for thread in 1..=4_u64 {
                scope.spawn(move || {
                    let mut tables = Vec::new();
                    for turn in 0..200_u64 {
                        let at = usize::try_from(turn.wrapping_mul(0x9e37_79b9) >> 3).unwrap();
                        let mut words = Words::zeroed(lengths[at % lengths.len()], 3 + at % 2);
                        assert!(words.iter().all(|word| *word == 0));
                        words.fill(thread << 32 | turn);
                        tables.push((words, thread << 32 | turn));
                        if tables.len() > 9 {
                            let (words, mark) = tables.swap_remove(at % 9);
                            assert!(words.iter().all(|word| *word == mark));
                        }
                    }
                });
            }
        });
    }
}
