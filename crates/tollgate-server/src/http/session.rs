//! `POST /dashboard/session`: a one-time code for a session, which the dashboard's cookie names.
//!
//! The cookie is no authority to change anything. Another site's page cannot make a browser send it
//! (`SameSite=Strict`), and no script can read it (`HttpOnly`).

use std::sync::Arc;

use axum::extract::FromRequest as _;
use axum::extract::{Request, State};
use axum::http::header::{CACHE_CONTROL, COOKIE, HOST, SET_COOKIE};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use tollgate::Clock as _;
use tollgate_http::Head;

use super::problem::{ApiError, Json};
use crate::app::{App, SESSION_LIFETIME};

/// The one-time code.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Opening {
    code: String,
}

/// Spends the code and sets the cookie.
pub(super) async fn open(State(app): State<Arc<App>>, request: Request) -> Result<Response, ApiError> {
    let peer = Head::from(&request).peer();
    let name = cookie_name(request.headers());
    let Json(Opening { code }) = Json::from_request(request, &app).await?;
    let Some(session) = app.authentication.sessions.open(code.as_bytes(), app.clock.now()) else {
        app.wrong_token(peer, "http").await;
        let detail = "this address was used already or is older than ten minutes; enter the admin token, or \
                      restart the server for another";
        return Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "code", detail));
    };
    let secure = if app.snapshot().settings.tls.is_some() { "; Secure" } else { "" };
    let cookie = format!(
        "{name}={}; Path=/; Max-Age={}; HttpOnly; SameSite=Strict{secure}",
        session.reveal(),
        SESSION_LIFETIME.as_secs()
    );
    let fields = [(SET_COOKIE, cookie), (CACHE_CONTROL, "no-store".into())];
    Ok((StatusCode::NO_CONTENT, fields).into_response())
}

/// Whether a request shows an open session.
pub(super) fn is_shown(app: &App, headers: &HeaderMap) -> bool {
    let name = cookie_name(headers);
    let fields = headers.get_all(COOKIE).iter().filter_map(|field| field.to_str().ok());
    let mut cookies =
        fields.flat_map(|field| field.split(';')).filter_map(|pair| pair.trim().split_once('='));
    cookies.any(|(key, value)| {
        key == name && app.authentication.sessions.is_open(value.as_bytes(), app.clock.now())
    })
}

/// The name of the cookie. Browsers share the cookies of a host among its ports, so the name has
/// the port, and the sessions of two servers on one host do not replace each other.
fn cookie_name(headers: &HeaderMap) -> String {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()?.parse::<Authority>().ok());
    match host.and_then(|host| host.port_u16()) {
        Some(port) => format!("tollgate-session-{port}"),
        None => "tollgate-session".into(),
    }
}
