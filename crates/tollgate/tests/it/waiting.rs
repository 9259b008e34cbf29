//! C6: waiting for admission, on a manual clock.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{
    Applied, Charge, Clock, Decision, Error, HOUR, Limit, Limiter, MINUTE, ManualClock, MemoryStore, Op,
    Request, Rule, RuleSet, SECOND, Store, StoreError, Timestamp, Verdict, block_on,
};
use tollgate_testkit::{Fault, FaultyStore};

mod crowd;
mod deadlines;
mod model;
mod order;
mod slots;
mod verbs;

const START: Timestamp = Timestamp::from_secs(1_000_000);

fn limiter(limit: Limit) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(START);
    let rules = RuleSet::new([Rule::new("per-client", limit).key(["client"])]).unwrap();
    (Limiter::builder(rules).clock(clock.clone()).build().unwrap(), clock)
}

type Waiting = Pin<Box<dyn Future<Output = Result<Decision, Error>> + Send>>;

fn wait<S: Store + 'static>(
    limiter: &Limiter<S>,
    client: &'static str,
    cost: u64,
    timeout: Duration,
) -> Waiting {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.wait(Request::client(client).cost(cost), timeout).await })
}

fn poll(waiting: &mut Waiting) -> Poll<Decision> {
    waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).map(Result::unwrap)
}

fn admitted(waiting: &mut Waiting) -> bool {
    matches!(poll(waiting), Poll::Ready(decision) if decision.allowed())
}

fn later(span: Duration) -> Timestamp {
    START.saturating_add(span)
}

#[test]
fn c6_waiting_requests_are_served_in_order_of_arrival() {
    let (limiter, clock) = limiter(Limit::per_second(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut queue: Vec<Waiting> = (0..4).map(|_| wait(&limiter, "a", 1, HOUR)).collect();
    assert!(queue.iter_mut().all(|waiting| poll(waiting).is_pending()));
    for next in 0..4 {
        clock.advance(SECOND);
        // The last to arrive is polled first, and still has to wait.
        for later in (next + 1..4).rev() {
            assert!(poll(&mut queue[later]).is_pending(), "{later} overtook {next}");
        }
        assert!(admitted(&mut queue[next]), "{next} was due");
    }
}

#[test]
fn c6_waiters_are_woken_without_polling() {
    let (limiter, clock) = limiter(Limit::per_second(1));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        assert!(limiter.check("a").unwrap().allowed());
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.wait("a", HOUR).await.unwrap() })
            })
            .map(|task| async { task.await.unwrap() })
            .collect();
        let driver = {
            let clock = clock.clone();
            tokio::spawn(async move {
                // Jump from wake-up to wake-up; the deadlines of the queue are an hour away.
                // Whoever is woken runs before the next jump.
                loop {
                    if let Some(at) = clock.next_wake().filter(|at| *at < later(HOUR)) {
                        clock.set(at);
                    }
                    for _ in 0..8 {
                        tokio::task::yield_now().await;
                    }
                }
            })
        };
        for task in waiting {
            assert!(task.await.allowed());
        }
        driver.abort();
    });
    assert_eq!(clock.now(), later(3 * SECOND), "one a second, not a nanosecond more");
}

#[test]
fn c6_a_request_that_cannot_be_admitted_in_time_is_denied_at_once() {
    let (limiter, clock) = limiter(Limit::per_minute(1));
    assert!(limiter.check("a").unwrap().allowed());
    let late = block_on(limiter.wait("a", 59 * SECOND)).unwrap();
    assert_eq!(late.verdict(), Verdict::Denied { retry_after: MINUTE });
    let never = block_on(limiter.wait(Request::client("a").cost(2), HOUR)).unwrap();
    assert_eq!(never.verdict(), Verdict::Never);
    assert_eq!(clock.sleepers(), 0);
    clock.advance(MINUTE);
    assert!(limiter.check("a").unwrap().allowed(), "and neither took anything");
}

