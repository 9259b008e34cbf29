//! Suggested limits: for each algorithm the tightest that touches at most a share of clients or of
//! requests.
//!
//! A limit that denies a client nothing changes nothing for it. So the tightest limit of a client
//! is the most that it ever has in use under a limit that is far too large, and one pass finds that
//! for every client and every algorithm, exactly (`demand.rs`). A share of requests has no such
//! shortcut and is searched for (`search.rs`).

use std::time::Duration;

use serde::Serialize;
use tollgate::{Algorithm, Bucket, Limit, MAX_COUNT, format_duration};

use super::options::{Share, Whole};
use super::report::CandidateReport;

mod demand;
mod paste;
mod search;

pub(super) use demand::{Demand, Peaks};
pub(super) use paste::paste;
pub(super) use search::{Bracket, DenialCount};

/// The longest sliding log that is suggested: with its debt, the default `log_ceiling` of a server.
const LOG_MAX: u64 = 10_000;

/// The share of clients, as one in so many, that the reserve of a bucket is for.
const RESERVE_FOR_ONE_IN: u64 = 10;

/// An algorithm with everything but its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    FixedWindow,
    SlidingWindow,
    SlidingLog,
    /// The size is the burst.
    TokenBucket {
        per_period: u64,
    },
    /// The size is the reserve.
    Reserve {
        per_period: u64,
        reserve_per_period: u64,
    },
}

impl Shape {
    /// The algorithms whose size is a number per period.
    pub(super) const WINDOWS: [Self; 3] = [Self::FixedWindow, Self::SlidingWindow, Self::SlidingLog];

    /// The buckets that refill as much per period as a fixed window of this demand admits.
    pub(super) fn buckets(fixed: &Peaks, size: u64) -> [Self; 2] {
        let everyday = fixed.size_touching(fixed.clients() / RESERVE_FOR_ONE_IN).unwrap_or(size).min(size);
        let reserve_per_period = size.saturating_sub(everyday).max(1);
        [Self::TokenBucket { per_period: size }, Self::Reserve { per_period: everyday, reserve_per_period }]
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed window",
            Self::SlidingWindow => "sliding window",
            Self::SlidingLog => "sliding log",
            Self::TokenBucket { .. } => "token bucket",
            Self::Reserve { .. } => "token bucket with a reserve",
        }
    }

    /// The limit of a size.
    ///
    /// # Errors
    /// A sentence, if the period is too long or too short for it.
    pub(super) fn limit(self, size: u64, period: Duration) -> Result<Limit, String> {
        let limit = size.clamp(1, self.size_max(period));
        let bucket = |capacity, amount| Bucket { capacity, amount, interval: period, stepped: false };
        let algorithm = match self {
            Self::FixedWindow => {
                Algorithm::FixedWindow { limit, period, aligned: false, count_denied: false }
            }
            Self::SlidingWindow => Algorithm::SlidingWindow { limit, period, count_denied: false },
            Self::SlidingLog => Algorithm::SlidingLog { limit, period },
            Self::TokenBucket { per_period } => Algorithm::TokenBucket(bucket(limit, per_period)),
            Self::Reserve { per_period, reserve_per_period } => Algorithm::Reserve {
                sustained: bucket(per_period, per_period),
                reserve: bucket(limit, reserve_per_period),
            },
        };
        Limit::new(algorithm).map_err(|error| error.to_string())
    }

    /// The largest size: far more than any client has in use.
    pub(super) fn size_max(self, period: Duration) -> u64 {
        /// A bucket of this many periods does not fill up within a log.
        const PERIODS: u64 = 1_000_000;
        let bucket = |per_period: u64| {
            let longest = tollgate::MAX_SPAN.as_nanos() / period.as_nanos().max(1) / 2;
            let periods = PERIODS.min(u64::try_from(longest).unwrap_or(u64::MAX)).max(1);
            per_period.saturating_mul(periods).min(MAX_COUNT / 2)
        };
        match self {
            Self::FixedWindow | Self::SlidingWindow => MAX_COUNT,
            Self::SlidingLog => LOG_MAX,
            Self::TokenBucket { per_period } => bucket(per_period),
            Self::Reserve { reserve_per_period, .. } => bucket(reserve_per_period),
        }
    }
}

