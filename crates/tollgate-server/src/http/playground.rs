//! `POST /v1/playground`: a limit under traffic on virtual time, decided by the real core.
//!
//! It touches no budget of the server: each call has a meter of its own.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use tollgate::{Limit, Meter, Store as _, Timestamp};
use tollgate_http::millis_ceil;
use utoipa::ToSchema;

use super::document::AdminErrors;
use super::ok;
use super::problem::{ApiError, Json};
use crate::app::App;

/// The most requests of an experiment.
const ARRIVALS_MAX: usize = 10_000;

/// The longest experiment, in milliseconds: a week.
const SPAN_MS_MAX: u64 = 7 * 86_400_000;

/// The points at which the remaining units are reported.
const POINTS: u64 = 240;

/// The start of virtual time: a multiple of every common period, so that aligned windows begin
/// with the experiment.
const START: Timestamp = Timestamp::from_secs(7 * 86_400 * 1_000);

/// An experiment.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Experiment {
    /// The limit, in the configuration's notation.
    #[schema(example = "10/10s fixed")]
    limit: String,
    /// When each request arrives, in milliseconds from the start: at most 10000, at most a week.
    #[schema(example = json!([0, 100, 200]), max_items = 10_000)]
    arrivals: Vec<u64>,
}

/// The outcome of an experiment.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ExperimentAnswer {
    /// The limit as the server reads it.
    limit: String,
    /// The most units at once.
    capacity: u64,
    admitted: usize,
    denied: usize,
    /// The requests, in order of arrival.
    decisions: Vec<Arrival>,
    /// The remaining units over time, at even intervals.
    remaining: Vec<Level>,
}

/// A request of an experiment.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct Arrival {
    /// In milliseconds from the start.
    at: u64,
    allowed: bool,
    /// The remaining units after it.
    remaining: u64,
    /// 0 if it is admitted, null if it never will be.
    retry_after_ms: Option<u64>,
}

/// The remaining units at a time.
#[derive(Debug, Serialize, ToSchema)]
struct Level {
    /// In milliseconds from the start.
    at: u64,
    remaining: u64,
}

/// Try a limit
///
/// Decides the given traffic on virtual time with a limit of its own. No budget changes.
#[utoipa::path(
    post,
    path = "/v1/playground",
    tag = "administration",
    security(("admin" = [])),
    request_body = Experiment,
    responses(
        (status = 200, description = "what gets through", body = ExperimentAnswer),
        AdminErrors,
    )
)]
pub(super) async fn playground(
    State(app): State<Arc<App>>,
    Json(Experiment { limit, mut arrivals }): Json<Experiment>,
) -> Result<Response, ApiError> {
    let limit: Limit = limit.parse().map_err(|error| ApiError::of(&error))?;
    app.limiter.store().accepts(&limit).map_err(|error| ApiError::of(&error))?;
    let bad = |detail| Err(ApiError::bad("invalid_arrivals", "arrivals", detail));
    if arrivals.len() > ARRIVALS_MAX {
        return bad(format!("there are {} arrivals; send at most {ARRIVALS_MAX}", arrivals.len()));
    }
    arrivals.sort_unstable();
    let last = arrivals.last().copied().unwrap_or(0);
    if last > SPAN_MS_MAX {
        return bad(format!("an arrival is at {last} ms; send at most {SPAN_MS_MAX}, a week"));
    }
    Ok(ok(&decided(limit, &arrivals, last)))
}

/// Decides the arrivals, which are sorted and end at `last`.
fn decided(limit: Limit, arrivals: &[u64], last: u64) -> ExperimentAnswer {
    let at = |millis| START.saturating_add(Duration::from_millis(millis));
    let mut meter = Meter::new(limit);
    let (mut decisions, mut remaining) = (Vec::with_capacity(arrivals.len()), Vec::new());
    let mut next = arrivals.iter().copied().peekable();
    for point in 0..=POINTS {
        let now = last.saturating_mul(point) / POINTS;
        while let Some(arrival) = next.next_if(|arrival| *arrival <= now) {
            let outcome = meter.decide(at(arrival), 1);
            decisions.push(Arrival {
                at: arrival,
                allowed: outcome.allowed(),
                remaining: outcome.remaining,
                retry_after_ms: outcome.verdict.retry_after().map(millis_ceil),
            });
        }
        remaining.push(Level { at: now, remaining: meter.peek(at(now), 0).remaining });
    }
    let admitted = decisions.iter().filter(|arrival| arrival.allowed).count();
    ExperimentAnswer {
        limit: limit.to_string(),
        capacity: limit.capacity(),
        admitted,
        denied: decisions.len() - admitted,
        decisions,
        remaining,
    }
}
