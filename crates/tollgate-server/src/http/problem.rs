//! API errors as problem bodies that name the field, and extractors that return them.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use axum::BoxError;
use axum::body::{Body, HttpBody as _};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::request::Parts;
use axum::http::{self, HeaderValue, Method, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use percent_encoding::percent_decode_str;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tollgate::{CLIENT, Error, MAX_VALUE_BYTES, SECOND};
use tollgate_http::{Problem, REDUCED_CAPACITY, seconds_to_wait};
use utoipa::ToSchema;

use crate::app::App;
use crate::buffers::{Held, PeerBuffers, TOO_MUCH};
use crate::value::value_of;

/// The largest body.
pub(super) const BODY_BYTES_MAX: usize = 1 << 20;

/// The bytes of a body that are not counted: nearly all bodies are smaller.
const UNCOUNTED_BYTES_MAX: usize = 16 << 10;

/// An API error: status, code, field at fault, and what to send instead.
#[derive(Debug)]
pub(super) struct ApiError {
    status: StatusCode,
    code: &'static str,
    field: Cow<'static, str>,
    detail: Cow<'static, str>,
    /// When to try again, if the request was refused as overloaded.
    retry_after: Option<Duration>,
}

/// Marks a response to a request that was refused as overloaded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Overloaded;

/// The members of a problem body beside the standard ones.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct About {
    /// A stable code for programs.
    code: &'static str,
    /// The field at fault.
    field: Cow<'static, str>,
}

impl ApiError {
    pub(super) fn new(
        status: StatusCode,
        code: &'static str,
        field: impl Into<Cow<'static, str>>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self { status, code, field: field.into(), detail: detail.into(), retry_after: None }
    }

    pub(super) fn bad(
        code: &'static str,
        field: impl Into<Cow<'static, str>>,
        detail: impl Into<Cow<'static, str>>,
    ) -> Self {
        Self::new(StatusCode::BAD_REQUEST, code, field, detail)
    }

    /// The error of a request for which there is no room.
    pub(super) fn too_much() -> Self {
        let status = StatusCode::SERVICE_UNAVAILABLE;
        let error = Error::Overloaded { retry_after: SECOND };
        Self { retry_after: Some(SECOND), ..Self::new(status, error.code(), "body", TOO_MUCH) }
    }

    /// Whether the request was refused as overloaded.
    pub(super) const fn is_overloaded(&self) -> bool {
        self.retry_after.is_some()
    }

    /// The API error of an error of the core, for an administrator: with the store's own sentence.
    pub(super) fn for_administrator(error: &Error) -> Self {
        match error {
            Error::StoreUnavailable { reason } => {
                Self { detail: format!("the store failed: {reason}").into(), ..Self::of(error) }
            }
            other => Self::of(other),
        }
    }

    /// The API error of an error of the core, for anybody.
    pub(super) fn of(error: &Error) -> Self {
        let (status, field) = match error {
            Error::InvalidKey { attribute, .. } if attribute == CLIENT => {
                (StatusCode::BAD_REQUEST, "client".into())
            }
            Error::InvalidKey { attribute, .. } => {
                (StatusCode::BAD_REQUEST, format!("attributes.{attribute}").into())
            }
            Error::InvalidCost { .. } => (StatusCode::BAD_REQUEST, "cost".into()),
            Error::InvalidLimit { .. } | Error::InvalidNotation { .. } | Error::InvalidRule { .. } => {
                (StatusCode::BAD_REQUEST, "limit".into())
            }
            Error::SlotNeeded { .. } => (StatusCode::BAD_REQUEST, "rule".into()),
            Error::UnknownRule { .. } => (StatusCode::NOT_FOUND, "rule".into()),
            Error::NotCovered => (StatusCode::NOT_FOUND, "client".into()),
            Error::NotReserved => (StatusCode::NOT_FOUND, "id".into()),
            Error::StoreFull => (StatusCode::INSUFFICIENT_STORAGE, Cow::Borrowed("client")),
            Error::InvalidConfig { .. } => (StatusCode::INSUFFICIENT_STORAGE, "limit".into()),
            Error::Unsupported { .. } => (StatusCode::NOT_IMPLEMENTED, "path".into()),
            _ => (StatusCode::SERVICE_UNAVAILABLE, "path".into()),
        };
        let detail = match error {
            Error::UnknownRule { rule } => {
                format!("there is no rule {rule:?}; GET /v1/rules lists the rules")
            }
            Error::SlotNeeded { rule } => format!(
                "rule {rule:?} limits how many requests are under way at once; POST /v1/acquire takes a slot"
            ),
            // What the store says may name hosts and users.
            Error::StoreUnavailable { .. } => "the store did not answer; the log has the reason".to_owned(),
            other => other.to_string(),
        };
        let retry_after = match error {
            Error::Overloaded { retry_after } => Some(*retry_after),
            _ => None,
        };
        Self { retry_after, ..Self::new(status, error.code(), field, detail) }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        self.into_bytes().map(Body::from)
    }
}

