//! Packed states: a state as a fixed number of words, and taking from it in place.

use super::{AlgorithmState, Meter, Outcome, RawOutcome};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::token_bucket::Word;
use crate::algorithm::{Arithmetic, sliding_log};
use crate::limit::Kind;
use crate::{Limit, Timestamp};

/// Evaluates an expression for the algorithm of a limit.
macro_rules! packed {
    ($limit:expr, |$algorithm:ident| $result:expr) => {
        match &$limit.0 {
            Kind::TokenBucket($algorithm) => $result,
            Kind::FixedWindow($algorithm) => $result,
            Kind::CalendarWindow($algorithm) => $result,
            Kind::SlidingWindow($algorithm) => $result,
            Kind::FractionalBucket($algorithm) => $result,
            Kind::Reserve($algorithm) => $result,
            Kind::SlidingLog($algorithm) => $result,
            Kind::Concurrent($algorithm) => $result,
            Kind::InlineBucket($algorithm) => $result,
            Kind::InlineWindow($algorithm) => $result,
        }
    };
}

impl Meter {
    /// Words of the packed state; `None` if the state does not pack.
    pub(crate) fn words(limit: &Limit) -> Option<usize> {
        let words = packed!(limit, |algorithm| words_of(algorithm));
        Some(words).filter(|words| *words > 0)
    }

    /// Packs the state into `words`.
    pub(crate) fn save(&self, words: &mut [u64]) {
        fn save<A: Arithmetic>(_: &A, state: &A::State, words: &mut [u64]) {
            A::save(state, words);
        }
        dispatch!(&self.0, |algorithm, state| save(algorithm, state, words));
    }

