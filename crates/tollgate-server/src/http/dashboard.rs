//! `GET /`: the dashboard, a few static files in the binary.
//!
//! The pages hold no data and need no token. Their script reads the API with the token that its
//! user enters. The policy admits nothing from elsewhere, no inline script or style, and no frame.

use std::sync::Arc;

use axum::Router;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;

use crate::app::App;

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; \
                      img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The header fields of every file. `no-cache`: a browser asks again after an upgrade.
const HEADERS: [(HeaderName, HeaderValue); 5] = [
    (HeaderName::from_static("content-security-policy"), HeaderValue::from_static(POLICY)),
    (HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff")),
    (HeaderName::from_static("referrer-policy"), HeaderValue::from_static("no-referrer")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (CACHE_CONTROL, HeaderValue::from_static("no-cache")),
];

const HTML: &str = "text/html; charset=utf-8";
const STYLE: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const IMAGE: &str = "image/svg+xml";

/// Path, media type and content.
const FILES: [(&str, &str, &str); 10] = [
    ("/", HTML, include_str!("../dashboard/index.html")),
    ("/dashboard/style.css", STYLE, include_str!("../dashboard/style.css")),
    ("/dashboard/icon.svg", IMAGE, include_str!("../dashboard/icon.svg")),
    ("/dashboard/main.js", SCRIPT, include_str!("../dashboard/main.js")),
    ("/dashboard/api.js", SCRIPT, include_str!("../dashboard/api.js")),
    ("/dashboard/element.js", SCRIPT, include_str!("../dashboard/element.js")),
    ("/dashboard/overview.js", SCRIPT, include_str!("../dashboard/overview.js")),
    ("/dashboard/client.js", SCRIPT, include_str!("../dashboard/client.js")),
    ("/dashboard/explain.js", SCRIPT, include_str!("../dashboard/explain.js")),
    ("/dashboard/playground.js", SCRIPT, include_str!("../dashboard/playground.js")),
];

/// The paths of the dashboard.
pub(super) fn router() -> Router<Arc<App>> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, content)| {
        router.route(path, get(move || async move { file(kind, content) }))
    })
}

fn file(kind: &'static str, content: &'static str) -> Response {
    let mut response = content.into_response();
    let headers = response.headers_mut();
    headers.extend(HEADERS);
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}
