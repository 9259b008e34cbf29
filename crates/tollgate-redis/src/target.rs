//! Where Redis is: what a URL means.
//!
//! ```text
//! redis://[user[:password]@]host[:port][/database]              one server
//! redis+sentinel://[user[:password]@]host[:port],…/service[/database]
//! redis+cluster://[user[:password]@]host[:port],…
//! unix:///path/to/socket
//! ```
//!
//! `rediss` instead of `redis` is TLS, checked against the machine's certificates or `?ca=FILE`, and with
//! `&cert=FILE&key=FILE` the client shows one of its own. A user or password with `@`, `/`, `?` or `:` in it is
//! percent-encoded. Sentinels that want a password of their own get `?sentinel_password=…`, and `&sentinel_user=…`.

use std::fmt;

use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::io::tcp::TcpSettings;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo,
    TlsCertificates, TlsMode,
};
use tollgate::Error;

use crate::connection::{ANSWER_TIMEOUT, CONNECT_TIMEOUT, Dialer, in_words};

/// What a URL says.
#[derive(Clone)]
pub(crate) struct Target {
    kind: Kind,
    addresses: Vec<(String, u16)>,
    user: Option<String>,
    password: Option<String>,
    database: i64,
    tls: Option<TlsCertificates>,
    /// Who the Sentinels want to know.
    sentinel: (Option<String>, Option<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    Single,
    Unix,
    Sentinel { service: String },
    Cluster,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("kind", &self.kind)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

const USUAL_PORT: u16 = 6379;
const USUAL_SENTINEL_PORT: u16 = 26_379;

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let fault = |reason| Error::InvalidConfig { field: "url", value: masked(url), reason };
        let (scheme, rest) = url.split_once("://").ok_or(fault("a URL such as redis://127.0.0.1:6379"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let query = Query::parse(query, scheme)?;
        if scheme == "unix" {
            let (addresses, database) = (vec![(rest.to_owned(), 0)], 0);
            let (kind, user, password, tls) = (Kind::Unix, None, None, None);
            return Ok(Self { kind, addresses, user, password, database, tls, sentinel: (None, None) });
        }
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (first, second) = path.split_once('/').unwrap_or((path, ""));
        let (secure, topology) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            ("redis" | "valkey", topology) => (false, topology),
            ("rediss" | "valkeys", topology) => (true, topology),
            _ => return Err(fault("redis://, rediss://, redis+sentinel:// or redis+cluster://")),
        };
        let (kind, database, port) = match topology {
            "" => (Kind::Single, first, USUAL_PORT),
            "cluster" => (Kind::Cluster, first, USUAL_PORT),
            "sentinel" if first.is_empty() => {
                return Err(fault("with the service after the hosts: redis+sentinel://h1,h2/mymaster"));
            }
            "sentinel" => (Kind::Sentinel { service: first.to_owned() }, second, USUAL_SENTINEL_PORT),
            _ => return Err(fault("redis://, rediss://, redis+sentinel:// or redis+cluster://")),
        };
        let addresses: Option<Vec<_>> = hosts.split(',').map(|host| address(host, port)).collect();
        let addresses =
            addresses.ok_or(fault("with hosts such as cache.internal:6379, [::1] or 10.0.0.1"))?;
        if kind == Kind::Single && addresses.len() > 1 {
            return Err(fault("one host; redis+cluster:// and redis+sentinel:// take several"));
        }
        let database = match database {
            "" => 0,
            number => number.parse::<u32>().map_err(|_| fault("with a number for its database"))?.into(),
        };
        if kind == Kind::Cluster && database != 0 {
            return Err(fault("without a database: a Cluster has only one"));
        }
        let (user, password) = match login.map(|login| login.split_once(':')) {
            None => (None, None),
            Some(None) => {
                return Err(fault(
                    "with a password after the user, redis://user:password@host, or with neither",
                ));
            }
            Some(Some((user, password))) => (decoded(user).ok(), decoded(password).ok()),
        };
        if login.is_some() && (user.is_none() || password.is_none()) {
            return Err(fault("with a user and a password that are UTF-8 once they are percent-decoded"));
        }
        let user = user.filter(|user| !user.is_empty());
        let tls = if secure { Some(query.certificates()?) } else { None };
        let sentinel = (query.sentinel_user, query.sentinel_password);
        Ok(Self { kind, addresses, user, password, database, tls, sentinel })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.kind == Kind::Cluster
    }

    /// What makes connections to it. No connection is made yet.
    pub(crate) fn dialer(&self) -> Result<Dialer, Error> {
        let wrong = |error: redis::RedisError| Error::InvalidConfig {
            field: "url",
            value: in_words(&error),
            reason: "one that the Redis client understands",
        };
        if self.tls.is_some() {
            // The client asks for the process's choice, and where nobody has made one this is it.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(match &self.kind {
            Kind::Cluster => Dialer::Cluster(Box::new(self.cluster().map_err(wrong)?)),
            Kind::Sentinel { service } => {
                let one = |host| Ok(tokio::sync::Mutex::new(self.sentinel(host, service)?));
                Dialer::Sentinel(self.addrs().into_iter().map(one).collect::<Result<_, _>>().map_err(wrong)?)
            }
            Kind::Single | Kind::Unix => {
                let info = self.infos().map_err(wrong)?.remove(0);
                Dialer::Single(Box::new(
                    match &self.tls {
                        Some(tls) => Client::build_with_tls(info, tls.clone()),
                        None => Client::open(info),
                    }
                    .map_err(wrong)?,
                ))
            }
        })
    }

