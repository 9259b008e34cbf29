//! Every key of a prefix, page by page: for administrators. Traffic goes on meanwhile; what is written
//! while a scan is under way may be seen or not.

use redis::cluster_routing::{MultipleNodeRoutingInfo, RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, Pipeline, RedisResult, Value, from_redis_value};

use crate::connection::Connection;

/// How many keys Redis looks at before it answers.
const PAGE: usize = 1_000;

/// One server, or one master of a Cluster.
type Node = Option<SingleNodeRoutingInfo>;

impl Connection {
    /// Asks `command` of every key that is wanted, and hands on its name and the answer, until `each`
    /// says that it is enough.
    pub(crate) async fn ask_every(
        mut self,
        prefix: &str,
        is_wanted: impl Fn(&str) -> bool,
        command: impl Fn(&str) -> Cmd,
        mut each: impl FnMut(&str, &Value) -> bool,
    ) -> RedisResult<()> {
        let pattern = format!("{}:{{*", escaped(prefix));
        for node in self.masters().await? {
            let mut cursor = 0_u64;
            loop {
                let scan =
                    redis::cmd("SCAN").arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PAGE).take();
                let page = self.ask_node(&node, vec![scan]).await?.into_iter().next().unwrap_or(Value::Nil);
                let (next, names): (u64, Vec<String>) = from_redis_value(page)?;
                let wanted: Vec<String> = names.into_iter().filter(|name| is_wanted(name)).collect();
                let commands: Vec<Cmd> = wanted.iter().map(|name| command(name)).collect();
                let answers =
                    if commands.is_empty() { Vec::new() } else { self.ask_node(&node, commands).await? };
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

    /// Sends commands to one node together, each once.
    async fn ask_node(&mut self, node: &Node, commands: Vec<Cmd>) -> RedisResult<Vec<Value>> {
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

/// A text that matches itself and nothing else.
fn escaped(text: &str) -> String {
    let special = |letter| matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^' | '-');
    text.chars().flat_map(|letter| special(letter).then_some('\\').into_iter().chain([letter])).collect()
}
