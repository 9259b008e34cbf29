//! A meter: one limit and the units drawn on it. The decision core, without a store, a key or a
//! clock.

use std::borrow::Cow;

use crate::algorithm::calendar_window::CalendarWindow;
use crate::algorithm::concurrent::Concurrent;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::inline::{InlineBucket, InlineWindow};
use crate::algorithm::reserve::Reserve;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::{Parts, TokenBucket, Whole};
use crate::algorithm::{
    Arithmetic, Drawn, calendar_window, concurrent, fixed_window, inline, reserve, sliding_log,
    sliding_window, token_bucket,
};
use crate::limit::Kind;
use crate::{Limit, Timestamp};

/// One limit and the units that one client has drawn on it.
///
/// The whole decision as a pure function: the same calls give the same answers on every machine.
/// Stores keep meters by key; simulations and tests may use one alone.
///
/// ```
/// use tollgate::{Limit, Meter, Timestamp, Verdict};
///
/// let mut meter = Meter::new(Limit::per_minute(2));
/// let now = Timestamp::from_secs(1_000);
/// assert!(meter.decide(now, 1).allowed());
/// assert_eq!(meter.decide(now, 1).remaining, 0);
/// let denied = meter.decide(now, 1);
/// assert_eq!(denied.verdict, Verdict::Denied { retry_after: std::time::Duration::from_secs(30) });
/// assert_eq!(meter.decide(now, 3).verdict, Verdict::Never); // three never fit into two
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Meter(AlgorithmState, Excess);

/// A limit's algorithm, paired with the state that it wrote.
#[derive(Clone, Debug, PartialEq)]
enum AlgorithmState {
    FixedWindow(FixedWindow, fixed_window::State),
    CalendarWindow(CalendarWindow, calendar_window::State),
    SlidingWindow(SlidingWindow, sliding_window::State),
    SlidingLog(SlidingLog, sliding_log::State),
    TokenBucket(TokenBucket<Whole>, token_bucket::State<()>),
    FractionalBucket(TokenBucket<Parts>, token_bucket::State<u64>),
    Reserve(Reserve, reserve::State),
    Concurrent(Concurrent, concurrent::State),
    InlineBucket(InlineBucket, inline::Time),
    InlineWindow(InlineWindow, inline::Count),
}

/// Evaluates an expression for the algorithm and the state of a meter.
macro_rules! dispatch {
    ($meter:expr, |$algorithm:ident, $state:ident| $result:expr) => {
        match $meter {
            AlgorithmState::FixedWindow($algorithm, $state) => $result,
            AlgorithmState::CalendarWindow($algorithm, $state) => $result,
            AlgorithmState::SlidingWindow($algorithm, $state) => $result,
            AlgorithmState::SlidingLog($algorithm, $state) => $result,
            AlgorithmState::TokenBucket($algorithm, $state) => $result,
            AlgorithmState::FractionalBucket($algorithm, $state) => $result,
            AlgorithmState::Reserve($algorithm, $state) => $result,
            AlgorithmState::Concurrent($algorithm, $state) => $result,
            AlgorithmState::InlineBucket($algorithm, $state) => $result,
            AlgorithmState::InlineWindow($algorithm, $state) => $result,
        }
    };
}

mod conversion;
mod debt;
mod outcome;
pub(crate) mod packed;
mod skew;

use debt::Excess;
pub(crate) use outcome::RawOutcome;
pub use outcome::{Outcome, Verdict};
pub(crate) use skew::{MeterView, Skew};

