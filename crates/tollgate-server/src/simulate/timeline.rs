//! Counts over time, in bounded memory: buckets widen as the log gets longer.

use std::time::Duration;

use tollgate::Timestamp;

/// The most buckets: a day by the minute.
pub(super) const BUCKETS_MAX: usize = 1_440;

/// The widths of buckets in seconds. Each is a multiple of the one before.
const WIDTHS: [u64; 10] = [1, 5, 15, 60, 300, 900, 3_600, 10_800, 21_600, 86_400];

/// Counts in buckets of equal width. Timelines that are given the same times have the same buckets.
#[derive(Clone, Debug)]
pub(super) struct Timeline {
    /// Seconds of a bucket.
    width: u64,
    /// The number of the first bucket since the epoch.
    first: u64,
    counts: Vec<u64>,
}

impl Timeline {
    pub(super) const fn new() -> Self {
        Self { width: WIDTHS[0], first: 0, counts: Vec::new() }
    }

    /// Adds to the bucket of `time`, which is at or after every earlier time. A count of 0 still
    /// makes the bucket.
    pub(super) fn add(&mut self, time: Timestamp, count: u64) {
        let seconds = time.as_nanos() / 1_000_000_000;
        if self.counts.is_empty() {
            self.first = seconds / self.width;
        }
        let index = loop {
            let index = self.index(seconds);
            if index < BUCKETS_MAX {
                break index;
            }
            self.widen();
        };
        if index >= self.counts.len() {
            self.counts.resize(index + 1, 0);
        }
        if let Some(bucket) = self.counts.get_mut(index) {
            *bucket += count;
        }
    }

    /// The bucket of a time, if there is one.
    pub(super) fn bucket(&self, time: Timestamp) -> Option<usize> {
        let index = self.index(time.as_nanos() / 1_000_000_000);
        (index < self.counts.len()).then_some(index)
    }

    pub(super) fn start(&self) -> Timestamp {
        Timestamp::from_secs(self.first.saturating_mul(self.width))
    }

    pub(super) const fn width(&self) -> Duration {
        Duration::from_secs(self.width)
    }

    pub(super) fn counts(&self) -> &[u64] {
        &self.counts
    }

    fn index(&self, seconds: u64) -> usize {
        usize::try_from((seconds / self.width).saturating_sub(self.first)).unwrap_or(usize::MAX)
    }

    fn widen(&mut self) {
        let wider = WIDTHS.into_iter().find(|width| *width > self.width).unwrap_or(self.width * 2);
        let first = self.first * self.width / wider;
        let mut counts = Vec::new();
        for (number, count) in (self.first..).zip(&self.counts) {
            let index = usize::try_from(number * self.width / wider - first).unwrap_or(usize::MAX);
            if index >= counts.len() {
                counts.resize(index + 1, 0);
            }
            if let Some(bucket) = counts.get_mut(index) {
                *bucket += count;
            }
        }
        (self.width, self.first, self.counts) = (wider, first, counts);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_widen_and_no_count_is_lost() {
        let (mut timeline, mut quiet) = (Timeline::new(), Timeline::new());
        for second in 0..100_000 {
            timeline.add(Timestamp::from_secs(1_000_007 + second), 1);
            quiet.add(Timestamp::from_secs(1_000_007 + second), 0);
        }
        assert_eq!(timeline.counts().iter().sum::<u64>(), 100_000);
        assert_eq!(timeline.width(), Duration::from_secs(300));
        assert_eq!((timeline.counts()[0], timeline.counts()[1]), (193, 300), "aligned to the clock");
        assert_eq!(timeline.start(), Timestamp::from_secs(999_900));
        assert_eq!((quiet.width(), quiet.counts().len()), (timeline.width(), timeline.counts().len()));
    }

    #[test]
    fn the_longest_log_has_bounded_buckets() {
        let mut timeline = Timeline::new();
        timeline.add(Timestamp::EPOCH, 1);
        timeline.add(Timestamp::MAX, 1);
        assert!(timeline.counts().len() <= BUCKETS_MAX);
        assert_eq!(timeline.counts().iter().sum::<u64>(), 2);
    }
}
