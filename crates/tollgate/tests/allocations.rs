//! A check of a known client allocates nothing, for up to four limits.

use tollgate::{HOUR, Limit, Limiter, MINUTE, Rule, RuleSet};

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
