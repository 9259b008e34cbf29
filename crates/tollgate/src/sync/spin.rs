//! A spin lock for critical sections of nanoseconds.
//!
//! Locking is one locked instruction and unlocking is a plain store. A mutex of the standard
//! library needs a locked instruction for both, which is a tenth of a whole check. A contended lock
//! spins for a while, then yields, then sleeps briefly, so that a preempted holder, even one of a
//! lower priority, gets to finish.
//!
//! There is no poisoning: a thread that panics while it holds the lock releases it. The guarded
//! states are always whole, so the next holder can go on.

#![expect(unsafe_code, reason = "a lock hands out the value it guards; each block has its proof")]

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use super::atomic::{AtomicBool, Ordering};

/// Binary logarithm of the longest pause between two attempts.
const MAX_PAUSE_LOG2: u32 = 6;
/// Attempts before the first yield, and yields before the first sleep.
const SPINS: u32 = 20;
const YIELDS: u32 = 100;

/// A value that one thread at a time can access.
#[repr(C)]
pub(crate) struct Spin<T> {
    locked: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a `Guard`, of which there is one at a time, or through
// `&mut Spin`. Sharing the lock between threads therefore only ever sends the value from one to
// another, for which `T: Send` is enough.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { locked: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock and acquires it.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if !self.try_lock() {
            self.wait();
        }
        Guard(self)
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.locked.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        for round in 0_u32.. {
            // Every attempt takes the cache line from the holder: back off.
            for _ in 0..1_u32 << round.min(MAX_PAUSE_LOG2) {
                pause();
            }
            if !self.locked.load(Ordering::Relaxed) && self.try_lock() {
                return;
            }
            if round > SPINS {
                yield_or_sleep(round > SPINS.saturating_add(YIELDS));
            }
        }
    }
}

impl<T> fmt::Debug for Spin<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spin")
    }
}

/// The guarded value, while the lock is held.
pub(crate) struct Guard<'a, T>(&'a Spin<T>);

// SAFETY: a shared guard gives shared access to the value and nothing else.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only between `try_lock` returning true and its own drop, and
        // `try_lock` returns true once between two drops: no other thread has access. `Acquire` in
        // `try_lock` makes visible what the last holder wrote before the `Release` in its drop.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; and `&mut self` proves that this guard has not lent the value out
        // either.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.locked.store(false, Ordering::Release);
    }
}

#[cfg(not(shuttle))]
fn pause() {
    std::hint::spin_loop();
}

#[cfg(not(shuttle))]
#[expect(
    clippy::disallowed_methods,
    reason = "this sleep is backoff; parking would consume a wake-up meant for other code"
)]
fn yield_or_sleep(sleep: bool) {
    if sleep {
        std::thread::sleep(std::time::Duration::from_micros(50));
    } else {
        std::thread::yield_now();
    }
}

#[cfg(shuttle)]
fn pause() {
    shuttle::thread::yield_now();
}

#[cfg(shuttle)]
fn yield_or_sleep(_sleep: bool) {
    shuttle::thread::yield_now();
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn b9_four_threads_lose_no_increment() {
        let number = Spin::new(0_u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..100_000).for_each(|_| *number.lock() += 1));
            }
        });
        assert_eq!(*number.lock(), 400_000);
    }

    #[test]
    fn a_holder_that_panics_releases_the_lock() {
        let number = Spin::new(7_u64);
        let panicked = std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let _held = number.lock();
                panic!("on purpose");
            });
            thread.join()
        });
        assert!(panicked.is_err());
        assert_eq!(*number.lock(), 7);
    }
}

/// Run by `cargo xtask test` with the other interleavings.
#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use shuttle::sync::Arc;
    use shuttle::thread;

    #[test]
    fn b9_the_lock_excludes_other_threads() {
        shuttle::check_random(
            || {
                let number = Arc::new(Spin::new(0_u64));
                let add = |number: Arc<Spin<u64>>| {
                    let mut held = number.lock();
                    let read = *held;
                    thread::yield_now();
                    *held = read + 1;
                };
                let threads: Vec<_> = (0..3)
                    .map(|_| {
                        let number = number.clone();
                        thread::spawn(move || add(number))
                    })
                    .collect();
                threads.into_iter().for_each(|thread| thread.join().unwrap());
                assert_eq!(*number.lock(), 3);
            },
            2_000,
        );
    }
}
