//! The running server, shared by all protocols.

use std::fmt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};

use arc_swap::{ArcSwap, Guard};
use axum::http::HeaderValue;
use futures_util::future::join_all;
use tokio::time::timeout;
use tollgate::{AsRequest, Clock, Decision, Error, Limiter, RuleSet, RulesSnapshot, Timestamp, TokioClock};
use tracing::{error, info, warn};

use crate::backend::Backend;
use crate::buffers::Buffers;
use crate::config::{Config, ConfigErrors, Extent, Fixed, Origin, Settings};
use crate::inline;
use crate::live::Live;
use crate::loading;
use crate::metrics::Metrics;
use crate::telemetry::Telemetry;

mod authentication;
mod blocks;
mod clear;
mod client_limits;
mod denials;
mod eviction;
mod log_names;
mod log_throttle;
mod observer;
mod outages;
mod overload;
mod refusals;
mod sessions;

pub(crate) use authentication::Access;
use authentication::Authentication;
pub(crate) use blocks::{Blocked, Listed};
pub(crate) use clear::ClearError;
use client_limits::{ClientLimit, is_per_client};
pub(crate) use denials::PROTOCOL;
use eviction::EvictionWatch;
pub(crate) use log_names::LogNames;
pub(crate) use log_throttle::LogThrottle;
use observer::{DecisionCounts, DecisionObserver};
pub(crate) use sessions::SESSION_LIFETIME;

/// The clock that measures durations. Decisions use the configured clock, which may be coarse or a
/// test's.
pub(crate) const STOPWATCH: TokioClock = TokioClock;

/// The longest prefix of a client's name in a log line.
const LOGGED_BYTES_MAX: usize = 64;

/// The limiter, its settings and its counters.
pub struct App {
    pub(crate) limiter: Limiter<Backend>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started_at: Timestamp,
    origin: Origin,
    fixed: Fixed,
    reloadable: Reloadable,
    pub(crate) authentication: Authentication,
    /// What Redis said last about eviction.
    pub(crate) eviction: EvictionWatch,
    /// Clients that administrators blocked.
    blocked: blocks::Names,
    resetting: clear::Resetting,
    ready: AtomicBool,
    pub(crate) metrics: Metrics,
    /// What is held for peers.
    pub(crate) buffers: Arc<Buffers>,
    /// Snapshots for those who watch.
    pub(crate) live: Live,
    pub(crate) decisions: Arc<DecisionCounts>,
    overload_log: overload::OverloadLog,
    /// The warning about a proxy that is not trusted.
    pub(crate) untrusted_proxy: Once,
    request_ids: AtomicU64,
}

/// The state that a reload changes.
#[derive(Debug)]
struct Reloadable {
    snapshot: ArcSwap<Snapshot>,
    /// The parts that the rules in force are composed of. Locked while a snapshot is published.
    rules: Mutex<Rules>,
    /// The text of the configuration files when they were last read, valid or not. Locked during a
    /// reload.
    text: Mutex<String>,
}

/// The rules in force, with the settings and Envoy's domains that were read with them. A gRPC
/// request is resolved and decided by one snapshot, so it sees all of the old configuration or all
/// of the new.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) settings: Arc<Settings>,
    pub(crate) rules: RulesSnapshot,
}

/// The rules of the file, and the limits that administrators set for single clients.
#[derive(Debug)]
struct Rules {
    file: RuleSet,
    /// A limit whose rule is gone has no effect until the rule is back.
    client_limits: Vec<ClientLimit>,
    /// The file's extent, to recognise a truncated one.
    extent: Extent,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App").field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

impl App {
    /// Builds a server. A reload rereads `origin`; decisions use `clock`.
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub fn new(origin: Origin, config: Config, clock: Arc<dyn Clock>) -> Result<Self, String> {
        let Config { fixed, settings, rules, warnings: _, text, extent } = config;
        let decisions = Arc::new(DecisionCounts::new(settings.hash_keys_in_logs)?);
        let store = fixed.store.open(loading::progress_reporter())?;
        let client_limits = match fixed.store.data_directory() {
            Some(directory) => client_limits::load(directory, &store)?,
            None => Vec::new(),
        };
        let in_force =
            compose(&rules, &client_limits, &fixed, &settings).map_err(|error| error.to_string())?;
        let limiter = Limiter::builder(in_force)
            .store(store)
            .clock(Arc::clone(&clock))
            .observer(DecisionObserver::new(Arc::clone(&decisions)))
            .deadline(fixed.store.deadline)
            .local_share(fixed.store.local_share)
            .max_holds(fixed.store.max_holds)
            .holds_per_caller(fixed.store.holds_per_caller)
            .longest_inline_refill(fixed.store.longest_inline_refill)
            .build()
            .map_err(|error| error.to_string())?;
        let snapshot = Snapshot { settings: Arc::new(settings), rules: limiter.snapshot() };
        Ok(Self {
            limiter,
            started_at: clock.now(),
            clock,
            origin,
            fixed,
            reloadable: Reloadable {
                snapshot: ArcSwap::from_pointee(snapshot),
                rules: Mutex::new(Rules { file: rules, client_limits, extent }),
                text: Mutex::new(text),
            },
            authentication: Authentication::new()?,
            eviction: EvictionWatch::default(),
            blocked: blocks::Names::default(),
            resetting: clear::Resetting::default(),
            ready: AtomicBool::new(true),
            metrics: Metrics::default(),
            buffers: Arc::default(),
            live: Live::default(),
            decisions,
            overload_log: overload::OverloadLog::new(),
            untrusted_proxy: Once::new(),
            request_ids: AtomicU64::new(0),
        })
    }

