//! Health, readiness, metrics and statistics.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse as _, Response};
use serde::Serialize;
use tollgate::Counts;
use tollgate_disk::DiskStore;
use tollgate_http::millis_ceil;
use tollgate_redis::RedisStore;
use utoipa::ToSchema;

use super::document::{AdminErrors, CommonErrors, HostError};
use super::ok;
use super::problem::{ApiError, count};
use crate::app::App;
use crate::metrics;
use crate::top::TopClient;

/// The default number of clients of `GET /v1/top`.
const TOP: usize = 10;

/// The most clients of `GET /v1/top`.
const TOP_MAX: usize = 1_000;

/// The process is up.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Status {
    status: &'static str,
}

/// Readiness, and the rules without room for new keys.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Readiness {
    status: &'static str,
    /// Rules that denied new keys within the last minute because the table is full.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    full: Vec<&'static str>,
}

/// Statistics since the server started.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Stats {
    version: &'static str,
    uptime_ms: u64,
    total: CountsAnswer,
    rules: Vec<RuleStats>,
    /// The store: memory, disk or redis.
    store: &'static str,
    /// Keys in use, unless they are in Redis. A client has one key for each rule that counts it.
    live_keys: Option<u64>,
    /// Idle keys reclaimed from memory.
    reclaimed_keys: Option<u64>,
    /// Requests for new keys denied because the table was full.
    refused: Option<u64>,
    /// Requests for new keys charged to the shared pool because the table was full.
    pooled: Option<u64>,
    /// The size of the data file, if state is on disk.
    disk_bytes: Option<u64>,
    /// The store's current failure, if any.
    store_down: Option<String>,
    /// Requests denied from the denial cache, without asking Redis.
    remembered_denials: Option<u64>,
    store_errors: u64,
}

#[derive(Debug, Serialize, ToSchema)]
struct RuleStats {
    rule: &'static str,
    #[serde(flatten)]
    counts: CountsAnswer,
}

#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct CountsAnswer {
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
    degraded: u64,
    /// Requests admitted with a warning.
    warned: u64,
    /// The percentage of requests that were denied.
    rejection_rate: f64,
}

/// The top clients of the last one to two hours.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct TopAnswer {
    /// The clients with the most admitted units.
    heaviest: Vec<HeavyAnswer>,
    /// The clients with the most denials, by rule.
    most_denied: Vec<HeavyAnswer>,
}

/// A client and the bounds of its count, which is exact unless there are very many clients.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
struct HeavyAnswer {
    client: String,
    /// The rule that denied it. Absent where units are counted.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<&'static str>,
    at_least: u64,
    at_most: u64,
}

/// Liveness
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "monitoring",
    responses(
        (status = 200, description = "the process is up", body = Status),
        HostError,
    )
)]
pub(super) async fn healthz() -> Response {
    ok(&Status { status: "up" })
}

/// Readiness
#[utoipa::path(
    get,
    path = "/readyz",
    tag = "monitoring",
    responses(
        (status = 200, description = "ready", body = Readiness),
        CommonErrors,
    )
)]
pub(super) async fn readyz(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    if let Some(detail) = app.not_ready_reason().await {
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, "not_ready", "server", detail));
    }
    Ok(ok(&Readiness { status: "ready", full: app.decisions.refusals.recent(app.clock.now()) }))
}

/// Metrics for Prometheus
#[utoipa::path(
    get,
    path = "/metrics",
    tag = "monitoring",
    responses(
        (status = 200, description = "OpenMetrics text", body = String, content_type = "application/openmetrics-text"),
        HostError,
    )
)]
pub(super) async fn metrics(State(app): State<Arc<App>>) -> Response {
    let mut response = metrics::render(&app).into_response();
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

/// Statistics since the start
#[utoipa::path(
    get,
    path = "/v1/stats",
    tag = "administration",
    security(("admin" = [])),
    responses(
        (status = 200, description = "totals and counts by rule", body = Stats),
        AdminErrors,
    )
)]
pub(super) async fn stats(State(app): State<Arc<App>>) -> Response {
    let (stats, memory) = (app.limiter.stats(), app.limiter.store().memory_stats());
    let redis = app.limiter.store().as_redis().map(RedisStore::status);
    let disk = app.limiter.store().as_disk().map(DiskStore::disk_stats);
    let rule = |(rule, counts): &(tollgate::RuleName, Counts)| RuleStats {
        rule: rule.as_str(),
        counts: counts.into(),
    };
    ok(&Stats {
        version: env!("CARGO_PKG_VERSION"),
        uptime_ms: millis_ceil(app.clock.now().since(app.started_at)),
        total: (&stats.total).into(),
        rules: stats.rules.iter().map(rule).collect(),
        live_keys: memory.map(|memory| memory.live),
        reclaimed_keys: memory.map(|memory| memory.reclaimed),
        refused: memory.map(|memory| memory.refused),
        pooled: memory.map(|memory| memory.pooled),
        store: app.limiter.store().kind(),
        store_down: app.limiter.store().failure(),
        disk_bytes: disk.map(|disk| disk.file_bytes),
        remembered_denials: redis.map(|redis| redis.remembered_denials),
        store_errors: stats.store_errors,
    })
}

/// The top clients
///
/// The heaviest and the most-denied clients of the last one to two hours.
#[utoipa::path(
    get,
    path = "/v1/top",
    tag = "administration",
    security(("admin" = [])),
    params(("count" = Option<u64>, Query, description = "the most clients of each list", minimum = 1, maximum = 1000)),
    responses(
        (status = 200, description = "most first", body = TopAnswer),
        AdminErrors,
    )
)]
pub(super) async fn top(
    State(app): State<Arc<App>>,
    RawQuery(query): RawQuery,
) -> Result<Response, ApiError> {
    let count = count(&query.unwrap_or_default(), TOP, TOP_MAX)?;
    let now = app.clock.now();
    let answers = |heavy: Vec<TopClient>| heavy.into_iter().map(HeavyAnswer::from).collect();
    Ok(ok(&TopAnswer {
        heaviest: answers(app.decisions.top.heaviest(count, now)),
        most_denied: answers(app.decisions.top.most_denied(count, now)),
    }))
}

impl From<&Counts> for CountsAnswer {
    fn from(counts: &Counts) -> Self {
        let Counts { allowed, denied, shadow_denied, degraded, warned } = *counts;
        Self { allowed, denied, shadow_denied, degraded, warned, rejection_rate: counts.rejection_rate() }
    }
}

impl From<TopClient> for HeavyAnswer {
    fn from(TopClient { client, rule, at_least, at_most, .. }: TopClient) -> Self {
        Self { client, rule, at_least, at_most }
    }
}
