//! The way to Redis: one connection that all requests share, and a breaker that stops trying when it is of no use.
//!
//! Requests are written one after the other and answered in that order, so those that are under way together share
//! round trips. What goes wrong is seen in three ways, and each leads to the same state, *shut*: the connection breaks;
//! Redis says that it cannot (loading, read-only, out of memory, no permission); or several requests in a row have been
//! given up by their callers unanswered. While shut, requests fail at once. Meanwhile a *keeper* tries, every
//! [`PROBE_INTERVAL`], whether the script runs: on the connection there is, which may merely have hung, and then on a
//! new one. The first success opens it again, unless it was open for a moment only just before: then it takes longer.
//!
//! In a Cluster one dead master must not cost the others their traffic, so there every range of slots has its own gate.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use redis::{Cmd, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tollgate::{Clock as _, StoreError, Timestamp, TokioClock};

use crate::connection::{Connection, Dialer, in_words, is_lasting, within};
use crate::key::{SLOTS, name_in};
use crate::script::probe;

/// How often a shut gate is tried: recovery is noticed within this and the time-outs of a probe and a dial.
const PROBE_INTERVAL: Duration = Duration::from_millis(100);
/// How long a probe may take at least; as long as a request may, if that is longer.
const PROBE_TIMEOUT: Duration = Duration::from_millis(150);
/// A gate that shuts again this soon after it was opened stays shut for longer.
const MOMENT: Duration = Duration::from_secs(1);
/// How much longer at most: twice as long each time, so many times.
const PATIENT_AT_MOST: u32 = 2;
/// Who waits for less does not mean to wait.
const IMPATIENT: Duration = Duration::from_millis(1);
/// So many requests in a row, given up unanswered, shut the gate. One alone may be a caller who left.
const MISSES: u32 = 3;
/// How many ranges of slots a Cluster is watched in.
const RANGES: u16 = 32;
/// A Cluster's client finds its own way again; this often it is nevertheless made anew.
const REDIAL_EVERY: u32 = 5;

/// A change that an operator wants to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// Redis, or a part of a Cluster, is of no use for now, and requests no longer wait for it.
    Down {
        /// Why.
        reason: String,
    },
    /// All of it is back.
    Back,
}

/// Whom to tell of a [`Change`].
pub(crate) type Tell = Box<dyn Fn(&Change) + Send + Sync>;

/// Why a request was not answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    /// The server does not have the script.
    NoScript,
    /// Anything else.
    Store(StoreError),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Store(error) => error,
            Failure::NoScript => {
                let reason = "NOSCRIPT in answer to EVAL; check for a proxy that does not pass scripts on";
                Self::Unavailable { reason: reason.into() }
            }
        }
    }
}

/// One breaker.
#[derive(Default)]
struct Gate {
    misses: AtomicU32,
    /// Why it is shut, if it is.
    shut: ArcSwapOption<String>,
    /// Whether a keeper is at work.
    kept: AtomicBool,
    /// When it was last opened, in nanoseconds, and how often in a row it was shut again within a [`MOMENT`].
    opened_at: AtomicU64,
    relapses: AtomicU32,
}

