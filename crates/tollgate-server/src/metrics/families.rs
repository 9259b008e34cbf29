//! The list of all metrics, whatever the format.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{MemoryStats, Stats};
use tollgate_disk::DiskStats;
use tollgate_redis::Status;

use super::{ROUTES, STATUSES};
use crate::app::App;
use crate::connection::Counts;
use crate::latency::Latency;
use crate::telemetry::{Signal, Telemetry};

/// The prefix of every name.
pub(crate) const PREFIX: &str = "tollgate";

pub(crate) type Labels<'a> = Vec<(&'a str, &'a str)>;

/// A format of metrics. Each family has several labelled members, or one without labels.
pub(crate) trait Exposition {
    fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        counts: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) -> fmt::Result;

    fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) -> fmt::Result;

    /// Durations in seconds.
    fn histogram<'a, 'l>(
        &mut self,
        name: &str,
        help: &str,
        latencies: impl IntoIterator<Item = (Labels<'a>, &'l Latency)>,
    ) -> fmt::Result;
}

/// Writes all metrics.
///
/// # Errors
/// As the format.
pub(crate) fn collect(app: &App, exposition: &mut impl Exposition) -> fmt::Result {
    let App { limiter, metrics, started_at, .. } = app;
    let stats = limiter.stats();
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

    decisions(app, &stats, exposition)?;
    let help = "States converted to a replaced limit";
    exposition.counter("converted_states", help, unlabelled(stats.converted))?;
    let help = "Units used beyond the debt of a limit, which were not recorded";
    exposition.counter("shortfall_units", help, unlabelled(stats.shortfall))?;
    exposition.counter("store_errors", "Failures of the store", unlabelled(stats.store_errors))?;
    let overloaded = [("store", stats.overloaded), ("buffers", app.buffers.refused())];
    let overloaded = overloaded.map(|(reason, count)| (vec![("reason", reason)], count));
    let help = "Requests refused as overloaded: more is asked than the store can do, or too much is held \
                for a peer";
    exposition.counter("overloaded", help, overloaded)?;
    exposition.gauge("held_bytes", "Bytes held for peers", unlabelled(app.buffers.bytes()))?;
    holds(exposition, &stats)?;
    exposition.histogram("store_duration_seconds", "Latency of the store", [(Vec::new(), &metrics.store)])?;
    if let Some(memory) = limiter.store().memory_stats() {
        memory_store(exposition, &memory)?;
    }
    if let Some(disk) = limiter.store().as_disk() {
        disk_store(exposition, &disk.disk_stats())?;
    }
    if let Some(redis) = limiter.store().as_redis() {
        redis_store(exposition, &redis.status())?;
        // Without a sample while Redis does not say.
        let evicted = app.eviction.evicted_keys().into_iter().map(|count| (Vec::new(), count));
        let help = "Keys that Redis evicted since it started, of any program";
        exposition.counter("redis_evicted_keys", help, evicted)?;
    }

    let requests =
        ROUTES.iter().zip(&metrics.requests).map(|(route, latency)| (vec![("route", *route)], latency));
    exposition.histogram("http_request_duration_seconds", "Latency of requests, by route", requests)?;
    let names = STATUSES.map(|status| if status == 0 { "other".into() } else { status.to_string() });
    let statuses = names.iter().zip(&metrics.statuses);
    let statuses = statuses.map(|(name, count)| (vec![("status", name.as_str())], read(count)));
    exposition.counter("http_responses", "HTTP responses by status", statuses)?;
    connections(exposition, &metrics.connections)?;

    let reloads = [("ok", &metrics.reloads), ("failed", &metrics.failed_reloads)];
    let reloads = reloads.map(|(result, count)| (vec![("result", result)], read(count)));
    exposition.counter("reloads", "Reloads of the configuration, by result", reloads)?;
    let stale = u64::from(metrics.stale.load(Ordering::Relaxed));
    exposition.gauge("config_stale", "1 if the last reload failed", unlabelled(stale))?;
    app.telemetry().map_or(Ok(()), |telemetry| exports(exposition, telemetry))
}

fn exports(exposition: &mut impl Exposition, telemetry: &Telemetry) -> fmt::Result {
    let signals = [("metrics", Signal::Metrics), ("traces", Signal::Traces)];
    let exports = signals.into_iter().flat_map(|(name, signal)| {
        let results = ["ok", "failed"].into_iter().zip(telemetry.exports(signal));
        results.map(move |(result, count)| (vec![("signal", name), ("result", result)], count))
    });
    exposition.counter("telemetry_exports", "Exports over OTLP, by signal and result", exports)?;
    let help = "Spans that were not exported";
    exposition.counter("telemetry_dropped_spans", help, unlabelled(telemetry.dropped_spans()))
}

fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// A single sample without labels.
fn unlabelled<'a>(value: u64) -> [(Labels<'a>, u64); 1] {
    [(Vec::new(), value)]
}

