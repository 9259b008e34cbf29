//! States as words: how stores that keep many of them keep them, and how a decision is made in
//! place.

use super::{Drawn, Meter, Numbers, Outcome, decide};
use crate::algorithm::{Arithmetic, sliding_log};
use crate::limit::Kind;
use crate::{Limit, Timestamp};

/// Asks whatever algorithm a limit has, about a state that is packed.
macro_rules! packed {
    ($limit:expr, |$algorithm:ident| $answer:expr) => {
        match &$limit.0 {
            Kind::TokenBucket($algorithm) => $answer,
            Kind::FixedWindow($algorithm) => $answer,
            Kind::SlidingWindow($algorithm) => $answer,
            Kind::FractionalBucket($algorithm) => $answer,
            Kind::Reserve($algorithm) => $answer,
            Kind::SlidingLog($algorithm) => $answer,
        }
    };
}

impl Meter {
    /// How many words the state packs into; none if it does not.
    pub(crate) fn words(limit: &Limit) -> Option<usize> {
        const fn words<A: Arithmetic>(_: &A) -> usize {
            A::WORDS
        }
        let words = packed!(limit, |algorithm| words(algorithm));
        Some(words).filter(|words| *words > 0)
    }

    /// Packs the state into as many words as it needs.
    pub(crate) fn save(&self, words: &mut [u64]) {
        fn save<A: Arithmetic>(_: &A, state: &A::State, words: &mut [u64]) {
            A::save(state, words);
        }
        ask!(&self.0, |algorithm, state| save(algorithm, state, words));
    }

    /// The state as numbers, however many it takes.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        match &self.0 {
            Drawn::SlidingLog(_, state) => state.numbers(),
            _ => {
                let mut words = vec![0; Self::words(&self.limit()).unwrap_or(0)];
                self.save(&mut words);
                words
            }
        }
    }

    /// The meter whose state these numbers are.
    pub(crate) fn from_numbers(limit: Limit, numbers: &[u64]) -> Option<Self> {
        let mut meter = Self::new(limit);
        match (&mut meter.0, Self::words(&limit)) {
            (Drawn::SlidingLog(_, state), _) => *state = sliding_log::State::from_numbers(numbers)?,
            (_, Some(words)) if words == numbers.len() => meter = Self::load(limit, numbers),
            _ => return None,
        }
        Some(meter)
    }

    /// The meter whose state was packed into `words`.
    pub(crate) fn load(limit: Limit, words: &[u64]) -> Self {
        fn load<A: Arithmetic>(_: &A, words: &[u64]) -> A::State {
            A::load(words)
        }
        let mut meter = Self::new(limit);
        ask!(&mut meter.0, |algorithm, state| *state = load(algorithm, words));
        meter
    }

    /// When a packed state has nothing in use any more.
    pub(crate) fn packed_idle_at(limit: &Limit, words: &[u64]) -> u64 {
        fn idle_at<A: Arithmetic>(algorithm: &A, words: &[u64]) -> u64 {
            algorithm.idle_at(&A::load(words))
        }
        packed!(limit, |algorithm| idle_at(algorithm, words))
    }

    /// What a packed state says when another limit has denied the request.
    pub(crate) fn refuse_packed(limit: &Limit, words: &mut [u64], now: Timestamp, cost: u64) -> Outcome {
        let mut meter = Self::load(*limit, words);
        meter.roll(now);
        meter.refuse(now, cost);
        meter.save(words);
        meter.outcome(now, cost, cost <= meter.available(now))
    }

    /// What [`decide`](Self::decide) does, on a packed state. The usual bucket is decided on the
    /// spot: an outcome is many words, and passing it on costs as much as computing it.
    #[inline(always)]
    pub(crate) fn decide_packed(limit: &Limit, words: &mut [u64], now: Timestamp, cost: u64) -> Numbers {
        match &limit.0 {
            Kind::TokenBucket(bucket) => decide_words(bucket, words, now, cost),
            _ => Self::decide_other(limit, words, now, cost),
        }
    }

    #[inline(never)]
    fn decide_other(limit: &Limit, words: &mut [u64], now: Timestamp, cost: u64) -> Numbers {
        packed!(limit, |algorithm| decide_words(algorithm, words, now, cost))
    }
}

/// The decision, on a packed state.
#[inline(always)]
fn decide_words<A: Arithmetic>(algorithm: &A, words: &mut [u64], now: Timestamp, cost: u64) -> Numbers {
    let mut state = A::load(words);
    let numbers = decide(algorithm, &mut state, now, cost);
    A::save(&state, words);
    numbers
}
