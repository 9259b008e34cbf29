//! Log lines about what comes in thousands: one now and then, with how many it stands for.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::Timestamp;

/// How often something is logged at most.
#[derive(Debug)]
pub(crate) struct LogThrottle {
    span: Duration,
    /// Until this moment it is only counted.
    until: AtomicU64,
    untold: AtomicU64,
}

impl LogThrottle {
    /// At most once in a span.
    pub(crate) const fn new(span: Duration) -> Self {
        Self { span, until: AtomicU64::new(0), untold: AtomicU64::new(0) }
    }

    /// Counts one more, and says how many there were since the last line if it is time for one.
    pub(crate) fn count(&self, now: Timestamp) -> Option<u64> {
        let until = self.until.load(Ordering::Relaxed);
        let next = now.saturating_add(self.span).as_nanos();
        let told = now.as_nanos() >= until
            && self.until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let many = self.untold.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        told.then(|| {
            self.untold.fetch_sub(many, Ordering::Relaxed);
            many
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::SECOND;

    #[test]
    fn one_line_a_span_stands_for_all_since_the_last() {
        let quiet = LogThrottle::new(SECOND);
        let at =
            |millis: u64| quiet.count(Timestamp::from_secs(1).saturating_add(Duration::from_millis(millis)));
        assert_eq!(
            [at(0), at(1), at(999), at(1_000), at(1_001), at(5_000)],
            [Some(1), None, None, Some(3), None, Some(2)]
        );
    }
}
