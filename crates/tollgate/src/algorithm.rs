//! The algorithms: pure integer arithmetic, one file each.
//!
//! Everything tollgate promises about a single limit follows from the answers to a few questions,
//! and an algorithm is whatever answers them ([`Arithmetic`]): how much is in use, when will there
//! be more, take some, give some back. Admission, peeking, refunds, retry times and composition are
//! written once, in terms of these, by [`Meter`](crate::Meter).
//!
//! Nothing here reads a clock, allocates (the sliding log's ring aside) or panics. Reading a state
//! never changes it: what has lapsed is dropped when something is next taken, so that a clock that
//! goes back and forward again finds what it left. Times are raw nanoseconds since the epoch, at
//! most [`Timestamp::MAX`](crate::Timestamp::MAX); counts are at most
//! [`MAX_COUNT`](crate::MAX_COUNT) and spans at most [`MAX_SPAN`](crate::MAX_SPAN), which keeps
//! every sum inside 64 bits and every product inside 128. Arithmetic that is written as saturating
//! never saturates within those bounds.

use std::fmt::Debug;

use crate::Timestamp;

pub(crate) mod fixed_window;
pub(crate) mod inline;
pub(crate) mod reserve;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;

/// What an algorithm knows about a client.
///
/// Every method that takes a `now` expects one that is not before
/// [`written_at`](Self::written_at).
pub(crate) trait Arithmetic: Sized {
    /// The state of one client. The default is a client never seen.
    type State: Clone + Debug + Default + PartialEq;

    /// How many 64-bit words the state packs into; none if it does not, as a log's ring does not.
    const WORDS: usize;

    /// Packs a state into [`WORDS`](Self::WORDS) words. All zeroes is a client never seen.
    fn save(state: &Self::State, words: &mut [u64]);

    /// Unpacks what [`save`](Self::save) packed.
    fn load(words: &[u64]) -> Self::State;

    /// How many units the limit admits when nothing has been taken.
    fn capacity(&self) -> u64;

    /// How long the whole limit takes to come back: a window's period, a bucket's full refill.
    fn period(&self) -> u64;

    /// The earliest moment at which the state can have been written: 0 if nothing is in use.
    fn written_at(&self, state: &Self::State) -> u64;

    /// Whether this limit can have written the state, at some time that a clock can show. Asked of
    /// numbers that come from outside, before anything else is: it is what keeps their sums inside
    /// 64 bits.
    fn can_write(&self, state: &Self::State) -> bool {
        self.written_at(state) <= Timestamp::MAX.as_nanos()
    }

    /// How many units are in use. More than the capacity if denied attempts count, or if a smaller
    /// limit replaced the one that admitted them.
    fn used(&self, state: &Self::State, now: u64) -> u64;

    /// How many units can be taken.
    #[inline]
    fn available(&self, state: &Self::State, now: u64) -> u64 {
        self.capacity().saturating_sub(self.used(state, now))
    }

    /// Whether `cost` can be taken. Algorithms override it where the answer needs no division, or
    /// where more can be in use than would ever be admitted.
    #[inline]
    fn fits(&self, state: &Self::State, now: u64, cost: u64) -> bool {
        cost <= self.available(state, now)
    }

    /// The first moment at which `units` (at most the capacity) can be taken if nothing else
    /// happens: `now` if they can be already.
    fn available_at(&self, state: &Self::State, now: u64, units: u64) -> u64;

    /// When nothing is in use any more.
    fn idle_at(&self, state: &Self::State) -> u64;

    /// Takes `units`, which are available. (Windows that count denied attempts also take what is
    /// not.)
    fn take(&self, state: &mut Self::State, now: u64, units: u64);

    /// Gives back up to `units`, the most recently drawn first, never beyond the capacity.
    fn give(&self, state: &mut Self::State, now: u64, units: u64);

    /// Gives back up to `units` of what was drawn together, when all that was in use was to have
    /// come back at `lapses_at`: only what has not come back since on its own, the oldest
    /// first.
    fn give_held(&self, state: &mut Self::State, now: u64, units: u64, lapses_at: u64) {
        if now < lapses_at {
            self.give(state, now, units);
        }
    }

    /// A client who took `used` units just now: all of them where the count lapses as a whole, the
    /// capacity at most where it would be a debt.
    fn with_used(&self, now: u64, used: u64) -> Self::State;

    /// The state under this limit of a client whose state under `old`, a limit of the same
    /// algorithm that this one replaces, was `state`: as many units in use. Algorithms override it
    /// to keep what units alone do not say: where a window started, when entries lapse, the part
    /// of a token that has already trickled in.
    fn adopt(&self, old: &Self, state: &Self::State, now: u64) -> Self::State {
        self.with_used(now, old.used(state, now))
    }

    /// A state that was written at a wild reading of the clock, as of now: exactly empty.
    fn rebase(&self, state: &Self::State, now: u64) -> Self::State {
        let _ = state;
        self.with_used(now, self.capacity())
    }
}

/// How far behind another a reading of the clock may be and still be one that merely came late: two
/// threads read it and then reach the same key in the opposite order, or two machines do.
pub(crate) const LATE: u64 = 1_000_000_000;

/// The words of a packed state, none of which is missing.
pub(crate) fn exactly<const N: usize>(words: &[u64]) -> [u64; N] {
    words.first_chunk().copied().unwrap_or([0; N])
}

/// The start of the aligned period that `now` lies in. (A period of zero does not exist; it answers
/// `now`.)
pub(crate) fn aligned_start(now: u64, period: u64) -> u64 {
    now.saturating_sub(now.checked_rem(period).unwrap_or(0))
}

/// The first multiple of the period that is not before `at`.
pub(crate) fn aligned_end(at: u64, period: u64) -> u64 {
    match aligned_start(at, period) {
        start if start < at => start.saturating_add(period),
        start => start,
    }
}

/// `a + b`, which the bounds above keep inside 64 bits.
#[inline]
pub(crate) const fn sum(a: u64, b: u64) -> u64 {
    debug_assert!(a.checked_add(b).is_some(), "times and spans add up to less than 64 bits");
    a.wrapping_add(b)
}

/// `a * b` without overflow.
pub(crate) fn product(a: u64, b: u64) -> u128 {
    u128::from(a).saturating_mul(u128::from(b))
}

/// `ceil(a / b)`, in the width that the numbers need: 128-bit division costs several times the
/// 64-bit one.
pub(crate) fn quotient_ceil(a: u128, b: u128) -> u128 {
    match (u64::try_from(a), u64::try_from(b)) {
        (Ok(a), Ok(b)) => u128::from(a.checked_div(b).unwrap_or(0))
            .saturating_add(u128::from(a.checked_rem(b).unwrap_or(0) > 0)),
        _ => a.checked_div(b).unwrap_or(0).saturating_add(u128::from(a.checked_rem(b).unwrap_or(0) > 0)),
    }
}

/// A number that the bounds above say fits 64 bits.
pub(crate) fn narrow(wide: u128) -> u64 {
    u64::try_from(wide).unwrap_or(u64::MAX)
}
