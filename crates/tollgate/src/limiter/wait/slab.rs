//! A table of waiters: a waiter keeps its index, and a free index is used again.

use std::ops::{Index, IndexMut};

use super::state::Waiter;

/// The index of a waiter.
pub(super) type WaiterId = usize;

#[derive(Debug, Default)]
pub(super) struct Slab {
    entries: Vec<Option<Waiter>>,
    free: Vec<WaiterId>,
}

const KNOWN: &str = "a waiter is in the table until it leaves";

impl Slab {
    pub(super) const fn len(&self) -> usize {
        self.entries.len().saturating_sub(self.free.len())
    }

    pub(super) fn insert(&mut self, waiter: Waiter) -> WaiterId {
        if let Some(id) = self.free.pop() {
            self.entries[id] = Some(waiter);
            return id;
        }
        self.entries.push(Some(waiter));
        self.entries.len().saturating_sub(1)
    }

    pub(super) fn remove(&mut self, id: WaiterId) -> Option<Waiter> {
        let waiter = self.entries.get_mut(id)?.take()?;
        self.free.push(id);
        Some(waiter)
    }
}

impl Index<WaiterId> for Slab {
    type Output = Waiter;

    fn index(&self, id: WaiterId) -> &Waiter {
        self.entries[id].as_ref().expect(KNOWN)
    }
}

impl IndexMut<WaiterId> for Slab {
    fn index_mut(&mut self, id: WaiterId) -> &mut Waiter {
        self.entries[id].as_mut().expect(KNOWN)
    }
}
