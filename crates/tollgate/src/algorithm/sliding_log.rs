//! Sliding log: the exact one.
//!
//! The time and the cost of every admitted request of the last period, so that no span of one
//! period, wherever it starts, sees more than `limit`. What it costs: sixteen bytes for each
//! request it remembers, which is why stores put a ceiling on the limits they accept.

use std::collections::VecDeque;

use super::{Arithmetic, LATE};

/// The limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct SlidingLog {
    pub(crate) limit: u64,
    pub(crate) period: u64,
}

/// What is remembered of one client: the admitted requests, oldest first, and the sum of their
/// costs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    entries: VecDeque<Entry>,
    used: u64,
}

/// Requests admitted at one instant. Sixteen bytes, so a ring of `limit` of them is the most a
/// client costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    cost: u64,
}

impl State {
    /// Times and costs in turn.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.entries.iter().flat_map(|entry| [entry.at, entry.cost]).collect()
    }

    /// Out of times and costs in turn.
    pub(crate) fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let (pairs, []) = numbers.as_chunks::<2>() else { return None };
        let entries: VecDeque<Entry> =
            pairs.iter().map(|[at, cost]| Entry { at: *at, cost: *cost }).collect();
        let used = entries.iter().map(|entry| entry.cost).fold(0, u64::saturating_add);
        Some(Self { entries, used })
    }

    fn pop_oldest(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.used = self.used.saturating_sub(entry.cost);
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

    fn roll(&self, state: &mut State, now: u64) {
        if state.entries.back().is_some_and(|newest| newest.at > now.saturating_add(LATE)) {
            *state = self.with_used(now, self.limit);
        }
        while state.entries.front().is_some_and(|oldest| now.saturating_sub(oldest.at) >= self.period) {
            state.pop_oldest();
        }
    }

    fn available(&self, state: &State, _now: u64) -> u64 {
        self.limit.saturating_sub(state.used)
    }

    fn available_at(&self, state: &State, now: u64, units: u64) -> u64 {
        if let (true, Some(newest)) = (units >= self.limit, state.entries.back()) {
            // All of it, which is asked for with every answer: no need to go through the whole log.
            return newest.at.saturating_add(self.period).max(now);
        }
        let mut free = self.available(state, now);
        let mut at = now;
        for entry in &state.entries {
            if free >= units {
                break;
            }
            free = free.saturating_add(entry.cost);
            at = entry.at.saturating_add(self.period);
        }
        at
    }

    fn idle_at(&self, state: &State) -> u64 {
        state.entries.back().map_or(0, |newest| newest.at.saturating_add(self.period))
    }

    fn take(&self, state: &mut State, now: u64, units: u64) {
        state.used = state.used.saturating_add(units);
        match state.entries.back_mut() {
            Some(newest) if newest.at >= now => newest.cost = newest.cost.saturating_add(units),
            _ => state.entries.push_back(Entry { at: now, cost: units }),
        }
    }

    fn give(&self, state: &mut State, _now: u64, mut units: u64) {
        while let Some(newest) = state.entries.back_mut() {
            if newest.cost > units {
                newest.cost = newest.cost.saturating_sub(units);
                state.used = state.used.saturating_sub(units);
                return;
            }
            units = units.saturating_sub(newest.cost);
            state.used = state.used.saturating_sub(newest.cost);
            state.entries.pop_back();
        }
    }

    fn adopt(&self, old: &Self, state: &State, now: u64) -> State {
        let mut adopted = state.clone();
        if self.period < old.period {
            // Units in use stay in use: what the shorter period would have let lapse lapses together, as late
            // as it can.
            let oldest = now.saturating_sub(self.period).saturating_add(1).min(now);
            adopted.entries.iter_mut().for_each(|entry| entry.at = entry.at.max(oldest));
        }
        while adopted.used > self.limit {
            let excess = adopted.used.saturating_sub(self.limit);
            match adopted.entries.front_mut() {
                Some(oldest) if oldest.cost > excess => {
                    oldest.cost = oldest.cost.saturating_sub(excess);
                    adopted.used = self.limit;
                }
                _ => adopted.pop_oldest(),
            }
        }
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
