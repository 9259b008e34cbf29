//! Eviction: whether Redis drops keys that are in use when its memory is full.

use redis::{RedisResult, Value, from_redis_value};
use tollgate::StoreError;

use crate::RedisStore;
use crate::connection::{Connection, error_text};

/// The policy under which nothing is evicted.
const NO_EVICTION: &str = "noeviction";

/// What Redis says about eviction. In a Cluster, of all masters together.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Eviction {
    /// The `maxmemory-policy`; of several, one that evicts.
    pub policy: String,
    /// Keys that were evicted since Redis started. An evicted key is a fresh budget.
    pub evicted_keys: u64,
}

impl Eviction {
    /// What a Redis with this policy says.
    #[must_use]
    pub fn new(policy: &str, evicted_keys: u64) -> Self {
        Self { policy: policy.into(), evicted_keys }
    }

    /// Whether the policy evicts keys.
    #[must_use]
    pub fn evicts(&self) -> bool {
        self.policy != NO_EVICTION
    }
}

impl RedisStore {
    /// Asks Redis about eviction, with `INFO`.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if Redis cannot be asked, or refuses.
    pub async fn eviction(&self) -> Result<Eviction, StoreError> {
        let (link, _) = self.link_and_prefix();
        let asked = link.admin_connection().await?.eviction().await;
        asked.map_err(|error| StoreError::Unavailable { reason: error_text(&error) })
    }
}

impl Connection {
    async fn eviction(mut self) -> RedisResult<Eviction> {
        let mut all = Eviction::new(NO_EVICTION, 0);
        for node in self.masters().await? {
            let sections = ["memory", "stats"].map(|section| redis::cmd("INFO").arg(section).take());
            let mut text = String::new();
            for answer in self.send_to(&node, sections.to_vec()).await? {
                text += &info_text(answer)?;
            }
            if let Some(policy) = field(&text, "maxmemory_policy").filter(|policy| *policy != NO_EVICTION) {
                policy.clone_into(&mut all.policy);
            }
            let evicted: Option<u64> = field(&text, "evicted_keys").and_then(|count| count.parse().ok());
            all.evicted_keys = all.evicted_keys.saturating_add(evicted.unwrap_or(0));
        }
        Ok(all)
    }
}

/// The text of an answer to INFO, which is a bulk string, or a verbatim one in RESP3.
fn info_text(answer: Value) -> RedisResult<String> {
    Ok(from_redis_value(answer)?)
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}