/// The suggestions of a run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Suggestions {
    pub(super) at_most_percent: f64,
    /// `clients` or `requests`.
    pub(super) of: &'static str,
    pub(super) period: String,
    /// How often the log was read.
    pub(super) passes: u32,
    pub(super) algorithms: Vec<Suggestion>,
    /// What a log cannot tell.
    pub(super) caveats: Vec<String>,
}

/// The suggestion for one algorithm.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Suggestion {
    pub(super) algorithm: &'static str,
    /// The limit, or why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) none_because: Option<String>,
    pub(super) denied: u64,
    pub(super) denied_percent: f64,
    pub(super) clients_touched: u64,
    pub(super) clients_touched_percent: f64,
    /// The trade-off: how many clients are touched by limits of other sizes.
    pub(super) curve: Vec<CurvePoint>,
    pub(super) paste: Vec<Pasteable>,
}

/// A point of the trade-off.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CurvePoint {
    pub(super) size: u64,
    pub(super) limit: String,
    pub(super) clients_touched: u64,
}

/// A piece of configuration.
#[derive(Debug, Serialize)]
pub(super) struct Pasteable {
    #[serde(rename = "for")]
    pub(super) program: &'static str,
    pub(super) text: String,
}

/// A size that was found, with the demand that it was found from.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) shape: Shape,
    pub(super) peaks: Peaks,
    /// The size; `None` if no size touches few enough.
    pub(super) size: Option<u64>,
}

impl Found {
    /// The tightest size that touches at most so many clients.
    pub(super) fn by_clients(shape: Shape, peaks: Peaks, at_most: u64) -> Self {
        let size = peaks.size_touching(at_most);
        Self { shape, peaks, size }
    }

    /// The suggestion, with what its trial measured.
    pub(super) fn suggestion(
        &self,
        period: Duration,
        tried: Option<&CandidateReport>,
    ) -> Result<Suggestion, String> {
        let limit = self.size.map(|size| self.shape.limit(size, period)).transpose()?;
        let none_because = limit.is_none().then(|| {
            format!("it would need a log of more than {LOG_MAX} requests a client; choose the sliding window")
        });
        Ok(Suggestion {
            algorithm: self.shape.name(),
            limit: limit.map(|limit| limit.to_string()),
            none_because,
            denied: tried.map_or(0, |tried| tried.denied),
            denied_percent: tried.map_or(0.0, |tried| tried.denied_percent),
            clients_touched: tried.map_or(0, |tried| tried.clients_touched),
            clients_touched_percent: tried.map_or(0.0, |tried| tried.clients_touched_percent),
            curve: self.peaks.curve(|size| self.shape.limit(size, period)),
            paste: limit.iter().flat_map(paste).collect(),
        })
    }
}

impl Suggestions {
    pub(super) fn new(
        (at_most, of, period): (Share, Whole, Duration),
        span: Duration,
        passes: u32,
        algorithms: Vec<Suggestion>,
    ) -> Self {
        let days = span.as_secs() / 86_400;
        let mut caveats = vec![
            "Bursts that were already limited are not in the log: a client that was told to wait sent less."
                .to_owned(),
            "The log has the clients of its time. New ones, and attacks, may look different.".to_owned(),
        ];
        if days < 7 {
            let covered = if days == 0 { "less than a day".into() } else { format!("{days} of the 7 days") };
            caveats.insert(
                0,
                format!("The log covers {covered} of a week, and other days may have other peaks."),
            );
        }
        Self {
            at_most_percent: at_most.percent(),
            of: if of == Whole::Clients { "clients" } else { "requests" },
            period: format_duration(period),
            passes,
            algorithms,
            caveats,
        }
    }
}
