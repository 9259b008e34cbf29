//! A connection, whatever is at its other end, and how one is made.
//!
//! A command is sent once. What no answer came to may have been executed, and a take that is executed twice is one too
//! many, so it is not sent again; what a Cluster's node *answered* it did not do (the key has moved, or is moving) is.

use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::sentinel::SentinelClient;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value,
};
use tokio::sync::Mutex;
use tokio::time::timeout;
use tollgate::{Clock as _, TokioClock};

/// How long a host may take to accept a connection, and to answer what is asked of it first.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(150);
/// How long making a connection may take in all. A Cluster is asked for its nodes, which are then connected to; one of
/// its hosts that hangs must not keep the others from being found.
const DIAL_TIMEOUT: Duration = Duration::from_millis(700);
/// How long a Cluster's connections wait for an answer. (A single server's does not time out by itself: callers do.)
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// How often a command follows where a Cluster's nodes send it.
const REDIRECTS: usize = 4;
/// How long a key takes to move, about.
const MOVING: Duration = Duration::from_millis(2);

#[derive(Clone)]
pub(crate) enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// How to get a connection.
pub(crate) enum Dialer {
    Single(Box<Client>),
    /// One for each Sentinel: all are asked at once for the master, each time anew, and the first that answers is
    /// believed.
    Sentinel(Vec<Mutex<SentinelClient>>),
    Cluster(Box<ClusterClient>),
}

impl Dialer {
    pub(crate) async fn dial(&self) -> RedisResult<Connection> {
        within(DIAL_TIMEOUT, self.connect()).await
    }

    async fn connect(&self) -> RedisResult<Connection> {
        let settings = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        Ok(match self {
            Self::Single(client) => {
                Connection::Server(client.get_multiplexed_async_connection_with_config(&settings).await?)
            }
            Self::Sentinel(clients) => {
                let ask = async |client: &Mutex<SentinelClient>| {
                    client.lock().await.get_async_connection_with_config(&settings).await
                };
                let asked = clients.iter().map(|client| Box::pin(ask(client)));
                Connection::Server(select_ok(asked).await?.0)
            }
            Self::Cluster(client) => Connection::Cluster(client.get_async_connection().await?),
        })
    }
}

impl Connection {
    /// Sends a command, once, and waits for its answer.
    pub(crate) async fn ask(self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(mut connection) => command.query_async(&mut connection).await,
            Self::Cluster(mut connection) => {
                let mut answer = command.query_async(&mut connection).await;
                for _ in 0..REDIRECTS {
                    let Err(error) = &answer else { break };
                    let ErrorKind::Server(kind) = error.kind() else { break };
                    answer = match (kind, target(error)) {
                        (ServerErrorKind::Moved, Some(node)) => {
                            connection.route_command(command.clone(), RoutingInfo::SingleNode(node)).await
                        }
                        (ServerErrorKind::Ask, Some(node)) => ask_there(&mut connection, command, node).await,
                        (ServerErrorKind::TryAgain, _) => {
                            TokioClock.sleep_until(TokioClock.now().saturating_add(MOVING)).await;
                            command.query_async(&mut connection).await
                        }
                        _ => break,
                    };
                }
                answer
            }
        }
    }
}

/// Where an error says that the key is.
fn target(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
}

/// Asks a node for a key that is on its way there.
async fn ask_there(
    connection: &mut ClusterConnection,
    command: &Cmd,
    node: SingleNodeRoutingInfo,
) -> RedisResult<Value> {
    let mut both = Pipeline::with_capacity(2);
    both.cmd("ASKING").add_command(command.clone());
    let answers = connection.route_pipeline(both, 0, 2, node).await?;
    answers.into_iter().next_back().unwrap_or(Value::Nil).extract_error()
}

pub(crate) async fn within<T>(span: Duration, work: impl Future<Output = RedisResult<T>>) -> RedisResult<T> {
    timeout(span, work).await.unwrap_or_else(|_| {
        Err(std::io::Error::new(std::io::ErrorKind::TimedOut, "it does not answer").into())
    })
}

/// The error as Redis itself puts it, if it is one of its own.
pub(crate) fn in_words(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

/// Whether the next request would fail the same way: then it is not worth trying.
pub(crate) fn is_lasting(error: &RedisError) -> bool {
    let states = [
        "LOADING",
        "READONLY",
        "OOM",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "NOAUTH",
        "NOPERM",
    ];
    match error.code() {
        Some(code) => states.contains(&code),
        None => error.is_io_error() || error.kind() == ErrorKind::ClusterConnectionNotFound,
    }
}
