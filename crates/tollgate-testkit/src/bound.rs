//! The bounds of law B1: the most units that may be admitted.

use std::time::Duration;

use tollgate::{Algorithm, Bucket, Limit, Timestamp};

/// The most units that `limit` may admit from one request to another that comes `span` later.
///
/// For windows this is the maximum over every position of the span, which is more than one window's
/// limit: [`Laws`](crate::Laws) checks the windows themselves one by one.
#[must_use]
pub fn max_admitted(limit: &Limit, span: Duration) -> u128 {
    let periods = |period: Duration| span.as_nanos() / period.as_nanos();
    match limit.algorithm() {
        Algorithm::FixedWindow { limit, period, .. } | Algorithm::SlidingWindow { limit, period, .. } => {
            u128::from(limit) * (periods(period) + 2)
        }
        // An hour in which the clock is set forward may be half as long.
        Algorithm::CalendarWindow { limit, unit, .. } => {
            u128::from(limit) * (periods(unit.longest() / 2) + 2)
        }
        Algorithm::SlidingLog { limit, period } => u128::from(limit) * (periods(period) + 1),
        Algorithm::TokenBucket(bucket) => max_of(&bucket, span),
        Algorithm::Reserve { sustained, reserve } => max_of(&sustained, span) + max_of(&reserve, span),
        other => unreachable!("an algorithm without a bound: {other:?}"),
    }
}

fn max_of(bucket: &Bucket, span: Duration) -> u128 {
    let (span, interval, amount) = (span.as_nanos(), bucket.interval.as_nanos(), u128::from(bucket.amount));
    let refill = if bucket.stepped { amount * (span / interval + 1) } else { span * amount / interval };
    u128::from(bucket.capacity) + refill
}

/// The time and cost of every admission, in order of arrival. The times may go back.
pub(crate) type Admitted = Vec<(Timestamp, u64)>;

/// Checks a history against law B1, in every window and every span of the clock's times.
pub(crate) fn check_history(limit: &Limit, admitted: &Admitted) -> Result<(), String> {
    check_windows(limit, admitted)?;
    let mut sorted = admitted.clone();
    sorted.sort_unstable();
    for (from, (start, _)) in sorted.iter().enumerate() {
        let mut sum = 0;
        for (at, cost) in &sorted[from..] {
            sum += u128::from(*cost);
            let bound = max_admitted(limit, at.since(*start));
            if sum > bound {
                return Err(format!("{limit}: {sum} of at most {bound} from {start:?} to {at:?}"));
            }
        }
    }
    Ok(())
}

/// Checks a history against the windows of its limit, one by one.
fn check_windows(limit: &Limit, admitted: &Admitted) -> Result<(), String> {
    let sum = |from: Timestamp, period: Duration| -> u64 {
        let inside = |(at, _): &&(Timestamp, u64)| from <= *at && at.since(from) < period;
        admitted.iter().filter(inside).map(|(_, cost)| cost).sum()
    };
    let within = |most: u64, start: Timestamp, period: Duration| match sum(start, period) {
        sum if sum > most => Err(format!("{limit}: {sum} in the window from {start:?}, at most {most}")),
        _ => Ok(()),
    };
    let aligned = |at: &Timestamp, period: Duration| {
        let period = u64::try_from(period.as_nanos()).expect("a period fits");
        Timestamp::from_nanos(at.as_nanos() - at.as_nanos() % period)
    };
    let mut opened: Option<(Timestamp, u64)> = None;
    admitted.iter().filter(|(_, cost)| *cost > 0).try_for_each(|(at, cost)| match limit.algorithm() {
        Algorithm::FixedWindow { limit: most, period, aligned: false, .. } => {
            let (open, used) = opened.filter(|(open, _)| at.since(*open) < period).unwrap_or((*at, 0));
            opened = Some((open, used + cost));
            if *at < open {
                return Err(format!("{limit}: admitted at {at:?}, before its window opened at {open:?}"));
            }
            if used + cost > most { Err(format!("{limit}: {} in one window", used + cost)) } else { Ok(()) }
        }
        Algorithm::FixedWindow { limit, period, .. } => within(limit, aligned(at, period), period),
        Algorithm::CalendarWindow { limit, unit, zone, .. } => {
            let window = zone.window(unit, *at);
            within(limit, window.start, window.end.since(window.start))
        }
        Algorithm::SlidingWindow { limit, period, .. } => {
            within(limit, aligned(at, period), period).and_then(|()| within(limit * 2, *at, period))
        }
        Algorithm::SlidingLog { limit, period } => within(limit, *at, period),
        _ => Ok(()),
    })
}
