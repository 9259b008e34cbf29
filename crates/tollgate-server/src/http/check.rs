//! Checks: a single one by path or attributes, or a batch.

use std::borrow::Cow;
use std::ops::Not;
use std::sync::Arc;

use axum::Extension;
use axum::body::Body;
use axum::extract::State;
use axum::http::{self, Uri};
use axum::response::Response;
use bytes::Bytes;
use serde::Serialize;
use tollgate::{Budget, Decision, Error, MAX_COUNT, Report, Request};
use tollgate_http::{Headers, Numbers, blocked_until, denied, denied_with, millis_ceil};
use utoipa::ToSchema;

use super::document::CheckErrors;
use super::ok;
use super::problem::{ApiError, Json, client, duplicate};
use crate::app::App;
use crate::caller::Sender;

mod batch;
mod body;

pub(super) use batch::*;
pub(super) use body::{Check, attributes, one};

/// A decision.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Answer {
    #[serde(flatten)]
    numbers: Numbers,
    /// The outcome of each limit that covers the request.
    limits: Vec<LimitAnswer>,
}

/// The outcome of one limit.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct LimitAnswer {
    /// The limit's rule.
    rule: &'static str,
    /// The match of the override whose separate budget this is, if it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<&'static str>,
    /// The limit in the configuration's notation.
    notation: String,
    /// Whether it admits the request.
    allowed: bool,
    /// The limit in units.
    limit: u64,
    /// The remaining units.
    remaining: u64,
    /// Units of the cost that were drawn on this limit, or would be. Present only if the rule
    /// overflows into another, or another into it; 0 if the request is denied.
    #[serde(skip_serializing_if = "Option::is_none")]
    drawn: Option<u64>,
    /// Units recorded beyond the limit and not paid off yet. Present only if there are any.
    #[serde(skip_serializing_if = "Option::is_none")]
    owed: Option<u64>,
    /// When the limit is whole again, in milliseconds since the Unix epoch.
    reset_at: u64,
    /// How long until it admits the request: 0 if it does, null if it never will.
    retry_after_ms: Option<u64>,
    /// The percentage in use, if the rule warns of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    warning: Option<u64>,
    /// Whether the rule is a shadow.
    shadow: bool,
    /// Whether a block denies the request. Present only if true.
    #[serde(skip_serializing_if = "Not::not")]
    blocked: bool,
    /// When the block ends, in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
}

impl From<&Decision> for Answer {
    fn from(decision: &Decision) -> Self {
        let limits = decision.with_limits(|limits| limits.iter().map(LimitAnswer::from).collect());
        Self { numbers: Numbers::from(decision), limits }
    }
}

impl From<&Report> for LimitAnswer {
    fn from(report: &Report) -> Self {
        let Report { rule, budget, limit, shadow, outcome, cause, overflow, .. } = report;
        let until = blocked_until(*cause);
        Self {
            rule: rule.as_str(),
            budget: if let Budget::Override(name) = budget { Some(name) } else { None },
            notation: limit.to_string(),
            allowed: outcome.allowed(),
            limit: limit.capacity(),
            remaining: outcome.remaining,
            drawn: overflow.drawn(),
            owed: Some(outcome.owed).filter(|owed| *owed > 0),
            reset_at: outcome.reset_at.as_millis_ceil(),
            retry_after_ms: outcome.verdict.retry_after().map(millis_ceil),
            warning: report.warning(),
            shadow: *shadow,
            blocked: until.is_some(),
            until,
        }
    }
}

/// Check a client
///
/// Charges the rules that cover a request with `client` as its only attribute.
#[utoipa::path(
    get,
    path = "/check/{client}",
    tag = "checks",
    params(
        ("client" = String, Path, description = "client name: UTF-8 of 1 to 1024 bytes, percent-encoded", min_length = 1),
        ("cost" = Option<u64>, Query, description = "cost in units; 0 charges nothing", minimum = 0, maximum = 999_999_999_999_999_i64),
    ),
    responses(
        (status = 200, description = "allowed", body = Numbers),
        CheckErrors<Numbers>,
    )
)]
pub(super) async fn by_path(
    State(app): State<Arc<App>>,
    Extension(sender): Extension<Sender>,
    uri: Uri,
) -> Response {
    let answer = match parse_uri(&uri) {
        Ok((client, cost)) => {
            let request = Request::client(&client).cost(cost).caller(sender.caller);
            decision_response(&app, app.check(request).await, denied)
        }
        Err(error) => error.into_bytes(),
    };
    answer.map(Body::from)
}