/// Counts of decisions.
fn decisions(app: &App, stats: &Stats, exposition: &mut impl Exposition) -> fmt::Result {
    let App { metrics, decisions, .. } = app;
    let total = stats.total;
    let outcomes = [("allowed", total.allowed), ("denied", total.denied)];
    exposition.counter(
        "decisions",
        "Decisions by outcome",
        outcomes.map(|(name, count)| (vec![("outcome", name)], count)),
    )?;
    let by_rule = stats.rules.iter().flat_map(|(rule, counts)| {
        [("allowed", counts.allowed), ("denied", counts.denied), ("shadow_denied", counts.shadow_denied)]
            .map(|(outcome, count)| (vec![("rule", rule.as_str()), ("outcome", outcome)], count))
    });
    exposition.counter("rule_decisions", "Decisions by rule and outcome", by_rule)?;
    exposition.counter(
        "unidentified",
        "Requests whose client could not be identified",
        unlabelled(read(&metrics.unidentified)),
    )?;
    exposition.counter(
        "uncovered",
        "Requests that no rule covers",
        unlabelled(read(&decisions.uncovered)),
    )?;
    exposition.counter(
        "failed_authentications",
        "Attempts with a wrong admin token",
        unlabelled(read(&metrics.failed_authentications)),
    )?;
    exposition.counter("degraded", "Decisions made without the store", unlabelled(total.degraded))?;
    let by_rule = stats.rules.iter().map(|(rule, counts)| (vec![("rule", rule.as_str())], counts.degraded));
    exposition.counter("rule_degraded", "Decisions made without the store, by rule", by_rule)?;

    let warned = stats.rules.iter().map(|(rule, counts)| (vec![("rule", rule.as_str())], counts.warned));
    exposition.counter("rule_warned", "Requests admitted with a warning, by rule", warned)?;

    let refused = stats
        .rules
        .iter()
        .map(|(rule, _)| (vec![("rule", rule.as_str())], decisions.refusals.refused(*rule)));
    exposition.counter("rule_refused", "Requests denied because the table is full, by rule", refused)
}

fn connections(exposition: &mut impl Exposition, counts: &[Counts; 3]) -> fmt::Result {
    let each = |count: fn(&Counts) -> &AtomicU64| {
        let listeners = ["http", "grpc", "resp"].into_iter().zip(counts);
        listeners.map(move |(name, counts)| (vec![("listener", name)], count(counts).load(Ordering::Relaxed)))
    };
    exposition.gauge("connections", "Open connections", each(|counts| &counts.open))?;
    exposition.counter("connections_opened", "Connections opened", each(|counts| &counts.opened))?;
    let reason = |reason, count| {
        each(count).map(move |(mut labels, value)| {
            labels.push(("reason", reason));
            (labels, value)
        })
    };
    let refused = reason("per_peer", |counts| &counts.refused_per_peer);
    let refused = refused.chain(reason("failed", |counts| &counts.failed));
    exposition.counter("connections_refused", "Connections refused", refused)?;
    let help = "Idle connections closed to admit new ones";
    exposition.counter("connections_evicted", help, each(|counts| &counts.evicted))?;
    let help = "Connections that waited because all others were busy";
    exposition.counter("connections_delayed", help, each(|counts| &counts.delayed))
}

fn holds(exposition: &mut impl Exposition, stats: &Stats) -> fmt::Result {
    exposition.gauge("holds", "Reservations and slots held", unlabelled(stats.holds))?;
    let help = "Most reservations and slots that are held";
    exposition.gauge("holds_max", help, unlabelled(stats.max_holds))?;
    let help = "Reservations and slots denied because too many were held";
    exposition.counter("holds_refused", help, unlabelled(stats.holds_refused))
}

fn memory_store(exposition: &mut impl Exposition, memory: &MemoryStats) -> fmt::Result {
    exposition.gauge(
        "live_keys",
        "Keys in use: one for each client of each rule",
        unlabelled(memory.live),
    )?;
    let help = "Idle keys reclaimed";
    exposition.counter("keys_reclaimed", help, unlabelled(memory.reclaimed))?;
    let help = "Requests for new keys denied because the table is full";
    exposition.counter("keys_refused", help, unlabelled(memory.refused))?;
    let help = "Requests for new keys charged to the shared pool because the table is full";
    exposition.counter("keys_pooled", help, unlabelled(memory.pooled))
}

fn disk_store(exposition: &mut impl Exposition, disk: &DiskStats) -> fmt::Result {
    exposition.gauge("disk_up", "0 while changes cannot be written to disk", unlabelled(disk.up.into()))?;
    exposition.counter("disk_writes", "Completed disk writes", unlabelled(disk.writes))?;
    exposition.counter("disk_syncs", "Disk syncs, each shared by many responses", unlabelled(disk.syncs))?;
    exposition.counter("disk_written_bytes", "Bytes written to disk", unlabelled(disk.written_bytes))?;
    exposition.gauge("disk_file_bytes", "Size of the data file", unlabelled(disk.file_bytes))?;
    let millis = u64::try_from(disk.last_write.as_millis()).unwrap_or(u64::MAX);
    exposition.gauge("disk_last_write_milliseconds", "Duration of the last disk write", unlabelled(millis))
}

fn redis_store(exposition: &mut impl Exposition, redis: &Status) -> fmt::Result {
    let up = u64::from(redis.down.is_none());
    exposition.gauge(
        "redis_up",
        "0 while the circuit breaker of Redis, or of a Cluster node, is open",
        unlabelled(up),
    )?;
    exposition.counter("redis_trips", "Times the Redis circuit breaker opened", unlabelled(redis.trips))?;
    let help = "Times the connection moved to another master that Sentinels named";
    exposition.counter("redis_master_switches", help, unlabelled(redis.master_switches))?;
    // Without a sample before the first answer.
    let round_trip = redis.round_trip.map(|span| u64::try_from(span.as_micros()).unwrap_or(u64::MAX));
    let round_trip = round_trip.into_iter().map(|micros| (Vec::new(), micros));
    let help = "Time that the last probe of Redis took";
    exposition.gauge("redis_round_trip_microseconds", help, round_trip)?;
    let help = "Requests denied from the denial cache, without asking Redis";
    exposition.counter("denials_remembered", help, unlabelled(redis.remembered_denials))
}
