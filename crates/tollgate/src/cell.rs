//! What a store keeps of one key: a [`Meter`] with the two things that outlive a decision, a block
//! and reservations.
//!
//! [`transact`] applies a request to its cells, all or nothing. Every store of this crate calls it
//! inside its atomic section, and so does a store of anyone else's: composition is written once.

use std::time::Duration;

use crate::algorithm::LATE;
use crate::store::{HoldId, Until};
use crate::{Limit, Meter, Timestamp};

mod transact;

pub use transact::{Transaction, transact};

/// What a store keeps of one key: a [`Meter`], a block and reservations.
///
/// A store reads the cells of a request, hands them to [`transact`] and writes back those that
/// changed, all of it in one atomic step. [`Cell::state`] is what it writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    meter: Meter,
    block: Block,
    /// In the order of their expiry.
    holds: Vec<Hold>,
}

/// The most reservations of one key at a time. Every request goes through them, so they are bounded
/// like everything else. One holder has at most as many as are free, which is half of them: nobody
/// alone uses up the places of a budget that others share.
const HOLDS_MAX: usize = 8_192;

/// Units that come back at `expires_at` unless settled before, or stay drawn if they are held
/// firmly.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Hold {
    id: HoldId,
    /// Whose it is, as a number.
    holder: u64,
    units: u64,
    made_at: Timestamp,
    expires_at: Timestamp,
    /// When they would have come back on their own: from then on there is nothing to give back.
    lapses_at: u64,
    firm: bool,
}

/// A span of time in which everything is denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Block {
    /// When it was set, if it was given as a duration; the epoch if it was given as a date.
    set_at: Timestamp,
    until: Timestamp,
}

impl Block {
    fn new(until: Until, now: Timestamp) -> Self {
        match until {
            // Lifted, and not in force again when the clock goes back.
            Until::Date(until) if until <= now => Self::default(),
            Until::Date(until) => Self { set_at: Timestamp::EPOCH, until },
            Until::After(span) => Self { set_at: now, until: now.saturating_add(span) },
        }
    }

    fn lasts(self) -> Duration {
        self.until.since(self.set_at)
    }

    /// Whether the clock has gone back since it was set: a duration is then counted from now.
    fn is_ahead(self, now: Timestamp) -> bool {
        self.set_at.as_nanos().saturating_sub(now.as_nanos()) > LATE
    }
}

