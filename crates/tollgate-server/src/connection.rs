//! Connections: accepted up to a bound, encrypted if so configured, and spoken to in the protocol of
//! the listener they came in by.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustls::ServerConfig;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tollgate::Clock as _;
use tracing::{debug, warn};

use crate::app::{App, STOPWATCH};
use crate::grpc::Grpc;
use crate::http::Http;
use crate::resp;
use crate::tls::Tls;

mod table;

use table::ConnectionTable;
pub(crate) use table::{Counts, Slot};

/// How long to go on accepting once the server stops: as long as it takes to empty the queue.
const LAST_CALL: Duration = Duration::from_millis(20);

/// How long to wait after an accept that failed for lack of something, such as file descriptors.
const BREATHER: Duration = Duration::from_millis(50);

/// How long a connection is silent before the kernel asks whether the other side is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// What all connections are told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Course {
    pub(crate) phase: Phase,
    /// How often a time-out has passed. Who has sent no request from one to the next is dropped:
    /// one clock for all, because a timer for each request costs as much as a check.
    pub(crate) tick: u64,
}

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everything is answered.
    Open,
    /// Every HTTP connection ends with its next answer; gRPC takes nothing new.
    Draining,
    /// Connections that wait for a request are closed.
    Closing,
}

/// A protocol.
#[derive(Clone)]
pub(crate) enum Speaks {
    Http(Http),
    Grpc(Grpc),
    Resp,
}

impl Speaks {
    /// What TLS is to say that is spoken over it.
    fn over(&self, tls: &Tls) -> Arc<ServerConfig> {
        Arc::clone(match self {
            Self::Http(_) => &tls.http,
            Self::Grpc(_) => &tls.grpc,
            Self::Resp => &tls.resp,
        })
    }
}

/// Where connections of one protocol come in.
#[derive(Clone)]
pub(crate) struct Door {
    app: Arc<App>,
    speaks: Speaks,
    /// Each door has its own: a peer that fills one keeps nobody out of the others.
    table: Arc<ConnectionTable>,
    course: watch::Receiver<Course>,
}

/// A connection that was accepted, and has no place yet.
type Newcomer = (TcpStream, SocketAddr);

impl Door {
    pub(crate) fn new(
        app: Arc<App>,
        speaks: Speaks,
        course: watch::Receiver<Course>,
        max_connections: usize,
    ) -> Self {
        let table = ConnectionTable::new(max_connections, app.fixed().max_connections_per_peer);
        Self { app, speaks, table: Arc::new(table), course }
    }

    /// Accepts connections until the phase changes, and then those that were already waiting.
    pub(crate) async fn accept(&self, listener: TcpListener) {
        let mut course = self.course.clone();
        let mut stopping = pin!(course.wait_for(|course| course.phase != Phase::Open));
        let mut newcomer = None;
        loop {
            let accepted = tokio::select! {
                biased;
                _ = &mut stopping => break,
                accepted = self.accept_one(&listener, &mut newcomer) => accepted,
            };
            if let Err(error) = accepted {
                Counts::add(&self.counts().failed);
                warn!(%error, "a connection could not be accepted");
                STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(BREATHER)).await;
            }
        }
        let those_waiting = async { while self.accept_one(&listener, &mut newcomer).await.is_ok() {} };
        let _ = timeout(LAST_CALL, those_waiting).await;
    }

    /// Lets one connection in. Given up half-way, it leaves behind the newcomer that waits for room.
    async fn accept_one(&self, listener: &TcpListener, newcomer: &mut Option<Newcomer>) -> io::Result<()> {
        if newcomer.is_none() {
            *newcomer = Some(listener.accept().await?);
        }
        let Some((_, address)) = newcomer else { return Ok(()) };
        let peer = self.app.settings().identity.bounded_peer(address.ip());
        if peer.as_ref().is_some_and(|peer| !self.table.admits(peer)) {
            Counts::add(&self.counts().refused_per_peer);
            debug!(peer = self.peer(*address), "a peer has max_connections_per_peer; one more was refused");
            *newcomer = None;
            return Ok(());
        }
        // While there is none, further newcomers wait outside, in the kernel's queue.
        self.table.room(self.counts()).await;
        if let Some((stream, address)) = newcomer.take() {
            let (slot, evicted) = self.table.enter(peer);
            tokio::spawn(self.clone().serve(stream, address, slot, evicted));
        }
        Ok(())
    }

    /// Waits until no connection is open.
    pub(crate) async fn all_closed(&self) {
        self.table.emptied().await;
    }

    /// Answers a connection until it ends, or has to make room for another.
    async fn serve(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        slot: Arc<Slot>,
        evicted: oneshot::Receiver<()>,
    ) {
        let _open = Open::new(self.counts());
        let making_room = async {
            let _ = evicted.await;
            slot.idle().await;
        };
        tokio::select! {
            biased;
            () = self.converse(stream, peer, &slot) => {}
            () = making_room => debug!(peer = self.peer(peer), "an idle connection made room for another"),
        }
    }

    async fn converse(&self, stream: TcpStream, peer: SocketAddr, slot: &Arc<Slot>) {
        let patience = self.app.fixed().timeout;
        // Small answers leave at once; and who does not take them in time is not waited for.
        let _ = stream.set_nodelay(true);
        let socket = SockRef::from(&stream);
        let _ = socket.set_tcp_user_timeout(Some(patience));
        // Who is gone without a word is found out, also where silence is no reason to be dropped.
        let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE));
        let tls = self.app.settings().tls.as_ref().map(|tls| self.speaks.over(tls));
        match tls {
            None => self.speak(stream, peer, slot).await,
            Some(config) => match timeout(patience, TlsAcceptor::from(config).accept(stream)).await {
                Ok(Ok(stream)) => self.speak(stream, peer, slot).await,
                Ok(Err(error)) => debug!(peer = self.peer(peer), %error, "a TLS handshake failed"),
                Err(_) => debug!(peer = self.peer(peer), "a TLS handshake took too long"),
            },
        }
    }

    async fn speak(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        slot: &Arc<Slot>,
    ) {
        let course = self.course.clone();
        let ended = match &self.speaks {
            Speaks::Http(http) => http.speak(stream, peer, slot, course).await,
            Speaks::Grpc(grpc) => grpc.speak(stream, slot, course).await,
            Speaks::Resp => resp::speak(&self.app, stream, peer, slot, course).await,
        };
        if let Err(error) = ended {
            debug!(peer = self.peer(peer), %error, "a connection ended early");
        }
    }

    /// Whom a connection is from, for the log.
    fn peer(&self, peer: SocketAddr) -> String {
        self.app.logged(&peer.ip().to_string())
    }

    fn counts(&self) -> &Counts {
        let [http, grpc, resp] = &self.app.metrics.connections;
        match self.speaks {
            Speaks::Http(_) => http,
            Speaks::Grpc(_) => grpc,
            Speaks::Resp => resp,
        }
    }
}

/// An open connection, for as long as this lives.
struct Open<'a>(&'a Counts);

impl<'a> Open<'a> {
    fn new(counts: &'a Counts) -> Self {
        Counts::add(&counts.open);
        Counts::add(&counts.opened);
        Self(counts)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}
