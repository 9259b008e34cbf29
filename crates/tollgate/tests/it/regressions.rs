//! Regression tests: one per bug found and fixed.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{
    CounterStore, DAY, Error, FailurePolicy, HOUR, Limit, Limiter, MINUTE, ManualClock, MemoryStore,
    OnExpiry, OnFull, Override, Request, Rule, RuleSet, SECOND, Settlement, Store, Timestamp, block_on,
};
use tollgate_testkit::{Fault, FaultyStore, MapCounter};

const START: Timestamp = Timestamp::from_secs(1_000_000);

fn on<S: Store>(store: S, rules: RuleSet) -> (Limiter<S>, ManualClock) {
    let clock = ManualClock::at(START);
    (Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap(), clock)
}

fn limiter(rules: impl IntoIterator<Item = Rule>) -> (Limiter, ManualClock) {
    on(MemoryStore::new(), RuleSet::new(rules).unwrap())
}

fn per_client(limit: Limit) -> Rule {
    Rule::new("per-client", limit).key(["client"])
}

fn admitted(limiter: &Limiter, attempts: usize) -> usize {
    (0..attempts).filter(|_| limiter.check("a").unwrap().allowed()).count()
}

#[test]
fn b12_a_smaller_override_on_another_path_does_not_cut_units_in_use() {
    let rules = RuleSet::new([per_client(Limit::fixed_window(5, MINUTE))]).unwrap();
    let bulk = Override::new("per-client", Limit::fixed_window(100, MINUTE)).matching("path", "/bulk");
    let (limiter, _) = on(MemoryStore::new(), rules.with_overrides([bulk]).unwrap());
    let (mut bulk, mut others) = (0, 0);
    for _ in 0..10 {
        while limiter.check(&[("client", "a"), ("path", "/bulk")]).unwrap().allowed() {
            bulk += 1;
        }
        others += u32::from(limiter.check(&[("client", "a"), ("path", "/")]).unwrap().allowed());
        let _ = block_on(limiter.peek(&[("client", "a"), ("path", "/")])).unwrap();
    }
    assert_eq!((bulk, others), (100, 5));
}

#[test]
fn e5_a_full_store_still_limits_when_only_a_shadow_rule_has_no_room() {
    let rules = [
        Rule::new("global", Limit::fixed_window(3, MINUTE)),
        Rule::new("watch", Limit::fixed_window(1, MINUTE)).key(["client"]).shadow(),
    ];
    let (limiter, _) = on(MemoryStore::new().max_keys(2), RuleSet::new(rules).unwrap());
    let admitted = (0..1000).filter(|i| limiter.check(&format!("c{i}")).unwrap().allowed()).count();
    assert_eq!(admitted, 3);
}

#[test]
fn b1_a_reservation_gives_back_no_units_that_have_already_come_back() {
    for limit in [Limit::fixed_window, Limit::sliding_log, Limit::per, Limit::sliding_window] {
        let limit = limit(10, MINUTE);
        let (limiter, clock) = limiter([per_client(limit)]);
        let reservation =
            block_on(limiter.reserve(Request::client("a").cost(10), HOUR, OnExpiry::GiveBack)).unwrap();
        clock.advance(2 * MINUTE);
        assert_eq!(admitted(&limiter, 100), 10, "{limit}");
        drop(reservation);
        assert_eq!(admitted(&limiter, 100), 0, "{limit}");
    }
}

#[test]
fn b1_a_reservation_on_a_bucket_gives_back_only_units_not_yet_refilled() {
    let (limiter, clock) = limiter([per_client(Limit::per_minute(10))]);
    let reservation =
        block_on(limiter.reserve(Request::client("a").cost(10), HOUR, OnExpiry::GiveBack)).unwrap();
    clock.advance(30 * SECOND);
    assert_eq!(admitted(&limiter, 100), 5);
    drop(reservation);
    assert_eq!(admitted(&limiter, 100), 5, "as if the reservation had never been: ten at once, not fifteen");
}

#[test]
fn b11_a_reservation_gives_back_no_units_that_a_smaller_limit_has_cut() {
    let (limiter, _) = limiter([per_client(Limit::fixed_window(10, MINUTE))]);
    let reservation =
        block_on(limiter.reserve(Request::client("a").cost(5), HOUR, OnExpiry::GiveBack)).unwrap();
    assert!(limiter.check(Request::client("a").cost(5)).unwrap().allowed());
    limiter.set_rules(RuleSet::new([per_client(Limit::fixed_window(5, MINUTE))]).unwrap()).unwrap();
    assert!(!limiter.check("a").unwrap().allowed());
    drop(reservation);
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 0, "five others are still in use");
}

