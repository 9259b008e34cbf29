//! Fixed window: at most `limit` per `period`, counted from the first request.
//!
//! The easiest limit to explain: your minute starts when you do. What it does not promise: a client
//! that times it right can spend two budgets back to back across the edge of a window. Where that
//! matters, choose the sliding log.
//!
//! The *aligned* variant starts windows at multiples of the period instead, for limits that roll
//! over on the minute or the hour.

use super::{Arithmetic, aligned_start, exactly, owed, recordable};

/// The limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct FixedWindow {
    pub(crate) limit: u64,
    pub(crate) period: u64,
    pub(crate) aligned: bool,
    pub(crate) count_denied: bool,
    pub(crate) max_debt: u64,
}

/// The state of one client. Nothing used means never seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    opened_at: u64,
    used: u64,
}

impl FixedWindow {
    fn start(&self, now: u64) -> u64 {
        if self.aligned { aligned_start(now, self.period) } else { now }
    }

    fn is_open(&self, state: &State, now: u64) -> bool {
        state.used > 0 && now.saturating_sub(state.opened_at) < self.period
    }
}

impl Arithmetic for FixedWindow {
    type State = State;

    const WORDS: usize = 2;

    fn save(state: &State, words: &mut [u64]) {
        words.copy_from_slice(&[state.opened_at, state.used]);
    }

    fn load(words: &[u64]) -> State {
        let [opened_at, used] = exactly(words);
        State { opened_at, used }
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
        state.opened_at
    }

    fn raised(self, units: u64) -> Self {
        // Attempts that were counted are no debt to begin with.
        let units = if self.count_denied { 0 } else { units };
        Self { limit: self.limit.saturating_add(units), ..self }
    }

    fn used(&self, state: &State, now: u64) -> u64 {
        if self.is_open(state, now) { state.used } else { 0 }
    }

    fn owed(&self, state: &State, now: u64) -> u64 {
        owed(self, self.count_denied, self.used(state, now))
    }

    fn recordable(&self, state: &State, now: u64) -> u64 {
        recordable(self, self.count_denied, self.used(state, now))
    }

    fn available_at(&self, state: &State, now: u64, units: u64) -> u64 {
        if self.fits(state, now, units) { now } else { self.idle_at(state) }
    }

    fn idle_at(&self, state: &State) -> u64 {
        if state.used == 0 { 0 } else { state.opened_at.saturating_add(self.period) }
    }

    fn take(&self, state: &mut State, now: u64, units: u64) {
        if !self.is_open(state, now) {
            *state = State { opened_at: self.start(now), used: 0 };
        }
        state.used = state.used.saturating_add(units);
    }

    fn give(&self, state: &mut State, now: u64, units: u64) {
        let used = self.used(state, now).saturating_sub(units);
        *state = if used == 0 { State::default() } else { State { used, ..*state } };
    }

    fn with_used(&self, now: u64, used: u64, _owed: u64) -> State {
        if used == 0 { State::default() } else { State { opened_at: self.start(now), used } }
    }

    fn adopt(&self, old: &Self, state: &State, now: u64) -> State {
        let used = old.used(state, now);
        // The window keeps its start, unless the new period would already have ended it: units in
        // use stay in use.
        let still_open = now.saturating_sub(state.opened_at) < self.period;
        if used > 0 && !self.aligned && still_open { *state } else { self.with_used(now, used, 0) }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Limit, MINUTE, Meter, Timestamp, Verdict};

    fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a1_vector_ten_per_minute() {
        let mut meter = Meter::new(Limit::fixed_window(10, MINUTE));
        for left in (0..10).rev() {
            let outcome = meter.decide(ms(1_000_000), 1);
            assert_eq!(outcome.verdict, Verdict::Allowed);
            assert_eq!((outcome.remaining, outcome.reset_at), (left, ms(1_060_000)));
        }
        for at in [1_000_000, 1_059_999] {
            let outcome = meter.decide(ms(at), 1);
            assert_eq!(outcome.verdict, Verdict::Denied { retry_after: ms(1_060_000).since(ms(at)) });
            assert_eq!((outcome.remaining, outcome.reset_at), (0, ms(1_060_000)));
        }
        let outcome = meter.decide(ms(1_060_000), 1);
        assert_eq!(outcome.verdict, Verdict::Allowed);
        assert_eq!((outcome.remaining, outcome.reset_at), (9, ms(1_120_000)));
    }

    #[test]
    fn a1_aligned_windows_start_at_multiples_of_the_period() {
        let mut meter = Meter::new(Limit::fixed_window(1, MINUTE).aligned());
        assert_eq!(meter.decide(ms(119_999), 1).reset_at, ms(120_000));
        assert!(!meter.decide(ms(119_999), 1).allowed());
        assert_eq!(meter.decide(ms(120_000), 1).reset_at, ms(180_000));
    }

    #[test]
    fn a1_a_window_given_back_whole_is_as_good_as_never_opened() {
        let mut meter = Meter::new(Limit::fixed_window(2, MINUTE));
        assert!(meter.decide(ms(1_000), 2).allowed());
        meter.give(ms(2_000), 2);
        assert_eq!(meter.decide(ms(3_000), 1).reset_at, ms(63_000));
    }

    #[test]
    fn b2_counting_denied_keeps_a_hammering_client_out_but_not_for_what_can_never_fit() {
        let mut meter = Meter::new(Limit::fixed_window(2, MINUTE).counting_denied());
        assert!(meter.decide(ms(0), 1).allowed());
        assert_eq!(meter.decide(ms(0), 3).verdict, Verdict::Never);
        assert!(!meter.decide(ms(0), 2).allowed(), "counted: three of two used now");
        assert_eq!(meter.decide(ms(1), 1).remaining, 0);
        assert!(meter.decide(ms(60_000), 2).allowed());
    }

    #[test]
    fn a1_the_state_is_sixteen_bytes() {
        assert_eq!(size_of::<super::State>(), 16);
    }
}
