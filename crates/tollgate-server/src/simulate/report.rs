//! The report: what the terminal shows, `--json` prints and the page contains.

use std::time::Duration;

use serde::Serialize;
use tollgate::Timestamp;

use super::key::readable;
use super::reader::{LogSummary, SHOWN_MAX};
use super::suggest::Suggestions;
use super::trace::ClientTimeline;
use super::traffic::{ClientId, Traffic, index};
use super::trial::Trial;
use crate::moment::rfc3339;

/// Clients that are listed by name for each candidate.
const WORST_MAX: usize = 10;

/// The share of unreadable lines above which they are a warning, in percent.
const UNREADABLE_PERCENT_MAX: f64 = 1.0;

/// The upper ends of the classes of clients by share denied, in percent.
pub(super) const SHARES: [u32; 8] = [0, 1, 5, 10, 25, 50, 75, 100];

/// The report of a run.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Report {
    pub(super) log: LogReport,
    pub(super) traffic: TrafficReport,
    pub(super) candidates: Vec<CandidateReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) suggestions: Option<Suggestions>,
    /// Clients with their timelines, for the page.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) clients: Vec<ClientTimeline>,
    pub(super) warnings: Vec<String>,
}

/// The logs that were read.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LogReport {
    pub(super) files: Vec<String>,
    pub(super) formats: Vec<&'static str>,
    pub(super) lines: u64,
    pub(super) unreadable: u64,
    /// The first unreadable lines.
    pub(super) examples: Vec<UnreadableLine>,
}

/// A line that was not read, and why.
#[derive(Clone, Debug, Serialize)]
pub(super) struct UnreadableLine {
    pub(super) log: String,
    pub(super) line: u64,
    pub(super) why: String,
    pub(super) text: String,
}

/// The traffic, whatever is decided.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TrafficReport {
    pub(super) requests: u64,
    pub(super) units: u64,
    pub(super) clients: u64,
    pub(super) without_key: u64,
    pub(super) from: String,
    pub(super) to: String,
    pub(super) span_ms: u64,
    /// The start of the first bucket, in milliseconds since the epoch.
    pub(super) buckets_from_ms: u64,
    pub(super) bucket_ms: u64,
    /// Requests in each bucket.
    pub(super) requests_over_time: Vec<u64>,
}

/// The result of a candidate.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CandidateReport {
    pub(super) limit: String,
    pub(super) admitted: u64,
    pub(super) denied: u64,
    pub(super) denied_percent: f64,
    pub(super) clients_touched: u64,
    pub(super) clients_touched_percent: f64,
    pub(super) longest_wait_ms: u64,
    /// Denied requests that cost more than the whole limit.
    pub(super) never_admitted: u64,
    /// The clients with the most denied requests.
    pub(super) worst: Vec<WorstClient>,
    pub(super) clients_by_share_denied: Vec<ShareClass>,
    /// Denied requests in each bucket of the traffic.
    pub(super) denied_over_time: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) denied_by_rule: Vec<RuleDenials>,
}

/// A client that is denied often.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WorstClient {
    #[serde(skip)]
    pub(super) id: ClientId,
    pub(super) client: String,
    pub(super) requests: u64,
    pub(super) denied: u64,
    pub(super) longest_wait_ms: u64,
}

/// The clients whose share of denied requests is above the class before, and at most this.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ShareClass {
    pub(super) up_to_percent: u32,
    pub(super) clients: u64,
}

/// Denials of one rule of a configuration.
#[derive(Debug, Serialize)]
pub(super) struct RuleDenials {
    pub(super) rule: String,
    pub(super) denied: u64,
}

impl Report {
    pub(super) fn new(
        files: Vec<String>,
        logs: Vec<LogSummary>,
        traffic: &Traffic,
        trials: &[Trial],
    ) -> Self {
        let log = LogReport::new(files, &logs);
        let mut warnings: Vec<String> = logs.into_iter().flat_map(|log| log.warnings).collect();
        let percent = ratio(log.unreadable.saturating_mul(100), log.lines);
        if percent > UNREADABLE_PERCENT_MAX {
            warnings.push(format!(
                "{} of {} lines ({percent:.1} %) cannot be read, so the report is about the rest",
                grouped(log.unreadable),
                grouped(log.lines)
            ));
        }
        if traffic.without_key > 0 {
            warnings.push(format!(
                "{} requests have no key, so no limit covers them; choose another --key if that is too many",
                grouped(traffic.without_key)
            ));
        }
        let candidates = trials.iter().map(|trial| CandidateReport::new(trial, traffic)).collect();
        let traffic = TrafficReport::new(traffic);
        Self { log, traffic, candidates, suggestions: None, clients: Vec::new(), warnings }
    }
}

