//! Eviction in Redis, noticed: an evicted key is a fresh budget.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::timeout;
use tollgate::SECOND;
use tollgate_redis::Eviction;
use tracing::{debug, warn};

use super::App;

/// How long Redis may take to answer.
const TIMEOUT: Duration = SECOND;

/// What Redis said last. `None` as long as it was not asked, or refuses `INFO`.
#[derive(Debug, Default)]
pub(crate) struct EvictionWatch(Mutex<Option<Eviction>>);

/// What an operator has to know.
#[derive(Debug, PartialEq, Eq)]
struct News {
    /// A policy that evicts, if it was not known.
    policy: Option<String>,
    /// Keys that were evicted since the last time.
    evicted: u64,
}

impl EvictionWatch {
    /// The keys that Redis evicted since its start, if it says so.
    pub(crate) fn evicted_keys(&self) -> Option<u64> {
        self.lock().as_ref().map(|known| known.evicted_keys)
    }

    fn note(&self, eviction: Eviction) -> News {
        let mut known = self.lock();
        let before = known.as_ref();
        let is_new = before.is_none_or(|before| before.policy != eviction.policy);
        let policy = (is_new && eviction.evicts()).then(|| eviction.policy.clone());
        // What was evicted before the first time may be older than this server.
        let evicted = before.map_or(0, |before| eviction.evicted_keys.saturating_sub(before.evicted_keys));
        *known = Some(eviction);
        News { policy, evicted }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Eviction>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl App {
    /// Asks Redis about eviction, if it is the store, and logs what is new.
    pub(crate) async fn watch_eviction(&self) {
        let Some(redis) = self.limiter.store().as_redis() else { return };
        let eviction = match timeout(TIMEOUT, redis.eviction()).await {
            Ok(Ok(eviction)) => eviction,
            Ok(Err(error)) => return debug!(%error, "Redis does not say whether it evicts keys"),
            Err(_) => return debug!("Redis did not say in time whether it evicts keys"),
        };
        let News { policy, evicted } = self.eviction.note(eviction);
        if let Some(policy) = policy {
            warn!(
                policy,
                "Redis may evict keys that are in use, and an evicted key is a fresh budget; set \
                 maxmemory-policy noeviction"
            );
        }
        if evicted > 0 {
            warn!(evicted, "Redis evicted keys: each one of this server's is a fresh budget");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_evicts_and_evicted_keys_are_news_once() {
        let watch = EvictionWatch::default();
        assert_eq!(watch.evicted_keys(), None);
        let note = |policy: &str, evicted_keys| watch.note(Eviction::new(policy, evicted_keys));
        let news = |policy: Option<&str>, evicted| News { policy: policy.map(str::to_owned), evicted };
        assert_eq!(note("noeviction", 7), news(None, 0));
        assert_eq!(note("allkeys-lru", 7), news(Some("allkeys-lru"), 0));
        assert_eq!(note("allkeys-lru", 9), news(None, 2));
        assert_eq!(note("noeviction", 9), news(None, 0));
        assert_eq!(note("allkeys-lru", 0), news(Some("allkeys-lru"), 0), "Redis was started again");
        assert_eq!(watch.evicted_keys(), Some(0));
    }
}
