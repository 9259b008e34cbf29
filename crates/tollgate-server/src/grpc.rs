//! gRPC: Envoy's rate limit service, with the standard health and reflection services beside it.
//!
//! Connections are long-lived, as Envoy's are; pings detect dead peers.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{Request, Response};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Either, ready};
use http_body_util::Limited;
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tollgate::SECOND;
use tonic::Status;
use tonic::body::Body;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tower_service::Service as _;

use crate::app::{App, PROTOCOL};
use crate::buffers::TOO_MUCH;
use crate::connection::{Connection, Ending, Phase, Watched};

mod bounded;
mod codec;
mod descriptors;
mod health;
mod pb;
mod response;
mod service;

use bounded::{Bounded, HeldBody};
use health::Health;
use pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitServiceServer;
use service::RateLimits;

/// The file descriptor set of the service and its messages, for reflection. Generated with them.
const DESCRIPTORS: &[u8] = include_bytes!("grpc/rls.bin");

/// The path of the rate limit method.
const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";

/// The largest message.
const MESSAGE_BYTES_MAX: usize = 1 << 20;

/// The most bytes of one call of any other service.
const OTHER_BYTES_MAX: usize = 256 << 10;

/// The bytes that a connection, and a call, may send before they are read.
const WINDOW_BYTES: u32 = 128 << 10;

/// The most bytes of a response that wait for the peer.
const SEND_BYTES_MAX: usize = 64 << 10;

/// What a call counts as until its response is taken: its state, its message and its response,
/// which are nearly always smaller together.
const CALL_BYTES: usize = 8 << 10;

/// The most concurrent calls of a connection.
const STREAMS_MAX: u32 = 256;

/// Envoy keeps connections open; while the server drains, it has time to open others elsewhere.
const ENDING: Ending = Ending { phase: Phase::Draining, may_idle: true };

/// The timeout of a ping.
const PING: Duration = Duration::from_secs(20);

/// Serves gRPC.
#[derive(Clone)]
pub(crate) struct Grpc {
    rate_limits: RateLimitServiceServer<RateLimits>,
    others: Routes,
    app: Arc<App>,
}

impl Grpc {
    pub(crate) fn new(app: &Arc<App>) -> Self {
        let rate_limits = RateLimitServiceServer::new(RateLimits::new(Arc::clone(app)))
            .max_decoding_message_size(MESSAGE_BYTES_MAX);
        let mut others =
            Routes::new(rate_limits.clone()).add_service(HealthServer::new(Health::new(Arc::clone(app))));
        let reflection = || {
            tonic_reflection::server::Builder::configure()
                .register_encoded_file_descriptor_set(DESCRIPTORS)
                .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        };
        // The registered sets are compiled in, and a test reads them.
        if let Ok(service) = reflection().build_v1() {
            others = others.add_service(service);
        }
        if let Ok(service) = reflection().build_v1alpha() {
            others = others.add_service(service);
        }
        Self { rate_limits, others: others.prepare(), app: Arc::clone(app) }
    }

    /// Serves a connection until it ends.
    pub(crate) async fn serve_connection(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        connection: &Connection,
    ) -> io::Result<()> {
        let service = service_fn(|request| {
            connection.count();
            let busy = connection.busy();
            self.call(request, connection).inspect(move |_| drop(busy))
        });
        let served = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .auto_date_header(false)
            .keep_alive_interval(Some(self.app.fixed().timeout.max(SECOND)))
            .keep_alive_timeout(PING)
            .max_concurrent_streams(STREAMS_MAX)
            .initial_connection_window_size(WINDOW_BYTES)
            .initial_stream_window_size(WINDOW_BYTES)
            .max_send_buf_size(SEND_BYTES_MAX)
            .serve_connection(TokioIo::new(Watched::new(stream, &connection.backpressure)), service);
        connection.serve(ENDING, served, http2::Connection::graceful_shutdown).await
    }

    /// Answers a call, unless there is no room for it, or its message takes too long to arrive. The
    /// rate limit method bypasses the router, because it is the most frequent. The future is small:
    /// hyper moves it.
    fn call(
        &self,
        mut request: Request<Incoming>,
        connection: &Connection,
    ) -> impl Future<Output = Result<Response<HeldBody>, Infallible>> + use<> {
        let mut held = connection.buffers.hold();
        if !held.grow(CALL_BYTES) {
            self.app.refused_as_overloaded(&connection.sender);
            let refused = Status::resource_exhausted(TOO_MUCH).into_http();
            return Either::Left(ready(Ok(refused.map(|body| HeldBody::new(body, held)))));
        }
        request.extensions_mut().insert(connection.sender.clone());
        let answer: BoxFuture<'static, _> = if request.uri().path() == SHOULD_RATE_LIMIT {
            self.rate_limits.clone().call(request.map(|body| Bounded::new(body, &connection.buffers)))
        } else {
            let body = |body| Body::new(Limited::new(body, OTHER_BYTES_MAX));
            self.others.clone().call(request.map(body)).boxed()
        };
        let late = |_| Ok(Status::unavailable("the message took too long to arrive").into_http());
        let answer = timeout(self.app.fixed().timeout, PROTOCOL.scope("grpc", answer));
        let backpressure = Arc::clone(&connection.backpressure);
        Either::Right(async move {
            // A peer that does not read its answers gets no further ones.
            if backpressure.is_blocked() {
                backpressure.unblocked().await;
            }
            let answered: Result<Response<Body>, Infallible> = answer.await.unwrap_or_else(late);
            answered.map(|response| response.map(|body| HeldBody::new(body, held)))
        })
    }
}
