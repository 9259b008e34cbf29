//! State that survives a crash, with no server to run.
//!
//! A [`DiskStore`] decides in memory, as exactly and nearly as fast as
//! [`MemoryStore`](tollgate::MemoryStore), and keeps a copy of its state in a directory, which it
//! loads when it is opened again.
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
//! In [`Relaxed`](Durability::Relaxed) mode, the default, an answer waits for nothing:
//!
//! * If the process is killed or the power fails, the changes since the last finished write began
//!   are lost: at most the flush interval and the duration of a write, or four writes where a write
//!   takes longer than a third of the interval.
//! * If the disk fails or is full, nothing is lost while the process lives: the store goes on in
//!   memory, reports the failure, and writes the whole state once it can.
//!
//! In [`Strict`](Durability::Strict) mode an answer waits for a sync, which all requests that wait
//! at the time share:
//!
//! * If the process is killed or the power fails, nothing that was answered is lost.
//! * If the disk fails or is full, checks follow the rule's failure policy, flagged. Denials are
//!   still exact.
//!
//! A lost change is lost by itself, as if it had not happened: that client may draw those units
//! once more. A write is one transaction: after a crash the file has all of it or none.
//!
//! Every write is synced, in both modes. A denial and a peek change nothing, and wait for nothing.
//!
//! A truncated, torn or changed file is refused with an [`OpenError`] that says what to do: budgets
//! are never silently full again. (If the process was killed, damage to only its very last write
//! cannot be told from a power cut during that write: then the state before that write is loaded.)
//! One process at a time may use a directory.

mod error;
mod file;
mod lock;
#[cfg(test)]
mod simulated;
mod storage;
mod store;
mod writer;

pub use error::OpenError;
pub use file::catches_panic;
pub use store::{
    Builder, Change, DiskStats, DiskStore, Durability, LONGEST_INTERVAL, Progress, SHORTEST_INTERVAL,
};
