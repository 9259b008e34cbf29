//! The guards of administration: reading and changing.
//!
//! Changing always takes the admin token, in a header that no page of another site can set. Reading
//! takes it too, unless `loopback_reads` lets peers on this host read without it. Behind a proxy
//! every peer is on this host, and a page can resolve its own name to a loopback address; so such a
//! request must neither be forwarded nor be for any other host than this one.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, FORWARDED, HOST, VIA};
use axum::http::{HeaderMap, HeaderName, StatusCode};
use axum::middleware::Next;
use axum::response::Response;
use tollgate_http::Head;

use super::problem::ApiError;
use crate::app::App;

/// The fields that proxies add.
const FORWARDING: [HeaderName; 4] =
    [FORWARDED, VIA, HeaderName::from_static("x-forwarded-for"), HeaderName::from_static("x-real-ip")];

/// Admits requests with the admin token.
pub(super) async fn changing(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let shown = request.headers().get(AUTHORIZATION);
    let token = shown.and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
    });
    if token.is_some_and(|token| app.is_admin_token(token)) {
        return Ok(next.run(request).await);
    }
    if shown.is_some() {
        app.wrong_token(Head::from(&request).peer(), "http").await;
    }
    let detail = "this needs `Authorization: Bearer <admin token>`; if none is configured, the log has the generated one";
    Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "authorization", detail))
}

/// Admits requests with the admin token and, if so configured, those of peers on this host.
pub(super) async fn reading(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let head = Head::from(&request);
    let is_trusted = app.snapshot().settings.loopback_reads
        && !request.headers().contains_key(AUTHORIZATION)
        && is_on_this_host(head.peer(), request.headers());
    if is_trusted { Ok(next.run(request).await) } else { changing(State(app), request, next).await }
}

/// Whether a request comes from this host, directly and for this host.
fn is_on_this_host(peer: Option<IpAddr>, headers: &HeaderMap) -> bool {
    let is_forwarded = FORWARDING.iter().any(|name| headers.contains_key(name));
    let host = headers.get(HOST).and_then(|host| host.to_str().ok());
    peer.is_some_and(|peer| peer.to_canonical().is_loopback())
        && !is_forwarded
        && host.is_some_and(is_loopback)
}

/// Whether a `Host` field names this host, with or without a port.
fn is_loopback(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_direct_request_from_and_for_this_host_is_on_it() {
        let on_this_host = |peer: &str, fields: &[(&'static str, &'static str)]| {
            let fields = fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            is_on_this_host(peer.parse().ok(), &fields.collect())
        };
        for host in ["localhost", "LocalHost:8080", "127.0.0.1:8080", "127.9.9.9", "[::1]:8080", "[::1]"] {
            assert!(on_this_host("127.0.0.1", &[("host", host)]), "{host}");
            assert!(on_this_host("::ffff:127.0.0.1", &[("host", host)]), "{host}");
            assert!(!on_this_host("192.0.2.1", &[("host", host)]), "{host}");
            assert!(
                !on_this_host("127.0.0.1", &[("host", host), ("x-forwarded-for", "192.0.2.1")]),
                "{host}"
            );
            assert!(!on_this_host("127.0.0.1", &[("host", host), ("via", "1.1 proxy")]), "{host}");
        }
        for host in ["evil.example", "localhost.evil.example:8080", "192.0.2.1", "127.0.0.1.evil.example", ""]
        {
            assert!(!on_this_host("127.0.0.1", &[("host", host)]), "a name of another site: {host}");
        }
        assert!(!on_this_host("127.0.0.1", &[]));
    }
}
