//! Debt: the units that were recorded beyond a limit.
//!
//! A window and a log in debt have more units in use than their limit. So do those whose limit was
//! lowered below the units in use, and that is no debt: a replacement makes none. The meter keeps
//! how many units a replacement left beyond the limit, its [`Excess`]. Whatever asks about debt
//! asks a limit that is larger by the excess.

use super::{AlgorithmState, Meter};
use crate::Timestamp;
use crate::algorithm::Arithmetic as _;

/// Units in use beyond the limit that are no debt, at most: they come back with the units in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess(pub(super) u64);

impl Meter {
    /// Takes `units` that were used, whether they are left or not: those beyond the limit are owed,
    /// up to its [debt](crate::Limit::debt). Returns how many were recorded.
    ///
    /// ```
    /// use tollgate::{Limit, Meter, Timestamp};
    ///
    /// let mut meter = Meter::new(Limit::per_minute(10));
    /// let now = Timestamp::from_secs(1_000);
    /// assert_eq!(meter.record(now, 13), 13);
    /// assert_eq!(meter.peek(now, 1).owed, 3);
    /// assert_eq!(meter.record(now, 20), 7, "the debt is one whole limit");
    /// ```
    pub fn record(&mut self, now: Timestamp, units: u64) -> u64 {
        let at = self.not_before(now);
        let excess = self.excess(at);
        let recordable = dispatch!(&self.0, |algorithm, state| {
            algorithm.raised(excess).recordable(state, at.as_nanos())
        });
        let recorded = units.min(recordable);
        self.take(at, recorded);
        recorded
    }

    /// Units owed, at a time that is not before [`written_at`](Self::written_at).
    pub(crate) fn owed(&self, now: Timestamp) -> u64 {
        let excess = self.excess(now);
        dispatch!(&self.0, |algorithm, state| algorithm.raised(excess).owed(state, now.as_nanos()))
    }

    /// Whether `cost` can be taken, at a time that is not before [`written_at`](Self::written_at).
    /// (Not even a cost of 0 fits while units are owed.)
    pub(crate) fn fits(&self, now: Timestamp, cost: u64) -> bool {
        let excess = if cost == 0 { self.excess(now) } else { 0 };
        dispatch!(&self.0, |algorithm, state| algorithm.raised(excess).fits(state, now.as_nanos(), cost))
    }

    /// When `units` can be taken, from a time that is not before [`written_at`](Self::written_at).
    pub(crate) fn available_at(&self, now: Timestamp, units: u64) -> u64 {
        let excess = if units == 0 { self.excess(now) } else { 0 };
        let now = now.as_nanos();
        dispatch!(&self.0, |algorithm, state| algorithm.raised(excess).available_at(state, now, units))
    }

    /// Whether the packed state is all there is: no unit is in use beyond the limit without being
    /// owed.
    pub(crate) const fn is_packed(&self) -> bool {
        self.1.0 == 0
    }

    /// The meter with this excess. `None` if that is not in use.
    pub(super) fn with_excess(mut self, excess: u64) -> Option<Self> {
        self.1 = Excess(excess);
        let is_in_use = excess > 0 && self.can_exceed() && self.excess(self.written_at()) == excess;
        is_in_use.then_some(self)
    }

    /// Forgets the excess that has come back. Called before units are taken, and after some were
    /// given back.
    pub(super) fn trim_excess(&mut self, now: Timestamp) {
        self.1 = Excess(self.excess(now));
    }

    /// Marks all units in use beyond the limit as no debt, except those that were owed before.
    pub(super) fn excuse(&mut self, now: Timestamp, owed: u64) {
        let limit = self.limit();
        if self.can_exceed() {
            let owing = limit.capacity().saturating_add(owed.min(limit.max_debt()));
            self.1 = Excess(self.used(now).saturating_sub(owing));
        }
    }

