//! Metrics and spans over OTLP (HTTP with protobuf), if `[telemetry]` names a receiver.
//!
//! A sampled request that is decided is a span: its protocol, its rule, and whether it was allowed.
//! A caller's trace context (`traceparent`, over HTTP and gRPC) is continued, and its decision to
//! sample counts. Clients are named only if `client_names` asks for it.
//!
//! A request never waits for the receiver: spans go to a bounded queue, and what does not fit is
//! dropped and counted. Without `[telemetry]` a request pays for one branch.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use axum::http::HeaderMap;
use tokio::sync::Notify;
use tokio::time::timeout;
use tollgate::{CLIENT, Clock as _, Decision, Request, RuleName, Timestamp};

use crate::app::{App, LogNames, STOPWATCH};

mod context;
mod export;
mod metrics;
mod otlp;

use context::{Parent, Random};
use export::Exporter;
use otlp::{FLAGS_PARENT_IS_REMOTE, FLAGS_SAMPLED, KIND_SERVER, KeyValue, Span, Value, int};

/// The most spans that wait to be exported.
const QUEUE_MAX: usize = 2_048;

/// How long a stop waits for the last export.
const STOP: Duration = Duration::from_secs(2);

tokio::task_local! {
    /// The decisions on the sampled request that a task answers.
    static DECIDED: Arc<Mutex<Decided>>;
}

/// The signals of OTLP that are exported.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signal {
    Metrics,
    Traces,
}

/// The requests' side of the export.
pub(crate) struct Telemetry {
    /// A request is sampled if a random number is below this.
    threshold: u64,
    client_names: bool,
    /// A span, or `None` to wake the exporter.
    queue: SyncSender<Option<Span>>,
    /// Spans that were not exported.
    dropped: AtomicU64,
    /// Exports that succeeded and that failed, by signal.
    exports: [[AtomicU64; 2]; 2],
    stopping: AtomicBool,
    stopped: Notify,
}

impl fmt::Debug for Telemetry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Telemetry").finish_non_exhaustive()
    }
}

/// What was decided on a request.
#[derive(Debug, Default)]
struct Decided {
    decisions: u64,
    denied: bool,
    degraded: bool,
    /// The rule of the first denial, or else of the first decision.
    rule: Option<RuleName>,
    client: Option<String>,
}

/// A sampled request.
#[derive(Debug)]
pub(crate) struct OpenSpan<'a> {
    telemetry: &'a Telemetry,
    began: Timestamp,
    parent: Option<Parent>,
}

/// Starts the exporter, if there is a receiver.
///
/// # Errors
/// If there is no thread for it.
pub(crate) fn start(app: &Arc<App>) -> Result<(), String> {
    let Some(settings) = &app.fixed().telemetry else { return Ok(()) };
    let (queue, spans) = sync_channel(QUEUE_MAX);
    let telemetry = Telemetry {
        threshold: threshold(settings.sample),
        client_names: settings.client_names,
        queue,
        dropped: AtomicU64::new(0),
        exports: Default::default(),
        stopping: AtomicBool::new(false),
        stopped: Notify::new(),
    };
    // The only start.
    let _ = app.decisions.telemetry.set(telemetry);
    let exporter = Exporter::new(settings);
    let app = Arc::downgrade(app);
    let thread = thread::Builder::new().name("telemetry".into());
    let spawned = thread.spawn(move || exporter.run(&app, &spans));
    spawned.map(|_| ()).map_err(|error| format!("cannot start the export of telemetry: {error}"))
}

/// Exports what is left. A receiver that does not answer holds the stop up for a moment only.
pub(crate) async fn stop(app: &App) {
    if let Some(telemetry) = app.telemetry() {
        telemetry.stopping.store(true, Ordering::Release);
        // A full queue wakes the exporter too.
        let _ = telemetry.queue.try_send(None);
        let _ = timeout(STOP, telemetry.stopped.notified()).await;
    }
}

impl Decided {
    /// Adds a decision. `names` is `None` if clients are not named.
    fn add(&mut self, request: &Request<'_>, decision: &Decision, names: Option<&LogNames>) {
        let denied = !decision.allowed();
        if self.decisions == 0 || denied && !self.denied {
            self.rule = decision.rule();
            self.client = names.and_then(|names| request.get(CLIENT).map(|client| names.logged(client)));
        }
        self.decisions = self.decisions.saturating_add(1);
        self.denied |= denied;
        self.degraded |= decision.degraded();
    }
}

