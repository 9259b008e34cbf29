//! The lifecycle of a connection, the same for every protocol: it is busy or idle, it times out,
//! and it ends when the server stops.

use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::watch;

use super::Backpressure;
use super::table::{Busy, Slot};
use crate::buffers::PeerBuffers;
use crate::caller::Sender;

/// The server's lifecycle, as broadcast to all connections.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifecycle {
    pub(crate) phase: Phase,
    /// The number of timeout periods so far. A connection without a request between two ticks is
    /// closed. One timer serves all connections, because a timer per request costs as much as a
    /// check.
    pub(crate) tick: u64,
}

/// The phase of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// The server runs.
    Open,
    /// Every HTTP connection closes after its next response; gRPC accepts no new calls.
    Draining,
    /// Idle connections are closed.
    Closing,
}

/// How the connections of a protocol end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ending {
    /// The phase whose beginning ends a connection, once its requests in flight are answered.
    pub(crate) phase: Phase,
    /// Whether a connection may be idle indefinitely after its first request.
    pub(crate) may_idle: bool,
}

/// A connection, as its protocol sees it.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) peer: SocketAddr,
    /// The peer as the sender of requests.
    pub(crate) sender: Sender,
    /// What is held for the peer.
    pub(crate) buffers: PeerBuffers,
    pub(crate) backpressure: Arc<Backpressure>,
    slot: Arc<Slot>,
    lifecycle: watch::Receiver<Lifecycle>,
    /// The number of requests received, and of parts of answers taken.
    received: Arc<AtomicU64>,
    /// Whether a request has begun that must not take forever.
    is_unfinished: AtomicBool,
}

/// The progress of an answer that is sent in parts. It outlives the request.
#[derive(Clone, Debug)]
pub(crate) struct Answering {
    received: Arc<AtomicU64>,
    slot: Arc<Slot>,
    lifecycle: watch::Receiver<Lifecycle>,
}

impl Answering {
    /// As [`Connection::is_stopping`].
    pub(crate) fn is_stopping(&self) -> bool {
        self.lifecycle.borrow().phase != Phase::Open
    }

    /// As [`Connection::busy`].
    pub(crate) fn busy(&self) -> Busy {
        self.slot.busy()
    }

    /// Counts a part, so that an answer may take longer than the timeout while its peer takes it.
    pub(crate) fn count(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }
}

impl Connection {
    pub(super) fn new(
        peer: SocketAddr,
        sender: Sender,
        buffers: PeerBuffers,
        slot: Arc<Slot>,
        lifecycle: watch::Receiver<Lifecycle>,
    ) -> Self {
        Self {
            peer,
            sender,
            buffers,
            backpressure: Arc::default(),
            slot,
            lifecycle,
            received: Arc::default(),
            is_unfinished: AtomicBool::new(false),
        }
    }

    /// Whether the peer is a trusted proxy, which forwards the requests of others.
    pub(crate) fn is_proxy(&self) -> bool {
        self.slot.peer().is_none()
    }

    /// Marks the connection busy while the guard lives: it is not evicted.
    pub(crate) fn busy(&self) -> Busy {
        self.slot.busy()
    }

    /// Counts a request.
    pub(crate) fn count(&self) {
        self.received.fetch_add(1, Ordering::Relaxed);
    }

    /// The progress of an answer that is sent in parts.
    pub(crate) fn answering(&self) -> Answering {
        let lifecycle = self.lifecycle.clone();
        Answering { received: Arc::clone(&self.received), slot: Arc::clone(&self.slot), lifecycle }
    }

    /// Sets the number of requests received, and whether the next one has begun.
    pub(crate) fn progress(&self, received: u64, is_unfinished: bool) {
        self.received.store(received, Ordering::Relaxed);
        self.is_unfinished.store(is_unfinished, Ordering::Relaxed);
    }

    /// Whether the server is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        self.lifecycle.borrow().phase != Phase::Open
    }

    /// Waits until the connection has to end.
    ///
    /// # Errors
    /// [`io::ErrorKind::TimedOut`] if it does not answer its requests in flight first.
    pub(crate) async fn ended(&self, ending: Ending) -> io::Result<()> {
        let mut lifecycle = self.lifecycle.clone();
        let Lifecycle { phase, mut tick } = *lifecycle.borrow_and_update();
        let (mut is_over, mut stuck_at) = (phase == Phase::Closing, None);
        while !is_over {
            // A dropped sender means that the server is gone.
            let is_gone = lifecycle.changed().await.is_err();
            let now = *lifecycle.borrow_and_update();
            is_over = is_gone || now.phase >= ending.phase;
            if !is_over && mem::replace(&mut tick, now.tick) != now.tick {
                let stuck_now = self.stuck_at(ending);
                if stuck_now.is_some() && stuck_now == stuck_at {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                stuck_at = stuck_now;
            }
        }
        Ok(())
    }

    /// The number of requests received, unless the connection may be idle.
    fn stuck_at(&self, ending: Ending) -> Option<u64> {
        let received = self.received.load(Ordering::Relaxed);
        let may_idle = ending.may_idle && received > 0 && !self.is_unfinished.load(Ordering::Relaxed);
        (!may_idle).then_some(received)
    }

    /// Serves requests until the peer or the lifecycle ends the connection. `shut_down` makes
    /// `served` end after the requests in flight.
    pub(crate) async fn serve<F: Future<Output = hyper::Result<()>>>(
        &self,
        ending: Ending,
        served: F,
        shut_down: impl FnOnce(Pin<&mut F>),
    ) -> io::Result<()> {
        let mut served = pin!(served);
        tokio::select! {
            biased;
            ended = served.as_mut() => return ended.map_err(io::Error::other),
            ended = self.ended(ending) => ended?,
        }
        shut_down(served.as_mut());
        served.await.map_err(io::Error::other)
    }
}