    /// Whether more units can be in use than the limit without debt. A replacement cuts a bucket to
    /// exactly empty, and a window that counts attempts owes nothing.
    pub(super) fn can_exceed(&self) -> bool {
        dispatch!(&self.0, |algorithm, _state| algorithm.raised(1).capacity() > algorithm.capacity())
    }

    /// The excess that is still in use.
    fn excess(&self, now: Timestamp) -> u64 {
        match self.1.0 {
            0 => 0,
            excess => excess.min(self.used(now).saturating_sub(self.limit().capacity())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, MINUTE};

    const NOW: Timestamp = Timestamp::from_secs(1_000_020);

    /// A limit of `before`, wholly used, that one of `after` replaced.
    fn lowered(build: fn(u64, std::time::Duration) -> Limit, before: u64, after: Limit) -> Meter {
        let mut meter = Meter::new(build(before, MINUTE));
        assert!(meter.decide(NOW, before).allowed());
        meter.retune(after, NOW);
        meter
    }

    #[test]
    fn b11_a_lowered_limit_makes_no_debt_and_only_what_is_recorded_is_owed() {
        for build in [Limit::fixed_window, Limit::sliding_window, Limit::sliding_log] {
            let mut meter = lowered(build, 10, build(4, MINUTE));
            let asked = meter.peek(NOW, 0);
            assert_eq!((asked.allowed(), asked.remaining, asked.owed), (true, 0, 0), "{}", meter.limit());
            assert_eq!(meter.record(NOW, 3), 3);
            let asked = meter.peek(NOW, 0);
            assert_eq!((asked.allowed(), asked.owed), (false, 3), "{}", meter.limit());
            assert_eq!(meter.record(NOW, 3), 1, "the debt is one whole limit");
            meter.give(NOW, 4);
            assert_eq!((meter.peek(NOW, 0).owed, meter.used(NOW)), (0, 10));
            meter.retune(build(20, MINUTE), NOW);
            assert_eq!(meter.peek(NOW, 1).remaining, 10, "a limit raised again finds the whole count");
        }
    }

    #[test]
    fn b11_debt_that_was_there_stays_up_to_the_new_bound() {
        for build in [Limit::fixed_window, Limit::sliding_window, Limit::sliding_log] {
            let mut meter = Meter::new(build(10, MINUTE));
            assert_eq!(meter.record(NOW, 13), 13);
            meter.retune(build(5, MINUTE), NOW);
            assert_eq!((meter.peek(NOW, 1).owed, meter.used(NOW)), (3, 13));
            meter.retune(build(5, MINUTE).debt(2), NOW);
            assert_eq!((meter.peek(NOW, 1).owed, meter.used(NOW)), (2, 13));
        }
    }

    #[test]
    fn b11_an_excess_does_not_outlive_its_window() {
        let mut meter = lowered(Limit::fixed_window, 10, Limit::fixed_window(4, MINUTE));
        assert!(!meter.is_packed());
        let next = NOW.saturating_add(MINUTE);
        assert!(meter.decide(next, 4).allowed());
        assert!(meter.is_packed());
        meter.record(next, 2);
        assert_eq!(meter.peek(next, 0).owed, 2);
    }

    #[test]
    fn b11_counted_attempts_are_no_debt_of_a_limit_that_counts_none() {
        let mut meter = Meter::new(Limit::fixed_window(2, MINUTE).counting_denied());
        assert!(meter.decide(NOW, 2).allowed() && !meter.decide(NOW, 2).allowed());
        meter.retune(Limit::fixed_window(2, MINUTE), NOW);
        assert_eq!((meter.used(NOW), meter.peek(NOW, 1).owed), (4, 0));
    }

    #[test]
    fn e1_the_numbers_of_a_state_have_its_excess() {
        for build in [Limit::fixed_window, Limit::sliding_window, Limit::sliding_log] {
            let meter = lowered(build, 10, build(4, MINUTE));
            let state = meter.state();
            assert_eq!(state.numbers.last(), Some(&6));
            assert_eq!(Meter::from_state(meter.limit(), &state), Some(meter));
        }
    }
}
