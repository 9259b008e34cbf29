//! What has changed since it was last asked, for whoever keeps a copy elsewhere.
//!
//! A shard is 128 pages, by the bits that also say where in a table a key's probing starts, so a page is
//! a stretch of each table. A page that changed is one bit, set under the lock that is held anyway:
//! that is all that following costs a request. What does not pack is noted key by key.
//!
//! Which shards to ask at all is noted outside the locks. A flag is set before the lock under which
//! something changed is given back, and taken before the lock under which it is asked for: nothing is
//! missed.

use std::collections::HashSet;

use super::ALL_SHARDS;
use super::hash::Id;
use super::shard::Shard;
use crate::sync::atomic::{AtomicU64, Ordering};

/// Which pages of a shard have changed. Every request looks at this.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// A bit for each page.
    pages: u128,
    /// Whether anyone asks.
    pub(super) followed: bool,
}

impl Shard {
    /// Whether anyone asks for changes from now on. What was noted is forgotten.
    pub(super) fn follow(&mut self, followed: bool) {
        self.changes = Changes { pages: 0, followed };
        self.changed_whole.clear();
    }

    /// The pages that changed, and the keys by themselves. From now on nothing has.
    pub(super) fn take_changes(&mut self) -> (impl Iterator<Item = u32> + use<>, HashSet<Id>) {
        let pages = std::mem::take(&mut self.changes.pages);
        ((0..u128::BITS).filter(move |page| pages >> page & 1 == 1), std::mem::take(&mut self.changed_whole))
    }

    /// Takes note that the page of a key has changed.
    #[inline]
    pub(super) fn note(&mut self, home: u64) {
        if self.changes.followed {
            self.note_pages(page_bit(home));
        }
    }

    pub(super) fn note_pages(&mut self, pages: u128) {
        if self.changes.followed && pages != 0 {
            self.raise_flag();
            self.changes.pages |= pages;
        }
    }

    /// The same for a key that does not pack.
    pub(super) fn note_whole(&mut self, id: Id) {
        if self.changes.followed {
            self.raise_flag();
            self.changed_whole.insert(id);
        }
    }

    /// Everything has changed.
    pub(super) fn note_all(&mut self) {
        self.note_pages(u128::MAX);
        if self.changes.followed {
            // What has left is noted already.
            self.changed_whole.extend(self.whole.keys());
        }
    }

    #[inline]
    fn raise_flag(&self) {
        if self.changes.pages == 0 {
            self.views.flags.raise(self.index);
        }
    }
}

/// Which shards have changed.
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

    /// The shards whose flags were up, which are now down.
    pub(super) fn lower(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().flat_map(|(word, flags)| {
            let raised = flags.swap(0, Ordering::SeqCst);
            (0..64).filter(move |bit| raised >> bit & 1 == 1).map(move |bit| word * 64 + bit)
        })
    }
}

/// The page of a key, of 128: the bits that its probing starts by.
#[inline]
pub(super) const fn page_of(home: u64) -> u64 {
    home >> 25 & 127
}

#[inline]
pub(super) const fn page_bit(home: u64) -> u128 {
    1 << page_of(home)
}
