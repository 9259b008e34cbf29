//! A scan over every key of a prefix, page by page, for administrators.
//!
//! It is paced by what it costs: after each page it rests for as long as the page took, so that it
//! has at most half of a Redis that is idle, and less of one that is busy, because its pages take
//! longer there. A key that is written during the scan may be missed.

use std::collections::HashSet;
use std::time::Duration;

use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, Value, from_redis_value};
use tollgate::{Clock as _, SECOND, TokioClock};

use crate::connection::{Connection, with_timeout};

/// Keys that Redis visits for one page: some 50 microseconds.
const SCAN_COUNT: usize = 100;
/// The longest that a page may take.
pub(crate) const PAGE_TIMEOUT: Duration = Duration::from_secs(10);
/// The shortest rest. Shorter ones are added up: a timer has milliseconds.
const REST_MIN: Duration = Duration::from_millis(2);

/// The longest rest after one page.
const REST_MAX: Duration = SECOND;

/// Rests after work, for as long as the work took.
#[derive(Default)]
struct Pace {
    owed: Duration,
}

impl Pace {
    /// The rest that is due after work that took so long.
    fn rest_after(&mut self, took: Duration) -> Option<Duration> {
        self.owed = self.owed.saturating_add(took.min(REST_MAX));
        (self.owed >= REST_MIN).then(|| std::mem::take(&mut self.owed))
    }
}

impl Connection {
    /// Sends `command` for every key that `is_wanted` selects. Passes the number of keys seen and
    /// the answers of each page to `each`.
    pub(crate) async fn for_each_key(
        mut self,
        prefix: &str,
        is_wanted: impl Fn(&str) -> bool,
        command: impl Fn(&str) -> Cmd,
        mut each: impl FnMut(usize, &[Value]),
    ) -> RedisResult<()> {
        let pattern = format!("{}:{{*", glob_escaped(prefix));
        let mut pace = Pace::default();
        for node in self.masters().await? {
            let mut cursor = 0_u64;
            loop {
                let began = TokioClock.now();
                let scan = redis::cmd("SCAN")
                    .arg(cursor)
                    .arg("MATCH")
                    .arg(&pattern)
                    .arg("COUNT")
                    .arg(SCAN_COUNT)
                    .take();
                let page = self.send_to(&node, vec![scan]).await?.into_iter().next().unwrap_or(Value::Nil);
                let (next, names): (u64, Vec<String>) = from_redis_value(page)?;
                let wanted = names.iter().filter(|name| is_wanted(name));
                let commands: Vec<Cmd> = wanted.map(|name| command(name)).collect();
                let answers =
                    if commands.is_empty() { Vec::new() } else { self.send_to(&node, commands).await? };
                each(names.len(), &answers);
                cursor = next;
                if cursor == 0 {
                    break;
                }
                let now = TokioClock.now();
                if let Some(rest) = pace.rest_after(now.since(began)) {
                    TokioClock.sleep_until(now.saturating_add(rest)).await;
                }
            }
        }
        Ok(())
    }

    /// Every master. A Cluster client skips masters that it is not connected to, so the nodes that
    /// answer are compared with those that the Cluster has.
    pub(crate) async fn masters(&mut self) -> RedisResult<Vec<SingleNodeRoutingInfo>> {
        let Self::Cluster(connection) = self else { return Ok(vec![SingleNodeRoutingInfo::Random]) };
        let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let slots = redis::cmd("CLUSTER").arg("SLOTS").take();
        parse_masters(connection.route_command(slots, all).await?)
    }

    /// Sends commands to one node in a pipeline, each once. A single server is the only node.
    ///
    /// # Errors
    /// The first error of any, and if they take longer than an administrator should wait for a
    /// page.
    pub(crate) async fn send_to(
        &mut self,
        node: &SingleNodeRoutingInfo,
        commands: Vec<Cmd>,
    ) -> RedisResult<Vec<Value>> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        let count = commands.len();
        commands.into_iter().for_each(|command| {
            pipeline.add_command(command);
        });
        let sent = async {
            match self {
                Self::Cluster(connection) => {
                    let answers = connection.route_pipeline(pipeline, 0, count, node.clone()).await?;
                    answers.into_iter().map(Value::extract_error).collect()
                }
                Self::Server(connection) => pipeline.query_async(connection).await,
            }
        };
        with_timeout("an administrative command", PAGE_TIMEOUT, sent).await
    }
}

