//! Charging by response: for failures only, or by the actual cost.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{get, request, send, serve};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get as route, post};
use tokio::sync::Semaphore;
use tollgate::{HOUR, Limit, Limiter, ManualClock, Request, Store, Timestamp, block_on};
use tollgate_http::{Answered, Identity, RateLimitLayer};
use tollgate_testkit::FaultyStore;

#[path = "../../examples/login.rs"]
#[expect(dead_code, reason = "its main is not needed here")]
mod login;

#[tokio::test]
async fn c5_only_failed_logins_count() {
    let server = serve(login::app()).await;
    let login = async |password| send(server, request("POST", "/login", &[], password)).await.status.as_u16();
    for _ in 0..20 {
        assert_eq!(login("open sesame").await, 200);
    }
    for _ in 0..5 {
        assert_eq!(login("wrong").await, 401);
    }
    assert_eq!(login("wrong").await, 429);
    assert_eq!(login("open sesame").await, 429, "whoever guessed too often waits, right or wrong");
}

/// The cost that a handler reports.
#[derive(Clone)]
struct Tokens(u64);

fn limiter(clock: &ManualClock) -> Limiter {
    let rules = tollgate::RuleSet::new([
        tollgate::Rule::new("tokens", Limit::fixed_window(100, HOUR)).key(["client"])
    ]);
    Limiter::builder(rules.unwrap()).clock(clock.clone()).build().unwrap()
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_700_000_000))
}

/// Reserves forty units, and settles at the cost that the handler reports.
fn layer<S>(limiter: Limiter<S>) -> RateLimitLayer<S> {
    let actual = |answered: Answered<'_>| answered.extensions.get::<Tokens>().map_or(0, |tokens| tokens.0);
    RateLimitLayer::new(limiter)
        .identity(Identity::function(|_| Some("a".into())))
        .cost(|_| 40)
        .charge_by_response(Duration::from_secs(30), actual)
}

fn left<S: Store>(limiter: &Limiter<S>) -> u64 {
    block_on(limiter.peek(Request::client("a"))).unwrap().remaining()
}

/// A handler that reports the number of tokens in its path.
async fn model(axum::extract::Path(tokens): axum::extract::Path<u64>) -> Response {
    let mut response = StatusCode::OK.into_response();
    response.extensions_mut().insert(Tokens(tokens));
    response
}

#[tokio::test]
async fn c5_the_estimate_is_held_and_the_real_cost_is_settled() {
    let clock = clock();
    let plain = limiter(&clock);
    // An asynchronous store behaves as the memory store does.
    let remote = Limiter::builder(plain.rules()).store(FaultyStore::new(tollgate::MemoryStore::new()));
    let remote = remote.clock(clock.clone()).build().unwrap();
    let here = serve(Router::new().route("/{tokens}", route(model)).layer(layer(plain.clone()))).await;
    let there = serve(Router::new().route("/{tokens}", route(model)).layer(layer(remote.clone()))).await;
    for (path, status, after) in [("/7", 200, 93), ("/0", 200, 93), ("/60", 200, 33), ("/1", 429, 33)] {
        for server in [here, there] {
            assert_eq!(send(server, get(path, &[])).await.status, status, "{path}");
        }
        assert_eq!((left(&plain), left(&remote)), (after, after), "{path}");
    }
}

/// A semaphore that starts without permits.
struct Closed(Semaphore);

impl Default for Closed {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

/// Synchronises a slow handler with its test.
#[derive(Default)]
struct Gate {
    /// A permit for each handler that may go on.
    open: Closed,
    /// Handlers that have ended or were dropped.
    ended: AtomicU64,
}

/// Reports the end of a handler, even if it is dropped.
struct Ends(Arc<Gate>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::SeqCst);
    }
}

/// A handler that waits for the test.
async fn slow(State(gate): State<Arc<Gate>>) -> Response {
    let ends = Ends(gate);
    ends.0.open.0.acquire().await.unwrap().forget();
    let mut response = StatusCode::OK.into_response();
    response.extensions_mut().insert(Tokens(7));
    response
}

fn slow_app(limiter: &Limiter, gate: &Arc<Gate>) -> Router {
    Router::new().route("/", post(slow)).with_state(Arc::clone(gate)).layer(layer(limiter.clone()))
}

#[tokio::test]
async fn c5_concurrent_requests_hold_their_estimates_and_who_hangs_up_is_charged() {
    let (clock, gate) = (clock(), Arc::new(Gate::default()));
    let limiter = limiter(&clock);
    let server = serve(slow_app(&limiter, &gate)).await;
    let mut calls: Vec<_> =
        (0..2).map(|_| tokio::spawn(send(server, request("POST", "/", &[], "")))).collect();
    until(|| left(&limiter) == 20).await;
    assert_eq!(send(server, request("POST", "/", &[], "")).await.status, 429, "forty do not fit into twenty");
    // A client hangs up and its handler is dropped: the estimate stays charged.
    calls.remove(0).abort();
    until(|| gate.ended.load(Ordering::SeqCst) == 1).await;
    gate.open.0.add_permits(1);
    assert_eq!(calls.remove(0).await.unwrap().status, 200);
    assert_eq!(left(&limiter), 100 - 7 - 40);
}

#[tokio::test]
async fn c5_a_request_that_takes_longer_than_its_reservation_stays_charged() {
    let (clock, gate) = (clock(), Arc::new(Gate::default()));
    let limiter = limiter(&clock);
    let server = serve(slow_app(&limiter, &gate)).await;
    let call = tokio::spawn(send(server, request("POST", "/", &[], "")));
    until(|| left(&limiter) == 60).await;
    clock.advance(Duration::from_secs(31));
    assert_eq!(left(&limiter), 60, "or whoever waits long enough could try as often as it likes");
    gate.open.0.add_permits(1);
    assert_eq!(call.await.unwrap().status, 200);
    assert_eq!(left(&limiter), 60);
}

/// Yields until the condition holds.
async fn until(so: impl Fn() -> bool) {
    while !so() {
        tokio::task::yield_now().await;
    }
}
