//! Concurrent: at most `limit` requests under way at once.
//!
//! A unit in use is a *slot*. It does not come back with time: its holder gives it back, or it
//! expires. Who holds which slot until when is kept by the [`Cell`](crate::Cell), which holds slots
//! as it holds reservations. This file only counts them.

use super::{Arithmetic, Drawn};
use crate::Timestamp;

/// The limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Concurrent {
    pub(crate) limit: u64,
}

/// The state of one client: its live slots. More than the limit if a smaller one replaced it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) live: u64,
}

impl Arithmetic for Concurrent {
    type State = State;

    /// Not packed: a live slot has a name.
    const WORDS: usize = 0;

    fn save(_state: &State, _words: &mut [u64]) {}

    fn load(_words: &[u64]) -> State {
        State::default()
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn period(&self) -> u64 {
        0
    }

    fn max_debt(&self) -> u64 {
        0
    }

    /// Slots have times of their own: the state is never ahead of the clock.
    fn written_at(&self, _state: &State) -> u64 {
        0
    }

    fn used(&self, state: &State, _now: u64) -> u64 {
        state.live
    }

    fn available_at(&self, state: &State, now: u64, units: u64) -> u64 {
        if units <= self.available(state, now) { now } else { Timestamp::MAX.as_nanos() }
    }

    /// The cell knows when its last slot expires.
    fn idle_at(&self, _state: &State) -> u64 {
        0
    }

    fn take(&self, state: &mut State, _now: u64, units: u64) {
        state.live = state.live.saturating_add(units);
    }

    fn give(&self, state: &mut State, _now: u64, units: u64) {
        state.live = state.live.saturating_sub(units);
    }

    /// A slot never lapses by itself.
    fn give_held(&self, state: &mut State, now: u64, units: u64, _drawn: Drawn) {
        self.give(state, now, units);
    }

    /// Units of a rate are not under way: nobody could give them back.
    fn with_used(&self, _now: u64, _used: u64, _owed: u64) -> State {
        State::default()
    }

    fn adopt(&self, _old: &Self, state: &State, _now: u64) -> State {
        *state
    }
}
