//! The blocks in force, of budgets whose keys name one value.

use redis::{RedisResult, Value, from_redis_value};
use tollgate::{StoreError, Timestamp};

use crate::RedisStore;
use crate::connection::{Connection, error_text};
use crate::key::parse_name;
use crate::script::TimeSource;

/// A script that reads the text of a cell: a string, or the first element of a log's list.
const READ_CELL: &str = "local kind = redis.call('TYPE', KEYS[1]).ok \
    if kind == 'string' then return redis.call('GET', KEYS[1]) end \
    return kind == 'list' and redis.call('LINDEX', KEYS[1], 0) or ''";

/// The blocks in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocks {
    /// When they were listed, by the clock that decides how long they last.
    pub now: Timestamp,
    /// In no particular order.
    pub blocks: Vec<Blocked>,
}

/// A budget with a block.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocked {
    /// The rule of the budget.
    pub rule: String,
    /// The value that the budget is keyed by.
    pub value: String,
    /// When the block ends.
    pub until: Timestamp,
}

impl RedisStore {
    /// The blocks of budgets that are keyed by one value, at most `max` of them. Scans every key.
    /// `now` is the time under [`callers_clock`](crate::RedisStoreBuilder::callers_clock) only.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if Redis cannot be asked.
    pub async fn blocks(&self, max: usize, now: Timestamp) -> Result<Blocks, StoreError> {
        let (link, prefix) = self.link_and_prefix();
        let unavailable = |error| StoreError::Unavailable { reason: error_text(&error) };
        let mut connection = link.admin_connection().await?;
        let now = match self.time_source() {
            TimeSource::Server => connection.time().await.map_err(unavailable)?,
            TimeSource::Caller(_) => now,
        };
        let mut blocks: Vec<Blocked> = Vec::new();
        let is_keyed_by_one_value = |name: &str| matches!(parse_name(prefix, name), Some((_, Some(_))));
        let read_cell = |name: &str| redis::cmd("EVAL").arg(READ_CELL).arg(1).arg(name).take();
        let scan = connection.for_each_key(prefix, is_keyed_by_one_value, read_cell, |name, answer| {
            if let (Some((rule, Some(value))), Some(until)) =
                (parse_name(prefix, name), blocked_until(answer))
                && until > now
                && !blocks.iter().any(|known| known.rule == rule && known.value == value)
            {
                blocks.push(Blocked { rule: rule.to_owned(), value, until });
            }
            blocks.len() < max
        });
        scan.await.map_err(unavailable)?;
        Ok(Blocks { now, blocks })
    }
}

impl Connection {
    /// The time of the server; of a Cluster, that of one master.
    async fn time(&mut self) -> RedisResult<Timestamp> {
        let node = self.masters().await?.swap_remove(0);
        let answers = self.send_to(&node, vec![redis::cmd("TIME").take()]).await?;
        let answer = answers.into_iter().next().unwrap_or(Value::Nil);
        let (seconds, micros): (u64, u64) = from_redis_value(answer)?;
        let micros = seconds.saturating_mul(1_000_000).saturating_add(micros);
        Ok(Timestamp::from_nanos(micros.saturating_mul(1_000)))
    }
}

/// When the block of a cell ends: `limit|state|set until excess|holds`.
fn blocked_until(answer: &Value) -> Option<Timestamp> {
    let Value::BulkString(bytes) = answer else { return None };
    let block = std::str::from_utf8(bytes).ok()?.split('|').nth(2)?;
    let micros: u64 = block.split(' ').nth(1)?.parse().ok()?;
    Some(Timestamp::from_nanos(micros.saturating_mul(1_000)))
}
