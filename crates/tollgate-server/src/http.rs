//! HTTP: a path into a request, a decision into JSON.

use std::borrow::Cow;
use std::time::Duration;

use axum::Router;
use axum::extract::{RawQuery, State};
use axum::http::{Method, StatusCode, Uri};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tollgate::{Decision, Error, Limiter, MAX_COUNT, Request};

use crate::problem::{Problem, json};

const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// Every path that the server answers.
pub(crate) fn router(limiter: Limiter) -> Router {
    Router::new()
        .route("/check/{client}", get(check))
        .route("/check/", get(check))
        .fallback(unknown_path)
        .method_not_allowed_fallback(wrong_method)
        .with_state(limiter)
}

/// `GET /check/{client}[?cost=N]`
async fn check(State(limiter): State<Limiter>, uri: Uri, RawQuery(query): RawQuery) -> Response {
    let decision = client_of(uri.path()).and_then(|client| {
        let cost = cost_of(query.as_deref().unwrap_or_default())?;
        let request = Request::client(&client).cost(cost);
        limiter.check(request).map_err(|error| invalid(&error, "client"))
    });
    match decision {
        Ok(decision) => answer(&decision),
        Err(problem) => problem.into_response(),
    }
}

/// The numbers of a decision, as they stand in every answer.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Numbers {
    allowed: bool,
    remaining: u64,
    reset_at: u64,
    limit: u64,
    /// Null if the cost can never fit.
    retry_after_ms: Option<u64>,
    rule: Option<&'static str>,
    degraded: bool,
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    violated_policies: Vec<&'static str>,
}

fn answer(decision: &Decision) -> Response {
    let violated = decision.limits().iter().filter(|report| !report.shadow && !report.outcome.allowed());
    let numbers = Numbers {
        allowed: decision.allowed(),
        remaining: decision.remaining(),
        reset_at: decision.reset_at().as_millis_ceil(),
        limit: decision.limit(),
        retry_after_ms: decision.retry_after().map(millis_ceil),
        rule: decision.rule().map(|rule| rule.as_str()),
        degraded: decision.degraded(),
        violated_policies: violated.map(|report| report.rule.as_str()).collect(),
    };
    if numbers.allowed {
        return json(StatusCode::OK, "application/json", &numbers);
    }
    let detail = format!("rate limit exceeded; window resets at {}", numbers.reset_at);
    Problem::new(StatusCode::TOO_MANY_REQUESTS, QUOTA_EXCEEDED, detail, numbers).into_response()
}

/// Whole milliseconds, rounded up: a time that is promised never comes early.
fn millis_ceil(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

type Mistaken = Problem<crate::problem::Mistake>;

fn client_of(path: &str) -> Result<Cow<'_, str>, Mistaken> {
    let bad = |detail| Problem::mistake(StatusCode::BAD_REQUEST, "invalid_key", Some("client"), detail);
    let encoded = path.strip_prefix("/check/").unwrap_or_default();
    if encoded.is_empty() {
        return Err(bad("the client is missing; ask for /check/{client}"));
    }
    let two_digits =
        |rest: &str| rest.len() >= 2 && rest.bytes().take(2).all(|byte| byte.is_ascii_hexdigit());
    if !encoded.split('%').skip(1).all(two_digits) {
        return Err(bad(
            "the client has a % without two hexadecimal digits behind it; write % itself as %25",
        ));
    }
    percent_decode_str(encoded)
        .decode_utf8()
        .map_err(|_| bad("the client is not UTF-8 once it is percent-decoded; encode its UTF-8 bytes"))
}

fn cost_of(query: &str) -> Result<u64, Mistaken> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    let Some((_, cost)) = pairs.find(|(name, _)| name == "cost") else { return Ok(1) };
    let digits = !cost.is_empty() && cost.bytes().all(|byte| byte.is_ascii_digit());
    match cost.parse() {
        Ok(cost @ 0..=MAX_COUNT) if digits => Ok(cost),
        _ => {
            let detail = format!("the cost is not a whole number from 0 to {MAX_COUNT}");
            Err(Problem::mistake(StatusCode::BAD_REQUEST, "invalid_cost", Some("cost"), detail))
        }
    }
}

fn invalid(error: &Error, field: &'static str) -> Mistaken {
    Problem::mistake(StatusCode::BAD_REQUEST, error.code(), Some(field), error.to_string())
}

async fn unknown_path(uri: Uri) -> Response {
    let detail = format!("there is nothing at {}; try /check/{{client}}", uri.path());
    Problem::mistake(StatusCode::NOT_FOUND, "not_found", Some("path"), detail).into_response()
}

async fn wrong_method(method: Method) -> Response {
    let detail = format!("{method} does nothing here; use GET");
    Problem::mistake(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", Some("method"), detail)
        .into_response()
}
