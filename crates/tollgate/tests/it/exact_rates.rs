//! A4: rates with fractional tokens do not drift, not by one token in a year.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, Bucket, DAY, Limit, Meter, Timestamp, Verdict};

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

/// Drains the bucket repeatedly for a year, without ever letting it fill up. Returns the units
/// admitted, and the capacity plus the exact refill.
fn admitted_in_a_year(limit: Limit, naps_nanos: &[u64]) -> (u128, u128) {
    let Algorithm::TokenBucket(bucket) = limit.algorithm() else { panic!("not a bucket") };
    let mut meter = Meter::new(limit);
    let (mut now, mut admitted) = (START, 0_u128);
    for nap in naps_nanos.iter().cycle() {
        let all = meter.peek(now, 0).remaining;
        assert!(meter.decide(now, all).allowed());
        assert!(!meter.decide(now, 1).allowed(), "there was one more");
        admitted += u128::from(all);
        let elapsed = now.since(START);
        if elapsed >= YEAR {
            let refilled = elapsed.as_nanos() * u128::from(bucket.amount) / bucket.interval.as_nanos();
            return (admitted, u128::from(bucket.capacity) + refilled);
        }
        now = now.saturating_add(Duration::from_nanos(*nap));
    }
    unreachable!("a year ends")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a4_no_rate_drifts_by_one_token_in_a_year(
        amount in prop_oneof![1..1_000_u64, 1..2_000_000_000_u64, Just(700_000_000)],
        interval in prop_oneof![Just(1_000_000_000_u64), Just(60_000_000_000), 1..DAY.as_nanos() as u64],
        naps in prop::collection::vec(1..7_200_000_000_000_u64, 50..200),
    ) {
        // Capacity for the longest nap, so that the bucket never fills up.
        let capacity = (u128::from(amount) * 7_200_000_000_000 / u128::from(interval) + 2) as u64;
        prop_assume!(capacity <= tollgate::MAX_COUNT);
        let bucket = Bucket { capacity, amount, interval: Duration::from_nanos(interval), stepped: false };
        let limit = Limit::new(Algorithm::TokenBucket(bucket)).unwrap();
        let (admitted, exact) = admitted_in_a_year(limit, &naps);
        prop_assert_eq!(admitted, exact);
    }

    #[test]
    fn a4_every_token_is_available_on_its_exact_nanosecond(
        amount in 1..5_000_000_u64,
        interval in 5_000_000..90_000_000_000_u64,
    ) {
        // At most a token a nanosecond and a capacity of two, so that the bucket is never full and
        // no fraction of a token is lost.
        let mut meter = Meter::new(Limit::token_bucket(2, amount, Duration::from_nanos(interval)));
        prop_assert!(meter.decide(START, 2).allowed());
        let mut now = START;
        for token in 1..2_000_u128 {
            let due = (token * u128::from(interval)).div_ceil(u128::from(amount)) as u64;
            if let Verdict::Denied { retry_after } = meter.peek(now, 1).verdict {
                now = now.saturating_add(retry_after);
            }
            prop_assert_eq!(now, START.saturating_add(Duration::from_nanos(due)), "token {}", token);
            prop_assert!(meter.decide(now, 1).allowed());
        }
    }
}

#[test]
fn a4_three_a_second_seven_a_minute_and_seven_hundred_million_a_second_for_a_year() {
    for (limit, nap) in [
        (Limit::per_second(3).burst(30_000), 7_199_999_999_993),
        (Limit::per_minute(7).burst(2_000), 7_199_999_999_993),
        (Limit::per_second(700_000_000).burst(99_999_999_999_999), 99_999_999_999_989),
        (Limit::per_day(1_000_000_000_000), 3_599_999_999_971),
    ] {
        let (admitted, exact) = admitted_in_a_year(limit, &[nap]);
        assert_eq!(admitted, exact, "{limit}");
    }
}
