//! The identity of a key, which [`hash`](super::hash) computes, and maps by it.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// The identity of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    pub(super) high: u64,
    pub(super) low: u32,
}

/// Hashes identities for a map. They are secret-keyed hashes already, and nobody sees them: their
/// bits are only folded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0 ^ self.0 >> 32
    }
}

pub(super) type IdMap<V> = HashMap<Id, V, BuildHasherDefault<IdHasher>>;
pub(super) type IdSet = HashSet<Id, BuildHasherDefault<IdHasher>>;
