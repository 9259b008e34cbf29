//! E4: when a store fails, hangs or lies, the rule's failure policy decides.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::{
    Clock, Decision, Error, FailurePolicy, HOUR, Limit, Limiter, MINUTE, ManualClock, MemoryStore, Observer,
    OnExpiry, Request, Rule, RuleSet, StoreError, Timestamp, block_on,
};
use tollgate_testkit::{Fault, FaultyStore};

type Faulty = Arc<FaultyStore<MemoryStore>>;

#[derive(Clone, Default)]
struct Log(Arc<Mutex<(Vec<String>, u64)>>);

impl Observer for Log {
    fn decided(&self, _: &Request<'_>, decision: &Decision) {
        self.0.lock().unwrap().1 += u64::from(decision.degraded());
    }

    fn store_failed(&self, error: &StoreError) {
        self.0.lock().unwrap().0.push(error.to_string());
    }
}

fn limiter(rules: impl IntoIterator<Item = Rule>) -> (Limiter<Faulty>, Faulty, ManualClock, Log) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let store: Faulty = Arc::new(FaultyStore::new(MemoryStore::new()));
    let log = Log::default();
    let builder = Limiter::builder(RuleSet::new(rules).unwrap()).store(store.clone()).clock(clock.clone());
    (builder.observer(log.clone()).local_share(0.3).build().unwrap(), store, clock, log)
}

fn rule(policy: FailurePolicy) -> Rule {
    Rule::new("per-client", Limit::fixed_window(10, MINUTE)).key(["client"]).on_store_error(policy)
}

fn check(limiter: &Limiter<Faulty>) -> Decision {
    block_on(limiter.check_async("a")).unwrap()
}

#[test]
fn e4_open_admits_flagged_degraded_and_the_raw_error_reaches_only_the_observer() {
    let (limiter, store, _, log) = limiter([rule(FailurePolicy::Open)]);
    for fault in [Fault::Fail, Fault::Lie] {
        store.set(fault);
        for _ in 0..20 {
            let decision = check(&limiter);
            assert!(decision.allowed() && decision.degraded());
            assert!(!format!("{decision:?}").contains("secret-host"));
        }
    }
    store.set(Fault::None);
    let decision = check(&limiter);
    assert!(!decision.degraded());
    let (errors, degraded) = log.0.lock().unwrap().clone();
    assert_eq!((errors.len(), degraded), (40, 40), "once each");
    assert!(errors[0].contains("secret-host:6379"));
    let stats = limiter.stats();
    assert_eq!((stats.store_errors, stats.total.degraded, stats.rules[0].1.degraded), (40, 40, 40));
}

#[test]
fn e4_closed_denies_flagged_degraded() {
    let (limiter, store, ..) = limiter([rule(FailurePolicy::Closed)]);
    store.set(Fault::Fail);
    let decision = check(&limiter);
    assert!(!decision.allowed() && decision.degraded());
    assert!(decision.retry_after().is_some_and(|wait| wait > Duration::ZERO));
}

#[test]
fn e4_local_decides_with_a_share_of_the_limit() {
    let (limiter, store, clock, _) = limiter([rule(FailurePolicy::Local)]);
    store.set(Fault::Fail);
    let decisions: Vec<Decision> = (0..5).map(|_| check(&limiter)).collect();
    assert!(decisions.iter().all(Decision::degraded));
    let allowed: Vec<bool> = decisions.iter().map(Decision::allowed).collect();
    assert_eq!(allowed, [true, true, true, false, false], "three tenths of ten");
    clock.advance(MINUTE);
    assert!(check(&limiter).allowed());
}

#[test]
fn e4_each_rule_follows_its_own_policy_and_a_closed_one_takes_nothing_locally() {
    let closed = Rule::new("strict", Limit::fixed_window(10, MINUTE)).on_store_error(FailurePolicy::Closed);
    let (mixed, store, ..) = limiter([rule(FailurePolicy::Local), closed.clone()]);
    store.set(Fault::Fail);
    for _ in 0..5 {
        let decision = check(&mixed);
        assert_eq!(decision.rule().unwrap().as_str(), "strict");
        assert_eq!(decision.limits()[0].outcome.remaining, 3, "all or nothing, also locally");
    }
    let (shadowed, store, ..) = limiter([rule(FailurePolicy::Open), closed.shadow()]);
    store.set(Fault::Fail);
    assert!(check(&shadowed).allowed(), "a shadow never denies");
}