impl ApiError {
    /// The problem body.
    pub(super) fn into_problem(self) -> Problem<About> {
        let kind = if self.is_overloaded() { REDUCED_CAPACITY } else { "about:blank" };
        let Self { status, code, field, detail, .. } = self;
        Problem::new(status, kind, detail.into_owned(), About { code, field })
    }

    /// The error with another field.
    pub(super) fn at(self, field: impl Into<Cow<'static, str>>) -> Self {
        Self { field: field.into(), ..self }
    }

    /// Prefixes the field with the part of the request that it is in.
    pub(super) fn within(self, part: &str) -> Self {
        let field = if self.field == "body" { part.to_owned() } else { format!("{part}.{}", self.field) };
        Self { field: field.into(), ..self }
    }

    pub(super) fn into_bytes(self) -> http::Response<Bytes> {
        let status = self.status;
        let retry_after = self.retry_after;
        let mut response = self.into_problem().into_response();
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        if let Some(retry_after) = retry_after {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds_to_wait(retry_after)));
            response.extensions_mut().insert(Overloaded);
        }
        response
    }
}

pub(super) async fn unknown_path(uri: Uri) -> ApiError {
    let detail = format!("there is nothing at {}; /openapi.json lists all paths", uri.path());
    ApiError::new(StatusCode::NOT_FOUND, "not_found", "path", detail)
}

pub(super) async fn wrong_method(method: Method) -> ApiError {
    let detail = format!("{method} is not supported here; the Allow header lists the methods");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", "method", detail)
}

/// A JSON body.
pub(super) struct Json<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Json<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let JsonBytes { bytes, held: _held } = JsonBytes::from_request(request, app).await?;
        parse(&bytes).map(Self)
    }
}

/// The bytes of a JSON body, not parsed yet.
pub(super) struct JsonBytes {
    pub(super) bytes: Vec<u8>,
    /// Counts them as held for the peer.
    pub(super) held: Held,
}

impl FromRequest<Arc<App>> for JsonBytes {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let content_type = request.headers().get(CONTENT_TYPE).map(|value| value.as_bytes());
        if !content_type.is_some_and(is_json) {
            let detail = "the body is not declared as JSON; send `Content-Type: application/json`";
            let status = StatusCode::UNSUPPORTED_MEDIA_TYPE;
            return Err(ApiError::new(status, "unsupported_media_type", "content-type", detail));
        }
        let buffers = request.extensions().get::<PeerBuffers>();
        let held = buffers.expect("a connection adds its buffers to every request").hold();
        let body = request.into_body();
        if body.size_hint().lower() > BODY_BYTES_MAX as u64 {
            return Err(too_large());
        }
        let body = contents(Limited::new(body, BODY_BYTES_MAX), held);
        tokio::time::timeout(app.fixed().timeout, body).await.map_err(|_| {
            let detail = "the body did not arrive in time; send it at once";
            ApiError::new(StatusCode::REQUEST_TIMEOUT, "timeout", "body", detail)
        })?
    }
}

fn too_large() -> ApiError {
    let detail = format!("the body is larger than {BODY_BYTES_MAX} bytes; send less at a time");
    ApiError::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", "body", detail)
}

/// Whether a media type is `application/json`, with any parameters. A page of another site can send
/// any other type without a CORS preflight.
fn is_json(content_type: &[u8]) -> bool {
    let essence = content_type.split(|byte| *byte == b';').next().unwrap_or_default();
    essence.trim_ascii().eq_ignore_ascii_case(b"application/json")
}

