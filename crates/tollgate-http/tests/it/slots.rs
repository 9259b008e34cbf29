//! C8: a request holds its slot until the body of its response has ended or was dropped.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tollgate::{Clock as _, HOUR, Limit, Limiter, ManualClock, MemoryStore, Rule, RuleSet, Store, Timestamp};
use tollgate_http::{Answered, Identity, RateLimitLayer, ResponseBody};
use tollgate_testkit::FaultyStore;
use tower::{ServiceBuilder, ServiceExt as _, service_fn};

const TTL: Duration = Duration::from_secs(30);

/// A part of a body, or its failure.
type Part = Result<Bytes, std::io::ErrorKind>;

/// A body that the test sends.
struct Streamed(Receiver<Part>);

impl Body for Streamed {
    type Data = Bytes;
    type Error = std::io::ErrorKind;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::ErrorKind>>> {
        self.0.poll_recv(context).map(|part| part.map(|part| part.map(Frame::data)))
    }
}

/// A limiter of one slot and a hundred requests.
fn limiter<S: Store>(store: S, clock: &ManualClock) -> Limiter<S> {
    let rule = Rule::new("streams", [Limit::concurrent(1), Limit::fixed_window(100, HOUR)]);
    let rules = RuleSet::new([rule.key(["client"])]).unwrap();
    Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap()
}

fn layer<S>(limiter: &Limiter<S>) -> RateLimitLayer<S> {
    RateLimitLayer::new(limiter.clone()).identity(Identity::function(|_| Some("a".into()))).slot_ttl(TTL)
}

/// Asks the layered service, whose response has the body of the returned sender.
async fn ask<S: Store>(layer: &RateLimitLayer<S>) -> (Response<ResponseBody<Streamed>>, Sender<Part>) {
    let (sender, receiver) = channel(1);
    let body = std::sync::Mutex::new(Some(Streamed(receiver)));
    let body = std::sync::Arc::new(body);
    let handler = service_fn(move |_: Request<()>| {
        let body = body.lock().unwrap().take().unwrap();
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    let service = ServiceBuilder::new().layer(layer.clone()).service(handler);
    (service.oneshot(Request::new(())).await.unwrap(), sender)
}

async fn left<S: Store>(limiter: &Limiter<S>) -> (u64, u64) {
    let decision = limiter.peek("a").await.unwrap();
    let reports = decision.limits();
    (reports[0].outcome.remaining, reports[1].outcome.remaining)
}

async fn holds_until_the_body_ends<S: Store>(store: S) {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let limiter = limiter(store, &clock);
    let layer = layer(&limiter);
    let (response, sender) = ask(&layer).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(left(&limiter).await, (0, 99), "the head has arrived, and the body has not");
    let mut body = response.into_body();
    for _ in 0..5 {
        sender.send(Ok(Bytes::from_static(b"a part"))).await.unwrap();
        assert!(body.frame().await.unwrap().is_ok());
        // Longer than the slot lasts without a renewal.
        let_renew(&clock, TTL / 2).await;
        let (denied, _) = ask(&layer).await;
        assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
        assert!(denied.headers().contains_key("retry-after"), "{:?}", denied.headers());
    }
    drop(sender);
    assert!(body.frame().await.is_none());
    until_free(&limiter).await;
    let (hung_up, _sender) = ask(&layer).await;
    assert_eq!(left(&limiter).await.0, 0);
    drop(hung_up);
    until_free(&limiter).await;
    let (response, sender) = ask(&layer).await;
    let mut body = response.into_body();
    sender.send(Err(std::io::ErrorKind::BrokenPipe)).await.unwrap();
    assert!(body.frame().await.unwrap().is_err());
    until_free(&limiter).await;
    drop(body);
}

/// Advances the clock once a task waits for its next renewal, and lets it renew.
async fn let_renew(clock: &ManualClock, span: Duration) {
    let mut yields = 0;
    while clock.next_wake().is_none_or(|at| at <= clock.now()) {
        assert!(yields < 10_000, "no task waits to renew the slot");
        yields += 1;
        tokio::task::yield_now().await;
    }
    clock.advance(span);
    tokio::task::yield_now().await;
}

/// A store that answers later releases by a task.
async fn until_free<S: Store>(limiter: &Limiter<S>) {
    let mut yields = 0;
    while left(limiter).await.0 == 0 {
        assert!(yields < 10_000, "nothing releases the slot");
        yields += 1;
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn c8_a_response_holds_its_slot_until_its_body_has_ended_or_was_dropped() {
    holds_until_the_body_ends(MemoryStore::new()).await;
    holds_until_the_body_ends(FaultyStore::new(MemoryStore::new())).await;
}

#[tokio::test]
async fn c8_charging_by_response_settles_the_cost_and_keeps_the_slot_for_the_body() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let limiter = limiter(MemoryStore::new(), &clock);
    let layer = layer(&limiter).cost(|_| 40).charge_by_response(TTL, |_: Answered<'_>| 7);
    let (response, sender) = ask(&layer).await;
    assert_eq!(left(&limiter).await, (0, 93), "settled at the head of the response");
    for _ in 0..5 {
        let_renew(&clock, TTL / 2).await;
        assert_eq!(left(&limiter).await, (0, 93), "renewed while the body lasts");
    }
    drop(sender);
    assert!(response.into_body().frame().await.is_none());
    assert_eq!(left(&limiter).await, (1, 93));
}
