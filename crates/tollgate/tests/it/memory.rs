//! E5 and B6: the in-memory store is bounded, and forgets only idle keys.

use std::time::Duration;

use tollgate::{
    Clock as _, Error, Limit, Limiter, MINUTE, ManualClock, MemoryStore, OnExpiry, OnFull, Request, Rule,
    RuleSet, SECOND, Settlement, Timestamp, Verdict, block_on,
};

fn limiter(max_keys: u64, limit: Limit) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let rules = RuleSet::new([Rule::new("per-client", limit).key(["client"])]).unwrap();
    let store = MemoryStore::new().max_keys(max_keys);
    (Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap(), clock)
}

#[test]
fn e5_a_store_full_of_busy_keys_denies_new_keys_and_forgets_none() {
    let (limiter, clock) = limiter(3, Limit::fixed_window(2, MINUTE));
    for client in ["a", "b", "c"] {
        assert!(limiter.check(client).unwrap().allowed());
    }
    for newcomer in 0..1_000 {
        let denied = limiter.check(&format!("new-{newcomer}")).unwrap();
        assert!(!denied.allowed() && matches!(denied.verdict(), Verdict::Denied { .. }));
        assert_eq!(limiter.stats().live_keys, Some(3), "it never grows past its bound");
    }
    for client in ["a", "b", "c"] {
        assert_eq!(limiter.check(client).unwrap().remaining(), 0, "{client} was not forgotten");
        assert!(!limiter.check(client).unwrap().allowed());
    }
    clock.advance(MINUTE);
    assert!(limiter.check("new-1").unwrap().allowed(), "idle keys make room");
    assert_eq!(limiter.stats().live_keys, Some(1));
}

#[test]
fn e5_a_block_without_room_is_an_error() {
    let (limiter, clock) = limiter(1, Limit::fixed_window(2, MINUTE));
    assert!(limiter.check("a").unwrap().allowed());
    let until = Timestamp::from_secs(2_000_000);
    assert_eq!(block_on(limiter.block("b", until)), Err(Error::StoreFull));
    clock.advance(MINUTE);
    assert_eq!(block_on(limiter.block("b", until)), Ok(until));
    assert!(!limiter.check("b").unwrap().allowed());
}

#[test]
fn b9_a_late_reading_is_decided_at_the_newer_one() {
    let (limiter, clock) = limiter(10, Limit::per_hour(3));
    let newer = clock.now();
    assert_eq!(limiter.check("a").unwrap().remaining(), 2);
    clock.set(newer.saturating_sub(Duration::from_micros(1)));
    let late = limiter.check("a").unwrap();
    assert_eq!((late.remaining(), late.now()), (1, newer), "no fraction of a token is missing");
}

#[test]
fn b6_an_idle_key_takes_no_room() {
    let (limiter, clock) = limiter(10, Limit::per_minute(10));
    let live = || limiter.stats().live_keys;
    let _ = block_on(limiter.peek("a")).unwrap();
    assert_eq!(live(), Some(0), "a peek leaves nothing behind");
    let _ = limiter.check(Request::client("a").cost(11)).unwrap();
    assert_eq!(live(), Some(0), "nor does a denial of a new key");
    let _ = limiter.check("a").unwrap();
    assert_eq!(live(), Some(1));
    assert_eq!(block_on(limiter.refund("a")), Ok(1));
    assert_eq!(live(), Some(0), "given back whole");
    let _ = limiter.check("a").unwrap();
    clock.advance(MINUTE);
    let now = Timestamp::from_secs(1_000_060);
    assert_eq!(limiter.store().reclaim(now), 1);
    assert_eq!(live(), Some(0));
}

#[test]
fn b6_a_blocked_or_reserved_key_is_not_idle() {
    let (limiter, clock) = limiter(2, Limit::per_minute(10));
    block_on(limiter.block("blocked", Timestamp::from_secs(1_000_500))).unwrap();
    let reservation = block_on(limiter.reserve("reserved", 10 * MINUTE, OnExpiry::GiveBack)).unwrap();
    clock.advance(2 * MINUTE);
    assert!(!limiter.check("new").unwrap().allowed(), "there is no room");
    assert!(!limiter.check("blocked").unwrap().allowed());
    drop(reservation);
    assert!(limiter.check("new").unwrap().allowed(), "now there is");
}

