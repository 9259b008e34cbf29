//! The arguments of `tollgate simulate`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use tollgate::{Limit, parse_duration};

use super::field::{Field, FieldName};
use super::key::KeyPart;

/// Arguments of `tollgate simulate`.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// Access logs, plain, .gz or .zst, merged by time; - or none for standard input
    #[arg(value_name = "LOG")]
    pub(super) logs: Vec<PathBuf>,
    /// Candidate limit per client, such as "10/s burst 20" or "100/min sliding"; can be repeated
    #[arg(long)]
    pub(super) limit: Vec<Limit>,
    /// Candidate configuration file, with all its rules; can be repeated
    #[arg(long, value_name = "FILE")]
    pub(super) config: Vec<PathBuf>,
    /// Key of a client: address, user, host, method, path, path:PATTERN, header:NAME or a field of
    /// the log; several with commas. In a pattern * is any segment, and {} a segment of the key
    #[arg(long, value_name = "PART,…", value_delimiter = ',', default_value = "address")]
    pub(super) key: Vec<KeyPart>,
    /// Field with the cost of a request, such as bytes [default: every request costs 1]
    #[arg(long, value_name = "FIELD")]
    pub(super) cost: Option<Field>,
    /// Field of a JSON or CSV log that holds the time, the address, and so on: time=ts,
    /// address=client.ip; can be repeated
    #[arg(long, value_name = "NAME=FIELD")]
    pub(super) field: Vec<FieldName>,
    /// Format of the logs
    #[arg(long, value_enum, default_value_t = FormatChoice::Auto)]
    pub(super) format: FormatChoice,
    /// Print the report as JSON
    #[arg(long)]
    pub(super) json: bool,
    /// Write the report as one HTML page
    #[arg(long, value_name = "FILE")]
    pub(super) html: Option<PathBuf>,
    /// For each algorithm, suggest the tightest limit that touches at most a share of clients
    #[arg(long)]
    pub(super) suggest: bool,
    /// Share of clients or requests that a suggested limit may touch, such as 0.1% or 0
    #[arg(long, value_name = "PERCENT", default_value = "0.1%", requires = "suggest")]
    pub(super) at_most: Share,
    /// The whole of which --at-most is a share
    #[arg(long, value_enum, default_value_t = Whole::Clients, requires = "suggest")]
    pub(super) of: Whole,
    /// Period of suggested limits
    #[arg(long, value_name = "PERIOD", default_value = "minute", value_parser = period, requires = "suggest")]
    pub(super) per: Duration,
}

/// A format of access logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum FormatChoice {
    /// Detect it
    Auto,
    /// nginx and Apache, common and combined
    Combined,
    /// JSON, one object a line
    Json,
    /// CSV with a header
    Csv,
    /// Caddy's JSON
    Caddy,
    /// Traefik's JSON
    Traefik,
    /// Envoy's default format
    Envoy,
    /// AWS load balancers, application and classic
    Aws,
}

/// What a suggested limit should seldom touch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Whole {
    /// Clients that are ever denied
    Clients,
    /// Requests that are denied
    Requests,
}

/// A share of a whole, in millionths: an exact bound on a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share(u64);

impl Share {
    /// The largest count that is at most this share of `whole`.
    pub(super) fn of(self, whole: u64) -> u64 {
        let count = u128::from(whole) * u128::from(self.0) / 1_000_000;
        u64::try_from(count).unwrap_or(u64::MAX)
    }

    /// The share in percent.
    pub(super) fn percent(self) -> f64 {
        super::report::ratio(self.0, 10_000)
    }
}

impl std::str::FromStr for Share {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let error = || format!("{text:?} is no share; write a percentage from 0 to 100, such as 0.1%");
        let digits = text.strip_suffix('%').unwrap_or(text).trim();
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
        if fraction.len() > 4 || !fraction.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(error());
        }
        let fraction: u64 = format!("{fraction:0<4}").parse().map_err(|_| error())?;
        let whole: u64 = whole.parse().map_err(|_| error())?;
        let share = whole.saturating_mul(10_000).saturating_add(fraction);
        if share <= 1_000_000 { Ok(Self(share)) } else { Err(error()) }
    }
}

fn period(text: &str) -> Result<Duration, String> {
    match parse_duration(text) {
        Ok(Duration::ZERO) => Err("a period is longer than 0; write 1s or minute".into()),
        other => other.map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_percentage_and_bounds_a_count_exactly() {
        let of = |text: &str, whole| text.parse::<Share>().map(|share| share.of(whole));
        assert_eq!(of("0.1%", 1_000), Ok(1));
        assert_eq!(of("0.1", 999), Ok(0));
        assert_eq!(of("100%", 7), Ok(7));
        assert_eq!(of("0", 7), Ok(0));
        assert_eq!(of("0.0001%", 1_000_000), Ok(1));
        for wrong in ["", "%", "-1%", "101%", "0.00001%", "a", "1.-2"] {
            assert!(wrong.parse::<Share>().is_err(), "{wrong}");
        }
    }
}
