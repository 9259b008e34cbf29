//! The master that Sentinels name.
//!
//! All Sentinels of the URL are asked at the same time, and an address wins that more than half of
//! them name. That is what a failover itself needs: a Sentinel moves the master only with the votes
//! of a majority, and tells the others at once, so waiting for a second or third voice costs a
//! fraction of a second. The higher configuration epoch alone is not trusted: a Sentinel that is
//! cut off from the others, and is told to fail over by hand, raises its epoch without a vote.
//!
//! Without a majority, because Sentinels are down or disagree, a connection to a master is kept. A
//! process that has none takes the address with the highest epoch, then the one with the most
//! voices, and asks the server itself (`ROLE`) whether it is a master.

use std::cmp::Reverse;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, FuturesUnordered, Stream, StreamExt as _};
use redis::aio::{ConnectionLike as _, MultiplexedConnection, PubSubStream};
use redis::{
    Client, ConnectionAddr, ErrorKind, Pipeline, RedisError, RedisResult, TlsCertificates, Value,
    from_redis_value,
};
use tokio::time::timeout;
use tollgate::{Clock as _, SECOND, TokioClock};

use crate::connection::{error_text, with_timeout};
use crate::server::{Login, Server};

/// The channel on which a Sentinel announces another master.
const SWITCH: &str = "+switch-master";
/// How long the other Sentinels may take once one has answered.
const STRAGGLERS: Duration = Duration::from_millis(250);
/// The wait before another attempt to subscribe.
const SUBSCRIBE_AGAIN: Duration = SECOND;

/// The Sentinels of a URL.
pub(crate) struct Sentinels {
    service: String,
    sentinels: Vec<Sentinel>,
    tls: Option<TlsCertificates>,
    /// Of the master.
    login: Login,
}

pub(crate) struct Sentinel {
    server: Server,
    /// The same with credentials, for subscriptions.
    subscriber: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
}

/// Host and port of a master.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// What one Sentinel says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Voice {
    address: Address,
    epoch: u64,
}

/// What the Sentinels say.
#[derive(Debug, Default)]
pub(crate) struct Voices {
    /// How many Sentinels there are.
    sentinels: usize,
    voices: Vec<Voice>,
    errors: Vec<String>,
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl Voices {
    /// The address that more than half of all Sentinels name.
    pub(crate) fn majority(&self) -> Option<&Address> {
        let is_majority = |address: &&Address| self.count(address) > self.sentinels / 2;
        self.voices.iter().map(|voice| &voice.address).find(is_majority)
    }

    /// The addresses to try, best first: only that of a majority if there is one.
    fn candidates(&self) -> Vec<&Address> {
        if let Some(address) = self.majority() {
            return vec![address];
        }
        let mut ranked: Vec<&Voice> = self.voices.iter().collect();
        // Stable: among equals, the order in which they answered.
        ranked.sort_by_key(|voice| Reverse((voice.epoch, self.count(&voice.address))));
        let mut candidates: Vec<&Address> = Vec::new();
        for voice in ranked {
            if !candidates.contains(&&voice.address) {
                candidates.push(&voice.address);
            }
        }
        candidates
    }

    fn count(&self, address: &Address) -> usize {
        self.voices.iter().filter(|voice| voice.address == *address).count()
    }
}

impl Sentinels {
    pub(crate) fn new(
        service: &str,
        sentinels: Vec<(Server, Client)>,
        tls: Option<TlsCertificates>,
        login: Login,
    ) -> Self {
        let sentinel = |(server, subscriber)| Sentinel { server, subscriber, connection: Mutex::default() };
        let sentinels = sentinels.into_iter().map(sentinel).collect();
        Self { service: service.to_owned(), sentinels, tls, login }
    }

