//! E4: a store that answers later has a bounded queue. Callers take turns, those who leave take
//! nothing back, and overload is no failure of the store.
//!
//! The store of these tests answers when a test tells it to; deadlines are a manual clock's.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::{JoinHandle, yield_now};
use tollgate::{
    Applied, Caller, Charge, Decision, Error, HOUR, Limit, Limiter, ManualClock, MemoryStore, Observer,
    OnExpiry, Op, Request, Rule, RuleSet, Store, StoreError, Timestamp,
};

const DEADLINE: Duration = Duration::from_millis(50);
const LIMIT: u64 = 1_000;

/// A memory store that holds every call until the test answers it.
#[derive(Debug, Default)]
struct Gated {
    inner: MemoryStore,
    /// The client of each call that waits for an answer, and the gate to open.
    calls: Mutex<VecDeque<(String, oneshot::Sender<()>)>>,
    /// The clients of all calls, in the order in which they came.
    came: Mutex<Vec<String>>,
}

impl Gated {
    fn in_flight(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    fn came(&self) -> String {
        self.came.lock().unwrap().concat()
    }

    /// Answers the oldest call.
    fn answer(&self) {
        let (_, gate) = self.calls.lock().unwrap().pop_front().expect("a call in flight");
        let _ = gate.send(());
    }
}

impl Store for Gated {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let client = charges[0].key.values().next().unwrap();
        let client = String::from_utf8(client.to_vec()).unwrap();
        let (gate, opened) = oneshot::channel();
        self.came.lock().unwrap().push(client.clone());
        self.calls.lock().unwrap().push_back((client, gate));
        let _ = opened.await;
        self.inner.apply(op, charges, now).await
    }
}

#[derive(Clone, Debug, Default)]
struct Counts {
    overloaded: Arc<AtomicU64>,
    failed: Arc<AtomicU64>,
}

impl Observer for Counts {
    fn store_failed(&self, _: &StoreError) {
        self.failed.fetch_add(1, Ordering::SeqCst);
    }

    fn overloaded(&self, _: Option<Caller>) {
        self.overloaded.fetch_add(1, Ordering::SeqCst);
    }
}

struct World {
    store: Arc<Gated>,
    limiter: Limiter<Arc<Gated>>,
    clock: ManualClock,
    counts: Counts,
}

/// What a check ended with.
type Checked = JoinHandle<Result<Decision, Error>>;

impl World {
    /// At most `in_flight` charges in flight, and `waiting` behind them.
    fn new(in_flight: usize, waiting: usize) -> Self {
        let store = Arc::new(Gated::default());
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let counts = Counts::default();
        let rule = Rule::new("per-client", Limit::fixed_window(LIMIT, HOUR)).key(["client"]);
        let limiter = Limiter::builder(RuleSet::new([rule]).unwrap())
            .store(Arc::clone(&store))
            .clock(clock.clone())
            .observer(counts.clone())
            .deadline(DEADLINE)
            .in_flight_max(in_flight)
            .waiting_max(waiting)
            .build()
            .unwrap();
        Self { store, limiter, clock, counts }
    }

    /// Begins a check of a client by the caller of that name.
    async fn check(&self, client: &'static str, share: u32) -> Checked {
        let limiter = self.limiter.clone();
        let caller = Caller::new(client).with_share(share);
        let check =
            tokio::spawn(async move { limiter.check_async(Request::client(client).caller(caller)).await });
        settled().await;
        check
    }

    /// Answers calls until none is left, and waits for what comes after each.
    async fn answer_all(&self) {
        while self.store.in_flight() > 0 {
            self.store.answer();
            settled().await;
        }
    }

    /// The units of a client that are in use.
    async fn used(&self, client: &'static str) -> u64 {
        let limiter = self.limiter.clone();
        let peek = tokio::spawn(async move { limiter.peek(client).await });
        settled().await;
        self.store.answer();
        LIMIT - peek.await.unwrap().unwrap().remaining()
    }
}

/// Every task of the runtime, which has one thread, has done what it can: a task wakes at most a
/// few others in a row.
async fn settled() {
    for _ in 0..32 {
        yield_now().await;
    }
}

fn overloaded(checked: Result<Decision, Error>) -> bool {
    matches!(checked, Err(Error::Overloaded { retry_after }) if retry_after == 10 * DEADLINE)
}

