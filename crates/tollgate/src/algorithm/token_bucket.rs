//! Token bucket: bursts up to `capacity`, `amount` per `interval` sustained. The whole state is one
//! time.
//!
//! A token is equivalent to a duration: a bucket that lacks three tokens will be full after the
//! time of three tokens. So the state is the time at which the bucket is full again, refilling is
//! the passage of time, and there is no refill task. A time in the past is a full bucket, which is
//! also the state of a new client.
//!
//! *Smooth* refill (GCRA) adds tokens evenly. *Stepped* refill adds `amount` at once at each
//! multiple of `interval`: the same arithmetic with `now` rounded down to the last step.
//!
//! The arithmetic is exact: a token takes `interval / amount` nanoseconds, kept as a reduced
//! fraction. If that is whole, the state is 8 bytes. If not (3 per second), the state also carries
//! a fraction. Rounding the time of a token to nanoseconds instead is the classic cause of drift.

use super::{Arithmetic, Drawn, aligned_end, aligned_start, narrow, product, quotient_ceil, sum};
use crate::Timestamp;

mod fraction;
mod word;

pub(crate) use fraction::{Fraction, Parts, Whole};
pub(crate) use word::Word;

/// The limit. `F` says whether a token is a whole number of nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct TokenBucket<F> {
    pub(crate) capacity: u64,
    pub(crate) amount: u64,
    pub(crate) interval: u64,
    pub(crate) stepped: bool,
    pub(crate) max_debt: u64,
    /// A token takes `token / fraction` nanoseconds, in lowest terms.
    token: u64,
    fraction: F,
}

/// The state of one client: when the bucket is full again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct State<R> {
    full_at: u64,
    /// The fraction of a nanosecond.
    rest: R,
}

impl State<()> {
    pub(super) const fn whole(full_at: u64) -> Self {
        Self { full_at, rest: () }
    }

    pub(super) const fn full_at(self) -> u64 {
        self.full_at
    }
}

impl State<u64> {
    pub(super) const fn new(full_at: u64, rest: u64) -> Self {
        Self { full_at, rest }
    }

    pub(super) const fn numbers(self) -> (u64, u64) {
        (self.full_at, self.rest)
    }
}

impl TokenBucket<Parts> {
    /// A bucket without debt.
    pub(crate) const fn new(capacity: u64, amount: u64, interval: u64, stepped: bool) -> Self {
        let shared = greatest_common_divisor(amount, interval);
        let (Some(token), Some(parts)) = (interval.checked_div(shared), amount.checked_div(shared)) else {
            // Amount and interval are both zero, which no valid limit has.
            return Self { capacity, amount, interval, stepped, max_debt: 0, token: 1, fraction: Parts(1) };
        };
        Self { capacity, amount, interval, stepped, max_debt: 0, token, fraction: Parts(parts) }
    }

    /// The bucket without debt whose token takes `token / parts` nanoseconds, in lowest terms.
    pub(crate) const fn reduced(capacity: u64, token: u64, parts: u64) -> Self {
        let (amount, interval, fraction) = (parts, token, Parts(parts));
        Self { capacity, amount, interval, stepped: false, max_debt: 0, token, fraction }
    }

    /// The time of a token in nanoseconds, as numerator and denominator.
    pub(crate) const fn token(&self) -> (u64, u64) {
        (self.token, self.fraction.0)
    }

    /// This bucket with an eight-byte state, if a token is a whole number of nanoseconds.
    pub(crate) const fn whole(self) -> Option<TokenBucket<Whole>> {
        let Self { capacity, amount, interval, stepped, max_debt, token, fraction: Parts(parts) } = self;
        if parts != 1 {
            return None;
        }
        Some(TokenBucket { capacity, amount, interval, stepped, max_debt, token, fraction: Whole })
    }
}

impl TokenBucket<Whole> {
    /// This bucket in the general form.
    pub(crate) const fn in_parts(self) -> TokenBucket<Parts> {
        let Self { capacity, amount, interval, stepped, max_debt, token, fraction: _ } = self;
        TokenBucket { capacity, amount, interval, stepped, max_debt, token, fraction: Parts(1) }
    }
}

impl<F: Fraction> TokenBucket<F> {
    /// The time to decide at: for stepped refill, the last step.
    #[inline]
    fn tick(&self, now: u64) -> u64 {
        if self.stepped { aligned_start(now, self.interval) } else { now }
    }