    fn addrs(&self) -> Vec<ConnectionAddr> {
        let addr = |(host, port): &(String, u16)| match &self.kind {
            Kind::Unix => ConnectionAddr::Unix(host.into()),
            _ if self.tls.is_some() => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            _ => ConnectionAddr::Tcp(host.clone(), *port),
        };
        self.addresses.iter().map(addr).collect()
    }

    fn infos(&self) -> redis::RedisResult<Vec<ConnectionInfo>> {
        let mut settings = RedisConnectionInfo::default()
            .set_db(self.database)
            .set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
        if let Some(user) = &self.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &self.password {
            settings = settings.set_password(password);
        }
        let info = |addr: ConnectionAddr| -> redis::RedisResult<ConnectionInfo> {
            let info = addr.into_connection_info()?;
            Ok(info.set_tcp_settings(tcp()).set_redis_settings(settings.clone()))
        };
        self.addrs().into_iter().map(info).collect()
    }

    fn cluster(&self) -> redis::RedisResult<ClusterClient> {
        let mut builder = ClusterClientBuilder::new(self.infos()?)
            .tcp_settings(tcp())
            .connection_timeout(CONNECT_TIMEOUT)
            .response_timeout(ANSWER_TIMEOUT)
            // What was sent may have been executed.
            .retries(0);
        if let Some(tls) = &self.tls {
            builder = builder.tls(TlsMode::Secure).certs(tls.clone());
        }
        builder.build()
    }

    fn sentinel(&self, host: ConnectionAddr, service: &str) -> redis::RedisResult<SentinelClient> {
        let mut builder = SentinelClientBuilder::new([host], service, SentinelServerType::Master)?
            .set_client_to_redis_db(self.database)
            .set_client_to_redis_tcp_settings(tcp())
            .set_client_to_sentinel_tcp_settings(tcp());
        if let Some(user) = &self.user {
            builder = builder.set_client_to_redis_username(user);
        }
        if let Some(password) = &self.password {
            builder = builder.set_client_to_redis_password(password);
        }
        let (user, password) = &self.sentinel;
        if let Some(user) = user {
            builder = builder.set_client_to_sentinel_username(user);
        }
        if let Some(password) = password {
            builder = builder.set_client_to_sentinel_password(password);
        }
        if let Some(tls) = &self.tls {
            builder = builder
                .set_client_to_redis_tls_mode(TlsMode::Secure)
                .set_client_to_redis_certificates(tls.clone())
                .set_client_to_sentinel_tls_mode(TlsMode::Secure)
                .set_client_to_sentinel_certificates(tls.clone());
        }
        builder.build()
    }
}

/// A request is small and waits for its answer: nothing is gained by holding it back.
fn tcp() -> TcpSettings {
    TcpSettings::default().set_nodelay(true)
}

/// `host`, `host:port` or `[::1]:port`.
fn address(text: &str, port: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, port),
        Some((host, rest)) => (host, rest.strip_prefix(':')?.parse().ok()?),
        None => match text.split_once(':') {
            Some((host, port)) => (host, port.parse().ok()?),
            None => (text, port),
        },
    };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

/// What a URL says after its question mark.
#[derive(Default)]
struct Query {
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
    sentinel_user: Option<String>,
    sentinel_password: Option<String>,
}

impl Query {
    fn parse(text: &str, scheme: &str) -> Result<Self, Error> {
        let mut query = Self::default();
        for pair in text.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let fault =
                |reason| Error::InvalidConfig { field: "url", value: format!("…?{name}=…"), reason };
            let (secure, sentinel) = (scheme.starts_with("rediss"), scheme.ends_with("+sentinel"));
            let place = match name {
                "ca" if secure => &mut query.ca,
                "cert" if secure => &mut query.cert,
                "key" if secure => &mut query.key,
                "sentinel_user" if sentinel => &mut query.sentinel_user,
                "sentinel_password" if sentinel => &mut query.sentinel_password,
                "ca" | "cert" | "key" => {
                    return Err(fault("without that, or rediss://: certificates belong to TLS"));
                }
                _ if sentinel => {
                    return Err(fault("with ca, cert, key, sentinel_user or sentinel_password there"));
                }
                _ => return Err(fault("with ca=FILE, cert=FILE or key=FILE there, for rediss://")),
            };
            *place = Some(decoded(value).map_err(|()| fault("percent-encoded UTF-8"))?);
        }
        Ok(query)
    }

    fn certificates(&self) -> Result<TlsCertificates, Error> {
        let read = |path: &Option<String>| match path {
            Some(path) => std::fs::read(path).map(Some).map_err(|error| Error::InvalidConfig {
                field: "url",
                value: format!("{path} ({error})"),
                reason: "a readable PEM file",
            }),
            None => Ok(None),
        };
        let client_tls = match (read(&self.cert)?, read(&self.key)?) {
            (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
            (None, None) => None,
            _ => {
                let value = "…?cert=… or …?key=… alone".to_owned();
                return Err(Error::InvalidConfig {
                    field: "url",
                    value,
                    reason: "cert and key together, or neither",
                });
            }
        };
        Ok(TlsCertificates { client_tls, root_cert: read(&self.ca)? })
    }
}

