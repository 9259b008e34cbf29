//! The gate for proxies: they ask before they let a request through, and pass on a denial.
//!
//! A proxy asks with a request of its own, in which it tells of the one it was sent. Each kind has
//! its way of telling, and a client can write the headers of the others: so which way counts is
//! decided once per request, and one that speaks two ways at a time is refused.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::body::Body;
use axum::extract::State;
use axum::http::header::HOST;
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{self, HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri};
use axum::response::Response;
use bytes::Bytes;
use percent_encoding::{AsciiSet, CONTROLS, percent_encode};
use tollgate_http::{Asked, Head, Numbers, UNIDENTIFIED, denied, denied_as};

use super::check::decision_response;
use super::document::AuthErrors;
use super::problem::{ApiError, parameters};
use crate::app::App;

/// Where Envoy puts the path it was asked for: behind this.
const PREFIX: &str = "/auth";

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");

/// What proxies let through in a path and a URI does not have.
const NOT_IN_A_URI: AsciiSet = CONTROLS.add(b' ').add(b'<').add(b'>').add(b'`');

/// May the request go ahead that a proxy was sent?
///
/// The attributes are `client` (whoever the connection is from, or whom a trusted proxy asks for),
/// `method`, `host`, `path` without the query, and `header:NAME` where rules ask for it. Method, path
/// and host are told by `X-Forwarded-Method`, `-Uri` and `-Host` (Traefik, Caddy) or by
/// `X-Original-Method`, `X-Original-URI` and `Host` (nginx); both at once, or one of them twice, is a
/// mistake. With none of them it is this request that is asked about, as if it were for `/`: no rule
/// by path is left out for lack of one. Envoy asks with any method at `/auth` and the path in
/// question behind it, whose query is not read.
#[utoipa::path(
    method(get, post),
    path = "/auth",
    tag = "checks",
    params(
        ("deny_status" = Option<u16>, Query, description = "what to answer instead of 429, for proxies that know only some", minimum = 400, maximum = 599),
    ),
    responses(
        (status = 200, description = "yes", body = Numbers),
        AuthErrors,
    )
)]
pub(super) async fn told_by_headers(
    State(app): State<Arc<App>>,
    request: http::Request<Body>,
) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let deny_status = deny_status(parts.uri.query().unwrap_or_default())?;
    let Original { method, target, host } = Original::of(&parts.headers)?;
    parts.uri = target.unwrap_or_default();
    if let Some(method) = method {
        parts.method = method;
    }
    if let Some(host) = host {
        parts.headers.insert(HOST, host);
    }
    Ok(decide(&app, &parts, deny_status).await.map(Body::from))
}

/// The same, told by the path.
pub(super) async fn told_by_path(
    State(app): State<Arc<App>>,
    request: http::Request<Body>,
) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    let path = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    parts.uri = PathAndQuery::try_from(path)
        .map(Uri::from)
        .map_err(|error| ApiError::bad("invalid_uri", "path", format!("{path:?} is no path: {error}")))?;
    Ok(decide(&app, &parts, None).await.map(Body::from))
}

/// Decides on a request as the proxy was sent it.
async fn decide(app: &App, parts: &Parts, deny_status: Option<StatusCode>) -> http::Response<Bytes> {
    let Parts { method, uri, headers, extensions, .. } = parts;
    let head = Head { method, uri, headers, extensions };
    let client = app.settings().identity.identify(head).unwrap_or_else(|| {
        app.metrics.unidentified.fetch_add(1, Ordering::Relaxed);
        Cow::Borrowed(UNIDENTIFIED)
    });
    let asked = app.limiter.with_rules(|rules| Asked::new(head, client, rules));
    let decision = app.check(&asked).await;
    // That the store failed is not the client's fault, and no proxy is to say so.
    decision_response(app, decision, |decision, headers| match deny_status {
        Some(status) if !decision.unavailable() => denied_as(status, decision, headers),
        _ => denied(decision, headers),
    })
}

/// What headers tell of the request that a proxy was sent.
#[derive(Default)]
struct Original {
    method: Option<Method>,
    target: Option<Uri>,
    host: Option<HeaderValue>,
}

impl Original {
    fn of(headers: &HeaderMap) -> Result<Self, ApiError> {
        let find = |names: [HeaderName; 2]| names.into_iter().find(|name| headers.contains_key(name));
        let forwarded = find([X_FORWARDED_METHOD, X_FORWARDED_URI]);
        let original = find([X_ORIGINAL_METHOD, X_ORIGINAL_URI]);
        let (method, target, host) = match (forwarded, original) {
            (None, None) => return Ok(Self::default()),
            (Some(forwarded), Some(original)) => return Err(two_ways(&forwarded, &original)),
            (Some(_), None) => (X_FORWARDED_METHOD, X_FORWARDED_URI, only(headers, &X_FORWARDED_HOST)?),
            (None, Some(_)) => (X_ORIGINAL_METHOD, X_ORIGINAL_URI, None),
        };
        let (method, target) = (read(headers, &method, method_of)?, read(headers, &target, target_of)?);
        Ok(Self { method, target, host: host.cloned() })
    }
}

fn two_ways(one: &HeaderName, other: &HeaderName) -> ApiError {
    let detail = format!(
        "it has {one} and {other}, and a client can add what its proxy does not write; let the proxy remove the other kind"
    );
    ApiError::bad("ambiguous", one.to_string(), detail)
}

/// What a header says, if it is there.
fn read<T>(
    headers: &HeaderMap,
    name: &HeaderName,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let Some(value) = only(headers, name)? else { return Ok(None) };
    let nonsense =
        || ApiError::bad("invalid_header", name.to_string(), format!("{value:?} makes no sense here"));
    parse(value.as_bytes()).map(Some).ok_or_else(nonsense)
}

/// The one value of a header.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => {
            let detail = "it is there twice, and a client can add one; let the proxy replace it";
            Err(ApiError::bad("ambiguous", name.to_string(), detail))
        }
    }
}

fn method_of(value: &[u8]) -> Option<Method> {
    Method::from_bytes(value).ok()
}

fn target_of(value: &[u8]) -> Option<Uri> {
    Cow::from(percent_encode(value, &NOT_IN_A_URI)).parse().ok()
}

fn deny_status(query: &str) -> Result<Option<StatusCode>, ApiError> {
    let parameters = parameters(query)?;
    let Some((_, status)) = parameters.iter().find(|(name, _)| name == "deny_status") else {
        return Ok(None);
    };
    let digits = status.bytes().all(|byte| byte.is_ascii_digit());
    match status.parse().ok().filter(|status| digits && (400..=599).contains(status)) {
        Some(status) => Ok(StatusCode::from_u16(status).ok()),
        None => Err(ApiError::bad("invalid_status", "deny_status", "it is not a status from 400 to 599")),
    }
}
