//! Token bucket with a reserve: a sustained bucket that is drawn on first, and a burst reserve for
//! units that it lacks.
//!
//! The reserve refills separately, and more slowly: a client may burst deep now and then, but not
//! repeatedly. A cost may draw on both. A request is denied when both together lack units. Only the
//! sustained bucket owes units, once both are empty; the reserve's refill counts against them.
//!
//! A refund gives back what was drawn last. Owed units come first. As long as the sustained bucket
//! has units left, the last ones were drawn on it, and it is given back first; otherwise the
//! reserve is.

use super::Arithmetic;
use super::token_bucket::{Parts, State as Bucket, TokenBucket};

/// The limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reserve {
    pub(crate) sustained: TokenBucket<Parts>,
    pub(crate) reserve: TokenBucket<Parts>,
}

/// The state of one client: both buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    sustained: Bucket<u64>,
    reserve: Bucket<u64>,
}

impl Arithmetic for Reserve {
    type State = State;

    const WORDS: usize = 4;

    fn save(state: &State, words: &mut [u64]) {
        let (sustained, reserve) = words.split_at_mut(TokenBucket::<Parts>::WORDS);
        TokenBucket::<Parts>::save(&state.sustained, sustained);
        TokenBucket::<Parts>::save(&state.reserve, reserve);
    }

    fn load(words: &[u64]) -> State {
        let (sustained, reserve) = words.split_at(TokenBucket::<Parts>::WORDS.min(words.len()));
        State {
            sustained: TokenBucket::<Parts>::load(sustained),
            reserve: TokenBucket::<Parts>::load(reserve),
        }
    }

    fn capacity(&self) -> u64 {
        self.sustained.capacity.saturating_add(self.reserve.capacity)
    }

    fn max_debt(&self) -> u64 {
        self.sustained.max_debt
    }

    fn period(&self) -> u64 {
        self.sustained.period().max(self.reserve.period())
    }

    fn written_at(&self, state: &State) -> u64 {
        self.sustained.written_at(&state.sustained).max(self.reserve.written_at(&state.reserve))
    }

    fn can_write(&self, state: &State) -> bool {
        self.sustained.can_write(&state.sustained) && self.reserve.can_write(&state.reserve)
    }

    fn used(&self, state: &State, now: u64) -> u64 {
        let sustained = self.sustained.used(&state.sustained, now);
        sustained.saturating_add(self.reserve.used(&state.reserve, now))
    }

    /// The earliest time over all ways to split the units that may be in use between the two. The
    /// more may be in use of the sustained bucket, the earlier it is ready, and the later the
    /// reserve, so the best split is where the two times meet.
    fn available_at(&self, state: &State, now: u64, units: u64) -> u64 {
        let most = self.capacity().saturating_sub(units);
        let sustained = |part: u64| self.sustained.most_used_at(&state.sustained, now, part);
        let reserve = |part: u64| self.reserve.most_used_at(&state.reserve, now, most.saturating_sub(part));
        // The reserve never has more in use than its capacity.
        let mut low = most.saturating_sub(self.reserve.capacity);
        let mut high = self.sustained.used(&state.sustained, now).min(most).max(low);
        while low < high {
            let middle = low.midpoint(high);
            if sustained(middle) <= reserve(middle) {
                high = middle;
            } else {
                low = middle.saturating_add(1);
            }
        }
        let ready = |part: u64| sustained(part).max(reserve(part));
        // The part just below the meeting point may be ready earlier still.
        low.checked_sub(1).map_or_else(|| ready(low), |below| ready(low).min(ready(below)))
    }

    fn idle_at(&self, state: &State) -> u64 {
        self.sustained.idle_at(&state.sustained).max(self.reserve.idle_at(&state.reserve))
    }

    fn take(&self, state: &mut State, now: u64, units: u64) {
        let reserve_left = self.reserve.available(&state.reserve, now);
        let beyond = units.saturating_sub(self.sustained.available(&state.sustained, now));
        let reserve = beyond.min(reserve_left);
        let sustained = units.saturating_sub(reserve);
        // A bucket that gives no units stays unchanged.
        if sustained > 0 {
            self.sustained.take(&mut state.sustained, now, sustained);
        }
        if reserve > 0 {
            self.reserve.take(&mut state.reserve, now, reserve);
        }
    }

