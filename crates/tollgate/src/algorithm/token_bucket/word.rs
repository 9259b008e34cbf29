//! A token bucket whose state is one word, decided with additions alone.

use super::{TokenBucket, Whole, sum};

/// A bucket with whole tokens and smooth refill, prepared for requests: its state is one word, and
/// a decision takes only additions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Word {
    capacity: u64,
    token: u64,
    /// Nanoseconds of a full refill.
    refill: u64,
}

impl Word {
    /// The state after taking `units`: `Some(None)` if they do not fit, `None` if the state is
    /// ahead of `now`. Equivalent to [`Arithmetic`].
    #[inline(always)]
    pub(crate) const fn take(&self, full_at: u64, now: u64, units: u64) -> Option<Option<u64>> {
        let latest = sum(now, self.refill);
        if full_at > latest {
            return None;
        }
        if units > self.capacity {
            return Some(None);
        }
        let start = if full_at > now { full_at } else { now };
        let taken = start.wrapping_add(units.wrapping_mul(self.token));
        if taken > latest {
            return Some(None);
        }
        Some(Some(taken))
    }
}

impl TokenBucket<Whole> {
    /// This bucket prepared for requests, unless its refill is stepped.
    pub(crate) const fn word(&self) -> Option<Word> {
        let (capacity, token) = (self.capacity, self.token);
        if self.stepped { None } else { Some(Word { capacity, token, refill: self.span(capacity) }) }
    }
}
