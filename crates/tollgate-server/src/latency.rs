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
        let bound = |index: usize| match u32::try_from(index).unwrap_or(LAST) + FIRST {
            power @ ..=LAST => 2_f64.powi(i32::try_from(power).unwrap_or(0)) / 1e9,
            _ => f64::INFINITY,
        };
        let counts = self.buckets.iter().enumerate();
        let buckets: Vec<(f64, u64)> =
            counts.map(|(index, count)| (bound(index), count.load(Ordering::Relaxed))).collect();
        let all = buckets.iter().map(|(_, count)| count).sum();
        let seconds = Duration::from_nanos(self.sum_ns.load(Ordering::Relaxed)).as_secs_f64();
        (seconds, all, buckets)
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
        latency.observe(Duration::from_nanos(3_000), 3);
        latency.observe(Duration::from_nanos(3_000), 0);
        assert_eq!(latency.read().2[2].1, 4);
    }
}
