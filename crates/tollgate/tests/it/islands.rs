//! B12: limits are islands. A request under one limit neither gives back, speeds up nor hides units
//! of another.

use tollgate::{
    DAY, HOUR, Limit, Limiter, MINUTE, ManualClock, Override, Request, Rule, RuleSet, SECOND, Timestamp,
    block_on,
};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

fn limiter(rules: RuleSet) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(START);
    (Limiter::builder(rules).clock(clock.clone()).build().unwrap(), clock)
}

#[test]
fn b12_an_override_on_a_path_takes_nothing_from_the_rule_s_budget() {
    let rules =
        RuleSet::new([Rule::new("per-client", Limit::fixed_window(100, HOUR)).key(["client"])]).unwrap();
    let login = Override::new("per-client", Limit::fixed_window(5, HOUR)).matching("path", "/login");
    let (limiter, _) = limiter(rules.with_overrides([login]).unwrap());
    let mut admitted = [0, 0];
    for _ in 0..300 {
        for (path, count) in ["/y", "/login"].iter().zip(&mut admitted) {
            let decision = limiter.check(&[("client", "a"), ("path", path)]).unwrap();
            *count += u32::from(decision.allowed());
        }
    }
    assert_eq!(admitted, [100, 5]);
}

/// An inline limit with the arguments of `CL.THROTTLE key max_burst count period`.
fn throttle(max_burst: u64, count: u64, period_secs: u64) -> Limit {
    Limit::token_bucket(max_burst + 1, count, period_secs as u32 * SECOND)
}

fn inline() -> (Limiter, ManualClock) {
    limiter(RuleSet::new([Rule::inline("inline").key(["client"])]).unwrap())
}

fn admits(limiter: &Limiter, limit: Limit) -> u32 {
    let limit = limiter.inline(limit).unwrap();
    u32::from(limiter.check(Request::client("k").under("inline", &limit)).unwrap().allowed())
}

#[test]
fn b12_two_alternating_inline_limits_on_one_key_admit_as_many_as_redis_cell() {
    let (limiter, _) = inline();
    let admitted = (0..300).fold(0, |sum, _| {
        let sum = sum + admits(&limiter, throttle(99, 100, 3600));
        admits(&limiter, throttle(4, 5, 3600));
        sum
    });
    assert_eq!(admitted, 20);
}

#[test]
fn b12_a_fast_inline_limit_does_not_speed_up_a_slow_one() {
    let (limiter, clock) = inline();
    let mut admitted = 0;
    for _ in 0..4 {
        for _ in 0..300 {
            admitted += admits(&limiter, throttle(99, 100, DAY.as_secs()));
            admits(&limiter, throttle(999, 1000, 1));
        }
        clock.advance(3 * SECOND / 10);
    }
    assert_eq!(admitted, 100);
}

#[test]
fn b11_entries_of_a_log_keep_their_times_when_its_period_is_shortened() {
    let rules = |limit| RuleSet::new([Rule::new("r", limit).key(["client"])]).unwrap();
    let (limiter, clock) = limiter(rules(Limit::sliding_log(10, HOUR)));
    for _ in 0..10 {
        assert!(limiter.check("a").unwrap().allowed());
        clock.advance(SECOND);
    }
    limiter.set_rules(rules(Limit::sliding_log(10, MINUTE))).unwrap();
    let mut left = Vec::new();
    for _ in 0..3 {
        left.push(tollgate::block_on(limiter.peek("a")).unwrap().remaining());
        clock.advance(25 * SECOND);
    }
    assert_eq!(left, [0, 0, 1], "the first entry is a minute old after 60 seconds, not before");
    clock.advance(MINUTE);
    assert_eq!(tollgate::block_on(limiter.peek("a")).unwrap().remaining(), 10);
}

#[test]
fn b7_a_block_of_ten_minutes_lasts_ten_minutes_after_the_clock_goes_back() {
    let rules = RuleSet::new([Rule::new("r", Limit::per_minute(10)).key(["client"])]).unwrap();
    let (limiter, clock) = limiter(rules);
    clock.advance(365 * DAY);
    tollgate::block_on(limiter.block("a", 10 * MINUTE)).unwrap();
    clock.set(START);
    assert_eq!(limiter.check("a").unwrap().retry_after(), Some(10 * MINUTE));
    clock.advance(10 * MINUTE);
    assert!(limiter.check("a").unwrap().allowed());
}

#[test]
fn b12_inline_windows_of_different_periods_have_counts_of_their_own_without_a_key_too() {
    let (limiter, _) = limiter(RuleSet::new([Rule::inline("all")]).unwrap());
    let [hour, day] = [HOUR, DAY].map(|period| limiter.inline(Limit::fixed_window(2, period)).unwrap());
    let request = Request::new(&[]);
    for remaining in [1, 0] {
        let decision = limiter.check(request.under("all", &hour)).unwrap();
        assert_eq!((decision.allowed(), decision.remaining()), (true, remaining));
        assert_eq!(block_on(limiter.peek(request.under("all", &hour))).unwrap().remaining(), remaining);
    }
    assert_eq!(limiter.check(request.under("all", &day)).unwrap().remaining(), 1);
}
