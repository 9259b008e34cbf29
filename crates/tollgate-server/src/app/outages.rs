//! How long the store has been failing.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate::Timestamp;

/// Failures closer together than this belong to one outage.
const GAP: Duration = Duration::from_secs(10);

/// The time between the first and the last failure of each outage, summed.
#[derive(Debug, Default)]
pub(crate) struct Outages(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Timestamp>,
    total: Duration,
}

impl Outages {
    /// Notes a failure. Only failures take the lock.
    pub(super) fn failed(&self, now: Timestamp) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let since = state.last.map_or(Duration::MAX, |last| now.since(last));
        if since < GAP {
            state.total = state.total.saturating_add(since);
        }
        state.last = Some(now);
    }

    /// The sum.
    pub(crate) fn total(&self) -> Duration {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4_an_outage_lasts_from_its_first_to_its_last_failure() {
        let outages = Outages::default();
        let fail = |second| {
            outages.failed(Timestamp::from_secs(second));
            outages.total().as_secs()
        };
        assert_eq!([fail(100), fail(101), fail(109)], [0, 1, 9]);
        assert_eq!([fail(500), fail(505), fail(505)], [9, 14, 14], "another outage");
    }
}
