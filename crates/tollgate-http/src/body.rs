//! The body of a response: the service's, or that of a denial.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use crate::connection_slot::Held;

pin_project! {
    /// The body of a response: the service's, or that of a denial.
    #[derive(Debug)]
    #[project = Projected]
    pub enum ResponseBody<B> {
        #[doc(hidden)]
        Service { #[pin] body: B, slot: Option<Arc<Held>> },
        #[doc(hidden)]
        Denied { body: Option<Bytes> },
    }
}

impl<B> ResponseBody<B> {
    /// The service's body. It holds the slot until it has ended or is dropped.
    pub(crate) const fn service(body: B, slot: Option<Arc<Held>>) -> Self {
        Self::Service { body, slot }
    }

    pub(crate) fn denied(body: Bytes) -> Self {
        Self::Denied { body: Some(body).filter(|body| !body.is_empty()) }
    }
}

impl<B: Body<Data: From<Bytes>>> Body for ResponseBody<B> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        match self.project() {
            Projected::Service { body, slot } => {
                let frame = body.poll_frame(context);
                if let Poll::Ready(None | Some(Err(_))) = frame {
                    *slot = None;
                }
                frame
            }
            Projected::Denied { body } => Poll::Ready(body.take().map(|body| Ok(Frame::data(body.into())))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Service { body, .. } => body.is_end_stream(),
            Self::Denied { body } => body.is_none(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Service { body, .. } => body.size_hint(),
            Self::Denied { body } => SizeHint::with_exact(body.as_ref().map_or(0, |body| body.len() as u64)),
        }
    }
}
