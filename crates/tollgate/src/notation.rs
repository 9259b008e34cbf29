//! The text notation of limits, parsed and formatted: see [`Limit`'s notation](Limit#notation).
//!
//! An error names the column and says what to write instead. Formatting a limit and parsing it
//! again gives the same limit.

use std::str::FromStr;
use std::time::Duration;

use crate::{Error, Limit};

mod calendar;
mod display;
mod parser;

use parser::{EXAMPLES, Parser};

/// Units from the longest to the shortest: nanoseconds, the short form, and the long forms.
const UNITS: [(u64, &str, &[&str]); 8] = [
    (604_800_000_000_000, "w", &["week", "weeks"]),
    (86_400_000_000_000, "d", &["day", "days"]),
    (3_600_000_000_000, "h", &["hour", "hours"]),
    (60_000_000_000, "m", &["minute", "minutes", "min"]),
    (1_000_000_000, "s", &["second", "seconds", "sec"]),
    (1_000_000, "ms", &["millisecond", "milliseconds"]),
    (1_000, "us", &["microsecond", "microseconds"]),
    (1, "ns", &["nanosecond", "nanoseconds"]),
];

impl FromStr for Limit {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut parser = Parser::new("limit", text, EXAMPLES)?;
        let limit = parser.limit()?;
        parser.finish(|parser| parser.hint_after(&limit))?;
        Ok(limit)
    }
}

/// Parses a duration: `100ms`, `30 s`, `minute`, `1h30m`.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(tollgate::parse_duration("100ms")?, Duration::from_millis(100));
/// # Ok::<(), tollgate::Error>(())
/// ```
///
/// # Errors
/// [`Error::InvalidNotation`] names the column.
pub fn parse_duration(text: &str) -> Result<Duration, Error> {
    let hint = "write a number and a unit, such as 100ms or 1h30m";
    let mut parser = Parser::new("duration", text, hint)?;
    let span = parser.span()?;
    parser.finish(|_| hint.into())?;
    Ok(span)
}

/// Formats a duration for [`parse_duration`], in the longest unit that divides it: `90s`, `minute`.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(tollgate::format_duration(Duration::from_secs(90)), "90s");
/// assert_eq!(tollgate::format_duration(tollgate::MINUTE), "minute");
/// ```
#[must_use]
pub fn format_duration(span: Duration) -> String {
    display::Per(span).to_string()
}

#[cfg(feature = "serde")]
mod serde_impls {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    use crate::Limit;

