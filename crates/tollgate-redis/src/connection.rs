//! Connections to one server or to a Cluster, and how they are dialled.
//!
//! A command is sent at most once on a connection. A command without an answer may have been
//! executed, and a take that is executed twice draws too much, so it is not retried, except on a
//! connection that broke while it was idle: see `link.rs`. A command that a Cluster node
//! *answered* with a redirect (the key has moved, or is moving) was not executed, and is retried.

use std::time::Duration;

use redis::aio::{ConnectionLike as _, MultiplexedConnection};
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{Cmd, ErrorKind, Pipeline, RedisError, RedisResult, ServerErrorKind, Value};
use tokio::time::timeout;
use tollgate::{Clock as _, TokioClock};

use crate::sentinel::{Address, Sentinels};
use crate::server::Server;

/// A dial as a whole may take this many connect timeouts: a Sentinel or a Cluster's seed names the
/// servers to connect to, and a seed that hangs must leave time for the others.
const CONNECTS_PER_DIAL: u32 = 4;
/// Minimum response timeout of a Cluster client. (A connection to a single server has none: callers
/// time out.)
pub(crate) const RESPONSE_TIMEOUT_MIN: Duration = Duration::from_secs(1);
/// Maximum number of Cluster redirects that a command follows.
const REDIRECTS_MAX: usize = 4;
/// The code of the answer to a probe whose commands are refused: see `probe.lua`.
const REFUSED: &str = "REFUSED";
/// Wait before a retry after TRYAGAIN: about as long as a key takes to migrate.
const TRY_AGAIN_DELAY: Duration = Duration::from_millis(2);

/// A multiplexed connection. Clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    Server(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Makes connections.
pub(crate) enum Dialer {
    Single(Server),
    Sentinel(Sentinels),
    Cluster(ClusterDialer),
}

pub(crate) struct ClusterDialer {
    pub(crate) client: ClusterClient,
    /// The servers of the URL.
    pub(crate) seeds: Vec<Server>,
}

/// A new connection.
pub(crate) struct Dialled {
    pub(crate) connection: Connection,
    /// The address of the master, if Sentinels named it.
    pub(crate) master: Option<Address>,
}

impl Dialer {
    /// Connects, within `timeout` for each host.
    pub(crate) async fn dial(&self, timeout: Duration) -> RedisResult<Dialled> {
        let whole = timeout.saturating_mul(CONNECTS_PER_DIAL);
        Ok(match self {
            Self::Single(server) => {
                Dialled { connection: Connection::Server(server.connect(timeout).await?), master: None }
            }
            Self::Sentinel(sentinels) => {
                let connecting = sentinels.connect(timeout);
                let (connection, master) = with_timeout("finding the master", whole, connecting).await?;
                Dialled { connection: Connection::Server(connection), master: Some(master) }
            }
            Self::Cluster(cluster) => {
                let connecting = cluster.connect(timeout);
                let connection = with_timeout("connecting to the Cluster", whole, connecting).await?;
                Dialled { connection: Connection::Cluster(connection), master: None }
            }
        })
    }

    pub(crate) const fn as_sentinels(&self) -> Option<&Sentinels> {
        match self {
            Self::Sentinel(sentinels) => Some(sentinels),
            Self::Single(_) | Self::Cluster(_) => None,
        }
    }
}

impl ClusterDialer {
    /// The client of a Cluster does not say why no node can be used, so one is asked directly.
    async fn connect(&self, timeout: Duration) -> RedisResult<ClusterConnection> {
        match self.client.get_async_connection().await {
            Ok(connection) => Ok(connection),
            Err(error) => {
                for seed in &self.seeds {
                    seed.connect(timeout).await?;
                }
                Err(error)
            }
        }
    }
}