#[test]
fn a3_a_log_above_the_ceiling_is_a_configuration_error_and_never_silently_smaller() {
    let rules = RuleSet::new([Rule::new("exact", Limit::sliding_log(10_001, MINUTE))]).unwrap();
    let error = Limiter::builder(rules.clone()).build().unwrap_err();
    assert_eq!(error.code(), "invalid_rule");
    assert!(error.to_string().contains("\"exact\"") && error.to_string().contains("10001"), "{error}");
    let limiter = Limiter::builder(rules).store(MemoryStore::new().log_ceiling(20_002)).build().unwrap();
    assert!(limiter.check("a").unwrap().allowed());
    let changed = RuleSet::new([Rule::new("exact", Limit::sliding_log(20_001, MINUTE))]).unwrap();
    assert_eq!(limiter.set_rules(changed).unwrap_err().code(), "invalid_rule");
    assert_eq!(limiter.rules().rules()[0].limits()[0].capacity(), 10_001, "nothing changed");
    let with_debt = |debt| RuleSet::new([Rule::new("exact", Limit::sliding_log(10_001, MINUTE).debt(debt))]);
    assert!(limiter.set_rules(with_debt(10_001).unwrap()).is_ok());
    let error = limiter.set_rules(with_debt(10_002).unwrap()).unwrap_err().to_string();
    assert!(error.contains("10001 with a debt of 10002"), "the ceiling covers both: {error}");
}

#[test]
fn e5_a_store_full_of_busy_keys_can_pool_new_keys() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let rules =
        RuleSet::new([Rule::new("per-client", Limit::fixed_window(2, MINUTE)).key(["client"])]).unwrap();
    let store = MemoryStore::new().max_keys(3).on_full(OnFull::Pool);
    let limiter = Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap();
    for client in ["a", "b", "c"] {
        assert!(limiter.check(client).unwrap().allowed());
    }
    let admitted = (0..100).filter(|i| limiter.check(&format!("new-{i}")).unwrap().allowed()).count();
    assert_eq!(admitted, 2, "one budget for all of them");
    for client in ["a", "b", "c"] {
        assert_eq!(limiter.check(client).unwrap().remaining(), 0, "{client} has its own budget");
    }
    assert_eq!(limiter.store().memory_stats().pooled, 100);
    clock.advance(MINUTE);
    assert!(limiter.check("new-7").unwrap().allowed(), "its own budget again");
    assert_eq!(block_on(limiter.peek("new-7")).unwrap().remaining(), 1);
}

#[test]
fn e5_a_flood_neither_grows_the_store_nor_frees_a_busy_key_nor_exceeds_the_limit() {
    let (limiter, clock) = limiter(1_000, Limit::fixed_window(3, MINUTE));
    let busy: Vec<String> = (0..500).map(|i| format!("busy-{i}")).collect();
    for client in &busy {
        assert!(limiter.check(client).unwrap().allowed());
    }
    let mut admitted = 0;
    for i in 0..100_000 {
        admitted += u64::from(limiter.check(i).unwrap().allowed());
        assert!(limiter.stats().live_keys <= Some(1_000));
    }
    assert_eq!(admitted, 500, "as many as there was room for");
    assert_eq!(limiter.store().memory_stats().refused, 99_500);
    for client in &busy {
        assert_eq!(limiter.check(client).unwrap().remaining(), 1, "{client} was not forgotten");
    }
    // After the minute the flood's keys are idle, and make room for new ones.
    clock.advance(2 * MINUTE);
    for i in 200_000..200_900 {
        assert!(limiter.check(i).unwrap().allowed());
    }
    assert!(limiter.stats().live_keys <= Some(1_000));
}

