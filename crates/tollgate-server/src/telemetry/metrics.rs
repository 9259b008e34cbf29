//! The metrics of `/metrics` as OTLP.
//!
//! A name is the one of `/metrics` without the ending `_total`, which a collector that writes for
//! Prometheus adds again. So dashboards and alerts work with either.

use std::fmt;

use tollgate::Timestamp;

use super::otlp::{
    CUMULATIVE, Data, Gauge, Histogram, HistogramPoint, KeyValue, Metric, NumberPoint, Sum, int,
};
use crate::app::App;
use crate::latency::Latency;
use crate::metrics::{Exposition, Labels, PREFIX, collect};

/// All metrics at `now`.
pub(super) fn metrics(app: &App, now: Timestamp) -> Vec<Metric> {
    let mut points =
        Points { started_at: app.started_at.as_nanos(), now: now.as_nanos(), metrics: Vec::new() };
    // Writing to memory does not fail.
    let _ = collect(app, &mut points);
    points.metrics
}

struct Points {
    started_at: u64,
    now: u64,
    metrics: Vec<Metric>,
}

impl Points {
    fn numbers<'a>(&self, values: impl IntoIterator<Item = (Labels<'a>, u64)>) -> Vec<NumberPoint> {
        let point = |(labels, value): (Labels<'_>, u64)| NumberPoint {
            start_time_unix_nano: self.started_at,
            time_unix_nano: self.now,
            as_int: Some(int(value)),
            attributes: attributes(&labels),
        };
        values.into_iter().map(point).collect()
    }

    fn push(&mut self, name: &str, help: &str, unit: &str, data: Data) -> fmt::Result {
        let name = format!("{PREFIX}_{name}");
        self.metrics.push(Metric { name, description: help.into(), unit: unit.into(), data: Some(data) });
        Ok(())
    }
}

impl Exposition for Points {
    fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        counts: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) -> fmt::Result {
        let points = self.numbers(counts);
        self.push(name, help, "", Data::Sum(Sum { points, temporality: CUMULATIVE, is_monotonic: true }))
    }

    fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) -> fmt::Result {
        let points = self.numbers(values);
        self.push(name, help, "", Data::Gauge(Gauge { points }))
    }

    fn histogram<'a, 'l>(
        &mut self,
        name: &str,
        help: &str,
        latencies: impl IntoIterator<Item = (Labels<'a>, &'l Latency)>,
    ) -> fmt::Result {
        let point = |(labels, latency): (Labels<'a>, &Latency)| {
            let (sum, count, buckets) = latency.read();
            HistogramPoint {
                start_time_unix_nano: self.started_at,
                time_unix_nano: self.now,
                count,
                sum: Some(sum),
                explicit_bounds: buckets
                    .iter()
                    .map(|(bound, _)| *bound)
                    .filter(|at| at.is_finite())
                    .collect(),
                bucket_counts: buckets.into_iter().map(|(_, count)| count).collect(),
                attributes: attributes(&labels),
            }
        };
        let points = latencies.into_iter().map(point).collect();
        self.push(name, help, "s", Data::Histogram(Histogram { points, temporality: CUMULATIVE }))
    }
}

fn attributes(labels: &Labels<'_>) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| KeyValue::text(name, value)).collect()
}
