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
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tollgate::Clock as _;
use tracing::{debug, warn};

use crate::app::{App, STOPWATCH};
use crate::grpc::Grpc;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::resp;
use crate::tls::Tls;

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
    /// One for each connection that may be open. Each door has its own: who fills one keeps nobody
    /// out of the others.
    permits: Arc<Semaphore>,
    course: watch::Receiver<Course>,
}

impl Door {
    pub(crate) fn new(app: Arc<App>, speaks: Speaks, course: watch::Receiver<Course>) -> Self {
        let permits = Arc::new(Semaphore::new(permits(&app)));
        Self { app, speaks, permits, course }
    }

    /// Accepts connections until the phase changes, and then those that were already waiting.
    pub(crate) async fn accept(&self, listener: TcpListener) {
        let mut course = self.course.clone();
        let mut stopping = pin!(course.wait_for(|course| course.phase != Phase::Open));
        loop {
            let accepted = tokio::select! {
                biased;
                _ = &mut stopping => break,
                accepted = self.accept_one(&listener) => accepted,
            };
            if let Err(error) = accepted {
                warn!(%error, "a connection could not be accepted");
                STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(BREATHER)).await;
            }
        }
        let those_waiting = async { while self.accept_one(&listener).await.is_ok() {} };
        let _ = timeout(LAST_CALL, those_waiting).await;
    }

    async fn accept_one(&self, listener: &TcpListener) -> io::Result<()> {
        // While none is free, newcomers wait outside, in the kernel's queue.
        let permit = Arc::clone(&self.permits).acquire_owned().await.map_err(io::Error::other)?;
        let (stream, peer) = listener.accept().await?;
        tokio::spawn(self.clone().serve(stream, peer, permit));
        Ok(())
    }

    /// Waits until no connection is open.
    pub(crate) async fn all_closed(&self) {
        let all = u32::try_from(permits(&self.app)).unwrap_or(u32::MAX);
        let _ = self.permits.acquire_many(all).await;
    }

    async fn serve(self, stream: TcpStream, peer: SocketAddr, permit: OwnedSemaphorePermit) {
        let _open = Open::new(&self.app.metrics, permit);
        let patience = self.app.fixed().timeout;
        // Small answers leave at once; and who does not take them in time is not waited for.
        let _ = stream.set_nodelay(true);
        let socket = SockRef::from(&stream);
        let _ = socket.set_tcp_user_timeout(Some(patience));
        // Who is gone without a word is found out, also where silence is no reason to be dropped.
        let _ = socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE));
        let tls = self.app.settings().tls.as_ref().map(|tls| self.speaks.over(tls));
        match tls {
            None => self.speak(stream, peer).await,
            Some(config) => match timeout(patience, TlsAcceptor::from(config).accept(stream)).await {
                Ok(Ok(stream)) => self.speak(stream, peer).await,
                Ok(Err(error)) => debug!(peer = self.peer(peer), %error, "a TLS handshake failed"),
                Err(_) => debug!(peer = self.peer(peer), "a TLS handshake took too long"),
            },
        }
    }

    async fn speak(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, peer: SocketAddr) {
        let course = self.course.clone();
        let ended = match &self.speaks {
            Speaks::Http(http) => http.speak(stream, peer, course).await,
            Speaks::Grpc(grpc) => grpc.speak(stream, course).await,
            Speaks::Resp => resp::speak(&self.app, stream, peer, course).await,
        };
        if let Err(error) = ended {
            debug!(peer = self.peer(peer), %error, "a connection ended early");
        }
    }

    /// Whom a connection is from, for the log.
    fn peer(&self, peer: SocketAddr) -> String {
        self.app.logged(&peer.ip().to_string())
    }
}

/// An open connection, for as long as this lives.
struct Open<'a> {
    metrics: &'a Metrics,
    _permit: OwnedSemaphorePermit,
}

impl<'a> Open<'a> {
    fn new(metrics: &'a Metrics, permit: OwnedSemaphorePermit) -> Self {
        metrics.connections.fetch_add(1, Ordering::Relaxed);
        metrics.connections_total.fetch_add(1, Ordering::Relaxed);
        Self { metrics, _permit: permit }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.metrics.connections.fetch_sub(1, Ordering::Relaxed);
    }
}

fn permits(app: &App) -> usize {
    app.fixed().max_connections.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize)
}
