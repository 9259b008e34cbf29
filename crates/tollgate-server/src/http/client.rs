//! `GET /v1/clients/{client}`: a client's budgets, and how it fared.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::response::Response;
use serde::Serialize;
use tollgate::{CLIENT, Error, Limit, Report, Request, Rule, RuleName, RuleSet};
use utoipa::ToSchema;

use super::check::LimitAnswer;
use super::document::AdminErrors;
use super::ok;
use super::problem::{ApiError, Client, duplicate, parameters};
use crate::app::App;
use crate::moment::Moment;
use crate::top::TopClient;

/// A client's budgets.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ClientAnswer {
    /// The client's name.
    client: String,
    /// Every limit of every rule keyed by client alone, as a request of cost 1 would find it.
    limits: Vec<ClientLimit>,
    /// The limits that an administrator set for the client.
    set: Vec<SetLimits>,
    /// The client's denials in the last one to two hours, by rule, most first.
    denials: Vec<Denials>,
}

/// Limits that an administrator set.
#[derive(Debug, Serialize, ToSchema)]
struct SetLimits {
    rule: &'static str,
    limits: Vec<String>,
}

/// The denials of a client by a rule.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Denials {
    /// The rule that denied. Absent for descriptors of Envoy that no rule names.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    at_least: u64,
    at_most: u64,
    /// When the last ones were, newest first, in milliseconds since the Unix epoch.
    last: Vec<u64>,
}

/// The numbers of a limit, and its reset for people.
#[derive(Debug, Serialize, ToSchema)]
struct ClientLimit {
    #[serde(flatten)]
    numbers: LimitAnswer,
    /// When the limit is whole again.
    reset: Moment,
}

/// A client's budgets
///
/// The numbers of every rule keyed by `client` alone. Changes nothing. If its limits depend on
/// other attributes, such as a plan, add them as parameters: `?plan=gold`.
#[utoipa::path(
    get,
    path = "/v1/clients/{client}",
    tag = "administration",
    security(("admin" = [])),
    params(("client" = String, Path, description = "client name, percent-encoded", min_length = 1)),
    responses(
        (status = 200, description = "the client's numbers", body = ClientAnswer),
        AdminErrors,
    )
)]
pub(super) async fn show(
    State(app): State<Arc<App>>,
    Client(client): Client,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let query = query.unwrap_or_default();
    let extra = parameters(&query)?;
    if extra.iter().any(|(name, _)| name == CLIENT) {
        return Err(duplicate(CLIENT.into()));
    }
    let extra = extra.iter().map(|(name, value)| (&**name, &**value));
    let attributes: Vec<(&str, &str)> = [(CLIENT, client.as_str())].into_iter().chain(extra).collect();
    let decision = app
        .timed(app.limiter.peek(Request::new(&attributes).own()))
        .await
        .map_err(|error| ApiError::for_administrator(&error))?;
    if decision.degraded() {
        let failure = app.limiter.store().failure();
        let reason = failure.unwrap_or_else(|| "it did not answer in time; the log has the reason".into());
        return Err(ApiError::for_administrator(&Error::StoreUnavailable { reason }));
    }
    let mut reports = decision.limits();
    for rule in app.limiter.with_rules(overflows_by_client) {
        let request = Request::new(&attributes).only(rule.as_str()).own();
        let overflow = app.timed(app.limiter.peek(request)).await;
        let overflow = overflow.map_err(|error| ApiError::for_administrator(&error))?;
        reports.extend(overflow.limits());
    }
    let limit = |report: &Report| ClientLimit {
        numbers: LimitAnswer::from(report),
        reset: Moment::new(report.outcome.reset_at, decision.now()),
    };
    let denials = app.decisions.top.denials_of(&client, decision.now());
    let set = app.client_limits(&client).into_iter().map(|(rule, limits)| SetLimits {
        rule: rule.as_str(),
        limits: limits.iter().map(Limit::to_string).collect(),
    });
    Ok(ok(&ClientAnswer {
        limits: reports.iter().map(limit).collect(),
        set: set.collect(),
        denials: denials.into_iter().map(Denials::from).collect(),
        client,
    }))
}

/// The rules keyed by client alone that others overflow into.
fn overflows_by_client(rules: &RuleSet) -> Vec<RuleName> {
    let is_listed = |rule: &&Rule| rule.is_overflow() && rule.key_attributes() == [CLIENT];
    rules.rules().iter().filter(is_listed).map(Rule::name).collect()
}

impl From<TopClient> for Denials {
    fn from(TopClient { rule, at_least, at_most, recent, .. }: TopClient) -> Self {
        Self { rule, at_least, at_most, last: recent.iter().map(|at| at.as_millis_ceil()).collect() }
    }
}
