//! HTTP connections: requests are dispatched to the router or around it; silent and slow
//! connections are closed.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderName, HeaderValue, Method, Request, Response};
use bytes::Bytes;
use futures_util::{FutureExt as _, future};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tollgate::{Clock as _, Timestamp};
use tollgate_http::{Head, PeerAddr};
use tower_service::Service as _;
use tracing::{Instrument as _, debug, enabled, info_span};

use super::check::check_in_memory;
use super::cross_site::is_from_browser;
use super::host;
use super::problem::Overloaded;
use crate::app::{App, STOPWATCH};
use crate::caller::Sender;
use crate::connection::{Connection, Ending, Phase, Watched};
use crate::metrics::Route;

/// Idle connections time out: HTTP clients reconnect. While the server drains, a response says that
/// its connection closes.
const ENDING: Ending = Ending { phase: Phase::Closing, may_idle: false };

/// The largest head of a request.
const HEAD_BYTES_MAX: usize = 32 << 10;

/// The most bytes that are read ahead, and the most of an answer that waits to be written. A larger
/// answer is taken part by part.
const BUFFER_BYTES_MAX: usize = 64 << 10;

/// The most header fields of a request.
const HEADERS_MAX: usize = 100;

type HttpResponse = Response<Either<Full<Bytes>, Body>>;

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The longest request id that is kept.
const REQUEST_ID_BYTES_MAX: usize = 128;

/// Serves HTTP.
#[derive(Clone)]
pub(crate) struct Http {
    app: Arc<App>,
    router: Router,
}

impl Http {
    pub(crate) fn new(app: Arc<App>) -> Self {
        Self { router: super::router(Arc::clone(&app)), app }
    }

    /// Serves a connection until it ends.
    pub(crate) async fn serve_connection(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin,
        connection: &Connection,
    ) -> io::Result<()> {
        let service = service_fn(|request| {
            connection.count();
            let busy = connection.busy();
            self.traced(request, connection).inspect(move |_| drop(busy))
        });
        // Head and body are small: one copied write is cheaper than two.
        let served = http1::Builder::new()
            .writev(false)
            .max_headers(HEADERS_MAX)
            .max_header_size(HEAD_BYTES_MAX)
            .max_buf_size(BUFFER_BYTES_MAX)
            .serve_connection(TokioIo::new(Watched::new(stream, &connection.backpressure)), service);
        connection.serve(ENDING, served, http1::Connection::graceful_shutdown).await
    }

    /// Answers a request, within a span if it is sampled.
    fn traced(
        &self,
        request: Request<Incoming>,
        connection: &Connection,
    ) -> impl Future<Output = Result<HttpResponse, Infallible>> {
        let route = Route::of(request.uri().path());
        let telemetry = self.app.telemetry().filter(|_| route.decides());
        match telemetry.and_then(|telemetry| telemetry.sample(request.headers())) {
            None => future::Either::Left(self.answer(route, request, connection)),
            Some(span) => {
                let answer = async move { self.answer(route, request, connection).await };
                future::Either::Right(Box::pin(span.trace("http", route.name(), answer, |_| None)))
            }
        }
    }

    /// Answers a request, at once if it needs no router. The future is small: hyper moves it.
    fn answer(
        &self,
        route: Route,
        mut request: Request<Incoming>,
        connection: &Connection,
    ) -> impl Future<Output = Result<HttpResponse, Infallible>> {
        let began = STOPWATCH.now();
        // The most frequent request bypasses the router, and needs an id only if it is logged.
        let bypass =
            route == Route::CLIENT && request.method() == Method::GET && !is_from_browser(request.headers());
        let log = enabled!(target: "tollgate::access", tracing::Level::DEBUG);
        let id = request.headers().get(REQUEST_ID).filter(|id| id.len() <= REQUEST_ID_BYTES_MAX).cloned();
        let id = if bypass && !log { id } else { Some(id.unwrap_or_else(|| self.app.next_request_id())) };
        if log {
            request.extensions_mut().insert(PeerAddr(connection.peer));
        }
        let entry = log.then(|| Entry::new(&self.app, &request));
        let exchange = Exchange { route, began, id, entry };
        let immediate = match host::check(request.version(), request.headers()) {
            Err(error) => Some(error.into_bytes()),
            Ok(()) if bypass && !connection.backpressure.is_blocked() => {
                check_in_memory(&self.app, request.uri())
            }
            Ok(()) => None,
        };
        if let Some(response) = immediate {
            let response = response.map(|body| Either::Left(Full::new(body)));
            return future::Either::Left(future::ready(Ok(exchange.end(&self.app, connection, response))));
        }
        let sender = self.describe(&mut request, connection);
        future::Either::Right(Box::pin(async move {
            // A peer that does not read its answers gets no further ones.
            connection.backpressure.unblocked().await;
            let request_id = exchange.id.as_ref().and_then(|id| id.to_str().ok());
            let span = info_span!("request", request_id);
            let routed = self.router.clone().call(request.map(Body::new)).instrument(span).await;
            routed.map(|response| {
                if response.extensions().get::<Overloaded>().is_some() {
                    self.app.refused_as_overloaded(&sender);
                }
                exchange.end(&self.app, connection, response.map(Either::Right))
            })
        }))
    }

    /// Adds what handlers need of the connection to the request. Returns its sender.
    fn describe(&self, request: &mut Request<Incoming>, connection: &Connection) -> Sender {
        request.extensions_mut().insert(PeerAddr(connection.peer));
        request.extensions_mut().insert(connection.answering());
        request.extensions_mut().insert(connection.buffers.clone());
        let forwarded = if connection.is_proxy() {
            Sender::forwarded(&self.app.snapshot().settings.identity, Head::from(&*request))
        } else {
            None
        };
        let sender = forwarded.unwrap_or_else(|| connection.sender.clone());
        request.extensions_mut().insert(sender.clone());
        sender
    }
}

/// A request that is being answered.
struct Exchange {
    route: Route,
    began: Timestamp,
    id: Option<HeaderValue>,
    entry: Option<Entry>,
}

impl Exchange {
    /// Counts and logs the response, and completes its header fields.
    fn end(self, app: &App, connection: &Connection, mut response: HttpResponse) -> HttpResponse {
        let took = STOPWATCH.now().since(self.began);
        app.metrics.answered(self.route, response.status().as_u16(), took);
        if let Some(entry) = self.entry {
            entry.write(response.status().as_u16(), took, self.id.as_ref());
        }
        if let Some(id) = self.id {
            response.headers_mut().insert(REQUEST_ID, id);
        }
        if connection.is_stopping() {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
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
        let client = app.snapshot().settings.identity.identify(Head::from(request)).unwrap_or_default();
        Self {
            method: request.method().clone(),
            path: app.logged(request.uri().path()),
            from: app.logged(&client),
        }
    }

    fn write(self, status: u16, took: Duration, id: Option<&HeaderValue>) {
        let Self { method, path, from } = self;
        let took_us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let request_id = id.and_then(|id| id.to_str().ok());
        debug!(target: "tollgate::access", %method, path, status, took_us, from, request_id, "answered");
    }
}
