//! Requests refused as overloaded: their callers, in the log.

use std::time::Duration;

use tollgate::Clock as _;
use tracing::warn;

use super::log_throttle::LogThrottle;
use super::{App, STOPWATCH};
use crate::caller::Sender;

/// At most one line per this span: an overload refuses thousands of requests.
const LOG_SPAN: Duration = Duration::from_secs(10);

/// Throttles the log.
#[derive(Debug)]
pub(super) struct OverloadLog(LogThrottle);

impl OverloadLog {
    pub(super) const fn new() -> Self {
        Self(LogThrottle::new(LOG_SPAN))
    }
}

impl App {
    /// Logs a request that was refused as overloaded, with its caller.
    pub(crate) fn refused_as_overloaded(&self, sender: &Sender) {
        if let Some(refused) = self.overload_log.0.count(STOPWATCH.now()) {
            warn!(
                caller = self.logged(&sender.name),
                refused,
                "requests were refused as overloaded, the last one of this caller; other callers are served"
            );
        }
    }
}
