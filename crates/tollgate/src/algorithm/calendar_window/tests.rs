//! Calendar windows: counts, edges, clocks and conversions.

use crate::{DAY, HOUR, Limit, MINUTE, Meter, SECOND, Timestamp, Verdict};

fn at(date: &str) -> Timestamp {
    let nanos = date.parse::<jiff::Timestamp>().expect("a date").as_nanosecond();
    Timestamp::from_nanos(nanos.try_into().expect("after the epoch"))
}

fn limit(notation: &str) -> Limit {
    notation.parse().expect("a limit")
}

#[test]
fn c9_vector_a_thousand_per_month() {
    let mut meter = Meter::new(Limit::per_month(1000));
    let (february, march) = (at("2028-02-01T00:00Z"), at("2028-03-01T00:00Z"));
    let outcome = meter.decide(at("2028-02-29T23:59:59Z"), 1000);
    assert_eq!((outcome.verdict, outcome.remaining, outcome.reset_at), (Verdict::Allowed, 0, march));
    let denied = meter.decide(at("2028-02-29T23:59:59.999999999Z"), 1);
    assert_eq!(denied.verdict, Verdict::Denied { retry_after: std::time::Duration::from_nanos(1) });
    assert_eq!(meter.decide(march, 1).remaining, 999);
    assert_eq!(Limit::per_month(1000).period_at(february), 29 * DAY);
    assert_eq!(Limit::per_month(1000).period_at(march), 31 * DAY);
}

#[test]
fn c9_a_day_in_berlin_ends_at_midnight_in_berlin() {
    for (day, next, length) in [
        ("2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00", 23 * HOUR),
        ("2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00", 25 * HOUR),
        ("2026-11-17T00:00+01:00", "2026-11-18T00:00+01:00", 24 * HOUR),
    ] {
        let daily = limit("10/day at Europe/Berlin");
        let mut meter = Meter::new(daily);
        assert!(meter.decide(at(day), 10).allowed());
        assert_eq!(meter.decide(at(day), 1).verdict, Verdict::Denied { retry_after: length });
        assert!(!meter.decide(at(next).saturating_sub(SECOND), 1).allowed());
        assert_eq!(meter.decide(at(next), 1).remaining, 9);
        assert_eq!(daily.period_at(at(day)), length);
    }
}

#[test]
fn c9_a_window_lapses_at_the_end_that_it_was_opened_with() {
    // A process with other zone data opened the window: to it, the day ended an hour later.
    let daily = limit("10/day at Europe/Berlin");
    let (start, end) = (at("2026-11-17T00:00+01:00"), at("2026-11-18T01:00+01:00"));
    let numbers = vec![start.as_nanos(), end.as_nanos(), 10];
    let mut meter = Meter::from_state(daily, &crate::State { limit: Some(daily), numbers }).unwrap();
    assert!(!meter.decide(at("2026-11-18T00:30+01:00"), 1).allowed());
    assert_eq!(meter.decide(end, 1).reset_at, at("2026-11-19T00:00+01:00"));
}

#[test]
fn c7_a_debt_lapses_with_the_window() {
    let mut meter = Meter::new(limit("10/month debt 5"));
    let now = at("2026-11-17T12:00Z");
    assert_eq!(meter.record(now, 20), 15);
    assert_eq!((meter.peek(now, 1).remaining, meter.peek(now, 1).owed), (0, 5));
    let next = at("2026-12-01T00:00Z");
    assert_eq!(meter.peek(now, 0).verdict, Verdict::Denied { retry_after: next.since(now) });
    assert_eq!(meter.peek(next, 1).remaining, 10);
}

#[test]
fn b11_a_calendar_window_and_its_replacements_keep_the_count() {
    let now = at("2026-11-17T12:00Z");
    let mut meter = Meter::new(limit("10/month"));
    assert!(meter.decide(now, 7).allowed());
    let later = now.saturating_add(HOUR);
    for (replacement, left, reset) in [
        ("100/month", 93, "2026-12-01T00:00Z"),
        ("100/month at Europe/Berlin", 93, "2026-12-01T00:00+01:00"),
        ("5/day at Europe/Berlin", 0, "2026-11-18T00:00+01:00"),
        ("20/hour fixed", 13, "2026-11-17T14:00Z"),
        ("9/year", 2, "2027-01-01T00:00Z"),
    ] {
        meter.retune(limit(replacement), later);
        let outcome = meter.peek(later, 1);
        assert_eq!((outcome.remaining, outcome.reset_at), (left, at(reset)), "{replacement}");
    }
}

#[test]
fn b7_a_clock_that_goes_back_across_an_edge_finds_the_window_empty() {
    let mut meter = Meter::new(limit("10/day at UTC"));
    let midnight = at("2026-11-18T00:00Z");
    assert!(meter.decide(midnight, 1).allowed());
    let late = midnight.saturating_sub(SECOND);
    assert_eq!(meter.decide(late, 1).now, midnight, "up to a second late: decided at the window's start");
    let behind = meter.decide(midnight.saturating_sub(MINUTE), 1);
    assert_eq!(behind.verdict, Verdict::Denied { retry_after: MINUTE - SECOND });
    assert_eq!(meter.decide(midnight, 1).remaining, 7, "nothing was lost, nothing handed out anew");
}

#[test]
fn b2_attempts_count_if_they_are_told_to() {
    let mut meter = Meter::new(Limit::per_year(2).counting_denied());
    let now = at("2026-11-17T12:00Z");
    assert!(meter.decide(now, 1).allowed() && !meter.decide(now, 2).allowed());
    assert_eq!(meter.peek(now, 1).remaining, 0);
    assert_eq!(meter.peek(now, 0).owed, 0, "attempts are no debt");
}

#[test]
fn c9_numbers_that_no_calendar_window_writes_are_refused() {
    let monthly = Limit::per_month(10);
    let (start, end) = (at("2026-11-01T00:00Z").as_nanos(), at("2026-12-01T00:00Z").as_nanos());
    let load = |numbers: &[u64]| {
        Meter::from_state(monthly, &crate::State { limit: Some(monthly), numbers: numbers.to_vec() })
    };
    assert!(load(&[start, end, 3]).is_some() && load(&[0, 0, 0]).is_some());
    for numbers in [&[end, start, 3][..], &[start, u64::MAX, 3], &[u64::MAX, u64::MAX, 3], &[start, start, 3]]
    {
        assert!(load(numbers).is_none(), "{numbers:?}");
    }
}
