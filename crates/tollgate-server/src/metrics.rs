//! Metrics for Prometheus. The number of time series depends on the rules, never on clients.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use tollgate::{MemoryStats, Stats};
use tollgate_disk::DiskStats;
use tollgate_redis::Status;

use crate::app::App;
use crate::connection::Counts;
use crate::latency::{Histogram, Latency};

/// A kind of request: the index of its name in [`ROUTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Route(usize);

const ROUTES: [&str; 10] =
    ["client", "check", "batch", "reserve", "administration", "monitoring", "auth", "other", "resp", "grpc"];

/// The routes of HTTP that decide: `client`, `check`, `batch`, `reserve` and `auth`.
const HTTP_DECISIONS: [usize; 5] = [0, 1, 2, 3, 6];

impl Route {
    /// `/check/{client}`
    pub(crate) const CLIENT: Self = Self(0);

    /// Administration.
    pub(crate) const ADMINISTRATION: Self = Self(4);

    /// Commands of the Redis protocol.
    pub(crate) const RESP: Self = Self(8);

    /// Calls of Envoy's service.
    pub(crate) const GRPC: Self = Self(9);

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

/// All metrics in the OpenMetrics text format.
pub(crate) fn render(app: &Arc<App>) -> String {
    let mut registry = Registry::with_prefix("tollgate");
    registry.register_collector(Box::new(Scrape(Arc::clone(app))));
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Scrape(Arc<App>);

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let App { limiter, metrics, started_at, .. } = &*self.0;
        let stats = limiter.stats();
        let mut exposition = Exposition(encoder);
        exposition.gauge(
            "build_info",
            "Version of the server",
            [(vec![("version", env!("CARGO_PKG_VERSION"))], 1)],
        )?;
        let started = started_at.as_nanos() / 1_000_000_000;
        exposition.gauge(
            "start_time_seconds",
            "Start time of the server since the Unix epoch",
            unlabelled(started),
        )?;

        exposition.decisions(&self.0, &stats)?;
        let help = "States converted to a replaced limit";
        exposition.counter("converted_states", help, unlabelled(stats.converted))?;
        let help = "Units used beyond the debt of a limit, which were not recorded";
        exposition.counter("shortfall_units", help, unlabelled(stats.shortfall))?;
        exposition.counter("store_errors", "Failures of the store", unlabelled(stats.store_errors))?;
        exposition.histogram(
            "store_duration_seconds",
            "Latency of the store",
            [(Vec::new(), &metrics.store)],
        )?;
        if let Some(memory) = limiter.store().memory_stats() {
            exposition.memory(&memory)?;
        }
        if let Some(disk) = limiter.store().as_disk() {
            exposition.disk(&disk.disk_stats())?;
        }
        if let Some(redis) = limiter.store().as_redis() {
            exposition.redis(&redis.status())?;
        }

        let requests =
            ROUTES.iter().zip(&metrics.requests).map(|(route, latency)| (vec![("route", *route)], latency));
        exposition.histogram("http_request_duration_seconds", "Latency of requests, by route", requests)?;
        let names = STATUSES.map(|status| if status == 0 { "other".into() } else { status.to_string() });
        let statuses = names.iter().zip(&metrics.statuses);
        let statuses = statuses.map(|(name, count)| (vec![("status", name.as_str())], read(count)));
        exposition.counter("http_responses", "HTTP responses by status", statuses)?;
        exposition.connections(&metrics.connections)?;

        let reloads = [("ok", &metrics.reloads), ("failed", &metrics.failed_reloads)];
        let reloads = reloads.map(|(result, count)| (vec![("result", result)], read(count)));
        exposition.counter("reloads", "Reloads of the configuration, by result", reloads)?;
        let stale = u64::from(metrics.stale.load(Ordering::Relaxed));
        exposition.gauge("config_stale", "1 if the last reload failed", unlabelled(stale))
    }
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

type Labels<'a> = Vec<(&'a str, &'a str)>;

/// A single sample without labels.
fn unlabelled<'a>(value: u64) -> [(Labels<'a>, u64); 1] {
    [(Vec::new(), value)]
}

/// The exposition being written.
struct Exposition<'a>(DescriptorEncoder<'a>);