    /// The state as numbers, packed or not. The last is the excess, if there is any.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        let mut numbers = match &self.0 {
            AlgorithmState::SlidingLog(_, state) => state.numbers(),
            _ => {
                let mut words = vec![0; Self::words(&self.limit()).unwrap_or(0)];
                self.save(&mut words);
                words
            }
        };
        numbers.extend(Some(self.1.0).filter(|excess| *excess > 0));
        numbers
    }

    /// The meter with the state that these numbers encode. `None` if the limit cannot have written
    /// them.
    pub(crate) fn from_numbers(limit: Limit, numbers: &[u64]) -> Option<Self> {
        let mut meter = Self::new(limit);
        // A log's numbers are pairs.
        let words = Self::words(&limit).unwrap_or(numbers.len() & !1);
        let (state, excess) = numbers.split_at_checked(words)?;
        match &mut meter.0 {
            AlgorithmState::SlidingLog(_, log) => *log = sliding_log::State::from_numbers(state)?,
            // The cell counts its slots.
            AlgorithmState::Concurrent(..) if !numbers.is_empty() => return None,
            _ => meter = Self::load(limit, state),
        }
        if !dispatch!(&meter.0, |algorithm, state| algorithm.can_write(state)) {
            return None;
        }
        match excess {
            [] => Some(meter),
            [excess] => meter.with_excess(*excess),
            _ => None,
        }
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

/// Words of a packed state.
const fn words_of<A: Arithmetic>(_: &A) -> usize {
    A::WORDS
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

/// The outcome of a request of `cost` that was `allowed` or not, and left this packed state. The
/// same as [`Meter::outcome`] of a state that is not ahead of `now`, computed in one dispatch.
pub(crate) fn outcome(limit: &Limit, words: &[u64], now: Timestamp, cost: u64, allowed: bool) -> Outcome {
    fn outcome<A: Arithmetic>(
        algorithm: &A,
        words: &[u64],
        now: Timestamp,
        cost: u64,
        allowed: bool,
    ) -> RawOutcome {
        let (state, at) = (A::load(words.get(..A::WORDS).unwrap_or_default()), now.as_nanos());
        let available = algorithm.available(&state, at);
        let allowed = allowed || algorithm.fits(&state, at, cost);
        let available_at = |units| algorithm.available_at(&state, at, units);
        let raw = RawOutcome::new(now, cost, allowed, (available, algorithm.capacity()), available_at);
        raw.owing(if available == 0 { algorithm.owed(&state, at) } else { 0 })
    }
    packed!(limit, |algorithm| outcome(algorithm, words, now, cost, allowed)).into()
}

/// A limit prepared for [`take`].
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A token bucket with a one-word state.
    Bucket(Word),
    /// Any other limit that packs.
    Other(Limit),
}

impl Step {
    pub(crate) fn new(limit: &Limit) -> Self {
        match &limit.0 {
            Kind::TokenBucket(bucket) => bucket.word().map_or(Self::Other(*limit), Self::Bucket),
            _ => Self::Other(*limit),
        }
    }
}

/// Takes `cost` from the packed states of one budget: `Some(false)` if a state has too few units
/// left, `None` if one is ahead of `now`. Either way some states may already be changed: call it on
/// a copy.
#[inline(always)]
pub(crate) fn take(steps: &[Step], words: &mut [u64], now: u64, cost: u64) -> Option<bool> {
    let (mut at, mut fits) = (0_usize, true);
    for step in steps {
        let (fits_this, width) = match step {
            Step::Bucket(bucket) => (take_bucket(bucket, words.get_mut(at)?, now, cost)?, 1),
            Step::Other(Limit(Kind::FixedWindow(window))) => {
                (take_first(window, words.get_mut(at..)?, now, cost)?, FixedWindow::WORDS)
            }
            Step::Other(limit) => take_other(limit, words.get_mut(at..)?, now, cost)?,
        };
        fits &= fits_this;
        at = at.wrapping_add(width);
    }
    Some(fits)
}

/// Takes `cost` from the state of a token bucket: see [`take`].
#[inline(always)]
pub(crate) const fn take_bucket(bucket: &Word, word: &mut u64, now: u64, cost: u64) -> Option<bool> {
    match bucket.take(*word, now, cost) {
        Some(Some(left)) => {
            *word = left;
            Some(true)
        }
        Some(None) => Some(false),
        None => None,
    }
}

/// Takes `cost` from the first packed state in `words`. Returns whether it fits, and the words of
/// the state.
#[inline(never)]
pub(crate) fn take_other(limit: &Limit, words: &mut [u64], now: u64, cost: u64) -> Option<(bool, usize)> {
    packed!(limit, |algorithm| Some((take_first(algorithm, words, now, cost)?, words_of(algorithm))))
}

/// Takes `cost` from the first packed state in `words`: see [`take`].
#[inline(always)]
pub(crate) fn take_first<A: Arithmetic>(
    algorithm: &A,
    words: &mut [u64],
    now: u64,
    cost: u64,
) -> Option<bool> {
    let words = words.get_mut(..A::WORDS)?;
    let mut state = A::load(words);
    if algorithm.written_at(&state) > now {
        return None;
    }
    let fits = algorithm.fits(&state, now, cost);
    if fits {
        algorithm.take(&mut state, now, cost);
        A::save(&state, words);
    }
    Some(fits)
}

/// What [`refuse`] did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refused {
    /// Whether a limit counted the attempt.
    pub(crate) counted: bool,
    /// Whether the budget has the cost left.
    pub(crate) fits: bool,
}

/// Counts a denied attempt on the packed states of one budget, where a limit counts those: see
/// [`Meter::refuse`].
pub(crate) fn refuse(limits: &[Limit], mut words: &mut [u64], now: u64, cost: u64) -> Refused {
    fn refuse<A: Arithmetic>(algorithm: &A, words: &mut [u64], now: u64, cost: u64, counts: bool) -> bool {
        let mut state = A::load(words);
        if counts {
            algorithm.take(&mut state, now, cost);
            A::save(&state, words);
        }
        algorithm.fits(&state, now, cost)
    }
    let mut refused = Refused { counted: false, fits: true };
    for limit in limits {
        let length = Meter::words(limit).unwrap_or(0).min(words.len());
        let (state, rest) = std::mem::take(&mut words).split_at_mut(length);
        let counts = limit.counts_denied() && cost > 0 && cost <= limit.capacity();
        refused.counted |= counts;
        refused.fits &= packed!(limit, |algorithm| refuse(algorithm, state, now, cost, counts));
        words = rest;
    }
    refused
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
