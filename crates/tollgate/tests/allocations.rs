//! A check of a known client allocates nothing, for up to four limits. Nor does its request.

use tollgate::{
    AsRequest as _, HOUR, Limit, Limiter, MINUTE, ManualClock, OnExpiry, Request, RequestBuf, Rule, RuleSet,
    SECOND, Timestamp, block_on,
};

#[test]
fn d1_a_decision_over_four_limits_allocates_nothing() {
    let rules = RuleSet::new([
        Rule::new("global", Limit::per_second(1_000_000)),
        Rule::new("per-client", [Limit::per_second(1_000_000), Limit::fixed_window(1_000_000, MINUTE)])
            .key(["client"]),
        Rule::new("per-path", Limit::sliding_window(1_000_000, HOUR)).key(["path"]),
    ])
    .unwrap();
    let limiter = Limiter::builder(rules).build().unwrap();
    let request = [("client", "a-client-with-a-long-name"), ("path", "/some/path")];
    assert_eq!(limiter.check(&request).unwrap().limits().len(), 4);
    let measured = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            assert!(limiter.check(&request).unwrap().allowed());
        }
    });
    assert_eq!(measured.count_total, 0);
}

/// Numbers are not formatted for rules that do not cover them, and a key of as many attributes as
/// there may be is on the stack.
#[test]
fn d1_a_searched_request_allocates_nothing() {
    let names = ["client", "b", "c", "d", "e", "f", "g", "h"];
    let by = |name, key: &[&str]| Rule::new(name, Limit::per_second(1_000_000)).key(key.iter().copied());
    let rules = RuleSet::new([by("client", &names[..1]), by("two", &names[..2]), by("all", &names)]).unwrap();
    let limiter = Limiter::builder(rules).build().unwrap();
    let request = names.map(|name| (name, "value"));
    assert_eq!(limiter.check(42).unwrap().limits().len(), 1);
    assert_eq!(limiter.check(&request).unwrap().limits().len(), 3);
    let measured = allocation_counter::measure(|| {
        for _ in 0..1_000 {
            assert!(limiter.check(42).unwrap().allowed() && limiter.check(&request).unwrap().allowed());
        }
    });
    assert_eq!(measured.count_total, 0);
}

#[test]
fn d1_a_kept_request_allocates_nothing_for_one_attribute_and_once_for_up_to_four() {
    for (names, count) in [("a", 0), ("ab", 1), ("abcd", 1), ("abcde", 2)] {
        let measured = allocation_counter::measure(|| {
            let mut request = RequestBuf::default();
            for index in 0..names.len() {
                request.push(&names[index..=index], "value");
            }
            let request = &request;
            request.with_request(|request| assert_eq!(request.get("a"), Some("value")));
        });
        // Beyond four, the list of borrowed pairs is allocated too.
        assert_eq!(measured.count_total, count + u64::from(names.len() > 4), "{names}");
    }
}

/// The first hold is due, and a check sees it expired: it copies none of the others.
#[test]
fn c5_what_a_check_allocates_does_not_grow_with_the_holds_of_its_key() {
    let measured = [2, 100, 1_000].map(|holds| {
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let rules = RuleSet::new([Rule::new("r", Limit::fixed_window(1_000_000, HOUR))]).unwrap();
        let limiter = Limiter::builder(rules).clock(clock.clone()).build().unwrap();
        let reserve = |ttl| {
            let reserved = block_on(limiter.reserve(Request::client("a"), ttl, OnExpiry::GiveBack));
            reserved.unwrap().detach().unwrap()
        };
        reserve(SECOND);
        (1..holds).for_each(|_| _ = reserve(MINUTE));
        clock.advance(SECOND);
        let measured = allocation_counter::measure(|| {
            for _ in 0..100 {
                assert!(!limiter.check(Request::client("a").cost(1_000_000)).unwrap().allowed());
            }
        });
        (measured.count_total, measured.bytes_total)
    });
    assert_eq!(measured, [measured[0]; 3]);
}
