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
const QUEUE_DRAIN: Duration = Duration::from_millis(20);

/// How long to wait after an accept that failed for lack of something, such as file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// How long a connection is silent before the kernel asks whether the other side is still there.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// What all connections are told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lifecycle {
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
pub(crate) enum Protocol {
    Http(Http),
    Grpc(Grpc),
    Resp,
}

impl Protocol {
    /// What TLS is to say that is spoken over it.
    fn tls_config(&self, tls: &Tls) -> Arc<ServerConfig> {
        Arc::clone(match self {
            Self::Http(_) => &tls.http,
            Self::Grpc(_) => &tls.grpc,
            Self::Resp => &tls.resp,
        })
    }
}

/// Where connections of one protocol come in.
#[derive(Clone)]
pub(crate) struct Acceptor {
    app: Arc<App>,
    protocol: Protocol,
    /// Each acceptor has its own: a peer that fills one keeps nobody out of the others.
    table: Arc<ConnectionTable>,
    lifecycle: watch::Receiver<Lifecycle>,
}

/// A connection that was accepted, and has no place yet.
type Pending = (TcpStream, SocketAddr);

impl Acceptor {
    pub(crate) fn new(
        app: Arc<App>,
        protocol: Protocol,
        lifecycle: watch::Receiver<Lifecycle>,
        max_connections: usize,
    ) -> Self {
        let table = ConnectionTable::new(max_connections, app.fixed().max_connections_per_peer);
        Self { app, protocol, table: Arc::new(table), lifecycle }
    }

    /// Accepts connections until the phase changes, and then those that were already waiting.
    pub(crate) async fn accept(&self, listener: TcpListener) {
        let mut lifecycle = self.lifecycle.clone();
        let mut stopping = pin!(lifecycle.wait_for(|lifecycle| lifecycle.phase != Phase::Open));
        let mut pending = None;
        loop {
            let accepted = tokio::select! {
                biased;
                _ = &mut stopping => break,
                accepted = self.accept_one(&listener, &mut pending) => accepted,
            };
            if let Err(error) = accepted {
                Counts::add(&self.counts().failed);
                warn!(%error, "a connection could not be accepted");
                STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(ACCEPT_BACKOFF)).await;
            }
        }
        let drain_queue = async { while self.accept_one(&listener, &mut pending).await.is_ok() {} };
        let _ = timeout(QUEUE_DRAIN, drain_queue).await;
    }

    /// Lets one connection in. Given up half-way, it leaves behind the pending that waits for room.
    async fn accept_one(&self, listener: &TcpListener, pending: &mut Option<Pending>) -> io::Result<()> {
        if pending.is_none() {
            *pending = Some(listener.accept().await?);
        }
        let Some((_, address)) = pending else { return Ok(()) };
        let peer = self.app.settings().identity.bounded_peer(address.ip());
        if peer.as_ref().is_some_and(|peer| !self.table.admits(peer)) {
            Counts::add(&self.counts().refused_per_peer);
            debug!(peer = self.peer(*address), "a peer has max_connections_per_peer; one more was refused");
            *pending = None;
            return Ok(());
        }
        // While there is none, further newcomers wait outside, in the kernel's queue.
        self.table.room(self.counts()).await;
        if let Some((stream, address)) = pending.take() {
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
        let eviction = async {
            let _ = evicted.await;
            slot.idle().await;
        };
        tokio::select! {
            biased;
            () = self.handshake(stream, peer, &slot) => {}
            () = eviction => debug!(peer = self.peer(peer), "an idle connection made room for another"),
        }
    }

    async fn handshake(&self, stream: TcpStream, peer: SocketAddr, slot: &Arc<Slot>) {
        let request_timeout = self.app.fixed().timeout;
        // Small answers leave at once; and who does not take them in time is not waited for.
        let _ = stream.set_nodelay(true);
        let socket = SockRef::from(&stream);
        let _ = socket.set_tcp_user_timeout(Some(request_timeout));
        // Who is gone without a word is found out, also where silence is no reason to be dropped.
        let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE));
        let tls = self.app.settings().tls.as_ref().map(|tls| self.protocol.tls_config(tls));
        match tls {
            None => self.serve_stream(stream, peer, slot).await,
            Some(config) => match timeout(request_timeout, TlsAcceptor::from(config).accept(stream)).await {
                Ok(Ok(stream)) => self.serve_stream(stream, peer, slot).await,
                Ok(Err(error)) => debug!(peer = self.peer(peer), %error, "a TLS handshake failed"),
                Err(_) => debug!(peer = self.peer(peer), "a TLS handshake took too long"),
            },
        }
    }

    async fn serve_stream(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        peer: SocketAddr,
        slot: &Arc<Slot>,
    ) {
        let lifecycle = self.lifecycle.clone();
        let ended = match &self.protocol {
            Protocol::Http(http) => http.serve_connection(stream, peer, slot, lifecycle).await,
            Protocol::Grpc(grpc) => grpc.serve_connection(stream, slot, lifecycle).await,
            Protocol::Resp => resp::serve_connection(&self.app, stream, peer, slot, lifecycle).await,
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
        match self.protocol {
            Protocol::Http(_) => http,
            Protocol::Grpc(_) => grpc,
            Protocol::Resp => resp,
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
