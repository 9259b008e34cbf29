//! A snapshot of the server. The server writes it as JSON; `tollgate top` reads it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The server at a moment.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Snapshot {
    pub(crate) version: String,
    /// In milliseconds since the Unix epoch.
    pub(crate) at: u64,
    pub(crate) uptime_ms: u64,
    /// All decisions.
    pub(crate) total: LiveCounts,
    /// The rules in force, in order; if there are very many, those with the most decisions.
    pub(crate) rules: Vec<LiveRule>,
    /// The number of rules left out.
    pub(crate) other_rules: usize,
    /// Requests of each protocol.
    pub(crate) protocols: Vec<LiveProtocol>,
    /// The time to answer a request in the last second. Absent without requests.
    pub(crate) latency: Option<Quantiles>,
    /// The table of keys, unless they are in Redis.
    pub(crate) keys: Option<Keys>,
    pub(crate) memory: Option<MemoryUse>,
    pub(crate) store: StoreHealth,
    /// The clients with the most admitted units.
    pub(crate) heaviest: Vec<TopRow>,
    /// The clients with the most denials, by rule.
    pub(crate) most_denied: Vec<TopRow>,
}

/// Counts of decisions.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LiveCounts {
    /// Since the start.
    pub(crate) allowed: u64,
    /// Since the start.
    pub(crate) denied: u64,
    /// Since the start.
    pub(crate) shadow_denied: u64,
    /// Since the start.
    pub(crate) degraded: u64,
    /// Admitted with a warning, since the start.
    #[serde(default)]
    pub(crate) warned: u64,
    /// The percentage of requests that were denied in the last minute; of a shadow rule, that it
    /// would have denied.
    pub(crate) rejection_rate: f64,
    /// In the last second. Absent in the first snapshot.
    pub(crate) per_second: Option<Frequency>,
}

/// Decisions a second.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Frequency {
    pub(crate) allowed: f64,
    pub(crate) denied: f64,
    pub(crate) shadow_denied: f64,
    pub(crate) degraded: f64,
}

/// A rule and its counts.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct LiveRule {
    pub(crate) rule: String,
    pub(crate) shadow: bool,
    /// The limits; empty if requests carry them.
    pub(crate) limits: Vec<String>,
    #[serde(flatten)]
    pub(crate) counts: LiveCounts,
}

/// A protocol and its requests.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LiveProtocol {
    /// `http`, `grpc` or `resp`.
    pub(crate) protocol: String,
    /// Requests for decisions, since the start.
    pub(crate) requests: u64,
    /// In the last second. Absent in the first snapshot.
    pub(crate) per_second: Option<f64>,
}

/// Quantiles of a histogram in powers of two: upper bounds, in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Quantiles {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

/// The table of keys and its bound.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct Keys {
    pub(crate) live: u64,
    pub(crate) max: u64,
    /// Requests for new keys denied because the table was full.
    pub(crate) refused: u64,
    /// Requests for new keys charged to the shared pool because the table was full.
    pub(crate) pooled: u64,
}

/// The memory of the process and its bound, in bytes.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, ToSchema)]
pub(crate) struct MemoryUse {
    pub(crate) resident: u64,
    /// The bound of the control group, or else the memory of the machine.
    pub(crate) max: u64,
}

/// The health of the store.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct StoreHealth {
    /// `memory`, `disk` or `redis`.
    pub(crate) kind: String,
    /// The current failure, if any.
    pub(crate) down: Option<String>,
    /// Failures since the start.
    pub(crate) errors: u64,
    /// How long the store has been failing, since the start: from the first to the last failure of
    /// each outage.
    pub(crate) degraded_ms: u64,
}

/// A client and its count in the last one to two hours.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TopRow {
    pub(crate) client: String,
    /// The rule that denied it. Absent where units are counted.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) rule: Option<String>,
    pub(crate) at_least: u64,
    pub(crate) at_most: u64,
}
