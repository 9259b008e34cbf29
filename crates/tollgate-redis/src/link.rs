//! The link to Redis: one connection that all requests share, behind a circuit breaker.
//!
//! Requests are pipelined: written one after the other and answered in that order, so concurrent
//! requests share round trips.
//!
//! The breaker is *closed* while Redis is healthy. Three events open it: the connection breaks;
//! Redis reports a state in which it cannot decide (loading, read-only, out of memory, no
//! permission); or several requests in a row are dropped by their callers unanswered. While it is
//! *open*, requests fail at once, and a *prober* runs the script every [`PROBE_INTERVAL`]: on the
//! current connection, which may merely have hung, then on a new one. The first probe that succeeds
//! closes the breaker. A breaker that relapses waits longer before the first probe. There is no
//! half-open state: the prober, not a request, tests whether Redis is back.
//!
//! A connection that was idle may be stale: Redis restarted, or closed it. A request that finds it
//! broken is sent once more, on a new connection, and the breaker does not count it.
//!
//! A Cluster has one breaker per range of slots, so that a dead master does not fail the requests
//! of the others.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{Cmd, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tollgate::{Clock as _, StoreError, Timestamp, TokioClock};

use crate::connection::{Connection, Dialer, error_text, is_persistent, with_timeout};
use crate::key::{SLOTS, probe_key};
use crate::script::probe_command;

mod in_flight;

use in_flight::InFlight;

/// Interval between probes while the breaker is open. Recovery is noticed within this and the
/// timeouts of a probe and a dial.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// Minimum timeout of a probe. The store's deadline applies if it is longer.
const PROBE_TIMEOUT_MIN: Duration = Duration::from_millis(150);
/// A breaker that opens again this soon after it closed has relapsed.
const RELAPSE_WINDOW: Duration = Duration::from_secs(1);
/// The wait before the first probe doubles with each relapse, at most this many times.
const BACKOFF_DOUBLINGS_MAX: u32 = 2;
/// A request dropped sooner than this was cancelled; it did not miss an answer.
const MISS_TIME_MIN: Duration = Duration::from_millis(1);
/// Requests in a row without an answer that open the breaker. One alone may be a caller that left.
const MISSES_MAX: u32 = 3;
/// A connection without a request in flight for this long is idle. Less than a restart of Redis
/// takes.
const IDLE_MIN: Duration = Duration::from_millis(1);
/// Ranges of slots, and so breakers, of a Cluster.
const SLOT_RANGES: u16 = 32;
/// A Cluster client reconnects by itself; every so many probes a new one is dialled nevertheless.
const REDIAL_EVERY: u32 = 5;

/// A change of health that an operator wants to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The circuit breaker opened: Redis, or a part of a Cluster, cannot be used, and requests no
    /// longer wait for it.
    Down {
        /// The error that opened it.
        reason: String,
    },
    /// Every circuit breaker is closed again.
    Back,
}

/// Callback for a [`Change`].
pub(crate) type OnChange = Box<dyn Fn(&Change) + Send + Sync>;

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SendError {
    /// The server does not have the script.
    NoScript,
    /// Any other failure.
    Store(StoreError),
}

impl From<SendError> for StoreError {
    fn from(error: SendError) -> Self {
        match error {
            SendError::Store(error) => error,
            SendError::NoScript => {
                let reason = "NOSCRIPT in answer to EVAL; check for a proxy that does not pass scripts on";
                Self::Unavailable { reason: reason.into() }
            }
        }
    }
}

/// A circuit breaker.
#[derive(Default)]
struct Breaker {
    misses: AtomicU32,
    /// Why the breaker is open; `None` while it is closed.
    open: ArcSwapOption<String>,
    /// Whether a prober runs.
    probing: AtomicBool,
    /// When the breaker last closed, in nanoseconds.
    closed_at: AtomicU64,
    /// Relapses in a row.
    relapses: AtomicU32,
}

pub(crate) struct Link {
    dialer: Dialer,
    prefix: String,
    probe_timeout: Duration,
    connection: watch::Sender<Option<Connection>>,
    /// Held while dialling, so that one task dials at a time.
    dial_lock: tokio::sync::Mutex<()>,
    /// Dials attempted so far.
    dials: AtomicU64,
    /// Requests in flight.
    in_flight: AtomicU32,
    /// When the last request ended, in nanoseconds.
    ended_at: AtomicU64,
    /// Whether the connection was idle and has not answered since.
    maybe_stale: AtomicBool,
    breakers: Box<[Breaker]>,
    /// How many breakers are open.
    open_breakers: AtomicU32,
    trips: AtomicU64,
    on_change: Option<OnChange>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("open", &self.open_reason()).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(
        dialer: Dialer,
        prefix: String,
        deadline: Duration,
        on_change: Option<OnChange>,
    ) -> Self {
        let breakers = if matches!(dialer, Dialer::Cluster(_)) { SLOT_RANGES } else { 1 };
        Self {
            dialer,
            prefix,
            probe_timeout: deadline.max(PROBE_TIMEOUT_MIN),
            connection: watch::Sender::new(None),
            dial_lock: tokio::sync::Mutex::new(()),
            dials: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            ended_at: AtomicU64::new(0),
            maybe_stale: AtomicBool::new(false),
            breakers: (0..breakers).map(|_| Breaker::default()).collect(),
            open_breakers: AtomicU32::new(0),
            trips: AtomicU64::new(0),
            on_change,
        }
    }

