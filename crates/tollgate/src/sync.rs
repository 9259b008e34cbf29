//! Synchronisation of the memory store: atomics from the standard library, or from `shuttle` when a
//! test explores interleavings; and a spin lock that is cheaper than a mutex when uncontended.

mod spin;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;
#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic;

pub(crate) use spin::{Guard, Spin};
