//! The synchronisation that the memory store is built from: the standard library's, or `shuttle`'s
//! when a test explores its interleavings; and a lock that is cheaper than either while nobody else
//! wants it.

mod spin;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;
#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic;

pub(crate) use spin::{Guard, Spin};
