//! Random limits and schedules.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, Bucket, Limit};

/// One request of a schedule.
#[derive(Clone, Debug)]
pub struct Step {
    /// How long after the one before.
    pub wait: Duration,
    /// Whose, out of a few.
    pub client: usize,
    /// What it costs.
    pub cost: u64,
}

/// A schedule of up to `most` requests of three clients, whose times are multiples of `tick`. Waits
/// are often none, often about as long as `period` is, and now and then much longer.
pub fn steps(tick: Duration, period: Duration, most: usize) -> impl Strategy<Value = Vec<Step>> {
    let ticks = |span: Duration| u64::try_from(span.as_nanos() / tick.as_nanos()).expect("a span fits");
    let wait = prop_oneof![
        3 => Just(0),
        4 => 0..=ticks(period) / 8 + 1,
        2 => 0..=ticks(period) + 1,
        1 => 0..=ticks(period) * 5 + 1,
    ];
    let cost = prop_oneof![6 => Just(1_u64), 1 => Just(0), 3 => 1..5_u64];
    let step = (wait, 0..3_usize, cost).prop_map(move |(ticks, client, cost)| Step {
        wait: Duration::from_nanos(u64::try_from(tick.as_nanos()).expect("a tick fits") * ticks),
        client,
        cost,
    });
    prop::collection::vec(step, 1..=most)
}

/// Any limit with small numbers, whose times are multiples of `tick`: all algorithms, all variants,
/// rates that divide and rates that do not.
pub fn any_limit(tick: Duration) -> impl Strategy<Value = Limit> {
    let tick = u64::try_from(tick.as_nanos()).expect("a tick fits");
    let period = prop_oneof![
        Just(60_000_000_000_u64),
        Just(1_000_000_000),
        Just(7 * tick),
        (1..5_000_u64).prop_map(move |n| n * tick)
    ];
    let period = period.prop_map(Duration::from_nanos);
    let count = 1..20_u64;
    let bucket = (count.clone(), 1..15_u64, period.clone(), any::<bool>())
        .prop_map(|(capacity, amount, interval, stepped)| Bucket { capacity, amount, interval, stepped });
    let algorithm = prop_oneof![
        (count.clone(), period.clone(), any::<bool>(), any::<bool>()).prop_map(
            |(limit, period, aligned, count_denied)| {
                Algorithm::FixedWindow {
                    limit,
                    period,
                    aligned,
                    count_denied: count_denied && limit % 3 == 0,
                }
            }
        ),
        (count.clone(), period.clone(), any::<bool>()).prop_map(|(limit, period, count_denied)| {
            Algorithm::SlidingWindow { limit, period, count_denied: count_denied && limit % 3 == 0 }
        }),
        (count, period).prop_map(|(limit, period)| Algorithm::SlidingLog { limit, period }),
        bucket.clone().prop_map(Algorithm::TokenBucket),
        (bucket.clone(), bucket).prop_map(|(sustained, reserve)| Algorithm::Reserve { sustained, reserve }),
    ];
    algorithm.prop_map(|algorithm| Limit::new(algorithm).expect("small numbers are in range"))
}
