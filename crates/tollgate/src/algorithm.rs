//! The algorithms: pure integer arithmetic, one file each.
//!
//! An algorithm answers a few questions ([`Arithmetic`]): how many units are in use, when more are
//! available, take some, give some back. Admission, peeking, refunds, retry times and composition
//! are built on these once, by [`Meter`](crate::Meter).
//!
//! No algorithm reads a clock, allocates (except the sliding log's ring) or panics. Reading a state
//! never changes it: lapsed units are dropped at the next take, so a clock that goes back and
//! forward again finds the state unchanged. Times are nanoseconds since the epoch, at most
//! [`Timestamp::MAX`](crate::Timestamp::MAX); counts are at most [`MAX_COUNT`](crate::MAX_COUNT)
//! and spans at most [`MAX_SPAN`](crate::MAX_SPAN), which keeps every sum inside 64 bits and every
//! product inside 128. Arithmetic that is written as saturating never saturates within those
//! bounds.

use std::fmt::Debug;

use crate::Timestamp;

pub(crate) mod calendar_window;
pub(crate) mod concurrent;
pub(crate) mod fixed_window;
pub(crate) mod inline;
pub(crate) mod reserve;
pub(crate) mod sliding_log;
pub(crate) mod sliding_window;
pub(crate) mod token_bucket;

/// When the units of a reservation were drawn, and until when they are in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drawn {
    /// When they were drawn. `None` once the state was converted or re-based: then they are any
    /// units in use.
    pub(crate) at: Option<u64>,
    /// When all units in use at that time will have come back, if none are drawn after them.
    pub(crate) lapses_at: u64,
    /// The fraction of a nanosecond after that.
    pub(crate) rest: u64,
}

impl Drawn {
    /// Units that nothing tells from others in use.
    pub(crate) const fn any((lapses_at, rest): (u64, u64)) -> Self {
        Self { at: None, lapses_at, rest }
    }
}

/// The arithmetic of an algorithm.
///
/// Every method that takes a `now` expects one that is not before
/// [`written_at`](Self::written_at).
pub(crate) trait Arithmetic: Copy {
    /// The state of one client. The default is a client that was never seen.
    type State: Clone + Debug + Default + PartialEq;

    /// The 64-bit words of a packed state; 0 if the state does not pack, like a log's ring.
    const WORDS: usize;

    /// Packs a state into [`WORDS`](Self::WORDS) words. All zeroes is a client that was never seen.
    fn save(state: &Self::State, words: &mut [u64]);

    /// Unpacks a state that [`save`](Self::save) packed.
    fn load(words: &[u64]) -> Self::State;

    /// The units of the whole limit.
    fn capacity(&self) -> u64;

    /// The time until a wholly spent limit is whole again: a window's period, a bucket's full
    /// refill.
    fn period(&self) -> u64;

    /// The earliest time at which the state can have been written: 0 if no unit is in use.
    fn written_at(&self, state: &Self::State) -> u64;

    /// Whether this limit can have written the state at a valid time. Called first for numbers from
    /// outside: it keeps their sums inside 64 bits.
    fn can_write(&self, state: &Self::State) -> bool {
        self.written_at(state) <= Timestamp::MAX.as_nanos()
    }

    /// The most units that can be owed: how far a record can exceed the limit.
    fn max_debt(&self) -> u64;

    /// This limit with as many units more, and the same debt. Only a limit whose count can exceed
    /// it without debt, after a smaller one replaced it, is asked.
    fn raised(self, units: u64) -> Self {
        let _ = units;
        self
    }

    /// Units in use. More than the capacity if units are owed, if denied attempts count, or if a
    /// smaller limit replaced the one that admitted them.
    fn used(&self, state: &Self::State, now: u64) -> u64;

    /// Units that can be taken.
    #[inline]
    fn available(&self, state: &Self::State, now: u64) -> u64 {
        self.capacity().saturating_sub(self.used(state, now))
    }