#[test]
fn e4_a_store_that_hangs_fails_at_the_deadline() {
    let (limiter, store, clock, log) = limiter([rule(FailurePolicy::Closed)]);
    store.set(Fault::Hang);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let decision = runtime.block_on(async {
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.check_async("a").await.unwrap() }
        });
        while clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_millis(49));
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished(), "fifty milliseconds are not over");
        clock.advance(Duration::from_millis(1));
        waiting.await.unwrap()
    });
    assert!(!decision.allowed() && decision.degraded());
    assert!(log.0.lock().unwrap().0[0].contains("within its deadline"));
    assert_eq!(clock.now(), Timestamp::from_millis(1_000_000_050));
}

/// The faulty store's failure.
fn down() -> Error {
    Error::StoreUnavailable { reason: "told to fail: secret-host:6379".into() }
}

#[test]
fn e4_an_administrative_verb_reports_that_the_store_is_down() {
    let (limiter, store, ..) = limiter([rule(FailurePolicy::Open)]);
    store.set(Fault::Fail);
    assert_eq!(block_on(limiter.reset("a")), Err(down()));
    assert_eq!(block_on(limiter.refund("a")), Err(down()));
    let reserve = || {
        let reserved = limiter.reserve(Request::client("a").cost(3), HOUR, OnExpiry::GiveBack);
        let reservation = block_on(reserved).unwrap();
        assert!(reservation.decision().allowed() && reservation.decision().degraded());
        reservation
    };
    assert_eq!(block_on(reserve().settle(5)), Err(down()), "what was used is recorded");
    let reservation = reserve();
    store.set(Fault::None);
    assert!(block_on(reservation.settle(5)).is_ok());
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 5);
}

#[test]
fn d3_an_invalid_limit_rule_or_request_touches_no_store() {
    let (limiter, store, ..) = limiter([rule(FailurePolicy::Open)]);
    assert!(RuleSet::new([Rule::new("", Limit::API)]).is_err());
    assert!(block_on(limiter.check_async("")).is_err());
    assert!(block_on(limiter.check_async(Request::client("a").cost(u64::MAX))).is_err());
    assert!(block_on(limiter.peek("")).is_err());
    let builder = Limiter::builder(RuleSet::default()).store(store.clone());
    assert_eq!(builder.local_share(0.0).build().unwrap_err().code(), "invalid_config");
    assert_eq!(store.calls(), 0);
    let _ = check(&limiter);
    assert_eq!(store.calls(), 1);
}

#[test]
fn e2_a_plain_counter_refuses_unsupported_limits_and_verbs() {
    use tollgate::CounterStore;
    use tollgate_testkit::MapCounter;
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let build = |limit| {
        let rules = RuleSet::new([Rule::new("r", limit).key(["client"])]).unwrap();
        Limiter::builder(rules)
            .store(CounterStore(MapCounter::new(clock.clone())))
            .clock(clock.clone())
            .build()
    };
    let refused = build(Limit::per_second(5)).unwrap_err().to_string();
    assert!(refused.contains("fixed aligned counting denied"), "{refused}");
    let limiter = build(Limit::fixed_window(2, MINUTE).aligned().counting_denied()).unwrap();
    assert!(block_on(limiter.check_async("a")).unwrap().allowed());
    assert_eq!(block_on(limiter.refund("a")), Err(Error::Unsupported { verb: "refund" }));
}

#[test]
fn c7_a_degraded_denial_records_nothing() {
    let (limiter, store, ..) = limiter([rule(FailurePolicy::Local).record_denied()]);
    store.set(Fault::Fail);
    let cost = |cost| Request::client("a").cost(cost);
    for _ in 0..3 {
        let denied = block_on(limiter.check_async(cost(4))).unwrap();
        assert!(!denied.allowed() && denied.degraded());
        assert_eq!((denied.remaining(), denied.owed()), (3, 0), "a share of 0.3, untouched");
    }
    assert!(block_on(limiter.refuse_all(&[cost(4)])).unwrap()[0].degraded());
    assert!(block_on(limiter.check_async(cost(3))).unwrap().allowed());
    assert_eq!(limiter.stats().shortfall, 0);
}

/// The store was away when the reservation was made, and is back when it is settled.
#[test]
fn c7_a_degraded_reservation_is_charged_once() {
    let (limiter, store, clock, _) = limiter([rule(FailurePolicy::Open)]);
    store.set(Fault::Fail);
    let request = |cost| Request::client("a").cost(cost);
    let reserved = block_on(limiter.reserve(request(3), MINUTE, OnExpiry::Keep)).unwrap();
    assert!(reserved.decision().degraded());
    let hold = reserved.detach().unwrap();
    let settle = || block_on(limiter.settle(hold, request(4)));
    assert_eq!(settle(), Err(down()), "the settlement is not lost");
    store.set(Fault::None);
    assert!(settle().is_ok());
    assert_eq!(settle(), Err(Error::NotReserved));
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 6);
    clock.advance(2 * MINUTE);
    assert_eq!(settle(), Err(Error::NotReserved), "nor later");
}
