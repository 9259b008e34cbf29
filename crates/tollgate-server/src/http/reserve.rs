//! Reservations: an estimated cost now, the actual cost later.
//!
//! The store keeps the hold. The id that a client receives is a [`HeldId`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use tollgate::{OnExpiry, parse_duration};
use utoipa::ToSchema;

use super::check::{Answer, Check, answer};
use super::document::{CheckErrors, CommonErrors};
use super::members::{texts, whole};
use super::ok;
use super::problem::{ApiError, Json};
use crate::app::App;
use crate::caller::Sender;
use crate::held::{HeldId, HeldKind, TTL_MAX};

/// A request for a reservation.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Reserve {
    /// The attributes of the request, as in a check.
    #[serde(deserialize_with = "texts")]
    #[schema(schema_with = super::check::attributes)]
    attributes: BTreeMap<String, String>,
    /// The estimated cost.
    #[serde(default = "super::check::one", deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 999_999_999_999_999_i64)]
    cost: u64,
    /// How long to hold the units, at most an hour: `30s` by default.
    #[serde(default = "default_ttl")]
    #[schema(
        example = "30s",
        pattern = "^([1-9][0-9]{0,5} ?ms|([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|3600) ?(s|seconds?)|([1-9]|[1-5][0-9])m([1-9]|[1-5][0-9])s|([1-9]|[1-5][0-9]|60) ?(m|min|minutes?)|1 ?(h|hour))$"
    )]
    ttl: String,
    /// What happens to the units of a reservation that is not settled in time: `keep`, the default,
    /// leaves them charged; `give_back` releases them.
    #[serde(default)]
    on_expiry: Expiry,
}

/// What happens to the units of a reservation that expires.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
enum Expiry {
    #[default]
    Keep,
    GiveBack,
}

impl From<Expiry> for OnExpiry {
    fn from(expiry: Expiry) -> Self {
        match expiry {
            Expiry::Keep => Self::Keep,
            Expiry::GiveBack => Self::GiveBack,
        }
    }
}

/// A renewal.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Renew {
    /// How long to hold it from now on, at most an hour: `30s` by default.
    #[serde(default = "default_ttl")]
    #[schema(
        example = "30s",
        pattern = "^([1-9][0-9]{0,5} ?ms|([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|3600) ?(s|seconds?)|([1-9]|[1-5][0-9])m([1-9]|[1-5][0-9])s|([1-9]|[1-5][0-9]|60) ?(m|min|minutes?)|1 ?(h|hour))$"
    )]
    ttl: String,
}

/// Renews the reservation or the slot that a path names.
pub(super) async fn renew_held(
    app: &App,
    sender: &Sender,
    (kind, path): (HeldKind, &str),
    Renew { ttl }: Renew,
) -> Result<Response, ApiError> {
    let ttl = parse_ttl(&ttl)?;
    let renewed = held(kind, path)?.renew(app, sender.caller, ttl).await;
    renewed.map_err(|error| ApiError::of(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A reservation.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Reserved {
    /// The id to settle it with.
    id: String,
    #[serde(flatten)]
    answer: Answer,
}

/// A settlement.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Settle {
    /// The actual cost in units.
    #[serde(deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 999_999_999_999_999_i64)]
    cost: u64,
}

/// The result of a settlement.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Settled {
    /// The units of the actual cost that were not recorded, because they exceed the debt of a
    /// limit.
    shortfall: u64,
}

pub(super) fn default_ttl() -> String {
    "30s".into()
}

/// Reserve an estimated cost
///
/// A hold that is not settled in time stays charged, or is released with `on_expiry` `give_back`.
/// It can be settled for as long again as it lasted. An estimate of 0 holds 0 units, and its
/// settlement records the whole cost. Under a limit on concurrency the reservation takes a slot,
/// until it is settled or expires.
#[utoipa::path(
    post,
    path = "/v1/reserve",
    tag = "reservations",
    request_body = Reserve,
    responses(
        (status = 200, description = "reserved", body = Reserved),
        CheckErrors<Answer>,
    )
)]
pub(super) async fn reserve(
    State(app): State<Arc<App>>,
    Extension(sender): Extension<Sender>,
    Json(Reserve { attributes, cost, ttl, on_expiry }): Json<Reserve>,
) -> Result<Response, ApiError> {
    let check = Check::new(attributes, cost);
    check.validated()?;
    let ttl = parse_ttl(&ttl)?;
    let request = check.request().caller(sender.caller);
    let reserved = app.timed(app.limiter.reserve(&request, ttl, on_expiry.into())).await;
    drop(request);
    let reservation = reserved.map_err(|error| ApiError::of(&error))?;
    let decision = reservation.decision().clone();
    if !decision.allowed() {
        return Ok(answer(&app, &decision, Answer::from(&decision)));
    }
    let id = HeldId::new(&app, HeldKind::Reservation, reservation.detach(), check.attributes).to_string();
    Ok(answer(&app, &decision, Reserved { id, answer: Answer::from(&decision) }))
}

