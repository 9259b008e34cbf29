//! `[store]`: where state is kept.

use std::fmt;
use std::time::Duration;

use tollgate::{Error, MemoryStore, OnFull, SECOND};
use tollgate_redis::{Change, RedisStore};
use tracing::{info, warn};

use super::reader::{At, Section};
use super::values::Delay;
use super::{Fault, at_least_one, place};
use crate::backend::Backend;
use crate::secret::Secret;

/// The store's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// Where it is, if not in memory.
    pub redis: Option<Redis>,
    /// How many keys may be in use in memory.
    pub max_keys: u64,
    /// What a new key gets when every slot is busy.
    pub on_full: OnFull,
    /// How often idle keys are looked for.
    pub sweep_interval: Duration,
    /// How long a key must have been idle.
    pub idle_for: Duration,
    /// The largest limit that a sliding log may have.
    pub log_ceiling: u64,
    /// Whether to read the cheaper clock.
    pub coarse_clock: bool,
    /// How long the store may take.
    pub deadline: Duration,
    /// The share of each limit under `on_store_error = "local"`.
    pub local_share: f64,
}

/// Redis, Valkey, Sentinel or Cluster.
#[derive(Clone, Debug, PartialEq)]
pub struct Redis {
    /// Where, and as whom.
    url: Secret,
    /// What all keys begin with.
    prefix: String,
    /// For how long a denial is remembered at most.
    remember_denials: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Memory,
    Disk,
    Redis,
}

/// Reads the section. `flag` is the URL of `--redis`, which counts more.
pub(super) fn read(mut store: Section<'_>, flag: Option<&str>) -> Store {
    let kinds = [("memory", Kind::Memory), ("disk", Kind::Disk), ("redis", Kind::Redis)];
    let kind = store.choice("kind", &kinds);
    if let Some(kind) = kind.as_ref().filter(|kind| kind.value == Kind::Disk) {
        let fault =
            Fault::new("there is no disk store yet", "write \"memory\" or \"redis\", or leave it out");
        store.fault(place(fault, kind));
    }
    for key in ["data", "durability", "flush_interval"] {
        if let Some(value) = store.get::<String>(key) {
            let message = format!("`{key}` is for kind = \"disk\", which is not built yet");
            store.fault(place(Fault::new(message, "leave it out"), &value));
        }
    }
    let redis = redis(&mut store, kind, flag);
    let clocks = [("precise", false), ("coarse", true)];
    let policies = [("deny", OnFull::Deny), ("pool", OnFull::Pool)];
    let share = store.get("local_share").unwrap_or(At { value: 0.25, span: None });
    if !(share.value > 0.0 && share.value <= 1.0) {
        store.fault(place(Fault::new("`local_share` is more than 0 and at most 1", "0.25 is usual"), &share));
    }
    let built = Store {
        redis,
        max_keys: at_least_one(&mut store, "max_keys").unwrap_or(1_000_000),
        on_full: store.choice("on_full", &policies).map_or(OnFull::Deny, |policy| policy.value),
        sweep_interval: store.get_or("sweep_interval", 60 * SECOND),
        idle_for: store.get_or("idle_for", 300 * SECOND),
        log_ceiling: at_least_one(&mut store, "log_ceiling").unwrap_or(10_000),
        coarse_clock: store.choice("clock", &clocks).is_some_and(|clock| clock.value),
        deadline: store.get_or("deadline", Duration::from_millis(50)),
        local_share: share.value,
    };
    store.finish();
    built
}

/// What is said of Redis, if that is where state is kept.
fn redis(store: &mut Section<'_>, kind: Option<At<Kind>>, flag: Option<&str>) -> Option<Redis> {
    let (url, prefix) = (store.get::<String>("url"), store.get::<String>("prefix"));
    let remember_denials = store.get::<Delay>("remember_denials");
    let kind = kind.filter(|kind| kind.value == Kind::Redis);
    if kind.is_none() && flag.is_none() {
        for (key, span) in [
            ("url", url.map(|url| url.span)),
            ("prefix", prefix.map(|prefix| prefix.span)),
            ("remember_denials", remember_denials.map(|span| span.span)),
        ] {
            if let Some(span) = span {
                let fault =
                    Fault::new(format!("`{key}` is for kind = \"redis\""), "add that, or leave it out");
                store.fault(place(fault, &At { value: (), span }));
            }
        }
        return None;
    }
    let Some(address) = flag.or(url.as_ref().map(|url| url.value.as_str())) else {
        let help = "add url = \"redis://127.0.0.1:6379\", or where it is";
        let fault = Fault::new("kind = \"redis\" needs a `url`", help);
        store.fault(kind.map_or(fault.clone(), |kind| place(fault, &kind)));
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
            let fault = Fault::new(
                format!("there is no such store: {error}"),
                "docs/fleet.md says what may be written",
            );
            let of_prefix = matches!(error, Error::InvalidConfig { field: "prefix", .. });
            // A line that may hold a password is not shown.
            let at =
                if of_prefix { prefix } else { url.filter(|url| flag.is_none() && !url.value.contains('@')) };
            store.fault(at.map_or(fault.clone(), |at| place(fault, &at)));
            None
        }
    }
}

impl Redis {
    fn open(
        &self,
        log_ceiling: u64,
        deadline: Duration,
        tell: impl Fn(&Change) + Send + Sync + 'static,
    ) -> Result<RedisStore, Error> {
        RedisStore::builder(self.url.reveal())?
            .prefix(&self.prefix)
            .remember_denials(self.remember_denials)
            .log_ceiling(log_ceiling)
            .deadline(deadline)
            .on_change(tell)
            .build()
    }
}

impl Store {
    /// The store. It is not asked for anything yet.
    ///
    /// # Errors
    /// What keeps it from being one.
    pub fn build(&self) -> Result<Backend, Error> {
        let Some(redis) = &self.redis else {
            let memory = MemoryStore::new()
                .max_keys(self.max_keys)
                .on_full(self.on_full)
                .log_ceiling(self.log_ceiling)
                .sweep(self.sweep_interval, self.idle_for);
            return Ok(Backend::Memory(Box::new(memory)));
        };
        let tell = |change: &Change| match change {
            Change::Down { reason } => {
                warn!(%reason, "Redis is away; it is tried ten times a second, and decisions follow on_store_error")
            }
            _ => info!("Redis is back"),
        };
        redis.open(self.log_ceiling, self.deadline, tell).map(Backend::Redis)
    }
}

/// Where state is kept, in words.
impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let full = match self.on_full {
            OnFull::Deny => "a new one is denied",
            OnFull::Pool => "new ones share one budget",
        };
        match self.build() {
            Ok(Backend::Redis(redis)) => {
                let prefix = self.redis.as_ref().map_or("", |redis| redis.prefix.as_str());
                let deadline = tollgate::format_duration(self.deadline);
                write!(
                    f,
                    "Keeps state at {}, under {prefix}:*, and waits {deadline} for it.",
                    redis.address()
                )
            }
            _ => write!(f, "Keeps up to {} keys in memory; when all are in use, {full}.", self.max_keys),
        }
    }
}
