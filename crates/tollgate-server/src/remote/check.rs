//! `tollgate check`.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use tollgate::{Clock as _, SystemClock, Timestamp};

use super::{Remote, encoded};
use crate::moment::Moment;

/// The server's decision.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckResult {
    /// Whether the request is admitted.
    pub(crate) allowed: bool,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    #[serde(default)]
    reset_at: u64,
    /// Whether the decision was made without the store.
    #[serde(default)]
    degraded: bool,
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.allowed, self.retry_after_ms) {
            (true, _) => match self.remaining {
                Some(left) => write!(f, "allowed, {left} left"),
                None if self.degraded => f.write_str("allowed"),
                None => f.write_str("allowed, no rule covers it"),
            },
            (false, Some(wait)) => write!(f, "denied, try again in {:?}", Duration::from_millis(wait)),
            (false, None) if self.degraded => f.write_str("denied"),
            (false, None) if self.remaining.is_none() => f.write_str("denied, no rule covers it"),
            (false, None) => f.write_str("denied, the cost is more than the whole limit"),
        }?;
        let (reset, now) = (Timestamp::from_millis(self.reset_at), SystemClock.now());
        if reset > now && self.remaining.is_some() {
            write!(f, "; the limit is whole again at {}", Moment::new(reset, now))?;
        }
        if self.degraded { f.write_str(", without the store: it does not answer") } else { Ok(()) }
    }
}

/// Checks `cost` units of `client`.
///
/// # Errors
/// A sentence that says why there is no decision and what to do.
pub(crate) fn check(remote: &Remote, client: &str, cost: u64) -> Result<CheckResult, String> {
    let reply = remote.send("GET", &format!("/check/{}?cost={cost}", encoded(client)), None)?;
    remote.expect(&reply, &[200, 429, 503])
}
