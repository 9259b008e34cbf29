//! State that survives a crash, with no server to run.
//!
//! A [`DiskStore`] decides in memory, as exactly and nearly as fast as [`MemoryStore`](tollgate::MemoryStore),
//! and keeps a copy of what it knows in a directory, which it loads when it is opened again.
//!
//! ```
//! use tollgate::{Limit, Limiter, RuleSet, block_on};
//! use tollgate_disk::DiskStore;
//!
//! # let dir = std::env::temp_dir().join(format!("tollgate-doc-{}", std::process::id()));
//! let rules = RuleSet::per_client(Limit::per_hour(10));
//! let limiter = Limiter::builder(rules.clone()).store(DiskStore::open(&dir)?).build()?;
//! assert_eq!(block_on(limiter.check_async("alice"))?.remaining(), 9);
//! block_on(limiter.store().close())?;
//! # drop(limiter);
//!
//! let limiter = Limiter::builder(rules).store(DiskStore::open(&dir)?).build()?;
//! assert_eq!(block_on(limiter.check_async("alice"))?.remaining(), 8);
//! # drop(limiter);
//! # std::fs::remove_dir_all(&dir)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What a crash costs
//!
//! | | [`Relaxed`](Durability::Relaxed), the default | [`Strict`](Durability::Strict) |
//! |---|---|---|
//! | an answer waits for | nothing | a sync, shared by all that wait at the time |
//! | the process is killed, or the power fails | what was done since the last write that was finished began: at most the flush interval and the time that a write takes, or where writes take longer than a third of the interval, four of them | nothing that was answered |
//! | the disk fails or is full | nothing while the process lives: it goes on in memory, says so, and writes everything once it can | checks follow the rule's failure policy, flagged; denials are still exact |
//!
//! What is forgotten is forgotten key by key, as if it had not happened: those clients may draw on those
//! units once more. Nothing else changes: a write is one transaction, so that what is found after a crash
//! is all of a write or none of it.
//!
//! Every write is synced, in both modes. A denial and a peek change nothing, and wait for nothing.
//!
//! Files that were cut, torn or changed are refused with an [`OpenError`] that says what to do: budgets
//! are never silently full again. (Of a process that was killed, damage to nothing but its very last write
//! cannot be told from a write that the power cut short: then all but that write is there.) One process at
//! a time may have a directory.

mod error;
mod file;
mod lock;
mod medium;
#[cfg(test)]
mod simulated;
mod store;
mod writer;

pub use error::OpenError;
pub use store::{
    Builder, Change, DiskStats, DiskStore, Durability, LONGEST_INTERVAL, Progress, SHORTEST_INTERVAL,
};
