//! The URL of a Redis server, and the clients that connect to it.
//!
//! ```text
//! redis://[user[:password]@]host[:port][/database]              one server
//! redis+sentinel://[user[:password]@]host[:port],…/service[/database]
//! redis+cluster://[user[:password]@]host[:port],…
//! unix:///path/to/socket
//! ```
//!
//! `rediss` instead of `redis` is TLS, verified by the system's CA certificates or `?ca=FILE`.
//! `&cert=FILE&key=FILE` is the client certificate. `@`, `/`, `?` and `:` in a user or password are
//! percent-encoded. `?sentinel_password=…` and `&sentinel_user=…` log in to the Sentinels.

use std::fmt;
use std::time::Duration;

use redis::cluster::{ClusterClient, ClusterClientBuilder};
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo as _, RedisConnectionInfo,
    TlsCertificates, TlsMode,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use tollgate::Error;

use crate::connection::{ClusterDialer, Dialer, RESPONSE_TIMEOUT_MIN, error_text};
use crate::sentinel::Sentinels;
use crate::server::{Login, Server, tcp_settings};

/// A parsed URL.
#[derive(Clone)]
pub(crate) struct Target {
    topology: Topology,
    addresses: Vec<(String, u16)>,
    user: Option<String>,
    password: Option<String>,
    database: u32,
    tls: Option<TlsCertificates>,
    /// User and password for the Sentinels.
    sentinel_login: (Option<String>, Option<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Topology {
    Single,
    Unix,
    Sentinel { service: String },
    Cluster,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("topology", &self.topology)
            .field("addresses", &self.addresses)
            .finish_non_exhaustive()
    }
}

const DEFAULT_PORT: u16 = 6379;
const DEFAULT_SENTINEL_PORT: u16 = 26_379;

impl Target {
    pub(crate) fn parse(url: &str) -> Result<Self, Error> {
        let invalid = |reason| Error::InvalidConfig { field: "url", value: masked(url), reason };
        let (scheme, rest) = url.split_once("://").ok_or(invalid("a URL such as redis://127.0.0.1:6379"))?;
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let query = Query::parse(query, scheme)?;
        if scheme == "unix" {
            let (addresses, database) = (vec![(rest.to_owned(), 0)], 0);
            let (topology, user, password, tls) = (Topology::Unix, None, None, None);
            let sentinel_login = (None, None);
            return Ok(Self { topology, addresses, user, password, database, tls, sentinel_login });
        }
        let (login, rest) = rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest));
        let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (first, second) = path.split_once('/').unwrap_or((path, ""));
        let (secure, suffix) = match scheme.split_once('+').unwrap_or((scheme, "")) {
            ("redis" | "valkey", suffix) => (false, suffix),
            ("rediss" | "valkeys", suffix) => (true, suffix),
            _ => return Err(invalid("redis://, rediss://, redis+sentinel:// or redis+cluster://")),
        };
        let (topology, database, port) = match suffix {
            "" => (Topology::Single, first, DEFAULT_PORT),
            "cluster" => (Topology::Cluster, first, DEFAULT_PORT),
            "sentinel" if first.is_empty() => {
                return Err(invalid("with the service name, redis+sentinel://h1,h2/mymaster"));
            }
            "sentinel" => (Topology::Sentinel { service: first.to_owned() }, second, DEFAULT_SENTINEL_PORT),
            _ => return Err(invalid("redis://, rediss://, redis+sentinel:// or redis+cluster://")),
        };
        let addresses: Option<Vec<_>> = hosts.split(',').map(|host| address(host, port)).collect();
        let addresses =
            addresses.ok_or(invalid("with hosts such as cache.internal:6379, [::1] or 10.0.0.1"))?;
        if topology == Topology::Single && addresses.len() > 1 {
            return Err(invalid("one host; redis+cluster:// and redis+sentinel:// take several"));
        }
        let database = match database {
            "" => 0,
            number => number.parse::<u32>().map_err(|_| invalid("with a number as its database"))?,
        };
        if topology == Topology::Cluster && database != 0 {
            return Err(invalid("without a database: a Cluster has only one"));
        }
        let (user, password) = match login.map(|login| login.split_once(':')) {
            None => (None, None),
            Some(None) => {
                return Err(invalid("with user and password, redis://user:password@host, or neither"));
            }
            Some(Some((user, password))) => (decoded(user).ok(), decoded(password).ok()),
        };
        if login.is_some() && (user.is_none() || password.is_none()) {
            return Err(invalid("with a user and a password that percent-decode to UTF-8"));
        }
        let user = user.filter(|user| !user.is_empty());
        let tls = if secure { Some(query.certificates()?) } else { None };
        let sentinel_login = (query.sentinel_user, query.sentinel_password);
        Ok(Self { topology, addresses, user, password, database, tls, sentinel_login })
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.topology == Topology::Cluster
    }

    /// A dialer for this target. Does not connect.
    pub(crate) fn dialer(&self, connect_timeout: Duration, deadline: Duration) -> Result<Dialer, Error> {
        let invalid = |error: redis::RedisError| Error::InvalidConfig {
            field: "url",
            value: error_text(&error),
            reason: "a URL that the Redis client accepts",
        };
        if self.tls.is_some() {
            // The Redis client needs a default crypto provider; an installed one stays.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let (servers, login) = (self.servers(&self.login()).map_err(invalid)?, self.login());
        Ok(match &self.topology {
            Topology::Cluster => {
                let client = self.cluster(connect_timeout, deadline).map_err(invalid)?;
                Dialer::Cluster(ClusterDialer { client, seeds: servers })
            }
            Topology::Sentinel { service } => Dialer::Sentinel(Sentinels::new(
                service,
                self.sentinels().map_err(invalid)?,
                self.tls.clone(),
                login,
            )),
            Topology::Single | Topology::Unix => {
                Dialer::Single(servers.into_iter().next().expect("a URL has a host"))
            }
        })
    }

    fn login(&self) -> Login {
        Login { user: self.user.clone(), password: self.password.clone(), database: self.database }
    }

    fn servers(&self, login: &Login) -> redis::RedisResult<Vec<Server>> {
        self.addrs().into_iter().map(|addr| Server::new(addr, self.tls.as_ref(), login.clone())).collect()
    }

    fn addrs(&self) -> Vec<ConnectionAddr> {
        let addr = |(host, port): &(String, u16)| match &self.topology {
            Topology::Unix => ConnectionAddr::Unix(host.into()),
            _ if self.tls.is_some() => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            _ => ConnectionAddr::Tcp(host.clone(), *port),
        };
        self.addresses.iter().map(addr).collect()
    }

    fn cluster(&self, connect_timeout: Duration, deadline: Duration) -> redis::RedisResult<ClusterClient> {
        let infos: redis::RedisResult<Vec<ConnectionInfo>> =
            self.addrs().into_iter().map(|addr| info(addr, &self.login())).collect();
        let mut builder = ClusterClientBuilder::new(infos?)
            .tcp_settings(tcp_settings())
            .connection_timeout(connect_timeout)
            .response_timeout(RESPONSE_TIMEOUT_MIN.max(deadline))
            // A command that was sent may have been executed.
            .retries(0);
        if let Some(tls) = &self.tls {
            builder = builder.tls(TlsMode::Secure).certs(tls.clone());
        }
        builder.build()
    }

    /// The Sentinels, each with a client that subscribes.
    fn sentinels(&self) -> redis::RedisResult<Vec<(Server, Client)>> {
        let (user, password) = self.sentinel_login.clone();
        let login = Login { user, password, database: 0 };
        let servers = self.servers(&login)?;
        let subscribers = self.addrs().into_iter().map(|addr| {
            let info = info(addr, &login)?;
            match &self.tls {
                Some(tls) => Client::build_with_tls(info, tls.clone()),
                None => Client::open(info),
            }
        });
        servers.into_iter().zip(subscribers).map(|(server, client)| Ok((server, client?))).collect()
    }
}

