//! Connections: accepted up to a bound, encrypted if so configured, and closed when they are silent
//! or slow, or when the server stops.

use std::convert::Infallible;
use std::io;
use std::mem;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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
use hyper_util::rt::TokioIo;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tollgate::Clock as _;
use tollgate_http::{Head, PeerAddr};
use tower_service::Service as _;
use tracing::{Instrument as _, debug, enabled, info_span, warn};

use crate::app::{App, STOPWATCH};
use crate::http::at_once;
use crate::metrics::{Metrics, Route};

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
    course: watch::Receiver<Course>,
}

impl Server {
    pub(crate) fn new(app: Arc<App>, course: watch::Receiver<Course>) -> Self {
        let permits = Arc::new(Semaphore::new(permits(&app)));
        Self { router: crate::http::router(Arc::clone(&app)), app, permits, course }
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
        let _ = SockRef::from(&stream).set_tcp_user_timeout(Some(patience));
        let tls = self.app.settings().tls.clone();
        match tls {
            None => self.speak(stream, peer).await,
            Some(config) => match timeout(patience, TlsAcceptor::from(config).accept(stream)).await {
                Ok(Ok(stream)) => self.speak(stream, peer).await,
                Ok(Err(error)) => debug!(peer = self.peer(peer), %error, "a TLS handshake failed"),
                Err(_) => debug!(peer = self.peer(peer), "a TLS handshake took too long"),
            },
        }
    }

    async fn speak(&self, stream: impl AsyncRead + AsyncWrite + Unpin, peer: SocketAddr) {
        let requests = AtomicU64::new(0);
        let service = service_fn(|request| {
            requests.fetch_add(1, Ordering::Relaxed);
            self.answer(request, peer)
        });
        // Head and body are small: copying them together is cheaper than writing them in two pieces.
        let connection = http1::Builder::new()
            .writev(false)
            .max_headers(HEADERS_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let mut course = self.course.clone();
        let (mut tick, mut heard) = (course.borrow_and_update().tick, None);
        let ended = loop {
            tokio::select! {
                biased;
                ended = connection.as_mut() => break ended,
                // If nobody tells any more, the server is gone.
                told = course.changed() => {
                    let now = *course.borrow_and_update();
                    if told.is_err() || now.phase == Phase::Closing {
                        connection.as_mut().graceful_shutdown();
                        break connection.await;
                    }
                    if mem::replace(&mut tick, now.tick) != now.tick {
                        let heard_now = Some(requests.load(Ordering::Relaxed));
                        if mem::replace(&mut heard, heard_now) == heard_now {
                            debug!(peer = self.peer(peer), "a connection was silent for too long");
                            return;
                        }
                    }
                }
            }
        };
        if let Err(error) = ended {
            debug!(peer = self.peer(peer), %error, "a connection ended early");
        }
    }

    /// Whom a connection is from, for the log.
    fn peer(&self, peer: SocketAddr) -> String {
        self.app.logged(&peer.ip().to_string())
    }

    async fn answer(&self, mut request: Request<Incoming>, peer: SocketAddr) -> Result<Answer, Infallible> {
        let began = STOPWATCH.now();
        let route = Route::of(request.uri().path());
        // What is asked most takes the short way around the router, and needs no name unless it is logged.
        let short = route == Route::CLIENT && request.method() == Method::GET;
        let log = enabled!(target: "tollgate::access", tracing::Level::DEBUG);
        let id = request.headers().get(REQUEST_ID).filter(|id| id.len() <= REQUEST_ID_BYTES_MAX).cloned();
        let id = if short && !log { id } else { Some(id.unwrap_or_else(|| self.app.next_request_id())) };
        if !short || log {
            request.extensions_mut().insert(PeerAddr(peer));
        }
        let entry = log.then(|| Entry::new(&self.app, &request));
        let at_once = if short { at_once(&self.app, request.uri()) } else { None };
        let mut response = if let Some(response) = at_once {
            response.map(|body| Either::Left(Full::new(body)))
        } else {
            let request_id = id.as_ref().and_then(|id| id.to_str().ok()).unwrap_or_default();
            let span = info_span!("request", request_id);
            match self.router.clone().call(request.map(Body::new)).instrument(span).await {
                Ok(response) => response.map(Either::Right),
                Err(never) => match never {},
            }
        };
        let took = STOPWATCH.now().since(began);
        self.app.metrics.answered(route, response.status().as_u16(), took);
        if let Some(entry) = entry {
            entry.write(response.status().as_u16(), took, id.as_ref());
        }
        if let Some(id) = id {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        if self.course.borrow().phase != Phase::Open {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        Ok(response)
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

/// A line of the access log.
struct Entry {
    method: Method,
    path: String,
    from: String,
}

impl Entry {
    fn new(app: &App, request: &Request<Incoming>) -> Self {
        let client = app.settings().identity.identify(Head::from(request)).unwrap_or_default();
        Self {
            method: request.method().clone(),
            path: app.logged(request.uri().path()),
            from: app.logged(&client),
        }
    }

    fn write(self, status: u16, took: Duration, id: Option<&HeaderValue>) {
        let Self { method, path, from } = self;
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let request_id = id.and_then(|id| id.to_str().ok()).unwrap_or_default();
        debug!(target: "tollgate::access", %method, path, status, took_us, from, request_id, "answered");
    }
}

fn permits(app: &App) -> usize {
    app.fixed().max_connections.min(Semaphore::MAX_PERMITS).min(u32::MAX as usize)
}
