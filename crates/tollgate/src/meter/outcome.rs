//! The outcome of a limit: a verdict and the numbers afterwards.

use std::time::Duration;

use crate::Timestamp;

/// A limit's verdict on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Enough units were left.
    Allowed,
    /// Too few units were left, but enough will be.
    Denied {
        /// How long until the same request is admitted if no other arrives, to the nanosecond.
        retry_after: Duration,
    },
    /// The request costs more than the whole limit. It never fits.
    Never,
}

impl Verdict {
    /// How long until the same request is admitted if no other arrives: zero if it was allowed,
    /// `None` if it never will be.
    #[must_use]
    pub const fn retry_after(self) -> Option<Duration> {
        match self {
            Self::Allowed => Some(Duration::ZERO),
            Self::Denied { retry_after } => Some(retry_after),
            Self::Never => None,
        }
    }
}

/// A limit's verdict and its numbers afterwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The time of the decision: the reading of the clock, or the time of the state if the reading
    /// came late.
    pub now: Timestamp,
    /// Allowed or denied.
    pub verdict: Verdict,
    /// Units left.
    pub remaining: u64,
    /// Units owed: recorded beyond the limit and not paid off yet. Nothing is left then.
    pub owed: u64,
    /// When the whole limit is available again if no more requests arrive.
    pub reset_at: Timestamp,
    /// When `remaining` next grows if no more requests arrive: the time of the decision if no unit
    /// is in use.
    pub grows_at: Timestamp,
}

impl Outcome {
    /// Whether the verdict is [`Verdict::Allowed`].
    #[must_use]
    pub fn allowed(&self) -> bool {
        self.verdict == Verdict::Allowed
    }
}

/// An outcome as plain integers, which stay in registers.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RawOutcome {
    now: u64,
    /// Nanoseconds until the request is admitted: 0 if it was, [`u64::MAX`] if it never will be.
    wait: u64,
    remaining: u64,
    owed: u64,
    pub(crate) reset_at: u64,
    grows_at: u64,
}

impl RawOutcome {
    /// The outcome of a request of `cost` that was `allowed` or not, for a limit that has
    /// `available` of `capacity` units left. `available_at` gives the time at which a number of
    /// units is available.
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
        Self { now, wait, remaining: available, owed: 0, reset_at: available_at(capacity), grows_at }
    }

    /// The outcome of a limit on which this many units are owed.
    #[inline(always)]
    pub(crate) const fn owing(mut self, owed: u64) -> Self {
        self.owed = owed;
        self
    }
}

impl From<RawOutcome> for Outcome {
    #[inline(always)]
    fn from(raw: RawOutcome) -> Self {
        Self {
            now: Timestamp::from_nanos(raw.now),
            verdict: match raw.wait {
                0 => Verdict::Allowed,
                u64::MAX => Verdict::Never,
                wait => Verdict::Denied { retry_after: Duration::from_nanos(wait) },
            },
            remaining: raw.remaining,
            owed: raw.owed,
            reset_at: Timestamp::from_nanos(raw.reset_at),
            grows_at: Timestamp::from_nanos(raw.grows_at),
        }
    }
}