    /// Asks all Sentinels, until a majority agrees, and each at most for `span`.
    pub(crate) async fn ask(&self, span: Duration) -> Voices {
        let mut asked: FuturesUnordered<_> =
            self.sentinels.iter().map(|sentinel| sentinel.ask(&self.service, span)).collect();
        let mut voices = Voices { sentinels: self.sentinels.len(), ..Voices::default() };
        let mut first_at = None;
        loop {
            let next = match first_at {
                None => asked.next().await,
                Some(first) => {
                    let left = STRAGGLERS.saturating_sub(TokioClock.now().since(first));
                    timeout(left, asked.next()).await.unwrap_or(None)
                }
            };
            match next {
                None => return voices,
                Some(Ok(voice)) => {
                    first_at = first_at.or(Some(TokioClock.now()));
                    voices.voices.push(voice);
                }
                Some(Err(error)) => voices.errors.push(error),
            }
            if voices.majority().is_some() {
                return voices;
            }
        }
    }

    /// Connects to the master, within `span` for each host.
    pub(crate) async fn connect(&self, span: Duration) -> RedisResult<(MultiplexedConnection, Address)> {
        let voices = self.ask(span).await;
        let mut problem = None;
        for address in voices.candidates() {
            match self.connect_to(address, span).await {
                Ok(connection) => return Ok((connection, address.clone())),
                Err(error) => problem = problem.or(Some(error)),
            }
        }
        Err(problem.unwrap_or_else(|| {
            let errors = voices.errors.join("; ");
            let text = format!("no Sentinel names a master of {:?}: {errors}", self.service);
            std::io::Error::new(std::io::ErrorKind::NotFound, text).into()
        }))
    }

    async fn connect_to(&self, address: &Address, span: Duration) -> RedisResult<MultiplexedConnection> {
        let host = address.host.clone();
        let addr = match self.tls {
            Some(_) => ConnectionAddr::TcpTls { host, port: address.port, insecure: false, tls_params: None },
            None => ConnectionAddr::Tcp(host, address.port),
        };
        let server = Server::new(addr, self.tls.as_ref(), self.login.clone())?;
        let mut connection = server.connect(span).await?;
        if is_replica(&mut connection, span).await? {
            let text = format!("the Sentinels name {address}, which is a replica");
            return Err(std::io::Error::other(text).into());
        }
        Ok(connection)
    }

    /// Yields whenever a Sentinel announces another master, and when a subscription begins:
    /// something may have been announced before.
    pub(crate) fn announcements(&self) -> impl Stream<Item = ()> + Send + use<> {
        let clients = self.sentinels.iter().map(|sentinel| sentinel.subscriber.clone());
        stream::select_all(clients.map(|client| {
            Box::pin(stream::unfold((client, None), async |(client, mut messages)| {
                announcement(&client, &mut messages).await;
                Some(((), (client, messages)))
            }))
        }))
    }
}

/// Waits for the next message, or until the subscription begins.
async fn announcement(client: &Client, messages: &mut Option<PubSubStream>) {
    loop {
        if let Some(subscribed) = messages {
            if subscribed.next().await.is_some() {
                return;
            }
            *messages = None;
        }
        let subscribed = with_timeout("subscribing to a Sentinel", SECOND, async {
            let mut subscription = client.get_async_pubsub().await?;
            subscription.subscribe(SWITCH).await?;
            Ok(subscription.into_on_message())
        });
        match subscribed.await {
            Ok(subscribed) => {
                *messages = Some(subscribed);
                return;
            }
            Err(_) => TokioClock.sleep_until(TokioClock.now().saturating_add(SUBSCRIBE_AGAIN)).await,
        }
    }
}

impl Sentinel {
    /// Asks for the master of a service. The error names the Sentinel.
    async fn ask(&self, service: &str, span: Duration) -> Result<Voice, String> {
        let answered = with_timeout("an answer", span, self.voice(service, span)).await;
        answered.map_err(|error| {
            // Of a host that is gone, nothing else tells.
            self.keep(None);
            format!("the Sentinel {} says: {}", self.server.name(), error_text(&error))
        })
    }

    async fn voice(&self, service: &str, span: Duration) -> RedisResult<Voice> {
        if let Some(connection) = self.kept() {
            match voice_on(connection, service).await {
                Err(error) if error.is_io_error() => {}
                answered => return answered,
            }
        }
        let connection = self.server.connect(span).await?;
        self.keep(Some(connection.clone()));
        voice_on(connection, service).await
    }

