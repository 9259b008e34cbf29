//! The future of a response.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::Response;
use pin_project_lite::pin_project;
use tollgate::Decision;

use crate::connection_slot::Held;
use crate::{Headers, ResponseBody};

/// A future that awaits the store before it calls the service.
pub(crate) type Boxed<R, E> = Pin<Box<dyn Future<Output = Result<Response<ResponseBody<R>>, E>> + Send>>;

pin_project! {
    /// The future of a response: the service's with the rate limit fields added, or a denial.
    pub struct ResponseFuture<F, R, E> {
        #[pin]
        state: State<F, R, E>,
    }
}

pin_project! {
    #[project = Projected]
    enum State<F, R, E> {
        // Admitted at once, as nearly every request is. Not boxed. A decision is large, so it is
        // kept only if fields are written from it.
        Passing { #[pin] future: F, fields: Option<(Headers, Decision)> },
        Denied { response: Option<Response<Bytes>> },
        Waiting { future: Boxed<R, E> },
    }
}

impl<F, R, E> ResponseFuture<F, R, E> {
    pub(crate) const fn passing(future: F, fields: Option<(Headers, Decision)>) -> Self {
        Self { state: State::Passing { future, fields } }
    }

    pub(crate) const fn denied(response: Response<Bytes>) -> Self {
        Self { state: State::Denied { response: Some(response) } }
    }

    pub(crate) const fn boxed(future: Boxed<R, E>) -> Self {
        Self { state: State::Waiting { future } }
    }
}

impl<F, R, E> Future for ResponseFuture<F, R, E>
where
    F: Future<Output = Result<Response<R>, E>>,
{
    type Output = Result<Response<ResponseBody<R>>, E>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            Projected::Passing { future, fields } => {
                let response = ready!(future.poll(context))?;
                Poll::Ready(Ok(match fields {
                    Some((headers, decision)) => pass(response, headers, decision, None),
                    None => response.map(|body| ResponseBody::service(body, None)),
                }))
            }
            Projected::Denied { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(ResponseBody::denied))),
                // A violated contract of `Future`: no peer can cause a poll after completion.
                None => panic!("polled after it was done"),
            },
            Projected::Waiting { future } => future.as_mut().poll(context),
        }
    }
}

impl<F, R, E> fmt::Debug for ResponseFuture<F, R, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ResponseFuture")
    }
}

/// Adds the rate limit fields to the service's response. Its body holds the slot.
pub(crate) fn pass<R>(
    mut response: Response<R>,
    headers: &Headers,
    decision: &Decision,
    slot: Option<Arc<Held>>,
) -> Response<ResponseBody<R>> {
    headers.write(decision, response.headers_mut());
    response.map(|body| ResponseBody::service(body, slot))
}
