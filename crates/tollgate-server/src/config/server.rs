//! `[server]`: listeners, timeouts, bounds, logging and client identification.

use std::time::Duration;

use tollgate::{Paths, SECOND};
use tollgate_http::{ForwardedBy, Identity, Proxies};
use tracing_subscriber::filter::{LevelFilter, Targets};

use super::reader::{At, Section};
use super::setting::Setting as _;
use super::source::Source;
use super::values::{Address, Delay, Network};
use super::{ConfigError, Flags, Store, Telemetry};

/// The address of a listener that is off.
pub(crate) const OFF: &str = "off";

/// The most worker threads.
pub(crate) const WORKERS_MAX: u64 = 1_024;

/// How rules see paths, by the names of the setting `path`.
pub(crate) const PATHS: [(&str, Paths); 3] =
    [("normalized", Paths::Normalized), ("case-insensitive", Paths::CaseInsensitive), ("raw", Paths::Raw)];

/// How many callers a gRPC peer counts as by default.
const GRPC_SHARE: u64 = 16;

/// The most callers that a gRPC peer may count as.
const GRPC_SHARE_MAX: u32 = 1_000;

/// The listen addresses: host and port, or `off`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The HTTP address.
    pub http: String,
    /// The gRPC address.
    pub grpc: String,
    /// The address of the Redis protocol.
    pub resp: String,
}

/// Settings that need a restart.
#[derive(Clone, Debug, PartialEq)]
pub struct Fixed {
    /// The listen addresses.
    pub addresses: Addresses,
    /// Worker threads; one per processor if `None`.
    pub workers: Option<usize>,
    /// The most open connections per listener.
    pub max_connections: usize,
    /// The most open connections per listener of one peer that is not a trusted proxy.
    pub max_connections_per_peer: usize,
    /// The longest time for a connection to be idle, a request to arrive, or a response to leave.
    pub timeout: Duration,
    /// How long to serve after readiness has turned false, so that load balancers notice.
    pub stop_delay: Duration,
    /// The log filter.
    pub log: Targets,
    /// The log format.
    pub log_format: LogFormat,
    /// The store's settings.
    pub store: Store,
    /// Where metrics and spans are exported to.
    pub telemetry: Option<Telemetry>,
}

impl Fixed {
    /// The names of the settings that differ in `other`.
    pub(crate) fn changed_settings(&self, other: &Self) -> Vec<&'static str> {
        let Self { addresses, workers, max_connections, max_connections_per_peer, .. } = self;
        let Self { timeout, stop_delay, log, log_format, store, telemetry, .. } = self;
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
            ("[telemetry]", *telemetry != other.telemetry),
        ];
        differs.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// Human-readable lines.
    Pretty,
    /// One JSON object per line.
    Json,
}

fn addresses(source: &Source<'_>, server: &mut Section<'_>, flags: &Flags) -> Addresses {
    let mut address = |key, flag: &Option<String>, port| {
        let address = server.get_or::<Address>(key, Address(format!("127.0.0.1:{port}"))).0;
        let Some(flag) = flag else { return address };
        let read = Address::from_text(flag).map(|address| address.0);
        read.unwrap_or_else(|error| {
            source.report(error.of_flag(key, flag));
            address
        })
    };
    let addresses = Addresses {
        http: address("http", &flags.http, 8080),
        grpc: address("grpc", &flags.grpc, 8081),
        resp: address("resp", &flags.resp, 6380),
    };
    if [&addresses.http, &addresses.grpc, &addresses.resp].iter().all(|address| *address == OFF) {
        let error = ConfigError::new("every listener is off", "give one of http, grpc and resp an address");
        source.report(server.span_of("http").map_or(error.clone(), |span| error.at(span, OFF)));
    }
    addresses
}