    fn kept(&self) -> Option<MultiplexedConnection> {
        self.connection.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep(&self, connection: Option<MultiplexedConnection>) {
        *self.connection.lock().unwrap_or_else(PoisonError::into_inner) = connection;
    }
}

/// The epoch is asked for before the address: an address that is newer than its epoch is trusted
/// less, and an older one would be trusted too much. Only `GET-MASTER-ADDR-BY-NAME` names the new
/// master as soon as it is promoted.
async fn voice_on(mut connection: MultiplexedConnection, service: &str) -> RedisResult<Voice> {
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.cmd("SENTINEL").arg("MASTER").arg(service);
    pipeline.cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(service);
    let answers = connection.req_packed_commands(&pipeline, 0, 2).await?;
    let answers: RedisResult<Vec<Value>> = answers.into_iter().map(Value::extract_error).collect();
    let [fields, address] = <[Value; 2]>::try_from(answers?).unwrap_or_default();
    let Some((host, port)) = from_redis_value(address)? else {
        let detail = format!("it monitors no master {service:?}");
        return Err(RedisError::from((ErrorKind::MasterNameNotFoundBySentinel, "unknown service", detail)));
    };
    let fields: Vec<(String, String)> = from_redis_value(fields)?;
    let epoch = fields.iter().find(|(name, _)| name == "config-epoch");
    let epoch = epoch.and_then(|(_, epoch)| epoch.parse().ok()).unwrap_or(0);
    Ok(Voice { address: Address { host, port }, epoch })
}

/// Whether a server says that it is a replica.
pub(crate) async fn is_replica(connection: &mut MultiplexedConnection, span: Duration) -> RedisResult<bool> {
    let asked = redis::cmd("ROLE").take();
    let role: Value = with_timeout("ROLE", span, asked.query_async(connection)).await?;
    let Value::Array(role) = role else { return Ok(false) };
    let name: String = from_redis_value(role.into_iter().next().unwrap_or(Value::Nil))?;
    Ok(name == "slave")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn voices(sentinels: usize, said: &[(u16, u64)]) -> Voices {
        let address = |port| Address { host: "h".into(), port };
        let voices = said.iter().map(|(port, epoch)| Voice { address: address(*port), epoch: *epoch });
        Voices { sentinels, voices: voices.collect(), errors: Vec::new() }
    }

    fn majority(sentinels: usize, said: &[(u16, u64)]) -> Option<u16> {
        voices(sentinels, said).majority().map(|address| address.port)
    }

    fn candidates(sentinels: usize, said: &[(u16, u64)]) -> Vec<u16> {
        voices(sentinels, said).candidates().into_iter().map(|address| address.port).collect()
    }

    #[test]
    fn e4_a_master_is_what_more_than_half_of_all_sentinels_name() {
        assert_eq!(majority(3, &[(1, 0), (1, 0)]), Some(1));
        assert_eq!(majority(3, &[(1, 0), (2, 9), (1, 0)]), Some(1), "one Sentinel alone does not move it");
        assert_eq!(majority(3, &[(2, 9)]), None, "the others are down");
        assert_eq!(majority(4, &[(1, 0), (1, 0), (2, 1), (2, 1)]), None);
        assert_eq!(majority(1, &[(1, 0)]), Some(1));
        assert_eq!(majority(3, &[]), None);
    }

    #[test]
    fn e4_without_a_majority_the_highest_epoch_is_tried_first() {
        assert_eq!(candidates(3, &[(1, 0), (2, 9), (1, 0)]), [1], "no other than that of a majority");
        assert_eq!(candidates(5, &[(1, 3), (2, 4)]), [2, 1]);
        assert_eq!(candidates(5, &[(1, 3), (2, 3), (2, 3)]), [2, 1]);
        assert_eq!(candidates(3, &[]), [0_u16; 0]);
    }
}
