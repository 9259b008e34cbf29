//! C6: a layer that holds requests until they are admitted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use axum::routing::get as route;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tollgate::{
    HOUR, Limit, Limiter, ManualClock, MemoryStore, Override, Rule, RuleSet, SECOND, Store, Timestamp,
};
use tollgate_http::{Identity, RateLimitLayer};
use tollgate_testkit::FaultyStore;

use crate::common::{Answer, get, send, serve};
use crate::nested::serve_one_by_one;

const TIMEOUT: Duration = Duration::from_secs(5);

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_700_000_000))
}

fn limiter<S: Store>(limit: Limit, store: S, clock: &ManualClock) -> Limiter<S> {
    let builder = Limiter::builder(RuleSet::per_client(limit)).store(store);
    builder.clock(clock.clone()).build().unwrap()
}

fn app<S: Store + 'static>(layer: &RateLimitLayer<S>) -> Router {
    Router::new().route("/", route(async || "hello")).layer(layer.clone())
}

fn ask(server: SocketAddr) -> JoinHandle<Answer> {
    tokio::spawn(async move { send(server, get("/", &[])).await })
}

async fn status(asked: JoinHandle<Answer>) -> u16 {
    asked.await.unwrap().status.as_u16()
}

/// Yields until the condition holds.
async fn until(so: impl Fn() -> bool) {
    while !so() {
        tokio::task::yield_now().await;
    }
}

async fn waits_for_a_rate<S: Store>(store: S) {
    let clock = clock();
    let layer = RateLimitLayer::new(limiter(Limit::per_second(1).burst(1), store, &clock)).waiting(TIMEOUT);
    let server = serve(app(&layer)).await;
    assert_eq!(status(ask(server)).await, 200);
    let mut asked = Vec::new();
    for waiters in 1..=6 {
        asked.push(ask(server));
        until(|| layer.waiters() == waiters).await;
    }
    for left in (1..6).rev() {
        clock.advance(SECOND);
        until(|| layer.waiters() <= left).await;
        // The sixth is denied at its timeout, when the fifth is admitted.
        assert_eq!(layer.waiters(), if left == 1 { layer.waiters() } else { left });
        let answer = asked.remove(0).await.unwrap();
        assert_eq!(answer.status, 200, "in order of arrival");
        assert!(answer.header("ratelimit").unwrap().contains(";r=0;"), "{answer:?}");
    }
    let denied = asked.remove(0).await.unwrap();
    assert_eq!(denied.status, 429);
    assert!(denied.header("retry-after").unwrap().parse::<u64>().unwrap() >= 1, "{denied:?}");
    assert_eq!((layer.waiters(), layer.waiters_refused()), (0, 0));
}

#[tokio::test]
async fn c6_requests_wait_for_a_rate_in_order_and_are_denied_at_their_timeout() {
    waits_for_a_rate(MemoryStore::new()).await;
    waits_for_a_rate(FaultyStore::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn c6_a_request_that_cannot_be_admitted_in_time_is_denied_at_once() {
    let layer = RateLimitLayer::new(limiter(Limit::per_hour(1), MemoryStore::new(), &clock()));
    let server = serve(app(&layer.waiting(TIMEOUT))).await;
    assert_eq!(status(ask(server)).await, 200);
    let denied = ask(server).await.unwrap();
    assert_eq!((denied.status.as_u16(), denied.header("retry-after")), (429, Some("3600")));
}

async fn waits_for_a_slot<S: Store>(store: S) {
    let layer = RateLimitLayer::new(limiter(Limit::concurrent(1), store, &clock())).waiting(TIMEOUT);
    let (gate, running) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let (inside, count) = (Arc::clone(&gate), Arc::clone(&running));
    let handler = async move || {
        count.fetch_add(1, Ordering::SeqCst);
        inside.acquire().await.unwrap().forget();
        count.fetch_sub(1, Ordering::SeqCst);
    };
    let server = serve(Router::new().route("/", route(handler)).layer(layer.clone())).await;
    let mut asked = vec![ask(server)];
    until(|| running.load(Ordering::SeqCst) == 1).await;
    for waiters in 1..=3 {
        asked.push(ask(server));
        until(|| layer.waiters() == waiters).await;
    }
    for (turn, one) in asked.into_iter().enumerate() {
        assert_eq!(running.load(Ordering::SeqCst), 1, "one at a time");
        gate.add_permits(1);
        assert_eq!(status(one).await, 200);
        // The slot was released, and goes to the next.
        until(|| running.load(Ordering::SeqCst) == usize::from(turn < 3)).await;
    }
}

#[tokio::test]
async fn c6_requests_wait_for_a_slot_and_get_it_when_it_is_released() {
    waits_for_a_slot(MemoryStore::new()).await;
    waits_for_a_slot(FaultyStore::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn c6_a_client_that_leaves_leaves_the_queue_and_has_taken_nothing() {
    let clock = clock();
    let limiter = limiter(Limit::per_second(1).burst(1), MemoryStore::new(), &clock);
    let layer = RateLimitLayer::new(limiter).waiting(TIMEOUT);
    let server = serve(app(&layer)).await;
    assert_eq!(status(ask(server)).await, 200);
    let mut leaver = TcpStream::connect(server).await.unwrap();
    leaver.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    until(|| layer.waiters() == 1).await;
    let next = ask(server);
    until(|| layer.waiters() == 2).await;
    drop(leaver);
    until(|| layer.waiters() == 1).await;
    clock.advance(SECOND);
    assert_eq!(status(next).await, 200, "the next one has the turn");
}

#[tokio::test]
async fn c6_no_more_requests_wait_than_may() {
    let clock = clock();
    let limiter = limiter(Limit::per_second(1).burst(1), MemoryStore::new(), &clock);
    let layer = RateLimitLayer::new(limiter).max_waiters(1).waiting(TIMEOUT);
    let server = serve(app(&layer)).await;
    assert_eq!(status(ask(server)).await, 200);
    let waiting = ask(server);
    until(|| layer.waiters() == 1).await;
    for refused in 1..=3 {
        assert_eq!(status(ask(server)).await, 429);
        assert_eq!((layer.waiters(), layer.waiters_refused()), (1, refused));
    }
    clock.advance(SECOND);
    assert_eq!(status(waiting).await, 200);
}

#[tokio::test]
async fn c6_a_request_that_waits_holds_no_permit_of_the_service() {
    let clock = clock();
    let rules = RuleSet::new([Rule::new("r", Limit::per_second(1).burst(1)).key(["client"])]).unwrap();
    let rules =
        rules.with_overrides([Override::new("r", Limit::fixed_window(9, HOUR)).matching("client", "b")]);
    let limiter = Limiter::builder(rules.unwrap()).clock(clock.clone()).build().unwrap();
    let layer = RateLimitLayer::new(limiter).identity(Identity::header("x-client".parse().unwrap()));
    let layer = layer.waiting(TIMEOUT);
    // The service admits one request at a time.
    let server = serve_one_by_one(layer.clone()).await;
    let of_a = || tokio::spawn(async move { send(server, get("/", &[("x-client", "a")])).await });
    assert_eq!(status(of_a()).await, 200);
    let waiting = of_a();
    until(|| layer.waiters() == 1).await;
    assert_eq!(send(server, get("/", &[("x-client", "b")])).await.status, 200);
    clock.advance(SECOND);
    assert_eq!(status(waiting).await, 200);
}
