//! Slots: how many requests are under way at once.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::check::{Answer, Check, answer};
use super::document::{CheckErrors, CommonErrors};
use super::members::{texts, whole};
use super::problem::{ApiError, Json};
use super::reserve::{Renew, default_ttl, held, parse_ttl, renew_held};
use crate::app::App;
use crate::caller::Sender;
use crate::held::{HeldId, HeldKind};

/// A request for a slot.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Acquire {
    /// The attributes of the request, as in a check.
    #[serde(deserialize_with = "texts")]
    #[schema(schema_with = super::check::attributes)]
    attributes: BTreeMap<String, String>,
    /// The cost in units of the rates that cover the request. A slot is one, whatever the cost.
    #[serde(default = "super::check::one", deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 999_999_999_999_999_i64)]
    cost: u64,
    /// How long to hold the slot without a renewal, at most an hour: `30s` by default.
    #[serde(default = "default_ttl")]
    #[schema(
        example = "30s",
        pattern = "^([1-9][0-9]{0,5} ?ms|([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|3600) ?(s|seconds?)|([1-9]|[1-5][0-9])m([1-9]|[1-5][0-9])s|([1-9]|[1-5][0-9]|60) ?(m|min|minutes?)|1 ?(h|hour))$"
    )]
    ttl: String,
}

/// A slot.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Acquired {
    /// The id to renew and to release it with.
    id: String,
    #[serde(flatten)]
    answer: Answer,
}

/// Acquire a slot
///
/// Takes the cost, and one slot of each limit on concurrency (`5 concurrent`) that covers the
/// request, all or nothing. The slot is held until it is released, or for `ttl` after it was last
/// renewed. The retry time of a denial is the earliest expiry. A request that no such limit covers
/// holds nothing, and its id can be renewed and released all the same.
#[utoipa::path(
    post,
    path = "/v1/acquire",
    tag = "slots",
    request_body = Acquire,
    responses(
        (status = 200, description = "acquired", body = Acquired),
        CheckErrors<Answer>,
    )
)]
pub(super) async fn acquire(
    State(app): State<Arc<App>>,
    Extension(sender): Extension<Sender>,
    Json(Acquire { attributes, cost, ttl }): Json<Acquire>,
) -> Result<Response, ApiError> {
    let check = Check::new(attributes, cost);
    check.validated()?;
    let ttl = parse_ttl(&ttl)?;
    let request = check.request().caller(sender.caller);
    let slot = app.timed(app.limiter.acquire(&request, ttl)).await;
    drop(request);
    let slot = slot.map_err(|error| ApiError::of(&error))?;
    let decision = slot.decision().clone();
    if !decision.allowed() {
        return Ok(answer(&app, &decision, Answer::from(&decision)));
    }
    let id = HeldId::new(&app, HeldKind::Slot, slot.detach(), check.attributes).to_string();
    Ok(answer(&app, &decision, Acquired { id, answer: Answer::from(&decision) }))
}

/// Renew a slot
///
/// Holds it for `ttl` from now on. An expired slot cannot be renewed: another request may have it.
#[utoipa::path(
    post,
    path = "/v1/acquire/{id}/renew",
    operation_id = "renew_slot",
    tag = "slots",
    params(("id" = String, Path, description = "the id of the slot")),
    request_body = Renew,
    responses(
        (status = 204, description = "renewed"),
        CommonErrors,
    )
)]
pub(super) async fn renew(
    State(app): State<Arc<App>>,
    Extension(sender): Extension<Sender>,
    uri: Uri,
    Json(renew): Json<Renew>,
) -> Result<Response, ApiError> {
    renew_held(&app, &sender, (HeldKind::Slot, uri.path()), renew).await
}

/// Release a slot
#[utoipa::path(
    delete,
    path = "/v1/acquire/{id}",
    tag = "slots",
    params(("id" = String, Path, description = "the id of the slot")),
    responses(
        (status = 204, description = "released"),
        CommonErrors,
    )
)]
pub(super) async fn release(
    State(app): State<Arc<App>>,
    Extension(sender): Extension<Sender>,
    uri: Uri,
) -> Result<Response, ApiError> {
    let released = held(HeldKind::Slot, uri.path())?.release(&app, sender.caller).await;
    released.map_err(|error| ApiError::of(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}
