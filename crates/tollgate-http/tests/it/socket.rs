//! A real server under many concurrent connections admits exactly the limit.

use crate::common::{Log, get, read, send, serve};
use axum::Router;
use axum::routing::get as route;
use http_body_util::Full;
use hyper::body::Bytes;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate::{HOUR, Limit, Limiter, Rule, RuleSet};
use tollgate_http::RateLimitLayer;
use tower::ServiceExt as _;

/// An application that counts the calls of its handler.
fn app(limit: Limit) -> (Router, Arc<AtomicU64>) {
    let ran = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&ran);
    let handler = move || async move {
        counter.fetch_add(1, Ordering::SeqCst);
        "hello"
    };
    let layer = RateLimitLayer::new(Limiter::new(limit));
    (Router::new().route("/", route(handler)).layer(layer), ran)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_of_1500_concurrent_requests_over_as_many_connections_exactly_five_get_in() {
    let (app, ran) = app(Limit::sliding_log(5, HOUR));
    let server = serve(app).await;
    // A hundred connections at a time: the machine bounds the number of open ones.
    let turns = Arc::new(tokio::sync::Semaphore::new(100));
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..1_500 {
        let turns = Arc::clone(&turns);
        clients.spawn(async move {
            let _turn = turns.acquire_owned().await.unwrap();
            send(server, get("/", &[])).await
        });
    }
    let answers = clients.join_all().await;
    let admitted = answers.iter().filter(|answer| answer.status == 200).count();
    assert_eq!((admitted, ran.load(Ordering::SeqCst)), (5, 5));
    for denied in answers.iter().filter(|answer| answer.status != 200) {
        assert_eq!(denied.status, 429);
        assert!(denied.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1);
        assert!(denied.body.contains("rate limit exceeded"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f4_of_1500_concurrent_requests_over_http2_exactly_five_get_in() {
    let (app, ran) = app(Limit::sliding_log(5, HOUR));
    let server = serve(app).await;
    let mut clients = tokio::task::JoinSet::new();
    for _ in 0..3 {
        let connection = http2(server).await;
        for _ in 0..500 {
            let mut connection = connection.clone();
            clients.spawn(async move {
                connection.ready().await.unwrap();
                read(connection.send_request(get("http://localhost/", &[])).await.unwrap()).await.status
            });
        }
    }
    let statuses = clients.join_all().await;
    assert_eq!(statuses.iter().filter(|status| **status == 200).count(), 5);
    assert_eq!(statuses.iter().filter(|status| **status == 429).count(), 1_495);
    assert_eq!(ran.load(Ordering::SeqCst), 5);
}

#[tokio::test]
async fn f2_a_rule_that_warns_warns_from_its_share_on() {
    let rule = Rule::new("per-client", Limit::sliding_log(3, HOUR)).key(["client"]).warn_at(60);
    let layer = RateLimitLayer::new(Limiter::builder(RuleSet::new([rule]).unwrap()).build().unwrap());
    let server = serve(Router::new().route("/", route(async || "hello")).layer(layer)).await;
    for (status, warning) in
        [(200, None), (200, Some(r#""per-client";u=66"#)), (200, Some(r#""per-client";u=100"#)), (429, None)]
    {
        let answer = send(server, get("/", &[])).await;
        assert_eq!((answer.status.as_u16(), answer.header("ratelimit-warning")), (status, warning));
    }
}

#[tokio::test]
async fn f3_axum_clients_are_told_apart_with_the_default_features() {
    let layer = RateLimitLayer::new(Limiter::new(Limit::per_second(5)));
    let server = serve(Router::new().route("/", route(async || "hello")).layer(layer.clone())).await;
    assert_eq!(send(server, get("/", &[])).await.status, 200);
    assert_eq!(layer.unidentified(), 0, "the peer's address is known");
}

/// A server that does not pass the peer's address on counts all clients together, and says so once.
#[tokio::test]
async fn f3_the_first_request_without_an_identity_is_a_warning() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let layer = RateLimitLayer::new(Limiter::new(Limit::per_second(5)));
    let app = Router::new().route("/", route(async || "hello")).layer(layer.clone());
    for _ in 0..3 {
        let request = http::Request::new(axum::body::Body::empty());
        assert_eq!(app.clone().oneshot(request).await.unwrap().status(), 200);
    }
    let log = log.text();
    assert_eq!((layer.unidentified(), log.lines().count()), (3, 1), "{log}");
    assert!(log.contains("WARN") && log.contains("into_make_service_with_connect_info"), "{log}");
}

/// A connection with many concurrent requests.
async fn http2(server: SocketAddr) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let stream = TokioIo::new(tokio::net::TcpStream::connect(server).await.unwrap());
    let (sender, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await.unwrap();
    tokio::spawn(connection);
    sender
}
