//! Redis, Valkey, Sentinel and Cluster as the shared store of [`tollgate`]'s limits: several
//! processes, one budget.
//!
//! A request is one script and one round trip, however many limits it draws on. The script reads,
//! decides and writes on the server, by the server's clock. It restates the core's arithmetic;
//! tests compare the two. In a Cluster all keys of one client are in one slot; `slots.rs` describes
//! requests that span slots.
//!
//! [`RedisStore`] is a [`Store`](tollgate::Store) that supports every operation of a
//! [`Limiter`](tollgate::Limiter).

mod batch;
mod blocks;
mod calendar;
mod clear;
mod connection;
mod denials;
mod eviction;
mod key;
mod limit;
mod link;
mod scan;
mod script;
mod sentinel;
mod server;
mod slots;
mod store;
mod target;

pub use blocks::{Blocked, Blocks};
pub use clear::ClearProgress;
pub use eviction::Eviction;
pub use link::Change;
pub use script::SCRIPT;
pub use store::{RedisStore, RedisStoreBuilder, Status};