    impl Serialize for Limit {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_str(self)
        }
    }

    impl<'de> Deserialize<'de> for Limit {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            let text = String::deserialize(deserializer)?;
            text.parse().map_err(de::Error::custom)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HOUR, MINUTE, SECOND};

    fn parsed(text: &str) -> Limit {
        text.parse().unwrap_or_else(|error| panic!("{error}"))
    }

    fn error_of(text: &str) -> String {
        text.parse::<Limit>().unwrap_err().to_string()
    }

    #[test]
    fn every_documented_form_parses_to_its_limit() {
        let step = Duration::from_millis(100);
        assert_eq!(parsed("10/minute"), Limit::per_minute(10));
        assert_eq!(parsed("100/s burst 200"), Limit::per_second(100).burst(200));
        assert_eq!(parsed("60 refill 1/s"), Limit::per_second(1).burst(60));
        assert_eq!(parsed("100 refill 10 every 100ms"), Limit::token_bucket(100, 10, step).stepped());
        let reserve = Limit::token_bucket(100, 10, step).stepped().reserve(50, 5, SECOND);
        assert_eq!(parsed("100 refill 10 every 100ms reserve 50 refill 5/s"), reserve);
        assert_eq!(parsed("10/60s fixed"), Limit::fixed_window(10, MINUTE));
        assert_eq!(parsed("10/60s fixed aligned"), Limit::fixed_window(10, MINUTE).aligned());
        assert_eq!(parsed("50/hour sliding"), Limit::sliding_window(50, HOUR));
        assert_eq!(parsed("100/min log"), Limit::sliding_log(100, MINUTE));
        assert_eq!(parsed("5 concurrent"), Limit::concurrent(5));
        assert_eq!(parsed("5 concurrent requests"), Limit::concurrent(5));
        assert_eq!(parsed("10/60s fixed counting denied"), Limit::fixed_window(10, MINUTE).counting_denied());
        assert_eq!(parsed("1000/hour debt 500"), Limit::per_hour(1000).debt(500));
        assert_eq!(parsed("10/60s fixed counting denied debt 0").max_debt(), 0);
        assert_eq!(parsed("api"), Limit::API);
        assert_eq!(parsed("login"), Limit::LOGIN);
        assert_eq!(parsed("websocket"), Limit::WEBSOCKET);
        assert_eq!(parsed("background"), Limit::BACKGROUND);
    }

    #[test]
    fn one_limit_has_several_spellings() {
        for text in
            ["10/60s", "10 per 60 s", " 10 / 60 seconds", "10/m", "10 per minute", "10/1min", "1_0/60s"]
        {
            assert_eq!(parsed(text), Limit::per_minute(10), "{text}");
        }
        for text in ["10r/m", "10 requests/Minute", "10 requests per 60s", "10 r/MINUTE", "10req/1min"] {
            assert_eq!(parsed(text), Limit::per_minute(10), "{text}");
        }
        for text in ["10/1h30m", "10/90m", "10 per 1hour30minutes", "10/1h29m60s"] {
            assert_eq!(parsed(text), Limit::per(10, MINUTE * 90), "{text}");
        }
        assert_eq!(parsed("60 refill 1r/s"), parsed("60 refill 1 request/s"));
        assert_eq!(parsed("10/1h30m").to_string(), "10/90m");
        assert_eq!(parsed("10k/day"), parsed("10_000 per d"));
        assert_eq!(parsed("1T/day"), Limit::per_day(1_000_000_000_000));
        assert_eq!(parsed("5/2 weeks"), Limit::per(5, 14 * crate::DAY));
    }

    #[cfg(feature = "calendar")]
    #[test]
    fn c9_a_month_is_the_calendars_and_a_day_is_only_at_a_zone() {
        use crate::CalendarUnit::{Day, Hour, Month, Week, Year};
        let at = |count, unit, zone| Limit::per_calendar(count, unit, crate::Zone::new(zone).unwrap());
        for (text, limit, formatted) in [
            ("1000/month", Limit::per_month(1000), "1000/month"),
            ("1k per 1 Month at utc", Limit::per_month(1000), "1000/month"),
            ("1/year", Limit::per_year(1), "1/year"),
            ("5/month at Asia/Tokyo", at(5, Month, "Asia/Tokyo"), "5/month at Asia/Tokyo"),
            ("10/day at europe/berlin", at(10, Day, "Europe/Berlin"), "10/day at Europe/Berlin"),
            ("10 requests/d at UTC", at(10, Day, "UTC"), "10/day at UTC"),
            ("5/week at Etc/GMT+5", at(5, Week, "Etc/GMT+5"), "5/week at Etc/GMT+5"),
            (
                "5/h at America/Argentina/Buenos_Aires debt 0",
                at(5, Hour, "America/Argentina/Buenos_Aires").debt(0),
                "5/hour at America/Argentina/Buenos_Aires debt 0",
            ),
            (
                "5/year at America/Port-au-Prince counting denied debt 7",
                at(5, Year, "America/Port-au-Prince").counting_denied().debt(7),
                "5/year at America/Port-au-Prince counting denied debt 7",
            ),
        ] {
            assert_eq!(parsed(text), limit, "{text}");
            assert_eq!(limit.to_string(), formatted);
        }
        assert_eq!(parsed("10/day"), Limit::per_day(10), "a bucket, as ever");
        for (text, part) in [
            ("10/2 months", "\"2\" of the calendar's units at column 4; a calendar window is one unit"),
            ("10/3d at UTC", "a calendar window is one unit: write \"10/day\""),
            ("10/24h at UTC", "a calendar window is one unit"),
            ("10/minute at UTC", "unexpected \"at\" at column 11; write one hour, day, week, month or year"),
            ("10/day at", "a time zone is missing at column 10"),
            (
                "10/day at Europe/Berlni",
                "time zone \"Europe/Berlni\" at column 11; did you mean \"Europe/Berlin\"?",
            ),
            ("10/day at Mordor", "unknown time zone \"Mordor\" at column 11; write the name of a time zone"),
            (
                "10/month burst 20",
                "unexpected \"burst\" at column 10; at most at, counting denied, debt may follow",
            ),
            ("10/month at UTC at UTC", "unexpected \"at\" at column 17"),
            ("10/monht", "unknown unit \"monht\" at column 4; did you mean \"month\"?"),
        ] {
            let error_of = error_of(text);
            assert!(error_of.contains(part), "{text:?}: {error_of}");
        }
        assert!(parse_duration("1 month").unwrap_err().to_string().contains("unknown unit \"month\""));
    }

    #[test]
    fn an_error_names_the_column_and_says_what_to_write() {
        let minuet = "limit \"10/minuet\": unknown unit \"minuet\" at column 4; did you mean \"minute\"?";
        assert_eq!(error_of("10/minuet"), minuet);
        for (text, part) in [
            ("", "a count is missing at column 1"),
            ("10", "the period is missing at column 3"),
            ("10/", "a period is missing at column 4"),
            ("10/60", "a unit is missing at column 6"),
            ("0/s", "a count is out of range at column 1"),
            ("-1/s", "negative number \"-1\" at column 1"),
            ("1.5/s", "fractional number \"1.5\" at column 1"),
            ("1000000000000000/s", "a count is out of range at column 1"),
            ("99999999999999999999999/s", "a count is out of range at column 1"),
            ("1/0s", "a period is out of range at column 3"),
            ("1/200 d fixd", "unexpected \"fixd\" at column 9; did you mean \"fixed\"?"),
            ("10/day aligned", "unexpected \"aligned\" at column 8; write \"fixed aligned\""),
            ("10/day log aligned", "unexpected \"aligned\" at column 12; at most debt may follow there"),
            ("1/9999999w", "a period is out of range at column 3"),
            (
                "10/s log counting denied",
                "unexpected \"counting\" at column 10; at most debt may follow there",
            ),
            ("10/s debt", "a count is missing at column 10; write a whole number from 0 to"),
            ("10/s debt 5 burst 9", "unexpected \"burst\" at column 13; nothing may follow there"),
            ("1/36500d debt 2", "debt 2 is out of range at column 10; it must be small enough"),
            ("10/s det 5", "unexpected \"det\" at column 6; did you mean \"debt\"?"),
            ("10/s fixed counting", "\"denied\" is missing at column 20"),
            ("10/s, please", "unexpected \",\" at column 5"),
            ("5 concurent", "unexpected \"concurent\" at column 3; did you mean \"concurrent\"?"),
            ("5 concurrent debt 2", "debt 2 is out of range at column 14; it must be 0 for slots"),
            ("5 concurrent burst 2", "unexpected \"burst\" at column 14; nothing may follow there"),
            (
                "9000 concurrent",
                "limit 9000 is out of range at column 1; it must be a whole number from 1 to 8192",
            ),
            ("logn", "unknown preset \"logn\" at column 1; did you mean \"login\"?"),
            ("1/week burst 999999999999999", "out of range at column 1; it must be small enough"),
            ("10/30m1h", "a unit is not shorter than the one before at column 7; write 1h30m"),
            ("10/1h30", "a unit is missing at column 8"),
            ("10/1w99999999999s", "a period is out of range at column 4"),
            ("10 refill 1/s reserve 5", "\"refill\" is missing at column 24"),
        ] {
            let error_of = error_of(text);
            assert!(error_of.contains(part), "{text:?}: {error_of}");
        }
    }

    #[test]
    fn an_error_of_a_duration_speaks_of_a_duration() {
        let error_of = |text| parse_duration(text).unwrap_err().to_string();
        assert!(
            error_of("forever").starts_with("duration \"forever\": unknown unit"),
            "{}",
            error_of("forever")
        );
        assert!(
            error_of("1h+1m").starts_with("duration \"1h+1m\": unexpected \"+\" at column 3; write a number")
        );
        assert_eq!(parse_duration("1h30m"), Ok(MINUTE * 90));
    }

    #[test]
    fn a_limit_is_formatted_in_the_longest_unit_that_divides_its_period() {
        for text in [
            "10/minute fixed",
            "90/90s",
            "1/second burst 60 debt 0",
            "5/2w log debt 7",
            "5 concurrent",
            "100 refill 10 every 100ms",
        ] {
            assert_eq!(parsed(text).to_string(), text);
        }
    }

    #[cfg(feature = "serde")]
    #[test]
    fn serde_reads_and_writes_the_notation() {
        let json = serde_json::to_string(&Limit::per_second(5)).unwrap();
        assert_eq!(json, "\"5/second\"");
        assert_eq!(serde_json::from_str::<Limit>(&json).unwrap(), Limit::per_second(5));
        assert!(
            serde_json::from_str::<Limit>("\"5/fortnight\"").unwrap_err().to_string().contains("column 3")
        );
    }
}
