//! Rejects cross-site requests of browsers wherever they can change state.
//!
//! A page can make its visitor's browser send requests to servers that only the visitor can reach,
//! and needs no response to exhaust a budget. Browsers mark such requests: in `Sec-Fetch-Site`,
//! which no page can set, and, if they are older, in `Origin`. Other clients send neither.
//!
//! `/auth` is exempt. Proxies forward the header fields of the original request there, and a
//! cross-site request to the site behind the proxy is that site's concern.

use axum::extract::Request;
use axum::http::header::{HOST, HeaderName, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use axum::middleware::Next;
use axum::response::Response;

use super::problem::ApiError;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Admits requests that are not cross-site.
pub(super) async fn guard(request: Request, next: Next) -> Result<Response, ApiError> {
    let Some(field) = cross_site_field(request.headers()) else { return Ok(next.run(request).await) };
    let detail = format!(
        "{field} marks a request of another site's page; send it from a server, or from the same origin"
    );
    Err(ApiError::new(StatusCode::FORBIDDEN, "cross_site", field.as_str().to_owned(), detail))
}

/// Whether a browser sent an origin.
pub(super) fn is_from_browser(headers: &HeaderMap) -> bool {
    headers.contains_key(SEC_FETCH_SITE) || headers.contains_key(ORIGIN)
}

/// The field that marks a request as cross-site. `Sec-Fetch-Site` takes precedence: behind a proxy
/// `Host` may be another name of the same origin.
fn cross_site_field(headers: &HeaderMap) -> Option<HeaderName> {
    if headers.contains_key(SEC_FETCH_SITE) {
        let mut sites = headers.get_all(SEC_FETCH_SITE).iter().map(|site| site.as_bytes());
        return (!sites.all(|site| matches!(site, b"same-origin" | b"none"))).then_some(SEC_FETCH_SITE);
    }
    let host = headers.get(HOST).map(|host| host.as_bytes());
    let is_here = |origin: &[u8]| {
        // `null`, the origin of sandboxed pages, has no authority.
        let authority = origin.windows(3).position(|part| part == b"://").and_then(|at| origin.get(at + 3..));
        authority.zip(host).is_some_and(|(authority, host)| authority.eq_ignore_ascii_case(host))
    };
    let mut origins = headers.get_all(ORIGIN).iter().map(|origin| origin.as_bytes());
    (!origins.all(is_here)).then_some(ORIGIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_requests_that_a_browser_marks_are_cross_site() {
        let marked = |fields: &[(&'static str, &'static str)]| {
            let fields = fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            cross_site_field(&fields.collect()).is_some()
        };
        let host = ("host", "gate.example:8080");
        for fields in [
            &[host][..],
            &[host, ("sec-fetch-site", "same-origin")],
            &[host, ("sec-fetch-site", "none")],
            &[host, ("origin", "http://gate.example:8080")],
            &[host, ("origin", "https://GATE.example:8080")],
            &[host, ("sec-fetch-site", "same-origin"), ("origin", "https://front.example")],
        ] {
            assert!(!marked(fields), "{fields:?}");
        }
        for fields in [
            &[host, ("sec-fetch-site", "cross-site")][..],
            &[host, ("sec-fetch-site", "same-site")],
            &[host, ("sec-fetch-site", "unheard-of")],
            &[host, ("sec-fetch-site", "cross-site"), ("origin", "http://gate.example:8080")],
            &[host, ("origin", "http://evil.example")],
            &[host, ("origin", "http://gate.example")],
            &[host, ("origin", "http://gate.example:8080.evil.example")],
            &[host, ("origin", "null")],
            &[host, ("origin", "")],
            &[("origin", "http://gate.example:8080")],
        ] {
            assert!(marked(fields), "{fields:?}");
        }
    }
}