#[cfg(test)]
impl Connection {
    /// A connection in a table of one.
    pub(crate) fn alone(lifecycle: watch::Receiver<Lifecycle>) -> Self {
        use std::net::Ipv4Addr;
        use tollgate_http::Identity;
        let table = Arc::new(super::table::ConnectionTable::new(1, 1));
        let peer = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let sender = Sender::peer(&Identity::peer(), peer.ip());
        let buffers = Arc::<crate::buffers::Buffers>::default().of(None);
        Self::new(peer, sender, buffers, table.enter(None).0, lifecycle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::FutureExt as _;

    const HTTP: Ending = Ending { phase: Phase::Closing, may_idle: false };
    const POOLED: Ending = Ending { phase: Phase::Closing, may_idle: true };

    fn connection() -> (Connection, watch::Sender<Lifecycle>) {
        let (sender, receiver) = watch::channel(Lifecycle { phase: Phase::Open, tick: 0 });
        (Connection::alone(receiver), sender)
    }

    /// Whether the connection times out within `ticks`, with `between` called before each.
    fn times_out(ending: Ending, ticks: u32, between: impl Fn(&Connection)) -> bool {
        let (connection, sender) = connection();
        let mut ended = pin!(connection.ended(ending));
        (0..ticks).any(|_| {
            assert!(ended.as_mut().now_or_never().is_none());
            between(&connection);
            sender.send_modify(|lifecycle| lifecycle.tick += 1);
            ended.as_mut().now_or_never().is_some_and(|ended| ended.is_err())
        })
    }

    #[test]
    fn a_connection_without_a_request_between_two_ticks_times_out() {
        for ending in [HTTP, POOLED] {
            assert!(times_out(ending, 2, |_| {}), "no request at all");
            assert!(!times_out(ending, 1, |_| {}), "one tick may come at once");
            assert!(!times_out(ending, 9, Connection::count));
            assert!(!times_out(ending, 9, |connection| connection.answering().count()), "a long answer");
        }
        assert!(times_out(HTTP, 2, |connection| connection.progress(1, false)));
    }

    #[test]
    fn a_connection_that_may_be_idle_times_out_only_within_a_request() {
        assert!(!times_out(POOLED, 9, |connection| connection.progress(1, false)));
        assert!(times_out(POOLED, 2, |connection| connection.progress(1, true)));
    }

    #[test]
    fn a_connection_ends_in_its_phase_or_with_the_server() {
        for (phase, draining, closing) in [(Phase::Draining, true, true), (Phase::Closing, false, true)] {
            let ending = Ending { phase, may_idle: true };
            for (now, ends) in [(Phase::Draining, draining), (Phase::Closing, closing)] {
                let (connection, sender) = connection();
                let mut ended = pin!(connection.ended(ending));
                assert!(ended.as_mut().now_or_never().is_none() && !connection.is_stopping());
                sender.send_modify(|lifecycle| lifecycle.phase = now);
                assert_eq!(ended.as_mut().now_or_never().is_some(), ends, "{phase:?} {now:?}");
                assert!(connection.is_stopping());
            }
        }
        let (connection, sender) = connection();
        drop(sender);
        assert!(matches!(connection.ended(POOLED).now_or_never(), Some(Ok(()))));
    }

    /// Accepted from the kernel's queue, a connection still has its request answered.
    #[test]
    fn a_connection_accepted_while_draining_lives_until_the_closing_phase() {
        let (connection, sender) = connection();
        sender.send_modify(|lifecycle| lifecycle.phase = Phase::Draining);
        let mut ended = pin!(connection.ended(Ending { phase: Phase::Draining, may_idle: true }));
        assert!(ended.as_mut().now_or_never().is_none());
        sender.send_modify(|lifecycle| lifecycle.phase = Phase::Closing);
        assert!(matches!(ended.now_or_never(), Some(Ok(()))));
    }
}
