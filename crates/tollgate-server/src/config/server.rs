//! The section `[server]`: where to listen, how long to wait, whom to believe.

use std::time::Duration;

use tollgate::SECOND;
use tollgate_http::{ForwardedBy, Identity, Proxies};

use super::reader::{At, Section, Source};
use super::values::{Address, Delay, Filter, Network};
use super::{ConfigError, Flags, Store, at_value};

/// What an address is where nothing listens.
pub const OFF: &str = "off";

/// More threads than this are a mistake.
pub(crate) const WORKERS_MAX: u64 = 1_024;

/// Where to listen: an address and a port, or [`OFF`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// For HTTP.
    pub http: String,
    /// For gRPC.
    pub grpc: String,
    /// For the Redis protocol.
    pub resp: String,
}

/// What a running server cannot change.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixed {
    /// Where to listen.
    pub addresses: Addresses,
    /// How many threads answer; one for each processor unless said otherwise.
    pub workers: Option<usize>,
    /// How many connections each listener may have open.
    pub max_connections: usize,
    /// How many of them one peer may have, unless it is a trusted proxy.
    pub max_connections_per_peer: usize,
    /// How long a connection may be silent, and a request may take to arrive or an answer to leave.
    pub timeout: Duration,
    /// How long to go on after readiness has gone false, so that load balancers notice.
    pub stop_delay: Duration,
    /// What to log, as `tracing` filters say it.
    pub log: String,
    /// How to log.
    pub log_format: LogFormat,
    /// Where state is kept.
    pub store: Store,
}

impl Fixed {
    /// What of it is another in `other`, as the file calls it.
    pub(crate) fn changed_settings(&self, other: &Self) -> Vec<&'static str> {
        let Self { addresses, workers, max_connections, max_connections_per_peer, .. } = self;
        let Self { timeout, stop_delay, log, log_format, store, .. } = self;
        let Addresses { http, grpc, resp } = addresses;
        let differs = [
            ("http", *http != other.addresses.http),
            ("grpc", *grpc != other.addresses.grpc),
            ("resp", *resp != other.addresses.resp),
            ("workers", *workers != other.workers),
            ("max_connections", *max_connections != other.max_connections),
            ("max_connections_per_peer", *max_connections_per_peer != other.max_connections_per_peer),
            ("timeout", *timeout != other.timeout),
            ("stop_delay", *stop_delay != other.stop_delay),
            ("log", *log != other.log),
            ("log_format", *log_format != other.log_format),
            ("[store]", *store != other.store),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

/// How log lines look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Pretty,
    /// For machines.
    Json,
}

fn addresses(source: &Source<'_>, server: &mut Section<'_>, flags: &Flags) -> Addresses {
    let mut address = |key, flag: &Option<String>, port| {
        let address = server.get_or::<Address>(key, Address(format!("127.0.0.1:{port}"))).0;
        flag.clone().unwrap_or(address)
    };
    let addresses = Addresses {
        http: address("http", &flags.http, 8080),
        grpc: address("grpc", &flags.grpc, 8081),
        resp: address("resp", &flags.resp, 6380),
    };
    if [&addresses.http, &addresses.grpc, &addresses.resp].iter().all(|address| *address == OFF) {
        let error =
            ConfigError::new("nothing is left to listen on", "give one of http, grpc and resp an address");
        source.report(server.span("http").map_or(error.clone(), |span| error.at(span, OFF)));
    }
    addresses
}

/// Reads what takes effect when the server starts.
pub(super) fn fixed(source: &Source<'_>, mut server: Section<'_>, flags: &Flags, store: Store) -> Fixed {
    let addresses = addresses(source, &mut server, flags);
    let timeout = server.get("timeout").unwrap_or(At { value: 30 * SECOND, span: None });
    if timeout.value < Duration::from_millis(100) {
        server.report(at_value(
            ConfigError::new("`timeout` is too short to answer anyone", "30s is usual"),
            &timeout,
        ));
    }
    let workers = server.get::<u64>("workers");
    if let Some(workers) = workers.as_ref().filter(|workers| !(1..=WORKERS_MAX).contains(&workers.value)) {
        let help = "one for each processor is usual: leave it out";
        let error = ConfigError::new(format!("`workers` is from 1 to {WORKERS_MAX}"), help);
        server.report(at_value(error, workers));
    }
    let formats = [("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json)];
    let fixed = Fixed {
        addresses,
        workers: flags.workers.or(workers.and_then(|workers| usize::try_from(workers.value).ok())),
        max_connections: connections(&mut server, "max_connections", 10_000),
        max_connections_per_peer: connections(&mut server, "max_connections_per_peer", 1_000),
        timeout: timeout.value,
        stop_delay: server.get_or("stop_delay", Delay(Duration::ZERO)).0,
        log: server.get_or::<Filter>("log", Filter("info".into())).0,
        log_format: server.choice("log_format", &formats).map_or(LogFormat::Auto, |format| format.value),
        store,
    };
    server.finish();
    fixed
}

/// Reads who is asking.
pub(super) fn identity(server: &mut Section<'_>) -> Identity {
    let networks = server.list::<Network>("trusted_proxies");
    let hops = server.get::<u64>("trusted_hops");
    if let (Some(_), Some(hops)) = (&networks, &hops) {
        let help =
            "leave out one: `trusted_proxies` if the proxies' addresses change, `trusted_hops` otherwise";
        server.report(at_value(
            ConfigError::new("proxies are trusted by network or by number, not both", help),
            hops,
        ));
    }
    let headers = [
        ("x-forwarded-for", ForwardedBy::XForwardedFor),
        ("forwarded", ForwardedBy::Forwarded),
        ("x-real-ip", ForwardedBy::XRealIp),
    ];
    let by = server.choice("forwarded_by", &headers).map_or(ForwardedBy::default(), |header| header.value);
    let bits = server.get("ipv6_prefix").unwrap_or(At { value: 64, span: None });
    let prefix = u8::try_from(bits.value).ok().filter(|bits| (1..=128).contains(bits));
    if prefix.is_none() {
        server
            .report(at_value(ConfigError::new("`ipv6_prefix` is from 1 to 128 bits", "64 is usual"), &bits));
    }
    let proxies = match (networks, hops) {
        (Some(networks), _) => Some(Proxies::networks(networks.into_iter().map(|network| network.value.0))),
        (None, Some(hops)) => Some(Proxies::hops(usize::try_from(hops.value).unwrap_or(usize::MAX))),
        (None, None) => None,
    };
    let identity = Identity::peer().ipv6_prefix(prefix.unwrap_or(64));
    proxies.map_or(identity.clone(), |proxies| identity.behind(proxies.by(by)))
}

fn connections(server: &mut Section<'_>, key: &'static str, default: usize) -> usize {
    at_least_one(server, key).map_or(default, |most| usize::try_from(most).unwrap_or(usize::MAX))
}

pub(super) fn at_least_one(section: &mut Section<'_>, key: &'static str) -> Option<u64> {
    let number = section.get::<u64>(key)?;
    if number.value == 0 {
        section.report(at_value(
            ConfigError::new(format!("`{key}` is at least 1"), "write a larger number"),
            &number,
        ));
    }
    Some(number.value)
}
