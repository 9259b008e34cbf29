//! Running a future on the current thread.

use std::cell::Cell;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs `future` to completion on this thread: for programs without an async runtime. With the
/// in-memory store every verb but [`wait`](crate::Limiter::wait) completes at once.
///
/// On a thread of an async runtime it blocks that thread. The clocks of this crate sleep there all
/// the same, `TokioClock` on the timer of [`SystemClock`](crate::SystemClock). A future that needs
/// the blocked thread for something else, such as a socket of the runtime, never completes: await
/// it instead.
///
/// ```
/// use tollgate::{Limit, Limiter, block_on};
///
/// let limiter = Limiter::new(Limit::per_minute(10));
/// assert_eq!(block_on(limiter.peek("alice"))?.remaining(), 10);
/// # Ok::<(), tollgate::Error>(())
/// ```
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let _blocking = Blocking::begin();
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

thread_local! {
    static IS_BLOCKED: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside [`block_on`]: a runtime that runs on it cannot run its timers.
#[cfg(feature = "tokio")]
pub(crate) fn is_blocked() -> bool {
    IS_BLOCKED.get()
}

/// Marks this thread as blocked until it is dropped. Calls may be nested.
struct Blocking {
    was_blocked: bool,
}

impl Blocking {
    fn begin() -> Self {
        Self { was_blocked: IS_BLOCKED.replace(true) }
    }
}

impl Drop for Blocking {
    fn drop(&mut self) {
        IS_BLOCKED.set(self.was_blocked);
    }
}
