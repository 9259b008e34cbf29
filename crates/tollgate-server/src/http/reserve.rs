//! Reservations: an estimated cost now, the actual cost later.
//!
//! The store keeps the hold. The id that a client receives encodes the hold and the attributes it
//! was made for, so any server that shares the store can settle it and none keeps state. A forged
//! id names no hold.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};
use tollgate::{HOUR, HoldId, OnExpiry, parse_duration};
use utoipa::ToSchema;

use super::check::{Answer, Check, answer};
use super::document::{CheckErrors, CommonErrors};
use super::members::{texts, whole};
use super::ok;
use super::problem::{ApiError, Json};
use crate::app::App;

/// The longest reservation.
const TTL_MAX: Duration = HOUR;

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
    /// How long to hold the units from now on, at most an hour: `30s` by default.
    #[serde(default = "default_ttl")]
    #[schema(
        example = "30s",
        pattern = "^([1-9][0-9]{0,5} ?ms|([1-9][0-9]{0,2}|[12][0-9]{3}|3[0-5][0-9]{2}|3600) ?(s|seconds?)|([1-9]|[1-5][0-9])m([1-9]|[1-5][0-9])s|([1-9]|[1-5][0-9]|60) ?(m|min|minutes?)|1 ?(h|hour))$"
    )]
    ttl: String,
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

fn default_ttl() -> String {
    "30s".into()
}

/// Reserve an estimated cost
///
/// A hold that is not settled in time stays charged, or is released with `on_expiry`
/// `give_back`. It can be settled for as long again as it lasted. An estimate of 0 holds nothing:
/// its settlement records the whole cost, each time it is sent.
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
    Json(Reserve { attributes, cost, ttl, on_expiry }): Json<Reserve>,
) -> Result<Response, ApiError> {
    let check = Check::new(attributes, cost);
    check.validated()?;
    let ttl = parse_ttl(&ttl)?;
    let reservation = app
        .timed(app.limiter.reserve(&check.request(), ttl, on_expiry.into()))
        .await
        .map_err(|error| ApiError::of(&error))?;
    let decision = reservation.decision().clone();
    if !decision.allowed() {
        return Ok(answer(&app, &decision, Answer::from(&decision)));
    }
    // Only the attributes that rules use have to come back.
    let mut attributes = check.attributes;
    app.limiter
        .with_rules(|rules| attributes.retain(|name, _| rules.attributes().binary_search(name).is_ok()));
    // A request that no rule covers, or that the store did not see, holds nothing.
    let id = Id { hold: reservation.detach().unwrap_or(HoldId::NOTHING).0, attributes }.to_string();
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
    uri: Uri,
    Json(Settle { cost }): Json<Settle>,
) -> Result<Response, ApiError> {
    let shortfall = end(&app, uri.path(), cost).await?;
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
    uri: Uri,
    Json(Renew { ttl }): Json<Renew>,
) -> Result<Response, ApiError> {
    let ttl = parse_ttl(&ttl)?;
    let (hold, check) = reserved(uri.path(), 0)?;
    let renewed = app.timed(app.limiter.renew(hold, &check.request(), ttl)).await;
    renewed.map_err(|error| ApiError::of(&error))?;
    Ok(StatusCode::NO_CONTENT.into_response())
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
pub(super) async fn cancel(State(app): State<Arc<App>>, uri: Uri) -> Result<Response, ApiError> {
    end(&app, uri.path(), 0).await?;
    Ok(StatusCode::NO_CONTENT.into_response())
}

fn parse_ttl(ttl: &str) -> Result<Duration, ApiError> {
    let ttl = parse_duration(ttl).map_err(|error| ApiError::bad("invalid_ttl", "ttl", error.to_string()))?;
    if ttl.is_zero() || ttl > TTL_MAX {
        return Err(ApiError::bad(
            "invalid_ttl",
            "ttl",
            "a reservation lasts more than 0 s and at most an hour",
        ));
    }
    Ok(ttl)
}

/// The hold that the id in a path names, and the request that made it, with this cost.
fn reserved(path: &str, cost: u64) -> Result<(HoldId, Check), ApiError> {
    let unknown = || ApiError::of(&tollgate::Error::NotReserved);
    let id = path.strip_prefix("/v1/reserve/").and_then(|rest| rest.split('/').next()).unwrap_or_default();
    let Id { hold, attributes } = Id::parse(id).ok_or_else(unknown)?;
    let check = Check::new(attributes, cost);
    check.validated()?;
    Ok((HoldId(hold), check))
}

async fn end(app: &App, path: &str, cost: u64) -> Result<u64, ApiError> {
    let (hold, check) = reserved(path, cost)?;
    let settled = app.timed(app.limiter.settle(hold, &check.request())).await;
    Ok(settled.map_err(|error| ApiError::of(&error))?.shortfall)
}

/// A reservation's id: the hold, and the attributes it was made for.
#[derive(Debug, PartialEq, Eq)]
struct Id {
    hold: u128,
    attributes: BTreeMap<String, String>,
}

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut bytes = self.hold.to_be_bytes().to_vec();
        for text in self.attributes.iter().flat_map(|(name, value)| [name, value]) {
            bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_be_bytes());
            bytes.extend(text.as_bytes());
        }
        f.write_str(&BASE64_URL_SAFE_NO_PAD.encode(bytes))
    }
}

impl Id {
    fn parse(text: &str) -> Option<Self> {
        let bytes = BASE64_URL_SAFE_NO_PAD.decode(text).ok()?;
        let (hold, mut rest) = bytes.split_first_chunk()?;
        let mut attributes = BTreeMap::new();
        while !rest.is_empty() {
            let mut text = || {
                let (length, behind) = rest.split_first_chunk()?;
                let (text, behind) =
                    behind.split_at_checked(usize::try_from(u32::from_be_bytes(*length)).ok()?)?;
                rest = behind;
                String::from_utf8(text.to_vec()).ok()
            };
            attributes.insert(text()?, text()?);
        }
        Some(Self { hold: u128::from_be_bytes(*hold), attributes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c5_an_id_round_trips_and_other_texts_are_rejected() {
        let attributes = BTreeMap::from([("client".into(), "zoë/1".into()), ("plan".into(), "gold".into())]);
        let id = Id { hold: 7 << 90, attributes };
        let text = id.to_string();
        assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_'));
        assert_eq!(Id::parse(&text), Some(id));
        for length in 0..text.len() {
            // Truncated at a boundary it is another id; anywhere else it is invalid. Neither may
            // panic.
            let _ = Id::parse(&text[..length]);
        }
        assert_eq!([Id::parse(""), Id::parse("AAAA"), Id::parse("not base64!")], [None, None, None]);
    }
}
