//! The way to Redis: one connection that all requests share, and a breaker that stops trying when it is of no use.
//!
//! Requests are written one after the other and answered in that order, so those that are under way together share
//! round trips. What goes wrong is seen in three ways, and each leads to the same state, *shut*: the connection breaks;
//! Redis says that it cannot (loading, read-only, out of memory, no permission); or several requests in a row have been
//! given up by their callers unanswered. While shut, requests fail at once, without a connection to wait for. Meanwhile a *keeper* tries every
//! [`PROBE_INTERVAL`] whether a write succeeds: on the connection there is, which may merely have hung, and then on a
//! new one, whose address a Sentinel may give anew. The first success opens it again.
//!
//! In a Cluster one dead master must not cost the others their traffic, so there every range of slots has its own gate.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::timeout;
use tollgate::{Clock as _, StoreError, Timestamp, TokioClock};

use crate::key::{SLOTS, name_in};
use crate::target::Dialer;

/// How often a shut gate is tried: recovery is noticed within this and the time-outs below, well within a second.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// How long a probe may take.
const PROBE_TIMEOUT: Duration = Duration::from_millis(150);
/// How long making a connection may take.
pub(crate) const DIAL_TIMEOUT: Duration = Duration::from_millis(400);
/// How long a Cluster's connections wait for an answer. (A single server's does not time out by itself: callers do.)
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Who waits for less does not mean to wait.
const PATIENCE: Duration = Duration::from_millis(5);
/// So many requests in a row, given up unanswered, shut the gate. One alone may be a caller who left.
const MISSES: u32 = 3;
/// How many ranges of slots a Cluster is watched in.
const RANGES: u16 = 128;
/// A Cluster's client finds its own way again; this often it is nevertheless made anew.
const REDIAL_EVERY: u32 = 20;

/// A change that an operator wants to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Redis is of no use for now, and requests no longer wait for it.
    Down {
        /// Why.
        reason: String,
    },
    /// It is back.
    Back,
}

/// Whom to tell of a [`Change`].
pub(crate) type Tell = Box<dyn Fn(&Change) + Send + Sync>;

#[derive(Clone)]
enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server does not have the script.
    NoScript,
    /// Anything else.
    Store(StoreError),
}

/// One breaker.
#[derive(Default)]
struct Gate {
    misses: AtomicU32,
    /// Why it is shut, if it is.
    shut: ArcSwapOption<String>,
    /// Whether a keeper is at work.
    kept: AtomicBool,
}

pub(crate) struct Link {
    dialer: Dialer,
    prefix: String,
    connection: watch::Sender<Option<Connection>>,
    gates: Box<[Gate]>,
    trips: AtomicU64,
    tell: Option<Tell>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("shut", &self.why_shut()).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(dialer: Dialer, prefix: String, tell: Option<Tell>) -> Self {
        let gates = if matches!(dialer, Dialer::Cluster(_)) { RANGES } else { 1 };
        Self {
            dialer,
            prefix,
            connection: watch::Sender::new(None),
            gates: (0..gates).map(|_| Gate::default()).collect(),
            trips: AtomicU64::new(0),
            tell,
        }
    }

    /// Why requests are not tried, if some are not.
    pub(crate) fn why_shut(&self) -> Option<String> {
        self.gates.iter().find_map(|gate| gate.shut.load().as_deref().cloned())
    }

    /// How often a gate has been shut.
    pub(crate) fn trips(&self) -> u64 {
        self.trips.load(Ordering::Relaxed)
    }

    fn gate(&self, slot: u16) -> &Gate {
        match self.gates.len() {
            1 => &self.gates[0],
            _ => &self.gates[usize::from(slot / (SLOTS / RANGES))],
        }
    }

    /// Sends a command to whoever has `slot`, and waits for the answer.
    pub(crate) async fn send(self: &Arc<Self>, slot: u16, command: &Cmd) -> Result<Value, Failure> {
        let gate = self.gate(slot);
        let mut flight = Flight { link: self, slot, since: TokioClock.now(), landed: false };
        let connection = self.connection(gate, slot).await;
        let answer = match connection {
            Ok(connection) => ask(connection, command).await,
            Err(failure) => {
                flight.landed = true;
                return Err(failure);
            }
        };
        flight.landed = true;
        match answer {
            Ok(value) => {
                if gate.misses.load(Ordering::Relaxed) > 0 {
                    gate.misses.store(0, Ordering::Relaxed);
                }
                Ok(value)
            }
            Err(error) if error.kind() == ServerErrorKind::NoScript.into() => Err(Failure::NoScript),
            Err(error) => {
                let reason = in_words(&error);
                if is_lasting(&error) {
                    self.shut(slot, reason.clone());
                }
                Err(Failure::Store(StoreError::Unavailable { reason }))
            }
        }
    }

    /// Whether a write succeeds.
    pub(crate) async fn ping(self: &Arc<Self>) -> Result<(), StoreError> {
        match self.send(0, &self.write_to(0)).await {
            Ok(_) => Ok(()),
            Err(Failure::Store(error)) => Err(error),
            Err(Failure::NoScript) => unreachable!("a SET needs no script"),
        }
    }

    /// The least that shows whether the node of a slot is of use.
    fn write_to(&self, slot: u16) -> Cmd {
        let mut write = redis::cmd("SET");
        write.arg(name_in(&self.prefix, slot)).arg(1).arg("PX").arg(1_000);
        write
    }

