//! Warnings: from a share of a limit on, and never a denial.

use proptest::prelude::*;
use tollgate::{Limit, Limiter, MINUTE, ManualClock, Request, Rule, RuleSet, SECOND, block_on};
use tollgate_testkit::any_limit;

fn limiter(rule: Rule, clock: &ManualClock) -> Limiter {
    Limiter::builder(RuleSet::new([rule.key(["client"])]).unwrap()).clock(clock.clone()).build().unwrap()
}

proptest! {
    /// A rule that warns decides exactly as the same rule without a warning does. An admitted
    /// request is warned if and only if at least the share is in use after it.
    #[test]
    fn a_warning_comes_from_its_share_on_and_changes_no_decision(
        limit in any_limit(std::time::Duration::from_nanos(1)),
        percent in 1..=100_u8,
        steps in prop::collection::vec((0..4_u32, 0..5_u64), 1..60),
    ) {
        let clock = ManualClock::default();
        let warns = limiter(Rule::new("rule", limit).warn_at(percent), &clock);
        let plain = limiter(Rule::new("rule", limit), &clock);
        let mut warned = 0;
        for (wait, cost) in steps {
            clock.advance(wait * SECOND / 7);
            let request = Request::client("a").cost(cost);
            let (decision, expected) = (warns.check(request).unwrap(), plain.check(request).unwrap());
            prop_assert_eq!(decision.summary().verdict, expected.summary().verdict);
            prop_assert_eq!(decision.remaining(), expected.remaining());
            let used = limit.capacity() - decision.remaining();
            let due = decision.allowed() && used * 100 >= u64::from(percent) * limit.capacity();
            let warnings = decision.warnings();
            prop_assert_eq!(warnings.len(), usize::from(due), "{} of {}", used, limit);
            if let Some(warning) = warnings.first() {
                prop_assert_eq!(warning.warning(), Some(used * 100 / limit.capacity()));
                warned += 1;
            }
            prop_assert!(expected.warnings().is_empty());
        }
        prop_assert_eq!(warns.stats().rules[0].1.warned, warned);
        prop_assert_eq!(plain.stats().total.warned, 0);
    }
}

#[test]
fn each_limit_of_a_rule_warns_by_itself_and_a_shadow_does_not() {
    let rules = [
        Rule::new("both", [Limit::fixed_window(4, MINUTE), Limit::fixed_window(100, MINUTE)]).warn_at(50),
        Rule::new("shadow", Limit::fixed_window(2, MINUTE)).shadow().warn_at(1),
        Rule::new("silent", Limit::fixed_window(4, MINUTE)),
    ];
    let limiter = Limiter::builder(RuleSet::new(rules).unwrap()).build().unwrap();
    let check = |cost| {
        let decision = limiter.check(Request::client("a").cost(cost)).unwrap();
        let warnings = decision.warnings();
        warnings.iter().map(|report| (report.rule.to_string(), report.index)).collect::<Vec<_>>()
    };
    assert_eq!(check(1), []);
    assert_eq!(check(1), [("both".to_string(), 0)]);
    let peeked = block_on(limiter.peek(Request::client("a"))).unwrap();
    assert_eq!(peeked.warnings().len(), 1, "a peek is warned too");
    assert_eq!(check(3), [], "a denial has no warning");
}

#[test]
fn a_percentage_out_of_range_is_refused() {
    for percent in [0, 101] {
        let error = RuleSet::new([Rule::new("r", Limit::per_second(1)).warn_at(percent)]).unwrap_err();
        assert!(error.to_string().contains("warn: "), "{error}");
    }
}
