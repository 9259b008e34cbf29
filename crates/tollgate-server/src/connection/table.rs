//! The open connections of one listener: their number, their peers, and the idle ones.
//!
//! A connection is idle while no complete request on it is being answered, so a peer that never
//! finishes a request cannot keep a slot.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::timeout;
use tollgate::Clock as _;

use crate::app::STOPWATCH;

/// The interval between searches of a full table for an idle connection.
const SEARCH_INTERVAL: Duration = Duration::from_millis(10);

/// The interval at which an evicted connection checks whether its request is answered.
const ANSWER_INTERVAL: Duration = Duration::from_millis(1);

/// Counters of a listener's connections.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) open: AtomicU64,
    pub(crate) opened: AtomicU64,
    /// Closed at once, because the peer reached its bound.
    pub(crate) refused_per_peer: AtomicU64,
    /// Not accepted for lack of file descriptors or memory.
    pub(crate) failed: AtomicU64,
    /// Closed while idle, for a new connection.
    pub(crate) evicted: AtomicU64,
    /// Delayed because all others were busy.
    pub(crate) delayed: AtomicU64,
}

impl Counts {
    pub(crate) fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

/// The table of open connections.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    max: usize,
    max_per_peer: usize,
    open: Mutex<Open>,
    /// Notified when a connection ends. One task at a time waits for it.
    ended: Notify,
}

#[derive(Debug, Default)]
struct Open {
    next_id: u64,
    connections: HashMap<u64, Entry>,
    /// The number of connections of each peer.
    peers: HashMap<String, usize>,
}

#[derive(Debug)]
struct Entry {
    activity: Arc<Activity>,
    /// Evicts the connection; `None` once it was used.
    evict: Option<oneshot::Sender<()>>,
}

#[derive(Debug)]
struct Activity {
    /// Requests that are being answered.
    requests: AtomicU32,
    /// When the last request ended, in nanoseconds.
    idle_since: AtomicU64,
}

impl ConnectionTable {
    pub(crate) fn new(max: usize, max_per_peer: usize) -> Self {
        Self { max, max_per_peer, open: Mutex::default(), ended: Notify::new() }
    }

    /// Whether `peer` is below its bound.
    pub(crate) fn admits(&self, peer: &str) -> bool {
        self.open().peers.get(peer).is_none_or(|count| *count < self.max_per_peer)
    }

    /// Waits for a free slot. The connection that has been idle longest is evicted; while all are
    /// busy, the new one waits.
    pub(crate) async fn room(&self, counts: &Counts) {
        let mut delayed = false;
        while !self.has_room(counts) {
            if timeout(SEARCH_INTERVAL, self.ended.notified()).await.is_err() && !delayed {
                delayed = true;
                Counts::add(&counts.delayed);
            }
        }
    }

    /// Whether a slot is free. If not, evicts one connection, unless one is being evicted.
    fn has_room(&self, counts: &Counts) -> bool {
        let connections = &mut self.open().connections;
        if connections.len() < self.max {
            return true;
        }
        let is_leaving = |entry: &Entry| entry.evict.is_none() && !entry.activity.is_busy();
        if !connections.values().any(is_leaving) {
            let idle = connections.values_mut().filter(|entry| !entry.activity.is_busy());
            let longest = idle.min_by_key(|entry| entry.activity.idle_since.load(Ordering::Relaxed));
            if let Some(evict) = longest.and_then(|entry| entry.evict.take()) {
                // A dropped receiver means that the connection has ended.
                let _ = evict.send(());
                Counts::add(&counts.evicted);
            }
        }
        false
    }

    /// Adds a connection. `peer` is `None` if its number of connections is unbounded.
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

/// A connection's slot in the table, freed when the last request on it ends.
#[derive(Debug)]
pub(crate) struct Slot {
    table: Arc<ConnectionTable>,
    id: u64,
    peer: Option<String>,
    activity: Arc<Activity>,
}

impl Slot {
    /// The name of the peer, or `None` if its number of connections is unbounded.
    pub(super) fn peer(&self) -> Option<&str> {
        self.peer.as_deref()
    }

    /// Marks the connection busy while the guard lives.
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
