//! `GET /v1/blocks`: the blocked clients.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::Serialize;
use utoipa::ToSchema;

use super::document::AdminErrors;
use super::ok;
use super::problem::{ApiError, count};
use crate::app::{App, Listed};
use crate::moment::Moment;

/// The default number of blocks.
const USUAL: usize = 100;

/// The most blocks of a response.
const MOST: usize = 1_000;

/// The blocked clients.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Blocks {
    /// In no particular order.
    blocks: Vec<BlockAnswer>,
    /// Whether there may be more.
    more: bool,
    /// Whether every block could be listed. A block for which the list had no room holds, and is
    /// not listed.
    complete: bool,
}

/// A block.
#[derive(Debug, Serialize, ToSchema)]
struct BlockAnswer {
    client: String,
    /// The rule that blocks it.
    rule: String,
    /// In milliseconds since the Unix epoch.
    until: u64,
    /// The same moment for people.
    end: Moment,
}

/// The blocked clients
///
/// With Redis the clients that any server blocked, of whom the list has room for 100 000; otherwise
/// those that this server blocked since it started, up to 10 000.
#[utoipa::path(
    get,
    path = "/v1/blocks",
    tag = "administration",
    security(("admin" = [])),
    params(("count" = Option<u64>, Query, description = "the most blocks to return", minimum = 1, maximum = 1000)),
    responses(
        (status = 200, description = "the blocks", body = Blocks),
        AdminErrors,
    )
)]
pub(super) async fn blocks(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let most = count(&query.unwrap_or_default(), USUAL, MOST)?;
    let listed = app.blocks(most).await.map_err(|error| ApiError::for_administrator(&error))?;
    let Listed { now, blocks, complete } = listed;
    let more = blocks.len() >= most;
    let answer = |block: crate::app::Blocked| BlockAnswer {
        client: block.client,
        rule: block.rule,
        until: block.until.as_millis_ceil(),
        end: Moment::new(block.until, now),
    };
    Ok(ok(&Blocks { blocks: blocks.into_iter().map(answer).collect(), more, complete }))
}