    /// Decides a request, if the store decides in memory.
    ///
    /// # Errors
    /// As [`Limiter::check_async`].
    pub(crate) fn check_in_memory(&self, request: impl AsRequest) -> Option<Result<Decision, Error>> {
        let began = STOPWATCH.now();
        let decision = self.limiter.in_memory()?.check(request);
        self.metrics.store.observe(STOPWATCH.now().since(began), 1);
        Some(decision)
    }

    /// Decides a request.
    ///
    /// # Errors
    /// As [`Limiter::check_async`].
    pub(crate) async fn check(&self, request: impl AsRequest) -> Result<Decision, Error> {
        self.timed(self.limiter.check_async(request)).await
    }

    /// Decides several requests in order and passes each decision to `each`. A store that has to be
    /// waited for decides them concurrently.
    pub(crate) async fn check_many<R: AsRequest + Copy>(
        &self,
        requests: &[R],
        each: impl FnMut(Result<Decision, Error>),
    ) {
        let began = STOPWATCH.now();
        if let Some(limiter) = self.limiter.in_memory() {
            limiter.check_many(requests, each);
            self.metrics.store.observe(STOPWATCH.now().since(began), requests.len());
            return;
        }
        let checks = requests.iter().map(|request| self.timed(self.limiter.check_async(*request)));
        join_all(checks).await.into_iter().for_each(each);
    }

    /// Measures an operation of the limiter.
    pub(crate) async fn timed<T>(&self, operation: impl Future<Output = T>) -> T {
        let began = STOPWATCH.now();
        let result = operation.await;
        self.metrics.store.observe(STOPWATCH.now().since(began), 1);
        result
    }

    /// Resets a client under every rule keyed by client alone, and under `CL.THROTTLE`, which needs
    /// no rule.
    ///
    /// # Errors
    /// As [`Limiter::reset`]. Where no rule is keyed by client alone, `CL.THROTTLE` is reset all
    /// the same.
    pub(crate) async fn reset(&self, client: &str) -> Result<(), Error> {
        let [by_rules, throttled] = inline::client_budgets(client);
        let by_rules = self.timed(self.limiter.reset(by_rules)).await;
        let throttled = self.timed(self.limiter.reset(throttled)).await;
        by_rules.and(inline::ignore_unknown_rule(throttled).map(drop))
    }

    /// The configuration in force.
    pub(crate) fn snapshot(&self) -> Guard<Arc<Snapshot>> {
        self.reloadable.snapshot.load()
    }

    /// The settings that need a restart.
    pub(crate) const fn fixed(&self) -> &Fixed {
        &self.fixed
    }

    /// A client's name for a log line: masked or shortened.
    pub(crate) fn logged(&self, client: &str) -> String {
        self.decisions.names.logged(client)
    }

    /// The export of metrics and spans, if there is one.
    pub(crate) fn telemetry(&self) -> Option<&Telemetry> {
        self.decisions.telemetry.get()
    }

    /// An id for a request without one: the start time and a number.
    pub(crate) fn next_request_id(&self) -> HeaderValue {
        let number = self.request_ids.fetch_add(1, Ordering::Relaxed);
        let server = self.started_at.as_nanos();
        HeaderValue::try_from(format!("{server:x}-{number:x}")).unwrap_or(HeaderValue::from_static("-"))
    }

