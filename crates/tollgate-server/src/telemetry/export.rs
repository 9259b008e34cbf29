//! The thread that sends metrics and spans to the receiver.
//!
//! Metrics are sums since the start, so an export that fails is made up for by the next. Spans of a
//! failed export are dropped and counted: a receiver that is down costs no memory.

use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use prost::Message as _;
use tollgate::{Clock as _, MINUTE, Timestamp};
use tracing::warn;
use ureq::http::StatusCode;

use super::context::Random;
use super::metrics::metrics;
use super::otlp::{
    KeyValue, Metrics, Resource, ResourceMetrics, ResourceSpans, Scope, ScopeMetrics, ScopeSpans, Span,
    Traces,
};
use super::{Signal, Telemetry};
use crate::app::{App, LogThrottle, STOPWATCH};
use crate::config;

/// The most spans of an export.
const BATCH_MAX: usize = 512;

/// The longest time that a span waits for others.
const BATCH_DELAY: Duration = Duration::from_secs(5);

/// How long the receiver may take.
const TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Exporter {
    settings: config::Telemetry,
    resource: Resource,
    agent: ureq::Agent,
    failures: LogThrottle,
}

impl Exporter {
    pub(super) fn new(settings: &config::Telemetry) -> Self {
        let config = ureq::Agent::config_builder().http_status_as_error(false).timeout_global(Some(TIMEOUT));
        let set = |(key, value): &(String, String)| KeyValue::text(key, value);
        let mut attributes: Vec<KeyValue> = settings.resource.iter().map(set).collect();
        let instance = format!("{:032x}", Random::trace());
        for (key, value) in
            [("service.version", env!("CARGO_PKG_VERSION")), ("service.instance.id", instance.as_str())]
        {
            if !attributes.iter().any(|known| known.key == key) {
                attributes.push(KeyValue::text(key, value));
            }
        }
        Self {
            settings: settings.clone(),
            resource: Resource { attributes },
            agent: ureq::Agent::new_with_config(config.build()),
            failures: LogThrottle::new(MINUTE),
        }
    }

    /// Exports until the server stops.
    pub(super) fn run(&self, app: &Weak<App>, queue: &Receiver<Option<Span>>) {
        let delay = BATCH_DELAY.min(self.settings.interval);
        let mut spans = Vec::new();
        let mut metrics_due = STOPWATCH.now().saturating_add(self.settings.interval);
        let mut spans_due = Timestamp::MAX;
        loop {
            let received = queue.recv_timeout(metrics_due.min(spans_due).since(STOPWATCH.now()));
            let Some(app) = app.upgrade() else { return };
            let Some(telemetry) = app.telemetry() else { return };
            match received {
                Ok(span) => spans.extend(span),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            let stopping = telemetry.stopping.load(Ordering::Acquire);
            if stopping {
                spans.extend(queue.try_iter().flatten());
            }
            let now = STOPWATCH.now();
            if spans.len() >= BATCH_MAX || now >= spans_due || stopping {
                self.export_spans(telemetry, &mut spans);
            }
            spans_due = match (spans.is_empty(), spans_due) {
                (true, _) => Timestamp::MAX,
                (false, Timestamp::MAX) => now.saturating_add(delay),
                (false, due) => due,
            };
            if now >= metrics_due || stopping {
                self.export_metrics(&app, telemetry);
                metrics_due = STOPWATCH.now().saturating_add(self.settings.interval);
            }
            if stopping {
                telemetry.stopped.notify_one();
                return;
            }
        }
    }

    fn export_spans(&self, telemetry: &Telemetry, spans: &mut Vec<Span>) {
        let count = spans.len();
        if count == 0 {
            return;
        }
        let scope = ScopeSpans { scope: Some(Scope::of_server()), spans: std::mem::take(spans) };
        let resource = ResourceSpans { resource: Some(self.resource.clone()), scopes: vec![scope] };
        let body = Traces { resources: vec![resource] }.encode_to_vec();
        if !self.send(telemetry, Signal::Traces, &body) {
            telemetry.drop_spans(count);
        }
    }

    fn export_metrics(&self, app: &App, telemetry: &Telemetry) {
        let metrics = metrics(app, STOPWATCH.now());
        let scope = ScopeMetrics { scope: Some(Scope::of_server()), metrics };
        let resource = ResourceMetrics { resource: Some(self.resource.clone()), scopes: vec![scope] };
        self.send(telemetry, Signal::Metrics, &Metrics { resources: vec![resource] }.encode_to_vec());
    }

    /// Sends a request and counts its result.
    fn send(&self, telemetry: &Telemetry, signal: Signal, body: &[u8]) -> bool {
        let sent = self.post(signal, body);
        telemetry.exported(signal, sent.is_ok());
        if let Err(error) = &sent
            && let Some(failures) = self.failures.count(STOPWATCH.now())
        {
            let endpoint = &self.settings.endpoint;
            warn!(
                failures,
                "cannot export telemetry to {endpoint}: {error}; is a receiver of OTLP over HTTP there?"
            );
        }
        sent.is_ok()
    }

    fn post(&self, signal: Signal, body: &[u8]) -> Result<(), String> {
        let path = match signal {
            Signal::Metrics => "/v1/metrics",
            Signal::Traces => "/v1/traces",
        };
        let mut request = self.agent.post(format!("{}{path}", self.settings.endpoint));
        for (name, value) in &self.settings.headers {
            request = request.header(name, value.reveal());
        }
        let response = request.content_type("application/x-protobuf").send(body);
        match response.map_err(|error| error.to_string())?.status() {
            status if status.is_success() => Ok(()),
            StatusCode::NOT_FOUND => Err(format!("there is no {path} (404)")),
            status => Err(format!("it answered {status}")),
        }
    }
}
