//! Denials as gRPC statuses.

use std::time::Duration;

use bytes::Bytes;
use http::Response;
use http::header::CONTENT_TYPE;
use tollgate::{Decision, Error};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

use crate::{Head, Headers};

/// Whether a request is a gRPC call.
pub(crate) fn is_grpc(head: Head<'_>) -> bool {
    let content_type = head.headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    content_type.is_some_and(|value| value.starts_with(b"application/grpc"))
}

/// `RESOURCE_EXHAUSTED`, or `UNAVAILABLE` if the request was denied because the store failed. Has
/// `RetryInfo`, unless the request never fits.
pub(crate) fn denied(decision: &Decision, headers: &Headers) -> Response<Bytes> {
    let (code, message) = if decision.unavailable() {
        (Code::Unavailable, "the rate limiter cannot count at the moment")
    } else {
        (Code::ResourceExhausted, "rate limit exceeded")
    };
    let status = match decision.retry_after() {
        Some(wait) => Status::with_error_details(code, message, ErrorDetails::with_retry_info(Some(wait))),
        None => Status::new(code, message),
    };
    let mut response = status.into_http::<Bytes>();
    headers.write(decision, response.headers_mut());
    response
}

/// `RESOURCE_EXHAUSTED` with `RetryInfo`, for a request that was refused as overloaded.
pub(crate) fn overloaded(retry_after: Duration) -> Response<Bytes> {
    let details = ErrorDetails::with_retry_info(Some(retry_after));
    let message = Error::Overloaded { retry_after }.to_string();
    Status::with_error_details(Code::ResourceExhausted, message, details).into_http::<Bytes>()
}
