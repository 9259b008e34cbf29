//! Changes of single clients.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use tokio::task::spawn_blocking;
use tollgate::{Error, Limit, Limits, Request, Store as _, Timestamp, parse_duration};
use tracing::info;
use utoipa::ToSchema;

use super::document::AdminErrors;
use super::members::whole;
use super::ok;
use super::problem::{ApiError, Client, Json, parameters};
use crate::app::App;
use crate::moment::Moment;

/// How long to block a client.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Block {
    /// A duration, such as `10m`.
    #[serde(rename = "for")]
    #[schema(
        example = "10m",
        pattern = "^([1-9][0-9]{0,5} ?(ms|s|seconds?|m|min|minutes?|h|hours?)|[1-9][0-9]{0,3} ?(d|days?|w|weeks?)|[1-9][0-9]?h[1-9][0-9]?m)$"
    )]
    span: String,
}

/// When a block ends.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Blocked {
    /// In milliseconds since the Unix epoch.
    until: u64,
    /// The same moment for people.
    end: Moment,
}

/// Limits of one client.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnLimit {
    /// The rule whose limits they replace; it must be keyed by client alone.
    rule: String,
    limit: Notations,
}

/// One limit, or several that apply together.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(example = "100/s")]
enum Notations {
    One(String),
    Several(Vec<String>),
}

/// How far a change of a client's limits reaches.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Reach {
    /// The servers that apply the change, and for how long.
    #[schema(example = "this server, until it stops")]
    reach: &'static str,
}

/// How many units to charge or refund.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Units {
    /// One rule's budget; all of the client's budgets if absent.
    rule: Option<String>,
    /// In units.
    #[serde(default = "super::check::one", deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 999_999_999_999_999_i64)]
    cost: u64,
}

/// How many units were charged or refunded.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Moved {
    /// The number at the limit with the largest change.
    units: u64,
}

/// Reset a client
///
/// Removes its usage, block and reservations from the budgets that only it uses, not from shared
/// ones.
#[utoipa::path(
    delete,
    path = "/v1/clients/{client}",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "client name, percent-encoded", min_length = 1)),
    responses(
        (status = 204, description = "reset"),
        AdminErrors,
    )
)]
pub(super) async fn reset(State(app): State<Arc<App>>, Client(client): Client) -> Result<Response, ApiError> {
    app.reset(&client).await.map_err(api_error)?;
    info!(client = app.logged(&client), "a client was reset");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Block a client
#[utoipa::path(
    put,
    path = "/v1/clients/{client}/block",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "client name, percent-encoded", min_length = 1)),
    request_body = Block,
    responses(
        (status = 200, description = "blocked", body = Blocked),
        AdminErrors,
    )
)]
pub(super) async fn block(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Json(Block { span }): Json<Block>,
) -> Result<Response, ApiError> {
    let span: Duration =
        parse_duration(&span).map_err(|error| ApiError::bad("invalid_duration", "for", error.to_string()))?;
    let until = app.block(&client, span.into()).await.map_err(api_error)?;
    info!(client = app.logged(&client), duration = ?span, "a client was blocked");
    Ok(ok(&Blocked { until: until.as_millis_ceil(), end: Moment::new(until, until.saturating_sub(span)) }))
}

/// Unblock a client
#[utoipa::path(
    delete,
    path = "/v1/clients/{client}/block",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "client name, percent-encoded", min_length = 1)),
    responses(
        (status = 204, description = "unblocked"),
        AdminErrors,
    )
)]
pub(super) async fn unblock(
    State(app): State<Arc<App>>,
    Client(client): Client,
) -> Result<Response, ApiError> {
    app.block(&client, Timestamp::EPOCH.into()).await.map_err(api_error)?;
    info!(client = app.logged(&client), "a client was unblocked");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Set a client's limits
///
/// They replace the rule's limits on this server. With a data directory they survive a restart;
/// otherwise they end with the server. Usage is kept. Put limits of several servers in their
/// configuration files.
#[utoipa::path(
    put,
    path = "/v1/clients/{client}/limits",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "client name, percent-encoded", min_length = 1)),
    request_body = OwnLimit,
    responses(
        (status = 200, description = "set", body = Reach),
        AdminErrors,
    )
)]
pub(super) async fn set_limit(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Json(OwnLimit { rule, limit }): Json<OwnLimit>,
) -> Result<Response, ApiError> {
    app.per_client(&rule).map_err(|error| not_per_client(&app, error))?;
    let notations = match limit {
        Notations::One(one) => vec![one],
        Notations::Several(several) => several,
    };
    let limits = notations
        .iter()
        .map(|text| text.parse())
        .collect::<Result<Vec<Limit>, Error>>()
        .map_err(api_error)?;
    // A rejected limit must not reach the limiter, which keeps lists of limits for good.
    limits.iter().try_for_each(|limit| app.limiter.store().accepts(limit)).map_err(api_error)?;
    let logged = app.logged(&client);
    let name = rule.clone();
    let change = move |app: &App| app.set_client_limit(&client, &name, Limits::from(limits));
    let changed = change_limits(app, change).await?;
    info!(client = logged, rule, limit = notations.join(", "), "a client's limits were set");
    Ok(changed)
}

