//! E5, B6: the in-memory store is bounded, and forgets only what nobody misses.

use std::time::Duration;

use tollgate::{
    Clock as _, Error, Limit, Limiter, MINUTE, ManualClock, MemoryStore, Request, Rule, RuleSet, Timestamp,
    Verdict, block_on,
};

fn limiter(max_keys: u64, limit: Limit) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let rules = RuleSet::new([Rule::new("per-client", limit).key(["client"])]).unwrap();
    let store = MemoryStore::new().max_keys(max_keys);
    (Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap(), clock)
}

#[test]
fn e5_a_table_full_of_busy_keys_denies_new_ones_and_forgets_none() {
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
fn e5_a_block_that_cannot_be_remembered_is_an_error_not_a_lie() {
    let (limiter, clock) = limiter(1, Limit::fixed_window(2, MINUTE));
    assert!(limiter.check("a").unwrap().allowed());
    let until = Timestamp::from_secs(2_000_000);
    assert_eq!(block_on(limiter.block("b", until)), Err(Error::StoreFull));
    clock.advance(MINUTE);
    assert_eq!(block_on(limiter.block("b", until)), Ok(()));
    assert!(!limiter.check("b").unwrap().allowed());
}

#[test]
fn b9_a_reading_that_came_late_is_decided_as_the_newer_one() {
    let (limiter, clock) = limiter(10, Limit::per_hour(3));
    let newer = clock.now();
    assert_eq!(limiter.check("a").unwrap().remaining(), 2);
    clock.set(newer.saturating_sub(Duration::from_micros(1)));
    let late = limiter.check("a").unwrap();
    assert_eq!((late.remaining(), late.now()), (1, newer), "not a part of a token is missing");
}

#[test]
fn b6_a_key_that_is_idle_takes_no_room() {
    let (limiter, clock) = limiter(10, Limit::per_minute(10));
    let live = || limiter.stats().live_keys;
    let _ = block_on(limiter.peek("a")).unwrap();
    assert_eq!(live(), Some(0), "a peek leaves nothing behind");
    let _ = limiter.check(Request::client("a").cost(11)).unwrap();
    assert_eq!(live(), Some(0), "nor does a denial of someone new");
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
    let reservation = block_on(limiter.reserve("reserved", 10 * MINUTE)).unwrap();
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
    let limiter = Limiter::builder(rules).store(MemoryStore::new().log_ceiling(20_000)).build().unwrap();
    assert!(limiter.check("a").unwrap().allowed());
    let changed = RuleSet::new([Rule::new("exact", Limit::sliding_log(20_001, MINUTE))]).unwrap();
    assert_eq!(limiter.set_rules(changed).unwrap_err().code(), "invalid_rule");
    assert_eq!(limiter.rules().rules()[0].limits()[0].capacity(), 10_001, "nothing changed");
}
