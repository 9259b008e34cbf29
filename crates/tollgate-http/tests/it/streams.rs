//! C8: websockets and event streams hold their slot as long as the connection lives.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::routing::any;
use http::{Method, Request, StatusCode};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tollgate::{Limit, Limiter, ManualClock, RuleSet, Timestamp, block_on};
use tollgate_http::{ConnectionSlot, Identity, RateLimitLayer};
use tower::{Service as _, ServiceExt as _, service_fn};

use crate::common::{Log, serve};

#[path = "../../examples/sse.rs"]
#[expect(dead_code, reason = "its main is not needed here")]
mod sse;
#[path = "../../examples/websocket.rs"]
#[expect(dead_code, reason = "its main is not needed here")]
mod websocket;

/// The time to live of a slot in the examples.
const TTL: Duration = Duration::from_secs(10);

const HANDSHAKE: &str = "GET /echo HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n\
                         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

fn limiter(slots: u64) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let rules = RuleSet::per_client(Limit::concurrent(slots));
    (Limiter::builder(rules).clock(clock.clone()).build().unwrap(), clock)
}

/// Sends a head over a new connection, and reads the head of the answer.
async fn open(server: SocketAddr, head: &str) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server).await.unwrap();
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\n") {
        answer.push(stream.read_u8().await.unwrap());
    }
    (stream, String::from_utf8(answer).unwrap())
}

fn free(limiter: &Limiter, client: &str) -> u64 {
    block_on(limiter.peek(client)).unwrap().remaining()
}

async fn until_free(limiter: &Limiter, client: &str, slots: u64) {
    while free(limiter, client) != slots {
        tokio::task::yield_now().await;
    }
}

/// Advances the clock by more than a slot lasts, in steps in which it is renewed if anybody does.
async fn pass_ttl(clock: &ManualClock) {
    for _ in 0..8 {
        clock.advance(TTL / 4);
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
    }
}

#[tokio::test]
async fn c8_of_five_websockets_under_two_concurrent_two_are_open_until_one_ends() {
    let (limiter, clock) = limiter(2);
    let server = serve(websocket::app(limiter.clone())).await;
    let mut sockets = Vec::new();
    for index in 0..5 {
        let (stream, answer) = open(server, HANDSHAKE).await;
        let expected = if index < 2 { "HTTP/1.1 101 " } else { "HTTP/1.1 429 " };
        assert!(answer.starts_with(expected), "{index}: {answer}");
        sockets.push(stream);
    }
    pass_ttl(&clock).await;
    assert_eq!(free(&limiter, "127.0.0.1"), 0, "renewed while the connections live");
    // A masked text frame, which comes back unmasked.
    sockets[0].write_all(b"\x81\x82\0\0\0\0hi").await.unwrap();
    let mut echoed = [0; 4];
    sockets[0].read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"\x81\x02hi");
    sockets.remove(0);
    until_free(&limiter, "127.0.0.1", 1).await;
    assert!(open(server, HANDSHAKE).await.1.starts_with("HTTP/1.1 101 "));
}

#[tokio::test]
async fn c8_an_event_stream_holds_its_slot_until_the_client_leaves() {
    let (limiter, clock) = limiter(1);
    let server = serve(sse::app(limiter.clone())).await;
    let head = "GET /ticks HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let (stream, answer) = open(server, head).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    pass_ttl(&clock).await;
    let (_, denied) = open(server, head).await;
    assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
    drop(stream);
    until_free(&limiter, "127.0.0.1", 1).await;
}

