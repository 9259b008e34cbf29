//! Administration: looking after one client, and what the rules are. All of it needs the token.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{RawQuery, Request as HttpRequest, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::Next;
use axum::response::{IntoResponse as _, Response};
use serde::{Deserialize, Serialize};
use tollgate::{CLIENT, Error, Limit, Limits, Request, Store as _, Timestamp, parse_duration};
use tollgate_http::Head;
use tracing::info;
use utoipa::ToSchema;

use super::check::LimitAnswer;
use super::document::AdminErrors;
use super::ok;
use super::problem::{ApiError, Client, Json, parameters, twice, whole};
use crate::app::App;

/// Lets through who has the token.
pub(super) async fn guard(
    State(app): State<Arc<App>>,
    request: HttpRequest,
    next: Next,
) -> Result<Response, ApiError> {
    let shown = request.headers().get(AUTHORIZATION);
    let token = shown.and_then(|value| {
        let (scheme, token) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
    });
    if token.is_some_and(|token| app.is_admin_token(token)) {
        return Ok(next.run(request).await);
    }
    if shown.is_some() {
        app.wrong_token(Head::from(&request).peer(), "http").await;
    }
    let detail = "this needs `Authorization: Bearer <admin token>`; where none is configured, the log has the one made at the start";
    Err(ApiError::new(StatusCode::UNAUTHORIZED, "unauthorized", "authorization", detail))
}

/// A client's budgets.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ClientAnswer {
    /// Who.
    client: String,
    /// Every limit of every rule that counts by client alone, as a request of cost 1 would find it.
    limits: Vec<LimitAnswer>,
}

/// How long to keep a client out.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Block {
    /// Such as `10m`.
    #[serde(rename = "for")]
    #[schema(
        example = "10m",
        pattern = "^[1-9][0-9]{0,3} ?(ms|s|seconds?|m|min|minutes?|h|hours?|d|days?)$"
    )]
    span: String,
}

/// Until when a client is kept out.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Blocked {
    /// In milliseconds since the Unix epoch.
    until: u64,
}

/// Other limits for one client.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OwnLimit {
    /// The rule whose limits they replace; it counts by client alone.
    rule: String,
    limit: Notations,
}

/// One limit, or several that hold together.
#[derive(Debug, Deserialize, Serialize, ToSchema)]
#[serde(untagged)]
#[schema(example = "100/s")]
enum Notations {
    One(String),
    Several(Vec<String>),
}

/// How much to take or give back.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Units {
    /// One rule's budget; all that are the client's own unless said otherwise.
    rule: Option<String>,
    /// In units.
    #[serde(default = "super::check::one", deserialize_with = "whole")]
    #[schema(minimum = 0, maximum = 999_999_999_999_999_i64)]
    cost: u64,
}

/// How many units moved.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Moved {
    /// At the limit where most did.
    units: u64,
}

/// How a client stands
///
/// The numbers of every rule keyed by `client` alone. Changes nothing. Where its limits depend on
/// other attributes, such as a plan, add them as parameters: `?plan=gold`.
#[utoipa::path(
    get,
    path = "/v1/clients/{client}",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "who, percent-encoded", min_length = 1)),
    responses(
        (status = 200, description = "its numbers", body = ClientAnswer),
        AdminErrors,
    )
)]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Client(client): Client,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = query.unwrap_or_default();
    let further = parameters(&query)?;
    if further.iter().any(|(name, _)| name == CLIENT) {
        return Err(twice(CLIENT.into()));
    }
    let further = further.iter().map(|(name, value)| (&**name, &**value));
    let attributes: Vec<(&str, &str)> = [(CLIENT, client.as_str())].into_iter().chain(further).collect();
    let decision = app.timed(app.limiter.peek(Request::new(&attributes).own())).await.map_err(refused)?;
    if decision.degraded() {
        return Err(refused(Error::StoreUnavailable));
    }
    Ok(ok(&ClientAnswer { client, limits: decision.limits().iter().map(LimitAnswer::from).collect() }))
}

/// Forget a client
///
/// Nothing in use, no block, no reservation: the budgets that are its own, not those it shares.
#[utoipa::path(
    delete,
    path = "/v1/clients/{client}",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "who, percent-encoded", min_length = 1)),
    responses(
        (status = 204, description = "forgotten"),
        AdminErrors,
    )
)]
pub(super) async fn reset(State(app): State<Arc<App>>, Client(client): Client) -> Result<Response, ApiError> {
    app.reset(&client).await.map_err(refused)?;
    info!(client = app.logged(&client), "a client was reset");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Keep a client out
#[utoipa::path(
    put,
    path = "/v1/clients/{client}/block",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "who, percent-encoded", min_length = 1)),
    request_body = Block,
    responses(
        (status = 200, description = "kept out", body = Blocked),
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
    let until = app.clock.now().saturating_add(span);
    app.block(&client, span.into()).await.map_err(refused)?;
    info!(client = app.logged(&client), duration = ?span, "a client was blocked");
    Ok(ok(&Blocked { until: until.as_millis_ceil() }))
}

