//! States as words: how stores that keep many of them keep them, and how a request is decided in
//! place.

use super::{Drawn, Meter};
use crate::Limit;
use crate::algorithm::{Arithmetic, sliding_log};
use crate::limit::Kind;

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
            Kind::InlineBucket($algorithm) => $answer,
            Kind::InlineWindow($algorithm) => $answer,
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

    /// The meter whose state these numbers are, if the limit can have written them.
    pub(crate) fn from_numbers(limit: Limit, numbers: &[u64]) -> Option<Self> {
        let mut meter = Self::new(limit);
        match (&mut meter.0, Self::words(&limit)) {
            (Drawn::SlidingLog(_, state), _) => *state = sliding_log::State::from_numbers(numbers)?,
            (_, Some(words)) if words == numbers.len() => meter = Self::load(limit, numbers),
            _ => return None,
        }
        ask!(&meter.0, |algorithm, state| algorithm.can_write(state)).then_some(meter)
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
}

/// When the packed states of one budget have nothing in use any more.
pub(crate) fn idle_at(limits: &[Limit], words: &[u64]) -> u64 {
    fn idle_at<A: Arithmetic>(algorithm: &A, words: &[u64]) -> u64 {
        algorithm.idle_at(&A::load(words))
    }
    states(limits, words)
        .map(|(limit, state)| packed!(limit, |algorithm| idle_at(algorithm, state)))
        .fold(0, u64::max)
}

/// Takes `cost` from the packed states of one budget, and says when nothing will be in use any more:
/// at no time if one has too little. No answer if one is ahead of `now`. Either way some may have
/// been taken from: this is for copies.
pub(crate) fn take(limits: &[Limit], mut words: &mut [u64], now: u64, cost: u64) -> Option<Option<u64>> {
    let mut idle_at = Some(0);
    for limit in limits {
        let next = packed!(limit, |algorithm| take_next(algorithm, &mut words, now, cost))?;
        idle_at = match (idle_at, next) {
            (Some(before), Some(next)) => Some(next.max(before)),
            _ => None,
        };
    }
    Some(idle_at)
}

/// The same for the first of them.
#[inline(always)]
fn take_next<A: Arithmetic>(
    algorithm: &A,
    words: &mut &mut [u64],
    now: u64,
    cost: u64,
) -> Option<Option<u64>> {
    let (first, rest) = std::mem::take(words).split_at_mut_checked(A::WORDS)?;
    *words = rest;
    let mut state = A::load(first);
    if algorithm.written_at(&state) > now {
        return None;
    }
    if !algorithm.fits(&state, now, cost) {
        return Some(None);
    }
    algorithm.take(&mut state, now, cost);
    A::save(&state, first);
    Some(Some(algorithm.idle_at(&state)))
}

/// Each limit of a budget with its part of the packed states.
fn states<'a>(
    limits: &'a [Limit],
    mut words: &'a [u64],
) -> impl Iterator<Item = (&'a Limit, &'a [u64])> + use<'a> {
    limits.iter().map(move |limit| {
        let (state, rest) = words.split_at(Meter::words(limit).unwrap_or(0).min(words.len()));
        words = rest;
        (limit, state)
    })
}
