//! Backpressure: while a peer does not read, its further requests are not answered.
//!
//! hyper answers requests that are pipelined, or multiplexed, however many answers wait to be
//! written. So requests wait here until what was answered before has been written.

use std::io;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

/// Whether the peer of a connection reads what is written.
#[derive(Debug, Default)]
pub(crate) struct Backpressure {
    is_blocked: AtomicBool,
    unblocked: Notify,
}

impl Backpressure {
    /// Whether a write waits for the peer.
    pub(crate) fn is_blocked(&self) -> bool {
        self.is_blocked.load(Ordering::Acquire)
    }

    /// Waits until no write waits for the peer.
    pub(crate) async fn unblocked(&self) {
        loop {
            // Before the flag is read, so that no notification is missed.
            let unblocked = self.unblocked.notified();
            if !self.is_blocked() {
                return;
            }
            unblocked.await;
        }
    }

    fn block(&self) {
        self.is_blocked.store(true, Ordering::Release);
    }

    fn unblock(&self) {
        if self.is_blocked() {
            self.is_blocked.store(false, Ordering::Release);
            self.unblocked.notify_waiters();
        }
    }
}

/// A stream whose writes are watched.
#[derive(Debug)]
pub(crate) struct Watched<S> {
    stream: S,
    backpressure: Arc<Backpressure>,
}

impl<S> Watched<S> {
    pub(crate) fn new(stream: S, backpressure: &Arc<Backpressure>) -> Self {
        Self { stream, backpressure: Arc::clone(backpressure) }
    }

    /// A write that waits blocks. Only a flush unblocks, since a stream may take bytes into a
    /// buffer.
    fn wrote<T>(&self, written: Poll<T>) -> Poll<T> {
        if written.is_pending() {
            self.backpressure.block();
        }
        written
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Watched<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Watched<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.wrote(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.wrote(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        if flushed.is_ready() {
            self.backpressure.unblock();
        }
        self.wrote(flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};

    #[tokio::test]
    async fn a_peer_that_does_not_read_blocks_until_it_has_read_everything() {
        let (mut peer, stream) = duplex(8);
        let backpressure = Arc::<Backpressure>::default();
        let mut stream = Watched::new(stream, &backpressure);
        stream.write_all(&[0; 8]).await.unwrap();
        stream.flush().await.unwrap();
        assert!(!backpressure.is_blocked());
        let mut answer = Box::pin(async {
            stream.write_all(&[0; 8]).await.unwrap();
            stream.flush().await.unwrap();
        });
        assert!((&mut answer).now_or_never().is_none() && backpressure.is_blocked());
        let mut waiting = Box::pin(backpressure.unblocked());
        assert!((&mut waiting).now_or_never().is_none());
        peer.read_exact(&mut [0; 4]).await.unwrap();
        assert!((&mut answer).now_or_never().is_none() && (&mut waiting).now_or_never().is_none());
        peer.read_exact(&mut [0; 4]).await.unwrap();
        answer.await;
        waiting.await;
        assert!(!backpressure.is_blocked());
    }
}
