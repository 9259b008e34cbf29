//! Reads the amount of a `rate_limit`.

use std::ops::Range;
use std::time::Duration;

use tollgate::{
    Algorithm, Bucket, CalendarUnit, DAY, Error, HOUR, Limit, MINUTE, SECOND, Store as _, Zone,
    parse_duration,
};

use super::values::{Count, Flag, Text};
use crate::backend::Backend;
use crate::config::{At, ConfigError, Section, nearest};

/// The amount of a `rate_limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Amount {
    Unlimited,
    /// `requests_per_unit: 0` of this unit.
    DenyAll(Duration),
    Limit(Limit),
}

/// The units of the reference. Its month has 30 days and its year 365.
const UNITS: [(&str, Duration); 7] = [
    ("second", SECOND),
    ("minute", MINUTE),
    ("hour", HOUR),
    ("day", DAY),
    ("week", Duration::from_secs(7 * 86_400)),
    ("month", Duration::from_secs(30 * 86_400)),
    ("year", Duration::from_secs(365 * 86_400)),
];

/// Builds an algorithm from a limit and a period.
type Build = fn(u64, Duration) -> Algorithm;

/// The values of `algorithm`, which the reference does not have. There are also `calendar` and
/// `calendar at ZONE`.
const ALGORITHMS: [(&str, Build); 5] = [
    ("fixed", |limit, period| fixed(limit, period, false)),
    ("fixed aligned", |limit, period| fixed(limit, period, true)),
    ("sliding", |limit, period| Algorithm::SlidingWindow { limit, period, count_denied: false }),
    ("log", |limit, period| Algorithm::SlidingLog { limit, period }),
    ("bucket", |limit, period| {
        Algorithm::TokenBucket(Bucket { capacity: limit, amount: limit, interval: period, stepped: false })
    }),
];

const fn fixed(limit: u64, period: Duration, aligned: bool) -> Algorithm {
    Algorithm::FixedWindow { limit, period, aligned, count_denied: false }
}

/// A configured algorithm.
#[derive(Clone, Copy)]
enum Chosen {
    /// Over a span of time.
    Span(Build),
    /// The unit of a zone's calendar.
    Calendar(Zone),
}

/// Reads the settings of a `rate_limit`; `heading` is the span of that key.
pub(super) fn read(fields: &mut Section<'_>, heading: &Range<usize>, store: &Backend) -> Option<Amount> {
    let unlimited = fields.get_or("unlimited", Flag(false)).0;
    let unit = fields.get::<Text>("unit").filter(|unit| !unit.value.0.is_empty());
    let requests = fields.get::<Count>("requests_per_unit");
    let multiplier = fields.get::<Count>("unit_multiplier");
    let algorithm = fields.get::<Text>("algorithm");
    if unlimited {
        let Some((name, At { span, .. })) =
            unit.map(|unit| ("unit", unit)).or(algorithm.map(|word| ("algorithm", word)))
        else {
            return Some(Amount::Unlimited);
        };
        let help = format!("remove `{name}` or `unlimited`");
        fields.report(
            ConfigError::new(format!("an unlimited descriptor has no `{name}`"), help).at(span, "here"),
        );
        return None;
    }
    let chosen = chosen(fields, algorithm.as_ref());
    let period = period(fields, heading, unit.as_ref(), multiplier.as_ref());
    if fields.span_of("requests_per_unit").is_none() {
        let help = "add `requests_per_unit: …`; 0 denies everything";
        fields.report(ConfigError::new("there is no limit", help).at(heading.clone(), "here"));
    }
    let (requests, period, chosen) = (requests?, period?, chosen?);
    if requests.value.0 == 0 {
        return Some(Amount::DenyAll(period));
    }
    let count = requests.value.0;
    let limit = match chosen {
        Chosen::Span(build) => build(count, period),
        Chosen::Calendar(zone) => {
            let unit = calendar_unit(fields, unit.as_ref()?, multiplier.as_ref())?;
            Algorithm::CalendarWindow { limit: count, unit, zone, count_denied: false }
        }
    };
    let spans = LimitSpans { requests: &requests, unit: multiplier.map_or(unit?.span, |times| times.span) };
    let limit = Limit::new(limit).map_err(|error| fields.report(spans.error(error)));
    let limit = limit.ok()?;
    if let Err(error) = store.accepts(&limit) {
        let span = algorithm.map_or(requests.span, |word| word.span);
        fields.report(
            ConfigError::new(format!("the store cannot keep {limit}"), error.to_string()).at(span, "here"),
        );
    }
    Some(Amount::Limit(limit))
}

