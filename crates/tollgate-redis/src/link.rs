//! The link to Redis: one connection that all requests share, behind a circuit breaker.
//!
//! Requests are pipelined: written one after the other and answered in that order, so concurrent
//! requests share round trips.
//!
//! The breaker ([`breaker`]) is *closed* while Redis is healthy. While it is *open*, requests fail
//! at once, and a *prober* ([`prober`]) runs the script: on the current connection, which may
//! merely have hung, then on a new one. Several probes in a row that are answered close it, more
//! with each relapse; each probe that is not makes the next one wait longer, and so does a relapse.
//! There is no half-open state: the prober, not a request, tests whether Redis is back.
//!
//! A *watcher* ([`watcher`]) asks the Sentinels for the master while all is well, and probes a link
//! that is idle.
//!
//! A connection that was idle may be stale: Redis restarted, or closed it. A request that finds it
//! broken is sent once more, on a new connection, and the breaker does not count it.
//!
//! A Cluster has one breaker per range of slots, so that a dead master does not fail the requests
//! of the others.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{Cmd, RedisResult, ServerErrorKind, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tollgate::{Clock as _, StoreError, TokioClock};

use crate::connection::{Connection, Dialer, error_text, is_persistent};
use crate::key::{SLOTS, probe_key};
use crate::script::probe_command;
use crate::sentinel::Address;

mod breaker;
mod change;
mod in_flight;
mod prober;
mod watcher;

use breaker::Breaker;
pub use change::Change;
use change::Changes;
pub(crate) use change::OnChange;
use in_flight::InFlight;

/// Ranges of slots, and so breakers, of a Cluster.
const SLOT_RANGES: u16 = 32;

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

