//! A connection to one Redis server or Sentinel.
//!
//! The Redis client reports every failed login with the same words, so the login is ours: Redis'
//! own sentence says whether the password is wrong, missing, or that of another user.

use std::error::Error;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisError, RedisResult, TlsCertificates,
};

use crate::connection::with_timeout;

/// How to log in, once connected.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) database: u32,
}

/// A server, and how to connect to it.
pub(crate) struct Server {
    client: Client,
    /// The same without TLS, to find out whether that is why TLS fails.
    plain: Option<Client>,
    login: Login,
    /// For errors.
    name: String,
}

impl Server {
    /// Does not connect.
    pub(crate) fn new(
        addr: ConnectionAddr,
        tls: Option<&TlsCertificates>,
        login: Login,
    ) -> RedisResult<Self> {
        let name = addr.to_string();
        let (client, plain) = match (tls, &addr) {
            (Some(tls), ConnectionAddr::TcpTls { host, port, .. }) => {
                let plain = ConnectionAddr::Tcp(host.clone(), *port);
                (Client::build_with_tls(info(addr)?, tls.clone())?, Some(Client::open(info(plain)?)?))
            }
            _ => (Client::open(info(addr)?)?, None),
        };
        Ok(Self { client, plain, login, name })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Connects and logs in, within `timeout`.
    pub(crate) async fn connect(&self, timeout: Duration) -> RedisResult<MultiplexedConnection> {
        let what = format!("connecting to {}", self.name);
        let connected = with_timeout(&what, timeout, async {
            let mut connection = connected(&self.client).await?;
            self.log_in(&mut connection).await?;
            Ok(connection)
        });
        match connected.await {
            Err(error) if error.is_io_error() => Err(self.explained(error, timeout).await),
            connected => connected,
        }
    }

    async fn log_in(&self, connection: &mut MultiplexedConnection) -> RedisResult<()> {
        let Login { user, password, database } = &self.login;
        if let Some(password) = password {
            let auth = redis::cmd("AUTH").arg(user).arg(password).take();
            match auth.exec_async(connection).await {
                // Before Redis 6 there are no users.
                Err(error) if user.is_some() && is_arity(&error) => {
                    redis::cmd("AUTH").arg(password).exec_async(connection).await?;
                }
                answer => answer?,
            }
        }
        if *database != 0 {
            redis::cmd("SELECT").arg(*database).exec_async(connection).await?;
        }
        Ok(())
    }

    /// An error of a connection attempt, with what a person should look at. A port that expects TLS
    /// closes the connection, and one that does not waits for the rest of a command for ever.
    async fn explained(&self, error: RedisError, timeout: Duration) -> RedisError {
        let hint = match &self.plain {
            Some(plain) if with_timeout("", timeout, connected(plain)).await.is_ok() => {
                "the port does not speak TLS: write redis:// instead of rediss://, or name the TLS port"
            }
            None if is_hang_up(&error) => {
                "the server closed the connection: if the port expects TLS, write rediss:// instead of redis://"
            }
            _ => return error,
        };
        io::Error::other(format!("{}: {hint} ({error})", self.name)).into()
    }
}

/// The client has no timeouts of its own: they would not say what took longer than what.
async fn connected(client: &Client) -> RedisResult<MultiplexedConnection> {
    let settings = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&settings).await
}

/// A server, for a client that does not log in.
fn info(addr: ConnectionAddr) -> RedisResult<ConnectionInfo> {
    let settings = RedisConnectionInfo::default().set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
    Ok(addr.into_connection_info()?.set_tcp_settings(tcp_settings()).set_redis_settings(settings))
}

/// Whether the server closed a connection that was open.
fn is_hang_up(error: &RedisError) -> bool {
    let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe, io::ErrorKind::UnexpectedEof];
    // The Redis client shares the errors that it wraps.
    let source = error.source().and_then(|source| source.downcast_ref::<Arc<dyn Error + Send + Sync>>());
    let error = source.and_then(|source| source.downcast_ref::<io::Error>());
    error.is_some_and(|error| kinds.contains(&error.kind()))
}

fn is_arity(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.contains("wrong number of arguments"))
}

/// No delay: a request is small and waits for its answer.
pub(crate) fn tcp_settings() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}
