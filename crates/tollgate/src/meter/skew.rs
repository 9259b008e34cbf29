//! A meter at a reading of the clock that its state may be ahead of.

use std::borrow::Cow;

use super::{AlgorithmState, Meter, Outcome, RawOutcome};
use crate::Timestamp;
use crate::algorithm::{Arithmetic as _, LATE};

/// How far a state is ahead of a reading of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Skew {
    /// The state is not ahead.
    Current,
    /// The state is ahead by at most a second: the request is decided at the time of the state.
    Late,
    /// The state is further ahead: it counts as exactly empty and is left unchanged.
    Behind,
    /// The state is ahead by more than a period: a check that it denies re-bases it.
    Wild,
}

/// A meter as seen at a reading of the clock.
pub(crate) struct MeterView<'a> {
    /// Owned if the meter had to be re-based.
    pub(crate) meter: Cow<'a, Meter>,
    /// The time to decide at.
    pub(crate) at: Timestamp,
    /// Whether the state is far ahead, counts as exactly empty and is left unchanged.
    pub(crate) behind: bool,
}

impl MeterView<'_> {
    pub(crate) fn available(&self) -> u64 {
        if self.behind { 0 } else { self.meter.available(self.at) }
    }

    /// Units owed. A state that is far ahead counts as exactly empty.
    pub(crate) fn owed(&self) -> u64 {
        if self.behind { 0 } else { self.meter.owed(self.at) }
    }

    pub(crate) fn fits(&self, cost: u64) -> bool {
        if self.behind { cost == 0 } else { self.meter.fits(self.at, cost) }
    }

    /// When `units` can be taken. A state that is far ahead counts as exactly empty until a reading
    /// is merely late.
    pub(crate) fn available_at(&self, units: u64) -> u64 {
        if !self.behind {
            return self.meter.available_at(self.at, units);
        }
        let written_at = self.meter.written_at();
        match self.meter.available_at(written_at, units) {
            at if at > written_at.as_nanos() => at,
            at => at.saturating_sub(LATE),
        }
    }

    pub(super) fn outcome(&self, cost: u64, allowed: bool) -> Outcome {
        let numbers = (self.available(), self.meter.limit().capacity());
        let raw = RawOutcome::new(self.at, cost, allowed, numbers, |units| self.available_at(units));
        raw.owing(if numbers.0 == 0 { self.owed() } else { 0 }).into()
    }
}

impl Meter {
    /// How far the state is ahead of a reading of the clock.
    pub(crate) fn skew(&self, now: Timestamp) -> Skew {
        let (now, period) = (now.as_nanos(), dispatch!(&self.0, |algorithm, _state| algorithm.period()));
        match self.written_at().as_nanos().saturating_sub(now) {
            0 => Skew::Current,
            ahead if ahead <= LATE => Skew::Late,
            ahead if ahead <= period => Skew::Behind,
            _ => Skew::Wild,
        }
    }

    /// The meter as seen at a reading of the clock.
    pub(super) fn view(&self, now: Timestamp) -> MeterView<'_> {
        let skew = self.skew(now);
        let meter = match skew {
            Skew::Wild => Cow::Owned(self.rebased(now)),
            _ => Cow::Borrowed(self),
        };
        let at = if skew == Skew::Late { self.written_at() } else { now };
        MeterView { meter, at, behind: skew == Skew::Behind }
    }
}