/// The configured algorithm, or the reference's: a fixed window.
fn chosen(fields: &Section<'_>, word: Option<&At<Text>>) -> Option<Chosen> {
    let Some(At { value: Text(value), span }) = word else { return Some(Chosen::Span(ALGORITHMS[0].1)) };
    if let Some((_, build)) = ALGORITHMS.iter().find(|(name, _)| name == value) {
        return Some(Chosen::Span(*build));
    }
    if value == "calendar" {
        return Some(Chosen::Calendar(Zone::UTC));
    }
    if let Some(zone) = value.strip_prefix("calendar at ") {
        let unknown = |error: Error| {
            let error = ConfigError::new(format!("`algorithm` cannot be {value:?}"), error.to_string());
            fields.report(error.at(span.clone(), "here"));
        };
        return Zone::new(zone).map_err(unknown).ok().map(Chosen::Calendar);
    }
    let names: Vec<&str> = ALGORITHMS.iter().map(|(name, _)| *name).chain(["calendar"]).collect();
    let help = match nearest(value, names.iter().copied()) {
        Some(near) => format!("did you mean `{near}`?"),
        None => "remove it for `fixed`".into(),
    };
    let error = ConfigError::new(format!("`algorithm` cannot be {value:?}"), help);
    fields.report(error.at(span.clone(), format!("expected one of {}", names.join(", "))));
    None
}

/// The unit of a calendar window.
fn calendar_unit(
    fields: &Section<'_>,
    At { value: Text(value), span }: &At<Text>,
    multiplier: Option<&At<Count>>,
) -> Option<CalendarUnit> {
    let report = |span: &Option<Range<usize>>, help: &str| {
        let error = ConfigError::new("a calendar window is one unit of the calendar", help);
        fields.report(error.at(span.clone(), "here"));
    };
    if let Some(times) = multiplier.filter(|times| times.value.0 != 1) {
        report(&times.span, "remove `unit_multiplier`");
        return None;
    }
    let unit = CalendarUnit::ALL.into_iter().find(|unit| unit.name().eq_ignore_ascii_case(value));
    if unit.is_none() {
        report(span, "write hour, day, week, month or year");
    }
    unit
}

fn period(
    fields: &Section<'_>,
    heading: &Range<usize>,
    unit: Option<&At<Text>>,
    multiplier: Option<&At<Count>>,
) -> Option<Duration> {
    let Some(At { value: Text(value), span }) = unit else {
        let error = ConfigError::new("there is no unit", "add a unit, such as `unit: minute`");
        fields.report(error.at(fields.span_of("unit").unwrap_or(heading.clone()), "here"));
        return None;
    };
    let known = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(value)).map(|(_, period)| *period);
    let period = known.map_or_else(|| parse_duration(value), Ok).map_err(|error| {
        let (reason, hint) = match error {
            Error::InvalidNotation { reason, hint, .. } => (reason, hint),
            other => (other.to_string(), String::new()),
        };
        let near = nearest(value, UNITS.map(|(name, _)| name));
        let help = match near {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("{hint}; or second, minute, hour, day, week, month, year"),
        };
        fields.report(ConfigError::new(format!("`unit` cannot be {value:?}"), help).at(span.clone(), reason));
    });
    let times =
        multiplier.map_or(Some(1), |times| u32::try_from(times.value.0).ok().filter(|times| *times > 0));
    if let (None, Some(At { span, .. })) = (times, multiplier) {
        let help = "write a number in this range, or remove it";
        let error = ConfigError::new(format!("`unit_multiplier` is from 1 to {}", u32::MAX), help);
        fields.report(error.at(span.clone(), "here"));
    }
    // A period beyond the maximum is rejected when the limit is built.
    Some(period.ok()?.saturating_mul(times?))
}

/// The spans of a limit's numbers.
struct LimitSpans<'a> {
    requests: &'a At<Count>,
    unit: Option<Range<usize>>,
}

impl LimitSpans<'_> {
    fn error(&self, error: Error) -> ConfigError {
        let Error::InvalidLimit { field, reason, .. } = error else {
            return ConfigError::new("this limit is invalid", error.to_string())
                .at(self.requests.span.clone(), "here");
        };
        let is_time = matches!(field, "period" | "interval");
        let (span, name) = if is_time {
            (self.unit.clone(), "period")
        } else {
            (self.requests.span.clone(), "number of requests")
        };
        ConfigError::new(format!("the {name} is invalid"), format!("it must be {reason}")).at(span, "here")
    }
}