impl Meter {
    /// A meter with no units in use.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        let state = match limit.0 {
            Kind::FixedWindow(window) => AlgorithmState::FixedWindow(window, Default::default()),
            Kind::CalendarWindow(window) => AlgorithmState::CalendarWindow(window, Default::default()),
            Kind::SlidingWindow(window) => AlgorithmState::SlidingWindow(window, Default::default()),
            Kind::SlidingLog(log) => AlgorithmState::SlidingLog(log, Default::default()),
            Kind::TokenBucket(bucket) => AlgorithmState::TokenBucket(bucket, Default::default()),
            Kind::FractionalBucket(bucket) => AlgorithmState::FractionalBucket(bucket, Default::default()),
            Kind::Reserve(both) => AlgorithmState::Reserve(both, Default::default()),
            Kind::Concurrent(slots) => AlgorithmState::Concurrent(slots, Default::default()),
            Kind::InlineBucket(inline) => AlgorithmState::InlineBucket(inline, Default::default()),
            Kind::InlineWindow(inline) => AlgorithmState::InlineWindow(inline, Default::default()),
        };
        Self(state, Excess(0))
    }

    /// The limit that the state belongs to.
    #[must_use]
    pub fn limit(&self) -> Limit {
        Limit(match self.0 {
            AlgorithmState::FixedWindow(window, _) => Kind::FixedWindow(window),
            AlgorithmState::CalendarWindow(window, _) => Kind::CalendarWindow(window),
            AlgorithmState::SlidingWindow(window, _) => Kind::SlidingWindow(window),
            AlgorithmState::SlidingLog(log, _) => Kind::SlidingLog(log),
            AlgorithmState::TokenBucket(bucket, _) => Kind::TokenBucket(bucket),
            AlgorithmState::FractionalBucket(bucket, _) => Kind::FractionalBucket(bucket),
            AlgorithmState::Reserve(both, _) => Kind::Reserve(both),
            AlgorithmState::Concurrent(slots, _) => Kind::Concurrent(slots),
            AlgorithmState::InlineBucket(inline, _) => Kind::InlineBucket(inline),
            AlgorithmState::InlineWindow(inline, _) => Kind::InlineWindow(inline),
        })
    }

    /// Whether the state belongs to this limit.
    pub(crate) fn is_under(&self, limit: &Limit) -> bool {
        self.limit() == *limit
    }

    pub(crate) fn capacity(&self) -> u64 {
        dispatch!(&self.0, |algorithm, _state| algorithm.capacity())
    }

    pub(crate) const fn is_concurrent(&self) -> bool {
        matches!(self.0, AlgorithmState::Concurrent(..))
    }

    /// Takes `cost` if it fits. A request that does not fit changes nothing, so a client cannot
    /// deepen its own hole (unless the limit counts denied attempts).
    pub fn decide(&mut self, now: Timestamp, cost: u64) -> Outcome {
        let view = self.view(now);
        let (allowed, at, behind) = (view.fits(cost), view.at, view.behind);
        let rebased = if let Cow::Owned(rebased) = view.meter { Some(rebased) } else { None };
        let counts = rebased.is_none();
        if cost > 0 && !behind {
            if let Some(rebased) = rebased {
                *self = rebased;
            }
            if allowed {
                self.take(at, cost);
            } else if counts {
                self.refuse(at, cost);
            }
        }
        self.outcome(now, cost, allowed)
    }

    /// The outcome that [`decide`](Self::decide) would have, without taking anything: the numbers
    /// are those before the request.
    #[must_use]
    pub fn peek(&self, now: Timestamp, cost: u64) -> Outcome {
        let view = self.view(now);
        view.outcome(cost, view.fits(cost))
    }

    /// The numbers after a request that was `allowed` or not.
    pub(crate) fn outcome(&self, now: Timestamp, cost: u64, allowed: bool) -> Outcome {
        self.view(now).outcome(cost, allowed)
    }

    /// Gives back up to `units`, the most recently drawn first, never beyond the limit.
    pub fn give(&mut self, now: Timestamp, units: u64) {
        let at = self.not_before(now).as_nanos();
        dispatch!(&mut self.0, |algorithm, state| algorithm.give(state, at, units));
        self.trim_excess(Timestamp::from_nanos(at));
    }

    /// Takes up to `units`, stopping at empty, and returns how many it took.
    pub fn penalise(&mut self, now: Timestamp, units: u64) -> u64 {
        let view = self.view(now);
        let (taken, at) = (units.min(view.available()), view.at);
        self.take(at, taken);
        taken
    }

    /// Whether no unit is in use, so that forgetting this meter changes no later outcome.
    #[must_use]
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.idle_at() <= now.as_nanos()
    }

    /// The earliest moment at which the state can have been written: of a bucket, with its whole
    /// debt.
    pub(crate) fn written_at(&self) -> Timestamp {
        Timestamp::from_nanos(dispatch!(&self.0, |algorithm, state| algorithm.written_at(state)))
    }

    /// `now`, or the time the state was written at if that is later.
    pub(crate) fn not_before(&self, now: Timestamp) -> Timestamp {
        now.max(self.written_at())
    }

    /// Gives back units of a reservation that are still in use, and returns how many; see
    /// [`Arithmetic::give_held`].
    pub(crate) fn give_held(&mut self, now: Timestamp, units: u64, drawn: Drawn) -> u64 {
        let at = self.not_before(now);
        let before = self.used(at);
        dispatch!(&mut self.0, |algorithm, state| algorithm.give_held(state, at.as_nanos(), units, drawn));
        self.trim_excess(at);
        before.saturating_sub(self.used(at))
    }

    /// Units in use at a time that is not before [`written_at`](Self::written_at).
    pub(crate) fn used(&self, now: Timestamp) -> u64 {
        dispatch!(&self.0, |algorithm, state| algorithm.used(state, now.as_nanos()))
    }

    /// Units that can be taken, at a time that is not before [`written_at`](Self::written_at).
    pub(crate) fn available(&self, now: Timestamp) -> u64 {
        dispatch!(&self.0, |algorithm, state| algorithm.available(state, now.as_nanos()))
    }

    /// When no unit is in use any more.
    pub(crate) fn idle_at(&self) -> u64 {
        dispatch!(&self.0, |algorithm, state| algorithm.idle_at(state))
    }

    /// When all units in use have come back, to the fraction of a nanosecond.
    pub(crate) fn lapses_at(&self) -> (u64, u64) {
        dispatch!(&self.0, |algorithm, state| algorithm.lapses_at(state))
    }

    /// Takes units that are known to be available, at a time that is not before
    /// [`written_at`](Self::written_at). A cost of 0 changes no state.
    pub(crate) fn take(&mut self, now: Timestamp, cost: u64) {
        if cost > 0 {
            self.trim_excess(now);
            dispatch!(&mut self.0, |algorithm, state| algorithm.take(state, now.as_nanos(), cost));
        }
    }

    /// Counts a denied attempt, if the limit counts those, and returns whether it did. A cost that
    /// can never fit is never counted.
    pub(crate) fn refuse(&mut self, now: Timestamp, cost: u64) -> bool {
        let counts = self.limit().counts_denied() && cost > 0 && cost <= self.limit().capacity();
        if counts {
            self.take(now, cost);
        }
        counts
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Algorithm, Bucket, HOUR, MAX_COUNT, MINUTE, SECOND};
    use std::time::Duration;

    #[test]
    fn b11_ten_of_ten_used_then_a_hundred_means_ninety_left_and_then_five_means_none() {
        let now = Timestamp::from_secs(1_000_000);
        for build in [Limit::fixed_window, Limit::sliding_window, Limit::sliding_log, Limit::per] {
            let mut meter = Meter::new(build(10, MINUTE));
            assert!(meter.decide(now, 10).allowed());
            meter.retune(build(100, MINUTE), now);
            assert_eq!(meter.peek(now, 1).remaining, 90);
            meter.retune(build(5, MINUTE), now);
            assert_eq!(meter.peek(now, 1).remaining, 0);
            let reset = now.saturating_add(2 * MINUTE);
            assert_eq!(meter.peek(reset, 1).remaining, 5, "exactly empty, no debt");
        }
    }

    #[test]
    fn b11_a_window_keeps_its_start() {
        let mut meter = Meter::new(Limit::fixed_window(10, MINUTE));
        let opened = Timestamp::from_secs(100);
        assert!(meter.decide(opened, 3).allowed());
        meter.retune(Limit::fixed_window(20, HOUR), Timestamp::from_secs(130));
        let outcome = meter.peek(Timestamp::from_secs(130), 1);
        assert_eq!((outcome.remaining, outcome.reset_at), (17, opened.saturating_add(HOUR)));
    }

    #[test]
    fn b11_a_bucket_retuned_all_the_time_still_refills() {
        // One token a minute, and the limit changes every ten seconds: the partial token must not
        // be lost each time.
        let mut meter = Meter::new(Limit::per_minute(1).burst(10));
        let mut now = Timestamp::from_secs(1_000);
        assert!(meter.decide(now, 10).allowed());
        for change in 0..12 {
            now = now.saturating_add(10 * SECOND);
            let limit = if change % 2 == 0 {
                Limit::token_bucket(10, 7, 421 * SECOND)
            } else {
                Limit::per_minute(1).burst(10)
            };
            meter.retune(limit, now);
        }
        assert_eq!(meter.peek(now, 1).remaining, 1, "two minutes, less what the slower half cost");
    }

    #[test]
    fn b7_a_state_from_the_future_counts_as_exactly_empty_and_is_whole_after_one_refill() {
        let (wild, now) = (Timestamp::from_secs(9_000_000), Timestamp::from_secs(1_000));
        let limits = [
            (Limit::fixed_window(10, MINUTE), MINUTE),
            (Limit::sliding_log(10, MINUTE), MINUTE),
            (Limit::per_minute(10), MINUTE),
            (Limit::sliding_window(10, MINUTE), 2 * MINUTE),
        ];
        for (limit, refill) in limits {
            let mut meter = Meter::new(limit);
            assert!(meter.decide(wild, 1).allowed());
            assert!(!meter.decide(now, 1).allowed(), "{limit}");
            assert_eq!(meter.peek(now.saturating_add(refill), 1).remaining, 10, "{limit}");
        }
    }

    #[test]
    fn b7_a_window_given_back_whole_does_not_deny_after_the_clock_goes_back() {
        let mut meter = Meter::new(Limit::fixed_window(10, MINUTE));
        let (wild, now) = (Timestamp::from_secs(9_000_000), Timestamp::from_secs(1_000));
        assert!(meter.decide(wild, 3).allowed());
        meter.give(wild, 3);
        assert_eq!(meter.decide(now, 1).remaining, 9);
    }

    #[test]
    fn b9_a_late_reading_counts_as_the_newer_one() {
        // Another thread came first, with a reading that is a microsecond newer.
        let (newer, late) =
            (Timestamp::from_nanos(7_200_000_000_500), Timestamp::from_nanos(7_199_999_999_500));
        for build in [Limit::fixed_window, Limit::sliding_window, Limit::sliding_log] {
            let mut meter = Meter::new(build(3, HOUR));
            assert!(meter.decide(newer, 1).allowed());
            assert_eq!(meter.decide(late, 1).remaining, 1, "{}", meter.limit());
            assert_eq!(meter.decide(newer, 1).remaining, 0, "{}", meter.limit());
            assert!(!meter.decide(late, 1).allowed() && !meter.decide(newer, 1).allowed());
        }
    }

    #[test]
    fn a_no_input_overflows_or_panics() {
        let spans = [Duration::from_nanos(1), SECOND, crate::MAX_SPAN];
        let counts = [1, 3, MAX_COUNT];
        let costs = [0, 1, MAX_COUNT, u64::MAX];
        let times = [Timestamp::EPOCH, Timestamp::from_secs(1_800_000_000), Timestamp::MAX];
        for (period, count) in spans.iter().flat_map(|span| counts.map(|count| (*span, count))) {
            let windows = [
                Algorithm::FixedWindow { limit: count, period, aligned: true, count_denied: true },
                Algorithm::SlidingWindow { limit: count, period, count_denied: true },
                Algorithm::SlidingLog { limit: count, period },
            ];
            let buckets = counts.map(|capacity| Bucket {
                capacity,
                amount: count,
                interval: period,
                stepped: count == 3,
            });
            let reserves = buckets.map(|bucket| Algorithm::Reserve { sustained: bucket, reserve: bucket });
            let all = windows.into_iter().chain(buckets.map(Algorithm::TokenBucket)).chain(reserves);
            for limit in all.filter_map(|algorithm| Limit::new(algorithm).ok()) {
                let mut meter = Meter::new(limit);
                for (now, cost) in
                    times.iter().chain(times.iter().rev()).flat_map(|now| costs.map(|cost| (*now, cost)))
                {
                    let outcome = meter.decide(now, cost);
                    assert!(outcome.remaining <= limit.capacity());
                    assert_eq!(outcome.verdict == Verdict::Never, cost > limit.capacity());
                }
            }
        }
    }
}