impl Telemetry {
    /// Begins the span of a request, if it is sampled: by its caller, or else by chance.
    pub(crate) fn sample(&self, headers: &HeaderMap) -> Option<OpenSpan<'_>> {
        let parent = Parent::of(headers);
        let sampled = parent.as_ref().map_or_else(|| self.chance(), |parent| parent.sampled);
        sampled.then(|| OpenSpan { telemetry: self, began: STOPWATCH.now(), parent })
    }

    /// Begins the span of a request that has no trace context, if it is sampled.
    pub(crate) fn sample_alone(&self, began: Timestamp) -> Option<OpenSpan<'_>> {
        self.chance().then_some(OpenSpan { telemetry: self, began, parent: None })
    }

    /// Adds a decision to the span of its request, if that is sampled.
    pub(crate) fn note(&self, request: &Request<'_>, decision: &Decision, names: &LogNames) {
        let _ = DECIDED.try_with(|decided| {
            let mut decided = decided.lock().unwrap_or_else(PoisonError::into_inner);
            decided.add(request, decision, self.client_names.then_some(names));
        });
    }

    fn chance(&self) -> bool {
        Random::next() < self.threshold
    }

    /// The counts of exports and of dropped spans, for the metrics.
    pub(crate) fn exports(&self, signal: Signal) -> [u64; 2] {
        let [succeeded, failed] = &self.exports[signal as usize];
        [succeeded.load(Ordering::Relaxed), failed.load(Ordering::Relaxed)]
    }

    pub(crate) fn dropped_spans(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    fn exported(&self, signal: Signal, succeeded: bool) {
        self.exports[signal as usize][usize::from(!succeeded)].fetch_add(1, Ordering::Relaxed);
    }

    fn drop_spans(&self, spans: usize) {
        self.dropped.fetch_add(u64::try_from(spans).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

impl OpenSpan<'_> {
    /// Runs `work` and ends the span, if anything was decided. `allowed` is the answer as a whole,
    /// or `None` if it follows from the decisions.
    pub(crate) async fn trace<T>(
        self,
        protocol: &str,
        operation: &str,
        work: impl Future<Output = T>,
        allowed: impl FnOnce(&T) -> Option<bool>,
    ) -> T {
        let decided = Arc::default();
        let result = DECIDED.scope(Arc::clone(&decided), work).await;
        let decided = std::mem::take(&mut *decided.lock().unwrap_or_else(PoisonError::into_inner));
        let allowed = allowed(&result).or((decided.decisions > 0).then_some(!decided.denied));
        if let Some(allowed) = allowed {
            self.end(protocol, operation, &decided, allowed);
        }
        result
    }

    /// Ends the span of a request that was decided by itself.
    pub(crate) fn decided(
        self,
        protocol: &str,
        request: &Request<'_>,
        decision: &Decision,
        names: &LogNames,
    ) {
        let mut decided = Decided::default();
        decided.add(request, decision, self.telemetry.client_names.then_some(names));
        self.end(protocol, "check", &decided, decision.allowed());
    }

    fn end(self, protocol: &str, operation: &str, decided: &Decided, allowed: bool) {
        let Self { telemetry, began, parent } = self;
        let mut attributes = vec![
            KeyValue::text("tollgate.protocol", protocol),
            KeyValue::new("tollgate.allowed", Value::Bool(allowed)),
            KeyValue::new("tollgate.decisions", Value::Int(int(decided.decisions))),
        ];
        if let Some(rule) = decided.rule {
            attributes.push(KeyValue::text("tollgate.rule", rule.as_str()));
        }
        if decided.degraded {
            attributes.push(KeyValue::new("tollgate.degraded", Value::Bool(true)));
        }
        if let Some(client) = &decided.client {
            attributes.push(KeyValue::text("tollgate.client", client));
        }
        let trace = parent.as_ref().map_or_else(Random::trace, |parent| parent.trace);
        let span = Span {
            trace_id: trace.to_be_bytes().to_vec(),
            span_id: Random::next().max(1).to_be_bytes().to_vec(),
            parent_span_id: parent
                .as_ref()
                .map(|parent| parent.span.to_be_bytes().to_vec())
                .unwrap_or_default(),
            name: format!("{protocol} {operation}"),
            kind: KIND_SERVER,
            start_time_unix_nano: began.as_nanos(),
            end_time_unix_nano: STOPWATCH.now().as_nanos(),
            attributes,
            flags: FLAGS_SAMPLED | if parent.is_some() { FLAGS_PARENT_IS_REMOTE } else { 0 },
        };
        if telemetry.queue.try_send(Some(span)).is_err() {
            telemetry.drop_spans(1);
        }
    }
}

/// The number below which a share of all 64-bit numbers is.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a share from 0 to 1; the conversion saturates"
)]
fn threshold(share: f64) -> u64 {
    (share * u64::MAX as f64) as u64
}
