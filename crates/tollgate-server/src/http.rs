//! HTTP: paths and JSON into requests, decisions into JSON.

use std::future::ready;
use std::sync::Arc;

use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{any, get, post};
use axum::{Router, middleware};
use serde::Serialize;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;

mod access;
mod acquire;
mod admin;
mod auth;
mod backup;
mod blocks;
mod check;
mod client;
mod connection;
mod cross_site;
mod dashboard;
mod document;
mod explain;
mod host;
mod live;
mod members;
mod monitor;
mod playground;
mod problem;
mod record;
mod reserve;
mod rules;
mod session;

pub(crate) use connection::Http;

/// The router of all paths.
fn router(app: Arc<App>) -> Router {
    let reading = OpenApiRouter::new()
        .routes(routes!(client::show))
        .routes(routes!(blocks::blocks))
        .routes(routes!(explain::explain))
        .routes(routes!(live::live))
        .routes(routes!(monitor::stats))
        .routes(routes!(monitor::top))
        .routes(routes!(playground::playground))
        .routes(routes!(rules::rules))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), access::reading));
    let changing = OpenApiRouter::new()
        .routes(routes!(admin::reset))
        .routes(routes!(admin::block, admin::unblock))
        .routes(routes!(admin::set_limit, admin::clear_limits))
        .routes(routes!(admin::penalise))
        .routes(routes!(admin::refund))
        .routes(routes!(backup::backup))
        .routes(routes!(rules::clear))
        .route_layer(middleware::from_fn_with_state(Arc::clone(&app), access::changing));
    let (router, document) = OpenApiRouter::with_openapi(document::about())
        .routes(routes!(check::by_path))
        .route("/check/", get(check::by_path))
        .route("/dashboard/session", post(session::open))
        .routes(routes!(check::by_attributes))
        .routes(routes!(check::batch))
        .routes(routes!(record::record))
        .routes(routes!(acquire::acquire))
        .routes(routes!(acquire::release))
        .routes(routes!(acquire::renew))
        .routes(routes!(reserve::reserve))
        .routes(routes!(reserve::cancel))
        .routes(routes!(reserve::settle))
        .routes(routes!(reserve::renew))
        .merge(reading)
        .merge(changing)
        .route_layer(middleware::from_fn(cross_site::guard))
        .routes(routes!(auth::told_by_headers))
        .routes(routes!(monitor::healthz))
        .routes(routes!(monitor::readyz))
        .routes(routes!(monitor::metrics))
        .split_for_parts();
    let document = Arc::new(document::finished(document));
    let document = move || ready(ok(&*document));
    router
        .route("/auth/", any(auth::told_by_path))
        .route("/auth/{*path}", any(auth::told_by_path))
        .route("/openapi.json", get(document))
        .merge(dashboard::router())
        .fallback(problem::unknown_path)
        .method_not_allowed_fallback(problem::wrong_method)
        .with_state(app)
}

/// A 200 response with a JSON body.
fn ok(body: &impl Serialize) -> Response {
    // Does not fail: no body here has a map with keys that are not strings.
    let body = serde_json::to_vec(body).unwrap_or_default();
    ([(CONTENT_TYPE, "application/json")], body).into_response()
}
