//! `[store]`: where state is kept, and its bounds.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tollgate::{DAY, Error, MAX_SPAN, MemoryStore, OnFull, SECOND, format_duration};
use tollgate_disk::{DiskStore, Durability, LONGEST_INTERVAL, Progress, SHORTEST_INTERVAL};
use tollgate_redis::{Change, RedisStore};
use tracing::{info, warn};

use super::ConfigError;
use super::reader::{At, Section};
use super::server::at_least_one;
use super::values::Delay;
use crate::backend::Backend;
use crate::secret::Secret;

/// The store's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// Where state is kept.
    pub(crate) location: Location,
    /// The most keys in memory.
    pub max_keys: u64,
    /// The policy for a new key when the table is full.
    pub on_full: OnFull,
    /// The interval between sweeps for idle keys.
    pub sweep_interval: Duration,
    /// How long a key must be idle before it is reclaimed.
    pub idle_for: Duration,
    /// The largest limit of a sliding log.
    pub log_ceiling: u64,
    /// Whether to use the coarse clock.
    pub coarse_clock: bool,
    /// How long the store may take before it counts as failed.
    pub deadline: Duration,
    /// The share of each limit that applies under `on_store_error = "local"`.
    pub local_share: f64,
    /// The most reservations and slots that this server holds.
    pub max_holds: u64,
    /// The share of `max_holds` that one caller has.
    pub holds_per_caller: f64,
    /// The share of `max_keys` for keys with inline limits.
    pub inline_share: f64,
    /// The longest time for an inline limit to refill.
    pub longest_inline_refill: Duration,
}

/// Where state is kept.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Location {
    /// In this process.
    Memory,
    /// In this process and in a directory.
    Disk(Disk),
    /// In Redis.
    Redis(Redis),
}

/// Settings of the disk store.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Disk {
    data: PathBuf,
    durability: Durability,
    flush_interval: Duration,
}

/// Settings of Redis, Valkey, Sentinel or Cluster.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Redis {
    /// The URL, which may hold a password.
    url: Secret,
    /// The prefix of all keys.
    prefix: String,
    /// How long a denial is remembered at most.
    remember_denials: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum StoreKind {
    Memory,
    Disk,
    Redis,
}

/// Command-line flags, which override the section.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flags<'a> {
    /// `--redis`.
    pub(super) redis: Option<&'a str>,
    /// `--data`.
    pub(super) data: Option<&'a Path>,
}

/// Reads the section. Its paths are relative to `directory`.
pub(super) fn read(mut store: Section<'_>, flags: Flags<'_>, directory: &Path) -> Store {
    let kinds = [("memory", StoreKind::Memory), ("disk", StoreKind::Disk), ("redis", StoreKind::Redis)];
    let kind = store.choice("kind", &kinds).or_else(|| implied_kind(&store));
    let disk = disk(&mut store, kind.as_ref(), flags, directory);
    let redis = redis(&mut store, kind.as_ref(), flags);
    let location = disk.map(Location::Disk).or(redis.map(Location::Redis)).unwrap_or(Location::Memory);
    let clocks = [("precise", false), ("coarse", true)];
    let policies = [("deny", OnFull::Deny), ("pool", OnFull::Pool)];
    let (local_share, inline_share) = (share(&mut store, "local_share"), share(&mut store, "inline_share"));
    let built = Store {
        location,
        max_keys: at_least_one(&mut store, "max_keys").unwrap_or(1_000_000),
        on_full: store.choice("on_full", &policies).map_or(OnFull::Deny, |policy| policy.value),
        sweep_interval: store.get_or("sweep_interval", 60 * SECOND),
        idle_for: store.get_or("idle_for", 300 * SECOND),
        log_ceiling: at_least_one(&mut store, "log_ceiling").unwrap_or(20_000),
        coarse_clock: store.choice("clock", &clocks).is_some_and(|clock| clock.value),
        deadline: store.get_or("deadline", Duration::from_millis(50)),
        local_share: local_share.unwrap_or(0.25),
        max_holds: at_least_one(&mut store, "max_holds").unwrap_or(1_000_000),
        holds_per_caller: share(&mut store, "holds_per_caller").unwrap_or(0.1),
        inline_share: inline_share.unwrap_or(0.25),
        longest_inline_refill: longest_inline_refill(&mut store),
    };
    store.finish();
    built
}

