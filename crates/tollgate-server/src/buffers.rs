//! Bytes that the server holds for its peers: messages that are not complete, batches whose answer
//! is not sent, and replies that are not read.
//!
//! They are bounded for each peer and in all, over all protocols. A trusted proxy is bounded only
//! in all. Small requests and answers are not counted: their number is that of connections.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The most bytes in all.
const ALL_BYTES_MAX: usize = 128 << 20;

/// The most bytes of one peer.
const PEER_BYTES_MAX: usize = ALL_BYTES_MAX / 4;

/// The sentence for a peer beyond its bound.
pub(crate) const TOO_MUCH: &str =
    "too much is waiting to be sent or read; read the answers, and send fewer large requests at a time";

/// The bytes held for all peers.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    all: AtomicUsize,
    refused: AtomicU64,
    /// Only peers with a connection.
    peers: Mutex<HashMap<String, Weak<Peer>>>,
}

#[derive(Debug)]
struct Peer {
    name: String,
    bytes: AtomicUsize,
    buffers: Arc<Buffers>,
}

/// The bytes held for one peer. Its connections share them.
#[derive(Clone, Debug)]
pub(crate) struct PeerBuffers {
    all: Arc<Buffers>,
    /// `None` if the peer is bounded only in all.
    peer: Option<Arc<Peer>>,
}

impl Buffers {
    /// The bytes of a peer. `None` is one that is bounded only in all.
    pub(crate) fn of(self: &Arc<Self>, name: Option<&str>) -> PeerBuffers {
        let peer = name.map(|name| {
            let mut peers = self.peers();
            if let Some(known) = peers.get(name).and_then(Weak::upgrade) {
                return known;
            }
            let bytes = AtomicUsize::new(0);
            let peer = Arc::new(Peer { name: name.to_owned(), bytes, buffers: Arc::clone(self) });
            peers.insert(name.to_owned(), Arc::downgrade(&peer));
            peer
        });
        PeerBuffers { all: Arc::clone(self), peer }
    }

    /// The bytes held in all.
    pub(crate) fn bytes(&self) -> u64 {
        self.all.load(Ordering::Relaxed) as u64
    }

    /// How often there was no room.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    fn peers(&self) -> MutexGuard<'_, HashMap<String, Weak<Peer>>> {
        self.peers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let mut peers = self.buffers.peers();
        // The peer may have connected again meanwhile.
        if peers.get(&self.name).is_some_and(|peer| peer.strong_count() == 0) {
            peers.remove(&self.name);
        }
    }
}

impl PeerBuffers {
    /// Holds nothing yet.
    pub(crate) fn hold(&self) -> Held {
        Held { buffers: self.clone(), bytes: 0 }
    }

    /// Adds `more` bytes, if they are within the bounds.
    fn take(&self, more: usize) -> bool {
        let Self { all, peer } = self;
        if !take(&all.all, more, ALL_BYTES_MAX) {
            return false;
        }
        let has_room = peer.as_ref().is_none_or(|peer| take(&peer.bytes, more, PEER_BYTES_MAX));
        if !has_room {
            all.all.fetch_sub(more, Ordering::Relaxed);
        }
        has_room
    }
}

/// Bytes that are held until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    buffers: PeerBuffers,
    bytes: usize,
}

impl Held {
    /// Holds `more` bytes. Returns whether they are within the bounds; if not, they are not held.
    #[must_use]
    pub(crate) fn grow(&mut self, more: usize) -> bool {
        let has_room = self.buffers.take(more);
        if has_room {
            self.bytes = self.bytes.saturating_add(more);
        } else {
            self.buffers.all.refused.fetch_add(1, Ordering::Relaxed);
        }
        has_room
    }

    /// Holds `bytes` in place of those held so far, as [`grow`](Self::grow).
    #[must_use]
    pub(crate) fn resize(&mut self, bytes: usize) -> bool {
        match bytes.checked_sub(self.bytes) {
            Some(0) => true,
            Some(more) => self.grow(more),
            None => {
                self.give_back(self.bytes.saturating_sub(bytes));
                self.bytes = bytes;
                true
            }
        }
    }

    fn give_back(&self, bytes: usize) {
        let PeerBuffers { all, peer } = &self.buffers;
        all.all.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(peer) = peer {
            peer.bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.give_back(self.bytes);
        }
    }
}

/// Adds `more` to a sum unless it would exceed `max`.
fn take(sum: &AtomicUsize, more: usize, max: usize) -> bool {
    let within = |sum: usize| sum.checked_add(more).filter(|sum| *sum <= max);
    sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, within).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    /// How many pieces of a mebibyte are held for a peer until it is refused.
    fn filled(peer: &PeerBuffers) -> Vec<Held> {
        std::iter::from_fn(|| {
            let mut held = peer.hold();
            held.grow(MIB).then_some(held)
        })
        .collect()
    }

    #[test]
    fn bytes_are_bounded_for_each_peer_and_in_all() {
        let buffers = Arc::<Buffers>::default();
        let peers = ["a", "b", "c"].map(|name| buffers.of(Some(name)));
        let held: Vec<Vec<Held>> = peers.iter().map(filled).collect();
        assert!(held.iter().all(|pieces| pieces.len() * MIB == PEER_BYTES_MAX));
        let proxy = filled(&buffers.of(None));
        assert_eq!(proxy.len() * MIB, PEER_BYTES_MAX, "what is left of all");
        assert!(filled(&buffers.of(Some("d"))).is_empty(), "all is held");
        drop(proxy);
        assert!(filled(&buffers.of(Some("a"))).is_empty(), "another connection of the same peer");
        assert_eq!(filled(&buffers.of(None)).len() * MIB, PEER_BYTES_MAX);
        drop((held, peers));
        assert_eq!(buffers.all.load(Ordering::Relaxed), 0, "given back");
        assert!(buffers.peers().is_empty(), "a peer without connections is forgotten");
    }

    #[test]
    fn bytes_beyond_a_bound_are_not_held() {
        let buffers = Arc::<Buffers>::default();
        let peer = buffers.of(Some("a"));
        let mut held = peer.hold();
        assert!(!held.grow(PEER_BYTES_MAX + 1));
        assert_eq!(buffers.all.load(Ordering::Relaxed), 0);
        assert!(held.grow(PEER_BYTES_MAX) && !peer.hold().grow(1));
        assert!(held.resize(PEER_BYTES_MAX - 1) && peer.hold().grow(1));
        assert!(held.resize(0) && held.resize(PEER_BYTES_MAX));
    }
}