/// The bytes of a body. Each chunk is copied and dropped as it arrives: a kept chunk of one byte
/// costs twenty-six.
async fn contents(mut body: Limited<Body>, mut held: Held) -> Result<JsonBytes, ApiError> {
    let mut bytes = Vec::new();
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame.map_err(unfinished)?.into_data() {
            bytes.extend_from_slice(&data);
            if !held.resize(bytes.capacity().saturating_sub(UNCOUNTED_BYTES_MAX)) {
                return Err(ApiError::too_much());
            }
        }
    }
    Ok(JsonBytes { bytes, held })
}

fn unfinished(error: BoxError) -> ApiError {
    match error.downcast_ref::<LengthLimitError>() {
        Some(_) => too_large(),
        None => ApiError::bad("invalid_body", "body", format!("the body ended early: {error}")),
    }
}

/// Parses JSON. An error names the field.
pub(super) fn parse<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, ApiError> {
    // Serde accepts an array of an object's members in place of the object.
    if bytes.trim_ascii_start().starts_with(b"[") {
        let detail = "the body is an array; send an object, which for a batch is {\"checks\": […]}";
        return Err(ApiError::bad("invalid_body", "body", detail));
    }
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let parsed = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { "body".into() } else { path };
        ApiError::bad("invalid_body", field, format!("invalid JSON for this field: {}", error.inner()))
    })?;
    let rest =
        |error| ApiError::bad("invalid_body", "body", format!("unexpected bytes after the JSON: {error}"));
    json.end().map_err(rest)?;
    Ok(parsed)
}

/// Names and values of a query.
pub(super) type Parameters<'a> = Vec<(Cow<'a, str>, Cow<'a, str>)>;

/// The parameters of a query. A duplicate is an error: a proxy may read the other one.
pub(super) fn parameters(query: &str) -> Result<Parameters<'_>, ApiError> {
    let mut all = Parameters::new();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        if all.iter().any(|(known, _)| *known == name) {
            return Err(duplicate(name.into_owned()));
        }
        all.push((name, value));
    }
    Ok(all)
}

/// The parameter `count`, or its default.
pub(super) fn count(query: &str, default: usize, max: usize) -> Result<usize, ApiError> {
    let parameters = parameters(query)?;
    let Some((_, count)) = parameters.iter().find(|(name, _)| name == "count") else { return Ok(default) };
    count.parse().ok().filter(|count| (1..=max).contains(count)).ok_or_else(|| {
        let detail = format!("the count is not a whole number from 1 to {max}");
        ApiError::bad("invalid_count", "count", detail)
    })
}

/// The error of a duplicate parameter.
pub(super) fn duplicate(name: String) -> ApiError {
    let detail = format!("the parameter {name:?} is given twice; send it once");
    ApiError::bad("ambiguous", name, detail)
}

/// The client in the path.
pub(super) struct Client(pub(super) String);

impl<S: Sync> FromRequestParts<S> for Client {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, ApiError> {
        let rest = parts.uri.path().strip_prefix("/v1/clients/").unwrap_or_default();
        client(rest.split('/').next().unwrap_or_default()).map(|client| Self(client.into_owned()))
    }
}

/// Decodes a client's name in a path.
pub(super) fn client(encoded: &str) -> Result<Cow<'_, str>, ApiError> {
    let bad = |detail| ApiError::bad("invalid_key", "client", detail);
    if encoded.is_empty() {
        return Err(bad("the client is missing; name one in the path"));
    }
    let two_digits =
        |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if !encoded.split('%').skip(1).all(two_digits) {
        return Err(bad("the client has a % without two hexadecimal digits after it; write % as %25"));
    }
    let client = percent_decode_str(encoded)
        .decode_utf8()
        .map_err(|_| bad("the client is not UTF-8 once it is percent-decoded; encode its UTF-8 bytes"))?;
    if client.len() > MAX_VALUE_BYTES {
        return Err(ApiError::of(&Error::InvalidKey { attribute: CLIENT.into(), length: client.len() }));
    }
    // A client with a zero byte maps to the same value as in other protocols.
    Ok(match client {
        Cow::Borrowed(client) => value_of(client.as_bytes()),
        Cow::Owned(client) => Cow::Owned(value_of(client.as_bytes()).into_owned()),
    })
}
