//! Who is kept out, for administrators.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::document::AdminErrors;
use super::ok;
use super::problem::{ApiError, count};
use crate::app::App;

/// How many blocks are told of unless more or fewer are asked for.
const USUAL: usize = 100;

/// The most that are told of.
const MOST: usize = 1_000;

/// Who is kept out.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Blocks {
    /// In no particular order.
    blocks: Vec<BlockAnswer>,
    /// Whether there may be more than were asked for.
    more: bool,
}

/// A block.
#[derive(Debug, Serialize, ToSchema)]
struct BlockAnswer {
    client: String,
    /// The rule under which it is kept out.
    rule: String,
    /// In milliseconds since the Unix epoch.
    until: u64,
}

/// Who is kept out
///
/// With Redis the clients that any server has blocked, and every key is looked at to find them; otherwise
/// those that were blocked since this server started.
#[utoipa::path(
    get,
    path = "/v1/blocks",
    tag = "administration",
    security(("admin" = [])),
    params(("count" = Option<u64>, Query, description = "how many at most", minimum = 1, maximum = 1000)),
    responses(
        (status = 200, description = "those", body = Blocks),
        AdminErrors,
    )
)]
pub(super) async fn blocks(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let most = count(&query.unwrap_or_default(), USUAL, MOST)?;
    let blocks = app.blocks(most).await.map_err(|error| ApiError::of(&error))?;
    let more = blocks.len() >= most;
    let answer = |block: crate::app::Blocked| BlockAnswer {
        client: block.client,
        rule: block.rule,
        until: block.until.as_millis_ceil(),
    };
    Ok(ok(&Blocks { blocks: blocks.into_iter().map(answer).collect(), more }))
}