/// A share: above 0, at most 1.
pub(super) fn share(section: &mut Section<'_>, key: &'static str) -> Option<f64> {
    let share = section.get::<f64>(key)?;
    if !(share.value > 0.0 && share.value <= 1.0) {
        let error = ConfigError::new(format!("`{key}` is more than 0 and at most 1"), "0.25 is usual");
        section.report(error.at(share.span.clone(), "here"));
    }
    Some(share.value)
}

fn longest_inline_refill(store: &mut Section<'_>) -> Duration {
    let longest = store.get("longest_inline_refill").unwrap_or(At { value: 366 * DAY, span: None });
    if longest.value > MAX_SPAN {
        let error = ConfigError::new("`longest_inline_refill` is at most 100 years", "366d is usual");
        store.report(error.at(longest.span.clone(), "here"));
    }
    longest.value
}

/// The kind implied by a variable that sets the location, as by a flag.
fn implied_kind(store: &Section<'_>) -> Option<At<StoreKind>> {
    let variables = [("data", StoreKind::Disk), ("url", StoreKind::Redis)];
    let (_, value) = variables.into_iter().find(|(key, _)| store.variable(key).is_some())?;
    Some(At { value, span: None })
}

/// Reports settings of another kind of store than the configured one.
fn misplaced(store: &mut Section<'_>, kind: &str, settings: &[(&str, Option<Option<Range<usize>>>)]) {
    for (key, span) in settings {
        if let Some(span) = span {
            let (name, help) = match store.variable(key) {
                Some((variable, _)) => (variable, format!("set TOLLGATE_STORE_KIND={kind}, or unset it")),
                None => (format!("`{key}`"), "set that kind, or remove this setting".into()),
            };
            let error = ConfigError::new(format!("{name} is for kind = \"{kind}\""), help);
            store.report(error.at(span.clone(), "here"));
        }
    }
}

/// The disk settings, if state is kept on disk.
fn disk(
    store: &mut Section<'_>,
    kind: Option<&At<StoreKind>>,
    flags: Flags<'_>,
    directory: &Path,
) -> Option<Disk> {
    let durabilities = [("relaxed", Durability::Relaxed), ("strict", Durability::Strict)];
    let (data, durability) = (store.get::<String>("data"), store.choice("durability", &durabilities));
    let flush_interval = store.get::<Duration>("flush_interval");
    let kind = kind.filter(|kind| kind.value == StoreKind::Disk);
    if flags.data.is_none() && (kind.is_none() || flags.redis.is_some()) {
        let settings = [
            ("data", data.map(|data| data.span)),
            ("durability", durability.map(|durability| durability.span)),
            ("flush_interval", flush_interval.map(|interval| interval.span)),
        ];
        if kind.is_none() {
            misplaced(store, "disk", &settings);
        }
        return None;
    }
    let Some(data) = flags.data.map(Path::to_owned).or(data.map(|data| directory.join(data.value))) else {
        let error = ConfigError::new(
            "kind = \"disk\" needs `data`",
            "add a directory, such as data = \"/var/lib/tollgate\"",
        );
        store.report(error.at(kind.and_then(|kind| kind.span.clone()), "here"));
        return None;
    };
    let flush_interval = flush_interval.unwrap_or(At { value: Duration::from_millis(100), span: None });
    if !(SHORTEST_INTERVAL..=LONGEST_INTERVAL).contains(&flush_interval.value) {
        store.report(
            ConfigError::new("`flush_interval` is from 1ms to 60s", "100ms is usual")
                .at(flush_interval.span.clone(), "here"),
        );
    }
    let flush_interval = flush_interval.value;
    Some(Disk {
        data,
        durability: durability.map_or(Durability::default(), |durability| durability.value),
        flush_interval,
    })
}

