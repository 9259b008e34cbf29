//! Reservations: a history of units, and who holds which of them until when.

use super::naive::Naive;

/// The history of one key under one limit, and its reservations.
pub(super) struct Held {
    history: Box<dyn Naive>,
    holds: Vec<Hold>,
}

struct Hold {
    name: u128,
    /// Units that are still drawn for it.
    units: u64,
    drawn_at: u64,
    /// The history when they were drawn.
    then: Box<dyn Naive>,
    expires_at: u64,
    ends_at: u64,
    keeps: bool,
    has_expired: bool,
}

impl Hold {
    fn copy(&self) -> Self {
        Self { then: self.then.copy(), ..*self }
    }
}

impl Held {
    pub(super) fn new(history: Box<dyn Naive>) -> Self {
        Self { history, holds: Vec::new() }
    }

    /// The history at `now`, with what expires by then given back.
    pub(super) fn at(&self, now: u64) -> Box<dyn Naive> {
        let mut at =
            Self { history: self.history.copy(), holds: self.holds.iter().map(Hold::copy).collect() };
        at.expire(now);
        at.history
    }

    /// The history at `now`, to draw on.
    pub(super) fn at_mut(&mut self, now: u64) -> &mut dyn Naive {
        self.expire(now);
        &mut *self.history
    }

    pub(super) fn replace(&mut self, history: Box<dyn Naive>) {
        self.history = history;
    }

    /// Draws `cost` units and holds them for `ttl`.
    pub(super) fn reserve(&mut self, now: u64, cost: u64, name: u128, ttl: u64, keeps: bool) {
        self.expire(now);
        if cost > 0 {
            self.history.take(now, cost);
        }
        self.holds.push(Hold {
            name,
            units: cost,
            drawn_at: now,
            then: self.history.copy(),
            expires_at: now + ttl,
            ends_at: now + 2 * ttl,
            keeps,
            has_expired: false,
        });
    }

    /// Holds a reservation for `ttl` from now. Returns whether it was live.
    pub(super) fn renew(&mut self, now: u64, name: u128, ttl: u64) -> bool {
        self.expire(now);
        let live = self.holds.iter_mut().find(|hold| hold.name == name && !hold.has_expired);
        live.map(|hold| (hold.expires_at, hold.ends_at) = (now + ttl, now + 2 * ttl)).is_some()
    }

    /// Ends a reservation at its actual cost. Returns the units to record, if it was there.
    pub(super) fn settle(&mut self, now: u64, name: u128, cost: u64) -> Option<u64> {
        self.expire(now);
        let index = self.holds.iter().position(|hold| hold.name == name)?;
        let hold = self.holds.remove(index);
        if !hold.has_expired && cost < hold.units {
            self.history.give_own(now, hold.units - cost, hold.drawn_at, &*hold.then);
        }
        Some(cost.saturating_sub(hold.units))
    }

    /// Every expiry by `now`, at its own time.
    fn expire(&mut self, now: u64) {
        self.holds.sort_by_key(|hold| (hold.expires_at, hold.name));
        for hold in self.holds.iter_mut().filter(|hold| !hold.has_expired && hold.expires_at <= now) {
            hold.has_expired = true;
            if !hold.keeps && hold.units > 0 {
                let at = hold.expires_at;
                let before = self.history.in_use(at);
                self.history.give_own(at, hold.units, hold.drawn_at, &*hold.then);
                hold.units -= before - self.history.in_use(at);
            }
        }
        self.holds.retain(|hold| hold.ends_at > now);
    }
}