/// The nodes that answered `CLUSTER SLOTS`, by their addresses.
///
/// # Errors
/// If an answer cannot be read, or if the answers name a master that did not answer.
fn parse_masters(answers: Value) -> RedisResult<Vec<SingleNodeRoutingInfo>> {
    let answers: Vec<(String, Vec<Vec<Value>>)> = from_redis_value(answers)?;
    let (mut nodes, mut ids) = (Vec::new(), HashSet::new());
    for (address, ranges) in answers {
        let (host, port) = address.rsplit_once(':').ok_or_else(|| unreadable(&address))?;
        let port = port.parse().map_err(|_| unreadable(&address))?;
        nodes.push(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port });
        for range in ranges {
            // First slot, last slot, master, replicas.
            let master = range.into_iter().nth(2).unwrap_or(Value::Nil);
            // Host, port, id.
            let id = from_redis_value::<Vec<Value>>(master)?.into_iter().nth(2).unwrap_or(Value::Nil);
            ids.insert(from_redis_value::<String>(id)?);
        }
    }
    if nodes.is_empty() || nodes.len() < ids.len() {
        let (answered, all) = (nodes.len(), ids.len());
        let detail = format!("{answered} of {all}; check CLUSTER NODES, and try again when all are up");
        return Err((ErrorKind::ClusterConnectionNotFound, "not every master answered", detail).into());
    }
    Ok(nodes)
}

fn unreadable(address: &str) -> RedisError {
    let detail = format!("{address:?}; announce each node as host:port (cluster-announce-ip)");
    (ErrorKind::UnexpectedReturnType, "a master's address cannot be read", detail).into()
}

/// Escapes a text for a glob pattern.
fn glob_escaped(text: &str) -> String {
    let special = |letter| matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    text.chars().flat_map(|letter| special(letter).then_some('\\').into_iter().chain([letter])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer to `CLUSTER SLOTS` from `address`, which names these masters.
    fn answer(address: &str, ids: &[&str]) -> (Value, Value) {
        let text = |text: &str| Value::BulkString(text.into());
        let master = |id: &&str| Value::Array(vec![text("::1"), Value::Int(7000), text(id)]);
        let range = |id| Value::Array(vec![Value::Int(0), Value::Int(1), master(id)]);
        (text(address), Value::Array(ids.iter().map(range).collect()))
    }

    #[test]
    fn a_scan_rests_for_as_long_as_its_pages_take() {
        let mut pace = Pace::default();
        let micros = Duration::from_micros;
        let rests = [500, 500, 999, 1, 4_000].map(|took| pace.rest_after(micros(took)));
        assert_eq!(rests, [None, None, None, Some(micros(2_000)), Some(micros(4_000))]);
        assert_eq!(pace.rest_after(60 * SECOND), Some(SECOND));
    }

    #[test]
    fn a_master_that_cannot_be_addressed_is_an_error() {
        let masters = |answers: Vec<_>| parse_masters(Value::Map(answers)).map(|nodes| nodes.len());
        assert_eq!(masters(vec![answer("::1:7000", &["a", "b"]), answer("host:7001", &["b", "a"])]), Ok(2));
        for unreadable in ["host", "host:", "host:port", "host:70000"] {
            let error = masters(vec![answer("host:1", &["a"]), answer(unreadable, &["a"])]).unwrap_err();
            assert!(error.to_string().contains("cluster-announce-ip"), "{error}");
        }
        assert!(masters(vec![answer("host:1", &["a", "b"])]).is_err(), "b did not answer");
        assert!(masters(vec![]).is_err() && parse_masters(Value::Okay).is_err());
        assert!(masters(vec![(Value::BulkString("host:1".into()), Value::Okay)]).is_err());
    }
}
