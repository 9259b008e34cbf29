//! Records: costs that are known only afterwards.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Answer, Check};
use super::document::FullErrors;
use super::members::{texts, whole};
use super::ok;
use super::problem::{ApiError, Json};
use crate::app::App;
use crate::caller::Sender;

/// A cost that was used.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// The attributes of the request, as in a check.
    #[serde(deserialize_with = "texts")]
    #[schema(schema_with = super::check::attributes)]
    attributes: BTreeMap<String, String>,
    /// The cost in units.
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 999_999_999_999_999_i64)]
    cost: u64,
}

/// The numbers after a record: those of a check of cost 0, which is denied while units are owed.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Recorded {
    /// The units that were not recorded, because they exceed the debt of a limit.
    shortfall: u64,
    #[serde(flatten)]
    answer: Answer,
}

/// Record a cost that was used
///
/// No limit denies it. Units beyond a limit are owed, up to its debt, and nothing is admitted until
/// they are paid off at the limit's own rate.
#[utoipa::path(
    post,
    path = "/v1/record",
    tag = "checks",
    request_body = Record,
    responses(
        (status = 200, description = "recorded", body = Recorded),
        FullErrors,
    )
)]
pub(super) async fn record(
    State(app): State<Arc<App>>,
    Extension(sender): Extension<Sender>,
    Json(Record { attributes, cost }): Json<Record>,
) -> Result<Response, ApiError> {
    let check = Check::new(attributes, cost);
    check.validated()?;
    let request = check.request().caller(sender.caller);
    let recorded = app.timed(app.limiter.record(&request)).await;
    let recorded = recorded.map_err(|error| ApiError::of(&error))?;
    Ok(ok(&Recorded { shortfall: recorded.shortfall(), answer: Answer::from(recorded.decision()) }))
}
