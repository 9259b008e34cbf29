//! The timelines of single clients, for the page: a second pass, once it is known whom to show.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use super::candidate::Candidate;
use super::key::readable;
use super::replay::Consumer;
use super::report::Report;
use super::steps::{Step, Steps};
use super::timeline::Timeline;
use super::traffic::{ClientId, Traffic, index};

/// Clients on the page: the worst of each candidate, and the busiest.
const CLIENTS_MAX: usize = 50;
const BUSIEST: usize = 10;

/// A client on the page.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ClientTimeline {
    pub(super) client: String,
    pub(super) requests: u64,
    /// The buckets in which it has requests, by index.
    pub(super) buckets: Vec<usize>,
    /// Its requests in each of those.
    pub(super) requests_over_time: Vec<u64>,
    /// The same under each candidate.
    pub(super) candidates: Vec<TracedCandidate>,
}

/// A client under a candidate, in the buckets in which it has requests.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TracedCandidate {
    pub(super) denied_over_time: Vec<u64>,
    /// The least of its budget that was left in each bucket; null where no limit covers it.
    pub(super) least_left: Vec<Option<u64>>,
    /// Its whole budget.
    pub(super) capacity: u64,
}

/// The clients to show: the worst of each candidate by turns, then the busiest.
pub(super) fn choose(report: &Report, traffic: &Traffic) -> Vec<ClientId> {
    let ranks = report.candidates.iter().map(|candidate| candidate.worst.len()).max().unwrap_or(0);
    let worst = (0..ranks).flat_map(|rank| {
        report.candidates.iter().filter_map(move |candidate| candidate.worst.get(rank)).map(|worst| worst.id)
    });
    let mut busiest: Vec<(u64, ClientId)> = traffic.requests_by_client.iter().copied().zip(0..).collect();
    busiest.sort_unstable_by_key(|(requests, id)| (std::cmp::Reverse(*requests), *id));
    let mut chosen = Vec::new();
    for id in worst.take(CLIENTS_MAX - BUSIEST).chain(busiest.iter().take(BUSIEST).map(|(_, id)| *id)) {
        if !chosen.contains(&id) {
            chosen.push(id);
        }
    }
    chosen
}

/// Traces the chosen clients under one candidate.
#[derive(Debug)]
pub(super) struct Trace<'a> {
    candidate: Candidate,
    /// The buckets of the first pass.
    timeline: &'a Timeline,
    chosen: HashMap<ClientId, Traced>,
}

#[derive(Debug, Default)]
struct Traced {
    capacity: u64,
    buckets: BTreeMap<usize, Bucket>,
}

#[derive(Debug)]
struct Bucket {
    requests: u64,
    denied: u64,
    least_left: Option<u64>,
}

impl<'a> Trace<'a> {
    pub(super) fn new(candidate: Candidate, timeline: &'a Timeline, chosen: &[ClientId]) -> Self {
        let chosen = chosen.iter().map(|id| (*id, Traced::default())).collect();
        Self { candidate, timeline, chosen }
    }
}

impl Consumer for Trace<'_> {
    fn take(&mut self, steps: &Steps) {
        let Self { candidate, timeline, chosen } = self;
        // The rules of a configuration may share a budget among clients; a limit does not.
        let needs_all = candidate.is_configuration();
        let ids: std::collections::HashSet<ClientId> = chosen.keys().copied().collect();
        let is_wanted = |step: &Step| needs_all || ids.contains(&step.client);
        candidate.decide(steps, is_wanted, |at, decision| {
            let Some(step) = steps.steps.get(at) else { return };
            let (Some(client), Some(bucket)) = (chosen.get_mut(&step.client), timeline.bucket(step.time))
            else {
                return;
            };
            let budget = decision.and_then(|decision| {
                decision.deciding().map(|report| (decision.remaining(), report.limit.capacity()))
            });
            let bucket =
                client.buckets.entry(bucket).or_insert(Bucket { requests: 0, denied: 0, least_left: None });
            if let Some((left, capacity)) = budget {
                client.capacity = client.capacity.max(capacity);
                bucket.least_left = Some(bucket.least_left.map_or(left, |least| least.min(left)));
            }
            bucket.requests += 1;
            bucket.denied += u64::from(decision.is_some_and(|decision| !decision.allowed()));
        });
    }
}

/// The timelines of the chosen clients under all candidates.
pub(super) fn timelines(chosen: &[ClientId], traces: &[Trace<'_>], traffic: &Traffic) -> Vec<ClientTimeline> {
    let timeline = |id: &ClientId| {
        let traced: Vec<&Traced> = traces.iter().filter_map(|trace| trace.chosen.get(id)).collect();
        let first = traced.first().map(|traced| &traced.buckets);
        let candidate = |traced: &&Traced| TracedCandidate {
            denied_over_time: traced.buckets.values().map(|bucket| bucket.denied).collect(),
            least_left: traced.buckets.values().map(|bucket| bucket.least_left).collect(),
            capacity: traced.capacity,
        };
        ClientTimeline {
            client: readable(traffic.clients.name(*id)).into_owned(),
            requests: traffic.requests_by_client.get(index(*id)).copied().unwrap_or(0),
            buckets: first.into_iter().flat_map(|buckets| buckets.keys().copied()).collect(),
            requests_over_time: first
                .into_iter()
                .flat_map(|buckets| buckets.values().map(|bucket| bucket.requests))
                .collect(),
            candidates: traced.iter().map(candidate).collect(),
        }
    };
    chosen.iter().map(timeline).collect()
}