/// Settle a reservation
///
/// Unused units are released. Units beyond the estimate are recorded, up to the debt of each limit,
/// and the rest is reported. A settlement counts once, however often it is sent.
#[utoipa::path(
    post,
    path = "/v1/reserve/{id}/settle",
    tag = "reservations",
    params(("id" = String, Path, description = "the id of the reservation")),
    request_body = Settle,
    responses(
        (status = 200, description = "settled", body = Settled),
        CommonErrors,
    )
)]
pub(super) async fn settle(
    State(app): State<Arc<App>>,
    Extension(sender): Extension<Sender>,
    uri: Uri,
    Json(Settle { cost }): Json<Settle>,
) -> Result<Response, ApiError> {
    let shortfall = end(&app, &sender, uri.path(), cost).await?;
    Ok(ok(&Settled { shortfall }))
}

/// Renew a reservation
///
/// Holds it for `ttl` from now on, for work that lasts, such as a stream. An expired reservation
/// cannot be renewed.
#[utoipa::path(
    post,
    path = "/v1/reserve/{id}/renew",
    tag = "reservations",
    params(("id" = String, Path, description = "the id of the reservation")),
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
    renew_held(&app, &sender, (HeldKind::Reservation, uri.path()), renew).await
}

/// Cancel a reservation
#[utoipa::path(
    delete,
    path = "/v1/reserve/{id}",
    tag = "reservations",
    params(("id" = String, Path, description = "the id of the reservation")),
    responses(
        (status = 204, description = "released"),
        CommonErrors,
    )
)]
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(sender): Extension<Sender>,
    uri: Uri,
) -> Result<Response, ApiError> {
    end(&app, &sender, uri.path(), 0).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// A time to live: more than 0 s and at most an hour.
pub(super) fn parse_ttl(ttl: &str) -> Result<Duration, ApiError> {
    let ttl = parse_duration(ttl).map_err(|error| ApiError::bad("invalid_ttl", "ttl", error.to_string()))?;
    if ttl.is_zero() || ttl > TTL_MAX {
        return Err(ApiError::bad("invalid_ttl", "ttl", "a ttl is more than 0 s and at most an hour"));
    }
    Ok(ttl)
}

/// The reservation or the slot that a path names.
pub(super) fn held(kind: HeldKind, path: &str) -> Result<HeldId, ApiError> {
    let id = path.split('/').nth(3).unwrap_or_default();
    HeldId::parse(kind, id).map_err(|error| {
        let code = tollgate::Error::NotReserved.code();
        ApiError::new(StatusCode::NOT_FOUND, code, "id", error.to_string())
    })
}

async fn end(app: &App, sender: &Sender, path: &str, cost: u64) -> Result<u64, ApiError> {
    let id = held(HeldKind::Reservation, path)?;
    let hold = id.hold;
    let check = Check::new(id.attributes, cost);
    check.validated()?;
    let request = check.request().caller(sender.caller);
    let settled = app.timed(app.limiter.settle(hold, &request)).await;
    Ok(settled.map_err(|error| ApiError::of(&error))?.shortfall)
}