/// `GET /check/{client}` without the router, if the store answers without waiting.
pub(crate) fn check_in_memory(app: &App, uri: &Uri) -> Option<http::Response<Bytes>> {
    Some(match parse_uri(uri) {
        Ok((client, cost)) => {
            decision_response(app, app.check_in_memory(Request::client(&client).cost(cost))?, denied)
        }
        Err(error) => error.into_bytes(),
    })
}

/// The client and the cost in a URI.
fn parse_uri(uri: &Uri) -> Result<(Cow<'_, str>, u64), ApiError> {
    let client = client(uri.path().strip_prefix("/check/").unwrap_or_default())?;
    Ok((client, cost(uri.query().unwrap_or_default())?))
}

/// The response to a decision: its numbers if it is allowed, `denial` if not.
pub(super) fn decision_response(
    app: &App,
    decision: Result<Decision, Error>,
    denial: impl FnOnce(&Decision, &Headers) -> http::Response<Bytes>,
) -> http::Response<Bytes> {
    let headers = &app.snapshot().settings.headers;
    match decision {
        Ok(decision) if decision.allowed() => {
            let mut response = Numbers::from(&decision).into_response();
            headers.write(&decision, response.headers_mut());
            response
        }
        Ok(decision) => denial(&decision, headers),
        Err(error) => ApiError::of(&error).into_bytes(),
    }
}

/// Check a request
///
/// Charges all rules that cover the attributes, or none.
#[utoipa::path(
    post,
    path = "/v1/check",
    tag = "checks",
    request_body = Check,
    responses(
        (status = 200, description = "allowed", body = Answer),
        CheckErrors<Answer>,
    )
)]
pub(super) async fn by_attributes(
    State(app): State<Arc<App>>,
    Extension(sender): Extension<Sender>,
    Json(check): Json<Check>,
) -> Result<Response, ApiError> {
    check.validated()?;
    let decision = decide(&app, &check, &sender).await?;
    Ok(answer(&app, &decision, Answer::from(&decision)))
}

async fn decide(app: &App, check: &Check, sender: &Sender) -> Result<Decision, ApiError> {
    let request = check.request().caller(sender.caller);
    let decision =
        if check.peek { app.timed(app.limiter.peek(&request)).await } else { app.check(&request).await };
    decision.map_err(|error| refused(&error))
}

/// The error of a check. Rules are named only in its costs.
fn refused(error: &Error) -> ApiError {
    match error {
        Error::UnknownRule { rule } => ApiError::of(error).at(format!("costs.{rule}")),
        other => ApiError::of(other),
    }
}

/// The response to a decision with these numbers: 429 or 503 if it is denied.
pub(super) fn answer(app: &App, decision: &Decision, numbers: impl Serialize) -> Response {
    let headers = &app.snapshot().settings.headers;
    if decision.allowed() {
        let mut response = ok(&numbers);
        headers.write(decision, response.headers_mut());
        response
    } else {
        denied_with(decision, headers, numbers).map(Body::from)
    }
}

fn cost(query: &str) -> Result<u64, ApiError> {
    let pairs = || form_urlencoded::parse(query.as_bytes());
    if let Some((unknown, _)) = pairs().find(|(name, _)| name != "cost") {
        let detail = format!(
            "the parameter {unknown:?} is unknown, the only one is `cost`; send other attributes with POST \
             /v1/check, as {{\"attributes\": {{\"client\": …, {unknown:?}: …}}}}"
        );
        return Err(ApiError::bad("unknown_parameter", unknown.into_owned(), detail));
    }
    let Some((name, cost)) = pairs().next() else { return Ok(1) };
    if pairs().nth(1).is_some() {
        return Err(duplicate(name.into_owned()));
    }
    let digits = !cost.is_empty() && cost.bytes().all(|byte| byte.is_ascii_digit());
    match cost.parse() {
        Ok(cost @ 0..=MAX_COUNT) if digits => Ok(cost),
        _ => {
            let detail = format!("the cost is not a whole number from 0 to {MAX_COUNT}");
            Err(ApiError::bad("invalid_cost", "cost", detail))
        }
    }
}
