//! Edges, against dates that were looked up.

use proptest::prelude::*;

use super::*;
use CalendarUnit::{Day, Hour, Month, Week, Year};

fn nanos(date: &str) -> u64 {
    let moment: jiff::Timestamp = date.parse().expect("a date");
    moment.as_nanosecond().try_into().expect("after the epoch")
}

fn assert_window(unit: CalendarUnit, zone: &str, now: &str, (start, end): (&str, &str)) {
    let window = Zone::new(zone).expect("a zone").edges(unit, nanos(now));
    assert_eq!(window, (nanos(start), nanos(end)), "{unit} at {zone}, {now}");
}

#[test]
fn c9_months_and_years_have_the_lengths_of_the_calendar() {
    for (month, days) in [("2026-02", 28), ("2028-02", 29), ("2100-02", 28), ("2026-04", 30), ("2026-12", 31)]
    {
        let (start, end) = Zone::UTC.edges(Month, nanos(&format!("{month}-17T12:00Z")));
        assert_eq!(start, nanos(&format!("{month}-01T00:00Z")));
        assert_eq!(Duration::from_nanos(end - start), days * DAY, "{month}");
    }
    assert_window(Year, "UTC", "2028-12-31T23:59:59.999999999Z", ("2028-01-01T00:00Z", "2029-01-01T00:00Z"));
    assert_window(Year, "UTC", "2029-01-01T00:00Z", ("2029-01-01T00:00Z", "2030-01-01T00:00Z"));
    assert_window(
        Month,
        "Europe/Berlin",
        "2026-10-31T22:59:59Z",
        ("2026-10-01T00:00+02:00", "2026-11-01T00:00+01:00"),
    );
}

#[test]
fn c9_a_day_of_a_change_of_the_clock_has_23_or_25_hours() {
    let spring = ("2026-03-29T00:00+01:00", "2026-03-30T00:00+02:00");
    assert_window(Day, "Europe/Berlin", "2026-03-29T12:00Z", spring);
    let autumn = ("2026-10-25T00:00+02:00", "2026-10-26T00:00+01:00");
    assert_window(Day, "Europe/Berlin", "2026-10-24T22:00Z", autumn);
    assert_window(Day, "Europe/Berlin", "2026-10-25T22:59:59Z", autumn);
    let week = ("2026-03-23T00:00+01:00", "2026-03-30T00:00+02:00");
    assert_window(Week, "Europe/Berlin", "2026-03-29T12:00Z", week);
    // Midnight does not exist, and then it comes twice.
    let cairo = ("2026-04-24T01:00+03:00", "2026-04-25T00:00+03:00");
    assert_window(Day, "Africa/Cairo", "2026-04-24T12:00Z", cairo);
    let havana = ("2026-11-01T00:00-04:00", "2026-11-02T00:00-05:00");
    assert_window(Day, "America/Havana", "2026-11-01T05:30Z", havana);
}

#[test]
fn c9_a_clock_set_back_across_midnight_does_not_bring_yesterday_back() {
    // At 00:01 on the 29th the clock went back to 23:01 on the 28th.
    let day = ("2006-10-29T00:00-02:30", "2006-10-30T00:00-03:30");
    assert_window(Day, "America/St_Johns", "2006-10-29T02:30:30Z", day);
    assert_window(Day, "America/St_Johns", "2006-10-29T03:00Z", day);
}

#[test]
fn c9_a_zone_that_changed_its_offset() {
    // Samoa had no 30 December 2011.
    let before = ("2011-12-29T00:00-10:00", "2011-12-30T00:00-10:00");
    assert_window(Day, "Pacific/Apia", "2011-12-30T09:59:59Z", before);
    let after = ("2011-12-31T00:00+14:00", "2012-01-01T00:00+14:00");
    assert_window(Day, "Pacific/Apia", "2011-12-30T10:00Z", after);
    // Pyongyang: 23:30 became midnight.
    let short = ("2018-05-04T00:00+08:30", "2018-05-05T00:00+09:00");
    assert_window(Day, "Asia/Pyongyang", "2018-05-04T12:00Z", short);
    // Moscow stayed on summer time in 2011 and went to winter time in 2014.
    let long = ("2014-10-26T00:00+04:00", "2014-10-27T00:00+03:00");
    assert_window(Day, "Europe/Moscow", "2014-10-26T12:00Z", long);
}

#[test]
fn c9_hours_are_those_of_the_local_clock() {
    let kolkata = ("2026-01-01T05:00+05:30", "2026-01-01T06:00+05:30");
    assert_window(Hour, "Asia/Kolkata", "2026-01-01T00:10Z", kolkata);
    // Two o'clock comes twice: two hours.
    assert_window(Hour, "Europe/Berlin", "2026-10-25T00:30Z", ("2026-10-25T00:00Z", "2026-10-25T01:00Z"));
    assert_window(Hour, "Europe/Berlin", "2026-10-25T01:30Z", ("2026-10-25T01:00Z", "2026-10-25T02:00Z"));
    // Lord Howe: half past one comes twice, so one hour has ninety minutes.
    let long = ("2026-04-05T01:00+11:00", "2026-04-05T02:00+10:30");
    assert_window(Hour, "Australia/Lord_Howe", "2026-04-04T15:15Z", long);
}

#[test]
fn c9_every_moment_has_a_window_and_no_moment_has_two() {
    let zones: Vec<Zone> = Zone::names().iter().filter_map(|name| Zone::new(name).ok()).collect();
    assert!(zones.len() > 400, "{} zones", zones.len());
    let moment = 0..nanos("2200-01-01T00:00Z");
    let strategy = (prop::sample::select(zones), prop::sample::select(&CalendarUnit::ALL), moment);
    let mut config = proptest::test_runner::Config::with_cases(20_000);
    config.failure_persistence = None;
    let law = |(zone, unit, now): (Zone, CalendarUnit, u64)| {
        let (start, end) = zone.edges(unit, now);
        prop_assert!(start <= now && now < end, "{} to {}", start, end);
        prop_assert!(Duration::from_nanos(end - start) <= 2 * unit.longest(), "{} to {}", start, end);
        prop_assert_eq!(zone.edges(unit, end - 1), (start, end));
        prop_assert_eq!(zone.edges(unit, start).1, end);
        prop_assert_eq!(zone.edges(unit, end).0, end);
        Ok(())
    };
    proptest::test_runner::TestRunner::new(config).run(&strategy, law).unwrap();
}

#[test]
fn c9_the_edges_at_both_ends_of_time_do_not_overflow() {
    for unit in CalendarUnit::ALL {
        for zone in ["Pacific/Kiritimati", "Pacific/Pago_Pago"] {
            let zone = Zone::new(zone).unwrap();
            assert_eq!(zone.edges(unit, 0).0, 0, "before the epoch there is no time");
            let latest = crate::Timestamp::MAX.as_nanos();
            let (start, end) = zone.edges(unit, latest);
            assert!(start <= latest && latest < end);
        }
    }
}
