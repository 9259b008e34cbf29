//! `POST /v1/backup`: a dump of the running server's state, for `tollgate restore`.
//!
//! Requests go on meanwhile. A client's numbers are those of the moment at which its shard is
//! written. A backup that ends early lacks its last line, and `tollgate restore` refuses it.

use std::io::{self, BufWriter, Write};
use std::sync::Arc;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse as _, Response};
use futures_util::stream::poll_fn;
use tokio::sync::mpsc::{Sender, channel};
use tokio::task::spawn_blocking;
use tracing::{info, warn};

use super::document::AdminErrors;
use super::problem::ApiError;
use crate::app::App;
use crate::connection::Answering;

/// The largest chunk of a body.
const CHUNK_BYTES_MAX: usize = 64 << 10;

/// The chunks that wait for a slow reader.
const CHUNKS_MAX: usize = 4;

/// Back up the state
///
/// The state of every key as lines of JSON, the input of `tollgate restore`. Keep it as secret as
/// the clients' names: a reader can test whether a given name is in it.
#[utoipa::path(
    post,
    path = "/v1/backup",
    tag = "administration",
    security(("admin" = [])),
    responses(
        (status = 200, description = "the dump; its last line has the number of keys", body = String, content_type = "application/jsonl"),
        (status = 501, description = "Redis has the state: back up Redis"),
        AdminErrors,
    )
)]
pub(super) async fn backup(
    State(app): State<Arc<App>>,
    Extension(answering): Extension<Answering>,
) -> Result<Response, ApiError> {
    if app.limiter.store().memory().is_none() {
        let detail = "Redis has the state; back up Redis itself, with BGSAVE or from a replica";
        return Err(ApiError::new(StatusCode::NOT_IMPLEMENTED, "unsupported", "path", detail));
    }
    let (sender, mut chunks) = channel(CHUNKS_MAX);
    spawn_blocking(move || {
        let out = BufWriter::with_capacity(CHUNK_BYTES_MAX, Chunks(sender));
        match app.limiter.store().memory().map(|memory| memory.dump(out)) {
            Some(Ok(keys)) => info!(keys, "a backup was sent"),
            Some(Err(error)) => warn!(%error, "a backup ended early; ask for it again"),
            None => {}
        }
    });
    let busy = answering.busy();
    let body = Body::from_stream(poll_fn(move |context| {
        let _ = &busy;
        answering.count();
        chunks.poll_recv(context).map(|chunk| chunk.map(Ok::<Bytes, io::Error>))
    }));
    Ok(([(CONTENT_TYPE, "application/jsonl")], body).into_response())
}

/// A body that is written. A write waits while [`CHUNKS_MAX`] chunks wait for the reader.
struct Chunks(Sender<Bytes>);

impl Write for Chunks {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let chunk = bytes.chunks(CHUNK_BYTES_MAX).next().unwrap_or_default();
        let sent = self.0.blocking_send(Bytes::copy_from_slice(chunk));
        sent.map(|()| chunk.len()).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
