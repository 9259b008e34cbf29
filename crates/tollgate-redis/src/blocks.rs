//! The blocks in force, of budgets whose keys name one value.
//!
//! They are found by an index that the script writes together with the blocked rows, so listing
//! them costs what they are, however many keys there are. A Cluster has an index in every slot.

use std::collections::BTreeSet;

use redis::cluster_routing::{Route, SingleNodeRoutingInfo, SlotAddr};
use redis::{Cmd, ErrorKind, RedisError, RedisResult, Value, from_redis_value};
use tollgate::{StoreError, Timestamp};

use crate::RedisStore;
use crate::connection::{Connection, error_text, with_timeout};
use crate::key::{SLOTS, blocks_key, parse_name};
use crate::scan::PAGE_TIMEOUT;
use crate::script::{TimeSource, micros};

/// Lists a page of an index.
const LIST_BLOCKS: &str = include_str!("script/list_blocks.lua");

/// Entries of an index in one page: a tenth of a millisecond in Redis.
const PAGE: usize = 100;

/// Slots of a Cluster that are asked at once whether they have an index.
const SLOTS_PAGE: u16 = 512;

/// The blocks in force.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Blocks {
    /// When they were listed, by the clock that decides how long they last.
    pub now: Timestamp,
    /// In no particular order.
    pub blocks: Vec<Blocked>,
    /// Whether the index had room for every block. It has room for 100 000, in a Cluster for as
    /// many in each slot. A block beyond that holds, and is not listed.
    pub complete: bool,
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

/// A page of an index.
struct Page {
    /// The number of entries that the next page skips, if there is one.
    next: Option<u64>,
    is_complete: bool,
    /// The names of rows, and when their blocks end.
    ends: Vec<(String, Timestamp)>,
}

impl RedisStore {
    /// The blocks of budgets that are keyed by one value, at most `max` of them. Their number
    /// decides what that costs, not the number of keys. `now` is the time under
    /// [`callers_clock`](crate::RedisStoreBuilder::callers_clock) only.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] if Redis cannot be asked.
    pub async fn blocks(&self, max: usize, now: Timestamp) -> Result<Blocks, StoreError> {
        let (link, prefix) = self.link_and_prefix();
        let mut connection = link.admin_connection().await?;
        let listed = connection.list_blocks(prefix, max, self.time_source(), now).await;
        listed.map_err(|error| StoreError::Unavailable { reason: error_text(&error) })
    }
}

impl Connection {
    async fn list_blocks(
        &mut self,
        prefix: &str,
        max: usize,
        time: TimeSource,
        now: Timestamp,
    ) -> RedisResult<Blocks> {
        let now = match time {
            TimeSource::Server => self.time().await?,
            TimeSource::Caller(_) => now,
        };
        let mut listed = Blocks { now, blocks: Vec::new(), complete: true };
        // A rule may have several limits, each with a row.
        let mut known: BTreeSet<(String, String)> = BTreeSet::new();
        for index in self.block_indexes(prefix).await? {
            let mut next = Some(0);
            while let Some(skipped) = next.filter(|_| listed.blocks.len() < max) {
                let page = self.page_of_blocks(&index, now, skipped).await?;
                listed.complete &= page.is_complete;
                next = page.next;
                for (name, until) in page.ends {
                    let Some((rule, Some(value))) = parse_name(prefix, &name) else { continue };
                    if listed.blocks.len() < max && known.insert((rule.to_owned(), value.clone())) {
                        listed.blocks.push(Blocked { rule: rule.to_owned(), value, until });
                    }
                }
            }
        }
        Ok(listed)
    }

    /// The time of the server; of a Cluster, that of one master.
    async fn time(&mut self) -> RedisResult<Timestamp> {
        let answers = self.send_to(&master_of(0), vec![redis::cmd("TIME").take()]).await?;
        let answer = answers.into_iter().next().unwrap_or(Value::Nil);
        let (seconds, micros): (u64, u64) = from_redis_value(answer)?;
        Ok(timestamp(seconds.saturating_mul(1_000_000).saturating_add(micros)))
    }

