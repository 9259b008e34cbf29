//! Tests of limits.

use super::*;

fn error_of(algorithm: Algorithm) -> String {
    let error = Limit::new(algorithm).unwrap_err();
    assert_eq!(error.code(), "invalid_limit");
    error.to_string()
}

#[test]
fn the_period_is_the_time_until_a_spent_limit_is_whole_again() {
    assert_eq!(Limit::fixed_window(10, MINUTE).period(), MINUTE);
    assert_eq!(Limit::per_minute(10).period(), MINUTE);
    assert_eq!(Limit::per_minute(10).burst(30).period(), 3 * MINUTE);
    assert_eq!(Limit::per_second(3).burst(1).period(), Duration::from_nanos(333_333_334));
    assert_eq!(Limit::per_minute(10).reserve(50, 1, MINUTE).period(), 50 * MINUTE);
    let stepped = Limit::token_bucket(9, 7, MINUTE).stepped();
    assert_eq!(stepped.period(), 2 * MINUTE, "whole steps");
    assert_eq!(stepped.reserve(5, 3, MINUTE).period(), 2 * MINUTE);
    assert_eq!(Limit::token_bucket(7, 7, MINUTE).stepped().period(), MINUTE);
}

#[test]
fn d3_a_zero_or_too_large_number_is_rejected_with_its_field_and_value() {
    let log = |limit, period| error_of(Algorithm::SlidingLog { limit, period });
    assert_eq!(log(0, MINUTE), "limit is 0; it must be a whole number from 1 to 999999999999999");
    assert!(log(MAX_COUNT + 1, MINUTE).starts_with("limit is 1000000000000000;"));
    assert!(log(1, Duration::ZERO).starts_with("period is 0;"));
    assert!(log(1, MAX_SPAN + Duration::from_nanos(1)).starts_with("period is 3153600000000000001;"));
    let bucket = |capacity, amount, interval| {
        error_of(Algorithm::TokenBucket(Bucket { capacity, amount, interval, stepped: false }))
    };
    assert!(bucket(0, 1, SECOND).starts_with("capacity is 0;"));
    assert!(bucket(1, 0, SECOND).starts_with("amount is 0;"));
    assert!(bucket(1, 1, Duration::MAX).starts_with("interval is "));
    assert!(bucket(MAX_COUNT, 1, SECOND).contains("within 100 years"));
    let slots = |limit| error_of(Algorithm::Concurrent { limit });
    assert_eq!(slots(0), "limit is 0; it must be a whole number from 1 to 8192");
    assert!(slots(MAX_SLOTS + 1).starts_with("limit is 8193;"));
}

#[test]
#[should_panic(expected = "a limit's count must be a whole number from 1")]
fn d3_a_constructor_panics_on_a_limit_of_zero() {
    let _ = Limit::per_second(0);
}

#[test]
fn c1_a_limit_rebuilt_from_its_algorithm_is_the_same_limit() {
    let limits = [
        Limit::per_second(3).burst(7),
        Limit::per_minute(10),
        Limit::token_bucket(100, 10, SECOND).stepped(),
        Limit::token_bucket(100, 10, SECOND).stepped().reserve(50, 5, SECOND),
        Limit::fixed_window(10, MINUTE).aligned().counting_denied(),
        Limit::sliding_window(10, MINUTE).counting_denied(),
        Limit::sliding_log(10, MINUTE),
    ];
    for limit in limits {
        assert_eq!(Limit::new(limit.algorithm()), Ok(limit));
        assert_eq!(Limit::new(limit.algorithm()).and_then(|same| same.with_debt(3)), Ok(limit.debt(3)));
    }
    assert_eq!(Limit::new(Limit::concurrent(5).algorithm()), Ok(Limit::concurrent(5)));
}