    /// The time until the bucket is full, in parts of a nanosecond; a token is `token` of them.
    fn until_full(&self, state: &State<F::Rest>, tick: u64) -> u128 {
        match state.full_at.checked_sub(tick) {
            Some(ahead) => {
                product(ahead, self.fraction.parts()).saturating_add(u128::from(F::numerator(state.rest)))
            }
            None => 0,
        }
    }

    /// The state of a bucket that is full after this time, in parts of a nanosecond.
    fn full_after(&self, tick: u64, time: u128) -> State<F::Rest> {
        let parts = u128::from(self.fraction.parts());
        let nanos = time.checked_div(parts).unwrap_or(time);
        let rest = time.checked_rem(parts).unwrap_or(0);
        State { full_at: tick.saturating_add(narrow(nanos)), rest: F::keep(narrow(rest)) }
    }

    /// Reduces the time until the bucket is full by `parts`. A full bucket is left unchanged.
    fn advance(&self, state: &mut State<F::Rest>, tick: u64, parts: u128) {
        let time = self.until_full(state, tick);
        if time > 0 {
            *state = self.full_after(tick, time.saturating_sub(parts));
        }
    }

    /// Nanoseconds of `count` tokens, at most the capacity and the debt, where a token is whole.
    #[inline]
    const fn span(&self, count: u64) -> u64 {
        debug_assert!(count.checked_mul(self.token).is_some(), "a refill takes at most two hundred years");
        count.wrapping_mul(self.token)
    }

    fn tokens(&self, count: u64) -> u128 {
        product(count, self.token)
    }

    /// The first time at which at most `most` units are in use.
    pub(super) fn most_used_at(&self, state: &State<F::Rest>, now: u64, most: u64) -> u64 {
        let tick = self.tick(now);
        let excess = self.until_full(state, tick).saturating_sub(self.tokens(most));
        if excess == 0 {
            return now;
        }
        let at = tick.saturating_add(narrow(quotient_ceil(excess, u128::from(self.fraction.parts()))));
        if self.stepped { aligned_end(at, self.interval) } else { at }
    }

    /// [`Arithmetic::adopt`] from a bucket of either form. Units beyond the new capacity are
    /// dropped, except those that were owed before: a replacement makes no debt.
    pub(crate) fn adopt_bucket<G: Fraction>(
        &self,
        old: &TokenBucket<G>,
        state: &State<G::Rest>,
        now: u64,
    ) -> State<F::Rest> {
        if self.stepped || old.stepped {
            return self.with_used(now, old.used(state, now), old.owed(state, now));
        }
        // The refilled fraction of a token is kept, so that a limit that changes often still
        // refills.
        let token = u128::from(old.token);
        let converted = |time: u128| {
            let whole = time.checked_div(token).unwrap_or(0).saturating_mul(u128::from(self.token));
            let part = time.checked_rem(token).unwrap_or(0).saturating_mul(u128::from(self.token));
            whole.saturating_add(quotient_ceil(part, token))
        };
        let time = old.until_full(state, now);
        let owed = converted(time.saturating_sub(old.tokens(old.capacity))).min(self.tokens(self.max_debt));
        self.full_after(now, converted(time).min(self.tokens(self.capacity).saturating_add(owed)))
    }
}

impl<F: Fraction> Arithmetic for TokenBucket<F> {
    type State = State<F::Rest>;

    const WORDS: usize = F::WORDS;

    #[inline]
    fn save(state: &Self::State, words: &mut [u64]) {
        match words {
            [full_at, rest, ..] if F::WORDS > 1 => {
                (*full_at, *rest) = (state.full_at, F::numerator(state.rest));
            }
            [full_at, ..] => *full_at = state.full_at,
            [] => {}
        }
    }

    #[inline]
    fn load(words: &[u64]) -> Self::State {
        match *words {
            [full_at, rest, ..] if F::WORDS > 1 => State { full_at, rest: F::keep(rest) },
            [full_at, ..] => State { full_at, rest: F::keep(0) },
            [] => State { full_at: 0, rest: F::keep(0) },
        }
    }

    #[inline]
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn max_debt(&self) -> u64 {
        self.max_debt
    }

