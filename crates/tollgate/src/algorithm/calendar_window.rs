//! Calendar window: at most `limit` per hour, day, week, month or year of a time zone.
//!
//! A fixed window whose edges are the calendar's: months of 28 to 31 days, and days of 23 to 25
//! hours. The state keeps the edges of its window and lapses only at its end. So a request looks up
//! the zone only when it opens a window, and processes with different zone data do not reset each
//! other's windows. What it does not promise: as with every fixed window, a client can spend two
//! budgets back to back across an edge.

use super::{Arithmetic, exactly, owed, recordable};
use crate::calendar::{CalendarUnit, Zone};
use crate::time::nanos_of;

/// The limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CalendarWindow {
    pub(crate) limit: u64,
    pub(crate) unit: CalendarUnit,
    pub(crate) zone: Zone,
    pub(crate) count_denied: bool,
    pub(crate) max_debt: u64,
}

/// The state of one client. Nothing used means never seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    starts_at: u64,
    ends_at: u64,
    used: u64,
}

impl CalendarWindow {
    /// The edges of the window that contains `now`.
    pub(crate) fn edges(&self, now: u64) -> (u64, u64) {
        self.zone.edges(self.unit, now)
    }

    fn opened(&self, now: u64, used: u64) -> State {
        let (starts_at, ends_at) = self.edges(now);
        State { starts_at, ends_at, used }
    }
}

const fn is_open(state: &State, now: u64) -> bool {
    state.used > 0 && now < state.ends_at
}

impl Arithmetic for CalendarWindow {
    type State = State;

    const WORDS: usize = 3;

    fn save(state: &State, words: &mut [u64]) {
        words.copy_from_slice(&[state.starts_at, state.ends_at, state.used]);
    }

    fn load(words: &[u64]) -> State {
        let [starts_at, ends_at, used] = exactly(words);
        State { starts_at, ends_at, used }
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn period(&self) -> u64 {
        nanos_of(self.unit.longest())
    }

    fn max_debt(&self) -> u64 {
        self.max_debt
    }

    fn written_at(&self, state: &State) -> u64 {
        state.starts_at
    }

    fn can_write(&self, state: &State) -> bool {
        // Another version of the zone's data may have had the window longer, but not that much.
        let length = state.ends_at.saturating_sub(state.starts_at);
        let is_window = state.starts_at < state.ends_at && length <= self.period().saturating_mul(2);
        state.starts_at <= crate::Timestamp::MAX.as_nanos() && (is_window || *state == State::default())
    }

    fn raised(self, units: u64) -> Self {
        // Attempts that were counted are no debt to begin with.
        let units = if self.count_denied { 0 } else { units };
        Self { limit: self.limit.saturating_add(units), ..self }
    }

    fn used(&self, state: &State, now: u64) -> u64 {
        if is_open(state, now) { state.used } else { 0 }
    }

    fn owed(&self, state: &State, now: u64) -> u64 {
        owed(self, self.count_denied, self.used(state, now))
    }

    fn recordable(&self, state: &State, now: u64) -> u64 {
        recordable(self, self.count_denied, self.used(state, now))
    }

    fn available_at(&self, state: &State, now: u64, units: u64) -> u64 {
        if self.fits(state, now, units) { now } else { state.ends_at }
    }

    fn idle_at(&self, state: &State) -> u64 {
        if state.used == 0 { 0 } else { state.ends_at }
    }

    fn take(&self, state: &mut State, now: u64, units: u64) {
        if !is_open(state, now) {
            *state = self.opened(now, 0);
        }
        state.used = state.used.saturating_add(units);
    }

    fn give(&self, state: &mut State, now: u64, units: u64) {
        let used = self.used(state, now).saturating_sub(units);
        *state = if used == 0 { State::default() } else { State { used, ..*state } };
    }

    fn with_used(&self, now: u64, used: u64, _owed: u64) -> State {
        if used == 0 { State::default() } else { self.opened(now, used) }
    }

    fn adopt(&self, old: &Self, state: &State, now: u64) -> State {
        let used = old.used(state, now);
        // Under the same calendar the window stays as it is.
        let same = self.unit == old.unit && self.zone == old.zone;
        if used > 0 && same { *state } else { self.with_used(now, used, 0) }
    }
}

#[cfg(all(test, feature = "calendar"))]
mod tests;
