//! A1 over a socket: a server in this process with an injected clock.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use serde_json::Value;
use tollgate::{ManualClock, Timestamp};
use tollgate_server::App;
use tollgate_server::Listeners;
use tollgate_server::config::Origin;

/// The status, the header fields and the body.
fn get(address: SocketAddr, path: &str) -> (u16, String, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: tollgate\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), serde_json::from_str(body).unwrap())
}

#[test]
fn a1_vector_over_http() {
    let clock = ManualClock::at(Timestamp::from_millis(1_000_000));
    let origin = Origin::default();
    let app = App::new(origin.clone(), origin.load().unwrap(), Arc::new(clock.clone())).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    let server = runtime.spawn(tollgate_server::serve(
        Listeners { http: Some(listener), ..Listeners::default() },
        Arc::new(app),
        std::future::pending(),
    ));
    let check = |at| {
        clock.set(Timestamp::from_millis(at));
        let (status, head, body) = get(address, "/check/alice");
        let has = |field: &str| head.lines().any(|line| line == field);
        let left = body["remaining"].as_u64().unwrap();
        let grows = (body["resetAt"].as_u64().unwrap() - at).div_ceil(1_000);
        assert!(has("ratelimit-policy: \"per-client\";q=10;w=60"), "{head}");
        assert!(has(&format!("ratelimit: \"per-client\";r={left};t={grows}")), "{head}");
        assert_eq!(has(&format!("retry-after: {grows}")), status == 429, "{head}");
        (
            status,
            body["remaining"].as_u64().unwrap(),
            body["resetAt"].as_u64().unwrap(),
            body["retryAfterMs"].as_u64(),
        )
    };
    for left in (0..10).rev() {
        assert_eq!(check(1_000_000), (200, left, 1_060_000, Some(0)));
    }
    assert_eq!(check(1_000_000), (429, 0, 1_060_000, Some(60_000)));
    assert_eq!(check(1_059_999), (429, 0, 1_060_000, Some(1)));
    assert_eq!(check(1_060_000), (200, 9, 1_120_000, Some(0)));
    server.abort();
}
