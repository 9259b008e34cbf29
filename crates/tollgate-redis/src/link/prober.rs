//! The prober of a breaker: a task that runs while there is a doubt about Redis.
//!
//! A probe is the script on a key that nothing else uses, by its digest. The script then calls each
//! of its commands, so that a command which Redis refuses is found before a check needs it. The
//! probe is judged by the deadline that checks have. The script's text is sent only to a server
//! that does not have it, and has the time that connecting has.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::{RedisResult, Value};
use tollgate::{Clock as _, TokioClock};

use super::breaker::Breaker;
use super::{Change, Link, is_no_script, no_connection};
use crate::connection::{Connection, Dialled, error_text, with_timeout};
use crate::script::probe_command;
use crate::sentinel::Address;

/// A Cluster client reconnects by itself; every so many probes a new one is dialled nevertheless.
const REDIAL_EVERY: u32 = 5;

/// Probes of which the fastest is the round trip to Redis.
const SLOW_PROBES: u32 = 3;

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

impl Link {
    /// Starts a prober for the breaker of `slot`, unless one runs. Outside a runtime it does
    /// nothing and returns false: the next call inside one starts it.
    pub(super) fn ensure_prober(self: &Arc<Self>, slot: u16) -> bool {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return false };
        if !self.breaker(slot).probing.swap(true, Ordering::AcqRel) {
            runtime.spawn(probe(Prober { link: Arc::downgrade(self), slot }));
        }
        true
    }

    /// Probes on the current connection and, if that fails and the breaker is open, on a new one.
    async fn probe(&self, slot: u16, attempt: u32) -> RedisResult<()> {
        let dials = self.dials.load(Ordering::Acquire);
        let current = self.connection.borrow().clone();
        if let Some(current) = current {
            let redials =
                matches!(current, Connection::Server(_)) || attempt % REDIAL_EVERY == REDIAL_EVERY - 1;
            let answered = self.probe_on(current, slot).await;
            if answered.is_ok() || !redials || !self.breaker(slot).is_open() {
                return answered;
            }
        }
        self.dial(dials, slot).await.map(drop)
    }

    /// Probes on a connection. A server that runs the script but does not keep it can be used.
    async fn probe_on(&self, connection: Connection, slot: u16) -> RedisResult<()> {
        let key = self.probe_key(slot);
        match self.run_probe(connection.clone(), &key).await {
            Err(error) if is_no_script(&error) => {
                let source = probe_command(&key, true);
                let loading = connection.clone().send(&source);
                with_timeout("loading the script", self.connect_timeout, loading).await?;
                match self.run_probe(connection, &key).await {
                    Err(error) if is_no_script(&error) => Ok(()),
                    answered => answered.map(drop),
                }
            }
            answered => answered.map(drop),
        }
    }

    async fn run_probe(&self, connection: Connection, key: &str) -> RedisResult<Value> {
        let began = TokioClock.now();
        let answer =
            with_timeout("a probe", self.deadline, connection.send(&probe_command(key, false))).await;
        if answer.is_ok() {
            let nanos = TokioClock.now().since(began).as_nanos();
            self.round_trip.store(u64::try_from(nanos).unwrap_or(u64::MAX).max(1), Ordering::Relaxed);
        }
        answer
    }

    /// Tells once that Redis is nearly as far away as the deadline allows. The best of a few probes
    /// counts: one may have met a busy moment.
    async fn tell_if_slow(&self, connection: &Connection, slot: u16) {
        let mut best = Duration::MAX;
        for _ in 0..SLOW_PROBES {
            best = best.min(self.round_trip().unwrap_or_default());
            if best < self.deadline / 2 || self.probe_on(connection.clone(), slot).await.is_err() {
                return;
            }
        }
        if !self.is_slow.swap(true, Ordering::Relaxed) {
            self.changes.tell(&Change::Slow { round_trip: best, deadline: self.deadline });
        }
    }

    /// Dials, and probes on the new connection, which becomes the link's if it can be used. One
    /// task dials at a time. If another has dialled since `dials` were counted, its connection is
    /// used.
    pub(super) async fn dial(&self, dials: u64, slot: u16) -> RedisResult<Connection> {
        let _dialling = self.dial_lock.lock().await;
        if self.dials.load(Ordering::Acquire) != dials {
            return self.connection.borrow().clone().ok_or_else(no_connection);
        }
        let dialled = self.dialer.dial(self.connect_timeout).await;
        self.dials.fetch_add(1, Ordering::AcqRel);
        let Dialled { connection, master } = dialled?;
        self.probe_on(connection.clone(), slot).await?;
        self.connection.send_replace(Some(connection.clone()));
        self.note_master(master);
        if !self.is_slow.load(Ordering::Relaxed) {
            self.tell_if_slow(&connection, slot).await;
        }
        Ok(connection)
    }

    /// Notes the master that the connection is to.
    fn note_master(&self, master: Option<Address>) {
        let Some(to) = master.map(Arc::new) else { return };
        let from = self.master.swap(Some(Arc::clone(&to)));
        if let Some(from) = from.filter(|from| *from != to) {
            self.moves.fetch_add(1, Ordering::Relaxed);
            self.changes.tell(&Change::Moved { from: from.to_string(), to: to.to_string() });
        }
    }
}

/// Probes until there is no doubt: the breaker is closed and a probe was answered, or the link is
/// dropped.
async fn probe(prober: Prober) {
    let (mut failures, mut answers) = (0_u32, 0_u32);
    loop {
        let Some(link) = prober.link.upgrade() else { return };
        let breaker = link.breaker(prober.slot);
        let was_open = breaker.is_open();
        if was_open && failures == 0 && answers == 0 {
            sleep(breaker.first_wait()).await;
        }
        match link.probe(prober.slot, failures).await {
            Ok(()) if !was_open && !breaker.is_open() => return,
            Ok(()) => answers = answers.saturating_add(1),
            Err(error) => {
                (failures, answers) = (failures.saturating_add(1), 0);
                link.open(prober.slot, error_text(&error));
            }
        }
        if answers >= breaker.probes_to_close() {
            return link.close(breaker);
        }
        drop(link);
        if answers == 0 {
            sleep(Breaker::wait_after(failures)).await;
        }
    }
}

async fn sleep(span: Duration) {
    TokioClock.sleep_until(TokioClock.now().saturating_add(span)).await;
}
