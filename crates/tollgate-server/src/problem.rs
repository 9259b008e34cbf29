//! Problem bodies (RFC 9457): what went wrong, in a form that programs can read.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

/// A problem body, with further members of type `M` beside the standard ones.
#[derive(Debug, Serialize)]
pub(crate) struct Problem<M> {
    #[serde(rename = "type")]
    kind: &'static str,
    title: &'static str,
    status: u16,
    detail: String,
    #[serde(flatten)]
    members: M,
}

/// What a request's mistake is about.
#[derive(Debug, Serialize)]
pub(crate) struct Mistake {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    field: Option<&'static str>,
}

impl<M: Serialize> Problem<M> {
    pub(crate) fn new(status: StatusCode, kind: &'static str, detail: String, members: M) -> Self {
        Self {
            kind,
            title: status.canonical_reason().unwrap_or("Problem"),
            status: status.as_u16(),
            detail,
            members,
        }
    }
}

impl Problem<Mistake> {
    /// The request was wrong: how, in which field, and what to send instead.
    pub(crate) fn mistake(
        status: StatusCode,
        code: &'static str,
        field: Option<&'static str>,
        detail: impl Into<String>,
    ) -> Self {
        Self::new(status, "about:blank", detail.into(), Mistake { code, field })
    }
}

impl<M: Serialize> IntoResponse for Problem<M> {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        json(status, "application/problem+json", &self)
    }
}

/// A response with a JSON body.
pub(crate) fn json(status: StatusCode, content_type: &'static str, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(bytes) => (status, [(header::CONTENT_TYPE, content_type)], Body::from(bytes)).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}
