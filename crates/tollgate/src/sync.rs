//! The synchronisation that the store is built from: the standard library's, or `shuttle`'s when a
//! test explores its interleavings.

#[cfg(not(shuttle))]
pub(crate) use std::sync::{Mutex, MutexGuard, PoisonError, atomic};

#[cfg(shuttle)]
pub(crate) use shuttle::sync::{Mutex, MutexGuard, atomic};
#[cfg(shuttle)]
pub(crate) use std::sync::PoisonError;

/// Locks; a thread that panicked while it held the lock left a state as good as any, because states
/// are replaced whole.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