#[test]
fn b11_a_limit_removed_and_added_again_keeps_its_history() {
    let (second, hour) = (Limit::fixed_window(10, SECOND), Limit::fixed_window(20, HOUR));
    let both = RuleSet::new([Rule::new("r", [second, hour]).key(["client"])]).unwrap();
    let one = RuleSet::new([Rule::new("r", second).key(["client"])]).unwrap();
    // A cost of 0, a denial and an admission under the shorter list.
    for cost in [0, 100, 1] {
        let (limiter, clock) = on(MemoryStore::new(), both.clone());
        assert!(limiter.check(Request::client("a").cost(10)).unwrap().allowed());
        clock.advance(SECOND);
        limiter.set_rules(one.clone()).unwrap();
        let _ = limiter.check(Request::client("a").cost(cost)).unwrap();
        limiter.set_rules(both.clone()).unwrap();
        let left = block_on(limiter.peek("a")).unwrap().limits()[1].outcome.remaining;
        assert_eq!(left, 10, "after a cost of {cost}");
    }
}

#[test]
fn e4_waiting_and_reserving_without_the_store_take_from_the_local_share() {
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let rule = per_client(Limit::fixed_window(8, HOUR)).on_store_error(FailurePolicy::Local);
    let (limiter, clock) = on(store.clone(), RuleSet::new([rule]).unwrap());
    store.set(Fault::Fail);
    let mut admitted = 0;
    for _ in 0..50 {
        admitted += usize::from(block_on(limiter.wait("a", Duration::ZERO)).unwrap().allowed());
        clock.advance(2 * SECOND);
    }
    assert_eq!(admitted, 2, "a quarter of eight");
}

#[test]
fn e2_an_unsupported_verb_is_an_error_and_not_a_store_failure_that_admits() {
    let clock = ManualClock::at(START);
    let rules =
        RuleSet::new([per_client(Limit::fixed_window(2, MINUTE).aligned().counting_denied())]).unwrap();
    let store = CounterStore(MapCounter::new(clock.clone()));
    let limiter = Limiter::builder(rules).store(store).clock(clock).build().unwrap();
    assert_eq!(block_on(limiter.peek("a")), Err(Error::Unsupported { verb: "peek" }));
    assert!(matches!(
        block_on(limiter.wait("a", Duration::ZERO)),
        Err(Error::Unsupported { verb: "reserve" })
    ));
    assert!(matches!(
        block_on(limiter.reserve("a", MINUTE, OnExpiry::GiveBack)),
        Err(Error::Unsupported { verb: "reserve" })
    ));
}

#[test]
fn c6_a_waiting_request_is_decided_by_the_rules_in_force() {
    let (limiter, clock) = limiter([per_client(Limit::fixed_window(10, HOUR))]);
    assert!(limiter.check(Request::client("a").cost(10)).unwrap().allowed());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let decision = runtime.block_on(async {
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.wait("a", DAY).await.unwrap() }
        });
        while clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        limiter.set_rules(RuleSet::new([per_client(Limit::fixed_window(100, 2 * HOUR))]).unwrap()).unwrap();
        assert!(limiter.check(Request::client("a").cost(80)).unwrap().allowed());
        clock.advance(HOUR);
        waiting.await.unwrap()
    });
    assert_eq!((decision.allowed(), decision.remaining()), (true, 9));
}

#[test]
fn c6_an_admission_after_a_wait_has_the_numbers_of_an_admission() {
    let (limiter, _) = limiter([per_client(Limit::fixed_window(10, HOUR))]);
    let waited = block_on(limiter.wait("a", Duration::ZERO)).unwrap();
    assert_eq!((waited.remaining(), waited.reset_at()), (9, START.saturating_add(HOUR)));
}

#[test]
fn c5_settling_after_a_shadow_denial_and_after_an_estimate_of_0() {
    let (shadowed, _) = limiter([Rule::new("watch", Limit::fixed_window(1, MINUTE)).shadow()]);
    let _ = shadowed.check("a").unwrap();
    let reservation = block_on(shadowed.reserve("a", MINUTE, OnExpiry::GiveBack)).unwrap();
    assert!(reservation.decision().allowed());
    assert!(block_on(reservation.settle(1)).is_ok());
    let (limiter, _) = limiter([per_client(Limit::fixed_window(10, MINUTE))]);
    let unknown =
        block_on(limiter.reserve(Request::client("a").cost(0), MINUTE, OnExpiry::GiveBack)).unwrap();
    assert_eq!(block_on(unknown.settle(3)), Ok(Settlement { shortfall: 0 }));
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 7);
}