    fn with_used(&self, now: u64, used: u64, owed: u64) -> State {
        let owed = owed.min(used.saturating_sub(self.capacity()));
        let used = used.min(self.capacity());
        let sustained = used.min(self.sustained.capacity);
        State {
            sustained: self.sustained.with_used(now, sustained.saturating_add(owed), owed),
            reserve: self.reserve.with_used(now, used.saturating_sub(sustained), 0),
        }
    }

    fn adopt(&self, old: &Self, state: &State, now: u64) -> State {
        let owed = old.owed(state, now);
        let used = old.used(state, now).min(self.capacity().saturating_add(owed.min(self.max_debt())));
        let adopted = State {
            sustained: self.sustained.adopt(&old.sustained, &state.sustained, now),
            reserve: self.reserve.adopt(&old.reserve, &state.reserve, now),
        };
        // Bucket by bucket, unless one is now too small for its units in use.
        if self.used(&adopted, now) == used { adopted } else { self.with_used(now, used, owed) }
    }

    fn give(&self, state: &mut State, now: u64, units: u64) {
        let used = self.sustained.used(&state.sustained, now);
        let is_sustained_left = used < self.sustained.capacity;
        let sustained_first =
            if is_sustained_left { used } else { used.saturating_sub(self.sustained.capacity) };
        let beyond = units.saturating_sub(sustained_first);
        let reserve = beyond.min(self.reserve.used(&state.reserve, now));
        self.reserve.give(&mut state.reserve, now, reserve);
        self.sustained.give(&mut state.sustained, now, units.saturating_sub(reserve));
    }
}

#[cfg(test)]
mod tests {
    use crate::{Limit, Meter, SECOND, Timestamp, Verdict};
    use std::time::Duration;

    fn burst_of_150() -> Limit {
        Limit::token_bucket(100, 10, Duration::from_millis(100)).stepped().reserve(50, 5, SECOND)
    }

    #[test]
    fn a5_vector_from_idle_150_are_admitted_in_one_instant_and_the_151st_is_denied() {
        let mut meter = Meter::new(burst_of_150());
        let now = Timestamp::from_secs(77);
        for left in (0..150).rev() {
            assert_eq!(meter.decide(now, 1).remaining, left);
        }
        let denied = meter.decide(now, 1);
        assert_eq!(denied.verdict, Verdict::Denied { retry_after: Duration::from_millis(100) });
    }

    #[test]
    fn a5_one_cost_may_draw_on_both() {
        let mut meter = Meter::new(burst_of_150());
        let now = Timestamp::from_secs(77);
        assert!(meter.decide(now, 120).allowed());
        assert_eq!(meter.peek(now, 1).remaining, 30);
        assert_eq!(meter.peek(now, 151).verdict, Verdict::Never);
    }

    #[test]
    fn a5_the_sustained_bucket_is_drawn_on_first() {
        let mut meter = Meter::new(burst_of_150());
        let now = Timestamp::from_secs(77);
        assert!(meter.decide(now, 100).allowed());
        // Ten steps refill the sustained bucket wholly; a touched reserve would still lack units.
        assert_eq!(meter.peek(now.saturating_add(SECOND), 1).remaining, 150);
    }

    #[test]
    fn c5_a_refund_goes_to_the_sustained_bucket_while_that_has_units_left() {
        let mut meter = Meter::new(Limit::per_second(10).reserve(5, 1, crate::HOUR));
        let start = Timestamp::from_secs(77);
        assert!(meter.decide(start, 15).allowed());
        let now = start.saturating_add(Duration::from_millis(500));
        for _ in 0..10 {
            assert!(meter.decide(now, 1).allowed());
            meter.give(now, 1);
        }
        assert_eq!(meter.peek(now.saturating_add(SECOND), 1).remaining, 10, "the reserve stays empty");
        // The sustained bucket is empty, so the reserve was drawn on last.
        let mut meter = Meter::new(Limit::per_second(10).reserve(5, 1, crate::HOUR));
        assert!(meter.decide(start, 12).allowed());
        meter.give(start, 2);
        assert_eq!(meter.peek(start.saturating_add(SECOND), 1).remaining, 15, "the reserve is full again");
    }
}
