//! The metrics in the OpenMetrics text format, for Prometheus.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::families::{Exposition, Labels, PREFIX, collect};
use crate::app::App;
use crate::latency::Latency;

/// All metrics in the OpenMetrics text format.
pub(crate) fn render(app: &Arc<App>) -> String {
    let mut registry = Registry::with_prefix(PREFIX);
    registry.register_collector(Box::new(Scrape(Arc::clone(app))));
    let mut text = String::new();
    // Writing to memory does not fail.
    let _ = prometheus_client::encoding::text::encode(&mut text, &registry);
    text
}

#[derive(Debug)]
struct Scrape(Arc<App>);

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        collect(&self.0, &mut Text(encoder))
    }
}

/// The text being written.
struct Text<'a>(DescriptorEncoder<'a>);

impl Exposition for Text<'_> {
    fn counter<'a>(
        &mut self,
        name: &str,
        help: &str,
        counts: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter, counts, |mut metric, count| {
            metric.encode_counter::<NoLabelSet, _, u64>(&count, None)
        })
    }

    fn gauge<'a>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'a>, u64)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, values, |mut metric, value| metric.encode_gauge(&value))
    }

    fn histogram<'a, 'l>(
        &mut self,
        name: &str,
        help: &str,
        latencies: impl IntoIterator<Item = (Labels<'a>, &'l Latency)>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Histogram, latencies, |mut metric, latency| {
            let (sum, count, buckets) = latency.read();
            metric.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        })
    }
}

impl Text<'_> {
    /// A metric family: several labelled members, or one without labels.
    fn family<'a, T>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        members: impl IntoIterator<Item = (Labels<'a>, T)>,
        encode: impl Fn(MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in members {
            if labels.is_empty() {
                return encode(metric, value);
            }
            encode(metric.encode_family(&labels)?, value)?;
        }
        Ok(())
    }
}