#[test]
fn d2_an_operation_that_can_have_no_effect_is_an_error() {
    let (limiter, _) = limiter([Rule::new("login", Limit::LOGIN).matching("path", "/login").key(["client"])]);
    assert_eq!(block_on(limiter.block("mallory", START.saturating_add(HOUR))), Err(Error::NotCovered));
    assert_eq!(block_on(limiter.penalise("mallory")), Err(Error::NotCovered));
    let typo = limiter.check(Request::client("a").only("logn"));
    assert_eq!(typo, Err(Error::UnknownRule { rule: "logn".into() }));
}

#[test]
fn b7_keys_written_at_a_wild_reading_do_not_fill_the_store_for_good() {
    let rules = RuleSet::new([per_client(Limit::fixed_window(1, MINUTE))]).unwrap();
    let (limiter, clock) = on(MemoryStore::new().max_keys(1), rules);
    limiter.store().reclaim(START);
    clock.advance(365 * DAY);
    assert!(limiter.check("wild").unwrap().allowed());
    clock.set(START);
    let mut allowed = 0;
    for _ in 0..10 {
        clock.advance(HOUR);
        allowed += usize::from(limiter.check("new").unwrap().allowed());
    }
    assert!(allowed >= 9, "{allowed} of 10, an hour apart, with a limit of one a minute");
}

#[test]
fn e5_a_penalty_without_room_is_an_error_and_lifting_a_block_that_does_not_exist_is_not() {
    let rules = RuleSet::new([per_client(Limit::fixed_window(2, MINUTE))]).unwrap();
    let (limiter, _) = on(MemoryStore::new().max_keys(1), rules);
    assert!(limiter.check("a").unwrap().allowed());
    assert_eq!(block_on(limiter.penalise("b")), Err(Error::StoreFull));
    assert_eq!(block_on(limiter.block("b", Timestamp::EPOCH)), Ok(Timestamp::EPOCH));
}

#[test]
fn b11_a_reserve_that_changes_a_little_does_not_move_its_debt_to_the_sustained_bucket() {
    let limit = |reserve| Limit::token_bucket(100, 100, SECOND).reserve(reserve, 1, HOUR);
    let (limiter, clock) = limiter([per_client(limit(50))]);
    assert!(limiter.check(Request::client("a").cost(150)).unwrap().allowed());
    limiter.set_rules(RuleSet::new([per_client(limit(51))]).unwrap()).unwrap();
    let _ = limiter.check(Request::client("a").cost(0)).unwrap();
    clock.advance(SECOND);
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 101, "the reserve is still drawn down");
}

/// A store with one slot, which is busy: all other clients share a pool of ten an hour.
fn pooled() -> (Limiter, ManualClock) {
    let rules = RuleSet::new([per_client(Limit::fixed_window(10, HOUR))]).unwrap();
    let (limiter, clock) = on(MemoryStore::new().max_keys(1).on_full(OnFull::Pool), rules);
    assert!(limiter.check("resident").unwrap().allowed());
    (limiter, clock)
}

#[test]
fn e5_a_reservation_made_in_a_pool_is_settled_in_the_pool() {
    let (limiter, clock) = pooled();
    let reservation =
        block_on(limiter.reserve(Request::client("a").cost(6), MINUTE, OnExpiry::GiveBack)).unwrap();
    assert!(reservation.decision().allowed());
    block_on(reservation.settle(4)).unwrap();
    assert_eq!(block_on(limiter.peek("b")).unwrap().remaining(), 6, "a peek sees the pool too");
    assert_eq!(block_on(limiter.refund(Request::client("c").cost(3))).unwrap(), 3);
    assert_eq!(limiter.check("d").unwrap().remaining(), 8);
    clock.advance(2 * MINUTE);
    assert_eq!(limiter.check("e").unwrap().remaining(), 7, "nothing was held any more");
}

#[test]
fn e5_a_request_that_waits_in_a_pool_is_charged() {
    let (limiter, clock) = pooled();
    for left in (0..10).rev() {
        let decision = block_on(limiter.wait("a", SECOND)).unwrap();
        assert_eq!((decision.allowed(), decision.remaining()), (true, left));
    }
    clock.advance(MINUTE);
    assert!(!block_on(limiter.wait("a", 40 * SECOND)).unwrap().allowed());
}

