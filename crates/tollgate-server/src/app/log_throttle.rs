//! Throttles log lines about frequent events: one line per span, with the number of events.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Timestamp;

/// Throttles one kind of log line.
#[derive(Debug)]
pub(crate) struct LogThrottle {
    span: Duration,
    /// Until this time, in nanoseconds, events are only counted.
    until: AtomicU64,
    unlogged: AtomicU64,
}

impl LogThrottle {
    /// At most one line per `span`.
    pub(crate) const fn new(span: Duration) -> Self {
        Self { span, until: AtomicU64::new(0), unlogged: AtomicU64::new(0) }
    }

    /// Counts an event. Returns the number since the last line if a line is due.
    pub(crate) fn count(&self, now: Timestamp) -> Option<u64> {
        let until = self.until.load(Ordering::Relaxed);
        let next = now.saturating_add(self.span).as_nanos();
        let due = now.as_nanos() >= until
            && self.until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let count = self.unlogged.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        due.then(|| {
            self.unlogged.fetch_sub(count, Ordering::Relaxed);
            count
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::SECOND;

    #[test]
    fn one_line_a_span_stands_for_all_since_the_last() {
        let throttle = LogThrottle::new(SECOND);
        let at = |millis: u64| {
            throttle.count(Timestamp::from_secs(1).saturating_add(Duration::from_millis(millis)))
        };
        assert_eq!(
            [at(0), at(1), at(999), at(1_000), at(1_001), at(5_000)],
            [Some(1), None, None, Some(3), None, Some(2)]
        );
    }
}
