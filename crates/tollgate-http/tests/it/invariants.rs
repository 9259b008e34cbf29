//! Seven named invariants of a limiter in front of a web service.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::{Answer, get, send, serve};
use axum::Router;
use axum::routing::get as route;
use bytes::Bytes;
use http::{Response, StatusCode};
use tollgate::{
    Error, FailurePolicy, Limit, Limiter, MINUTE, ManualClock, MemoryStore, Rule, RuleSet, SECOND, Store,
    Timestamp,
};
use tollgate_http::{HeaderStyle, Headers, Identity, RateLimitLayer};
use tollgate_testkit::{Fault, FaultyStore};

const KEY: &str = "x-client";

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_700_000_000))
}

fn ten_a_minute() -> Rule {
    Rule::new("per-client", Limit::fixed_window(10, MINUTE)).key(["client"])
}

fn rules(rule: Rule) -> RuleSet {
    RuleSet::new([rule]).unwrap()
}

/// The client is the value of a header, which is enough for a test.
fn layer<S>(limiter: Limiter<S>) -> RateLimitLayer<S> {
    RateLimitLayer::new(limiter).identity(Identity::header(KEY.parse().unwrap()))
}

fn router<S: Store + 'static>(layer: RateLimitLayer<S>) -> (Router, Arc<AtomicU64>) {
    let ran = Arc::new(AtomicU64::new(0));
    let counter = Arc::clone(&ran);
    let handler = move || async move {
        counter.fetch_add(1, Ordering::SeqCst);
        ([("x-handler", "ran")], "hello")
    };
    (Router::new().route("/{*path}", route(handler)).layer(layer), ran)
}

async fn ask(server: std::net::SocketAddr, client: &str) -> Answer {
    send(server, get("/x", &[(KEY, client)])).await
}

#[tokio::test]
async fn i1_construction_does_no_io_and_errors_are_typed() {
    // A store that fails every call.
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    store.set(Fault::Fail);
    let limiter = Limiter::builder(rules(ten_a_minute())).store(Arc::clone(&store)).build().unwrap();
    let layer = layer(limiter.clone()).headers(Headers::new(HeaderStyle::X)).cost(|_| 2);
    let (app, _) = router(layer);
    assert_eq!(store.calls(), 0);
    // A request that cannot be counted is a typed error, without a call of the store.
    assert!(matches!(limiter.check_async("").await, Err(Error::InvalidKey { .. })));
    assert_eq!(store.calls(), 0);
    let server = serve(app).await;
    assert_eq!(ask(server, "a").await.status, 200, "fails open");
    assert_eq!(store.calls(), 1);
}

#[tokio::test]
async fn i2_the_first_n_get_in_and_the_rest_do_not() {
    let (app, ran) = router(layer(Limiter::builder(rules(ten_a_minute())).clock(clock()).build().unwrap()));
    let server = serve(app).await;
    for turn in 0..25 {
        assert_eq!(ask(server, "a").await.status == 200, turn < 10, "turn {turn}");
    }
    assert_eq!(ran.load(Ordering::SeqCst), 10, "the handler never ran for the others");
}

#[tokio::test]
async fn i3_after_the_window_they_get_in_again() {
    let clock = clock();
    let limiter = Limiter::builder(rules(ten_a_minute())).clock(clock.clone()).build().unwrap();
    let server = serve(router(layer(limiter)).0).await;
    for _ in 0..11 {
        ask(server, "a").await;
    }
    clock.advance(MINUTE - SECOND);
    let denied = ask(server, "a").await;
    assert_eq!((denied.status.as_u16(), denied.header("retry-after")), (429, Some("1")));
    clock.advance(SECOND);
    assert_eq!(ask(server, "a").await.status, 200);
}

