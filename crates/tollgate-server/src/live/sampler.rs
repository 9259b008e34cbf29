//! Makes snapshots. It remembers a minute of counts, from which rates are computed.

use std::collections::{HashMap, VecDeque};

use tollgate::{Clock as _, Counts, Limit, Rule, RuleName, Stats, Timestamp};
use tollgate_http::millis_ceil;

use super::resident;
use super::snapshot::{
    Frequency, Keys, LiveCounts, LiveProtocol, LiveRule, Quantiles, Snapshot, StoreHealth, TopRow,
};
use crate::app::{App, STOPWATCH};
use crate::latency::Histogram;
use crate::top::TopClient;

/// The samples that are kept: a minute's.
const SAMPLES_MAX: usize = 61;

/// The most rules of a snapshot.
const RULES_MAX: usize = 200;

/// The clients of each list.
const TOP: usize = 10;

/// Recent samples, oldest first.
#[derive(Debug, Default)]
pub(super) struct Sampler(VecDeque<Sample>);

/// Counts at a moment.
#[derive(Debug)]
struct Sample {
    at: Timestamp,
    total: Counts,
    rules: HashMap<RuleName, Counts>,
    protocols: [(&'static str, u64); 3],
    latency: Histogram,
}

impl Sampler {
    /// The server now. Rates are those since the sample before.
    pub(super) fn sample(&mut self, app: &App) -> Snapshot {
        let stats = app.limiter.stats();
        let now = Sample {
            at: STOPWATCH.now(),
            total: stats.total,
            rules: stats.rules.iter().copied().collect(),
            protocols: app.metrics.protocols(),
            latency: app.metrics.decision_latency(),
        };
        let snapshot = self.snapshot(app, &stats, &now);
        if self.0.len() >= SAMPLES_MAX {
            self.0.pop_front();
        }
        self.0.push_back(now);
        snapshot
    }

    fn snapshot(&self, app: &App, stats: &Stats, now: &Sample) -> Snapshot {
        let clock = app.clock.now();
        let top = |clients: Vec<TopClient>| clients.into_iter().map(TopRow::from).collect();
        let mut rules = app.limiter.with_rules(|rules| self.rules(rules.rules(), now));
        let other_rules = rules.len().saturating_sub(RULES_MAX);
        if other_rules > 0 {
            rules.sort_by_key(|rule| {
                std::cmp::Reverse(rule.counts.allowed.saturating_add(rule.counts.denied))
            });
            rules.truncate(RULES_MAX);
        }
        Snapshot {
            version: env!("CARGO_PKG_VERSION").into(),
            at: clock.as_millis_ceil(),
            uptime_ms: millis_ceil(clock.since(app.started_at)),
            total: self.counts(now, false, |sample| Some(sample.total)),
            rules,
            other_rules,
            protocols: self.protocols(now),
            latency: self.0.back().and_then(|before| quantiles(&now.latency.since(&before.latency))),
            keys: app.limiter.store().memory_stats().map(|memory| Keys {
                live: memory.live,
                max: app.fixed().store.max_keys,
                refused: memory.refused,
                pooled: memory.pooled,
            }),
            memory: resident::memory_use(),
            store: StoreHealth {
                kind: app.limiter.store().kind().into(),
                down: app.limiter.store().failure(),
                errors: stats.store_errors,
                degraded_ms: millis_ceil(app.decisions.outages.total()),
            },
            heaviest: top(app.decisions.top.heaviest(TOP, clock)),
            most_denied: top(app.decisions.top.most_denied(TOP, clock)),
        }
    }

    fn rules(&self, rules: &[Rule], now: &Sample) -> Vec<LiveRule> {
        let live = |rule: &Rule| LiveRule {
            rule: rule.name().as_str().into(),
            shadow: rule.is_shadow(),
            limits: rule.limits().iter().map(Limit::to_string).collect(),
            counts: self.counts(now, rule.is_shadow(), |sample| sample.rules.get(&rule.name()).copied()),
        };
        rules.iter().map(live).collect()
    }

    /// The counts that `of` finds in samples, and their rates. A rule that is new has none before.
    fn counts(&self, now: &Sample, is_shadow: bool, of: impl Fn(&Sample) -> Option<Counts>) -> LiveCounts {
        let counts = of(now).unwrap_or_default();
        let first = self.0.iter().find_map(&of).unwrap_or(counts);
        let minute = since(&counts, &first);
        let per_second = self.0.back().and_then(|before| {
            let last = since(&counts, &of(before)?);
            let each = |count: u64| per_second(count, before.at, now.at);
            Some(Frequency {
                allowed: each(last.allowed),
                denied: each(last.denied),
                shadow_denied: each(last.shadow_denied),
                degraded: each(last.degraded),
            })
        });
        // Of a shadow, what it would have denied.
        let Counts { allowed, shadow_denied, .. } = minute;
        let shadow =
            Counts { denied: shadow_denied, allowed: allowed.saturating_sub(shadow_denied), ..minute };
        let rejected = if is_shadow { shadow } else { minute };
        let Counts { allowed, denied, shadow_denied, degraded, warned } = counts;
        let rejection_rate = rejected.rejection_rate();
        LiveCounts { allowed, denied, shadow_denied, degraded, warned, rejection_rate, per_second }
    }

    fn protocols(&self, now: &Sample) -> Vec<LiveProtocol> {
        let protocol = |(index, (name, requests)): (usize, &(&str, u64))| LiveProtocol {
            protocol: (*name).into(),
            requests: *requests,
            per_second: self.0.back().and_then(|before| {
                let (_, earlier) = before.protocols.get(index)?;
                Some(per_second(requests.saturating_sub(*earlier), before.at, now.at))
            }),
        };
        now.protocols.iter().enumerate().map(protocol).collect()
    }
}

/// The counts since `before`.
const fn since(now: &Counts, before: &Counts) -> Counts {
    Counts {
        allowed: now.allowed.saturating_sub(before.allowed),
        denied: now.denied.saturating_sub(before.denied),
        shadow_denied: now.shadow_denied.saturating_sub(before.shadow_denied),
        degraded: now.degraded.saturating_sub(before.degraded),
        warned: now.warned.saturating_sub(before.warned),
    }
}

#[expect(clippy::cast_precision_loss, reason = "a rate for people")]
fn per_second(count: u64, since: Timestamp, now: Timestamp) -> f64 {
    let seconds = now.since(since).as_secs_f64();
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

/// The quantiles of a histogram, in microseconds; `None` if it is empty.
fn quantiles(histogram: &Histogram) -> Option<Quantiles> {
    let micros = |share| histogram.quantile(share).map(|seconds| seconds * 1e6);
    Some(Quantiles { p50: micros(0.5)?, p99: micros(0.99)? })
}

impl From<TopClient> for TopRow {
    fn from(TopClient { client, rule, at_least, at_most, .. }: TopClient) -> Self {
        Self { client, rule: rule.map(ToOwned::to_owned), at_least, at_most }
    }
}
