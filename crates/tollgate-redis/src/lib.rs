//! Redis, Valkey, Sentinel and Cluster as the shared store of [`tollgate`]'s limits: several processes, one budget.
//!
//! A request is one script and one round trip, whatever limits it draws on: read, decided and written where the state
//! is, by the server's own clock. The script restates the core's arithmetic, and tests hold the two together. In a
//! Cluster the keys of one client are in one slot; `slots.rs` says what several slots mean.
//!
//! [`RedisStore`] is a [`Store`](tollgate::Store): everything a [`Limiter`](tollgate::Limiter) can do, it can do with
//! this one.

mod blocks;
mod connection;
mod denials;
mod key;
mod limit;
mod link;
mod scan;
mod script;
mod slots;
mod store;
mod target;

pub use blocks::Blocked;
pub use link::Change;
pub use script::SCRIPT;
pub use store::{RedisStore, RedisStoreBuilder, Status};
