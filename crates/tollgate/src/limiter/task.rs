//! Work that runs to its end, whether or not somebody still waits for it.
//!
//! The core depends on no runtime. Inside a tokio runtime (feature `tokio`) such work becomes a
//! task as soon as it has to wait; elsewhere it is a part of its caller's future, and is dropped
//! with it.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::StoreError;

/// The runtime was shut down before the work had ended.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stopped;

impl From<Stopped> for StoreError {
    fn from(_: Stopped) -> Self {
        Self::Unavailable { reason: "the runtime that called it was shut down".into() }
    }
}

/// Does `work` to its end, also if the returned future is dropped meanwhile. Its result is dropped
/// then. Work that need not wait is done where it is polled first.
pub(super) async fn run_to_end<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> Result<T, Stopped> {
    let mut work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
    if let Poll::Ready(done) = poll_fn(|context| Poll::Ready(work.as_mut().poll(context))).await {
        return Ok(done);
    }
    #[cfg(feature = "tokio")]
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        return match runtime.spawn(work).await {
            Ok(done) => Ok(done),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(Stopped),
        };
    }
    Ok(work.await)
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
