//! Slots: every live one by its name and its expiry.

use tollgate::Limit;

use super::naive::{Naive, with_used};

/// A limit on concurrency and its live slots. Expired ones are kept, and not counted.
#[derive(Clone)]
pub(super) struct Slots {
    limit: u64,
    /// (name, expiry)
    slots: Vec<(u64, u64)>,
}

impl Slots {
    pub(super) const fn new(limit: u64) -> Self {
        Self { limit, slots: Vec::new() }
    }

    fn live(&mut self, name: u64, now: u64) -> Option<&mut (u64, u64)> {
        self.slots.iter_mut().find(|(other, expires_at)| *other == name && *expires_at > now)
    }
}

impl Naive for Slots {
    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }

    fn available(&self, now: u64) -> u64 {
        self.limit.saturating_sub(self.in_use(now))
    }

    fn in_use(&self, now: u64) -> u64 {
        self.slots.iter().filter(|(_, expires_at)| *expires_at > now).count() as u64
    }

    fn owed(&self, _now: u64) -> u64 {
        0
    }

    fn recordable(&self, _now: u64) -> u64 {
        u64::MAX
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        match limit.is_concurrent() {
            true => Box::new(Self { limit: limit.capacity(), slots: self.slots.clone() }),
            false => with_used(limit, now, self.in_use(now), 0),
        }
    }

    /// Only `hold` takes a slot.
    fn take(&mut self, _now: u64, _cost: u64) {}

    /// Only `release` gives one back.
    fn give(&mut self, _now: u64, _units: u64) {}

    fn hold(&mut self, now: u64, _cost: u64, name: u64, ttl: u64) {
        self.slots.push((name, now + ttl));
    }

    fn renew(&mut self, now: u64, name: u64, ttl: u64) -> bool {
        self.live(name, now).is_some_and(|slot| {
            slot.1 = now + ttl;
            true
        })
    }

    fn release(&mut self, now: u64, name: u64) -> bool {
        self.live(name, now).is_some_and(|slot| {
            slot.1 = now;
            true
        })
    }
}
