//! Sliding window: a weighted estimate over two aligned periods.
//!
//! With `x` counted in the current period, `y` in the previous one, and `z` the share of the
//! previous period that a window ending now still covers, the estimate is `floor(x + y * z)`. Two
//! counts replace a log, and no burst straddles two windows. What it does not promise: the estimate
//! assumes that the previous period's requests came evenly. If they did not, up to twice the limit
//! can pass within one period.

use super::{Arithmetic, Drawn, aligned_start, exactly, narrow, owed, product, quotient_ceil, recordable};

/// The limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindow {
    pub(crate) limit: u64,
    pub(crate) period: u64,
    pub(crate) count_denied: bool,
    pub(crate) max_debt: u64,
}

/// The state of one client. It lapses after two periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Start of the current period.
    start: u64,
    current: u64,
    previous: u64,
}

impl SlidingWindow {
    /// The state as of `now`: the current period may have become the previous one, or lapsed.
    fn rolled(&self, state: &State, now: u64) -> State {
        let elapsed = now.saturating_sub(state.start);
        if elapsed < self.period {
            *state
        } else if elapsed.saturating_sub(self.period) < self.period && state.current > 0 {
            State { start: state.start.saturating_add(self.period), current: 0, previous: state.current }
        } else {
            State::default()
        }
    }

    /// Nanoseconds of the previous period that a window ending now still covers. Expects a rolled
    /// state.
    fn covered_nanos(&self, state: &State, now: u64) -> u64 {
        self.period.saturating_sub(now.saturating_sub(state.start))
    }

    fn weighted(&self, count: u64, covered_nanos: u64) -> u64 {
        narrow(product(count, covered_nanos).checked_div(u128::from(self.period)).unwrap_or(0))
    }

    /// Nanoseconds into a period after which `count` requests of the previous one weigh at most
    /// `most`: the smallest whole `e` with `floor(count * (period - e) / period) <= most`.
    fn faded_after(&self, count: u64, most: u64) -> u64 {
        let covered = quotient_ceil(product(most.saturating_add(1), self.period), u128::from(count.max(1)));
        // The estimate is small enough while strictly less than `covered` of the period is left.
        self.period.saturating_sub(narrow(covered.saturating_sub(1)))
    }

    /// When at most `most` units are in use, if more are now. Expects a rolled state.
    fn fades_at(&self, state: &State, most: u64) -> u64 {
        match most.checked_sub(state.current) {
            Some(room) => state.start.saturating_add(self.faded_after(state.previous, room)),
            // The count of the current period has to fade in the next.
            None => {
                state.start.saturating_add(self.period).saturating_add(self.faded_after(state.current, most))
            }
        }
    }
}

impl Arithmetic for SlidingWindow {
    type State = State;

    const WORDS: usize = 3;

    fn save(state: &State, words: &mut [u64]) {
        words.copy_from_slice(&[state.start, state.current, state.previous]);
    }