/// Reads the settings that need a restart.
pub(super) fn fixed(
    source: &Source<'_>,
    mut server: Section<'_>,
    flags: &Flags,
    (store, telemetry): (Store, Option<Telemetry>),
) -> Fixed {
    let addresses = addresses(source, &mut server, flags);
    let timeout = server.get("timeout").unwrap_or(At { value: 30 * SECOND, span: None });
    if timeout.value < Duration::from_millis(100) {
        server.report(
            ConfigError::new("`timeout` is too short for any request", "30s is usual")
                .at(timeout.span.clone(), "here"),
        );
    }
    let workers = server.get::<u64>("workers");
    if let Some(workers) = workers.as_ref().filter(|workers| !(1..=WORKERS_MAX).contains(&workers.value)) {
        let help = "remove it for one per processor";
        let error = ConfigError::new(format!("`workers` is from 1 to {WORKERS_MAX}"), help);
        server.report(error.at(workers.span.clone(), "here"));
    }
    let formats = [("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json)];
    let fixed = Fixed {
        addresses,
        workers: flags.workers.or(workers.and_then(|workers| usize::try_from(workers.value).ok())),
        max_connections: connections(&mut server, "max_connections", 10_000),
        max_connections_per_peer: connections(&mut server, "max_connections_per_peer", 1_000),
        timeout: timeout.value,
        stop_delay: server.get_or("stop_delay", Delay(Duration::ZERO)).0,
        log: server.get_or("log", Targets::new().with_default(LevelFilter::INFO)),
        log_format: server.choice("log_format", &formats).map_or(LogFormat::Auto, |format| format.value),
        store,
        telemetry,
    };
    server.finish();
    fixed
}

/// Reads how clients are identified.
pub(super) fn identity(server: &mut Section<'_>) -> Identity {
    let networks = server.list::<Network>("trusted_proxies");
    let hops = server.get::<u64>("trusted_hops");
    if let (Some(_), Some(hops)) = (&networks, &hops) {
        let help = "remove `trusted_proxies` if the proxies' addresses change, `trusted_hops` otherwise";
        server.report(
            ConfigError::new("proxies are trusted by network or by number, not both", help)
                .at(hops.span.clone(), "here"),
        );
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
        server.report(
            ConfigError::new("`ipv6_prefix` is from 1 to 128 bits", "64 is usual")
                .at(bits.span.clone(), "here"),
        );
    }
    let proxies = match (networks, hops) {
        (Some(networks), _) => Some(Proxies::networks(networks.into_iter().map(|network| network.value.0))),
        (None, Some(hops)) => Some(Proxies::hops(usize::try_from(hops.value).unwrap_or(usize::MAX))),
        (None, None) => None,
    };
    let identity = Identity::peer().ipv6_prefix(prefix.unwrap_or(64));
    proxies.map_or(identity.clone(), |proxies| identity.behind(proxies.by(by)))
}

/// Reads how many callers a gRPC peer counts as.
pub(super) fn grpc_share(server: &mut Section<'_>) -> u32 {
    let share = server.get("grpc_share").unwrap_or(At { value: GRPC_SHARE, span: None });
    let valid = u32::try_from(share.value).ok().filter(|share| (1..=GRPC_SHARE_MAX).contains(share));
    if valid.is_none() {
        let help = "16 is usual; 1 treats a gRPC peer as any other caller";
        let error = ConfigError::new(format!("`grpc_share` is from 1 to {GRPC_SHARE_MAX}"), help);
        server.report(error.at(share.span.clone(), "here"));
    }
    valid.unwrap_or(1)
}

fn connections(server: &mut Section<'_>, key: &'static str, default: usize) -> usize {
    at_least_one(server, key).map_or(default, |max| usize::try_from(max).unwrap_or(usize::MAX))
}

pub(super) fn at_least_one(section: &mut Section<'_>, key: &'static str) -> Option<u64> {
    let number = section.get::<u64>(key)?;
    if number.value == 0 {
        section.report(
            ConfigError::new(format!("`{key}` is at least 1"), "write a larger number")
                .at(number.span.clone(), "here"),
        );
    }
    Some(number.value)
}
