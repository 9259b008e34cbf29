//! The guards of administration: reading and changing.
//!
//! Changing always takes the admin token, in a header that no page of another site can set. Reading
//! takes the token too, or a session of the dashboard. No header field and no peer address opens
//! anything: behind a proxy on this host every peer is on this host.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::Response;
use tollgate_http::Head;

use super::problem::ApiError;
use super::session;
use crate::app::App;

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
    let detail = "this needs `Authorization: Bearer <admin token>`; if none is configured, the log names the file \
                  with the generated one";
    Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "authorization", detail))
}

/// Admits requests with the admin token, and those of a session. A token that is shown decides.
pub(super) async fn reading(
    State(app): State<Arc<App>>,
    request: Request,
    next: Next,
) -> Result<Response, ApiError> {
    let headers = request.headers();
    if !headers.contains_key(AUTHORIZATION) && session::is_shown(&app, headers) {
        return Ok(next.run(request).await);
    }
    changing(State(app), request, next).await
}