impl Cell {
    /// The cell of a key that nothing is kept of.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self::plain(Meter::new(limit))
    }

    /// A cell with no block and no reservation.
    pub(crate) fn plain(meter: Meter) -> Self {
        Self { meter, block: Block::default(), holds: Vec::new() }
    }

    /// Whether the meter is all there is to it.
    pub(crate) fn is_plain(&self, now: Timestamp) -> bool {
        self.holds.is_empty() && self.block.until <= now
    }

    /// The cell as numbers, all but its limit: its block, how many reservations, those, and its
    /// state.
    pub(crate) fn to_numbers(&self) -> Vec<u64> {
        let Block { set_at, until } = self.block;
        let holds = u64::try_from(self.holds.len()).unwrap_or(0);
        let mut numbers = vec![set_at.as_nanos(), until.as_nanos(), holds];
        for Hold { id: HoldId(id), holder, units, made_at, expires_at, lapses_at, firm } in &self.holds {
            let [low, high] = halves(*id);
            let times = [made_at.as_nanos(), expires_at.as_nanos(), *lapses_at];
            numbers.extend([low, high, *holder, *units]);
            numbers.extend(times);
            numbers.push(u64::from(*firm));
        }
        numbers.extend(self.meter.numbers());
        numbers
    }

    /// The cell that [`to_numbers`](Self::to_numbers) wrote under this limit, if it can have.
    pub(crate) fn from_numbers(limit: Limit, numbers: &[u64]) -> Option<Self> {
        let ([set_at, until, holds], rest) = numbers.split_first_chunk()?;
        let count = usize::try_from(*holds).ok().filter(|count| *count <= HOLDS_MAX)?;
        let (holds, state) = rest.split_at_checked(count.checked_mul(HOLD_NUMBERS)?)?;
        let time = |nanos| Some(Timestamp::from_nanos(nanos)).filter(|time| time.as_nanos() == nanos);
        let hold = |numbers: &[u64; HOLD_NUMBERS]| {
            let [low, high, holder, units, made_at, expires_at, lapses_at, firm] = *numbers;
            let id = HoldId(u128::from(low) | (u128::from(high) << 64));
            let (made_at, expires_at) = (time(made_at)?, time(expires_at)?);
            Some(Hold { id, holder, units, made_at, expires_at, lapses_at, firm: firm != 0 })
        };
        let holds: Vec<Hold> = holds.as_chunks().0.iter().map(hold).collect::<Option<_>>()?;
        holds.is_sorted_by_key(|hold| hold.expires_at).then_some(())?;
        let block = Block { set_at: time(*set_at)?, until: time(*until)? };
        Some(Self { meter: Meter::from_numbers(limit, state)?, block, holds })
    }

    pub(crate) fn limit(&self) -> Limit {
        self.meter.limit()
    }

    pub(crate) const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Whether forgetting it changes no later outcome.
    pub(crate) fn is_idle(&self, now: Timestamp) -> bool {
        if self.holds.last().is_some_and(|last| last.expires_at <= now) {
            let mut expired = self.clone();
            expired.expire(now);
            return expired.is_idle(now);
        }
        self.idle_at() <= now.as_nanos()
    }

    /// When it turns idle if nothing more arrives, at the latest: reservations that are given back
    /// may make it sooner.
    pub(crate) fn idle_at(&self) -> u64 {
        let settled = self.holds.last().map_or(0, |hold| hold.expires_at.as_nanos());
        self.meter.idle_at().max(self.block.until.as_nanos()).max(settled)
    }

    /// When the store may forget the cell if nothing more arrives.
    #[must_use]
    pub fn expires_at(&self) -> Timestamp {
        Timestamp::from_nanos(self.idle_at())
    }

    /// A state ahead of `now` by more than a period, exactly empty as of now. Used by maintenance:
    /// the owner of such a key may never come back.
    pub(crate) fn heal(&mut self, now: Timestamp) {
        if self.meter.standing(now) == crate::meter::Standing::Wild {
            self.rebase(now);
        }
        self.set_block_anew(now);
    }

    /// As it is kept: a block or a reservation that has ended is not in force again when the clock
    /// goes back.
    fn without_ended(mut self, now: Timestamp) -> Self {
        if !self.is_blocked(now) {
            self.block = Block::default();
        }
        if self.meter.written_at() <= now {
            self.expire(now);
        }
        self
    }

    fn is_blocked(&self, now: Timestamp) -> bool {
        self.block.until > now
    }

    /// Gives back what is held by reservations that have expired.
    fn expire(&mut self, now: Timestamp) {
        let expired = self.holds.partition_point(|hold| hold.expires_at <= now);
        for hold in self.holds.drain(..expired).filter(|hold| !hold.firm) {
            self.meter.give_held(hold.expires_at, hold.units, hold.lapses_at);
        }
    }

    /// Goes on under a limit that replaces this one.
    fn retune(&mut self, limit: &Limit, now: Timestamp) {
        let at = self.meter.not_before(now);
        let before = self.meter.used(at);
        self.meter.retune(*limit, now);
        // What the new limit has no room for is no longer in use, and cannot be given back.
        let at = self.meter.not_before(at);
        let mut gone = before.saturating_sub(self.meter.used(at));
        for hold in &mut self.holds {
            let cut = gone.min(hold.units);
            hold.units = hold.units.saturating_sub(cut);
            hold.lapses_at = self.meter.idle_at();
            gone = gone.saturating_sub(cut);
        }
    }

    /// Exactly empty as of now. Reservations last as long from now as they were made for.
    fn rebase(&mut self, now: Timestamp) {
        self.meter = self.meter.rebased(now);
        let lapses_at = self.meter.idle_at();
        for hold in &mut self.holds {
            let expires_at = now.saturating_add(hold.expires_at.since(hold.made_at));
            *hold = Hold { made_at: now, expires_at, lapses_at, ..*hold };
        }
        self.holds.sort_by_key(|hold| hold.expires_at);
    }

    /// A block that was set at a later reading of the clock lasts as long from now, and says whether
    /// that is so.
    fn set_block_anew(&mut self, now: Timestamp) -> bool {
        let is_ahead = self.block.is_ahead(now);
        if is_ahead {
            self.block = Block::new(Until::After(self.block.lasts()), now);
        }
        is_ahead
    }

    /// When `holder` can have one more reservation: now, unless it has as many as there are places
    /// left.
    fn place_at(&self, holder: u64, now: Timestamp) -> Timestamp {
        let mut own = self.holds.iter().filter(|hold| hold.holder == holder).count();
        let mut free = HOLDS_MAX.saturating_sub(self.holds.len());
        let mut at = now;
        for hold in &self.holds {
            if own < free {
                break;
            }
            own = own.saturating_sub(usize::from(hold.holder == holder));
            free = free.saturating_add(1);
            at = hold.expires_at;
        }
        at
    }

    /// Takes `units` and holds them. Nothing is not held.
    fn hold(&mut self, hold: Hold) {
        if hold.units == 0 {
            return;
        }
        self.meter.take(hold.made_at, hold.units);
        let place = self.holds.partition_point(|other| other.expires_at <= hold.expires_at);
        self.holds.insert(place, Hold { lapses_at: self.meter.idle_at(), ..hold });
    }

    /// Ends a reservation at its actual cost. Says how many units that lacked, or `None` if it is
    /// not held.
    fn settle(&mut self, id: HoldId, now: Timestamp, cost: u64) -> Option<u64> {
        let place = self.holds.iter().position(|hold| hold.id == id)?;
        let hold = self.holds.remove(place);
        match cost.checked_sub(hold.units) {
            Some(more) => Some(more.saturating_sub(self.meter.penalise(now, more))),
            None => {
                self.meter.give_held(now, hold.units.saturating_sub(cost), hold.lapses_at);
                Some(0)
            }
        }
    }

    /// When `units` are available if nothing more arrives: reservations that expire before count.
    fn unheld_at(&self, now: Timestamp, units: u64) -> u64 {
        let (mut meter, mut now) = (self.meter.clone(), now);
        for hold in self.holds.iter().filter(|hold| !hold.firm) {
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

/// How many numbers a reservation is.
const HOLD_NUMBERS: usize = 8;

/// The lower and the upper half.
#[expect(clippy::cast_possible_truncation, clippy::as_conversions, reason = "halves are what is wanted")]
const fn halves(wide: u128) -> [u64; 2] {
    [wide as u64, (wide >> 64) as u64]
}

#[cfg(test)]
mod tests;