    /// Units that were recorded beyond the capacity and are not paid off yet.
    fn owed(&self, state: &Self::State, now: u64) -> u64 {
        self.used(state, now).saturating_sub(self.capacity()).min(self.max_debt())
    }

    /// Units that can be recorded: those that are available, and those that can be owed.
    fn recordable(&self, state: &Self::State, now: u64) -> u64 {
        self.capacity().saturating_add(self.max_debt()).saturating_sub(self.used(state, now))
    }

    /// Whether `cost` can be taken. Not even a cost of 0 can while units are owed. Algorithms
    /// override it to avoid a division.
    #[inline]
    fn fits(&self, state: &Self::State, now: u64, cost: u64) -> bool {
        cost <= self.available(state, now) && (cost > 0 || self.owed(state, now) == 0)
    }

    /// The first time at which `units` (at most the capacity) can be taken if no more requests
    /// arrive: `now` if they already can. 0 units can be taken when nothing is owed.
    fn available_at(&self, state: &Self::State, now: u64, units: u64) -> u64;

    /// When no unit is in use any more.
    fn idle_at(&self, state: &Self::State) -> u64;

    /// When all units in use have come back, and the fraction of a nanosecond after that.
    fn lapses_at(&self, state: &Self::State) -> (u64, u64) {
        (self.idle_at(state), 0)
    }

    /// Takes `units`, which are available, or recordable. (Windows that count denied attempts also
    /// take others.)
    fn take(&self, state: &mut Self::State, now: u64, units: u64);

    /// Gives back up to `units`, the most recently drawn first, never beyond the capacity.
    fn give(&self, state: &mut Self::State, now: u64, units: u64);

    /// Gives back up to `units` of a reservation: of the units that it drew, those that have not
    /// come back since. Algorithms that can tell its units from others override it.
    fn give_held(&self, state: &mut Self::State, now: u64, units: u64, drawn: Drawn) {
        if now < drawn.lapses_at {
            self.give(state, now, units);
        }
    }

    /// The state of a client that just took `used` units and owed `owed` of them: all of them where
    /// the count lapses as a whole, at most the capacity and the debt where it does not.
    fn with_used(&self, now: u64, used: u64, owed: u64) -> Self::State;

    /// Converts `state` from `old`, a limit of the same algorithm that this one replaces: as many
    /// units stay in use. Algorithms override it to keep more than the number of units: the start
    /// of a window, the times of entries, the fraction of a token that has already refilled.
    fn adopt(&self, old: &Self, state: &Self::State, now: u64) -> Self::State {
        self.with_used(now, old.used(state, now), old.owed(state, now))
    }

    /// Re-bases a state that a wild reading of the clock wrote: exactly empty as of now.
    fn rebase(&self, state: &Self::State, now: u64) -> Self::State {
        let _ = state;
        self.with_used(now, self.capacity(), 0)
    }
}

/// Units owed by a window with `used` units in use. Attempts that were counted are no debt.
pub(crate) fn owed(window: &impl Arithmetic, count_denied: bool, used: u64) -> u64 {
    let excess = if count_denied { 0 } else { used.saturating_sub(window.capacity()) };
    excess.min(window.max_debt())
}

/// Units that can be recorded in a window with `used` units in use. Attempts that were counted
/// beyond the limit take no room from the debt.
pub(crate) fn recordable(window: &impl Arithmetic, count_denied: bool, used: u64) -> u64 {
    let used = if count_denied { used.min(window.capacity()) } else { used };
    window.capacity().saturating_add(window.max_debt()).saturating_sub(used)
}

/// Nanoseconds by which a reading of the clock may be behind a newer one and still count as merely
/// late: two threads, or two machines, read the clock and then reach the same key in the opposite
/// order.
pub(crate) const LATE: u64 = 1_000_000_000;

/// The words of a packed state.
pub(crate) fn exactly<const N: usize>(words: &[u64]) -> [u64; N] {
    words.first_chunk().copied().unwrap_or([0; N])
}

/// The start of the aligned period that contains `now`. (A period of zero does not occur; it gives
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
