//! Converting a state: to a limit that replaces its own, and to another reading of the clock.

use super::{AlgorithmState, Excess, Meter};
use crate::algorithm::Arithmetic as _;
use crate::{Limit, Timestamp};

impl Meter {
    /// Converts the meter to a limit that replaces its own. Units in use stay in use, unit for
    /// unit: a window and a log keep their whole count, a bucket is cut to exactly empty. Units
    /// that were owed stay owed, up to the new limit's debt; no other unit becomes debt.
    pub fn retune(&mut self, limit: Limit, now: Timestamp) {
        use AlgorithmState::*;
        let now = self.not_before(now);
        let (at, used, owed) = (now.as_nanos(), self.used(now), self.owed(now));
        let mut next = Self::new(limit);
        match (&self.0, &mut next.0) {
            (FixedWindow(old, was), FixedWindow(new, state)) => *state = new.adopt(old, was, at),
            (CalendarWindow(old, was), CalendarWindow(new, state)) => *state = new.adopt(old, was, at),
            (SlidingWindow(old, was), SlidingWindow(new, state)) => *state = new.adopt(old, was, at),
            (SlidingLog(old, was), SlidingLog(new, state)) => *state = new.adopt(old, was, at),
            (TokenBucket(old, was), TokenBucket(new, state)) => *state = new.adopt(old, was, at),
            (FractionalBucket(old, was), FractionalBucket(new, state)) => *state = new.adopt(old, was, at),
            (Reserve(old, was), Reserve(new, state)) => *state = new.adopt(old, was, at),
            (Concurrent(old, was), Concurrent(new, state)) => *state = new.adopt(old, was, at),
            (InlineBucket(old, was), InlineBucket(new, state)) => *state = new.adopt(old, was, at),
            (InlineWindow(old, was), InlineWindow(new, state)) => *state = new.adopt(old, was, at),
            (TokenBucket(old, was), FractionalBucket(new, state)) => *state = new.adopt_bucket(old, was, at),
            (FractionalBucket(old, was), TokenBucket(new, state)) => *state = new.adopt_bucket(old, was, at),
            (_, new) => dispatch!(new, |algorithm, state| *state = algorithm.with_used(at, used, owed)),
        }
        *self = next;
        self.excuse(self.not_before(now), owed);
    }

    /// The meter exactly empty as of `now`.
    pub(crate) fn rebased(&self, now: Timestamp) -> Self {
        let mut rebased = Self(self.0.clone(), Excess(0));
        dispatch!(&mut rebased.0, |algorithm, state| *state = algorithm.rebase(state, now.as_nanos()));
        rebased
    }
}
