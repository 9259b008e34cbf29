//! The rows in Redis: those that cannot be read, and those of limits that are no longer in force.

use std::time::Duration;

use crate::common::{Redis, direct};
use tollgate::{
    Decision, Error, HOUR, Limit, Limiter, ManualClock, MemoryStore, OnExpiry, Request, Rule, RuleSet, Store,
    Timestamp,
};
use tollgate_testkit::run;

fn limiter<S: Store>(store: S, limits: &[Limit]) -> Limiter<S> {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    Limiter::builder(rules(limits)).store(store).clock(clock).deadline(HOUR).build().unwrap()
}

fn rules(limits: &[Limit]) -> RuleSet {
    RuleSet::new([Rule::new("per-client", limits.to_vec()).key(["client"])]).unwrap()
}

fn remaining(decision: &Decision) -> Vec<u64> {
    decision.limits().iter().map(|report| report.outcome.remaining).collect()
}

/// Other types, another program's text, a damaged state, and the format of an older version.
const UNREADABLE: [&[&str]; 8] = [
    &["hset", "KEY", "field", "1"],
    &["sadd", "KEY", "1"],
    &["zadd", "KEY", "1", "member"],
    &["xadd", "KEY", "*", "field", "1"],
    &["set", "KEY", "hello"],
    &["set", "KEY", "f 10 3600000000 0 0|1800000000000000 -6"],
    &["set", "KEY", "f 10 3600000000 0 0|1800000000000000 6|1800000060000000|7f:2:1800000030000000:0:0:0"],
    &["rpush", "KEY", "hello", "world"],
];

#[test]
fn e7_a_row_that_cannot_be_read_is_an_error_and_is_never_overwritten() {
    let redis = Redis::start(&[]);
    for limit in [Limit::fixed_window(10, HOUR), Limit::sliding_log(10, HOUR), Limit::per_minute(10)] {
        for command in UNREADABLE {
            let prefix = format!("rows-{}", crate::common::unique());
            let limiter = limiter(direct(&redis.url()).prefix(&prefix).build().unwrap(), &[limit]);
            let key = format!("{prefix}:{{a}}:per-client:0");
            let command: Vec<&str> =
                command.iter().map(|word| if *word == "KEY" { key.as_str() } else { word }).collect();
            redis.cli(&command);
            let content = redis.cli(&["dump", &key]);
            let check = |client| run(limiter.check_async(client)).unwrap();
            for _ in 0..5 {
                assert!(check("a").degraded(), "{command:?}");
                assert!(!check("b").degraded(), "{command:?}");
            }
            assert!(run(limiter.peek("a")).unwrap().degraded());
            let Err(Error::StoreUnavailable { reason }) = run(limiter.reset("a")) else {
                panic!("{command:?}: the row was reset")
            };
            assert!(reason.contains(&key) && reason.contains("delete it"), "{reason}");
            assert!(run(limiter.record("a")).is_err() && run(limiter.refund("a")).is_err());
            assert_eq!(redis.cli(&["dump", &key]), content, "{command:?}");
            let status = limiter.store().status();
            assert_eq!((status.down, status.trips), (None, 0), "one row says nothing about Redis");
            redis.cli(&["del", &key]);
            assert_eq!((check("a").degraded(), check("a").remaining()), (false, 8), "{command:?}");
        }
    }
}

#[test]
fn e7_holds_that_cannot_be_read_are_an_error_and_are_never_overwritten() {
    let redis = Redis::start(&[]);
    let damages: [&[&str]; 5] = [
        &["del", "KEY:holds"],
        &["hset", "KEY:holds", "another", "1"],
        &["zadd", "KEY:due", "1", "another"],
        &["set", "KEY:due", "hello"],
        &["del", "KEY:due"],
    ];
    for damage in damages {
        let prefix = format!("rows-{}", crate::common::unique());
        let limiter =
            limiter(direct(&redis.url()).prefix(&prefix).build().unwrap(), &[Limit::fixed_window(10, HOUR)]);
        let key = format!("{prefix}:{{a}}:per-client:0");
        let reserve = || run(limiter.reserve("a", HOUR, OnExpiry::Keep)).unwrap();
        assert!(reserve().detach().is_some());
        let damage: Vec<String> = damage.iter().map(|word| word.replace("KEY", &key)).collect();
        redis.cli(&damage.iter().map(String::as_str).collect::<Vec<_>>());
        let content = ["", ":holds", ":due"].map(|end| redis.cli(&["dump", &format!("{key}{end}")]));
        assert!(reserve().decision().degraded(), "{damage:?}");
        let same = ["", ":holds", ":due"].map(|end| redis.cli(&["dump", &format!("{key}{end}")]));
        assert_eq!(content, same, "{damage:?}");
        assert_eq!(limiter.store().status().trips, 0);
    }
}

