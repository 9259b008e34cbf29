//! Metrics. The number of time series depends on the rules, never on clients.
//!
//! `families.rs` lists them once; `text.rs` writes them for Prometheus and
//! `telemetry/metrics.rs` for OTLP, so the two show the same numbers.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::connection::Counts;
use crate::latency::{Histogram, Latency};

mod families;
mod text;

pub(crate) use families::{Exposition, Labels, PREFIX, collect};
pub(crate) use text::render;

/// A kind of request: the index of its name in [`ROUTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route(usize);

const ROUTES: [&str; 11] = [
    "client",
    "check",
    "batch",
    "reserve",
    "administration",
    "monitoring",
    "auth",
    "other",
    "resp",
    "grpc",
    "acquire",
];

/// The routes of HTTP that decide: `client`, `check`, `batch`, `reserve`, `auth` and `acquire`.
const HTTP_DECISIONS: [usize; 6] = [0, 1, 2, 3, 6, 10];

impl Route {
    /// `/check/{client}`
    pub(crate) const CLIENT: Self = Self(0);

    /// Commands of the Redis protocol.
    pub(crate) const RESP: Self = Self(8);

    /// Calls of Envoy's service.
    pub(crate) const GRPC: Self = Self(9);

    /// Whether its requests are decided.
    pub(crate) const fn decides(self) -> bool {
        matches!(self.0, 0..=3 | 6 | 8 | 9)
    }

    pub(crate) const fn name(self) -> &'static str {
        ROUTES[self.0]
    }

    pub(crate) fn of(path: &str) -> Self {
        let rest = |prefix| path.strip_prefix(prefix);
        Self(match path {
            "/v1/check" => 1,
            "/v1/check/batch" => 2,
            "/healthz" | "/readyz" | "/metrics" | "/openapi.json" => 5,
            "/auth" => 6,
            _ if rest("/auth/").is_some() => 6,
            _ if rest("/check/").is_some_and(|client| !client.contains('/')) => 0,
            _ if rest("/v1/reserve").is_some() => 3,
            _ if rest("/v1/acquire").is_some() => 10,
            _ if rest("/v1/").is_some() => 4,
            _ => 7,
        })
    }
}

/// The statuses with a counter of their own; all others share the last.
const STATUSES: [u16; 17] =
    [200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 429, 431, 500, 501, 503, 507, 0];

/// The server's own counters. The limiter counts decisions.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    requests: [Latency; ROUTES.len()],
    statuses: [AtomicU64; STATUSES.len()],
    /// Latency of the store.
    pub(crate) store: Latency,
    /// Requests whose client could not be identified.
    pub(crate) unidentified: AtomicU64,
    /// Attempts with a wrong admin token.
    pub(crate) failed_authentications: AtomicU64,
    /// Connections over HTTP, gRPC and the Redis protocol.
    pub(crate) connections: [Counts; 3],
    reloads: AtomicU64,
    failed_reloads: AtomicU64,
    stale: AtomicBool,
}

impl Metrics {
    /// Counts a response and its latency.
    pub(crate) fn answered(&self, route: Route, status: u16, took: Duration) {
        self.took(route, took, 1);
        let index = STATUSES.iter().position(|known| *known == status).unwrap_or(STATUSES.len() - 1);
        if let Some(count) = self.statuses.get(index) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records the latency of `requests` requests that took `took` together.
    pub(crate) fn took(&self, route: Route, took: Duration, requests: usize) {
        if let Some(latency) = self.requests.get(route.0) {
            latency.observe(took, requests);
        }
    }

    /// Requests for decisions over each protocol.
    pub(crate) fn protocols(&self) -> [(&'static str, u64); 3] {
        let count = |routes: &[usize]| self.latency_of(routes).count();
        [
            ("http", count(&HTTP_DECISIONS)),
            ("grpc", count(&[Route::GRPC.0])),
            ("resp", count(&[Route::RESP.0])),
        ]
    }

    /// The latency of requests for decisions, over all protocols.
    pub(crate) fn decision_latency(&self) -> Histogram {
        let others = self.latency_of(&[Route::GRPC.0, Route::RESP.0]);
        self.latency_of(&HTTP_DECISIONS).plus(&others)
    }

    fn latency_of(&self, routes: &[usize]) -> Histogram {
        let routes = routes.iter().filter_map(|route| self.requests.get(*route));
        routes.fold(Histogram::default(), |sum, latency| sum.plus(&latency.histogram()))
    }

    /// Counts a reload.
    pub(crate) fn reloaded(&self, succeeded: bool) {
        let count = if succeeded { &self.reloads } else { &self.failed_reloads };
        count.fetch_add(1, Ordering::Relaxed);
        self.stale.store(!succeeded, Ordering::Relaxed);
    }
}