/// A server, for a client that logs in by itself.
fn info(addr: ConnectionAddr, login: &Login) -> redis::RedisResult<ConnectionInfo> {
    let mut settings = RedisConnectionInfo::default()
        .set_db(login.database.into())
        .set_lib_name("tollgate", env!("CARGO_PKG_VERSION"));
    if let Some(user) = &login.user {
        settings = settings.set_username(user);
    }
    if let Some(password) = &login.password {
        settings = settings.set_password(password);
    }
    Ok(addr.into_connection_info()?.set_tcp_settings(tcp_settings()).set_redis_settings(settings))
}

/// Parses `host`, `host:port`, `[::1]` or `[::1]:port`.
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

/// The query of a URL.
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
            let invalid =
                |reason| Error::InvalidConfig { field: "url", value: format!("…?{name}=…"), reason };
            let (secure, sentinel) = (scheme.starts_with("rediss"), scheme.ends_with("+sentinel"));
            let field = match name {
                "ca" if secure => &mut query.ca,
                "cert" if secure => &mut query.cert,
                "key" if secure => &mut query.key,
                "sentinel_user" if sentinel => &mut query.sentinel_user,
                "sentinel_password" if sentinel => &mut query.sentinel_password,
                "ca" | "cert" | "key" => {
                    return Err(invalid("without certificates, or a rediss:// URL: only TLS uses them"));
                }
                _ if sentinel => {
                    return Err(invalid("one of ca, cert, key, sentinel_user and sentinel_password"));
                }
                _ => return Err(invalid("one of ca=FILE, cert=FILE and key=FILE, on a rediss:// URL")),
            };
            *field = Some(decoded(value).map_err(|()| invalid("percent-encoded UTF-8"))?);
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
        let root_cert = read(&self.ca)?;
        if let (Some(pem), Some(path)) = (&root_cert, &self.ca)
            && !has_certificate(pem)
        {
            let reason = "a PEM file with a certificate";
            return Err(Error::InvalidConfig { field: "url", value: path.clone(), reason });
        }
        Ok(TlsCertificates { client_tls, root_cert })
    }
}