    /// Why a breaker is open, if one is.
    pub(crate) fn open_reason(&self) -> Option<String> {
        self.breakers.iter().find_map(|breaker| breaker.open.load().as_deref().cloned())
    }

    /// How often the link went from all breakers closed to one open.
    pub(crate) fn trips(&self) -> u64 {
        self.trips.load(Ordering::Relaxed)
    }

    /// The index is in range: there is one breaker, or [`SLOT_RANGES`], and a slot is below
    /// [`SLOTS`].
    fn breaker(&self, slot: u16) -> &Breaker {
        match self.breakers.len() {
            1 => &self.breakers[0],
            _ => &self.breakers[usize::from(slot / (SLOTS / SLOT_RANGES))],
        }
    }

    /// Sends a command to the node of `slot`, and waits for the answer.
    pub(crate) async fn send(self: &Arc<Self>, slot: u16, command: &Cmd) -> Result<Value, SendError> {
        let breaker = self.breaker(slot);
        let dials = self.dials.load(Ordering::Acquire);
        let mut in_flight = InFlight::new(self, slot);
        let answer = match self.connection(breaker, slot).await {
            Ok(connection) => self.send_on(connection, dials, command).await,
            Err(error) => {
                in_flight.ended = true;
                return Err(error);
            }
        };
        in_flight.ended = true;
        match answer {
            Ok(value) => {
                if breaker.misses.load(Ordering::Relaxed) > 0 {
                    breaker.misses.store(0, Ordering::Relaxed);
                }
                Ok(value)
            }
            Err(error) if is_no_script(&error) => Err(SendError::NoScript),
            Err(error) => {
                let reason = error_text(&error);
                if is_persistent(&error) {
                    self.open(slot, reason.clone());
                }
                Err(SendError::Store(StoreError::Unavailable { reason }))
            }
        }
    }

    /// Sends a command on a connection; once more on a new one if the connection was idle and is
    /// broken. The requests that find it so share one dial. A Cluster client reconnects by itself.
    async fn send_on(&self, connection: Connection, dials: u64, command: &Cmd) -> RedisResult<Value> {
        let is_server = matches!(connection, Connection::Server(_));
        let maybe_stale = is_server && self.maybe_stale.load(Ordering::Acquire);
        let answer = match connection.send(command).await {
            Err(error) if maybe_stale && error.is_io_error() => self.send_on_new(dials, command).await,
            answer => answer,
        };
        if maybe_stale && answer.is_ok() {
            self.maybe_stale.store(false, Ordering::Release);
        }
        answer
    }

    /// Runs the script once, as a probe does.
    pub(crate) async fn ping(self: &Arc<Self>) -> Result<(), StoreError> {
        self.send(0, &probe_command(&probe_key(&self.prefix, 0))).await?;
        Ok(())
    }

    /// The connection, for administrative commands. Fails if the breaker of slot 0 is open.
    pub(crate) async fn admin_connection(self: &Arc<Self>) -> Result<Connection, StoreError> {
        self.connection(self.breaker(0), 0).await.map_err(|error| match error {
            SendError::Store(error) => error,
            SendError::NoScript => StoreError::Unavailable { reason: "Redis has no script".into() },
        })
    }

    /// The connection. Waits for the first dial if there has been none.
    async fn connection(self: &Arc<Self>, breaker: &Breaker, slot: u16) -> Result<Connection, SendError> {
        let mut changes = None;
        loop {
            if let Some(cause) = &*breaker.open.load() {
                // The last prober may have ended with its runtime.
                self.ensure_prober(slot);
                let reason = format!("the circuit breaker is open: {cause}");
                return Err(SendError::Store(StoreError::Unavailable { reason }));
            }
            if let Some(connection) = &*self.connection.borrow() {
                return Ok(connection.clone());
            }
            let Some(changes) = &mut changes else {
                changes = Some(self.connection.subscribe());
                continue;
            };
            self.ensure_prober(slot);
            let _ = changes.changed().await;
        }
    }

