//! Packed states: a state as a fixed number of words, and taking from it in place.

use super::{AlgorithmState, Meter};
use crate::Limit;
use crate::algorithm::{Arithmetic, sliding_log};
use crate::limit::Kind;

/// Evaluates an expression for the algorithm of a limit.
macro_rules! packed {
    ($limit:expr, |$algorithm:ident| $result:expr) => {
        match &$limit.0 {
            Kind::TokenBucket($algorithm) => $result,
            Kind::FixedWindow($algorithm) => $result,
            Kind::SlidingWindow($algorithm) => $result,
            Kind::FractionalBucket($algorithm) => $result,
            Kind::Reserve($algorithm) => $result,
            Kind::SlidingLog($algorithm) => $result,
            Kind::InlineBucket($algorithm) => $result,
            Kind::InlineWindow($algorithm) => $result,
        }
    };
}

impl Meter {
    /// Words of the packed state; `None` if the state does not pack.
    pub(crate) fn words(limit: &Limit) -> Option<usize> {
        const fn words<A: Arithmetic>(_: &A) -> usize {
            A::WORDS
        }
        let words = packed!(limit, |algorithm| words(algorithm));
        Some(words).filter(|words| *words > 0)
    }

    /// Packs the state into `words`.
    pub(crate) fn save(&self, words: &mut [u64]) {
        fn save<A: Arithmetic>(_: &A, state: &A::State, words: &mut [u64]) {
            A::save(state, words);
        }
        dispatch!(&self.0, |algorithm, state| save(algorithm, state, words));
    }

    /// The state as numbers, packed or not.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        match &self.0 {
            AlgorithmState::SlidingLog(_, state) => state.numbers(),
            _ => {
                let mut words = vec![0; Self::words(&self.limit()).unwrap_or(0)];
                self.save(&mut words);
                words
            }
        }
    }

    /// The meter with the state that these numbers encode. `None` if the limit cannot have written
    /// them.
    pub(crate) fn from_numbers(limit: Limit, numbers: &[u64]) -> Option<Self> {
        let mut meter = Self::new(limit);
        match (&mut meter.0, Self::words(&limit)) {
            (AlgorithmState::SlidingLog(_, state), _) => *state = sliding_log::State::from_numbers(numbers)?,
            (_, Some(words)) if words == numbers.len() => meter = Self::load(limit, numbers),
            _ => return None,
        }
        dispatch!(&meter.0, |algorithm, state| algorithm.can_write(state)).then_some(meter)
    }

    /// The meter with the state that was packed into `words`.
    pub(crate) fn load(limit: Limit, words: &[u64]) -> Self {
        fn load<A: Arithmetic>(_: &A, words: &[u64]) -> A::State {
            A::load(words)
        }
        let mut meter = Self::new(limit);
        dispatch!(&mut meter.0, |algorithm, state| *state = load(algorithm, words));
        meter
    }
}

/// When no unit of a budget's packed states is in use any more.
pub(crate) fn idle_at(limits: &[Limit], words: &[u64]) -> u64 {
    fn idle_at<A: Arithmetic>(algorithm: &A, words: &[u64]) -> u64 {
        algorithm.idle_at(&A::load(words))
    }
    states(limits, words)
        .map(|(limit, state)| packed!(limit, |algorithm| idle_at(algorithm, state)))
        .fold(0, u64::max)
}

/// Takes `cost` from the packed states of one budget, and returns when no unit will be in use any
/// more: `Some(None)` if a state has too few units left, `None` if one is ahead of `now`. Either
/// way some states may already be changed: call it on a copy.
#[inline]
pub(crate) fn take(limits: &[Limit], mut words: &mut [u64], now: u64, cost: u64) -> Option<Option<u64>> {
    let (mut idle_at, mut fits) = (0, true);
    for limit in limits {
        match packed!(limit, |algorithm| take_next(algorithm, &mut words, now, cost))? {
            Some(next) => idle_at = next.max(idle_at),
            None => fits = false,
        }
    }
    Some(fits.then_some(idle_at))
}

/// Takes `cost` from the first packed state in `words`, and advances `words` past it.
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