/// Let a client in again
#[utoipa::path(
    delete,
    path = "/v1/clients/{client}/block",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "who, percent-encoded", min_length = 1)),
    responses(
        (status = 204, description = "let in"),
        AdminErrors,
    )
)]
pub(super) async fn unblock(
    State(app): State<Arc<App>>,
    Client(client): Client,
) -> Result<Response, ApiError> {
    app.block(&client, Timestamp::EPOCH.into()).await.map_err(refused)?;
    info!(client = app.logged(&client), "a client was let in again");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Give a client other limits
///
/// From now on and until the server stops, what is in use stays in use. What is to last belongs
/// into the configuration.
#[utoipa::path(
    put,
    path = "/v1/clients/{client}/limits",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "who, percent-encoded", min_length = 1)),
    request_body = OwnLimit,
    responses(
        (status = 204, description = "given"),
        AdminErrors,
    )
)]
pub(super) async fn set_limit(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Json(OwnLimit { rule, limit }): Json<OwnLimit>,
) -> Result<Response, ApiError> {
    app.per_client(&rule).map_err(|error| not_own(&app, error))?;
    let notations = match limit {
        Notations::One(one) => vec![one],
        Notations::Several(several) => several,
    };
    let limits =
        notations.iter().map(|text| text.parse()).collect::<Result<Vec<Limit>, Error>>().map_err(refused)?;
    // What is refused is not kept, and lists of limits are kept for good.
    limits.iter().try_for_each(|limit| app.limiter.store().accepts(limit)).map_err(refused)?;
    app.set_client_limit(&client, &rule, Limits::from(limits)).map_err(refused)?;
    info!(
        client = app.logged(&client),
        rule,
        limit = notations.join(", "),
        "a client was given other limits"
    );
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Take a client's own limits back
#[utoipa::path(
    delete,
    path = "/v1/clients/{client}/limits",
    tag = "administration",
    security(("admin" = [])),
    params(
        ("client" = String, Path, description = "who, percent-encoded", min_length = 1),
        ("rule" = Option<String>, Query, description = "of this rule; of all unless said otherwise"),
    ),
    responses(
        (status = 204, description = "the rules' limits apply again"),
        AdminErrors,
    )
)]
pub(super) async fn clear_limits(
    State(app): State<Arc<App>>,
    Client(client): Client,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = query.unwrap_or_default();
    let rule = parameters(&query)?.into_iter().find(|(name, _)| name == "rule").map(|(_, rule)| rule);
    app.clear_client_limits(&client, rule.as_deref()).map_err(|error| not_own(&app, error))?;
    info!(client = app.logged(&client), "a client's own limits were taken back");
    Ok(StatusCode::NO_CONTENT.into_response())
}

/// Take units from a client
///
/// Up to so many, stopping at empty.
#[utoipa::path(
    post,
    path = "/v1/clients/{client}/penalise",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "who, percent-encoded", min_length = 1)),
    request_body = Units,
    responses(
        (status = 200, description = "taken", body = Moved),
        AdminErrors,
    )
)]
pub(super) async fn penalise(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Json(Units { rule, cost }): Json<Units>,
) -> Result<Response, ApiError> {
    let units =
        app.timed(app.limiter.penalise(own(&client, rule.as_deref(), cost))).await.map_err(refused)?;
    info!(client = app.logged(&client), rule, units, "a client was penalised");
    Ok(ok(&Moved { units }))
}

/// Give units back to a client
///
/// Up to so many, the most recently drawn first, never beyond the limit.
#[utoipa::path(
    post,
    path = "/v1/clients/{client}/refund",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "who, percent-encoded", min_length = 1)),
    request_body = Units,
    responses(
        (status = 200, description = "given back", body = Moved),
        AdminErrors,
    )
)]
pub(super) async fn refund(
    State(app): State<Arc<App>>,
    Client(client): Client,
    Json(Units { rule, cost }): Json<Units>,
) -> Result<Response, ApiError> {
    let units = app.timed(app.limiter.refund(own(&client, rule.as_deref(), cost))).await.map_err(refused)?;
    info!(client = app.logged(&client), rule, units, "a client was given units back");
    Ok(ok(&Moved { units }))
}

/// A client's own budgets, or one of them.
fn own<'a>(client: &'a str, rule: Option<&'a str>, cost: u64) -> Request<'a> {
    let request = Request::client(client).own().cost(cost);
    rule.map_or(request, |rule| request.only(rule))
}

/// A rule that exists is not to be called unknown because no client can have a limit of its own there.
fn not_own(app: &App, error: Error) -> ApiError {
    match error {
        Error::UnknownRule { rule } if app.has_rule(&rule) => {
            let detail = format!("rule {rule:?} does not count by client alone; use an [[override]]");
            ApiError::new(StatusCode::NOT_FOUND, "not_covered", "rule", detail)
        }
        other => refused(other),
    }
}

#[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
fn refused(error: Error) -> ApiError {
    ApiError::of(&error)
}