pub(crate) struct Link {
    dialer: Dialer,
    prefix: String,
    /// How long a probe may take.
    patience: Duration,
    connection: watch::Sender<Option<Connection>>,
    /// Held by whoever makes a connection, so that nobody else does.
    dialling: tokio::sync::Mutex<()>,
    /// How often that has been tried.
    dials: AtomicU64,
    gates: Box<[Gate]>,
    /// How many gates are shut.
    shut: AtomicU32,
    trips: AtomicU64,
    tell: Option<Tell>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("shut", &self.why_shut()).finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) fn new(dialer: Dialer, prefix: String, deadline: Duration, tell: Option<Tell>) -> Self {
        let gates = if matches!(dialer, Dialer::Cluster(_)) { RANGES } else { 1 };
        Self {
            dialer,
            prefix,
            patience: deadline.max(PROBE_TIMEOUT),
            connection: watch::Sender::new(None),
            dialling: tokio::sync::Mutex::new(()),
            dials: AtomicU64::new(0),
            gates: (0..gates).map(|_| Gate::default()).collect(),
            shut: AtomicU32::new(0),
            trips: AtomicU64::new(0),
            tell,
        }
    }

    /// Why requests are not tried, if some are not.
    pub(crate) fn why_shut(&self) -> Option<String> {
        self.gates.iter().find_map(|gate| gate.shut.load().as_deref().cloned())
    }

    /// How often it has come to that.
    pub(crate) fn trips(&self) -> u64 {
        self.trips.load(Ordering::Relaxed)
    }

    /// The index is in range: there is one gate, or [`RANGES`], and a slot is below [`SLOTS`].
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
        let answer = match self.connection(gate, slot).await {
            Ok(connection) => connection.ask(command).await,
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

    /// Whether the script runs.
    pub(crate) async fn ping(self: &Arc<Self>) -> Result<(), StoreError> {
        self.send(0, &probe(&name_in(&self.prefix, 0))).await?;
        Ok(())
    }

    /// A connection for an administrator's work, if Redis is there.
    pub(crate) async fn spare(self: &Arc<Self>) -> Result<Connection, StoreError> {
        self.connection(self.gate(0), 0).await.map_err(|failure| match failure {
            Failure::Store(error) => error,
            Failure::NoScript => StoreError::Unavailable { reason: "it has no script".into() },
        })
    }

    /// The connection, made first if there has never been one.
    async fn connection(self: &Arc<Self>, gate: &Gate, slot: u16) -> Result<Connection, Failure> {
        let mut changes = None;
        loop {
            if let Some(why) = &*gate.shut.load() {
                // The one who was at it may have ended with its runtime.
                self.keep(slot);
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
            let open_for =
                TokioClock.now().since(Timestamp::from_nanos(gate.opened_at.load(Ordering::Relaxed)));
            match open_for < MOMENT {
                true => gate.relapses.fetch_add(1, Ordering::Relaxed),
                false => gate.relapses.swap(0, Ordering::Relaxed),
            };
            if self.shut.fetch_add(1, Ordering::AcqRel) == 0 {
                self.trips.fetch_add(1, Ordering::Relaxed);
                self.tell.iter().for_each(|tell| tell(&Change::Down { reason: reason.clone() }));
            }
        }
        self.connection.send_modify(|_| ());
        self.keep(slot);
    }

    fn open(&self, gate: &Gate) {
        gate.misses.store(0, Ordering::Relaxed);
        gate.opened_at.store(TokioClock.now().as_nanos(), Ordering::Relaxed);
        if gate.shut.swap(None).is_some() && self.shut.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.tell.iter().for_each(|tell| tell(&Change::Back));
        }
        self.connection.send_modify(|_| ());
    }

    /// Sees to it that somebody tries this slot's gate. (Where there is no runtime, the next request that has one does.)
    fn keep(self: &Arc<Self>, slot: u16) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        if !self.gate(slot).kept.swap(true, Ordering::AcqRel) {
            runtime.spawn(keep(Keeping { link: Arc::downgrade(self), slot }));
        }
    }

    /// Whether the script runs, on the connection there is or on a new one.
    async fn probe(&self, command: &Cmd, attempt: u32) -> RedisResult<()> {
        let dials = self.dials.load(Ordering::Acquire);
        let known = self.connection.borrow().clone();
        if let Some(known) = known {
            let redial = matches!(known, Connection::Server(_)) || attempt % REDIAL_EVERY == REDIAL_EVERY - 1;
            let outcome = within(self.patience, known.ask(command)).await;
            if outcome.is_ok() || !redial {
                return outcome.map(drop);
            }
        }
        // One at a time: whoever waited for another's attempt makes do with what came of it.
        let _dialling = self.dialling.lock().await;
        let dialled = if self.dials.load(Ordering::Acquire) == dials {
            let dialled = self.dialer.dial().await;
            self.dials.fetch_add(1, Ordering::AcqRel);
            dialled?
        } else {
            self.connection.borrow().clone().ok_or_else(no_connection)?
        };
        within(self.patience, dialled.clone().ask(command)).await?;
        self.connection.send_replace(Some(dialled));
        Ok(())
    }
}

fn no_connection() -> redis::RedisError {
    std::io::Error::new(std::io::ErrorKind::NotConnected, "there is no connection").into()
}

/// Who tries a gate. However it ends, somebody else may take over.
struct Keeping {
    link: Weak<Link>,
    slot: u16,
}

impl Drop for Keeping {
    fn drop(&mut self) {
        if let Some(link) = self.link.upgrade() {
            link.gate(self.slot).kept.store(false, Ordering::Release);
        }
    }
}

/// Tries a gate until it is open. Ends when nobody uses the link any more.
async fn keep(keeping: Keeping) {
    let mut attempt = 0;
    let mut command = None;
    loop {
        let Some(link) = keeping.link.upgrade() else { return };
        let gate = link.gate(keeping.slot);
        let relapses = gate.relapses.load(Ordering::Relaxed);
        if attempt == 0 && relapses > 0 {
            rest(PROBE_INTERVAL * 2_u32.pow(relapses.min(PATIENT_AT_MOST))).await;
        }
        let command = command.get_or_insert_with(|| probe(&name_in(&link.prefix, keeping.slot)));
        match link.probe(command, attempt).await {
            Ok(()) => return link.open(gate),
            Err(error) => link.shut(keeping.slot, in_words(&error)),
        }
        drop(link);
        attempt = attempt.wrapping_add(1);
        rest(PROBE_INTERVAL).await;
    }
}

async fn rest(span: Duration) {
    TokioClock.sleep_until(TokioClock.now().saturating_add(span)).await;
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
        if self.landed || TokioClock.now().since(self.since) < IMPATIENT {
            return;
        }
        let misses = self.link.gate(self.slot).misses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if misses >= MISSES {
            self.link.shut(self.slot, format!("{misses} requests in a row had no answer in time"));
        }
    }
}
