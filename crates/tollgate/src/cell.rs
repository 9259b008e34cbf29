//! The stored state of one key: a [`Meter`], and the things that outlive a decision: a block,
//! reservations and slots.
//!
//! A slot of a [concurrent](Limit::concurrent) limit is held as a reservation of one unit is. It is
//! given back when it is settled or expires, and nothing of it is kept after that.
//!
//! [`transact`] applies a request to its cells, all or nothing. Every store calls it inside its
//! atomic section, this crate's and yours: composition is written once.

use std::time::Duration;

use crate::store::{Effect, HoldId, OnExpiry, Until};
use crate::{Limit, Meter, Timestamp};

mod hold;
mod transact;

use hold::{Block, Hold};
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
    /// Reservations or slots in order of expiry.
    holds: Vec<Hold>,
}

/// The most reservations of one key at a time. Every request walks them, so their number is
/// bounded. One holder has at most as many as are free, at most half of them: no holder uses up the
/// reservations of a shared budget.
const HOLDS_MAX: usize = 8_192;

/// The most notes of one key at a time. A settled reservation is gone at once, and a note stays
/// until its end, so there may be fewer notes. One more replaces the note that ends first.
const NOTES_MAX: usize = 128;

impl Cell {
    /// The cell of a new key.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self::plain(Meter::new(limit))
    }

    /// A cell with no block and no reservation.
    pub(crate) fn plain(meter: Meter) -> Self {
        Self { meter, block: Block::default(), holds: Vec::new() }
    }

    /// Whether it has no block and no reservation, and its state packs.
    pub(crate) fn is_plain(&self, now: Timestamp) -> bool {
        self.holds.is_empty() && self.block.until <= now && self.meter.is_packed()
    }

    /// The cell as numbers, without its limit: the block, the number of reservations, the
    /// reservations, and the meter's state.
    pub(crate) fn to_numbers(&self) -> Vec<u64> {
        let Block { set_at, until } = self.block;
        let holds = u64::try_from(self.holds.len()).unwrap_or(0);
        let mut numbers = vec![set_at.as_nanos(), until.as_nanos(), holds];
        for hold in &self.holds {
            let Hold { id: HoldId(id), holder, units, made_at, expires_at, lapses_at, .. } = *hold;
            let [low, high] = halves(id);
            let is_kept = u64::from(hold.on_expiry == OnExpiry::Keep);
            let flags = if hold.has_expired { is_kept | EXPIRED } else { is_kept };
            numbers.extend([low, high, holder, units]);
            numbers.extend([made_at.as_nanos(), expires_at.as_nanos(), lapses_at, flags]);
        }
        numbers.extend(self.meter.numbers());
        numbers
    }

    /// The cell that [`to_numbers`](Self::to_numbers) wrote under this limit. `None` if the limit
    /// cannot have written these numbers.
    pub(crate) fn from_numbers(limit: Limit, numbers: &[u64]) -> Option<Self> {
        let ([set_at, until, holds], rest) = numbers.split_first_chunk()?;
        let count = usize::try_from(*holds).ok().filter(|count| *count <= HOLDS_MAX)?;
        let (holds, state) = rest.split_at_checked(count.checked_mul(HOLD_NUMBERS)?)?;
        let time = |nanos| Some(Timestamp::from_nanos(nanos)).filter(|time| time.as_nanos() == nanos);
        let hold = |numbers: &[u64; HOLD_NUMBERS]| {
            let [low, high, holder, units, made_at, expires_at, lapses_at, flags] = *numbers;
            let id = HoldId(u128::from(low) | (u128::from(high) << 64));
            let (made_at, expires_at) = (time(made_at)?, time(expires_at)?);
            let on_expiry = if flags & KEPT == 0 { OnExpiry::GiveBack } else { OnExpiry::Keep };
            let has_expired = flags & EXPIRED != 0;
            Some(Hold { id, holder, units, made_at, expires_at, lapses_at, on_expiry, has_expired })
        };
        let holds: Vec<Hold> = holds.as_chunks().0.iter().map(hold).collect::<Option<_>>()?;
        holds.is_sorted_by_key(|hold| hold.expires_at).then_some(())?;
        let is_slot = |hold: &Hold| {
            *hold == Hold { lapses_at: hold.lapses_at, ..Hold::slot(hold.id, hold.made_at, hold.ttl()) }
        };
        (!limit.is_concurrent() || holds.iter().all(is_slot)).then_some(())?;
        let block = Block { set_at: time(*set_at)?, until: time(*until)? };
        let mut cell = Self { meter: Meter::from_numbers(limit, state)?, block, holds };
        cell.count_slots();
        Some(cell)
    }

    pub(crate) fn limit(&self) -> Limit {
        self.meter.limit()
    }

    pub(crate) const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Whether forgetting the cell changes no later outcome.
    pub(crate) fn is_idle(&self, now: Timestamp) -> bool {
        if self.holds.iter().any(|hold| hold.is_due(now)) {
            let mut expired = self.clone();
            expired.expire(now);
            return expired.is_idle(now);
        }
        self.idle_at() <= now.as_nanos()
    }

    /// The latest time at which the cell turns idle if no more requests arrive. A reservation given
    /// back may make it earlier.
    pub(crate) fn idle_at(&self) -> u64 {
        let ends_at = |hold: &Hold| if self.meter.is_concurrent() { hold.expires_at } else { hold.ends_at() };
        let settled = self.holds.iter().map(|hold| ends_at(hold).as_nanos()).max().unwrap_or(0);
        self.meter.idle_at().max(self.block.until.as_nanos()).max(settled)
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
        self.restart_slots(now);
        self.restart_block(now);
    }

    /// Drops an ended block and expired reservations before the cell is stored, so that they are
    /// not in force again when the clock goes back.
    fn drop_ended(&mut self, now: Timestamp) {
        if !self.is_blocked(now) {
            self.block = Block::default();
        }
        if self.meter.written_at() <= now {
            self.expire(now);
        }
    }

    fn is_blocked(&self, now: Timestamp) -> bool {
        self.block.until > now
    }

    /// Gives back the units of expired reservations, and forgets those that can no longer be
    /// settled.
    fn expire(&mut self, now: Timestamp) {
        let expiring = |hold: &&mut Hold| !hold.has_expired && hold.expires_at <= now;
        for hold in self.holds.iter_mut().filter(expiring) {
            hold.has_expired = true;
            if hold.on_expiry == OnExpiry::GiveBack {
                self.meter.give_held(hold.expires_at, hold.units, hold.lapses_at);
                hold.units = 0;
            }
        }
        let is_slot = self.meter.is_concurrent();
        self.holds.retain(|hold| !(hold.is_due(now) || is_slot && hold.has_expired));
    }

    /// The reservations that have not expired.
    fn live_holds(&self) -> impl Iterator<Item = &Hold> {
        self.holds.iter().filter(|hold| !hold.has_expired)
    }

    /// Converts the cell to a limit that replaces its own.
    fn retune(&mut self, limit: &Limit, now: Timestamp) {
        let at = self.meter.not_before(now);
        let (before, had_slots) = (self.meter.used(at), self.meter.is_concurrent());
        self.meter.retune(*limit, now);
        if limit.is_concurrent() && !had_slots {
            // What is reserved is under way, each reservation in a slot of its own.
            self.holds.retain(|hold| !hold.has_expired);
            for hold in &mut self.holds {
                *hold = Hold::slot(hold.id, hold.made_at, hold.ttl());
            }
            self.count_slots();
            return;
        }
        // Units that exceed the new limit are no longer in use and cannot be given back.
        let at = self.meter.not_before(at);
        let mut gone = before.saturating_sub(self.meter.used(at));
        for hold in &mut self.holds {
            let cut = gone.min(hold.units);
            hold.units = hold.units.saturating_sub(cut);
            hold.lapses_at = self.meter.idle_at();
            gone = gone.saturating_sub(cut);
        }
    }

    /// Sets the meter of a concurrent limit that has counted no slot yet.
    fn count_slots(&mut self) {
        if self.meter.is_concurrent() {
            let live = u64::try_from(self.holds.len()).unwrap_or(u64::MAX);
            self.meter.take(Timestamp::EPOCH, live);
        }
    }

    /// Restarts the slots that a wild reading of the clock made: each lasts its full time to live
    /// from now. Returns whether there were any.
    fn restart_slots(&mut self, now: Timestamp) -> bool {
        if !self.has_wild_slots(now) {
            return false;
        }
        for hold in self.holds.iter_mut().filter(|hold| hold.is_wild(now)) {
            *hold = Hold::slot(hold.id, now, hold.ttl());
        }
        self.holds.sort_by_key(|hold| hold.expires_at);
        true
    }

    fn has_wild_slots(&self, now: Timestamp) -> bool {
        self.meter.is_concurrent() && self.holds.iter().any(|hold| hold.is_wild(now))
    }

    /// Re-bases the cell: exactly empty as of now. Each reservation lasts its full time to live
    /// from now.
    fn rebase(&mut self, now: Timestamp) {
        self.meter = self.meter.rebased(now);
        let lapses_at = self.meter.idle_at();
        self.holds.retain(|hold| !hold.has_expired || hold.is_note());
        for hold in self.holds.iter_mut().filter(|hold| !hold.is_note()) {
            let expires_at = now.saturating_add(hold.ttl());
            *hold = Hold { made_at: now, expires_at, lapses_at, ..*hold };
        }
        self.holds.sort_by_key(|hold| hold.expires_at);
    }

    /// Restarts a block that was set at a later reading of the clock, for its full duration from
    /// now. Returns whether it did.
    fn restart_block(&mut self, now: Timestamp) -> bool {
        let is_ahead = self.block.is_ahead(now);
        if is_ahead {
            self.block = Block::new(Until::After(self.block.lasts()), now);
        }
        is_ahead
    }

    /// When `holder` can make one more reservation: now, unless it has as many as are free.
    fn reservable_at(&self, holder: u64, now: Timestamp) -> Timestamp {
        let mut held = self.live_holds().filter(|hold| hold.holder == holder).count();
        let mut free = HOLDS_MAX.saturating_sub(self.live_holds().count());
        let mut at = now;
        for hold in self.live_holds() {
            if held < free {
                break;
            }
            held = held.saturating_sub(usize::from(hold.holder == holder));
            free = free.saturating_add(1);
            at = hold.expires_at;
        }
        at
    }

    /// Takes the units of a reservation and holds them. A reservation of 0 units is not stored.
    fn hold(&mut self, hold: Hold) {
        if hold.units == 0 {
            return;
        }
        self.meter.take(hold.made_at, hold.units);
        if self.holds.len() >= HOLDS_MAX {
            // The oldest one that has expired, or a note: live ones are fewer.
            self.holds.remove(self.holds.iter().position(|hold| hold.has_expired).unwrap_or(0));
        }
        self.insert(Hold { lapses_at: self.meter.idle_at(), ..hold });
    }

    /// Keeps a note, instead of the one with the same id or, if there are too many, of the one that
    /// ends first. Reservations come first: a cell full of them, or of slots, keeps no note.
    fn note(&mut self, note: Hold) {
        self.holds.retain(|hold| hold.id != note.id);
        let mut notes = self.holds.iter().enumerate().filter(|(_, hold)| hold.is_note());
        let (first, others) = (notes.next().map(|(index, _)| index), notes.count());
        let is_full = self.holds.len() >= HOLDS_MAX || self.meter.is_concurrent();
        match first {
            Some(first) if is_full || others.saturating_add(1) >= NOTES_MAX => drop(self.holds.remove(first)),
            None if is_full => return,
            _ => {}
        }
        self.insert(note);
    }

    /// The index of a reservation that holds something, or of a slot.
    fn position(&self, id: HoldId) -> Option<usize> {
        self.holds.iter().position(|hold| hold.id == id && !hold.is_note())
    }

    fn insert(&mut self, hold: Hold) {
        let index = self.holds.partition_point(|other| other.expires_at <= hold.expires_at);
        self.holds.insert(index, hold);
    }

    /// Holds a reservation for `ttl` from now. Returns whether it has not expired.
    fn renew(&mut self, id: HoldId, now: Timestamp, ttl: Duration) -> bool {
        let Some(index) = self.holds.iter().position(|hold| hold.id == id && !hold.has_expired) else {
            return false;
        };
        let hold = self.holds.remove(index);
        self.insert(Hold { made_at: now, expires_at: now.saturating_add(ttl), ..hold });
        true
    }

    /// Ends a reservation at its actual cost.
    fn settle(&mut self, id: HoldId, now: Timestamp, cost: u64) -> Effect {
        let Some(index) = self.position(id) else { return Effect::NotReserved };
        let hold = self.holds.remove(index);
        let cost = if self.meter.is_concurrent() { 0 } else { cost };
        let shortfall = match hold.units.checked_sub(cost) {
            None => self.record(now, cost.saturating_sub(hold.units)),
            // An estimate that was kept when it expired stays charged: stalling gains nothing.
            Some(_) if hold.has_expired => 0,
            Some(less) => {
                self.meter.give_held(now, less, hold.lapses_at);
                0
            }
        };
        if hold.has_expired { Effect::SettledLate { shortfall } } else { Effect::Settled { shortfall } }
    }

    /// Records units that were used, and returns how many are beyond the limit's debt.
    fn record(&mut self, now: Timestamp, units: u64) -> u64 {
        units.saturating_sub(self.meter.record(now, units))
    }

    /// When `units` are available if no more requests arrive, counting reservations that expire
    /// before.
    fn available_with_expiry_at(&self, now: Timestamp, units: u64) -> u64 {
        let (mut meter, mut now) = (self.meter.clone(), now);
        for hold in self.live_holds().filter(|hold| hold.on_expiry == OnExpiry::GiveBack) {
            let at = meter.available_at(now, units);
            if at <= hold.expires_at.as_nanos() {
                return at;
            }
            now = now.max(hold.expires_at);
            meter.give_held(now, hold.units, hold.lapses_at);
        }
        meter.available_at(now, units)
    }
}

/// Numbers per reservation, of which the last has these flags.
const HOLD_NUMBERS: usize = 8;
const KEPT: u64 = 1;
const EXPIRED: u64 = 2;

/// The lower and the upper half of a number.
#[expect(clippy::cast_possible_truncation, clippy::as_conversions, reason = "both halves are kept")]
const fn halves(wide: u128) -> [u64; 2] {
    [wide as u64, (wide >> 64) as u64]
}

#[cfg(test)]
mod tests;