    fn period(&self) -> u64 {
        let refill = narrow(quotient_ceil(self.tokens(self.capacity), u128::from(self.fraction.parts())));
        // Whole steps.
        if self.stepped { aligned_end(refill, self.interval) } else { refill }
    }

    #[inline]
    fn written_at(&self, state: &Self::State) -> u64 {
        let earliest = if F::WORDS == 1 {
            // Fits 64 bits: refilling the capacity and the debt takes at most two hundred years of
            // nanoseconds.
            state.full_at.saturating_sub(self.span(sum(self.capacity, self.max_debt)))
        } else {
            let parts = self.fraction.parts();
            let full = product(state.full_at, parts).saturating_add(F::numerator(state.rest).into());
            let most = self.tokens(sum(self.capacity, self.max_debt));
            narrow(quotient_ceil(full.saturating_sub(most), parts.into()))
        };
        if self.stepped { aligned_end(earliest, self.interval) } else { earliest }
    }

    fn can_write(&self, state: &Self::State) -> bool {
        let is_time = self.written_at(state) <= Timestamp::MAX.as_nanos();
        is_time && F::numerator(state.rest) < self.fraction.parts()
    }

    #[inline]
    fn used(&self, state: &Self::State, now: u64) -> u64 {
        if F::WORDS == 1 {
            let time = state.full_at.saturating_sub(self.tick(now));
            let whole = time.checked_div(self.token).unwrap_or(0);
            return sum(whole, u64::from(whole.wrapping_mul(self.token) != time));
        }
        narrow(quotient_ceil(self.until_full(state, self.tick(now)), u128::from(self.token)))
    }

    #[inline]
    fn fits(&self, state: &Self::State, now: u64, cost: u64) -> bool {
        let tick = self.tick(now);
        if F::WORDS == 1 {
            // The sum of the state and the cost may exceed 64 bits if units are owed.
            let Some(spare) = self.capacity.checked_sub(cost) else { return false };
            return state.full_at <= sum(tick, self.span(spare));
        }
        self.until_full(state, tick).saturating_add(self.tokens(cost)) <= self.tokens(self.capacity)
    }

    #[inline]
    fn available_at(&self, state: &Self::State, now: u64, units: u64) -> u64 {
        if F::WORDS == 1 && !self.stepped {
            let spare = self.span(self.capacity.saturating_sub(units));
            return state.full_at.saturating_sub(spare).max(now);
        }
        self.most_used_at(state, now, self.capacity.saturating_sub(units))
    }

    fn idle_at(&self, state: &Self::State) -> u64 {
        let whole = state.full_at.saturating_add(u64::from(F::numerator(state.rest) > 0));
        if self.stepped { aligned_end(whole, self.interval) } else { whole }
    }

    fn lapses_at(&self, state: &Self::State) -> (u64, u64) {
        (state.full_at, F::numerator(state.rest))
    }

    #[inline]
    fn take(&self, state: &mut Self::State, now: u64, units: u64) {
        if F::WORDS == 1 {
            state.full_at = sum(state.full_at.max(self.tick(now)), self.span(units));
            return;
        }
        let tick = self.tick(now);
        *state = self.full_after(tick, self.until_full(state, tick).saturating_add(self.tokens(units)));
    }

    fn give(&self, state: &mut Self::State, now: u64, units: u64) {
        self.advance(state, self.tick(now), self.tokens(units));
    }

    fn give_held(&self, state: &mut Self::State, now: u64, units: u64, drawn: Drawn) {
        let tick = self.tick(now);
        let Some(ahead) = drawn.lapses_at.checked_sub(tick) else { return };
        let outstanding = product(ahead, self.fraction.parts()).saturating_add(drawn.rest.into());
        self.advance(state, tick, self.tokens(units).min(outstanding));
    }

    fn with_used(&self, now: u64, used: u64, owed: u64) -> Self::State {
        match used.min(sum(self.capacity, owed.min(self.max_debt))) {
            0 => Self::State::default(),
            used => self.full_after(self.tick(now), self.tokens(used)),
        }
    }

    fn adopt(&self, old: &Self, state: &Self::State, now: u64) -> Self::State {
        self.adopt_bucket(old, state, now)
    }
}

const fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while let Some(rest) = a.checked_rem(b) {
        (a, b) = (b, rest);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, Meter, SECOND, Verdict};
    use std::time::Duration;

    fn admitted(meter: &mut Meter, now: Timestamp) -> u64 {
        (0..1000).take_while(|_| meter.decide(now, 1).allowed()).count() as u64
    }

    #[test]
    fn a4_vector_stepped_ten_per_hundred_milliseconds() {
        let tick = Timestamp::from_secs(1_000);
        let step = Duration::from_millis(100);
        let drained = || {
            let mut meter = Meter::new(Limit::token_bucket(100, 10, step).stepped());
            assert_eq!(admitted(&mut meter, tick), 100);
            meter
        };
        let just_before = tick.saturating_add(step).saturating_sub(Duration::from_nanos(1));
        assert_eq!(admitted(&mut drained(), just_before), 0);
        assert_eq!(admitted(&mut drained(), tick.saturating_add(step)), 10);
        assert_eq!(admitted(&mut drained(), tick.saturating_add(3 * step)), 30);
        assert_eq!(admitted(&mut drained(), tick.saturating_add(crate::HOUR)), 100);
    }

    #[test]
    fn a4_steps_come_at_multiples_of_the_interval_regardless_of_when_the_bucket_was_drained() {
        let mut meter = Meter::new(Limit::token_bucket(10, 10, SECOND).stepped());
        let between = Timestamp::from_millis(1_700);
        assert_eq!(admitted(&mut meter, between), 10);
        let denied = meter.decide(between, 1);
        assert_eq!(denied.verdict, Verdict::Denied { retry_after: Duration::from_millis(300) });
        assert_eq!(admitted(&mut meter, Timestamp::from_millis(2_000)), 10);
    }

    #[test]
    fn a4_a_token_is_available_on_its_nanosecond_and_not_before() {
        let mut meter = Meter::new(Limit::per_second(3));
        let start = Timestamp::from_secs(50);
        assert_eq!(admitted(&mut meter, start), 3);
        // One third of a second is 333 333 333.33… ns: the token is available at the next whole
        // one.
        assert!(!meter.decide(start.saturating_add(Duration::from_nanos(333_333_333)), 1).allowed());
        assert!(meter.decide(start.saturating_add(Duration::from_nanos(333_333_334)), 1).allowed());
        assert!(!meter.decide(start.saturating_add(Duration::from_nanos(666_666_666)), 1).allowed());
        assert!(meter.decide(start.saturating_add(Duration::from_nanos(666_666_667)), 1).allowed());
        assert!(meter.decide(start.saturating_add(SECOND), 1).allowed(), "the thirds add up to a whole");
    }

    #[test]
    fn a4_seven_hundred_million_per_second_are_seven_tenths_of_a_token_per_nanosecond() {
        let mut meter = Meter::new(Limit::per_second(700_000_000));
        let start = Timestamp::from_secs(1);
        assert!(meter.decide(start, 700_000_000).allowed());
        let after = |nanos| meter.peek(start.saturating_add(Duration::from_nanos(nanos)), 1).remaining;
        assert_eq!([0, 1, 2, 3, 10].map(after), [0, 0, 1, 2, 7]);
    }

    #[test]
    fn a4_a_trillion_a_day_is_exact() {
        let mut meter = Meter::new(Limit::per_day(1_000_000_000_000));
        let start = Timestamp::from_secs(1_800_000_000);
        assert!(meter.decide(start, 1_000_000_000_000).allowed());
        let half_a_day = start.saturating_add(12 * crate::HOUR);
        assert_eq!(meter.peek(half_a_day, 1).remaining, 500_000_000_000);
        assert_eq!(meter.peek(start, 1).reset_at, start.saturating_add(crate::DAY));
    }

    #[test]
    fn a4_the_state_is_eight_bytes_for_rates_that_divide_and_sixteen_for_those_that_do_not() {
        assert_eq!(size_of::<<TokenBucket<Whole> as Arithmetic>::State>(), 8);
        assert_eq!(size_of::<<TokenBucket<Parts> as Arithmetic>::State>(), 16);
        let form = |amount, interval| TokenBucket::new(10, amount, interval, false).whole().is_some();
        assert!(form(10, 60_000_000_000), "ten a minute divides");
        assert!(!form(3, 1_000_000_000), "three a second does not");
        assert!(!form(700_000_000, 1_000_000_000));
    }
}