/// Remove a client's limits
#[utoipa::path(
    delete,
    path = "/v1/clients/{client}/limits",
    tag = "administration",
    security(("admin" = [])),
    params(
        ("client" = String, Path, description = "client name, percent-encoded", min_length = 1),
        ("rule" = Option<String>, Query, description = "the rule; all rules if absent"),
    ),
    responses(
        (status = 200, description = "the rules' limits apply again", body = Reach),
        AdminErrors,
    )
)]
pub(super) async fn clear_limits(
    State(app): State<Arc<App>>,
    Client(client): Client,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = query.unwrap_or_default();
    let rule = parameters(&query)?.into_iter().find(|(name, _)| name == "rule");
    let rule = rule.map(|(_, rule)| rule.into_owned());
    let logged = app.logged(&client);
    let changed = change_limits(app, move |app| app.clear_client_limits(&client, rule.as_deref())).await?;
    info!(client = logged, "a client's limits were removed");
    Ok(changed)
}

/// Changes per-client limits on a thread that may wait for the disk.
async fn change_limits(
    app: Arc<App>,
    change: impl FnOnce(&App) -> Result<(), Error> + Send + 'static,
) -> Result<Response, ApiError> {
    let changed = spawn_blocking(move || {
        change(&app).map_err(|error| not_per_client(&app, error))?;
        Ok(ok(&Reach { reach: app.client_limits_reach() }))
    });
    changed
        .await
        .unwrap_or_else(|error| Err(api_error(Error::StoreUnavailable { reason: error.to_string() })))
}

/// Charge a client
///
/// Charges up to `cost` units, stopping at empty.
#[utoipa::path(
    post,
    path = "/v1/clients/{client}/penalise",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "client name, percent-encoded", min_length = 1)),
    request_body = Units,
    responses(
        (status = 200, description = "charged", body = Moved),
        AdminErrors,
    )
)]
pub(super) async fn penalise(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Json(Units { rule, cost }): Json<Units>,
) -> Result<Response, ApiError> {
    let units =
        app.timed(app.limiter.penalise(budgets(&client, rule.as_deref(), cost))).await.map_err(api_error)?;
    info!(client = app.logged(&client), rule, units, "a client was penalised");
    Ok(ok(&Moved { units }))
}

/// Refund a client
///
/// Refunds up to `cost` units, the most recently drawn first, never beyond the limit.
#[utoipa::path(
    post,
    path = "/v1/clients/{client}/refund",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "client name, percent-encoded", min_length = 1)),
    request_body = Units,
    responses(
        (status = 200, description = "refunded", body = Moved),
        AdminErrors,
    )
)]
pub(super) async fn refund(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Json(Units { rule, cost }): Json<Units>,
) -> Result<Response, ApiError> {
    let units =
        app.timed(app.limiter.refund(budgets(&client, rule.as_deref(), cost))).await.map_err(api_error)?;
    info!(client = app.logged(&client), rule, units, "a client was refunded");
    Ok(ok(&Moved { units }))
}

/// A client's budgets, or that of one rule.
fn budgets<'a>(client: &'a str, rule: Option<&'a str>, cost: u64) -> Request<'a> {
    let request = Request::client(client).own().cost(cost);
    rule.map_or(request, |rule| request.only(rule))
}

/// The error of a rule that is not keyed by client alone; it is not called unknown.
fn not_per_client(app: &App, error: Error) -> ApiError {
    match error {
        Error::UnknownRule { rule } if app.has_rule(&rule) => {
            let detail = format!("rule {rule:?} is not keyed by client alone; use an [[override]]");
            ApiError::new(StatusCode::NOT_FOUND, "not_covered", "rule", detail)
        }
        other => api_error(other),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "map_err passes by value")]
fn api_error(error: Error) -> ApiError {
    ApiError::for_administrator(&error)
}