#[test]
fn c6_the_timeout_counts_from_the_first_poll() {
    let (limiter, clock) = limiter(Limit::per_minute(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut waiting = wait(&limiter, "a", 1, 59 * SECOND);
    clock.advance(SECOND);
    assert!(poll(&mut waiting).is_pending(), "the next unit comes in 59 seconds");
    clock.advance(59 * SECOND);
    assert!(admitted(&mut waiting));
}

#[test]
fn c6_the_timeout_also_ends_the_wait_in_the_queue() {
    let (limiter, clock) = limiter(Limit::per_minute(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut first = wait(&limiter, "a", 1, HOUR);
    let mut second = wait(&limiter, "a", 1, 5 * SECOND);
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    clock.advance(5 * SECOND);
    assert!(matches!(poll(&mut second), Poll::Ready(decision) if !decision.allowed()));
    clock.advance(55 * SECOND);
    assert!(admitted(&mut first));
}

#[test]
fn c6_a_cancelled_wait_leaves_the_queue_and_takes_nothing() {
    let (limiter, clock) = limiter(Limit::per_second(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut first = wait(&limiter, "a", 1, HOUR);
    let mut second = wait(&limiter, "a", 1, HOUR);
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    drop(first);
    assert!(poll(&mut second).is_pending(), "now it is first, and asks the store");
    clock.advance(SECOND);
    assert!(admitted(&mut second));
    assert!(!limiter.check("a").unwrap().allowed(), "exactly one was taken");
    assert_eq!(clock.sleepers(), 0, "the cancelled wait has no sleeper");
}

#[test]
fn c6_another_client_has_another_queue() {
    let (limiter, _) = limiter(Limit::per_minute(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut waiting = wait(&limiter, "a", 1, HOUR);
    assert!(poll(&mut waiting).is_pending());
    assert!(admitted(&mut wait(&limiter, "b", 1, HOUR)));
}

#[test]
fn c6_a_wait_cancelled_during_the_store_call_gives_its_units_back() {
    let clock = ManualClock::at(START);
    let store = Arc::new(FaultyStore::new(tollgate::MemoryStore::new()));
    let rules =
        RuleSet::new([Rule::new("per-client", Limit::fixed_window(10, HOUR)).key(["client"])]).unwrap();
    let limiter = Limiter::builder(rules).store(store.clone()).clock(clock).build().unwrap();
    // The store takes the units, but its answer never arrives.
    store.set(Fault::HangAfterwards);
    let mut waiting = wait(&limiter, "a", 4, HOUR);
    assert!(poll(&mut waiting).is_pending());
    store.set(Fault::None);
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 6, "taken");
    drop(waiting);
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 10, "given back");
}

/// A store that loses the first reservation it is asked to settle.
struct Forgetful {
    inner: MemoryStore,
    lost: std::sync::atomic::AtomicBool,
}

impl Store for Forgetful {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let settles = matches!(op, Op::Settle { .. });
        if settles && !self.lost.swap(true, std::sync::atomic::Ordering::SeqCst) {
            self.inner.apply_now(Op::Reset, charges, now)?;
        }
        self.inner.apply_now(op, charges, now)
    }
}

#[test]
fn c6_an_admission_is_charged_even_if_the_store_lost_the_reservation() {
    let rules = RuleSet::new([Rule::new("rule", Limit::fixed_window(10, MINUTE)).key(["client"])]).unwrap();
    let store = Forgetful { inner: MemoryStore::new(), lost: false.into() };
    let clock = ManualClock::at(Timestamp::from_secs(1_000));
    let limiter = Limiter::builder(rules).store(store).clock(clock).build().unwrap();
    let decision = block_on(limiter.wait("a", SECOND)).unwrap();
    assert_eq!((decision.allowed(), decision.remaining()), (true, 9));
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 9);
}

/// A store whose clock is an hour ahead.
struct Ahead(MemoryStore);

impl Store for Ahead {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        self.0.apply(op, charges, now.saturating_add(HOUR)).await
    }
}

#[test]
fn c6_a_store_with_another_clock_does_not_lengthen_the_wait() {
    let clock = ManualClock::at(START);
    let rules = RuleSet::per_client(Limit::per_second(1));
    let limiter =
        Limiter::builder(rules).store(Ahead(MemoryStore::new())).clock(clock.clone()).build().unwrap();
    let mut first = wait(&limiter, "a", 1, 2 * SECOND);
    assert!(admitted(&mut first));
    let mut second = wait(&limiter, "a", 1, 2 * SECOND);
    assert!(poll(&mut second).is_pending(), "a second is within the deadline");
    clock.advance(SECOND);
    assert!(admitted(&mut second));
}
