//! Tests of the header fields.

use super::*;
use tollgate::{HOUR, Limit, Limiter, MINUTE, ManualClock, Request, Rule, RuleSet, SECOND, Timestamp};

fn limiter(rules: impl IntoIterator<Item = Rule>) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_millis(1_700_000_000_250));
    let limiter = Limiter::builder(RuleSet::new(rules).unwrap()).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

fn written(style: HeaderStyle, decision: &Decision) -> Vec<String> {
    let mut headers = HeaderMap::new();
    Headers::new(style).write(decision, &mut headers);
    let line = |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
    headers.iter().map(line).collect()
}

fn two_limits() -> [Rule; 3] {
    [
        Rule::new("global", Limit::per_second(5_000)),
        Rule::new("per-client", [Limit::fixed_window(10, MINUTE), Limit::sliding_log(12, HOUR)])
            .key(["client"]),
        Rule::new("watched", Limit::per_second(1)).shadow(),
    ]
}

#[test]
fn f2_the_standard_style_has_a_member_for_each_limit_that_enforces() {
    let (limiter, clock) = limiter(two_limits());
    let decision = limiter.check("a").unwrap();
    clock.advance(SECOND / 2);
    assert_eq!(
        written(HeaderStyle::Standard, &decision),
        [
            r#"ratelimit-policy: "global";q=5000;w=1, "per-client";q=10;w=60, "per-client.2";q=12;w=3600"#,
            r#"ratelimit: "global";r=4999;t=1, "per-client";r=9;t=60, "per-client.2";r=11;t=3600"#,
        ]
    );
}

#[test]
fn f2_the_other_styles_tell_of_the_limit_that_decided() {
    let (limiter, clock) = limiter(two_limits());
    assert!(limiter.check(Request::client("a").cost(3)).unwrap().allowed());
    clock.advance(SECOND + SECOND / 2);
    let decision = limiter.check(Request::client("a").cost(8)).unwrap();
    assert_eq!(
        written(HeaderStyle::Trio, &decision),
        [
            "ratelimit-limit: 10",
            "ratelimit-remaining: 7",
            "ratelimit-reset: 59",
            "ratelimit-policy: 10;w=60",
            "retry-after: 59"
        ]
    );
    assert_eq!(
        written(HeaderStyle::X, &decision),
        ["x-ratelimit-limit: 10", "x-ratelimit-remaining: 7", "x-ratelimit-reset: 59", "retry-after: 59"]
    );
    assert_eq!(written(HeaderStyle::XEpoch, &decision)[2], "x-ratelimit-reset: 1700000061");
    assert_eq!(written(HeaderStyle::Off, &decision), ["retry-after: 59"]);
}

#[test]
fn f2_an_overflow_counts_in_what_remains_and_in_when_to_retry() {
    let credits = Rule::new("credits", Limit::per_minute(20)).key(["client"]);
    let plan = Rule::new("plan", Limit::fixed_window(10, HOUR)).key(["client"]).overflow("credits");
    let (limiter, _) = limiter([plan, credits]);
    let admitted = limiter.check(Request::client("a").cost(12)).unwrap();
    assert_eq!(written(HeaderStyle::X, &admitted)[1], "x-ratelimit-remaining: 18");
    assert_eq!(
        written(HeaderStyle::Standard, &admitted)[1],
        r#"ratelimit: "plan";r=0;t=3600, "credits";r=18;t=3"#
    );
    let denied = limiter.check(Request::client("a").cost(19)).unwrap();
    assert_eq!(retry_after(&denied), Some(3), "the next credit, long before the plan has more");
}

#[test]
fn f2_retry_after_is_at_least_one_second_and_absent_for_never() {
    let (limiter, _) = limiter([Rule::new("fast", Limit::per_second(1_000)).key(["client"])]);
    assert!(limiter.check(Request::client("a").cost(1_000)).unwrap().allowed());
    assert_eq!(retry_after(&limiter.check("a").unwrap()), Some(1), "a millisecond, rounded up");
    assert_eq!(retry_after(&limiter.check(Request::client("a").cost(1_001)).unwrap()), None);
    assert_eq!(retry_after(&limiter.check("b").unwrap()), None, "allowed");
}