/// The text that percent-encoding stands for, if it is text.
fn decoded(text: &str) -> Result<String, ()> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escape = match rest {
            [b'%', high, low, tail @ ..] => std::str::from_utf8(&[*high, *low])
                .ok()
                .and_then(|hex| Some((u8::from_str_radix(hex, 16).ok()?, tail))),
            _ => None,
        };
        let (byte, tail) = escape.unwrap_or((*first, tail));
        bytes.push(byte);
        rest = tail;
    }
    String::from_utf8(bytes).map_err(drop)
}

/// The URL without what nobody should read in a log.
pub(crate) fn masked(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").map_or(("", url), |(scheme, rest)| (scheme, rest));
    let (rest, query) = rest.split_once('?').map_or((rest, ""), |(rest, _)| (rest, "?…"));
    let rest = match rest.rsplit_once('@') {
        Some((login, rest)) => match login.split_once(':') {
            Some((user, _)) => format!("{user}:***@{rest}"),
            None => format!("***@{rest}"),
        },
        None => rest.to_owned(),
    };
    let colon = if scheme.is_empty() { "" } else { "://" };
    format!("{scheme}{colon}{rest}{query}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> Target {
        Target::parse(url).unwrap()
    }

    #[test]
    fn a_url_says_where_and_as_whom() {
        let plain = parsed("redis://127.0.0.1");
        assert_eq!((plain.kind, plain.addresses), (Kind::Single, vec![("127.0.0.1".into(), 6379)]));
        let full = parsed("redis://app:p%40ss%3Aw@[::1]:7000/3");
        assert_eq!(full.addresses, [("::1".into(), 7000)]);
        assert_eq!((full.user.as_deref(), full.password.as_deref()), (Some("app"), Some("p@ss:w")));
        assert_eq!(full.database, 3);
        assert_eq!(parsed("redis://:secret@h").password.as_deref(), Some("secret"));
        let sentinel = parsed("redis+sentinel://s1,s2:26380/main/2");
        assert_eq!(sentinel.kind, Kind::Sentinel { service: "main".into() });
        assert_eq!(sentinel.addresses, [("s1".into(), 26379), ("s2".into(), 26380)]);
        assert_eq!(sentinel.database, 2);
        assert!(parsed("redis+cluster://a,b:1,c").is_cluster());
        assert!(parsed("rediss://h").tls.is_some());
        let guarded = parsed("redis+sentinel://s1/main?sentinel_user=watch&sentinel_password=p%26w").sentinel;
        assert_eq!(guarded, (Some("watch".into()), Some("p&w".into())));
        assert_eq!(masked("redis://app:secret@h/1?ca=secret"), "redis://app:***@h/1?…");
        assert_eq!(masked("redis://h:1,g/1"), "redis://h:1,g/1");
        assert_eq!(parsed("unix:///run/redis.sock").kind, Kind::Unix);
    }

    #[test]
    fn d2_what_is_wrong_with_a_url_is_said_without_its_password() {
        let wrong = [
            ("127.0.0.1:6379", "such as redis://"),
            ("http://h", "redis://"),
            ("redis+ring://h", "redis+cluster://"),
            ("redis://user:secret@h:port", "with hosts"),
            ("redis://:secret@a,b", "one host"),
            ("redis+sentinel://:secret@a,b", "the service"),
            ("redis+cluster://:secret@h/1", "without a database"),
            ("redis://:secret@h/x", "number"),
            ("redis://:secret@h?ca=x", "rediss"),
            ("rediss://h?ca=/nowhere.pem", "/nowhere.pem"),
            ("rediss://h?password=secret", "password"),
            ("redis://h?password=secret", "password"),
            ("unix:///run/x.sock?pass=secret&db=3", "pass"),
            ("rediss://:secret@h?cert=/nowhere.pem", "/nowhere.pem"),
            ("default:secret@cache:6379", "such as redis://"),
            ("redis://secret@h", "redis://user:password@host"),
            ("redis://:secret%ff@h", "UTF-8"),
        ];
        for (url, hint) in wrong {
            let error = Target::parse(url).unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(!format!("{:?}", parsed("redis://:secret@h")).contains("secret"));
    }
}