/// Whether a file has certificates, and no invalid one.
fn has_certificate(pem: &[u8]) -> bool {
    let mut certificates = CertificateDer::pem_slice_iter(pem).peekable();
    certificates.peek().is_some() && certificates.all(|certificate| certificate.is_ok())
}

/// Percent-decodes a text. Fails if the result is not UTF-8.
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

/// The URL without its secrets, for logs.
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
    fn a_url_has_a_topology_hosts_a_login_and_a_database() {
        let plain = parsed("redis://127.0.0.1");
        assert_eq!((plain.topology, plain.addresses), (Topology::Single, vec![("127.0.0.1".into(), 6379)]));
        let full = parsed("redis://app:p%40ss%3Aw@[::1]:7000/3");
        assert_eq!(full.addresses, [("::1".into(), 7000)]);
        assert_eq!((full.user.as_deref(), full.password.as_deref()), (Some("app"), Some("p@ss:w")));
        assert_eq!(full.database, 3);
        assert_eq!(parsed("redis://:secret@h").password.as_deref(), Some("secret"));
        let sentinel = parsed("redis+sentinel://s1,s2:26380/main/2");
        assert_eq!(sentinel.topology, Topology::Sentinel { service: "main".into() });
        assert_eq!(sentinel.addresses, [("s1".into(), 26379), ("s2".into(), 26380)]);
        assert_eq!(sentinel.database, 2);
        assert!(parsed("redis+cluster://a,b:1,c").is_cluster());
        assert!(parsed("rediss://h").tls.is_some());
        let guarded =
            parsed("redis+sentinel://s1/main?sentinel_user=watch&sentinel_password=p%26w").sentinel_login;
        assert_eq!(guarded, (Some("watch".into()), Some("p&w".into())));
        assert_eq!(masked("redis://app:secret@h/1?ca=secret"), "redis://app:***@h/1?…");
        assert_eq!(masked("redis://h:1,g/1"), "redis://h:1,g/1");
        assert_eq!(parsed("unix:///run/redis.sock").topology, Topology::Unix);
    }

    #[test]
    fn d2_the_error_of_an_invalid_url_does_not_contain_its_password() {
        let invalid = [
            ("127.0.0.1:6379", "such as redis://"),
            ("http://h", "redis://"),
            ("redis+ring://h", "redis+cluster://"),
            ("redis://user:secret@h:port", "with hosts"),
            ("redis://:secret@a,b", "one host"),
            ("redis+sentinel://:secret@a,b", "the service name"),
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
        for (url, hint) in invalid {
            let error = Target::parse(url).unwrap_err();
            assert!(error.to_string().contains(hint), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        assert!(!format!("{:?}", parsed("redis://:secret@h")).contains("secret"));
    }
}