/// As in memory: the second limit was used, dropped by a reload, reset, and brought back.
fn reset_reaches_dropped_limits(store: impl Store) {
    let all = ["10/h fixed", "20/h log", "30/h"].map(|limit| limit.parse::<Limit>().unwrap());
    let limiter = limiter(store, &all);
    let check = |client: &str| run(limiter.check_async(client)).unwrap();
    let use_up = |client: &str| {
        let hold = run(limiter.reserve(Request::client(client).cost(4), HOUR, OnExpiry::Keep)).unwrap();
        assert!(hold.detach().is_some());
        assert_eq!(remaining(&check(client)), [5, 15, 25]);
    };
    ["a", "b"].into_iter().for_each(use_up);
    limiter.set_rules(rules(&all[..1])).unwrap();
    run(limiter.reset("a")).unwrap();
    limiter.set_rules(rules(&all)).unwrap();
    assert_eq!(remaining(&check("a")), [9, 19, 29]);
    assert_eq!(remaining(&check("b")), [4, 14, 24]);
}

#[test]
fn c5_a_reset_reaches_limits_that_are_no_longer_in_force() {
    let redis = Redis::start(&[]);
    reset_reaches_dropped_limits(MemoryStore::new());
    reset_reaches_dropped_limits(redis.store());
    let caching = direct(&redis.url()).remember_denials(HOUR).build().unwrap();
    reset_reaches_dropped_limits(caching);
    assert_eq!(redis.cli(&["exists", "test:{a}:per-client:1:holds"]), "0");
}

/// A denial by the dropped limit is forgotten, too.
#[test]
fn c5_a_reset_forgets_cached_denials_by_limits_that_are_no_longer_in_force() {
    let redis = Redis::start(&[]);
    let both = [Limit::fixed_window(10, HOUR), Limit::fixed_window(1, HOUR)];
    let store = direct(&redis.url()).remember_denials(HOUR).build().unwrap();
    let limiter = limiter(store, &both);
    let check = || run(limiter.check_async("a")).unwrap();
    assert!(check().allowed() && !check().allowed());
    limiter.set_rules(rules(&both[..1])).unwrap();
    run(limiter.reset("a")).unwrap();
    limiter.set_rules(rules(&both)).unwrap();
    assert!(check().allowed());
}

#[test]
fn clearing_a_rule_clears_its_holds_and_no_others() {
    let redis = Redis::start(&[]);
    let rules =
        ["r", "r:0", "r:0:holds"].map(|name| Rule::new(name, Limit::fixed_window(10, HOUR)).key(["client"]));
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = Limiter::builder(RuleSet::new(rules).unwrap())
        .store(redis.store())
        .clock(clock)
        .deadline(HOUR)
        .build()
        .unwrap();
    let hold = run(limiter.reserve("a", Duration::from_secs(60), OnExpiry::GiveBack)).unwrap();
    assert_eq!(run(limiter.store().clear("r:0:holds")), Ok(1));
    assert_eq!(run(limiter.store().clear("r:0")), Ok(1));
    assert_eq!(remaining(&run(limiter.peek("a")).unwrap()), [9, 10, 10]);
    assert_eq!(redis.cli(&["--scan", "--pattern", "*:holds"]).lines().count(), 1);
    assert_eq!(run(limiter.store().clear("r")), Ok(1));
    assert_eq!(redis.cli(&["--scan", "--pattern", "*{a}*"]), "");
    assert!(run(hold.settle(1)).is_err());
}
