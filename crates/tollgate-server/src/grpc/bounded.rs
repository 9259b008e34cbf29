//! Bounds the bytes of incomplete messages: a connection has many calls, and each may buffer most
//! of a large message.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use axum::body::HttpBody;
use bytes::{Buf as _, Bytes};
use hyper::body::{Frame, SizeHint};
use tonic::Status;

use crate::buffers::{Held, PeerBuffers, TOO_MUCH};

/// The bytes of a message that are not counted: nearly all messages are smaller.
const UNCOUNTED_BYTES_MAX: usize = 16 << 10;

/// A message body that fails when the bound is reached.
pub(super) struct Bounded<B> {
    body: B,
    bytes: usize,
    held: Held,
}

impl<B> Bounded<B> {
    pub(super) fn new(body: B, buffers: &PeerBuffers) -> Self {
        Self { body, bytes: 0, held: buffers.hold() }
    }

    /// Counts `more` bytes. Returns whether they are within the bound.
    fn has_room(&mut self, more: usize) -> bool {
        self.bytes = self.bytes.saturating_add(more);
        self.held.resize(self.bytes.saturating_sub(UNCOUNTED_BYTES_MAX))
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
        Poll::Ready(Some(if self.has_room(more) { frame } else { Err(Status::resource_exhausted(TOO_MUCH)) }))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A response whose call is held until its body was taken.
pub(super) struct HeldBody {
    body: tonic::body::Body,
    _held: Held,
}

impl HeldBody {
    pub(super) const fn new(body: tonic::body::Body, held: Held) -> Self {
        Self { body, _held: held }
    }
}

impl HttpBody for HeldBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
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
    use crate::buffers::Buffers;
    use http_body_util::{BodyExt as _, Full};
    use std::sync::Arc;

    const MESSAGE: usize = 1 << 20;

    fn message(length: usize, buffers: &PeerBuffers) -> Bounded<Full<Bytes>> {
        Bounded::new(Full::new(vec![0; length].into()), buffers)
    }

    #[tokio::test]
    async fn incomplete_messages_share_a_bound_and_small_ones_pass() {
        let all = Arc::<Buffers>::default();
        let peer = all.of(Some("a"));
        let mut buffered = Vec::new();
        let refused = loop {
            let mut large = message(MESSAGE, &peer);
            let frame = large.frame().await.unwrap();
            buffered.push(large);
            match frame {
                Ok(frame) => assert_eq!(frame.data_ref().unwrap().len(), MESSAGE),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        assert!((32..40).contains(&buffered.len()), "{}", buffered.len());
        assert!(message(UNCOUNTED_BYTES_MAX, &peer).frame().await.unwrap().is_ok());
        assert!(message(MESSAGE, &all.of(Some("b"))).frame().await.unwrap().is_ok(), "another peer");
        buffered.clear();
        assert!(message(MESSAGE, &peer).frame().await.unwrap().is_ok(), "given back");
    }
}
