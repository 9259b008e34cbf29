//! The blocks that are in force, as far as their keys can be read.

use redis::Value;
use tollgate::{StoreError, Timestamp};

use crate::RedisStore;
use crate::connection::in_words;
use crate::key::read_name;

/// The text of a cell: a log's stands at the head of its list.
const TEXT: &str = "local kind = redis.call('TYPE', KEYS[1]).ok \
    if kind == 'string' then return redis.call('GET', KEYS[1]) end \
    return kind == 'list' and redis.call('LINDEX', KEYS[1], 0) or ''";

/// A budget on which everything is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocked {
    /// The rule whose budget it is.
    pub rule: String,
    /// The value that the rule counts by.
    pub value: String,
    /// When the block ends.
    pub until: Timestamp,
}

impl RedisStore {
    /// Blocks of budgets that are counted by one value, at most so many: every key is looked at.
    ///
    /// # Errors
    /// Why Redis could not be asked.
    pub async fn blocks(&self, most: usize, now: Timestamp) -> Result<Vec<Blocked>, StoreError> {
        let (link, prefix) = self.link_and_prefix();
        let mut blocks: Vec<Blocked> = Vec::new();
        let is_wanted = |name: &str| matches!(read_name(prefix, name), Some((_, Some(_))));
        let text = |name: &str| redis::cmd("EVAL").arg(TEXT).arg(1).arg(name).take();
        let asked = link.spare().await?.ask_every(prefix, is_wanted, text, |name, answer| {
            if let (Some((rule, Some(value))), Some(until)) = (read_name(prefix, name), blocked_until(answer))
                && until > now
                && !blocks.iter().any(|known| known.rule == rule && known.value == value)
            {
                blocks.push(Blocked { rule: rule.to_owned(), value, until });
            }
            blocks.len() < most
        });
        asked.await.map_err(|error| StoreError::Unavailable { reason: in_words(&error) })?;
        Ok(blocks)
    }
}

/// When the block of a cell ends: `limit|state|set until|reservations`.
fn blocked_until(answer: &Value) -> Option<Timestamp> {
    let Value::BulkString(bytes) = answer else { return None };
    let block = std::str::from_utf8(bytes).ok()?.split('|').nth(2)?;
    let micros: u64 = block.rsplit(' ').next()?.parse().ok()?;
    Some(Timestamp::from_nanos(micros.saturating_mul(1_000)))
}