    /// The connection, made first if there has never been one.
    async fn connection(self: &Arc<Self>, gate: &Gate, slot: u16) -> Result<Connection, Failure> {
        let mut changes = None;
        loop {
            if let Some(why) = &*gate.shut.load() {
                let reason = format!("not tried, because {why}");
                return Err(Failure::Store(StoreError::Unavailable { reason }));
            }
            if let Some(connection) = &*self.connection.borrow() {
                return Ok(connection.clone());
            }
            let Some(changes) = &mut changes else {
                changes = Some(self.connection.subscribe());
                continue;
            };
            self.keep(slot);
            let _ = changes.changed().await;
        }
    }

    /// Nothing more is tried at this slot's gate, until it is found to work again.
    fn shut(self: &Arc<Self>, slot: u16, reason: String) {
        let gate = self.gate(slot);
        if gate.shut.swap(Some(Arc::new(reason.clone()))).is_none() {
            self.trips.fetch_add(1, Ordering::Relaxed);
            self.tell.iter().for_each(|tell| tell(&Change::Down { reason: reason.clone() }));
        }
        self.connection.send_modify(|_| ());
        self.keep(slot);
    }

    /// Sees to it that somebody tries this slot's gate. (Where there is no runtime any more, nobody does.)
    fn keep(self: &Arc<Self>, slot: u16) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.gate(slot).kept.swap(true, Ordering::AcqRel) {
            runtime.spawn(keep(Arc::downgrade(self), slot));
        }
    }

    /// Whether a write succeeds, on the connection there is or on a new one.
    async fn probe(&self, slot: u16, attempt: u32) -> RedisResult<()> {
        let write = self.write_to(slot);
        let known = self.connection.borrow().clone();
        let redial = match &known {
            Some(Connection::Cluster(_)) => attempt % REDIAL_EVERY == REDIAL_EVERY - 1,
            _ => true,
        };
        let mut outcome = Err(silence());
        if let Some(known) = known {
            outcome = within(PROBE_TIMEOUT, ask(known, &write)).await.map(drop);
        }
        if outcome.is_err() && redial {
            let dialled = within(DIAL_TIMEOUT, self.dial()).await?;
            within(PROBE_TIMEOUT, ask(dialled.clone(), &write)).await?;
            self.connection.send_replace(Some(dialled));
            outcome = Ok(());
        }
        outcome
    }

    async fn dial(&self) -> RedisResult<Connection> {
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(DIAL_TIMEOUT))
            .set_response_timeout(None);
        Ok(match &self.dialer {
            Dialer::Single(client) => {
                Connection::Server(client.get_multiplexed_async_connection_with_config(&settings).await?)
            }
            Dialer::Sentinel(client) => {
                let mut client = client.lock().await;
                Connection::Server(client.get_async_connection_with_config(&settings).await?)
            }
            Dialer::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
        })
    }
}

/// Tries a gate until it is open. Ends when nobody uses the link any more.
async fn keep(link: std::sync::Weak<Link>, slot: u16) {
    let mut attempt = 0;
    while let Some(link) = link.upgrade() {
        match link.probe(slot, attempt).await {
            Ok(()) => {
                let gate = link.gate(slot);
                gate.misses.store(0, Ordering::Relaxed);
                gate.kept.store(false, Ordering::Release);
                if gate.shut.swap(None).is_some() {
                    link.tell.iter().for_each(|tell| tell(&Change::Back));
                }
                link.connection.send_modify(|_| ());
                return;
            }
            Err(error) => link.shut(slot, in_words(&error)),
        }
        drop(link);
        attempt = attempt.wrapping_add(1);
        TokioClock.sleep_until(TokioClock.now().saturating_add(PROBE_INTERVAL)).await;
    }
}

/// A request under way. One that is dropped before it has landed was given up by its caller.
struct Flight<'a> {
    link: &'a Arc<Link>,
    slot: u16,
    since: Timestamp,
    landed: bool,
}

impl Drop for Flight<'_> {
    fn drop(&mut self) {
        // Who did not wait for an answer did not miss one.
        if self.landed || TokioClock.now().since(self.since) < PATIENCE {
            return;
        }
        let misses = self.link.gate(self.slot).misses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if misses >= MISSES {
            self.link.shut(self.slot, format!("{misses} requests in a row had no answer in time"));
        }
    }
}

async fn ask(connection: Connection, command: &Cmd) -> RedisResult<Value> {
    match connection {
        Connection::Server(mut connection) => command.query_async(&mut connection).await,
        Connection::Cluster(mut connection) => command.query_async(&mut connection).await,
    }
}

async fn within<T>(span: Duration, work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(span, work).await.unwrap_or_else(|_| Err(silence()))
}

fn silence() -> RedisError {
    std::io::Error::new(std::io::ErrorKind::TimedOut, "it does not answer").into()
}

/// The error as Redis itself puts it, if it is one of its own.
fn in_words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

/// Whether the next request would fail the same way: then it is not worth trying.
fn is_lasting(error: &RedisError) -> bool {
    let states = [
        "LOADING",
        "READONLY",
        "OOM",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "NOAUTH",
        "NOPERM",
    ];
    match error.code() {
        Some(code) => states.contains(&code),
        None => {
            error.is_io_error()
                || error.is_connection_dropped()
                || error.is_timeout()
                || error.is_cluster_error()
        }
    }
}
