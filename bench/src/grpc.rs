//! Envoy's rate limit service: tollgate beside a handler of the same messages that decides nothing,
//! served as tonic comes.
//!
//! The load generator is this program, on one thread. It speaks HTTP/2 without tonic and has all
//! questions encoded beforehand, so that asking costs less than answering: a client as heavy as the
//! server would be what is measured.

use std::path::Path;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_client::RateLimitServiceClient;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::future::join_all;
use h2::client::SendRequest;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::runtime::{Builder, Runtime};

use crate::contenders::random_keys;
use crate::process::{Process, one_worker};
use crate::turns::{Contender, Turn, compare};

const CONNECTIONS: u64 = 8;
/// How many requests are under way at a time on each.
const TOGETHER: u64 = 64;
const CLIENTS: u64 = 100_000;
const SECONDS: u64 = 3;

/// What stands before a message: whether it is compressed, and its length.
const PREFIX_BYTES: usize = 5;

/// Measures them all, and says it in Markdown.
pub fn table(root: &Path) -> String {
    let (tollgate, bare) = (Process::tollgate(root, "grpc"), Process::own("bare-grpc"));
    for process in [&tollgate, &bare] {
        one_thread().block_on(try_out(&process.address));
    }
    let questions = Questions::new();
    let rows = compare(&mut [
        Contender::new("tollgate", &tollgate, || turn(&tollgate, &questions)),
        Contender::new("tonic, a constant", &bare, || turn(&bare, &questions)).goal(0.85),
    ]);
    format!(
        "### gRPC\n\nEnvoy's `ShouldRateLimit` with one descriptor, {CLIENTS} random clients; {CONNECTIONS} connections with {TOGETHER} requests \
         under way on each, for {SECONDS} s, from one thread.\n\n{rows}"
    )
}

/// Answers the same to everyone, as fast as tonic can.
pub fn serve_bare(address: &str) {
    struct Bare;

    #[tonic::async_trait]
    impl RateLimitService for Bare {
        async fn should_rate_limit(
            &self,
            _: tonic::Request<RateLimitRequest>,
        ) -> Result<tonic::Response<RateLimitResponse>, tonic::Status> {
            let limit = RateLimit {
                name: String::new(),
                requests_per_unit: 1_000_000_000,
                unit: Unit::Second.into(),
            };
            let status = DescriptorStatus {
                code: Code::Ok.into(),
                current_limit: Some(limit),
                limit_remaining: 999_999_999,
                duration_until_reset: Some(envoy_types::pb::google::protobuf::Duration {
                    seconds: 1,
                    nanos: 0,
                }),
                ..DescriptorStatus::default()
            };
            let answer = RateLimitResponse {
                overall_code: Code::Ok.into(),
                statuses: vec![status],
                ..RateLimitResponse::default()
            };
            Ok(tonic::Response::new(answer))
        }
    }

    let server = tonic::transport::Server::builder().add_service(RateLimitServiceServer::new(Bare));
    one_worker().block_on(server.serve(address.parse().expect("an address"))).expect("a listener");
}

/// Asks once as a client out of a box does, so that what is measured is known to be the service.
async fn try_out(address: &str) {
    let mut client =
        RateLimitServiceClient::connect(format!("http://{address}")).await.expect("a connection");
    let answer = client.should_rate_limit(question(0)).await.expect("an answer").into_inner();
    assert!(answer.overall_code() == Code::Ok && answer.statuses.len() == 1, "{answer:?}");
}

fn question(client: u64) -> RateLimitRequest {
    let entry = Entry { key: "client".into(), value: format!("{client:012}") };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..RateLimitDescriptor::default() };
    RateLimitRequest { domain: "bench".into(), descriptors: vec![descriptor], ..RateLimitRequest::default() }
}

/// What there is to ask, ready to be sent.
struct Questions(Vec<Bytes>);

impl Questions {
    fn new() -> Self {
        let encoded = |client| {
            let (message, mut bytes) = (question(client), BytesMut::new());
            let length = u32::try_from(message.encoded_len()).expect("a short message");
            bytes.extend_from_slice(&[0]);
            bytes.extend_from_slice(&length.to_be_bytes());
            message.encode(&mut bytes).expect("room");
            bytes.freeze()
        };
        Self((0..CLIENTS).map(encoded).collect())
    }

    /// Random ones, without end.
    fn random(&self, seed: u64) -> impl Iterator<Item = Bytes> {
        random_keys(seed, CLIENTS, u64::MAX).map(|client| self.0[client as usize].clone())
    }
}

/// As many requests as are answered in a few seconds.
fn turn(process: &Process, questions: &Questions) -> Turn {
    one_thread().block_on(async {
        let connections = join_all((0..CONNECTIONS).map(|_| connect(&process.address))).await;
        let request = request(&process.address);
        let begun = Instant::now();
        let end = begun + Duration::from_secs(SECONDS);
        let asking =
            connections.iter().cycle().zip(1..=CONNECTIONS * TOGETHER).map(async |(connection, seed)| {
                let (mut connection, mut answered) = (connection.clone(), 0);
                for question in questions.random(seed) {
                    if Instant::now() >= end {
                        break;
                    }
                    connection = connection.ready().await.expect("a connection");
                    let answer = ask(&mut connection, request.clone(), question).await;
                    assert!(answer.overall_code() == Code::Ok && answer.statuses.len() == 1, "{answer:?}");
                    answered += 1;
                }
                answered
            });
        let requests = join_all(asking).await.into_iter().sum::<u64>() as f64;
        Turn { requests, per_second: requests / begun.elapsed().as_secs_f64(), p99_ms: None }
    })
}

async fn connect(address: &str) -> SendRequest<Bytes> {
    let stream = TcpStream::connect(address).await.expect("a listener");
    stream.set_nodelay(true).expect("a socket");
    let (requests, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
    tokio::spawn(connection);
    requests
}

fn request(address: &str) -> http::Request<()> {
    let request = http::Request::post(format!(
        "http://{address}/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit"
    ));
    request.header("content-type", "application/grpc").header("te", "trailers").body(()).expect("a request")
}

async fn ask(
    connection: &mut SendRequest<Bytes>,
    request: http::Request<()>,
    question: Bytes,
) -> RateLimitResponse {
    let (response, mut sending) = connection.send_request(request, false).expect("a stream");
    sending.send_data(question, true).expect("a stream");
    let mut receiving = response.await.expect("an answer").into_body();
    let mut bytes = BytesMut::new();
    while let Some(chunk) = receiving.data().await {
        let chunk = chunk.expect("an answer");
        receiving.flow_control().release_capacity(chunk.len()).expect("a window");
        bytes.extend_from_slice(&chunk);
    }
    let trailers = receiving.trailers().await.expect("an answer").unwrap_or_default();
    assert!(trailers.get("grpc-status").is_some_and(|status| status == "0"), "{trailers:?}");
    RateLimitResponse::decode(&bytes[PREFIX_BYTES..]).expect("a message")
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}
