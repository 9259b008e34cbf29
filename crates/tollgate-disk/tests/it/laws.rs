//! The laws on a real disk: relaxed, strict, and a store that is closed and opened again after
//! every few requests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::Directory;
use tokio::sync::RwLock;
use tollgate::{Applied, Charge, Error, Limit, MemoryStore, Op, Store, StoreError, Timestamp};
use tollgate_disk::{DiskStore, Durability};

const NANOSECOND: Duration = Duration::from_nanos(1);

/// A store in a temporary directory.
struct Temporary {
    store: DiskStore,
    _dir: Directory,
}

impl Temporary {
    fn new(durability: Durability) -> Self {
        let dir = Directory::new();
        let store = DiskStore::builder(dir.path()).durability(durability).open().unwrap();
        Self { store, _dir: dir }
    }
}

impl Store for Temporary {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        self.store.apply(op, charges, now).await
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        self.store.accepts(limit)
    }

    fn live_keys(&self) -> Option<u64> {
        self.store.live_keys()
    }

    fn decides_in(&self) -> Option<&MemoryStore> {
        self.store.decides_in()
    }
}

/// A store that is closed and opened again before every fifth request.
struct Restarting {
    store: RwLock<Option<DiskStore>>,
    requests: AtomicU64,
    dir: Directory,
}

impl Restarting {
    fn new() -> Self {
        let dir = Directory::new();
        let store = RwLock::new(Some(DiskStore::open(dir.path()).unwrap()));
        Self { store, requests: AtomicU64::new(0), dir }
    }
}

impl Store for Restarting {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        if self.requests.fetch_add(1, Ordering::Relaxed) % 5 == 4 {
            let mut store = self.store.write().await;
            drop(store.take());
            *store = Some(DiskStore::open(self.dir.path()).unwrap());
        }
        self.store.read().await.as_ref().unwrap().apply(op, charges, now).await
    }
}

tollgate_testkit::conformance!(
    relaxed,
    || Temporary::new(Durability::Relaxed),
    resolution = NANOSECOND,
    together,
    cases = 64
);
tollgate_testkit::conformance!(
    strict,
    || Temporary::new(Durability::Strict),
    resolution = NANOSECOND,
    together,
    cases = 12
);
tollgate_testkit::conformance!(restarting, Restarting::new, resolution = NANOSECOND, together, cases = 12);
