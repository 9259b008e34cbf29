//! Sliding log: exact in every span of one period.
//!
//! It keeps the time and the cost of every admitted request of the last period, so no span of one
//! period, wherever it starts, sees more than `limit`. It costs sixteen bytes per logged request,
//! which is why stores bound the limits they accept.

use std::collections::VecDeque;

use super::{Arithmetic, Drawn};
use crate::Timestamp;

/// The limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingLog {
    pub(crate) limit: u64,
    pub(crate) period: u64,
    pub(crate) max_debt: u64,
}

/// The state of one client: the admitted requests, oldest first, and the sum of their costs. The
/// oldest entries may have lapsed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    entries: VecDeque<Entry>,
    sum: u64,
}

/// The requests admitted or recorded at one instant. Sixteen bytes, so a client costs at most a
/// ring of as many of them as the limit and its debt have units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    cost: u64,
}

impl State {
    /// Times and costs, alternating.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.entries.iter().flat_map(|entry| [entry.at, entry.cost]).collect()
    }

    /// The state with these times and costs, alternating.
    pub(crate) fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let (pairs, []) = numbers.as_chunks::<2>() else { return None };
        let entries: VecDeque<Entry> =
            pairs.iter().map(|[at, cost]| Entry { at: *at, cost: *cost }).collect();
        let sum = entries.iter().try_fold(0_u64, |sum, entry| sum.checked_add(entry.cost))?;
        Some(Self { entries, sum })
    }

    fn newest_at(&self) -> u64 {
        self.entries.back().map_or(0, |newest| newest.at)
    }
}

impl SlidingLog {
    const fn has_lapsed(&self, entry: &Entry, now: u64) -> bool {
        now.saturating_sub(entry.at) >= self.period
    }

    fn drop_lapsed(&self, state: &mut State, now: u64) {
        while let Some(lapsed) = state.entries.front().filter(|oldest| self.has_lapsed(oldest, now)) {
            state.sum = state.sum.saturating_sub(lapsed.cost);
            state.entries.pop_front();
        }
    }
}

impl Arithmetic for SlidingLog {
    type State = State;

    const WORDS: usize = 0;

    fn save(_state: &State, _words: &mut [u64]) {}

    fn load(_words: &[u64]) -> State {
        State::default()
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
        state.newest_at()
    }

    fn can_write(&self, state: &State) -> bool {
        let is_time = state.newest_at() <= Timestamp::MAX.as_nanos();
        is_time && state.entries.iter().is_sorted_by(|older, newer| older.at < newer.at)
    }

    fn raised(self, units: u64) -> Self {
        Self { limit: self.limit.saturating_add(units), ..self }
    }

    fn used(&self, state: &State, now: u64) -> u64 {
        let lapsed = state.entries.iter().take_while(|entry| self.has_lapsed(entry, now));
        lapsed.fold(state.sum, |used, entry| used.saturating_sub(entry.cost))
    }

    fn available_at(&self, state: &State, now: u64, units: u64) -> u64 {
        if units >= self.limit {
            // The whole limit, which every answer asks for: avoids walking the log.
            return self.idle_at(state).max(now);
        }
        if units == 0 && self.owed(state, now) == 0 {
            return now;
        }
        let most = self.limit.saturating_sub(units);
        let (mut used, mut at) = (state.sum, now);
        for entry in &state.entries {
            if used <= most {
                break;
            }
            used = used.saturating_sub(entry.cost);
            at = entry.at.saturating_add(self.period);
        }
        at.max(now)
    }

    fn idle_at(&self, state: &State) -> u64 {
        state.entries.back().map_or(0, |newest| newest.at.saturating_add(self.period))
    }

    fn take(&self, state: &mut State, now: u64, units: u64) {
        self.drop_lapsed(state, now);
        state.sum = state.sum.saturating_add(units);
        match state.entries.back_mut().filter(|newest| newest.at >= now) {
            Some(newest) => newest.cost = newest.cost.saturating_add(units),
            None => state.entries.push_back(Entry { at: now, cost: units }),
        }
    }

    fn give(&self, state: &mut State, now: u64, mut units: u64) {
        self.drop_lapsed(state, now);
        while let Some(newest) = state.entries.back_mut() {
            if newest.cost > units {
                newest.cost = newest.cost.saturating_sub(units);
                state.sum = state.sum.saturating_sub(units);
                return;
            }
            units = units.saturating_sub(newest.cost);
            state.sum = state.sum.saturating_sub(newest.cost);
            state.entries.pop_back();
        }
    }

    /// A reservation gives back its own entry.
    fn give_held(&self, state: &mut State, now: u64, units: u64, drawn: Drawn) {
        let Some(drawn_at) = drawn.at else {
            if now < drawn.lapses_at {
                self.give(state, now, units);
            }
            return;
        };
        self.drop_lapsed(state, now);
        let index = state.entries.binary_search_by_key(&drawn_at, |entry| entry.at);
        let Ok(index) = index else { return };
        let Some(entry) = state.entries.get_mut(index) else { return };
        let given = units.min(entry.cost);
        entry.cost = entry.cost.saturating_sub(given);
        state.sum = state.sum.saturating_sub(given);
        if entry.cost == 0 {
            state.entries.remove(index);
        }
    }

    fn with_used(&self, now: u64, used: u64, _owed: u64) -> State {
        let mut state = State::default();
        if used > 0 {
            self.take(&mut state, now, used);
        }
        state
    }

    /// The entries keep their times. Entries older than the new period are no longer in use.
    fn adopt(&self, old: &Self, state: &State, now: u64) -> State {
        let mut adopted = state.clone();
        old.drop_lapsed(&mut adopted, now);
        self.drop_lapsed(&mut adopted, now);
        adopted
    }
}

#[cfg(test)]
mod tests {
    use crate::{Limit, MINUTE, Meter, Timestamp, Verdict};
    use std::time::Duration;

    #[test]
    fn a3_an_entry_counts_until_exactly_one_period_has_passed() {
        let mut meter = Meter::new(Limit::sliding_log(3, MINUTE));
        for second in [0, 10, 20] {
            assert!(meter.decide(Timestamp::from_secs(second), 1).allowed());
        }
        let denied = meter.decide(Timestamp::from_secs(30), 1);
        assert_eq!(denied.verdict, Verdict::Denied { retry_after: Duration::from_secs(30) });
        assert!(!meter.decide(Timestamp::from_nanos(59_999_999_999), 1).allowed());
        assert!(meter.decide(Timestamp::from_secs(60), 1).allowed());
        assert!(!meter.decide(Timestamp::from_secs(60), 1).allowed());
    }

    #[test]
    fn a3_a_cost_waits_for_as_many_entries_as_it_needs() {
        let mut meter = Meter::new(Limit::sliding_log(10, MINUTE));
        for (second, cost) in [(0, 4), (10, 3), (20, 3)] {
            assert!(meter.decide(Timestamp::from_secs(second), cost).allowed());
        }
        let wait = |cost| meter.peek(Timestamp::from_secs(20), cost).verdict;
        assert_eq!(wait(4), Verdict::Denied { retry_after: Duration::from_secs(40) });
        assert_eq!(wait(5), Verdict::Denied { retry_after: Duration::from_secs(50) });
        assert_eq!(wait(8), Verdict::Denied { retry_after: Duration::from_secs(60) });
        assert_eq!(wait(11), Verdict::Never);
    }

    #[test]
    fn a3_an_entry_is_sixteen_bytes() {
        assert_eq!(size_of::<super::Entry>(), 16);
    }
}
