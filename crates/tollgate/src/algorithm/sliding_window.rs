//! Sliding window: a weighted estimate over two aligned periods.
//!
//! With `x` counted in the current period, `y` in the previous one, and `z` the share of the
//! previous period that a window ending now still covers, the estimate is `floor(x + y * z)`. Two
//! counts stand in for the whole log, and the burst across the edge of a window is gone. What it
//! does not promise: it takes the previous period's requests to have come evenly, so up to
//! twice the limit can pass in one period's span if they did not.

use super::{Arithmetic, LATE, aligned_start, exactly, narrow, product, quotient_ceil};

/// The limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingWindow {
    pub(crate) limit: u64,
    pub(crate) period: u64,
    pub(crate) count_denied: bool,
}

/// What is remembered of one client: worthless after two periods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// Start of the current period.
    start: u64,
    current: u64,
    previous: u64,
}

impl SlidingWindow {
    /// The estimate, `floor(x + y * z)`.
    fn estimate(&self, state: &State, now: u64) -> u64 {
        state.current.saturating_add(self.weighed(state.previous, self.uncovered(state, now)))
    }

    /// How much of the previous period a window ending now still covers, in nanoseconds.
    fn uncovered(&self, state: &State, now: u64) -> u64 {
        self.period.saturating_sub(now.saturating_sub(state.start))
    }

    fn weighed(&self, count: u64, covered: u64) -> u64 {
        narrow(product(count, covered).checked_div(u128::from(self.period)).unwrap_or(0))
    }

    /// How far into a period `count` requests of the one before weigh at most `most`: the smallest
    /// whole `e` with `floor(count * (period - e) / period) <= most`.
    fn faded_after(&self, count: u64, most: u64) -> u64 {
        let covered = quotient_ceil(product(most.saturating_add(1), self.period), u128::from(count.max(1)));
        // The estimate is small enough while strictly less than `covered` of the period is left.
        self.period.saturating_sub(narrow(covered.saturating_sub(1)))
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

    fn roll(&self, state: &mut State, now: u64) {
        let start = aligned_start(now, self.period);
        *state = if (state.current | state.previous) == 0 {
            State::default()
        } else if state.start > now.saturating_add(LATE) {
            State { start, current: self.limit, previous: 0 }
        } else if state.start >= start {
            *state
        } else if start.saturating_sub(state.start) == self.period && state.current > 0 {
            State { start, current: 0, previous: state.current }
        } else {
            State::default()
        };
    }

    fn available(&self, state: &State, now: u64) -> u64 {
        self.limit.saturating_sub(self.estimate(state, now))
    }

    fn available_at(&self, state: &State, now: u64, units: u64) -> u64 {
        if units <= self.available(state, now) {
            return now;
        }
        let most = self.limit.saturating_sub(units);
        match most.checked_sub(state.current) {
            Some(room) => state.start.saturating_add(self.faded_after(state.previous, room)),
            // What was counted in this period has to fade in the next.
            None => {
                state.start.saturating_add(self.period).saturating_add(self.faded_after(state.current, most))
            }
        }
    }

    fn idle_at(&self, state: &State) -> u64 {
        if (state.current | state.previous) == 0 {
            return 0;
        }
        self.available_at(state, state.start, self.limit)
    }

    fn take(&self, state: &mut State, now: u64, units: u64) {
        state.start = state.start.max(aligned_start(now, self.period));
        state.current = state.current.saturating_add(units);
    }

    fn give(&self, state: &mut State, _now: u64, units: u64) {
        let from_current = units.min(state.current);
        state.current = state.current.saturating_sub(from_current);
        state.previous = state.previous.saturating_sub(units.saturating_sub(from_current));
    }

    fn counts_denied(&self) -> bool {
        self.count_denied
    }

    fn adopt(&self, old: &Self, state: &State, now: u64) -> State {
        let used = old.used(state, now);
        // Counts mean the same under the same period. (Counted denials may exceed what was in use.)
        let keeps = old.period == self.period && old.estimate(state, now) == used && used <= self.limit;
        if keeps { *state } else { self.with_used(now, used) }
    }
}

#[cfg(test)]
mod tests {
    use super::{SlidingWindow, State};
    use crate::algorithm::Arithmetic as _;
    use crate::{HOUR, Limit, Meter, Timestamp};

    const HOUR_NS: u64 = 3_600_000_000_000;
    const FIFTY: SlidingWindow = SlidingWindow { limit: 50, period: HOUR_NS, count_denied: false };

    #[test]
    fn a2_vector_fifty_per_hour_at_a_quarter_to() {
        let now = 3 * HOUR_NS + HOUR_NS / 4 * 3;
        let mut state = State { start: 3 * HOUR_NS, current: 39, previous: 40 };
        FIFTY.roll(&mut state, now);
        assert_eq!(FIFTY.estimate(&state, now), 49);
        assert_eq!(FIFTY.available(&state, now), 1);
        FIFTY.take(&mut state, now, 1);
        assert_eq!(FIFTY.estimate(&state, now), 50);
        assert_eq!(FIFTY.available(&state, now), 0);
    }

    #[test]
    fn a2_state_is_worthless_after_two_periods() {
        let mut state = State { start: HOUR_NS, current: 50, previous: 50 };
        FIFTY.roll(&mut state, 3 * HOUR_NS);
        assert_eq!(state, State::default());
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
