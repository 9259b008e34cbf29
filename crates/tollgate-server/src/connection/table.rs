//! The open connections of one listener: how many there are, whose they are, and which are idle.
//!
//! A connection is idle while no request on it is being answered. Half a request does not count as
//! one, so that a peer that never finishes keeps nobody out.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use tollgate::Clock as _;

use crate::app::STOPWATCH;

/// How often a full table in which every connection is busy is searched for an idle one.
const SEARCH_INTERVAL: Duration = Duration::from_millis(10);

/// How often a connection that is to make room looks whether its request has been answered.
const ANSWER_INTERVAL: Duration = Duration::from_millis(1);

/// What is counted of a listener's connections.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) open: AtomicU64,
    pub(crate) opened: AtomicU64,
    /// Closed at once, because their peer has as many as it may have.
    pub(crate) refused_per_peer: AtomicU64,
    /// Not accepted, for want of file descriptors or memory.
    pub(crate) failed: AtomicU64,
    /// Closed to make room for another.
    pub(crate) evicted: AtomicU64,
    /// Kept waiting for room.
    pub(crate) delayed: AtomicU64,
}

impl Counts {
    pub(crate) fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The open connections.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    max: usize,
    max_per_peer: usize,
    open: Mutex<Open>,
    /// A connection has ended. One task waits for that at a time.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Open {
    next_id: u64,
    connections: HashMap<u64, Entry>,
    /// How many connections a peer has.
    peers: HashMap<String, usize>,
}

#[derive(Debug)]
struct Entry {
    activity: Arc<Activity>,
    /// Tells the connection to make room; `None` once it has been told.
    evict: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Activity {
    /// Requests that are being answered.
    requests: AtomicU32,
    /// Since when there are none, in nanoseconds.
    idle_since: AtomicU64,
}

impl ConnectionTable {
    pub(crate) fn new(max: usize, max_per_peer: usize) -> Self {
        Self { max, max_per_peer, open: Mutex::default(), ended: Notify::new() }
    }

    /// Whether `peer` has fewer connections than it may have.
    pub(crate) fn admits(&self, peer: &str) -> bool {
        self.open().peers.get(peer).is_none_or(|count| *count < self.max_per_peer)
    }

    /// Waits until there is room for one more. The connection that has been idle for longest makes
    /// room; while all are busy, the newcomer waits.
    pub(crate) async fn room(&self, counts: &Counts) {
        let mut delayed = false;
        while !self.has_room(counts) {
            if timeout(SEARCH_INTERVAL, self.ended.notified()).await.is_err() && !delayed {
                delayed = true;
                Counts::add(&counts.delayed);
            }
        }
    }

    /// Whether there is room; if not, one connection is told to make some, unless one is about to.
    fn has_room(&self, counts: &Counts) -> bool {
        let connections = &mut self.open().connections;
        if connections.len() < self.max {
            return true;
        }
        let leaves = |entry: &Entry| entry.evict.is_none() && !entry.activity.is_busy();
        if !connections.values().any(leaves) {
            let idle = connections.values_mut().filter(|entry| !entry.activity.is_busy());
            let longest = idle.min_by_key(|entry| entry.activity.idle_since.load(Ordering::Relaxed));
            if let Some(evict) = longest.and_then(|entry| entry.evict.take()) {
                // A connection that is not there to hear it has made room.
                let _ = evict.send(());
                Counts::add(&counts.evicted);
            }
        }
        false
    }

    /// Enters a connection. `peer` is `None` where the number of its connections has no bound.
    pub(crate) fn enter(self: &Arc<Self>, peer: Option<String>) -> (Arc<Slot>, oneshot::Receiver<()>) {
        let (evict, evicted) = oneshot::channel();
        let idle_since = AtomicU64::new(STOPWATCH.now().as_nanos());
        let activity = Arc::new(Activity { requests: AtomicU32::new(0), idle_since });
        let mut open = self.open();
        let id = open.next_id;
        open.next_id = id.wrapping_add(1);
        open.connections.insert(id, Entry { activity: Arc::clone(&activity), evict: Some(evict) });
        if let Some(peer) = &peer {
            let count = open.peers.entry(peer.clone()).or_default();
            *count = count.saturating_add(1);
        }
        drop(open);
        (Arc::new(Slot { table: Arc::clone(self), id, peer, activity }), evicted)
    }

    /// Waits until no connection is open.
    pub(crate) async fn emptied(&self) {
        while !self.open().connections.is_empty() {
            self.ended.notified().await;
        }
    }

    fn open(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Activity {
    fn is_busy(&self) -> bool {
        self.requests.load(Ordering::Relaxed) > 0
    }
}

/// An open connection's place in the table, given back when the last request on it is over.
#[derive(Debug)]
pub(crate) struct Slot {
    table: Arc<ConnectionTable>,
    id: u64,
    peer: Option<String>,
    activity: Arc<Activity>,
}

impl Slot {
    /// The connection is busy for as long as what this returns lives.
    pub(crate) fn busy(self: &Arc<Self>) -> Busy {
        self.activity.requests.fetch_add(1, Ordering::Relaxed);
        Busy(Arc::clone(self))
    }

    /// Waits until the connection is idle.
    pub(super) async fn idle(&self) {
        while self.activity.is_busy() {
            STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(ANSWER_INTERVAL)).await;
        }
    }
}

#[cfg(test)]
impl Slot {
    /// A connection of a table of its own.
    pub(crate) fn alone() -> Arc<Self> {
        Arc::new(ConnectionTable::new(1, 1)).enter(None).0
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut open = self.table.open();
        open.connections.remove(&self.id);
        if let Some(peer) = &self.peer
            && let Some(count) = open.peers.get_mut(peer)
        {
            *count = count.saturating_sub(1);
            if *count == 0 {
                open.peers.remove(peer);
            }
        }
        drop(open);
        self.table.ended.notify_one();
    }
}

/// A request that is being answered.
#[derive(Debug)]
pub(crate) struct Busy(Arc<Slot>);

impl Drop for Busy {
    fn drop(&mut self) {
        let activity = &self.0.activity;
        activity.idle_since.store(STOPWATCH.now().as_nanos(), Ordering::Relaxed);
        activity.requests.fetch_sub(1, Ordering::Relaxed);
    }
}
