//! A scan over every key of a prefix, page by page, for administrators. It does not block traffic.
//! A key that is written during the scan may be missed.

use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, Pipeline, RedisResult, Value, from_redis_value};

use crate::connection::Connection;

/// Keys that Redis visits per SCAN.
const SCAN_COUNT: usize = 1_000;

/// A master of a Cluster; `None` for a single server.
type Node = Option<SingleNodeRoutingInfo>;

impl Connection {
    /// Sends `command` for every key that `is_wanted` selects, and passes the key's name and the
    /// answer to `each`, until that returns false.
    pub(crate) async fn for_each_key(
        mut self,
        prefix: &str,
        is_wanted: impl Fn(&str) -> bool,
        command: impl Fn(&str) -> Cmd,
        mut each: impl FnMut(&str, &Value) -> bool,
    ) -> RedisResult<()> {
        let pattern = format!("{}:{{*", glob_escaped(prefix));
        for node in self.masters().await? {
            let mut cursor = 0_u64;
            loop {
                let scan = redis::cmd("SCAN")
                    .arg(cursor)
                    .arg("MATCH")
                    .arg(&pattern)
                    .arg("COUNT")
                    .arg(SCAN_COUNT)
                    .take();
                let page = self.send_to(&node, vec![scan]).await?.into_iter().next().unwrap_or(Value::Nil);
                let (next, names): (u64, Vec<String>) = from_redis_value(page)?;
                let wanted: Vec<String> = names.into_iter().filter(|name| is_wanted(name)).collect();
                let commands: Vec<Cmd> = wanted.iter().map(|name| command(name)).collect();
                let answers =
                    if commands.is_empty() { Vec::new() } else { self.send_to(&node, commands).await? };
                if !wanted.iter().zip(&answers).all(|(name, answer)| each(name, answer)) {
                    return Ok(());
                }
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    async fn masters(&mut self) -> RedisResult<Vec<Node>> {
        let Self::Cluster(connection) = self else { return Ok(vec![None]) };
        let all = RoutingInfo::MultiNode((MultipleNodeRoutingInfo::AllMasters, None));
        let answers = connection.route_command(redis::cmd("PING"), all).await?;
        let node = |(address, _): (Value, Value)| {
            let address: String = from_redis_value(address).ok()?;
            let (host, port) = address.rsplit_once(':')?;
            Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
        };
        match answers {
            Value::Map(answers) => Ok(answers.into_iter().map(node).filter(Option::is_some).collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// Sends commands to one node in a pipeline, each once.
    async fn send_to(&mut self, node: &Node, commands: Vec<Cmd>) -> RedisResult<Vec<Value>> {
        let mut pipeline = Pipeline::with_capacity(commands.len());
        let count = commands.len();
        commands.into_iter().for_each(|command| {
            pipeline.add_command(command);
        });
        match (self, node) {
            (Self::Cluster(connection), Some(node)) => {
                connection.route_pipeline(pipeline, 0, count, node.clone()).await
            }
            (Self::Cluster(_), None) => Ok(Vec::new()),
            (Self::Server(connection), _) => pipeline.query_async(connection).await,
        }
    }
}

/// Escapes a text for a glob pattern.
fn glob_escaped(text: &str) -> String {
    let special = |letter| matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    text.chars().flat_map(|letter| special(letter).then_some('\\').into_iter().chain([letter])).collect()
}
