//! Work that runs to its end, whether or not somebody still waits for it.
//!
//! The core depends on no runtime. Work whose caller leaves becomes a task of the tokio runtime
//! that the caller polled it in (feature `tokio`); elsewhere it is dropped with its caller.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

type Work<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Does `work` to its end, also if the returned future is dropped after its first poll. Its result
/// is dropped then.
pub(super) fn run_to_end<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> ToEnd<T> {
    ToEnd {
        work: Some(Box::pin(work)),
        #[cfg(feature = "tokio")]
        runtime: None,
    }
}

/// See [`run_to_end`].
pub(super) struct ToEnd<T: Send + 'static> {
    /// `None` once it is done, or has panicked.
    work: Option<Work<T>>,
    /// The runtime in which it was polled and had to wait.
    #[cfg(feature = "tokio")]
    runtime: Option<tokio::runtime::Handle>,
}

impl<T: Send + 'static> Future for ToEnd<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Work that panics is not put back.
        let mut work = self.work.take().expect("polled after it was done");
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
            #[cfg(feature = "tokio")]
            if self.runtime.is_none() {
                self.runtime = tokio::runtime::Handle::try_current().ok();
            }
        }
        polled
    }
}

#[cfg(feature = "tokio")]
impl<T: Send + 'static> Drop for ToEnd<T> {
    fn drop(&mut self) {
        if let (Some(work), Some(runtime)) = (self.work.take(), self.runtime.take()) {
            runtime.spawn(async move { drop(work.await) });
        }
    }
}

/// Begins `work`, which nobody waits for, and runs it to its end. Work that has to wait outside of
/// a runtime is dropped.
pub(super) fn run_detached(work: impl Future<Output = ()> + Send + 'static) {
    let mut work: Pin<Box<dyn Future<Output = ()> + Send>> = Box::pin(work);
    if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
        #[cfg(feature = "tokio")]
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(work);
        }
    }
}
