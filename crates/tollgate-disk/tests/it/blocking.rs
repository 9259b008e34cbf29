//! A store that is waited for on a thread of a tokio runtime, which runs nothing else meanwhile.

use crate::common::Directory;
use tollgate::{Limit, Limiter, RuleSet, block_on};
use tollgate_disk::{DiskStore, Durability};

/// More than the operations that tokio lets one task complete before it has to yield.
const BEYOND_BUDGET: usize = 300;

#[tokio::test]
async fn e3_flush_and_close_end_inside_a_runtime() {
    let dir = Directory::new();
    let store = DiskStore::open(dir.path()).unwrap();
    for _ in 0..BEYOND_BUDGET {
        block_on(store.flush()).unwrap();
    }
    block_on(store.close()).unwrap();
    assert!(DiskStore::open(dir.path()).is_ok(), "the directory is released");
}

#[tokio::test(flavor = "multi_thread")]
async fn e3_a_strict_check_ends_inside_a_runtime() {
    let dir = Directory::new();
    let store = DiskStore::builder(dir.path()).durability(Durability::Strict).open().unwrap();
    let rules = RuleSet::per_client(Limit::per_hour(1_000));
    let limiter = Limiter::builder(rules).store(store).build().unwrap();
    for _ in 0..BEYOND_BUDGET {
        assert!(block_on(limiter.check_async("alice")).unwrap().allowed());
    }
    block_on(limiter.store().close()).unwrap();
}