    /// Whether the server accepts requests: false once it is stopping.
    pub(crate) fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Relaxed)
    }

    /// Why the server is not ready, in a sentence; `None` if it is.
    pub(crate) async fn not_ready_reason(&self) -> Option<String> {
        if !self.is_ready() {
            return Some("the server is stopping; use another one".into());
        }
        let store = self.limiter.store();
        if let Ok(Ok(())) = timeout(self.fixed.store.deadline, store.ping()).await {
            return None;
        }
        // What the store says may name hosts and users; its code does not.
        let failure = store.failure().unwrap_or_default();
        let is_code = |word: &&str| word.len() > 1 && word.bytes().all(|byte| byte.is_ascii_uppercase());
        Some(match failure.split(' ').next().filter(is_code) {
            Some(code) => {
                format!("the store refuses requests ({code}); the log and GET /v1/stats have the reason")
            }
            None => "the store does not answer; the log and GET /v1/stats have the reason".into(),
        })
    }

    /// Fails readiness, so that load balancers stop sending requests.
    pub(crate) fn set_not_ready(&self) {
        self.ready.store(false, Ordering::Relaxed);
    }

    /// Reloads the configuration. A valid one takes effect at once and keeps the counts; an invalid
    /// one changes nothing.
    ///
    /// # Errors
    /// The configuration's errors, already logged and counted.
    pub(crate) fn reload(&self) -> Result<(), ConfigErrors> {
        // One reload at a time, so that the newest wins.
        let mut text = self.reloadable.text.lock().unwrap_or_else(PoisonError::into_inner);
        // The text is read first, so a write during the load triggers another reload.
        let before = self.current_text();
        let read = self.origin.load();
        *text = read.as_ref().map_or(before, |config| config.text.clone());
        let applied = read.and_then(|config| self.apply(config));
        self.metrics.reloaded(applied.is_ok());
        match &applied {
            Ok(()) => info!("the configuration was reloaded and is in effect"),
            Err(errors) => {
                error!("the new configuration is not in effect, and nothing has changed:\n{errors}")
            }
        }
        applied
    }

    /// Whether the configuration files differ from when they were last read.
    pub(crate) fn config_changed(&self) -> bool {
        let text = self.current_text();
        *self.reloadable.text.lock().unwrap_or_else(PoisonError::into_inner) != text
    }

    fn current_text(&self) -> String {
        self.origin.text(self.snapshot().settings.envoy_config.as_deref())
    }

    /// The paths to watch: configuration files and directories of them.
    pub(crate) fn watched_paths(&self) -> impl Iterator<Item = PathBuf> {
        self.origin.file.clone().into_iter().chain(self.snapshot().settings.envoy_config.clone())
    }

    fn apply(&self, config: Config) -> Result<(), ConfigErrors> {
        let name = || self.origin.file.as_ref().map(|file| file.display().to_string()).unwrap_or_default();
        let mut rules = self.rules();
        if let Some(lost) = config.lost_since(rules.extent, &self.snapshot().settings) {
            return Err(ConfigErrors::sentence(name(), lost));
        }
        let Config { fixed, settings, rules: file, warnings, text: _, extent } = config;
        warnings.iter().for_each(|warning| warn!("{warning}"));
        let replaced = self.publish(&file, &rules.client_limits, Arc::new(settings)).map_err(|error| {
            let restart = if fixed.store == self.fixed.store {
                ""
            } else {
                "; a change of [store] needs a restart first"
            };
            ConfigErrors::sentence(name(), format!("{error}{restart}"))
        })?;
        let had_token = replaced.settings.admin_token.is_some();
        (rules.file, rules.extent) = (file, extent);
        self.decisions.names.set_masked(self.snapshot().settings.hash_keys_in_logs);
        drop(rules);
        self.renew_access(had_token);
        let waiting = self.fixed.changed_settings(&fixed);
        if !waiting.is_empty() {
            let waiting = waiting.join(", ");
            warn!("{waiting}: a change of this needs a restart");
        }
        Ok(())
    }

    /// Puts a configuration in force and returns the one before it. The caller holds the rules'
    /// lock.
    fn publish(
        &self,
        file: &RuleSet,
        client_limits: &[ClientLimit],
        settings: Arc<Settings>,
    ) -> Result<Arc<Snapshot>, Error> {
        self.limiter.set_rules(compose(file, client_limits, &self.fixed, &settings)?)?;
        let rules = self.limiter.snapshot();
        Ok(self.reloadable.snapshot.swap(Arc::new(Snapshot { settings, rules })))
    }

    fn rules(&self) -> MutexGuard<'_, Rules> {
        self.reloadable.rules.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file's rules, the rules of inline limits, and the per-client limits, which take precedence.
fn compose(
    file: &RuleSet,
    client_limits: &[ClientLimit],
    fixed: &Fixed,
    settings: &Settings,
) -> Result<RuleSet, Error> {
    let client_limits = client_limits.iter().map(|limit| &limit.replacement);
    let client_limits = client_limits.filter(|limit| is_per_client(file, limit.rule().as_str()));
    let overrides = client_limits.chain(file.overrides()).cloned();
    let inline = inline::rules(&fixed.addresses, settings.on_store_error, fixed.store.inline_keys());
    let rules = RuleSet::new(file.rules().iter().cloned().chain(inline))?.with_overrides(overrides)?;
    let rules = rules.with_paths(settings.paths);
    Ok(if settings.deny_uncovered { rules.deny_uncovered() } else { rules })
}
