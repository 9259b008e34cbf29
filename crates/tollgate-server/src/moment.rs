//! A moment as people read it: RFC 3339, and how far away it is.

use std::fmt;
use std::time::Duration;

use serde::Serialize;
use tollgate::{Timestamp, format_duration};
use utoipa::ToSchema;

/// A moment for people, beside the number for programs.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Moment {
    /// The time in UTC (RFC 3339), to the second, rounded up.
    time: String,
    /// Seconds from now, rounded: 0 if the moment has passed.
    in_seconds: u64,
}

impl Moment {
    pub(crate) fn new(at: Timestamp, now: Timestamp) -> Self {
        let seconds = at.as_nanos().div_ceil(1_000_000_000);
        // Rounded, not rounded up: the clocks of two processes differ by less than a millisecond,
        // and an hour must not read as 3601 s.
        let in_seconds = at.since(now).saturating_add(Duration::from_millis(500)).as_secs();
        Self { time: rfc3339(seconds), in_seconds }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, in {} s", self.time, self.in_seconds)
    }
}

/// A span of time in a sentence. The notation of limits leaves out a 1, as in `10/minute`.
pub(crate) fn duration(span: Duration) -> String {
    let text = format_duration(span);
    if text.starts_with(|first: char| first.is_ascii_digit()) { text } else { format!("1 {text}") }
}

/// Seconds since the Unix epoch as a date and a time of day.
pub(crate) fn rfc3339(seconds: u64) -> String {
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that a leap day is the last day of its year. 719 468 days lie
    // between 0000-03-01 and 1970-01-01. An era is 400 years, which repeat.
    let day = days + 719_468;
    let (era, day) = (day / 146_097, day % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_begins_with_its_number() {
        let spans = [1, 2, 60, 90, 3_600].map(|seconds| duration(Duration::from_secs(seconds)));
        assert_eq!(spans, ["1 second", "2s", "1 minute", "90s", "1 hour"]);
    }

    #[test]
    fn a_moment_is_a_date_and_a_distance() {
        for (seconds, written) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (18_446_744_073, "2554-07-21T23:34:33Z"),
        ] {
            assert_eq!(rfc3339(seconds), written);
        }
        let at = Timestamp::from_millis(1_500);
        assert_eq!(Moment::new(at, Timestamp::EPOCH).to_string(), "1970-01-01T00:00:02Z, in 2 s");
        assert_eq!(Moment::new(at, Timestamp::from_secs(9)).in_seconds, 0);
        let hour = Timestamp::from_nanos(3_600_000_100_000);
        assert_eq!(Moment::new(hour, Timestamp::EPOCH).in_seconds, 3_600, "another process's clock");
    }
}
