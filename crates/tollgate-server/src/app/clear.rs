//! The reset of a rule. One runs at a time: with Redis it looks at every key.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate::{Clock as _, Store as _, StoreError};
use tracing::{info, warn};

use super::{App, LogThrottle, STOPWATCH};

/// How often a reset that takes long is logged.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(5);

/// The rule that is being reset, if one is.
#[derive(Debug, Default)]
pub(super) struct Resetting(Mutex<Option<String>>);

/// Why a rule was not reset.
#[derive(Debug)]
pub(crate) enum ClearError {
    /// Another reset runs, that of this rule.
    Busy { rule: String },
    /// The store failed.
    Store(StoreError),
}

/// A reset that runs. When it is dropped, another may begin.
struct Reset<'a> {
    resetting: &'a Resetting,
    rule: &'a str,
    has_ended: bool,
}

impl Resetting {
    fn lock(&self) -> MutexGuard<'_, Option<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins a reset.
    ///
    /// # Errors
    /// [`ClearError::Busy`] if one runs.
    fn begin<'a>(&'a self, rule: &'a str) -> Result<Reset<'a>, ClearError> {
        let mut running = self.lock();
        if let Some(rule) = running.clone() {
            return Err(ClearError::Busy { rule });
        }
        *running = Some(rule.to_owned());
        Ok(Reset { resetting: self, rule, has_ended: false })
    }
}

impl Drop for Reset<'_> {
    fn drop(&mut self) {
        *self.resetting.lock() = None;
        if !self.has_ended {
            warn!(rule = self.rule, "the reset of a rule is unfinished: the connection was closed");
        }
    }
}

impl App {
    /// Removes the state of a rule. Returns the number of its keys. Calls `each` whenever there is
    /// progress.
    ///
    /// # Errors
    /// [`ClearError`].
    pub(crate) async fn clear(&self, rule: &str, each: impl Fn() + Send + Sync) -> Result<u64, ClearError> {
        let mut reset = self.resetting.begin(rule)?;
        let progress = LogThrottle::new(PROGRESS_INTERVAL);
        // The first line is due after one interval.
        progress.count(STOPWATCH.now());
        let store = self.limiter.store();
        let cleared = self.timed(async {
            let Some(redis) = store.as_redis() else { return store.clear(rule).await };
            redis
                .clear_with(rule, |done| {
                    each();
                    if progress.count(STOPWATCH.now()).is_some() {
                        info!(rule, seen = done.seen, removed = done.removed, "a rule is being reset");
                    }
                })
                .await
        });
        let cleared = cleared.await;
        reset.has_ended = true;
        let keys = cleared.map_err(|error| {
            self.limiter.store_failed(&error);
            ClearError::Store(error)
        })?;
        info!(rule, keys, "a rule was reset");
        Ok(keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_rule_is_reset_at_a_time() {
        let resetting = Resetting::default();
        let first = resetting.begin("one");
        let Err(ClearError::Busy { rule }) = resetting.begin("other") else { panic!("two at a time") };
        assert_eq!(rule, "one");
        drop(first);
        assert!(resetting.begin("other").is_ok());
    }
}