#[test]
fn e5_a_peek_of_a_new_key_is_denied_when_there_is_no_room() {
    let rules = RuleSet::new([per_client(Limit::fixed_window(10, HOUR))]).unwrap();
    let (limiter, _) = on(MemoryStore::new().max_keys(1), rules);
    assert!(block_on(limiter.peek("a")).unwrap().allowed());
    assert!(limiter.check("a").unwrap().allowed());
    assert!(!block_on(limiter.peek("b")).unwrap().allowed());
    assert!(!limiter.check("b").unwrap().allowed());
    assert_eq!(limiter.store().memory_stats().refused, 1, "a peek is not a request");
}

#[test]
fn b7_sweeps_go_on_after_one_wild_reading_of_the_clock() {
    let rules = RuleSet::new([per_client(Limit::sliding_log(10, MINUTE))]).unwrap();
    let (limiter, clock) = on(MemoryStore::new().sweep(MINUTE, MINUTE), rules);
    let visit_all = || (0..3_000).for_each(|client| assert!(limiter.check(client).is_ok()));
    visit_all();
    clock.set(Timestamp::from_secs(7_000_000_000));
    visit_all();
    clock.set(Timestamp::from_secs(1_000_100));
    visit_all();
    clock.set(Timestamp::from_secs(1_010_000));
    // So many that every shard gets a request, which sweeps it.
    (0..12_000).for_each(|client| assert!(limiter.check(client + 1_000_000).is_ok()));
    assert!(limiter.stats().live_keys.unwrap() <= 12_000, "{:?}", limiter.stats().live_keys);
}

#[test]
fn c5_a_firm_reservation_stays_charged_when_it_is_dropped_or_expires() {
    let (limiter, clock) = limiter([per_client(Limit::fixed_window(10, HOUR))]);
    let left = || block_on(limiter.peek("a")).unwrap().remaining();
    drop(block_on(limiter.reserve(Request::client("a").cost(2), MINUTE, OnExpiry::Keep)).unwrap());
    assert_eq!(left(), 8);
    let late = block_on(limiter.reserve(Request::client("a").cost(3), MINUTE, OnExpiry::Keep)).unwrap();
    clock.advance(2 * MINUTE);
    assert_eq!(left(), 5);
    assert!(matches!(block_on(late.settle(0)), Err(Error::NotReserved)));
    assert_eq!(left(), 5);
    let settled = block_on(limiter.reserve(Request::client("a").cost(5), MINUTE, OnExpiry::Keep)).unwrap();
    block_on(settled.settle(1)).unwrap();
    assert_eq!(left(), 4);
}

/// The clocks of all shards of a request were advanced one by one. A shard whose clock was merely
/// late kept its own time, although the clock had gone back further than that.
#[test]
fn b7_all_shards_of_a_request_follow_a_clock_that_goes_back() {
    let start = Timestamp::from_secs(1_800_000_000);
    let clock = ManualClock::at(start);
    let rules = RuleSet::new([
        Rule::new("all", Limit::per_second(100)),
        Rule::new("client", Limit::per_second(100)).key(["client"]),
    ]);
    let limiter = Limiter::builder(rules.unwrap()).clock(clock.clone()).build().unwrap();
    let decided_at = |client: &str, millis: u64| {
        clock.set(start.saturating_add(Duration::from_millis(millis)));
        limiter.check(Request::client(client).cost(0)).unwrap().now().since(start).as_millis()
    };
    assert_eq!(decided_at("alice", 500), 500);
    assert_eq!(decided_at("bob", 2_000), 2_000);
    assert_eq!(decided_at("alice", 100), 100, "1.9 s behind the global budget's shard");
    assert_eq!(decided_at("alice", 50), 100, "50 ms late");
}

#[test]
fn g1_a_rule_that_was_removed_and_added_again_is_counted() {
    let rules = |name: &str| RuleSet::new([Rule::new(name, Limit::per_minute(9)).key(["client"])]).unwrap();
    let limiter = Limiter::builder(rules("one")).build().unwrap();
    assert!(limiter.check("a").unwrap().allowed());
    limiter.set_rules(rules("other")).unwrap();
    limiter.set_rules(rules("one")).unwrap();
    assert!(limiter.check("a").unwrap().allowed());
    let stats = limiter.stats();
    assert_eq!((stats.total.allowed, stats.rules[0].1.allowed), (2, 1), "counts begin anew");
}