#[test]
fn f2_retry_after_is_not_before_the_limit_that_decided_has_more_to_give() {
    use std::future::Future as _;
    use std::task::{Context, Waker};
    let (limiter, _) = limiter([Rule::new("two", Limit::fixed_window(2, MINUTE)).key(["client"])]);
    assert!(limiter.check("a").unwrap().allowed());
    let mut first = std::pin::pin!(limiter.wait(Request::client("a").cost(2), HOUR));
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    // One unit remains, but a request for two is ahead in the queue: a retry is of no use before
    // that has been admitted.
    let overtaken = tollgate::block_on(limiter.wait("a", Duration::ZERO)).unwrap();
    assert_eq!((overtaken.allowed(), overtaken.retry_after()), (false, Some(90 * SECOND)));
    assert_eq!(retry_after(&overtaken), Some(90));
}

#[test]
fn f2_units_are_named_if_they_are_not_requests() {
    let (limiter, _) = limiter([Rule::new("upload", Limit::per_hour(1_000))]);
    let mut headers = HeaderMap::new();
    Headers::default().unit("content-bytes\n").write(&limiter.check("a").unwrap(), &mut headers);
    assert_eq!(headers[RATELIMIT_POLICY], r#""upload";q=1000;w=3600;qu="content-bytes""#);
}

/// A thread keeps the last value: every one after another follows the limits of its own decision.
#[test]
fn f2_policies_that_take_turns_are_not_mixed_up() {
    let window = |count, period| Limit::fixed_window(count, period);
    let rule = |name, limits: &[Limit]| limiter([Rule::new(name, limits.to_vec()).key(["client"])]).0;
    let minute = [window(10, MINUTE)];
    let limiters = [
        (rule("a", &minute), None, r#""a";q=10;w=60"#),
        (rule("a", &minute), Some("tokens"), r#""a";q=10;w=60;qu="tokens""#),
        (rule("b", &minute), None, r#""b";q=10;w=60"#),
        (rule("a", &[window(11, MINUTE)]), None, r#""a";q=11;w=60"#),
        (rule("a", &[window(10, HOUR)]), None, r#""a";q=10;w=3600"#),
        (rule("a", &[window(10, MINUTE), window(10, MINUTE)]), None, r#""a";q=10;w=60, "a.2";q=10;w=60"#),
    ];
    for (limiter, unit, expected) in limiters.iter().chain(&limiters).chain(limiters.iter().rev()) {
        let headers = unit.map_or(Headers::default(), |unit| Headers::default().unit(unit));
        let mut written = HeaderMap::new();
        headers.write(&limiter.check("client").unwrap(), &mut written);
        assert_eq!(written[RATELIMIT_POLICY], expected);
    }
}

#[test]
fn f2_two_limiters_one_inside_the_other_both_have_their_say() {
    let inner = limiter([Rule::new("login", Limit::per_hour(1))]).0;
    let outer = limiter([Rule::new("all", Limit::per_hour(100))]).0;
    assert!(inner.check("a").unwrap().allowed());
    for style in [HeaderStyle::Standard, HeaderStyle::Trio, HeaderStyle::X] {
        let mut headers = HeaderMap::new();
        Headers::new(style).write(&inner.check("a").unwrap(), &mut headers);
        let denied = headers.clone();
        Headers::new(style).write(&outer.check("a").unwrap(), &mut headers);
        if style == HeaderStyle::Standard {
            assert_eq!(headers.get_all(RATELIMIT).iter().count(), 2, "{headers:?}");
        } else {
            assert_eq!(headers, denied, "a denial does not claim that there is more");
        }
    }
}

#[test]
fn f2_a_request_that_no_rule_covers_has_no_fields() {
    let (limiter, _) = limiter([Rule::new("login", Limit::LOGIN).matching("path", "/login")]);
    assert_eq!(rate_limit_headers(&limiter.check("a").unwrap()), HeaderMap::new());
}
