//! Inline limits, which come with a request: their state does not depend on the limit.
//!
//! The next request for the same key may have another limit, so the state means the same under all
//! inline limits, and needs no tag that names the one that wrote it.
//!
//! * [`InlineBucket`]: the state is one absolute time, the moment at which every bucket is full
//!   again, as in redis-cell. It only ever moves forward, and only on an admission, so a request
//!   under one limit neither gives back nor speeds up units in use under another. It may use the
//!   other up: after a request at 1 a day, one at 1000 a second is denied.
//! * [`InlineWindow`]: the period is part of the key, and the count is compared with the limit of
//!   each request.

use super::token_bucket::{Parts, State as BucketState, TokenBucket, Whole};
use super::{Arithmetic, Drawn, exactly};
use crate::Timestamp;

/// An inline token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InlineBucket {
    pub(crate) bucket: TokenBucket<Parts>,
    /// The longest full refill of any inline limit: a time further ahead is wild.
    pub(crate) longest: u64,
}

/// The time at which every bucket is full again. The fraction of a nanosecond is kept with its
/// denominator, which is 0 if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Time {
    full_at: u64,
    rest: u64,
    parts: u64,
}

impl InlineBucket {
    /// The state in this bucket's fractions of a nanosecond. A fraction with another denominator is
    /// rounded up.
    fn read(&self, state: &Time) -> BucketState<u64> {
        if state.rest == 0 || state.parts == self.bucket.token().1 {
            return BucketState::new(state.full_at, state.rest);
        }
        BucketState::new(state.full_at.saturating_add(1), 0)
    }

    /// The bucket and the state in whole nanoseconds, if a token is: several times as fast, and the
    /// same numbers.
    #[inline]
    fn whole(&self, state: &Time) -> Option<(TokenBucket<Whole>, BucketState<()>)> {
        self.bucket.whole().map(|bucket| (bucket, BucketState::whole(self.idle_at(state))))
    }

    fn write(&self, state: BucketState<u64>) -> Time {
        let (full_at, rest) = state.numbers();
        Time { full_at, rest, parts: if rest == 0 { 0 } else { self.bucket.token().1 } }
    }
}

impl Arithmetic for InlineBucket {
    type State = Time;

    const WORDS: usize = 3;

    fn save(state: &Time, words: &mut [u64]) {
        words.copy_from_slice(&[state.full_at, state.rest, state.parts]);
    }

    fn load(words: &[u64]) -> Time {
        let [full_at, rest, parts] = exactly(words);
        Time { full_at, rest, parts }
    }

    fn capacity(&self) -> u64 {
        self.bucket.capacity
    }

    /// Zero: other limits would not know what is owed.
    fn max_debt(&self) -> u64 {
        0
    }

    /// Zero: a time is either within the longest refill or wild.
    fn period(&self) -> u64 {
        0
    }

    fn written_at(&self, state: &Time) -> u64 {
        self.idle_at(state).saturating_sub(self.longest)
    }

    fn can_write(&self, state: &Time) -> bool {
        self.written_at(state) <= Timestamp::MAX.as_nanos() && state.rest < state.parts.max(1)
    }

    #[inline]
    fn used(&self, state: &Time, now: u64) -> u64 {
        if let Some((bucket, state)) = self.whole(state) {
            return bucket.used(&state, now);
        }
        self.bucket.used(&self.read(state), now)
    }

    #[inline]
    fn fits(&self, state: &Time, now: u64, cost: u64) -> bool {
        if let Some((bucket, state)) = self.whole(state) {
            return bucket.fits(&state, now, cost);
        }
        self.bucket.fits(&self.read(state), now, cost)
    }

    #[inline]
    fn available_at(&self, state: &Time, now: u64, units: u64) -> u64 {
        if let Some((bucket, state)) = self.whole(state) {
            return bucket.available_at(&state, now, units);
        }
        self.bucket.available_at(&self.read(state), now, units)
    }

    fn idle_at(&self, state: &Time) -> u64 {
        state.full_at.saturating_add(u64::from(state.rest > 0))
    }

    #[inline]
    fn take(&self, state: &mut Time, now: u64, units: u64) {
        if let Some((bucket, mut whole)) = self.whole(state) {
            bucket.take(&mut whole, now, units);
            *state = Time { full_at: whole.full_at(), rest: 0, parts: 0 };
            return;
        }
        let mut read = self.read(state);
        self.bucket.take(&mut read, now, units);
        *state = self.write(read);
    }

    fn give(&self, state: &mut Time, now: u64, units: u64) {
        let mut read = self.read(state);
        self.bucket.give(&mut read, now, units);
        *state = self.write(read);
    }

    fn give_held(&self, state: &mut Time, now: u64, units: u64, drawn: Drawn) {
        let mut read = self.read(state);
        self.bucket.give_held(&mut read, now, units, drawn);
        *state = self.write(read);
    }

    fn with_used(&self, now: u64, used: u64, owed: u64) -> Time {
        self.write(self.bucket.with_used(now, used, owed))
    }

