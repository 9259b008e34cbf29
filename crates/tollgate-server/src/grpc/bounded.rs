//! How much of messages may be half there: one connection has many calls, and each may have most of a
//! large message.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use axum::body::HttpBody;
use bytes::{Buf as _, Bytes};
use hyper::body::{Frame, SizeHint};
use tonic::Status;

/// What a message may have without being counted: nearly all of them have less.
const UNCOUNTED_BYTES_MAX: usize = 16 << 10;

/// What all messages together may have beyond that.
const COUNTED_BYTES_MAX: usize = 64 << 20;

/// What all messages that are on their way have, beyond what is not counted.
pub(super) type BufferedBytes = Arc<AtomicUsize>;

/// A message on its way. It ends in an error where there is no room for it.
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

    /// Takes note of some more, if there is room.
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
            Err(Status::unavailable("too many large messages are on their way"))
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
    async fn messages_that_are_half_there_have_a_bound_together_and_small_ones_pass() {
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
