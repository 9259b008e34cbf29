//! A1 over a socket: a server in this process with an injected clock.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use serde_json::Value;
use tokio::runtime::Runtime;
use tollgate::{ManualClock, Timestamp};
use tollgate_server::App;
use tollgate_server::Listeners;
use tollgate_server::config::Origin;

use crate::common::directory;

/// The status, the header fields and the body.
fn get(address: SocketAddr, path: &str) -> (u16, String, Value) {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: tollgate\r\nconnection: close\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (head, body) = response.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), head.to_owned(), serde_json::from_str(body).unwrap())
}

/// A server on this clock, for as long as the runtime lives.
fn serve(origin: Origin, clock: &ManualClock) -> (Runtime, SocketAddr) {
    let app = App::new(origin.clone(), origin.load().unwrap(), Arc::new(clock.clone())).unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(tollgate_server::serve(
        Listeners { http: Some(listener), ..Listeners::default() },
        Arc::new(app),
        std::future::pending(),
    ));
    (runtime, address)
}

#[test]
fn c9_a_day_of_23_hours_over_http() {
    // 2026-03-29 in Berlin: the clock goes from two to three.
    let (start, end) = (1_774_738_800_000, 1_774_821_600_000);
    let clock = ManualClock::at(Timestamp::from_millis(start));
    let file = directory("calendar").join("tollgate.toml");
    let rule = "[[rule]]\nname = \"daily\"\nkey = [\"client\"]\nlimit = \"1/day at Europe/Berlin\"\n";
    std::fs::write(&file, rule).unwrap();
    let (_runtime, address) = serve(Origin { file: Some(file), ..Origin::default() }, &clock);
    for (at, status, window, reset) in
        [(start, 200, 82_800, end), (end - 1, 429, 82_800, end), (end, 200, 86_400, end + 86_400_000)]
    {
        clock.set(Timestamp::from_millis(at));
        let (got, head, body) = get(address, "/check/alice");
        assert_eq!((got, body["resetAt"].as_u64()), (status, Some(reset)), "{body}");
        assert!(head.contains(&format!("ratelimit-policy: \"daily\";q=1;w={window}\r\n")), "{head}");
    }
}

#[test]
fn a1_vector_over_http() {
    let clock = ManualClock::at(Timestamp::from_millis(1_000_000));
    let (_runtime, address) = serve(Origin::default(), &clock);
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
}
