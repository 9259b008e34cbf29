//! Bounds the bytes of incomplete messages: a connection has many calls, and each may buffer most
//! of a large message.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::HttpBody;
use bytes::{Buf as _, Bytes};
use hyper::body::{Frame, SizeHint};
use tonic::Status;

/// The bytes of a message that are not counted: nearly all messages are smaller.
const UNCOUNTED_BYTES_MAX: usize = 16 << 10;

/// The most counted bytes of all messages together.
const COUNTED_BYTES_MAX: usize = 64 << 20;

/// The counted bytes of all incomplete messages.
pub(super) type BufferedBytes = Arc<AtomicUsize>;

/// A message body that fails when the bound is reached.
pub(super) struct Bounded<B> {
    body: B,
    bytes: usize,
    counted: usize,
    all: BufferedBytes,
}

impl<B> Bounded<B> {
    pub(super) fn new(body: B, all: &BufferedBytes) -> Self {
        Self { body, bytes: 0, counted: 0, all: Arc::clone(all) }
    }

    /// Counts `more` bytes. Returns whether they are within the bound.
    fn has_room(&mut self, more: usize) -> bool {
        self.bytes = self.bytes.saturating_add(more);
        let new = self.bytes.saturating_sub(UNCOUNTED_BYTES_MAX).saturating_sub(self.counted);
        if new == 0 {
            return true;
        }
        self.counted = self.counted.saturating_add(new);
        self.all.fetch_add(new, Ordering::Relaxed).saturating_add(new) <= COUNTED_BYTES_MAX
    }
}

impl<B> Drop for Bounded<B> {
    fn drop(&mut self) {
        if self.counted > 0 {
            self.all.fetch_sub(self.counted, Ordering::Relaxed);
        }
    }
}

impl<B> HttpBody for Bounded<B>
where
    B: HttpBody<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Unpin,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(frame) = ready!(Pin::new(&mut self.body).poll_frame(context)) else {
            return Poll::Ready(None);
        };
        let frame = frame.map_err(|error| Status::from_error(error.into()));
        let more = frame.as_ref().ok().and_then(Frame::data_ref).map_or(0, Bytes::remaining);
        Poll::Ready(Some(if self.has_room(more) {
            frame
        } else {
            Err(Status::unavailable("too many large messages are in flight"))
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{BodyExt as _, Full};

    const MESSAGE: usize = 1 << 20;

    fn message(length: usize, all: &BufferedBytes) -> Bounded<Full<Bytes>> {
        Bounded::new(Full::new(vec![0; length].into()), all)
    }

    #[tokio::test]
    async fn incomplete_messages_share_a_bound_and_small_ones_pass() {
        let all = BufferedBytes::default();
        let mut buffered = Vec::new();
        let refused = loop {
            let mut large = message(MESSAGE, &all);
            let frame = large.frame().await.unwrap();
            buffered.push(large);
            match frame {
                Ok(frame) => assert_eq!(frame.data_ref().unwrap().len(), MESSAGE),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused.code(), tonic::Code::Unavailable);
        assert!((64..70).contains(&buffered.len()), "{}", buffered.len());
        assert!(message(UNCOUNTED_BYTES_MAX, &all).frame().await.unwrap().is_ok());
        buffered.clear();
        assert_eq!(all.load(Ordering::Relaxed), 0, "given back");
        assert!(message(MESSAGE, &all).frame().await.unwrap().is_ok());
    }
}