pub(crate) struct Link {
    dialer: Dialer,
    prefix: String,
    /// The longest response time of a healthy Redis: the timeout of a probe.
    deadline: Duration,
    connect_timeout: Duration,
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
    changes: Changes,
    /// The master that the connection is to, behind Sentinels.
    master: ArcSwapOption<Address>,
    /// How often the connection moved to another master.
    moves: AtomicU64,
    /// The time that the last probe took, in nanoseconds.
    round_trip: AtomicU64,
    /// Whether [`Change::Slow`] was told.
    is_slow: AtomicBool,
    /// A link without a request for this long is probed.
    probe_interval: Duration,
    /// Whether a watcher runs.
    watched: AtomicBool,
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
        connect_timeout: Duration,
        probe_interval: Duration,
        on_change: Option<OnChange>,
    ) -> Self {
        let breakers = if matches!(dialer, Dialer::Cluster(_)) { SLOT_RANGES } else { 1 };
        Self {
            dialer,
            prefix,
            deadline,
            connect_timeout,
            connection: watch::Sender::new(None),
            dial_lock: tokio::sync::Mutex::new(()),
            dials: AtomicU64::new(0),
            in_flight: AtomicU32::new(0),
            ended_at: AtomicU64::new(0),
            maybe_stale: AtomicBool::new(false),
            breakers: (0..breakers).map(|_| Breaker::default()).collect(),
            open_breakers: AtomicU32::new(0),
            trips: AtomicU64::new(0),
            changes: Changes::new(on_change),
            master: ArcSwapOption::default(),
            moves: AtomicU64::new(0),
            round_trip: AtomicU64::new(0),
            is_slow: AtomicBool::new(false),
            probe_interval,
            watched: AtomicBool::new(false),
        }
    }

    /// Why a breaker is open, if one is.
    pub(crate) fn open_reason(&self) -> Option<String> {
        self.breakers.iter().find_map(|breaker| Some(breaker.open_reason()?.as_ref().clone()))
    }

    /// How often the link went from all breakers closed to one open.
    pub(crate) fn trips(&self) -> u64 {
        self.trips.load(Ordering::Relaxed)
    }

    /// How often the connection moved to another master that Sentinels named.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// The time that the last probe took; `None` before the first.
    pub(crate) fn round_trip(&self) -> Option<Duration> {
        let nanos = self.round_trip.load(Ordering::Relaxed);
        (nanos > 0).then_some(Duration::from_nanos(nanos))
    }

    /// The index is in range: there is one breaker, or [`SLOT_RANGES`], and a slot is below
    /// [`SLOTS`].
    fn breaker(&self, slot: u16) -> &Breaker {
        match self.breakers.len() {
            1 => &self.breakers[0],
            _ => &self.breakers[usize::from(slot / (SLOTS / SLOT_RANGES))],
        }
    }

    /// A key for probes of the node of `slot`.
    fn probe_key(&self, slot: u16) -> String {
        probe_key(&self.prefix, (self.breakers.len() > 1).then_some(slot))
    }

    /// Completes once there is a connection, or none can be had.
    pub(crate) async fn ready(self: &Arc<Self>) {
        let mut changes = None;
        while self.connection.borrow().is_none() && self.open_breakers.load(Ordering::Acquire) == 0 {
            let Some(changes) = &mut changes else {
                changes = Some(self.connection.subscribe());
                continue;
            };
            if !self.ensure_prober(0) {
                return;
            }
            let _ = changes.changed().await;
        }
    }

    /// Sends a command to the node of `slot`, and waits for the answer.
    pub(crate) async fn send(self: &Arc<Self>, slot: u16, command: &Cmd) -> Result<Value, SendError> {
        let mut answers = self.send_each(slot, std::slice::from_ref(command)).await?;
        answers.pop().expect("there is one answer per command")
    }

    /// Sends commands to the node of `slot`, one after the other in one write, and waits for their
    /// answers. A Cluster client takes one command, and only inside a runtime, whose timer it uses.
    ///
    /// # Errors
    /// If none of them was answered.
    pub(crate) async fn send_each(
        self: &Arc<Self>,
        slot: u16,
        commands: &[Cmd],
    ) -> Result<Vec<Result<Value, SendError>>, SendError> {
        if self.breakers.len() > 1 && Handle::try_current().is_err() {
            let reason = "a Redis Cluster is used outside of a tokio runtime".into();
            return Err(SendError::Store(StoreError::Unavailable { reason }));
        }
        let dials = self.dials.load(Ordering::Acquire);
        let mut in_flight = InFlight::new(self, slot);
        let answers = match self.connection(self.breaker(slot), slot).await {
            Ok(connection) => self.send_on(connection, dials, slot, commands).await,
            Err(error) => {
                in_flight.ended = true;
                return Err(error);
            }
        };
        in_flight.ended = true;
        let answers = answers.map_err(|error| self.failed(slot, &error))?;
        Ok(answers.into_iter().map(|answer| answer.map_err(|error| self.failed(slot, &error))).collect())
    }

    /// Opens the breaker if an error is about the server.
    fn failed(self: &Arc<Self>, slot: u16, error: &redis::RedisError) -> SendError {
        if is_no_script(error) {
            return SendError::NoScript;
        }
        let reason = error_text(error);
        if is_persistent(error) {
            self.open(slot, reason.clone());
        }
        SendError::Store(StoreError::Unavailable { reason })
    }

    /// Sends commands on a connection; once more on a new one if the connection was idle and is
    /// broken, or if the server is not the Sentinels' master any more. The requests that find it so
    /// share one dial. A Cluster client reconnects by itself.
    async fn send_on(
        &self,
        connection: Connection,
        dials: u64,
        slot: u16,
        commands: &[Cmd],
    ) -> RedisResult<Vec<RedisResult<Value>>> {
        let is_server = matches!(connection, Connection::Server(_));
        let maybe_stale = is_server && self.maybe_stale.load(Ordering::Acquire);
        let answers = match connection.send_each(commands).await {
            Err(error) if maybe_stale && error.is_io_error() => {
                self.dial(dials, slot).await?.send_each(commands).await
            }
            Ok(answers) if self.dialer.as_sentinels().is_some() => {
                Ok(self.send_read_only(answers, dials, slot, commands).await)
            }
            answers => answers,
        };
        if maybe_stale && answers.is_ok() {
            self.maybe_stale.store(false, Ordering::Release);
        }
        answers
    }

    /// Sends the commands again that a replica refused, to the master that the Sentinels name. What
    /// is answered READONLY was not executed. If there is no other master, the answers stay.
    async fn send_read_only(
        &self,
        mut answers: Vec<RedisResult<Value>>,
        dials: u64,
        slot: u16,
        commands: &[Cmd],
    ) -> Vec<RedisResult<Value>> {
        let is_refused = |answer: &RedisResult<Value>| answer.as_ref().is_err_and(is_read_only);
        let refused: Vec<usize> = (0..answers.len()).filter(|index| is_refused(&answers[*index])).collect();
        if refused.is_empty() {
            return answers;
        }
        let Ok(master) = self.dial(dials, slot).await else { return answers };
        let again: Vec<Cmd> = refused.iter().map(|index| commands[*index].clone()).collect();
        if let Ok(answered) = master.send_each(&again).await {
            refused.into_iter().zip(answered).for_each(|(index, answer)| answers[index] = answer);
        }
        answers
    }

    /// Runs the script once, as a probe does.
    pub(crate) async fn ping(self: &Arc<Self>) -> Result<(), StoreError> {
        self.ready().await;
        let key = self.probe_key(0);
        match self.send(0, &probe_command(&key, false)).await {
            Err(SendError::NoScript) => self.send(0, &probe_command(&key, true)).await?,
            answer => answer?,
        };
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
        self.ensure_watcher();
        let mut changes = None;
        loop {
            if let Some(cause) = breaker.open_reason() {
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
        let opened = self.breaker(slot).open(reason.clone(), TokioClock.now());
        let is_first = opened && self.open_breakers.fetch_add(1, Ordering::AcqRel) == 0;
        if is_first {
            self.trips.fetch_add(1, Ordering::Relaxed);
        }
        self.changes.down(reason, is_first);
        self.connection.send_modify(|_| ());
        self.ensure_prober(slot);
    }

    fn close(&self, breaker: &Breaker) {
        if breaker.close(TokioClock.now()) && self.open_breakers.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.changes.tell(&Change::Back);
        }
        self.connection.send_modify(|_| ());
    }
}

fn is_no_script(error: &redis::RedisError) -> bool {
    error.kind() == ServerErrorKind::NoScript.into()
}

fn is_read_only(error: &redis::RedisError) -> bool {
    error.kind() == ServerErrorKind::ReadOnly.into()
}

fn no_connection() -> redis::RedisError {
    std::io::Error::new(std::io::ErrorKind::NotConnected, "there is no connection").into()
}