impl Connection {
    /// Sends a command, once, and waits for its answer.
    pub(crate) async fn send(self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Server(mut connection) => command.query_async(&mut connection).await,
            Self::Cluster(mut connection) => {
                let mut answer = command.query_async(&mut connection).await;
                for _ in 0..REDIRECTS_MAX {
                    let Err(error) = &answer else { break };
                    let ErrorKind::Server(kind) = error.kind() else { break };
                    answer = match (kind, redirect_node(error)) {
                        (ServerErrorKind::Moved, Some(node)) => {
                            connection.route_command(command.clone(), RoutingInfo::SingleNode(node)).await
                        }
                        (ServerErrorKind::Ask, Some(node)) => {
                            send_asking(&mut connection, command, node).await
                        }
                        (ServerErrorKind::TryAgain, _) => {
                            TokioClock.sleep_until(TokioClock.now().saturating_add(TRY_AGAIN_DELAY)).await;
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

impl Connection {
    /// Sends commands, each once and in order, and waits for their answers. Several are one write
    /// to a server; a Cluster client sends them one by one.
    ///
    /// # Errors
    /// If none of them was answered.
    pub(crate) async fn send_each(self, commands: &[Cmd]) -> RedisResult<Vec<RedisResult<Value>>> {
        let mut connection = match self {
            Self::Server(connection) if commands.len() > 1 => connection,
            one => {
                let mut answers = Vec::with_capacity(commands.len());
                for command in commands {
                    match one.clone().send(command).await {
                        Err(error) if error.is_io_error() => return Err(error),
                        answer => answers.push(answer),
                    }
                }
                return Ok(answers);
            }
        };
        let mut pipeline = Pipeline::with_capacity(commands.len());
        commands.iter().for_each(|command| {
            pipeline.add_command(command.clone());
        });
        let answers = connection.req_packed_commands(&pipeline, 0, commands.len()).await?;
        Ok(answers.into_iter().map(Value::extract_error).collect())
    }
}

/// The node that a redirect names.
fn redirect_node(error: &RedisError) -> Option<SingleNodeRoutingInfo> {
    let (host, port) = error.redirect_node()?.0.rsplit_once(':')?;
    Some(SingleNodeRoutingInfo::ByAddress { host: host.to_owned(), port: port.parse().ok()? })
}

/// Sends a command after ASKING, to the node that is importing the key's slot.
async fn send_asking(
    connection: &mut ClusterConnection,
    command: &Cmd,
    node: SingleNodeRoutingInfo,
) -> RedisResult<Value> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("ASKING").add_command(command.clone());
    let answers = connection.route_pipeline(pipeline, 0, 2, node).await?;
    answers.into_iter().next_back().unwrap_or(Value::Nil).extract_error()
}

/// Does `work` within `span`. The error says `what` took longer.
pub(crate) async fn with_timeout<T>(
    what: &str,
    span: Duration,
    work: impl Future<Output = RedisResult<T>>,
) -> RedisResult<T> {
    timeout(span, work).await.unwrap_or_else(|_| {
        let text = format!("no answer in time: {what} took longer than {span:?}");
        Err(std::io::Error::new(std::io::ErrorKind::TimedOut, text).into())
    })
}

/// The text of an error: the server's own, if the server reported it.
pub(crate) fn error_text(error: &RedisError) -> String {
    // Of a pipeline, the first error.
    let of_server = error.clone().into_server_errors();
    let Some((_, error)) = of_server.as_ref().and_then(|errors| errors.first()) else {
        return error.to_string();
    };
    match (error.code(), error.details()) {
        (REFUSED, Some(detail)) => refusal_text(detail),
        (code, Some(detail)) => format!("{code} {detail}"),
        (code, None) => code.to_owned(),
    }
}

/// What a probe says whose commands were refused: `RPUSH PEXPIRE: ERR Redis' own sentence`.
fn refusal_text(detail: &str) -> String {
    let (commands, sentence) = detail.split_once(": ").unwrap_or((detail, ""));
    let commands = commands.to_lowercase();
    let list = |mark: &str, between: &str| -> String {
        let marked: Vec<String> =
            commands.split(' ').map(|command| mark.replace("COMMAND", command)).collect();
        marked.join(between)
    };
    let quoted = list("'COMMAND'", ", ");
    if sentence.contains("Unknown") {
        return format!(
            "ERR unknown command {quoted}, which the script calls; check rename-command ({sentence})"
        );
    }
    let allowed = list("+COMMAND", " ");
    format!("NOPERM the user may not run {quoted}, which the script calls; allow {allowed} ({sentence})")
}

/// Whether an error persists: the next request would fail too, so the breaker opens.
pub(crate) fn is_persistent(error: &RedisError) -> bool {
    let persistent = [
        "LOADING",
        "READONLY",
        "OOM",
        "MASTERDOWN",
        "CLUSTERDOWN",
        "MISCONF",
        "NOREPLICAS",
        "NOAUTH",
        "NOPERM",
        "WRONGPASS",
        REFUSED,
    ];
    match error.code() {
        // Redis 7.0 has no code for what a script may not run.
        Some("ERR") => error.detail().is_some_and(is_refusal),
        Some(code) => persistent.contains(&code),
        None => {
            let kinds = [ErrorKind::ClusterConnectionNotFound, ErrorKind::AuthenticationFailed];
            error.is_io_error() || kinds.contains(&error.kind())
        }
    }
}

/// Whether Redis refuses a command: it does not have it, or the user may not run it.
fn is_refusal(detail: &str) -> bool {
    let sentences = [
        "unknown command",
        "Unknown Redis command",
        "user executing the script can't",
        "ACL failure in script",
        "invalid password",
    ];
    sentences.iter().any(|sentence| detail.contains(sentence))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4_a_refusal_names_the_commands_and_what_to_allow() {
        let text = refusal_text("RPUSH PEXPIRE: ERR The user can't");
        assert_eq!(
            text,
            "NOPERM the user may not run 'rpush', 'pexpire', which the script calls; allow +rpush +pexpire \
             (ERR The user can't)"
        );
        let text = refusal_text("RPUSH: ERR Unknown Redis command called from script");
        assert!(text.starts_with("ERR unknown command 'rpush', which the script calls"), "{text}");
    }
}