impl LogReport {
    fn new(files: Vec<String>, logs: &[LogSummary]) -> Self {
        let mut formats: Vec<&str> = logs.iter().filter_map(|log| log.format).collect();
        formats.dedup();
        Self {
            files,
            formats,
            lines: logs.iter().map(|log| log.lines).sum(),
            unreadable: logs.iter().map(|log| log.unreadable).sum(),
            examples: logs.iter().flat_map(|log| log.examples.iter().cloned()).take(SHOWN_MAX).collect(),
        }
    }
}

impl TrafficReport {
    fn new(traffic: &Traffic) -> Self {
        let (from, to) = traffic.span.unwrap_or_default();
        Self {
            requests: traffic.requests,
            units: traffic.units,
            clients: count(traffic.requests_by_client.len()),
            without_key: traffic.without_key,
            from: rfc3339(from.as_nanos() / 1_000_000_000),
            to: rfc3339(to.as_nanos() / 1_000_000_000),
            span_ms: millis(to.since(from)),
            buckets_from_ms: millis(traffic.timeline.start().since(Timestamp::EPOCH)),
            bucket_ms: millis(traffic.timeline.width()),
            requests_over_time: traffic.timeline.counts().to_vec(),
        }
    }
}

impl CandidateReport {
    fn new(trial: &Trial, traffic: &Traffic) -> Self {
        let clients = count(traffic.requests_by_client.len());
        let touched = trial.clients_touched();
        let by_rule =
            if trial.candidate.is_configuration() { trial.candidate.denied_by_rule() } else { Vec::new() };
        Self {
            limit: trial.candidate.label.clone(),
            admitted: traffic.requests.saturating_sub(trial.denied),
            denied: trial.denied,
            denied_percent: percent(trial.denied, traffic.requests),
            clients_touched: touched,
            clients_touched_percent: percent(touched, clients),
            longest_wait_ms: millis(trial.longest_wait),
            never_admitted: trial.never_admitted,
            worst: worst(trial, traffic),
            clients_by_share_denied: classes(trial, traffic),
            denied_over_time: trial.timeline.counts().to_vec(),
            denied_by_rule: by_rule.into_iter().map(|(rule, denied)| RuleDenials { rule, denied }).collect(),
        }
    }
}

fn worst(trial: &Trial, traffic: &Traffic) -> Vec<WorstClient> {
    let denied = (0..).zip(&trial.by_client).filter(|(_, client)| client.denied > 0);
    let mut ids: Vec<(u64, ClientId)> = denied.map(|(id, client)| (client.denied, id)).collect();
    // The most denied first; of equals the one that appeared first.
    ids.sort_unstable_by_key(|(denied, id)| (std::cmp::Reverse(*denied), *id));
    let client = |(denied, id): (u64, ClientId)| WorstClient {
        id,
        client: readable(traffic.clients.name(id)).into_owned(),
        requests: traffic.requests_by_client.get(index(id)).copied().unwrap_or(0),
        denied,
        longest_wait_ms: trial.by_client.get(index(id)).map_or(0, |client| millis(client.longest_wait)),
    };
    ids.into_iter().take(WORST_MAX).map(client).collect()
}

/// Counts clients by their share of denied requests.
fn classes(trial: &Trial, traffic: &Traffic) -> Vec<ShareClass> {
    let mut classes = SHARES.map(|up_to_percent| ShareClass { up_to_percent, clients: 0 });
    for (id, requests) in traffic.requests_by_client.iter().enumerate() {
        let denied = trial.by_client.get(id).map_or(0, |client| client.denied);
        let is_in = |class: &&mut ShareClass| {
            u128::from(denied) * 100 <= u128::from(*requests) * u128::from(class.up_to_percent)
        };
        if let Some(class) = classes.iter_mut().find(is_in) {
            class.clients += 1;
        }
    }
    classes.into()
}

/// A number of things.
pub(super) fn count(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

/// Milliseconds of a duration, rounded up: a wait is never shown as shorter than it is.
pub(super) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// A part of a whole in percent, to four decimals.
pub(super) fn percent(part: u64, whole: u64) -> f64 {
    (ratio(part, whole) * 1_000_000.0).round() / 10_000.0
}

/// A quotient for people; 0 if there is no whole.
#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "shown to a few digits")]
pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// A number with its digits in groups: `1 234 567`.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut grouped = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            grouped.push('\u{202f}');
        }
        grouped.push(digit);
    }
    grouped
}
