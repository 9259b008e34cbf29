//! A lock-free latency histogram with buckets in powers of two.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The bound of the first bucket: 2^8 nanoseconds, a quarter of a microsecond.
const FIRST: u32 = 8;

/// The last finite bound: 2^31 nanoseconds, two seconds.
const LAST: u32 = 31;

const BUCKETS: usize = (LAST - FIRST + 2) as usize;

/// A latency histogram.
#[derive(Debug, Default)]
pub(crate) struct Latency {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
}

impl Latency {
    /// Records `count` operations that took `took` together, each about the same.
    pub(crate) fn observe(&self, took: Duration, count: usize) {
        let count = u64::try_from(count).unwrap_or(u64::MAX);
        let all_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let Some(nanos) = all_ns.checked_div(count) else { return };
        // The exponent of the next power of two.
        let power = u64::BITS - nanos.saturating_sub(1).leading_zeros();
        let index = usize::try_from(power.saturating_sub(FIRST)).unwrap_or(BUCKETS).min(BUCKETS - 1);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(count, Ordering::Relaxed);
        }
        self.sum_ns.fetch_add(all_ns, Ordering::Relaxed);
    }

    /// The sum in seconds, the count, and each bucket's upper bound and count.
    pub(crate) fn read(&self) -> (f64, u64, Vec<(f64, u64)>) {
        let histogram = self.histogram();
        let buckets = histogram.0.iter().enumerate().map(|(index, count)| (bound(index), *count)).collect();
        let seconds = Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64();
        (seconds, histogram.count(), buckets)
    }

    /// The counts so far.
    pub(crate) fn histogram(&self) -> Histogram {
        Histogram(self.buckets.each_ref().map(|count| count.load(Ordering::Relaxed)))
    }
}

/// The upper bound of a bucket, in seconds.
fn bound(index: usize) -> f64 {
    match u32::try_from(index).unwrap_or(LAST) + FIRST {
        power @ ..=LAST => 2_f64.powi(i32::try_from(power).unwrap_or(0)) / 1e9,
        _ => f64::INFINITY,
    }
}

/// The counts of a histogram at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Histogram([u64; BUCKETS]);

impl Histogram {
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The counts of both.
    pub(crate) fn plus(mut self, other: &Self) -> Self {
        self.0.iter_mut().zip(&other.0).for_each(|(count, more)| *count = count.saturating_add(*more));
        self
    }

    /// The counts since an earlier moment.
    pub(crate) fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        since.0.iter_mut().zip(&before.0).for_each(|(count, less)| *count = count.saturating_sub(*less));
        since
    }

    /// The upper bound of the bucket that a share of the observations does not exceed, in seconds.
    /// Beyond the last finite bound it is that bound. `None` without observations.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "a share of a count, for people"
    )]
    pub(crate) fn quantile(&self, share: f64) -> Option<f64> {
        let rank = ((self.count() as f64 * share).ceil() as u64).max(1);
        let mut sum = 0;
        let index = self.0.iter().position(|count| {
            sum += count;
            sum >= rank
        })?;
        Some(bound(index.min(BUCKETS - 2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_equal_to_a_bound_is_in_its_bucket() {
        let latency = Latency::default();
        for nanos in [0, 1, 256, 257, 512, 1_000, 1 << 31, (1 << 31) + 1, u64::MAX / 4] {
            latency.observe(Duration::from_nanos(nanos), 1);
        }
        let (_, all, buckets) = latency.read();
        assert_eq!((all, buckets.len()), (9, BUCKETS));
        assert_eq!(buckets[0], (256e-9, 3));
        assert_eq!(buckets[1], (512e-9, 2));
        assert_eq!(buckets[2].1, 1);
        assert_eq!(buckets[BUCKETS - 2], (2_147_483_648e-9, 1));
        assert_eq!(buckets[BUCKETS - 1], (f64::INFINITY, 2));
        assert_eq!(latency.histogram().quantile(0.5), Some(512e-9), "the fifth of nine");
        assert_eq!(latency.histogram().quantile(1.0), Some(2_147_483_648e-9));
        assert_eq!(latency.histogram().since(&latency.histogram()).quantile(0.5), None);
        latency.observe(Duration::from_nanos(3_000), 3);
        latency.observe(Duration::from_nanos(3_000), 0);
        assert_eq!(latency.read().2[2].1, 4);
    }
}