#[tokio::test]
async fn i4_clients_do_not_share_a_budget_and_those_unknown_share_one() {
    let layer = layer(Limiter::builder(rules(ten_a_minute())).clock(clock()).build().unwrap());
    let counted = layer.clone();
    let server = serve(router(layer).0).await;
    for _ in 0..11 {
        ask(server, "a").await;
    }
    assert_eq!(ask(server, "a").await.status, 429);
    assert_eq!(ask(server, "b").await.status, 200);
    for turn in 0..12 {
        // A missing, non-ASCII, blank or repeated header: all of these are unidentified.
        let nobody: &[(&str, &str)] =
            [&[][..], &[(KEY, "é")], &[(KEY, "  ")], &[(KEY, "a"), (KEY, "b")]][turn % 4];
        let answer = send(server, get("/x", nobody)).await;
        assert_eq!(answer.status == 200, turn < 10, "turn {turn}");
    }
    assert_eq!(counted.unidentified(), 12);
}

#[tokio::test]
async fn i5_numbers_and_headers_are_right_on_both_paths() {
    let clock = clock();
    let watching = Rule::new("watching", Limit::per_minute(1)).shadow();
    let rules = RuleSet::new([ten_a_minute(), watching]).unwrap();
    let limiter = Limiter::builder(rules).clock(clock.clone()).build().unwrap();
    let server = serve(router(layer(limiter)).0).await;
    for left in (0..10).rev() {
        let allowed = ask(server, "a").await;
        assert_eq!(allowed.header("ratelimit-policy"), Some("\"per-client\";q=10;w=60"));
        assert_eq!(allowed.header("ratelimit"), Some(&*format!("\"per-client\";r={left};t=60")));
        assert_eq!((allowed.header("x-handler"), allowed.body.as_str()), (Some("ran"), "hello"));
        assert_eq!(allowed.header("retry-after"), None);
    }
    clock.advance(MINUTE / 4);
    let denied = ask(server, "a").await;
    assert_eq!(denied.header("ratelimit"), Some("\"per-client\";r=0;t=45"));
    assert_eq!((denied.header("retry-after"), denied.header("x-handler")), (Some("45"), None));
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(
        denied.body,
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too Many Requests","status":429,"#
            .to_owned()
            + r#""detail":"rate limit exceeded; window resets at 1700000060000","allowed":false,"remaining":0,"resetAt":1700000060000,"#
            + r#""limit":10,"retryAfterMs":45000,"rule":"per-client","degraded":false,"violated-policies":["per-client"]}"#
    );
}

#[tokio::test]
async fn i5_a_denied_response_can_be_ones_own_and_keeps_its_headers() {
    let own = |_: &tollgate::Decision| {
        Response::builder().status(StatusCode::IM_A_TEAPOT).body(Bytes::from_static(b"later")).unwrap()
    };
    let limiter = Limiter::builder(rules(ten_a_minute())).clock(clock()).build().unwrap();
    let server = serve(router(layer(limiter).cost(|_| 11).on_denied(own)).0).await;
    let denied = ask(server, "a").await;
    assert_eq!((denied.status.as_u16(), denied.body.as_str()), (418, "later"));
    assert_eq!(denied.header("ratelimit"), Some("\"per-client\";r=10;t=0"));
    assert_eq!(denied.header("retry-after"), None, "eleven never fit");
}

#[tokio::test]
async fn i6_an_invalid_rule_touches_no_store() {
    let store = Arc::new(FaultyStore::new(MemoryStore::new().log_ceiling(100)));
    let zero = "0/minute".parse::<Limit>();
    assert!(matches!(zero, Err(Error::InvalidLimit { .. } | Error::InvalidNotation { .. })), "{zero:?}");
    let nameless = RuleSet::new([Rule::new("", Limit::per_second(1))]);
    assert!(matches!(nameless, Err(Error::InvalidRule { field: "name", .. })));
    let too_long = rules(Rule::new("log", Limit::sliding_log(101, MINUTE)));
    let refused = Limiter::builder(too_long).store(Arc::clone(&store)).build();
    assert!(matches!(refused, Err(Error::InvalidRule { .. })));
    assert_eq!(store.calls(), 0);
}

