//! Random limits and schedules.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, Bucket, CalendarUnit, Limit, Zone};

/// One request of a schedule.
#[derive(Clone, Debug)]
pub struct Step {
    /// The time since the previous request.
    pub wait: Duration,
    /// The index of the client.
    pub client: usize,
    /// The cost.
    pub cost: u64,
}

/// A schedule of up to `max` requests of three clients, at multiples of `tick`. Waits are often
/// zero, often about as long as `period`, and sometimes much longer.
pub fn steps(tick: Duration, period: Duration, max: usize) -> impl Strategy<Value = Vec<Step>> {
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
    prop::collection::vec(step, 1..=max)
}

/// Any limit with small numbers, whose times are multiples of `tick`: all algorithms and variants,
/// with whole and fractional tokens.
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
        (count.clone(), any_calendar(), any::<bool>()).prop_map(|(limit, (unit, zone), count_denied)| {
            Algorithm::CalendarWindow { limit, unit, zone, count_denied: count_denied && limit % 3 == 0 }
        }),
        (count.clone(), period.clone(), any::<bool>()).prop_map(|(limit, period, count_denied)| {
            Algorithm::SlidingWindow { limit, period, count_denied: count_denied && limit % 3 == 0 }
        }),
        (count, period).prop_map(|(limit, period)| Algorithm::SlidingLog { limit, period }),
        bucket.clone().prop_map(Algorithm::TokenBucket),
        (bucket.clone(), bucket).prop_map(|(sustained, reserve)| Algorithm::Reserve { sustained, reserve }),
    ];
    (algorithm, any_debt()).prop_map(|(algorithm, debt)| with_debt(algorithm, debt))
}

/// The zones of calendar windows: with and without changes of the clock, in the middle of an hour,
/// and across the date line.
const ZONES: [&str; 5] = ["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/Havana", "Pacific/Apia"];

/// An hour or a day of some zone. Longer units have a law of their own, because a schedule on the
/// scale of months takes years.
fn any_calendar() -> impl Strategy<Value = (CalendarUnit, Zone)> {
    calendar_of(&[CalendarUnit::Hour, CalendarUnit::Day])
}

/// One of these units, in some zone.
pub(crate) fn calendar_of(units: &'static [CalendarUnit]) -> impl Strategy<Value = (CalendarUnit, Zone)> {
    let zones = ZONES.map(|name| Zone::new(name).expect("a zone"));
    (prop::sample::select(units), prop::sample::select(zones.to_vec()))
}

/// The default debt, none, or a few units.
fn any_debt() -> impl Strategy<Value = Option<u64>> {
    prop_oneof![2 => Just(None), 1 => Just(Some(0)), 1 => (1..25_u64).prop_map(Some)]
}

fn with_debt(algorithm: Algorithm, debt: Option<u64>) -> Limit {
    let limit = Limit::new(algorithm).expect("small numbers are in range");
    debt.map_or(limit, |debt| limit.debt(debt))
}

/// A limit and its replacements: often of the same algorithm, with another count or period.
pub fn replacements(tick: Duration) -> impl Strategy<Value = Vec<Limit>> {
    let ticks = u64::try_from(tick.as_nanos()).expect("a tick fits");
    let change = (
        1..20_u64,
        prop_oneof![2 => Just((1_u64, 1_u64)), 1 => Just((1, 2)), 1 => Just((3, 2)), 1 => Just((2, 1))],
        any_debt(),
    );
    let like = move |limit: &Limit, (count, (times, by), debt): (u64, (u64, u64), Option<u64>)| {
        let scaled = |span: Duration| {
            let nanos = u64::try_from(span.as_nanos()).expect("a span fits");
            Duration::from_nanos((nanos * times / by / ticks).max(1) * ticks)
        };
        let bucket = |bucket: Bucket| Bucket { capacity: count, interval: scaled(bucket.interval), ..bucket };
        let other = match limit.algorithm() {
            Algorithm::FixedWindow { period, aligned, count_denied, .. } => {
                Algorithm::FixedWindow { limit: count, period: scaled(period), aligned, count_denied }
            }
            Algorithm::CalendarWindow { unit, zone, count_denied, .. } => {
                Algorithm::CalendarWindow { limit: count, unit, zone, count_denied }
            }
            Algorithm::SlidingWindow { period, count_denied, .. } => {
                Algorithm::SlidingWindow { limit: count, period: scaled(period), count_denied }
            }
            Algorithm::SlidingLog { period, .. } => {
                Algorithm::SlidingLog { limit: count, period: scaled(period) }
            }
            Algorithm::TokenBucket(only) => Algorithm::TokenBucket(bucket(only)),
            Algorithm::Reserve { sustained, reserve } => {
                Algorithm::Reserve { sustained: bucket(sustained), reserve: bucket(reserve) }
            }
            other => unreachable!("an unknown algorithm: {other:?}"),
        };
        with_debt(other, debt)
    };
    let others = prop::collection::vec((change, prop::option::weighted(0.3, any_limit(tick))), 1..4);
    (any_limit(tick), others).prop_map(move |(first, others)| {
        let other = others.into_iter().map(|(change, other)| other.unwrap_or_else(|| like(&first, change)));
        std::iter::once(first).chain(other.collect::<Vec<_>>()).collect()
    })
}