#[test]
fn e5_a_global_budget_has_room_in_a_full_store() {
    for on_full in [OnFull::Deny, OnFull::Pool] {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let rules = [
            Rule::new("per-client", Limit::fixed_window(1_000, 60 * MINUTE)).key(["client"]),
            Rule::new("global", Limit::per(5, SECOND)),
        ];
        let store = MemoryStore::new().max_keys(100).on_full(on_full);
        let builder = Limiter::builder(RuleSet::new(rules).unwrap()).store(store).clock(clock.clone());
        let limiter = builder.build().unwrap();
        // The global budget turns idle repeatedly, while the store fills with busy clients.
        for client in 0..100_u64 {
            assert!(limiter.check(client).unwrap().allowed());
            clock.advance(SECOND);
            limiter.store().reclaim(tollgate::Clock::now(&clock));
        }
        assert_eq!(limiter.stats().live_keys, Some(100), "all of them clients");
        let known: Vec<bool> = (0..6).map(|_| limiter.check(0_u64).unwrap().allowed()).collect();
        assert_eq!(
            known,
            [true, true, true, true, true, false],
            "{on_full:?}: a known client goes on, five at a time"
        );
        clock.advance(SECOND);
        let refused = limiter.check("new").unwrap();
        let reports = refused.limits();
        let global = reports.iter().find(|report| report.rule.as_str() == "global").unwrap();
        assert!(global.outcome.allowed(), "{on_full:?}: the global budget does not deny");
        assert_eq!(refused.allowed(), on_full == OnFull::Pool);
        assert!(limiter.stats().live_keys <= Some(102), "{:?}", limiter.stats());
    }
}

#[test]
fn e5_sweep_all_forgets_exactly_the_keys_that_have_been_idle_for_idle_for() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let rules = RuleSet::new([Rule::new("r", Limit::per_second(1)).key(["client"])]).unwrap();
    let store = MemoryStore::new().sweep(60 * SECOND, 30 * SECOND);
    let limiter = Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap();
    let sweep = || limiter.store().sweep_all(tollgate::Clock::now(&clock));
    (0..10_000_u32).for_each(|client| assert!(limiter.check(client).unwrap().allowed()));
    assert_eq!(sweep(), 0, "all are busy");
    clock.advance(20 * SECOND);
    assert_eq!(sweep(), 0, "none is due");
    clock.advance(40 * SECOND);
    // One client goes on. The other shards are swept without a request.
    assert!(limiter.check("busy").unwrap().allowed());
    let before = limiter.store().memory_stats().reclaimed;
    assert_eq!(before + sweep(), 10_000);
    assert_eq!(limiter.stats().live_keys, Some(1));
    assert!(!limiter.check("busy").unwrap().allowed());
}

#[test]
fn e5_a_sweep_advances_a_few_slots_with_each_request_and_frees_memory() {
    let per_client = Rule::new("per-client", Limit::per_second(10)).key(["client"]);
    // One rule takes one lock, two rules take two.
    sweeps([per_client.clone()]);
    sweeps([per_client, Rule::new("global", Limit::per_second(1_000_000))]);
    // Keys that do not pack are swept in the same way.
    sweeps([Rule::new("per-client", Limit::sliding_log(10, SECOND)).key(["client"])]);
}

fn sweeps(rules: impl IntoIterator<Item = Rule>) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let rules = RuleSet::new(rules).unwrap();
    let extra = rules.rules().len() as u64 - 1;
    let store = MemoryStore::new().seeded([1, 2]).sweep(MINUTE, 5 * MINUTE);
    let limiter = Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap();
    for i in 0..50_000 {
        assert!(limiter.check(i).unwrap().allowed());
    }
    assert_eq!(limiter.stats().live_keys, Some(50_000 + extra));
    clock.advance(MINUTE);
    for _ in 0..50_000 {
        assert!(limiter.check("a").is_ok());
    }
    assert!(limiter.stats().live_keys > Some(49_000), "idle, but not for long enough");
    clock.advance(10 * MINUTE);
    // Requests of a few thousand known clients reach every shard, and each sweeps a few slots.
    for _ in 0..10 {
        for i in 0..5_000 {
            let before = limiter.store().memory_stats().reclaimed;
            assert!(limiter.check(i).is_ok());
            // A shard has 195 keys. Of those, a request examines 8 slots, and keys that move there.
            let reclaimed = limiter.store().memory_stats().reclaimed - before;
            assert!(reclaimed < 100, "a request reclaimed {reclaimed} keys");
        }
        clock.advance(SECOND);
    }
    let stats = limiter.store().memory_stats();
    assert!(stats.live <= 5_002 && stats.reclaimed >= 44_000, "{stats:?}");
}