#[tokio::test]
async fn c8_the_slot_of_an_upgrade_that_nobody_takes_lasts_its_time_to_live_and_is_warned_of_once() {
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_writer(log.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let (limiter, clock) = limiter(2);
    let forgetful = async |upgrade: WebSocketUpgrade| {
        upgrade.on_upgrade(|mut socket| async move { while let Some(Ok(_)) = socket.recv().await {} })
    };
    let layer = RateLimitLayer::new(limiter.clone()).slot_ttl(TTL);
    let server = serve(Router::new().route("/echo", any(forgetful)).layer(layer)).await;
    let _open = [open(server, HANDSHAKE).await, open(server, HANDSHAKE).await];
    assert!(open(server, HANDSHAKE).await.1.starts_with("HTTP/1.1 429 "), "both slots are held");
    clock.advance(TTL - Duration::from_nanos(1));
    assert_eq!(free(&limiter, "127.0.0.1"), 0);
    clock.advance(Duration::from_nanos(1));
    assert_eq!(free(&limiter, "127.0.0.1"), 2, "nobody renews them");
    let log = log.text();
    assert_eq!(log.matches("ConnectionSlot").count(), 1, "{log}");
}

/// The layer in front of a handler, and what the handler has kept.
async fn upgrade(
    limiter: &Limiter,
    method: Method,
    status: StatusCode,
    keep: impl Fn(Request<()>) -> Option<ConnectionSlot> + Clone + Send + 'static,
) -> Option<ConnectionSlot> {
    let kept = Arc::new(Mutex::new(None));
    let inside = Arc::clone(&kept);
    let handler = service_fn(move |request: Request<()>| {
        *inside.lock().unwrap() = keep(request);
        let response =
            http::Response::builder().status(status).body(http_body_util::Empty::<bytes::Bytes>::new());
        async move { response }
    });
    let layer = RateLimitLayer::new(limiter.clone()).identity(Identity::function(|_| Some("a".into())));
    let mut service = tower::ServiceBuilder::new().layer(layer.slot_ttl(TTL)).service(handler);
    let request = Request::builder().method(method).body(()).unwrap();
    let response = service.ready().await.unwrap().call(request).await.unwrap();
    assert_eq!(response.status(), status);
    drop(response);
    Option::take(&mut kept.lock().unwrap())
}

#[tokio::test]
async fn c8_a_handler_without_axum_takes_the_slot_from_the_extensions() {
    let take = |request: Request<()>| Some(ConnectionSlot::take(request.extensions()));
    for (method, status) in [
        (Method::GET, StatusCode::SWITCHING_PROTOCOLS),
        // Websockets over HTTP/2 (RFC 8441).
        (Method::CONNECT, StatusCode::OK),
        // Whoever takes it may keep it beyond any response.
        (Method::GET, StatusCode::OK),
    ] {
        let (limiter, clock) = limiter(1);
        let slot = upgrade(&limiter, method.clone(), status, take).await.unwrap();
        assert!(slot.is_held());
        pass_ttl(&clock).await;
        assert_eq!(free(&limiter, "a"), 0, "{method} {status}");
        drop(slot);
        assert_eq!(free(&limiter, "a"), 1, "{method} {status}");
    }
}

#[tokio::test]
async fn c8_a_slot_that_was_taken_and_let_go_of_is_held_to_the_end_of_the_response_only() {
    let (limiter, _) = limiter(1);
    let drop_it = |request: Request<()>| {
        drop(ConnectionSlot::take(request.extensions()));
        None
    };
    assert!(upgrade(&limiter, Method::GET, StatusCode::OK, drop_it).await.is_none());
    assert_eq!(free(&limiter, "a"), 1);
}

#[tokio::test]
async fn c8_a_slot_can_be_taken_after_the_response_while_the_request_is_kept() {
    let (limiter, _) = limiter(1);
    let kept = Arc::new(Mutex::new(None));
    let inside = Arc::clone(&kept);
    let keep = move |request: Request<()>| {
        *inside.lock().unwrap() = Some(request);
        None
    };
    upgrade(&limiter, Method::GET, StatusCode::SWITCHING_PROTOCOLS, keep).await;
    assert_eq!(free(&limiter, "a"), 0);
    let request = kept.lock().unwrap().take().unwrap();
    let slot = ConnectionSlot::take(request.extensions());
    drop(request);
    assert!(slot.is_held() && free(&limiter, "a") == 0);
    drop(slot);
    assert_eq!(free(&limiter, "a"), 1);
    assert!(!ConnectionSlot::take(Request::new(()).extensions()).is_held(), "no layer is in front");
}