/// A flood of twenty, and then three by another caller: they wait for one call each, not twenty.
#[tokio::test]
async fn e4_callers_take_turns() {
    let world = World::new(2, 100);
    let mut checks = Vec::new();
    for client in ["f"; 20].into_iter().chain(["p"; 3]) {
        checks.push(world.check(client, 1).await);
    }
    assert_eq!(world.store.in_flight(), 2, "the rest waits here, not at the store");
    world.answer_all().await;
    assert_eq!(world.store.came(), format!("fffpfpfp{}", "f".repeat(15)));
    for check in checks {
        assert!(check.await.unwrap().unwrap().allowed());
    }
    assert_eq!(world.counts.failed.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn e4_a_caller_with_a_larger_share_has_more_turns() {
    let world = World::new(1, 100);
    let mut checks = Vec::new();
    for client in ["f"; 9].into_iter().chain(["g"; 9]) {
        checks.push(world.check(client, if client == "g" { 3 } else { 1 }).await);
    }
    world.answer_all().await;
    assert_eq!(world.store.came(), "ffgggfgggfgggfffff");
    drop(checks);
}

/// The queue is full of one caller's calls: a newcomer is let in, and the flood loses its newest.
#[tokio::test]
async fn e4_a_full_queue_refuses_the_caller_who_asks_most() {
    let world = World::new(1, 4);
    let mut flood = Vec::new();
    for _ in 0..5 {
        flood.push(world.check("f", 1).await);
    }
    let late = world.check("f", 1).await;
    assert!(overloaded(late.await.unwrap()), "its own newest");
    let polite = world.check("p", 1).await;
    assert!(overloaded(flood.pop().unwrap().await.unwrap()), "not the newcomer");
    let proxy = world.check("g", 8).await;
    assert!(overloaded(flood.pop().unwrap().await.unwrap()));
    world.answer_all().await;
    for check in flood.into_iter().chain([polite, proxy]) {
        let decision = check.await.unwrap().unwrap();
        assert!(decision.allowed() && !decision.degraded());
    }
    assert_eq!(world.store.came(), "ffpgf");
    for (client, used) in [("f", 3), ("p", 1), ("g", 1)] {
        assert_eq!(world.used(client).await, used, "what is refused is not admitted");
    }
    assert_eq!(world.counts.overloaded.load(Ordering::SeqCst), 3);
    assert_eq!(world.limiter.stats().overloaded, 3);
    assert_eq!((world.counts.failed.load(Ordering::SeqCst), world.limiter.stats().total.degraded), (0, 0));
}

/// Nobody waits for ever: a call that the store, busy with others, has no turn for.
#[tokio::test]
async fn e4_a_wait_in_the_queue_is_bounded_and_ends_as_overload() {
    let world = World::new(1, 100);
    let mut flood = Vec::new();
    for _ in 0..30 {
        flood.push(world.check("f", 1).await);
    }
    // The store answers one call in 49 ms: in time, and too slowly for thirty.
    for _ in 0..30 {
        world.clock.advance(Duration::from_millis(49));
        settled().await;
        if world.store.in_flight() > 0 {
            world.store.answer();
            settled().await;
        }
    }
    let mut admitted = 0;
    for check in flood {
        match check.await.unwrap() {
            Ok(decision) => admitted += u64::from(decision.allowed() && !decision.degraded()),
            refused => assert!(overloaded(refused)),
        }
    }
    assert_eq!(admitted, 11, "ten deadlines are 500 ms");
    assert_eq!(world.used("f").await, 11);
    assert_eq!(world.counts.failed.load(Ordering::SeqCst), 0, "overload is no failure");
}

/// The deadline is the store's: a call that waited for its turn has all of it.
#[tokio::test]
async fn e4_the_deadline_of_a_call_begins_when_it_is_sent() {
    let world = World::new(1, 100);
    let first = world.check("a", 1).await;
    let second = world.check("b", 1).await;
    world.clock.advance(Duration::from_millis(40));
    settled().await;
    world.store.answer();
    settled().await;
    world.clock.advance(Duration::from_millis(40));
    settled().await;
    assert!(!second.is_finished(), "40 of its 50 milliseconds");
    world.store.answer();
    assert!(!first.await.unwrap().unwrap().degraded());
    assert!(!second.await.unwrap().unwrap().degraded());
}

/// A store that hangs has failed, for those who wait as well: they follow the failure policy, and
/// are not refused.
#[tokio::test]
async fn e4_a_store_that_hangs_fails_whoever_waits_for_it() {
    let world = World::new(2, 100);
    let mut checks = Vec::new();
    for client in ["f"; 9].into_iter().chain(["p"; 3]) {
        checks.push(world.check(client, 1).await);
    }
    world.clock.advance(DEADLINE);
    settled().await;
    world.clock.advance(DEADLINE);
    settled().await;
    checks.push(world.check("late", 1).await);
    world.clock.advance(DEADLINE);
    for check in checks {
        let decision = check.await.unwrap().unwrap();
        assert!(decision.allowed() && decision.degraded(), "the policy is to admit");
    }
    assert_eq!(world.limiter.stats().overloaded, 0);
}

#[tokio::test]
async fn e4_what_a_caller_who_left_charged_stays_charged() {
    let world = World::new(1, 100);
    // One was sent, one waits.
    let checks = [world.check("a", 1).await, world.check("a", 1).await];
    for check in &checks {
        check.abort();
    }
    settled().await;
    assert_eq!(world.store.in_flight(), 1);
    world.answer_all().await;
    assert_eq!(world.used("a").await, 2);
    assert_eq!(world.limiter.stats().store_errors, 0);
}

/// The reservation is made before it is given back, however early the caller leaves.
#[tokio::test]
async fn c5_a_reservation_whose_caller_left_is_settled_after_it_was_made() {
    for (on_expiry, kept) in [(OnExpiry::GiveBack, 0), (OnExpiry::Keep, 7)] {
        let world = World::new(1, 100);
        let busy = world.check("b", 1).await;
        let limiter = world.limiter.clone();
        let reserve = tokio::spawn(async move {
            let reserved = limiter.reserve(Request::client("a").cost(7), HOUR, on_expiry).await;
            reserved.map(drop)
        });
        settled().await;
        reserve.abort();
        settled().await;
        world.answer_all().await;
        assert_eq!(world.store.came(), "baa", "reserved, and settled");
        assert_eq!(world.used("a").await, kept);
        assert!(busy.await.unwrap().unwrap().allowed());
    }
}