    fn load(words: &[u64]) -> State {
        let [start, current, previous] = exactly(words);
        State { start, current, previous }
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    fn period(&self) -> u64 {
        self.period
    }

    fn max_debt(&self) -> u64 {
        self.max_debt
    }

    fn written_at(&self, state: &State) -> u64 {
        state.start
    }

    fn raised(self, units: u64) -> Self {
        // Attempts that were counted are no debt to begin with.
        let units = if self.count_denied { 0 } else { units };
        Self { limit: self.limit.saturating_add(units), ..self }
    }

    fn used(&self, state: &State, now: u64) -> u64 {
        let state = self.rolled(state, now);
        state.current.saturating_add(self.weighted(state.previous, self.covered_nanos(&state, now)))
    }

    fn owed(&self, state: &State, now: u64) -> u64 {
        owed(self, self.count_denied, self.used(state, now))
    }

    fn recordable(&self, state: &State, now: u64) -> u64 {
        recordable(self, self.count_denied, self.used(state, now))
    }

    fn fits(&self, state: &State, now: u64, cost: u64) -> bool {
        if cost == 0 {
            return self.owed(state, now) == 0;
        }
        let state = self.rolled(state, now);
        let Some(room) = self.limit.checked_sub(state.current.saturating_add(cost)) else {
            return false;
        };
        // floor(y * covered / period) <= room
        let covered = self.covered_nanos(&state, now);
        product(state.previous, covered) < product(room.saturating_add(1), self.period)
    }

    fn available_at(&self, state: &State, now: u64, units: u64) -> u64 {
        if self.fits(state, now, units) {
            return now;
        }
        self.fades_at(&self.rolled(state, now), self.limit.saturating_sub(units))
    }

    fn idle_at(&self, state: &State) -> u64 {
        if (state.current | state.previous) == 0 { 0 } else { self.fades_at(state, 0) }
    }

    fn take(&self, state: &mut State, now: u64, units: u64) {
        *state = self.rolled(state, now);
        state.start = state.start.max(aligned_start(now, self.period));
        state.current = state.current.saturating_add(units);
    }

    fn give(&self, state: &mut State, now: u64, units: u64) {
        let rolled = self.rolled(state, now);
        let from_current = units.min(rolled.current);
        let current = rolled.current.saturating_sub(from_current);
        let previous = rolled.previous.saturating_sub(units.saturating_sub(from_current));
        let empty = (current | previous) == 0;
        *state = if empty { State::default() } else { State { current, previous, ..rolled } };
    }

    /// A reservation gives back units of the period that it drew in.
    fn give_held(&self, state: &mut State, now: u64, units: u64, drawn: Drawn) {
        let Some(drawn_at) = drawn.at else {
            if now < drawn.lapses_at {
                self.give(state, now, units);
            }
            return;
        };
        let mut rolled = self.rolled(state, now);
        match rolled.start.checked_sub(aligned_start(drawn_at, self.period)) {
            Some(0) => rolled.current = rolled.current.saturating_sub(units),
            Some(ago) if ago == self.period => rolled.previous = rolled.previous.saturating_sub(units),
            _ => return,
        }
        let empty = (rolled.current | rolled.previous) == 0;
        *state = if empty { State::default() } else { rolled };
    }

    fn with_used(&self, now: u64, used: u64, _owed: u64) -> State {
        if used == 0 {
            return State::default();
        }
        State { start: aligned_start(now, self.period), current: used, previous: 0 }
    }

    fn adopt(&self, old: &Self, state: &State, now: u64) -> State {
        // Counts mean the same under the same period.
        if old.period == self.period { *state } else { self.with_used(now, old.used(state, now), 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::{SlidingWindow, State};
    use crate::algorithm::Arithmetic as _;
    use crate::{HOUR, Limit, Meter, Timestamp};

    const HOUR_NS: u64 = 3_600_000_000_000;
    const FIFTY: SlidingWindow =
        SlidingWindow { limit: 50, period: HOUR_NS, count_denied: false, max_debt: 50 };

    #[test]
    fn a2_vector_fifty_per_hour_at_a_quarter_to() {
        let now = 3 * HOUR_NS + HOUR_NS / 4 * 3;
        let mut state = State { start: 3 * HOUR_NS, current: 39, previous: 40 };
        assert_eq!(FIFTY.used(&state, now), 49);
        assert_eq!(FIFTY.available(&state, now), 1);
        FIFTY.take(&mut state, now, 1);
        assert_eq!(FIFTY.used(&state, now), 50);
        assert_eq!(FIFTY.available(&state, now), 0);
    }

    #[test]
    fn a2_a_state_lapses_after_two_periods() {
        let state = State { start: HOUR_NS, current: 50, previous: 50 };
        assert_eq!(FIFTY.used(&state, 3 * HOUR_NS - 1), 0, "faded already");
        assert_eq!(FIFTY.rolled(&state, 3 * HOUR_NS), State::default());
    }

    #[test]
    fn a2_the_whole_limit_is_back_at_reset_and_not_a_nanosecond_before() {
        let mut meter = Meter::new(Limit::sliding_window(50, HOUR));
        let now = Timestamp::from_secs(7 * 3600 + 123);
        let reset_at = meter.decide(now, 37).reset_at;
        assert_eq!(meter.peek(Timestamp::from_nanos(reset_at.as_nanos() - 1), 1).remaining, 49);
        assert_eq!(meter.peek(reset_at, 1).remaining, 50);
    }

    #[test]
    fn a2_the_state_is_twenty_four_bytes() {
        assert_eq!(size_of::<State>(), 24);
    }
}
