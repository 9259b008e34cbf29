//! Accepts connections up to a bound, does the TLS handshake, and serves the listener's protocol.

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

use crate::app::{App, PROTOCOL, STOPWATCH};
use crate::caller::Sender;
use crate::grpc::Grpc;
use crate::http::Http;
use crate::resp;
use crate::tls::Tls;

mod backpressure;
mod lifecycle;
mod table;

pub(crate) use backpressure::{Backpressure, Watched};
pub(crate) use lifecycle::{Answering, Connection, Ending, Lifecycle, Phase};
pub(crate) use table::Counts;
use table::{ConnectionTable, Slot};

/// How long to accept the connections left in the kernel's queue once the server stops.
const QUEUE_DRAIN: Duration = Duration::from_millis(20);

/// The pause after an accept that failed for lack of a resource, such as file descriptors.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(50);

/// How long a connection is silent before the kernel probes the peer.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The protocol of a listener.
#[derive(Clone)]
pub(crate) enum Protocol {
    Http(Http),
    Grpc(Grpc),
    Resp,
}

impl Protocol {
    /// The TLS configuration, which differs in its ALPN protocol names.
    fn tls_config(&self, tls: &Tls) -> Arc<ServerConfig> {
        Arc::clone(match self {
            Self::Http(_) => &tls.http,
            Self::Grpc(_) => &tls.grpc,
            Self::Resp => &tls.resp,
        })
    }
}

/// Accepts the connections of one listener.
#[derive(Clone)]
pub(crate) struct Acceptor {
    app: Arc<App>,
    protocol: Protocol,
    /// One table per listener: a peer that fills one cannot block the others.
    table: Arc<ConnectionTable>,
    lifecycle: watch::Receiver<Lifecycle>,
}

/// An accepted connection that waits for a slot.
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

    /// Accepts connections until the phase changes, then those left in the kernel's queue.
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
                warn!(%error, "accepting a connection failed");
                STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(ACCEPT_BACKOFF)).await;
            }
        }
        let drain_queue = async { while self.accept_one(&listener, &mut pending).await.is_ok() {} };
        let _ = timeout(QUEUE_DRAIN, drain_queue).await;
    }

    /// Accepts one connection. Cancelled, it leaves a connection that waits for a slot in
    /// `pending`.
    async fn accept_one(&self, listener: &TcpListener, pending: &mut Option<Pending>) -> io::Result<()> {
        if pending.is_none() {
            *pending = Some(listener.accept().await?);
        }
        let Some((_, address)) = pending else { return Ok(()) };
        let peer = self.app.snapshot().settings.identity.bounded_peer(address.ip());
        if peer.as_ref().is_some_and(|peer| !self.table.admits(peer)) {
            Counts::add(&self.counts().refused_per_peer);
            debug!(
                peer = self.peer(*address),
                "a connection was refused: the peer has max_connections_per_peer open"
            );
            *pending = None;
            return Ok(());
        }
        // While the table is full, further connections wait in the kernel's queue.
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

    /// Serves a connection until it ends or is evicted.
    async fn serve(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        slot: Arc<Slot>,
        evicted: oneshot::Receiver<()>,
    ) {
        let _open = Open::new(self.counts());
        let sender = self.sender(peer);
        let buffers = self.app.buffers.of(slot.peer());
        let connection = Connection::new(peer, sender, buffers, Arc::clone(&slot), self.lifecycle.clone());
        let eviction = async {
            let _ = evicted.await;
            slot.idle().await;
        };
        tokio::select! {
            biased;
            () = self.handshake(stream, &connection) => {}
            () = eviction => debug!(peer = self.peer(peer), "an idle connection was evicted"),
        }
    }

    async fn handshake(&self, stream: TcpStream, connection: &Connection) {
        let peer = connection.peer;
        let request_timeout = self.app.fixed().timeout;
        // Small responses are sent at once, and a peer that does not read them is dropped.
        let _ = stream.set_nodelay(true);
        let socket = SockRef::from(&stream);
        let _ = socket.set_tcp_user_timeout(Some(request_timeout));
        // A peer that vanished is detected, even where idleness is allowed.
        let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE));
        let tls = self.app.snapshot().settings.tls.as_ref().map(|tls| self.protocol.tls_config(tls));
        match tls {
            None => self.serve_stream(stream, connection).await,
            Some(config) => match timeout(request_timeout, TlsAcceptor::from(config).accept(stream)).await {
                Ok(Ok(stream)) => self.serve_stream(stream, connection).await,
                Ok(Err(error)) => debug!(peer = self.peer(peer), %error, "a TLS handshake failed"),
                Err(_) => debug!(peer = self.peer(peer), "a TLS handshake took too long"),
            },
        }
    }

    async fn serve_stream(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        connection: &Connection,
    ) {
        let ended = match &self.protocol {
            Protocol::Http(http) => PROTOCOL.scope("http", http.serve_connection(stream, connection)).await,
            // Each call is a task of its own, which sets its protocol.
            Protocol::Grpc(grpc) => grpc.serve_connection(stream, connection).await,
            Protocol::Resp => {
                PROTOCOL.scope("resp", resp::serve_connection(&self.app, stream, connection)).await
            }
        };
        if let Err(error) = ended {
            debug!(peer = self.peer(connection.peer), %error, "a connection ended early");
        }
    }

    /// The peer of a connection as the sender of its requests.
    fn sender(&self, peer: SocketAddr) -> Sender {
        let snapshot = self.app.snapshot();
        let identity = &snapshot.settings.identity;
        match self.protocol {
            Protocol::Grpc(_) => Sender::grpc_peer(identity, peer.ip(), snapshot.settings.grpc_share),
            Protocol::Http(_) | Protocol::Resp => Sender::peer(identity, peer.ip()),
        }
    }

    /// The peer's address, for the log.
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

/// Counts a connection as open while it lives.
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
