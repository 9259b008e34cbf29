//! `/auth`, for proxies that ask before they forward a request and pass on a denial.
//!
//! A proxy describes the original request in its own request. Each kind of proxy uses other
//! headers, and a client can forge the headers of the other kinds. So one kind is chosen per
//! request, and a request with two kinds is rejected.

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
use tollgate_http::{Head, Numbers, PeerAddr, UNIDENTIFIED, denied, denied_as};
use tracing::warn;

use super::check::decision_response;
use super::document::AuthErrors;
use super::problem::{ApiError, parameters};
use crate::app::App;
use crate::caller::Sender;

/// The prefix of the path in Envoy's requests.
const PREFIX: &str = "/auth";

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_ORIGINAL_METHOD: HeaderName = HeaderName::from_static("x-original-method");
const X_ORIGINAL_URI: HeaderName = HeaderName::from_static("x-original-uri");

/// The bytes that proxies allow in a path but a URI does not.
const NOT_IN_A_URI: AsciiSet = CONTROLS.add(b' ').add(b'<').add(b'>').add(b'`');

/// Check the request that a proxy received
///
/// The attributes are `client` (the peer, or the client that a trusted proxy names), `method`,
/// `host`, `path` (normalised, without the query), and `header:NAME` (values of one that occurs
/// twice are joined) where rules use it. `X-Forwarded-Method`, `-Uri` and `-Host` (Traefik, Caddy)
/// or `X-Original-Method`, `X-Original-URI` and `Host` (nginx) describe the request; both kinds at
/// once, or one header twice, is an error. Without them the request itself is checked with the path
/// `/`, so that no rule by path is skipped. Envoy sends any method to `/auth` followed by the
/// original path, whose query is ignored.
#[utoipa::path(
    method(get, post),
    path = "/auth",
    tag = "checks",
    params(
        ("deny_status" = Option<u16>, Query, description = "status to use instead of 429, for proxies that support only some", minimum = 400, maximum = 599),
    ),
    responses(
        (status = 200, description = "allowed", body = Numbers),
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
    if target.is_some() || method.is_some() {
        warn_of_untrusted_proxy(&app, &parts);
    }
    parts.uri = target.unwrap_or_default();
    if let Some(method) = method {
        parts.method = method;
    }
    if let Some(host) = host {
        parts.headers.insert(HOST, host);
    }
    Ok(decide(&app, &parts, deny_status).await.map(Body::from))
}

/// Checks the request whose path follows `/auth`, as Envoy sends it.
pub(super) async fn told_by_path(
    State(app): State<Arc<App>>,
    request: http::Request<Body>,
) -> Result<Response, ApiError> {
    let (mut parts, _) = request.into_parts();
    warn_of_untrusted_proxy(&app, &parts);
    let path = parts.uri.path().strip_prefix(PREFIX).unwrap_or_default();
    parts.uri = PathAndQuery::try_from(path)
        .map(Uri::from)
        .map_err(|error| ApiError::bad("invalid_uri", "path", format!("{path:?} is not a path: {error}")))?;
    Ok(decide(&app, &parts, None).await.map(Body::from))
}

/// Warns once of a proxy that is not trusted: all its clients share the budget of its address.
fn warn_of_untrusted_proxy(app: &App, parts: &Parts) {
    let peer = parts.extensions.get::<PeerAddr>().map(|peer| peer.0.ip().to_canonical());
    if let Some(peer) = peer.filter(|peer| app.snapshot().settings.identity.bounded_peer(*peer).is_some()) {
        app.untrusted_proxy.call_once(|| {
            warn!(
                peer = app.logged(&peer.to_string()),
                "a proxy that is not trusted asks /auth, so all its clients share one budget; list it in \
                 `trusted_proxies` under [server], or set TOLLGATE_SERVER_TRUSTED_PROXIES"
            );
        });
    }
}

/// Decides the request that the proxy received.
async fn decide(app: &App, parts: &Parts, deny_status: Option<StatusCode>) -> http::Response<Bytes> {
    let Parts { method, uri, headers, extensions, .. } = parts;
    let head = Head { method, uri, headers, extensions };
    let client = app.snapshot().settings.identity.identify(head).unwrap_or_else(|| {
        app.metrics.unidentified.fetch_add(1, Ordering::Relaxed);
        Cow::Borrowed(UNIDENTIFIED)
    });
    let request = app.limiter.with_rules(|rules| head.request(client, rules));
    let sender = extensions.get::<Sender>().expect("a connection adds its sender to every request");
    let request = request.caller(sender.caller);
    let decision = app.check(&request).await;
    // A failure of the store is not the client's fault, so its status stays 503.
    decision_response(app, decision, |decision, headers| match deny_status {
        Some(status) if !decision.unavailable() => denied_as(status, decision, headers),
        _ => denied(decision, headers),
    })
}

/// The original request, as far as headers describe it.
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
        "{one} and {other} are both present, and a client can forge those its proxy does not set; have the proxy remove the other kind"
    );
    ApiError::bad("ambiguous", one.to_string(), detail)
}

/// Parses a header, if it is present.
fn read<T>(
    headers: &HeaderMap,
    name: &HeaderName,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<Option<T>, ApiError> {
    let Some(value) = only(headers, name)? else { return Ok(None) };
    let invalid = || ApiError::bad("invalid_header", name.to_string(), format!("{value:?} is invalid here"));
    parse(value.as_bytes()).map(Some).ok_or_else(invalid)
}

/// The value of a header that may occur once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let first = values.next();
    match values.next() {
        None => Ok(first),
        Some(_) => {
            let detail = "the header is present twice, and a client can add one; have the proxy replace it";
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
        None => {
            Err(ApiError::bad("invalid_status", "deny_status", "the status is not a number from 400 to 599"))
        }
    }
}
