//! A lock for what takes nanoseconds.
//!
//! Taking it is one locked instruction and giving it back is a plain store; a mutex of the standard
//! library needs a locked instruction for both, which is a tenth of a whole check. Who finds it
//! taken looks again for a while, then lets other threads run, then sleeps a little, so that a
//! holder that was preempted, even one of a lower priority, gets to finish.
//!
//! It does not know about panics: a thread that panics while it holds the lock gives it back, and
//! leaves what the store's states always are, whole.

#![expect(unsafe_code, reason = "a lock hands out what it guards; the proofs stand beside each block")]

use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};

use super::atomic::{AtomicBool, Ordering};

/// Two to the power of this is the longest pause between two looks.
const LONGEST: u32 = 6;
/// How often to look again before letting others run, and how often that before sleeping.
const LOOKS: u32 = 20;
const YIELDS: u32 = 100;

/// A value that one thread at a time can get at.
#[repr(C)]
pub(crate) struct Spin<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a `Guard`, of which there is one at a time, or through
// `&mut Spin`. Sharing the lock between threads therefore only ever sends the value from one to
// another, for which `T: Send` is enough.
unsafe impl<T: Send> Sync for Spin<T> {}

impl<T> Spin<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    /// Waits for the lock and takes it.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if !self.take() {
            self.wait();
        }
        Guard(self)
    }

    #[inline]
    fn take(&self) -> bool {
        self.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait(&self) {
        for round in 0_u32.. {
            // Every look takes the line from the holder, who has to get it back: look ever less often.
            for _ in 0..1_u32 << round.min(LONGEST) {
                pause();
            }
            if !self.taken.load(Ordering::Relaxed) && self.take() {
                return;
            }
            if round > LOOKS {
                let_others_run(round > LOOKS.saturating_add(YIELDS));
            }
        }
    }
}

impl<T> fmt::Debug for Spin<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Spin")
    }
}

/// The value of a lock, as long as it is held.
pub(crate) struct Guard<'a, T>(&'a Spin<T>);

// SAFETY: a shared guard gives shared access to the value and nothing else.
unsafe impl<T: Sync> Sync for Guard<'_, T> {}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: a guard exists only between `take` returning true and its own drop, and `take` returns
        // true once between two drops: nobody else has access. `Acquire` in `take` makes visible what the
        // last holder wrote before the `Release` in its drop.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; and `&mut self` says that this guard has not lent it out either.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

#[cfg(not(shuttle))]
fn pause() {
    std::hint::spin_loop();
}

#[cfg(not(shuttle))]
#[expect(
    clippy::disallowed_methods,
    reason = "nothing is waited for; and parking would take a wake-up that is meant for someone else"
)]
fn let_others_run(sleep: bool) {
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
fn let_others_run(_sleep: bool) {
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
    fn a_holder_that_panics_gives_it_back() {
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

/// Run by `cargo xtask test` among the interleavings.
#[cfg(all(test, shuttle))]
mod interleavings {
    use super::*;
    use shuttle::sync::Arc;
    use shuttle::thread;

    #[test]
    fn b9_nobody_gets_in_while_another_is() {
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
