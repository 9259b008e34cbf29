//! What a limit answers: a verdict and the numbers afterwards.

use std::time::Duration;

use crate::Timestamp;

/// What a limit says to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// There was enough left.
    Allowed,
    /// There was not, but there will be.
    Denied {
        /// How long until the same request is admitted, if nothing else happens: to the nanosecond.
        retry_after: Duration,
    },
    /// The request costs more than the whole limit. It never fits.
    Never,
}

impl Verdict {
    /// How long until the same request is admitted, if nothing else happens: zero if it was, `None`
    /// if it never will be.
    #[must_use]
    pub const fn retry_after(self) -> Option<Duration> {
        match self {
            Self::Allowed => Some(Duration::ZERO),
            Self::Denied { retry_after } => Some(retry_after),
            Self::Never => None,
        }
    }
}

/// A limit's answer and its numbers afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The time that it was decided at: the reading of the clock, or the state's own time if the
    /// reading came late.
    pub now: Timestamp,
    /// Allowed or denied.
    pub verdict: Verdict,
    /// How many units are left.
    pub remaining: u64,
    /// When the whole limit is available again if nothing more arrives.
    pub reset_at: Timestamp,
    /// When `remaining` next grows if nothing more arrives: the decision's time if nothing is in
    /// use.
    pub grows_at: Timestamp,
}

impl Outcome {
    /// Whether the verdict is [`Verdict::Allowed`].
    #[must_use]
    pub fn allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }
}

/// An outcome in plain words, which stay in registers on their way.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Numbers {
    now: u64,
    /// How long until the request is admitted: 0 if it was, [`u64::MAX`] if it never will be.
    wait: u64,
    remaining: u64,
    pub(crate) reset_at: u64,
    grows_at: u64,
}

impl Numbers {
    /// The answer to a request of `cost` that was `allowed` or not, with the numbers of a budget
    /// that has `available` of `capacity` left and gets back to any number of units at the time
    /// that `available_at` says.
    #[inline(always)]
    pub(crate) fn new(
        now: Timestamp,
        cost: u64,
        allowed: bool,
        (available, capacity): (u64, u64),
        available_at: impl Fn(u64) -> u64,
    ) -> Self {
        let now = now.as_nanos();
        let wait = if allowed {
            0
        } else if cost > capacity {
            u64::MAX
        } else {
            available_at(cost).saturating_sub(now).max(1)
        };
        let grows_at = if available < capacity { available_at(available.saturating_add(1)) } else { now };
        Self { now, wait, remaining: available, reset_at: available_at(capacity), grows_at }
    }
}

impl From<Numbers> for Outcome {
    #[inline(always)]
    fn from(numbers: Numbers) -> Self {
        Self {
            now: Timestamp::from_nanos(numbers.now),
            verdict: match numbers.wait {
                0 => Verdict::Allowed,
                u64::MAX => Verdict::Never,
                wait => Verdict::Denied { retry_after: Duration::from_nanos(wait) },
            },
            remaining: numbers.remaining,
            reset_at: Timestamp::from_nanos(numbers.reset_at),
            grows_at: Timestamp::from_nanos(numbers.grows_at),
        }
    }
}
