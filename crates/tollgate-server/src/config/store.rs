//! `[store]`: where state is kept.

use std::time::Duration;

use tollgate::{MemoryStore, OnFull, SECOND};

use super::reader::{At, Section};
use super::{Fault, at_least_one, place};

/// The memory store's settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// How many keys may be in use.
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

/// Reads the section.
pub(super) fn read(mut store: Section<'_>) -> Store {
    let kinds = [("memory", "memory"), ("disk", "disk"), ("redis", "redis")];
    if let Some(kind) = store.choice("kind", &kinds).filter(|kind| kind.value != "memory") {
        let message = format!("there is no {} store yet", kind.value);
        store.fault(place(Fault::new(message, "write \"memory\", or leave it out"), &kind));
    }
    for (key, kind) in [
        ("data", "disk"),
        ("durability", "disk"),
        ("flush_interval", "disk"),
        ("url", "redis"),
        ("prefix", "redis"),
    ] {
        if let Some(value) = store.get::<String>(key) {
            let message = format!("`{key}` is for kind = \"{kind}\", which is not built yet");
            store.fault(place(Fault::new(message, "leave it out"), &value));
        }
    }
    let clocks = [("precise", false), ("coarse", true)];
    let policies = [("deny", OnFull::Deny), ("pool", OnFull::Pool)];
    let share = store.get("local_share").unwrap_or(At { value: 0.25, span: None });
    if !(share.value > 0.0 && share.value <= 1.0) {
        store.fault(place(Fault::new("`local_share` is more than 0 and at most 1", "0.25 is usual"), &share));
    }
    let built = Store {
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

impl Store {
    /// The store.
    #[must_use]
    pub fn build(&self) -> MemoryStore {
        MemoryStore::new()
            .max_keys(self.max_keys)
            .on_full(self.on_full)
            .log_ceiling(self.log_ceiling)
            .sweep(self.sweep_interval, self.idle_for)
    }
}
