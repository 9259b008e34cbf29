//! `GET /v1/live`: snapshots of the server as server-sent events.

use std::convert::Infallible;
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderValue;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::unfold;
use tokio::sync::watch;

use super::document::AdminErrors;
use crate::app::App;
use crate::connection::Answering;
use crate::live::Snapshot;

/// Watch the server
///
/// A snapshot of the server each second, as server-sent events called `snapshot` whose data is a
/// `Snapshot` as JSON. The stream ends when the server stops.
#[utoipa::path(
    get,
    path = "/v1/live",
    tag = "administration",
    security(("admin" = [])),
    responses(
        (status = 200, description = "snapshots, without end", body = Snapshot, content_type = "text/event-stream"),
        AdminErrors,
    )
)]
pub(super) async fn live(
    State(app): State<Arc<App>>,
    Extension(answering): Extension<Answering>,
) -> Response {
    let events = unfold((app.watch(), answering), |(mut events, answering)| async move {
        let event = next(&mut events).await.filter(|_| !answering.is_stopping())?;
        answering.count();
        Some((Ok::<Bytes, Infallible>(event), (events, answering)))
    });
    let mut response = Body::from_stream(events).into_response();
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// The next event. A viewer that is slow misses snapshots, and none is kept for it.
async fn next(events: &mut watch::Receiver<Bytes>) -> Option<Bytes> {
    loop {
        events.changed().await.ok()?;
        let event = events.borrow_and_update().clone();
        if !event.is_empty() {
            return Some(event);
        }
    }
}