/// The Redis settings, if state is kept in Redis.
fn redis(store: &mut Section<'_>, kind: Option<&At<StoreKind>>, flags: Flags<'_>) -> Option<Redis> {
    let flag = flags.redis;
    let (url, prefix) = (store.get::<String>("url"), store.get::<String>("prefix"));
    let remember_denials = store.get::<Delay>("remember_denials");
    let kind = kind.filter(|kind| kind.value == StoreKind::Redis);
    if flag.is_none() && (kind.is_none() || flags.data.is_some()) {
        let settings = [
            ("url", url.map(|url| url.span)),
            ("prefix", prefix.map(|prefix| prefix.span)),
            ("remember_denials", remember_denials.map(|span| span.span)),
        ];
        if kind.is_none() {
            misplaced(store, "redis", &settings);
        }
        return None;
    }
    let Some(address) = flag.or(url.as_ref().map(|url| url.value.as_str())) else {
        let help = "add the URL of Redis, such as url = \"redis://127.0.0.1:6379\"";
        let error = ConfigError::new("kind = \"redis\" needs a `url`", help);
        store.report(error.at(kind.and_then(|kind| kind.span.clone()), "here"));
        return None;
    };
    let redis = Redis {
        url: Secret::new(address.to_owned()),
        prefix: prefix.as_ref().map_or("tollgate", |prefix| prefix.value.as_str()).to_owned(),
        remember_denials: remember_denials.map_or(SECOND, |span| span.value.0),
    };
    match redis.open(10_000, SECOND, |_| {}) {
        Ok(_) => Some(redis),
        Err(error) => {
            let of_prefix = matches!(error, Error::InvalidConfig { field: "prefix", .. });
            let variable = store.variable(if of_prefix { "prefix" } else { "url" });
            let named = variable.filter(|_| of_prefix || flag.is_none());
            let named = named.map_or_else(String::new, |(name, _)| format!("{name}: "));
            let error = ConfigError::new(
                format!("{named}invalid Redis settings: {error}"),
                "docs/fleet.md lists the valid URLs",
            );
            // An excerpt must not show a password.
            let at =
                if of_prefix { prefix } else { url.filter(|url| flag.is_none() && !url.value.contains('@')) };
            store.report(error.at(at.and_then(|at| at.span), "here"));
            None
        }
    }
}

impl Redis {
    fn open(
        &self,
        log_ceiling: u64,
        deadline: Duration,
        on_change: impl Fn(&Change) + Send + Sync + 'static,
    ) -> Result<RedisStore, Error> {
        RedisStore::builder(self.url.reveal())?
            .prefix(&self.prefix)
            .remember_denials(self.remember_denials)
            .log_ceiling(log_ceiling)
            .deadline(deadline)
            .on_change(on_change)
            .build()
    }
}

/// Logs a change of Redis' health.
fn log_change(change: &Change) {
    match change {
        Change::Down { reason } => {
            warn!(%reason, "Redis is away; it is probed until it is back, and decisions follow on_store_error")
        }
        Change::StillDown { reason } => warn!(%reason, "Redis is still away, for another reason"),
        Change::Back => info!("Redis is back"),
        Change::Moved { from, to } => {
            warn!(%from, %to, "the Sentinels name another master, and the connection moved to it")
        }
        Change::Slow { round_trip, deadline } => warn!(
            ?round_trip,
            ?deadline,
            "a round trip to Redis takes more than half of store.deadline, and an answer that is later than \
             that is not waited for; raise the deadline, or move closer to Redis"
        ),
        change => info!(?change, "Redis"),
    }
}