    /// Opens the breaker of `slot`, or replaces the reason it is open.
    fn open(self: &Arc<Self>, slot: u16, reason: String) {
        let breaker = self.breaker(slot);
        if breaker.open.swap(Some(Arc::new(reason.clone()))).is_none() {
            let closed_for =
                TokioClock.now().since(Timestamp::from_nanos(breaker.closed_at.load(Ordering::Relaxed)));
            match closed_for < RELAPSE_WINDOW {
                true => breaker.relapses.fetch_add(1, Ordering::Relaxed),
                false => breaker.relapses.swap(0, Ordering::Relaxed),
            };
            if self.open_breakers.fetch_add(1, Ordering::AcqRel) == 0 {
                self.trips.fetch_add(1, Ordering::Relaxed);
                self.on_change.iter().for_each(|call| call(&Change::Down { reason: reason.clone() }));
            }
        }
        self.connection.send_modify(|_| ());
        self.ensure_prober(slot);
    }

    fn close(&self, breaker: &Breaker) {
        breaker.misses.store(0, Ordering::Relaxed);
        breaker.closed_at.store(TokioClock.now().as_nanos(), Ordering::Relaxed);
        if breaker.open.swap(None).is_some() && self.open_breakers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.on_change.iter().for_each(|call| call(&Change::Back));
        }
        self.connection.send_modify(|_| ());
    }

    /// Starts a prober for the breaker of `slot`, unless one runs. Outside a runtime it does
    /// nothing: the next request inside one starts it.
    fn ensure_prober(self: &Arc<Self>, slot: u16) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.breaker(slot).probing.swap(true, Ordering::AcqRel) {
            runtime.spawn(probe_until_closed(Prober { link: Arc::downgrade(self), slot }));
        }
    }

    /// Runs the script on the current connection and, if that fails, on a new one.
    async fn probe(&self, command: &Cmd, attempt: u32) -> RedisResult<()> {
        let dials = self.dials.load(Ordering::Acquire);
        let current = self.connection.borrow().clone();
        if let Some(current) = current {
            let redial =
                matches!(current, Connection::Server(_)) || attempt % REDIAL_EVERY == REDIAL_EVERY - 1;
            let outcome = with_timeout(self.probe_timeout, current.send(command)).await;
            if outcome.is_ok() || !redial {
                return outcome.map(drop);
            }
        }
        self.send_on_new(dials, command).await.map(drop)
    }

    /// Sends a command on a new connection, which becomes the link's if it can be used. One task
    /// dials at a time. If another has dialled since `dials` were counted, its connection is used.
    async fn send_on_new(&self, dials: u64, command: &Cmd) -> RedisResult<Value> {
        let _dialling = self.dial_lock.lock().await;
        let dialled = if self.dials.load(Ordering::Acquire) == dials {
            let dialled = self.dialer.dial().await;
            self.dials.fetch_add(1, Ordering::AcqRel);
            dialled?
        } else {
            self.connection.borrow().clone().ok_or_else(no_connection)?
        };
        let answer = with_timeout(self.probe_timeout, dialled.clone().send(command)).await;
        // A server that restarted has no script yet.
        if answer.as_ref().map_or_else(is_no_script, |_| true) {
            self.connection.send_replace(Some(dialled));
        }
        answer
    }
}

fn is_no_script(error: &redis::RedisError) -> bool {
    error.kind() == ServerErrorKind::NoScript.into()
}

fn no_connection() -> redis::RedisError {
    std::io::Error::new(std::io::ErrorKind::NotConnected, "there is no connection").into()
}

/// Marks the breaker of `slot` as probed. Dropping it lets another prober start.
struct Prober {
    link: Weak<Link>,
    slot: u16,
}

impl Drop for Prober {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.breaker(self.slot).probing.store(false, Ordering::Release);
        }
    }
}

/// Probes until the breaker is closed, or the link is dropped.
async fn probe_until_closed(prober: Prober) {
    let mut attempt = 0;
    let mut command = None;
    loop {
        let Some(link) = prober.link.upgrade() else { return };
        let breaker = link.breaker(prober.slot);
        let relapses = breaker.relapses.load(Ordering::Relaxed);
        if attempt == 0 && relapses > 0 {
            sleep(PROBE_INTERVAL * 2_u32.pow(relapses.min(BACKOFF_DOUBLINGS_MAX))).await;
        }
        let command = command.get_or_insert_with(|| probe_command(&probe_key(&link.prefix, prober.slot)));
        match link.probe(command, attempt).await {
            Ok(()) => return link.close(breaker),
            Err(error) => link.open(prober.slot, error_text(&error)),
        }
        drop(link);
        attempt = attempt.wrapping_add(1);
        sleep(PROBE_INTERVAL).await;
    }
}

async fn sleep(span: Duration) {
    TokioClock.sleep_until(TokioClock.now().saturating_add(span)).await;
}
