//! Connections: accepted up to a bound, encrypted if so configured, and closed when they are silent
//! or slow, or when the server stops.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderName, HeaderValue, Method, Request, Response};
use bytes::Bytes;
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tollgate::Clock as _;
use tollgate_http::{Head, PeerAddr};
use tower_service::Service as _;
use tracing::{debug, enabled, warn};

use crate::app::{App, STOPWATCH};
use crate::http::at_once;
use crate::metrics::Route;

/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// The most header fields of a request.
const HEADERS_MAX: usize = 100;

/// How long to go on accepting once the server stops: as long as it takes to empty the queue.
const LAST_CALL: Duration = Duration::from_millis(20);

/// How long to wait after an accept that failed for lack of something, such as file descriptors.
const BREATHER: Duration = Duration::from_millis(50);

type Answer = Response<Either<Full<Bytes>, Body>>;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is taken over.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// How far the end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Everything is answered.
    Open,
    /// Every connection ends with its next answer.
    Draining,
    /// Connections that wait for a request are closed.
    Closing,
}

/// Answers connections.
#[derive(Clone)]
pub(crate) struct Server {
    app: Arc<App>,
    router: Router,
    /// One for each connection that may be open.
    permits: Arc<Semaphore>,
    phase: watch::Receiver<Phase>,
}

impl Server {
    pub(crate) fn new(app: Arc<App>, phase: watch::Receiver<Phase>) -> Self {
        let permits = Arc::new(Semaphore::new(permits(&app)));
        Self { router: crate::http::router(Arc::clone(&app)), app, permits, phase }
    }

    /// Accepts connections until the phase changes, and then those that were already waiting.
    pub(crate) async fn accept(&self, listener: TcpListener) {
        let mut phase = self.phase.clone();
        let mut stopping = pin!(reached(&mut phase, Phase::Draining));
        loop {
            let accepted = tokio::select! {
                biased;
                () = &mut stopping => break,
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
        let metrics = &self.app.metrics;
        metrics.connections.fetch_add(1, Ordering::Relaxed);
        metrics.connections_total.fetch_add(1, Ordering::Relaxed);
        let patience = self.app.fixed().timeout;
        // Small answers leave at once; and who does not take them in time is not waited for.
        let _ = stream.set_nodelay(true);
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(patience));
        let tls = self.app.settings().tls.clone();
        match tls {
            None => self.speak(stream, peer).await,
            Some(config) => match timeout(patience, TlsAcceptor::from(config).accept(stream)).await {
                Ok(Ok(stream)) => self.speak(stream, peer).await,
                Ok(Err(error)) => debug!(%peer, %error, "a TLS handshake failed"),
                Err(_) => debug!(%peer, "a TLS handshake took too long"),
            },
        }
        self.app.metrics.connections.fetch_sub(1, Ordering::Relaxed);
        drop(permit);
    }

    async fn speak(&self, stream: impl AsyncRead + AsyncWrite + Unpin, peer: SocketAddr) {
        let service = service_fn(|request| self.answer(request, peer));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.app.fixed().timeout)
            .max_headers(HEADERS_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut phase = self.phase.clone();
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = reached(&mut phase, Phase::Closing) => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            debug!(%peer, %error, "a connection ended early");
        }
    }

    async fn answer(&self, request: Request<Incoming>, peer: SocketAddr) -> Result<Answer, Infallible> {
        let began = STOPWATCH.now();
        let id = request.headers().get(REQUEST_ID).filter(|id| id.len() <= REQUEST_ID_BYTES_MAX).cloned();
        let log = enabled!(target: "tollgate::access", tracing::Level::DEBUG);
        let log = log.then(|| Entry::new(&self.app, &request, peer, id.clone()));
        let route = Route::of(request.uri().path());
        // What is asked most takes the short way around the router.
        let mut response = if route == Route::CLIENT && request.method() == Method::GET {
            at_once(&self.app, request.uri()).map(|body| Either::Left(Full::new(body)))
        } else {
            match self.router.clone().call(request.map(Body::new)).await {
                Ok(response) => response.map(Either::Right),
                Err(never) => match never {},
            }
        };
        let took = STOPWATCH.now().since(began);
        self.app.metrics.answered(route, response.status().as_u16(), took);
        let id = log.map_or(id, |entry| Some(entry.write(response.status().as_u16(), took)));
        if let Some(id) = id {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        if *self.phase.borrow() != Phase::Open {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
    }
}

/// A line of the access log.
struct Entry {
    method: Method,
    path: String,
    from: String,
    id: HeaderValue,
}

impl Entry {
    fn new(app: &App, request: &Request<Incoming>, peer: SocketAddr, id: Option<HeaderValue>) -> Self {
        let mut asked = Request::new(());
        asked.extensions_mut().insert(PeerAddr(peer));
        asked.headers_mut().clone_from(request.headers());
        let client = app.settings().identity.identify(Head::from(&asked)).unwrap_or_default().into_owned();
        Self {
            method: request.method().clone(),
            path: app.logged(request.uri().path()),
            from: app.logged(&client),
            id: id.unwrap_or_else(|| app.next_request_id()),
        }
    }

    /// Writes it, and says what the request is called in it.
    fn write(self, status: u16, took: Duration) -> HeaderValue {
        let Self { method, path, from, id } = self;
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let request_id = id.to_str().unwrap_or_default();
        debug!(target: "tollgate::access", %method, path, status, took_us, from, request_id, "answered");
        id
    }
}

async fn reached(phase: &mut watch::Receiver<Phase>, wanted: Phase) {
    // If nobody sends, the server is gone.
    let _ = phase.wait_for(|phase| *phase >= wanted).await;
}

fn permits(app: &App) -> usize {
    app.fixed().max_connections.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize)
}