impl Disk {
    fn open(
        &self,
        memory: MemoryStore,
        on_progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<DiskStore, String> {
        let strict = self.durability == Durability::Strict;
        let on_change = move |change: &tollgate_disk::Change| match change {
            tollgate_disk::Change::Down { reason } if strict => {
                warn!(%reason, "the disk failed; it is retried once a second, and admissions follow on_store_error")
            }
            tollgate_disk::Change::Down { reason } => {
                warn!(%reason, "the disk failed; it is retried once a second, and decisions continue in memory")
            }
            _ => info!("the disk has recovered, and all changes are written"),
        };
        DiskStore::builder(&self.data)
            .memory(memory)
            .durability(self.durability)
            .flush_interval(self.flush_interval)
            .on_progress(on_progress)
            .on_change(on_change)
            .open()
            .map_err(|error| error.to_string())
    }
}

impl Store {
    pub(crate) fn memory(&self) -> MemoryStore {
        MemoryStore::new()
            .max_keys(self.max_keys)
            .on_full(self.on_full)
            .log_ceiling(self.log_ceiling)
            .sweep(self.sweep_interval, self.idle_for)
    }

    /// The data directory, if state is kept on disk.
    pub(crate) fn data_directory(&self) -> Option<&Path> {
        match &self.location {
            Location::Disk(disk) => Some(&disk.data),
            Location::Memory | Location::Redis(_) => None,
        }
    }

    /// The most keys with inline limits, per protocol.
    pub(crate) fn inline_keys(&self) -> u64 {
        self.keys(self.inline_share)
    }

    /// A share of `max_keys`, at least one key.
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "the share is from 0 to 1, and a key more or less does not matter"
    )]
    pub(crate) fn keys(&self, share: f64) -> u64 {
        ((self.max_keys as f64 * share) as u64).max(1)
    }

    /// A store that accepts the same limits, to validate rules. Nothing is opened.
    pub(crate) fn sample(&self) -> Result<Backend, Error> {
        match &self.location {
            Location::Memory | Location::Disk(_) => Ok(Backend::Memory(Box::new(self.memory()))),
            Location::Redis(redis) => redis.open(self.log_ceiling, self.deadline, |_| {}).map(Backend::Redis),
        }
    }

    /// Opens the store. Redis is not contacted yet; a directory is loaded, with its progress passed
    /// to `on_progress`.
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub(crate) fn open(
        &self,
        on_progress: impl Fn(Progress) + Send + Sync + 'static,
    ) -> Result<Backend, String> {
        let redis = match &self.location {
            Location::Memory => return Ok(Backend::Memory(Box::new(self.memory()))),
            Location::Disk(disk) => return disk.open(self.memory(), on_progress).map(Backend::Disk),
            Location::Redis(redis) => redis,
        };
        redis
            .open(self.log_ceiling, self.deadline, log_change)
            .map(Backend::Redis)
            .map_err(|error| error.to_string())
    }
}

/// The store's settings in a sentence or two.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let full = match self.on_full {
            OnFull::Deny => "a new key is denied",
            OnFull::Pool => "new keys share one budget",
        };
        if let (Location::Redis(redis), Ok(Backend::Redis(store))) = (&self.location, self.sample()) {
            let (deadline, prefix) = (format_duration(self.deadline), &redis.prefix);
            let address = store.address();
            return write!(f, "Keeps state at {address}, under {prefix}:*, and waits {deadline} for it.");
        }
        write!(f, "Keeps up to {} keys in memory; when all are in use, {full}.", self.max_keys)?;
        let Location::Disk(Disk { data, durability, flush_interval }) = &self.location else { return Ok(()) };
        let (data, interval) = (data.display(), format_duration(*flush_interval));
        match durability {
            Durability::Relaxed => write!(
                f,
                "\nWrites changes to {data} every {interval}; a crash loses those since the last write."
            ),
            Durability::Strict => {
                write!(f, "\nAnswers once changes are synced to {data}; a crash loses nothing.")
            }
        }
    }
}
