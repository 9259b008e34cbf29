//! Running a future on the current thread.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

/// Runs `future` to completion on this thread: for programs without an async runtime. With the
/// in-memory store every verb but [`wait`](crate::Limiter::wait) completes at once.
///
/// On a thread of an async runtime it blocks that thread. A future that needs the same thread, such
/// as one that waits for the runtime's timers or sockets, then never completes: await it instead.
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