    async fn page_of_blocks(&self, index: &str, now: Timestamp, skipped: u64) -> RedisResult<Page> {
        let mut list = redis::cmd("EVAL");
        list.arg(LIST_BLOCKS).arg(1).arg(index).arg(micros(now)).arg(skipped).arg(PAGE);
        let answer = with_timeout("listing blocks", PAGE_TIMEOUT, self.clone().send(&list)).await?;
        let values: Vec<Value> = from_redis_value(answer)?;
        let [next, missing, rows @ ..] = values.as_slice() else { return Err(too_short()) };
        let next: i64 = from_redis_value(next.clone())?;
        let missing: u8 = from_redis_value(missing.clone())?;
        let row = |[name, until]: &[Value; 2]| -> RedisResult<(String, Timestamp)> {
            Ok((from_redis_value(name.clone())?, timestamp(from_redis_value(until.clone())?)))
        };
        let ends = rows.as_chunks().0.iter().map(row).collect::<RedisResult<_>>()?;
        Ok(Page { next: u64::try_from(next).ok(), is_complete: missing == 0, ends })
    }

    /// The indexes of blocks: one, or those of a Cluster's slots that exist.
    async fn block_indexes(&mut self, prefix: &str) -> RedisResult<Vec<String>> {
        if matches!(self, Self::Server(_)) {
            return Ok(vec![blocks_key(prefix, None)]);
        }
        let mut indexes = Vec::new();
        for [first, last] in self.slot_ranges().await? {
            let slots: Vec<u16> = (first..=last).collect();
            for slots in slots.chunks(usize::from(SLOTS_PAGE)) {
                let names: Vec<String> = slots.iter().map(|slot| blocks_key(prefix, Some(*slot))).collect();
                let sizes = self.sizes(slots[0], &names).await?;
                let named = names.into_iter().zip(sizes);
                indexes.extend(named.filter(|(_, size)| *size > 0).map(|(name, _)| name));
            }
        }
        Ok(indexes)
    }

    /// The ranges of slots that a Cluster serves, first and last of each.
    ///
    /// # Errors
    /// If it does not serve every slot.
    async fn slot_ranges(&mut self) -> RedisResult<Vec<[u16; 2]>> {
        let ask = vec![redis::cmd("CLUSTER").arg("SLOTS").take()];
        let asked = self.send_to(&SingleNodeRoutingInfo::Random, ask).await?;
        let ranges: Vec<Vec<Value>> = from_redis_value(asked.into_iter().next().unwrap_or(Value::Nil))?;
        let ranges = ranges.iter().map(|range| bounds(range)).collect::<RedisResult<Vec<_>>>()?;
        let served: u32 = ranges.iter().map(|[first, last]| u32::from(last.abs_diff(*first)) + 1).sum();
        if served < u32::from(SLOTS) {
            let detail = format!("{served} of {SLOTS}; check CLUSTER SLOTS, and try again when all are");
            return Err((ErrorKind::ClusterConnectionNotFound, "not every slot is served", detail).into());
        }
        Ok(ranges)
    }

    /// The sizes of indexes in slots of one range, of which `first` is the first.
    async fn sizes(&mut self, first: u16, names: &[String]) -> RedisResult<Vec<u64>> {
        let all = self.send_to(&master_of(first), names.iter().map(|name| size(name)).collect()).await;
        let answers = match all {
            Ok(answers) => answers,
            // A slot has moved: each is asked where it is.
            Err(error) if error.redirect_node().is_some() => {
                let mut answers = Vec::with_capacity(names.len());
                for name in names {
                    let command = size(name);
                    let asked = self.clone().send(&command);
                    answers.push(with_timeout("listing blocks", PAGE_TIMEOUT, asked).await?);
                }
                answers
            }
            Err(error) => return Err(error),
        };
        Ok(answers.into_iter().map(from_redis_value).collect::<Result<_, _>>()?)
    }
}

/// The master of a slot. A single server is the only node.
fn master_of(slot: u16) -> SingleNodeRoutingInfo {
    SingleNodeRoutingInfo::SpecificNode(Route::new(slot, SlotAddr::Master))
}

fn size(index: &str) -> Cmd {
    redis::cmd("ZCARD").arg(index).take()
}

/// The first and the last slot of a range: `first last master replica…`.
fn bounds(range: &[Value]) -> RedisResult<[u16; 2]> {
    let [first, last, ..] = range else { return Err(too_short()) };
    Ok([from_redis_value(first.clone())?, from_redis_value(last.clone())?])
}

fn too_short() -> RedisError {
    (ErrorKind::UnexpectedReturnType, "an answer is too short").into()
}

fn timestamp(micros: u64) -> Timestamp {
    Timestamp::from_nanos(micros.saturating_mul(1_000))
}
