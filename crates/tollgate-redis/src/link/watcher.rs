//! The watcher of a link: a task that looks at Redis while all is well.
//!
//! Two things go wrong without any request noticing. Sentinels name another master, while the old
//! one still answers: what it admits is unknown to all others. And a store that nobody uses for a
//! while cannot be used any more, because its password was changed: `/readyz` and the metrics
//! should say so before the next request does.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::Either;
use futures_util::stream::{self, StreamExt as _};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tollgate::{Clock as _, SECOND, Timestamp, TokioClock};

use super::Link;
use super::breaker::jittered;
use crate::connection::{Connection, error_text};
use crate::key::SLOTS;
use crate::sentinel::{Sentinels, is_replica};

/// How often the watcher looks, at the latest. Sentinels are asked each time.
const INTERVAL: Duration = SECOND;
/// How long the Sentinels and the server have to answer.
const ANSWER: Duration = SECOND;

/// Marks the link as watched. Dropping it lets another watcher start.
struct Watcher(Weak<Link>);

impl Drop for Watcher {
    fn drop(&mut self) {
        if let Some(link) = self.0.upgrade() {
            link.watched.store(false, Ordering::Release);
        }
    }
}

impl Link {
    /// Starts the watcher unless it runs. Outside a runtime it does nothing.
    pub(super) fn ensure_watcher(self: &Arc<Self>) {
        if self.watched.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if !self.watched.swap(true, Ordering::AcqRel) {
            runtime.spawn(watch(Watcher(Arc::downgrade(self))));
        }
    }

    /// Leaves a master that a majority of the Sentinels does not name, or that says that it is a
    /// replica. The new connection is made first, which takes a few round trips. If none can be
    /// made, the old one is left all the same: what it admits counts for nobody else.
    async fn follow(self: &Arc<Self>, sentinels: &Sentinels) {
        // Without a connection, the prober is dialling, and asks the Sentinels itself.
        let Some(master) = self.master.load_full() else { return };
        let dials = self.dials.load(Ordering::Acquire);
        let voices = sentinels.ask(ANSWER).await;
        let is_named = voices.majority().is_none_or(|named| *named == *master);
        if is_named && !self.is_demoted().await {
            return;
        }
        let Err(error) = self.dial(dials, 0).await else { return };
        // The prober may have found the new master meanwhile.
        if self.master.load().as_ref().is_some_and(|now| Arc::ptr_eq(now, &master)) {
            self.connection.send_replace(None);
            self.open(0, error_text(&error));
        }
    }

    /// Whether the server says that it is a replica. No answer is no evidence: that is the prober's
    /// matter.
    async fn is_demoted(&self) -> bool {
        let connection = self.connection.borrow().clone();
        match connection {
            Some(Connection::Server(mut server)) => is_replica(&mut server, ANSWER).await.unwrap_or(false),
            Some(Connection::Cluster(_)) | None => false,
        }
    }

    /// Probes if no request has ended for a while: in a Cluster one range of slots after the other.
    fn probe_if_idle(self: &Arc<Self>, round: usize) {
        let ended_at = Timestamp::from_nanos(self.ended_at.load(Ordering::Acquire));
        if TokioClock.now().since(ended_at) < self.probe_interval {
            return;
        }
        let ranges = self.breakers.len();
        let slot = usize::from(SLOTS) / ranges * (round % ranges);
        self.ensure_prober(u16::try_from(slot).expect("a slot is below SLOTS"));
    }
}

/// Looks once per interval, and when a Sentinel announces something, until the link is dropped.
async fn watch(watcher: Watcher) {
    let Some(link) = watcher.0.upgrade() else { return };
    let mut announcements = match link.dialer.as_sentinels() {
        Some(sentinels) => Either::Left(sentinels.announcements()),
        None => Either::Right(stream::pending()),
    };
    drop(link);
    for round in 0_usize.. {
        let _ = timeout(jittered(INTERVAL), announcements.next()).await;
        let Some(link) = watcher.0.upgrade() else { return };
        if let Some(sentinels) = link.dialer.as_sentinels() {
            link.follow(sentinels).await;
        }
        link.probe_if_idle(round);
    }
}
