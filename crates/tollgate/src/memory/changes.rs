//! Change tracking: which pages have changed since the last copy.
//!
//! A shard has 128 pages. The page of a key is given by the bits of its home that also give its
//! first probe, so a page is a contiguous range of each table. A changed page is one bit, set under
//! the lock that is held anyway: tracking costs a request one more cache line. Unpacked keys are
//! tracked one by one.
//!
//! A flag per shard, outside the locks, says which shards to visit. A flag is raised before the
//! lock under which the change was made is released, and lowered before the lock under which the
//! change is copied is taken: no change is missed.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "indexes and counts within one allocation, far below the width of their integers"
)]

use std::collections::BTreeSet;

use super::ALL_SHARDS;
use super::hash::Id;
use super::shard::{Shard, Views};
use crate::sync::atomic::{AtomicU64, Ordering};

/// What has changed in a shard, on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Changes {
    /// One bit per page.
    pages: u128,
    unpacked: BTreeSet<Id>,
}

impl Shard {
    /// Turns tracking on or off, and discards the changes noted so far.
    pub(super) fn track_changes(&mut self, tracked: bool) {
        self.changes = tracked.then(Box::default);
    }

    /// Takes the changed pages and the changed unpacked keys, and leaves none.
    pub(super) fn take_changes(&mut self) -> (impl Iterator<Item = u32> + use<>, BTreeSet<Id>) {
        let Changes { pages, unpacked } = self.changes.as_deref_mut().map(std::mem::take).unwrap_or_default();
        ((0..u128::BITS).filter(move |page| pages >> page & 1 == 1), unpacked)
    }

    /// Marks the page of a key as changed.
    #[inline]
    pub(super) fn note(&mut self, home: u64) {
        if let Some(changes) = &mut self.changes {
            changes.raise_flag(&self.views, self.index);
            changes.pages |= 1 << page_of(home);
        }
    }

    /// Marks an unpacked key as changed.
    pub(super) fn note_unpacked(&mut self, id: Id) {
        if let Some(changes) = &mut self.changes {
            changes.raise_flag(&self.views, self.index);
            changes.unpacked.insert(id);
        }
    }

    /// Marks everything as changed.
    pub(super) fn note_all(&mut self) {
        if let Some(changes) = &mut self.changes {
            changes.raise_flag(&self.views, self.index);
            changes.pages = u128::MAX;
            // Removed keys are marked already.
            changes.unpacked.extend(self.unpacked.iter().map(|(id, _)| *id));
        }
    }
}

impl Changes {
    /// Raises the shard's flag, unless it must be up already.
    #[inline]
    fn raise_flag(&self, views: &Views, shard: usize) {
        if self.pages == 0 {
            views.flags.raise(shard);
        }
    }
}

/// The shards that have changed.
#[derive(Debug, Default)]
pub(super) struct Flags([AtomicU64; ALL_SHARDS.div_ceil(64)]);

impl Flags {
    #[cold]
    pub(super) fn raise(&self, shard: usize) {
        self.0[shard / 64].fetch_or(1 << (shard % 64), Ordering::SeqCst);
    }

    pub(super) fn any(&self) -> bool {
        self.0.iter().any(|flags| flags.load(Ordering::SeqCst) != 0)
    }

    /// Lowers all flags and returns the shards whose flags were raised.
    pub(super) fn lower(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(word, flags)| {
            let raised = flags.swap(0, Ordering::SeqCst);
            (0..64).filter(move |bit| raised >> bit & 1 == 1).map(move |bit| word * 64 + bit)
        })
    }
}

/// The page of a key: seven bits of its home, the topmost of those that give its first probe.
#[inline]
pub(super) const fn page_of(home: u64) -> u64 {
    home >> 25 & 127
}