    fn adopt(&self, _old: &Self, state: &Time, _now: u64) -> Time {
        *state
    }

    /// As far ahead as any inline limit may be, not just this one.
    fn rebase(&self, _state: &Time, now: u64) -> Time {
        Time { full_at: now.saturating_add(self.longest), rest: 0, parts: 0 }
    }
}

/// An inline fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct InlineWindow {
    pub(crate) limit: u64,
    pub(crate) period: u64,
}

/// A count and the time at which it lapses. No units used means never seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    ends_at: u64,
    used: u64,
}

impl Arithmetic for InlineWindow {
    type State = Count;

    const WORDS: usize = 2;

    fn save(state: &Count, words: &mut [u64]) {
        words.copy_from_slice(&[state.ends_at, state.used]);
    }

    fn load(words: &[u64]) -> Count {
        let [ends_at, used] = exactly(words);
        Count { ends_at, used }
    }

    fn capacity(&self) -> u64 {
        self.limit
    }

    /// Zero: the count may exceed this limit because another admitted it.
    fn max_debt(&self) -> u64 {
        0
    }

    fn period(&self) -> u64 {
        self.period
    }

    fn written_at(&self, state: &Count) -> u64 {
        state.ends_at.saturating_sub(self.period)
    }

    fn used(&self, state: &Count, now: u64) -> u64 {
        if now < state.ends_at { state.used } else { 0 }
    }

    fn available_at(&self, state: &Count, now: u64, units: u64) -> u64 {
        if units <= self.available(state, now) { now } else { state.ends_at }
    }

    fn idle_at(&self, state: &Count) -> u64 {
        state.ends_at
    }

    fn take(&self, state: &mut Count, now: u64, units: u64) {
        *state = self.with_used(now, self.used(state, now).saturating_add(units), 0).ending(state, now);
    }

    fn give(&self, state: &mut Count, now: u64, units: u64) {
        let used = self.used(state, now).saturating_sub(units);
        *state = self.with_used(now, used, 0).ending(state, now);
    }

    fn with_used(&self, now: u64, used: u64, _owed: u64) -> Count {
        if used == 0 { Count::default() } else { Count { ends_at: now.saturating_add(self.period), used } }
    }

    fn adopt(&self, _old: &Self, state: &Count, _now: u64) -> Count {
        *state
    }

    /// The number of units stays; only the window's start moves.
    fn rebase(&self, state: &Count, now: u64) -> Count {
        self.with_used(now, state.used, 0)
    }
}

impl Count {
    /// This count with the end of `open`, if that window is still open.
    fn ending(self, open: &Self, now: u64) -> Self {
        if self.used > 0 && now < open.ends_at { Self { ends_at: open.ends_at, ..self } } else { self }
    }
}

#[cfg(test)]
mod tests {
    use crate::{DAY, HOUR, Limit, Meter, SECOND, Timestamp};

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

    fn inline(limit: Limit) -> Limit {
        limit.inline(31 * DAY).unwrap()
    }

    #[test]
    fn b12_a_time_means_the_same_under_every_bucket() {
        let (slow, fast) = (inline(Limit::per_hour(100)), inline(Limit::per_second(1000)));
        let mut meter = Meter::new(slow);
        assert!(meter.decide(NOW, 1).allowed());
        meter.retune(fast, NOW);
        assert!(
            !meter.decide(NOW, 1).allowed(),
            "a hundredth of an hour is used, more than the one second there is"
        );
        meter.retune(slow, NOW);
        assert_eq!(meter.peek(NOW, 1).remaining, 99);
    }

    #[test]
    fn b12_a_fraction_of_a_nanosecond_is_rounded_up_under_another_denominator() {
        let (thirds, sevenths) = (inline(Limit::per_second(3)), inline(Limit::per_second(7)));
        let mut meter = Meter::new(thirds);
        for _ in 0..3 {
            assert!(meter.decide(NOW, 1).allowed());
        }
        assert_eq!(meter.peek(NOW, 1).reset_at, NOW.saturating_add(SECOND), "the thirds add up");
        let mut meter = Meter::new(thirds);
        assert!(meter.decide(NOW, 1).allowed());
        meter.retune(sevenths, NOW);
        assert_eq!(meter.peek(NOW, 1).reset_at.since(NOW).as_nanos(), 333_333_334);
    }

    #[test]
    fn b7_a_wild_time_becomes_the_longest_refill_and_a_wild_count_keeps_its_number() {
        let far = NOW.saturating_add(400 * DAY);
        let mut meter = Meter::new(inline(Limit::per_second(1)));
        assert!(meter.decide(far, 1).allowed());
        assert!(!meter.decide(NOW, 1).allowed());
        assert_eq!(meter.peek(NOW, 1).reset_at, NOW.saturating_add(31 * DAY));
        let mut meter = Meter::new(inline(Limit::fixed_window(10, HOUR)));
        assert!(meter.decide(far, 3).allowed());
        assert!(meter.decide(NOW, 1).allowed(), "three of ten");
    }
}