#[tokio::test]
async fn i7_a_store_that_fails_follows_the_policy_and_never_escapes() {
    for (policy, status, kind) in [
        (FailurePolicy::Open, 200, ""),
        (FailurePolicy::Closed, 503, "temporary-reduced-capacity"),
        (FailurePolicy::Local, 200, ""),
    ] {
        for fault in [Fault::Fail, Fault::Hang, Fault::Lie] {
            let store = FaultyStore::new(MemoryStore::new());
            store.set(fault);
            // The clock is the system's: the store's deadline of a millisecond passes by itself.
            let limiter = Limiter::builder(rules(ten_a_minute().on_store_error(policy)))
                .store(store)
                .deadline(std::time::Duration::from_millis(1));
            let (app, ran) = router(layer(limiter.build().unwrap()));
            let answer = ask(serve(app).await, "a").await;
            assert_eq!(answer.status, status, "{policy:?} {fault:?}");
            assert_eq!(ran.load(Ordering::SeqCst), u64::from(status == 200));
            assert!(answer.body.contains(kind), "{}", answer.body);
            assert!(!answer.body.contains("store"), "nothing of the store's error: {}", answer.body);
            assert_eq!(answer.header("retry-after").is_some(), status != 200);
        }
    }
}

#[tokio::test]
async fn i7_a_local_share_that_is_spent_is_the_clients_fault() {
    let store = FaultyStore::new(MemoryStore::new());
    store.set(Fault::Fail);
    let rule = ten_a_minute().on_store_error(FailurePolicy::Local);
    let limiter = Limiter::builder(rules(rule)).store(store).clock(clock()).build().unwrap();
    let server = serve(router(layer(limiter)).0).await;
    assert_eq!(
        [ask(server, "a").await.status, ask(server, "a").await.status],
        [200, 200],
        "a quarter of ten"
    );
    let denied = ask(server, "a").await;
    assert_eq!(denied.status, 429);
    assert!(denied.body.contains("\"degraded\":true"));
}

#[tokio::test]
async fn f4_rules_count_by_what_they_ask_for() {
    let rules = RuleSet::new([
        Rule::new("login", Limit::fixed_window(2, MINUTE)).matching("path", "/login*").key(["client"]),
        Rule::new("tenant", Limit::fixed_window(3, MINUTE)).key(["header:x-tenant"]),
        Rule::new("plan", Limit::fixed_window(1, MINUTE))
            .matching("plan", "free")
            .key(["client", "method", "host"]),
    ])
    .unwrap();
    let limiter = Limiter::builder(rules).clock(clock()).build().unwrap();
    let plan = |head: tollgate_http::Head<'_>| head.uri.query().map(str::to_owned);
    let server = serve(router(layer(limiter).attribute("plan", plan)).0).await;
    let status =
        async |path: &str, headers: &[(&str, &str)]| send(server, get(path, headers)).await.status.as_u16();
    assert_eq!(status("/login", &[(KEY, "a")]).await, 200);
    assert_eq!(status("/login/again", &[(KEY, "a")]).await, 200);
    assert_eq!(status("/login", &[(KEY, "a")]).await, 429);
    assert_eq!(status("/other", &[(KEY, "a")]).await, 200);
    // A value longer than a key is truncated: neither refused nor let through.
    for tenant in ["t".to_owned(), "u".repeat(2_000)] {
        for turn in 0..4 {
            let headers = [(KEY, "b"), ("x-tenant", tenant.as_str())];
            assert_eq!(status("/x", &headers).await == 200, turn < 3);
        }
    }
    // Requests with a header that is empty or unreadable share a budget.
    let evasions: [&[(&str, &str)]; 4] = [
        &[("x-tenant", "v"), ("x-tenant", "ö")],
        &[("x-tenant", "")],
        &[("x-tenant", "é")],
        &[("x-tenant", "ü")],
    ];
    for (turn, evasion) in evasions.into_iter().enumerate() {
        assert_eq!(status("/x", evasion).await == 200, turn < 3);
    }
    assert_eq!(status("/x?free", &[(KEY, "c")]).await, 200);
    assert_eq!(status("/x?free", &[(KEY, "c")]).await, 429);
    assert_eq!(status("/x?gold", &[(KEY, "c")]).await, 200);
}