impl Exposition<'_> {
    /// Counts of decisions.
    fn decisions(&mut self, app: &App, stats: &Stats) -> fmt::Result {
        let App { metrics, decisions, .. } = app;
        let total = stats.total;
        let outcomes = [("allowed", total.allowed), ("denied", total.denied)];
        self.counter(
            "decisions",
            "Decisions by outcome",
            outcomes.map(|(name, count)| (vec![("outcome", name)], count)),
        )?;
        let by_rule = stats.rules.iter().flat_map(|(rule, counts)| {
            [("allowed", counts.allowed), ("denied", counts.denied), ("shadow_denied", counts.shadow_denied)]
                .map(|(outcome, count)| (vec![("rule", rule.as_str()), ("outcome", outcome)], count))
        });
        self.counter("rule_decisions", "Decisions by rule and outcome", by_rule)?;
        self.counter(
            "unidentified",
            "Requests whose client could not be identified",
            unlabelled(read(&metrics.unidentified)),
        )?;
        self.counter("uncovered", "Requests that no rule covers", unlabelled(read(&decisions.uncovered)))?;
        self.counter(
            "failed_authentications",
            "Attempts with a wrong admin token",
            unlabelled(read(&metrics.failed_authentications)),
        )?;
        self.counter("degraded", "Decisions made without the store", unlabelled(total.degraded))?;
        let by_rule =
            stats.rules.iter().map(|(rule, counts)| (vec![("rule", rule.as_str())], counts.degraded));
        self.counter("rule_degraded", "Decisions made without the store, by rule", by_rule)?;

        let refused = stats
            .rules
            .iter()
            .map(|(rule, _)| (vec![("rule", rule.as_str())], decisions.refusals.refused(*rule)));
        self.counter("rule_refused", "Requests denied because the table is full, by rule", refused)
    }

    fn connections(&mut self, counts: &[Counts; 3]) -> fmt::Result {
        let each = |count: fn(&Counts) -> &AtomicU64| {
            let listeners = ["http", "grpc", "resp"].into_iter().zip(counts);
            listeners
                .map(move |(name, counts)| (vec![("listener", name)], count(counts).load(Ordering::Relaxed)))
        };
        self.gauge("connections", "Open connections", each(|counts| &counts.open))?;
        self.counter("connections_opened", "Connections opened", each(|counts| &counts.opened))?;
        let reason = |reason, count| {
            each(count).map(move |(mut labels, value)| {
                labels.push(("reason", reason));
                (labels, value)
            })
        };
        let refused = reason("per_peer", |counts| &counts.refused_per_peer);
        let refused = refused.chain(reason("failed", |counts| &counts.failed));
        self.counter("connections_refused", "Connections refused", refused)?;
        let help = "Idle connections closed to admit new ones";
        self.counter("connections_evicted", help, each(|counts| &counts.evicted))?;
        let help = "Connections that waited because all others were busy";
        self.counter("connections_delayed", help, each(|counts| &counts.delayed))
    }

    fn memory(&mut self, memory: &MemoryStats) -> fmt::Result {
        self.gauge("live_keys", "Keys in use: one for each client of each rule", unlabelled(memory.live))?;
        let help = "Idle keys reclaimed";
        self.counter("keys_reclaimed", help, unlabelled(memory.reclaimed))?;
        let help = "Requests for new keys denied because the table is full";
        self.counter("keys_refused", help, unlabelled(memory.refused))?;
        let help = "Requests for new keys charged to the shared pool because the table is full";
        self.counter("keys_pooled", help, unlabelled(memory.pooled))
    }

    fn disk(&mut self, disk: &DiskStats) -> fmt::Result {
        self.gauge("disk_up", "0 while changes cannot be written to disk", unlabelled(disk.up.into()))?;
        self.counter("disk_writes", "Completed disk writes", unlabelled(disk.writes))?;
        self.counter("disk_syncs", "Disk syncs, each shared by many responses", unlabelled(disk.syncs))?;
        self.counter("disk_written_bytes", "Bytes written to disk", unlabelled(disk.written_bytes))?;
        self.gauge("disk_file_bytes", "Size of the data file", unlabelled(disk.file_bytes))?;
        let millis = u64::try_from(disk.last_write.as_millis()).unwrap_or(u64::MAX);
        self.gauge("disk_last_write_milliseconds", "Duration of the last disk write", unlabelled(millis))
    }

    fn redis(&mut self, redis: &Status) -> fmt::Result {
        let up = u64::from(redis.down.is_none());
        self.gauge(
            "redis_up",
            "0 while the circuit breaker of Redis, or of a Cluster node, is open",
            unlabelled(up),
        )?;
        self.counter("redis_trips", "Times the Redis circuit breaker opened", unlabelled(redis.trips))?;
        let help = "Requests denied from the denial cache, without asking Redis";
        self.counter("denials_remembered", help, unlabelled(redis.remembered_denials))
    }

    fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        counts: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter, counts, |mut metric, count| {
            metric.encode_counter::<NoLabelSet, _, u64>(&count, None)
        })
    }

    fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, values, |mut metric, value| metric.encode_gauge(&value))
    }

    fn histogram<'a, 'l>(
        &mut self,
        name: &str,
        help: &str,
        latencies: impl IntoIterator<Item = (Labels<'a>, &'l Latency)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Histogram, latencies, |mut metric, latency| {
            let (sum, count, buckets) = latency.read();
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        })
    }

    /// A metric family: several labelled members, or one without labels.
    fn family<'a, T>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        members: impl IntoIterator<Item = (Labels<'a>, T)>,
        encode: impl Fn(MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in members {
            if labels.is_empty() {
                return encode(metric, value);
            }
            encode(metric.encode_family(&labels)?, value)?;
        }
        Ok(())
    }
}
