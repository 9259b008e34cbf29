//! The stored state of one key: a [`Meter`], and the things that outlive a decision: a block,
//! reservations and slots.
//!
//! A slot of a [concurrent](Limit::concurrent) limit is held as a reservation of one unit is. It is
//! given back when it is settled or expires, and nothing of it is kept after that.
//!
//! [`transact`] applies a request to its cells, all or nothing. Every store calls it inside its
//! atomic section, this crate's and yours: composition is written once.

use std::time::Duration;

use crate::algorithm::Drawn;
use crate::store::{Effect, HoldId};
use crate::{Limit, Meter, Timestamp};

mod hold;
mod holds;
mod numbers;
mod transact;

use hold::{Block, Hold};
use holds::{EXPIRE_MAX, Expiry, Holds};
pub(crate) use transact::transact_in_place;
pub use transact::{Transaction, transact};

/// The stored state of one key: a [`Meter`], a block and reservations.
///
/// A store reads the cells of a request, hands them to [`transact`] and writes back the changed
/// ones, in one atomic step. It writes [`Cell::state`].
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    meter: Meter,
    block: Block,
    /// Reservations, or slots.
    holds: Holds,
}

impl Cell {
    /// The cell of a new key.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self::plain(Meter::new(limit))
    }

    /// A cell with no block and no reservation.
    pub(crate) fn plain(meter: Meter) -> Self {
        Self { meter, block: Block::default(), holds: Holds::default() }
    }

    /// Whether it has no block and no reservation, and its state packs.
    pub(crate) fn is_plain(&self, now: Timestamp) -> bool {
        self.holds.is_empty() && self.block.until <= now && self.meter.is_packed()
    }

    pub(crate) fn limit(&self) -> Limit {
        self.meter.limit()
    }

    pub(crate) const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Whether forgetting the cell changes no later outcome.
    pub(crate) fn is_idle(&self, now: Timestamp) -> bool {
        if self.block.until > now || self.holds.ends_at() > now {
            return false;
        }
        if self.holds.is_empty() {
            return self.meter.is_idle(now);
        }
        // The expiries have not been applied: units that they give back may make it idle.
        let mut meter = self.meter.clone();
        self.holds.expire(&mut meter, now, usize::MAX);
        meter.is_idle(now)
    }

    /// Whether `limit` is one that replaces the cell's own, so that units in use have to be
    /// converted. An idle cell may already have been forgotten, which must not be observable.
    fn is_replaced_by(&self, limit: &Limit, now: Timestamp) -> bool {
        limit.replaces(&self.limit()) && !self.is_idle(now)
    }

    /// The latest time at which the cell turns idle if no more requests arrive. A reservation given
    /// back may make it earlier.
    pub(crate) fn idle_at(&self) -> u64 {
        self.meter.idle_at().max(self.block.until.as_nanos()).max(self.holds.ends_at().as_nanos())
    }

    /// Whether a hold has to expire, or has ended.
    fn is_due(&self, now: Timestamp) -> bool {
        self.meter.written_at() <= now && self.holds.is_due(now)
    }

    /// The holds, and when they end.
    pub(crate) fn holds(&self) -> impl Iterator<Item = (HoldId, Timestamp)> {
        self.holds.ends()
    }

    /// When the store may forget the cell if no more requests arrive.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.idle_at())
    }

    /// Re-bases a state that is ahead of `now` by more than a period: it is exactly empty as of
    /// now. Used by maintenance, since the client may never return.
    pub(crate) fn rebase_wild(&mut self, now: Timestamp) {
        if self.meter.skew(now) == crate::meter::Skew::Wild {
            self.rebase(now);
        }
        if self.has_wild_slots(now) {
            self.restart_slots(now);
        }
        self.block = self.block.restarted(now);
    }

    /// Drops an ended block before the cell is stored, so that it is not in force again when the
    /// clock goes back.
    fn drop_ended(&mut self, now: Timestamp) {
        if self.block.until <= now {
            self.block = Block::default();
        }
    }

    /// Converts the cell to a limit that replaces its own.
    fn retune(&mut self, limit: &Limit, now: Timestamp) {
        let at = self.meter.not_before(now);
        let (before, had_slots) = (self.meter.used(at), self.meter.is_concurrent());
        self.meter.retune(*limit, now);
        if limit.is_concurrent() && !had_slots {
            // What is reserved is under way, each reservation in a slot of its own.
            self.holds
                .rebuild(|hold| Some(Hold::slot(hold.made_at, hold.ttl())).filter(|_| !hold.has_expired));
            self.count_slots();
            return;
        }
        // Units that exceed the new limit are no longer in use and cannot be given back.
        let at = self.meter.not_before(at);
        let mut gone = before.saturating_sub(self.meter.used(at));
        let drawn = Drawn::any(self.meter.lapses_at());
        let is_slot = limit.is_concurrent();
        self.holds.rebuild(|hold| {
            let cut = gone.min(hold.units);
            gone = gone.saturating_sub(cut);
            Some(Hold { units: hold.units.saturating_sub(cut), drawn, is_slot, ..hold })
        });
    }

    /// Sets the meter of a concurrent limit that has counted no slot yet.
    fn count_slots(&mut self) {
        if self.meter.is_concurrent() {
            let live = u64::try_from(self.holds.len()).unwrap_or(u64::MAX);
            self.meter.take(Timestamp::EPOCH, live);
        }
    }

    /// Restarts the slots that a wild reading of the clock made: each lasts its full time to live
    /// from now.
    fn restart_slots(&mut self, now: Timestamp) {
        self.holds.rebuild(|hold| Some(if hold.is_wild(now) { hold.restarted(now) } else { hold }));
    }

    fn has_wild_slots(&self, now: Timestamp) -> bool {
        self.meter.is_concurrent() && self.holds.has_wild(now)
    }

    /// Re-bases the cell: exactly empty as of now. Each reservation lasts its full time to live
    /// from now.
    fn rebase(&mut self, now: Timestamp) {
        self.meter = self.meter.rebased(now);
        let drawn = Drawn::any(self.meter.lapses_at());
        self.holds.rebuild(|hold| Some(Hold { drawn, ..hold.restarted(now) }).filter(|_| !hold.has_expired));
    }

    /// Takes the units of a reservation, or a slot, and holds them.
    fn hold(&mut self, id: HoldId, hold: Hold) {
        self.meter.take(hold.made_at, hold.units);
        let (lapses_at, rest) = self.meter.lapses_at();
        self.holds.insert(id, Hold { drawn: Drawn { lapses_at, rest, ..hold.drawn }, ..hold });
    }

    /// Holds a reservation or a slot for `ttl` from now. Returns whether it has not expired.
    fn renew(&mut self, id: HoldId, now: Timestamp, ttl: Duration) -> bool {
        // More may be due than one operation expires.
        let is_over = |hold: &Hold| hold.expires_at <= now && self.meter.written_at() <= now;
        let live = self.holds.get(id).filter(|hold| !hold.has_expired && !is_over(hold));
        let renewed = |hold| Hold { made_at: now, expires_at: now.saturating_add(ttl), ..hold };
        live.map(|hold| self.holds.insert(id, renewed(hold))).is_some()
    }

    /// Ends a reservation at its actual cost.
    fn settle(&mut self, id: HoldId, now: Timestamp, cost: u64) -> Effect {
        let Some(hold) = self.holds.remove(id) else { return Effect::NotReserved };
        let cost = if hold.is_slot { 0 } else { cost };
        let shortfall = match hold.units.checked_sub(cost) {
            None => self.record(now, cost.saturating_sub(hold.units)),
            // What its expiry did not give back stays charged: stalling gains nothing.
            Some(_) if hold.has_expired => 0,
            Some(less) => {
                self.meter.give_held(now, less, hold.drawn);
                0
            }
        };
        if hold.has_expired { Effect::SettledLate { shortfall } } else { Effect::Settled { shortfall } }
    }

    /// Records units that were used, and returns how many are beyond the limit's debt.
    fn record(&mut self, now: Timestamp, units: u64) -> u64 {
        units.saturating_sub(self.meter.record(now, units))
    }
}

#[cfg(test)]
mod tests;