/// A settlement is recorded under its own key, and one that is sent again in no pool.
#[test]
fn c7_a_store_that_pools_counts_a_settlement_of_nothing_once() {
    let rules =
        RuleSet::new([Rule::new("per-client", Limit::fixed_window(10, MINUTE)).key(["client"])]).unwrap();
    let store = MemoryStore::new().max_keys(1).on_full(OnFull::Pool);
    let limiter = Limiter::builder(rules).store(store).build().unwrap();
    let reserved = block_on(limiter.reserve(Request::client("a").cost(0), MINUTE, OnExpiry::Keep)).unwrap();
    let hold = reserved.detach().unwrap();
    let settle = || block_on(limiter.settle(hold, Request::client("a").cost(4)));
    assert_eq!(settle(), Ok(Settlement { shortfall: 0 }));
    assert_eq!(settle(), Err(Error::NotReserved));
    assert_eq!(limiter.check("pooled").unwrap().remaining(), 9, "nothing was recorded in the pool");
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 6);
    let full = block_on(limiter.reserve(Request::client("b").cost(0), MINUTE, OnExpiry::Keep)).unwrap();
    assert_eq!(block_on(full.settle(1)), Ok(Settlement { shortfall: 0 }));
    assert_eq!(limiter.check("pooled").unwrap().remaining(), 7, "the pool made it and records it");
}

/// Of a few clients the keys of both rules are neighbours in one table. The window's key leaves the
/// table when its block is over, and the log's moves.
#[test]
fn b2_a_denied_request_that_moves_one_key_loses_no_other() {
    let clients: Vec<String> = (0..500).map(|client| format!("client-{client}")).collect();
    for seed in 0..60 {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let rules = RuleSet::new([
            Rule::new("window", Limit::fixed_window(1, MINUTE).counting_denied()).key(["client"]),
            Rule::new("log", Limit::sliding_log(1, MINUTE)).key(["client"]),
        ]);
        let store = MemoryStore::new().seeded([seed, 2]);
        let limiter = Limiter::builder(rules.unwrap()).store(store).clock(clock.clone()).build().unwrap();
        for client in &clients {
            let [window, log] = ["window", "log"].map(|rule| Request::client(client).only(rule));
            assert!(limiter.check(window).unwrap().allowed());
            block_on(limiter.block(window, SECOND)).unwrap();
            assert!(limiter.check(log).unwrap().allowed());
        }
        clock.advance(2 * SECOND);
        for client in &clients {
            assert!(!limiter.check(client).unwrap().allowed());
            let log = block_on(limiter.peek(Request::client(client).only("log"))).unwrap();
            assert!(!log.allowed(), "the log of {client} is lost");
        }
    }
}

#[test]
fn e5_a_sweep_forgets_a_key_whose_reservation_was_given_back() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let rules = RuleSet::new([Rule::new("per-client", Limit::per_day(10)).key(["client"])]).unwrap();
    let store = MemoryStore::new().sweep(Duration::from_nanos(1), Duration::ZERO);
    let limiter = Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap();
    let all = Request::client("a").cost(10);
    let reserved = block_on(limiter.reserve(all, 10 * SECOND, OnExpiry::GiveBack)).unwrap();
    assert!(reserved.detach().is_some());
    assert_eq!((limiter.store().sweep_all(clock.now()), limiter.stats().live_keys), (0, Some(1)));
    // It can be settled for as long again.
    clock.advance(20 * SECOND);
    assert_eq!((limiter.store().sweep_all(clock.now()), limiter.stats().live_keys), (1, Some(0)));
}
