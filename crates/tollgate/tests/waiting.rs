//! C6: waiting instead of rejecting, on a clock that only the test moves.

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

const START: Timestamp = Timestamp::from_secs(1_000_000);

fn limiter(limit: Limit) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(START);
    let rules = RuleSet::new([Rule::new("per-client", limit).key(["client"])]).unwrap();
    (Limiter::builder(rules).clock(clock.clone()).build().unwrap(), clock)
}

type Waiting = Pin<Box<dyn Future<Output = Result<Decision, Error>>>>;

fn wait<S: Store + 'static>(
    limiter: &Limiter<S>,
    client: &'static str,
    cost: u64,
    until: Timestamp,
) -> Waiting {
    let limiter = limiter.clone();
    Box::pin(async move { limiter.wait(Request::client(client).cost(cost), until).await })
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
fn c6_those_who_wait_are_served_in_the_order_they_came() {
    let (limiter, clock) = limiter(Limit::per_second(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut queue: Vec<Waiting> = (0..4).map(|_| wait(&limiter, "a", 1, later(HOUR))).collect();
    assert!(queue.iter_mut().all(|waiting| poll(waiting).is_pending()));
    for turn in 0..4 {
        clock.advance(SECOND);
        // The last to come asks first, and has to wait all the same.
        for later in (turn + 1..4).rev() {
            assert!(poll(&mut queue[later]).is_pending(), "{later} overtook {turn}");
        }
        assert!(admitted(&mut queue[turn]), "{turn} was due");
    }
}

#[test]
fn c6_waiters_are_woken_without_being_asked() {
    let (limiter, clock) = limiter(Limit::per_second(1));
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        assert!(limiter.check("a").unwrap().allowed());
        let waiting: Vec<_> = (0..3)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.wait("a", later(HOUR)).await.unwrap() })
            })
            .map(|task| async { task.await.unwrap() })
            .collect();
        let driver = {
            let clock = clock.clone();
            tokio::spawn(async move {
                // Jump from wake-up to wake-up; the deadlines of those in the queue lie an hour off.
                loop {
                    match clock.next_wake() {
                        Some(at) if at < later(HOUR) => clock.set(at),
                        _ => tokio::task::yield_now().await,
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
fn c6_nobody_waits_for_what_cannot_come_before_the_deadline_or_at_all() {
    let (limiter, clock) = limiter(Limit::per_minute(1));
    assert!(limiter.check("a").unwrap().allowed());
    let late = block_on(limiter.wait("a", later(59 * SECOND))).unwrap();
    assert_eq!(late.verdict(), Verdict::Denied { retry_after: MINUTE });
    let never = block_on(limiter.wait(Request::client("a").cost(2), later(HOUR))).unwrap();
    assert_eq!(never.verdict(), Verdict::Never);
    assert_eq!(clock.sleepers(), 0);
    clock.advance(MINUTE);
    assert!(limiter.check("a").unwrap().allowed(), "and neither took anything");
}

#[test]
fn c6_the_deadline_also_ends_the_wait_in_the_queue() {
    let (limiter, clock) = limiter(Limit::per_minute(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut first = wait(&limiter, "a", 1, later(HOUR));
    let mut second = wait(&limiter, "a", 1, later(5 * SECOND));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    clock.advance(5 * SECOND);
    assert!(matches!(poll(&mut second), Poll::Ready(decision) if !decision.allowed()));
    clock.advance(55 * SECOND);
    assert!(admitted(&mut first));
}

#[test]
fn c6_who_gives_up_leaves_the_queue_and_takes_nothing() {
    let (limiter, clock) = limiter(Limit::per_second(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut first = wait(&limiter, "a", 1, later(HOUR));
    let mut second = wait(&limiter, "a", 1, later(HOUR));
    assert!(poll(&mut first).is_pending() && poll(&mut second).is_pending());
    drop(first);
    assert!(poll(&mut second).is_pending(), "now it is first, and asks");
    clock.advance(SECOND);
    assert!(admitted(&mut second));
    assert!(!limiter.check("a").unwrap().allowed(), "exactly one was taken");
    assert_eq!(clock.sleepers(), 0, "the one who gave up sleeps no more");
}

#[test]
fn c6_others_do_not_wait_in_the_same_queue() {
    let (limiter, _) = limiter(Limit::per_minute(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut waiting = wait(&limiter, "a", 1, later(HOUR));
    assert!(poll(&mut waiting).is_pending());
    assert!(admitted(&mut wait(&limiter, "b", 1, later(HOUR))));
}

#[test]
fn c6_cancelled_on_the_way_from_the_store_gives_back_exactly_what_was_taken() {
    let clock = ManualClock::at(START);
    let store = Arc::new(FaultyStore::new(tollgate::MemoryStore::new()));
    let rules =
        RuleSet::new([Rule::new("per-client", Limit::fixed_window(10, HOUR)).key(["client"])]).unwrap();
    let limiter = Limiter::builder(rules).store(store.clone()).clock(clock).build().unwrap();
    // The store takes the units, but its answer never arrives.
    store.set(Fault::HangAfterwards);
    let mut waiting = wait(&limiter, "a", 4, later(HOUR));
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
fn c6_who_is_let_through_has_been_charged_even_if_the_reservation_was_lost_on_the_way() {
    let rules = RuleSet::new([Rule::new("rule", Limit::fixed_window(10, MINUTE)).key(["client"])]).unwrap();
    let store = Forgetful { inner: MemoryStore::new(), lost: false.into() };
    let clock = ManualClock::at(Timestamp::from_secs(1_000));
    let limiter = Limiter::builder(rules).store(store).clock(clock).build().unwrap();
    let decision = block_on(limiter.wait("a", Timestamp::from_secs(1_001))).unwrap();
    assert_eq!((decision.allowed(), decision.remaining()), (true, 9));
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 9);
}

/// A store with a clock of its own, which is an hour ahead.
struct Ahead(MemoryStore);

impl Store for Ahead {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        self.0.apply(op, charges, now.saturating_add(HOUR)).await
    }
}

#[test]
fn c6_a_store_with_another_clock_does_not_make_anyone_wait_longer() {
    let clock = ManualClock::at(START);
    let rules = RuleSet::per_client(Limit::per_second(1));
    let limiter =
        Limiter::builder(rules).store(Ahead(MemoryStore::new())).clock(clock.clone()).build().unwrap();
    let mut first = wait(&limiter, "a", 1, later(2 * SECOND));
    assert!(admitted(&mut first));
    let mut second = wait(&limiter, "a", 1, later(2 * SECOND));
    assert!(poll(&mut second).is_pending(), "it is not too late for a second");
    clock.advance(SECOND);
    assert!(admitted(&mut second));
}
