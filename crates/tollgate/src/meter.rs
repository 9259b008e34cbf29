//! One limit and what has been drawn on it: the decision core, without a store, a key or a clock.

use std::borrow::Cow;

use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::inline::{InlineBucket, InlineWindow};
use crate::algorithm::reserve::Reserve;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::{Parts, TokenBucket, Whole};
use crate::algorithm::{
    Arithmetic, LATE, fixed_window, inline, reserve, sliding_log, sliding_window, token_bucket,
};
use crate::limit::Kind;
use crate::{Limit, Timestamp};

/// One limit and what one client has drawn on it.
///
/// This is the whole decision, pure: the same calls give the same answers, whatever the machine is
/// doing. Stores keep meters by key; simulations and tests may use one alone.
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
pub struct Meter(Drawn);

/// A limit's algorithm beside the state that it, and no other, wrote.
#[derive(Clone, Debug, PartialEq)]
enum Drawn {
    FixedWindow(FixedWindow, fixed_window::State),
    SlidingWindow(SlidingWindow, sliding_window::State),
    SlidingLog(SlidingLog, sliding_log::State),
    TokenBucket(TokenBucket<Whole>, token_bucket::State<()>),
    FractionalBucket(TokenBucket<Parts>, token_bucket::State<u64>),
    Reserve(Reserve, reserve::State),
    InlineBucket(InlineBucket, inline::Time),
    InlineWindow(InlineWindow, inline::Count),
}

/// Asks whatever algorithm a meter has.
macro_rules! ask {
    ($drawn:expr, |$algorithm:ident, $state:ident| $answer:expr) => {
        match $drawn {
            Drawn::FixedWindow($algorithm, $state) => $answer,
            Drawn::SlidingWindow($algorithm, $state) => $answer,
            Drawn::SlidingLog($algorithm, $state) => $answer,
            Drawn::TokenBucket($algorithm, $state) => $answer,
            Drawn::FractionalBucket($algorithm, $state) => $answer,
            Drawn::Reserve($algorithm, $state) => $answer,
            Drawn::InlineBucket($algorithm, $state) => $answer,
            Drawn::InlineWindow($algorithm, $state) => $answer,
        }
    };
}

mod outcome;
pub(crate) mod packed;

pub(crate) use outcome::Numbers;
pub use outcome::{Outcome, Verdict};

impl Meter {
    /// A limit that nobody has drawn on yet.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        Self(match limit.0 {
            Kind::FixedWindow(window) => Drawn::FixedWindow(window, Default::default()),
            Kind::SlidingWindow(window) => Drawn::SlidingWindow(window, Default::default()),
            Kind::SlidingLog(log) => Drawn::SlidingLog(log, Default::default()),
            Kind::TokenBucket(bucket) => Drawn::TokenBucket(bucket, Default::default()),
            Kind::FractionalBucket(bucket) => Drawn::FractionalBucket(bucket, Default::default()),
            Kind::Reserve(both) => Drawn::Reserve(both, Default::default()),
            Kind::InlineBucket(inline) => Drawn::InlineBucket(inline, Default::default()),
            Kind::InlineWindow(inline) => Drawn::InlineWindow(inline, Default::default()),
        })
    }

    /// The limit that the state belongs to.
    #[must_use]
    pub fn limit(&self) -> Limit {
        Limit(match self.0 {
            Drawn::FixedWindow(window, _) => Kind::FixedWindow(window),
            Drawn::SlidingWindow(window, _) => Kind::SlidingWindow(window),
            Drawn::SlidingLog(log, _) => Kind::SlidingLog(log),
            Drawn::TokenBucket(bucket, _) => Kind::TokenBucket(bucket),
            Drawn::FractionalBucket(bucket, _) => Kind::FractionalBucket(bucket),
            Drawn::Reserve(both, _) => Kind::Reserve(both),
            Drawn::InlineBucket(inline, _) => Kind::InlineBucket(inline),
            Drawn::InlineWindow(inline, _) => Kind::InlineWindow(inline),
        })
    }

    /// Takes `cost` if it fits. What does not fit changes nothing, so a client cannot deepen its
    /// own hole (unless the limit counts denied attempts).
    pub fn decide(&mut self, now: Timestamp, cost: u64) -> Outcome {
        let seen = self.seen(now);
        let (allowed, at, behind) = (seen.fits(cost), seen.at, seen.behind);
        let rebased = if let Cow::Owned(rebased) = seen.meter { Some(rebased) } else { None };
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

    /// What [`decide`](Self::decide) would say, taking nothing: the numbers are those before the
    /// request.
    #[must_use]
    pub fn peek(&self, now: Timestamp, cost: u64) -> Outcome {
        let seen = self.seen(now);
        seen.outcome(cost, seen.fits(cost))
    }

    /// The numbers after a request that was `allowed` or not.
    pub(crate) fn outcome(&self, now: Timestamp, cost: u64, allowed: bool) -> Outcome {
        self.seen(now).outcome(cost, allowed)
    }

    /// Gives back up to `units`, the most recently drawn first, never beyond the limit.
    pub fn give(&mut self, now: Timestamp, units: u64) {
        let at = self.not_before(now).as_nanos();
        ask!(&mut self.0, |algorithm, state| algorithm.give(state, at, units));
    }

    /// Takes up to `units`, stops at empty, and says how many it took.
    pub fn penalise(&mut self, now: Timestamp, units: u64) -> u64 {
        let seen = self.seen(now);
        let (taken, at) = (units.min(seen.available()), seen.at);
        self.take(at, taken);
        taken
    }

    /// Goes on under a limit that replaces this one. Units in use stay in use, unit for unit: a
    /// window and a log keep their whole count, a bucket is cut to exactly empty.
    pub fn retune(&mut self, limit: Limit, now: Timestamp) {
        let at = self.not_before(now).as_nanos();
        let used = ask!(&self.0, |algorithm, state| algorithm.used(state, at));
        let mut next = Self::new(limit);
        match (&self.0, &mut next.0) {
            (Drawn::FixedWindow(old, was), Drawn::FixedWindow(new, state)) => {
                *state = new.adopt(old, was, at)
            }
            (Drawn::SlidingWindow(old, was), Drawn::SlidingWindow(new, state)) => {
                *state = new.adopt(old, was, at)
            }
            (Drawn::SlidingLog(old, was), Drawn::SlidingLog(new, state)) => *state = new.adopt(old, was, at),
            (Drawn::TokenBucket(old, was), Drawn::TokenBucket(new, state)) => {
                *state = new.adopt(old, was, at)
            }
            (Drawn::TokenBucket(old, was), Drawn::FractionalBucket(new, state)) => {
                *state = new.adopt_bucket(old, was, at);
            }
            (Drawn::FractionalBucket(old, was), Drawn::TokenBucket(new, state)) => {
                *state = new.adopt_bucket(old, was, at);
            }
            (Drawn::FractionalBucket(old, was), Drawn::FractionalBucket(new, state)) => {
                *state = new.adopt(old, was, at);
            }
            (Drawn::Reserve(old, was), Drawn::Reserve(new, state)) => *state = new.adopt(old, was, at),
            (Drawn::InlineBucket(old, was), Drawn::InlineBucket(new, state)) => {
                *state = new.adopt(old, was, at);
            }
            (Drawn::InlineWindow(old, was), Drawn::InlineWindow(new, state)) => {
                *state = new.adopt(old, was, at);
            }
            (_, new) => ask!(new, |algorithm, state| *state = algorithm.with_used(at, used)),
        }
        *self = next;
    }

    /// Whether nothing is in use, so that forgetting this meter changes no later outcome.
    #[must_use]
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.idle_at() <= now.as_nanos()
    }

    /// Where the state stands to a reading of the clock.
    pub(crate) fn standing(&self, now: Timestamp) -> Standing {
        let (now, period) = (now.as_nanos(), ask!(&self.0, |algorithm, _state| algorithm.period()));
        match self.written_at().as_nanos().saturating_sub(now) {
            0 => Standing::Current,
            ahead if ahead <= LATE => Standing::Late,
            ahead if ahead <= period => Standing::Behind,
            _ => Standing::Wild,
        }
    }

    /// The earliest moment at which the state can have been written.
    pub(crate) fn written_at(&self) -> Timestamp {
        Timestamp::from_nanos(ask!(&self.0, |algorithm, state| algorithm.written_at(state)))
    }

    /// `now`, or the state's own time if that is later.
    pub(crate) fn not_before(&self, now: Timestamp) -> Timestamp {
        now.max(self.written_at())
    }

    /// The meter as a reading of the clock finds it.
    fn seen(&self, now: Timestamp) -> Seen<'_> {
        let standing = self.standing(now);
        let meter = match standing {
            Standing::Wild => Cow::Owned(self.rebased(now)),
            _ => Cow::Borrowed(self),
        };
        let at = if standing == Standing::Late { self.written_at() } else { now };
        Seen { meter, at, behind: standing == Standing::Behind }
    }

    /// The meter exactly empty as of `now`.
    pub(crate) fn rebased(&self, now: Timestamp) -> Self {
        let mut rebased = Self::new(self.limit());
        match (&self.0, &mut rebased.0) {
            (Drawn::FixedWindow(algorithm, was), Drawn::FixedWindow(_, state)) => {
                *state = algorithm.rebase(was, now.as_nanos());
            }
            (Drawn::SlidingWindow(algorithm, was), Drawn::SlidingWindow(_, state)) => {
                *state = algorithm.rebase(was, now.as_nanos());
            }
            (Drawn::SlidingLog(algorithm, was), Drawn::SlidingLog(_, state)) => {
                *state = algorithm.rebase(was, now.as_nanos());
            }
            (Drawn::TokenBucket(algorithm, was), Drawn::TokenBucket(_, state)) => {
                *state = algorithm.rebase(was, now.as_nanos());
            }
            (Drawn::FractionalBucket(algorithm, was), Drawn::FractionalBucket(_, state)) => {
                *state = algorithm.rebase(was, now.as_nanos());
            }
            (Drawn::Reserve(algorithm, was), Drawn::Reserve(_, state)) => {
                *state = algorithm.rebase(was, now.as_nanos());
            }
            (Drawn::InlineBucket(algorithm, was), Drawn::InlineBucket(_, state)) => {
                *state = algorithm.rebase(was, now.as_nanos());
            }
            (Drawn::InlineWindow(algorithm, was), Drawn::InlineWindow(_, state)) => {
                *state = algorithm.rebase(was, now.as_nanos());
            }
            _ => {}
        }
        rebased
    }

    /// Gives back what is still in use of a reservation; see [`Arithmetic::give_held`].
    pub(crate) fn give_held(&mut self, now: Timestamp, units: u64, lapses_at: u64) {
        let at = self.not_before(now).as_nanos();
        ask!(&mut self.0, |algorithm, state| algorithm.give_held(state, at, units, lapses_at));
    }

    /// How many units are in use, as of a time that is not before [`written_at`](Self::written_at).
    pub(crate) fn used(&self, now: Timestamp) -> u64 {
        ask!(&self.0, |algorithm, state| algorithm.used(state, now.as_nanos()))
    }

    /// Whether `cost` can be taken, as of such a time. (Not even a cost of 0 can be where more is in
    /// use than the whole limit would be.)
    pub(crate) fn fits(&self, now: Timestamp, cost: u64) -> bool {
        ask!(&self.0, |algorithm, state| algorithm.fits(state, now.as_nanos(), cost))
    }

    /// How many units can be taken, as of such a time.
    pub(crate) fn available(&self, now: Timestamp) -> u64 {
        ask!(&self.0, |algorithm, state| algorithm.available(state, now.as_nanos()))
    }

    /// When `units` can be taken, from such a time on.
    pub(crate) fn available_at(&self, now: Timestamp, units: u64) -> u64 {
        ask!(&self.0, |algorithm, state| algorithm.available_at(state, now.as_nanos(), units))
    }

    /// When `units` can be taken, from a reading that the state is far ahead of: it counts as
    /// exactly empty until a reading is merely late.
    pub(crate) fn available_at_from_behind(&self, units: u64) -> u64 {
        let written_at = self.written_at();
        match self.available_at(written_at, units) {
            at if at > written_at.as_nanos() => at,
            at => at.saturating_sub(LATE),
        }
    }

    /// When nothing is in use any more.
    pub(crate) fn idle_at(&self) -> u64 {
        ask!(&self.0, |algorithm, state| algorithm.idle_at(state))
    }

    /// Takes what is known to be available, at a time that is not before
    /// [`written_at`](Self::written_at). A cost of 0 changes no state.
    pub(crate) fn take(&mut self, now: Timestamp, cost: u64) {
        if cost > 0 {
            ask!(&mut self.0, |algorithm, state| algorithm.take(state, now.as_nanos(), cost));
        }
    }

    /// Counts a denied attempt, if this limit does that, and says whether it did. What can never
    /// fit never counts.
    pub(crate) fn refuse(&mut self, now: Timestamp, cost: u64) -> bool {
        let counts = self.limit().counts_denied() && cost > 0 && cost <= self.limit().capacity();
        if counts {
            self.take(now, cost);
        }
        counts
    }
}

/// Where a state stands to a reading of the clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The state is not ahead.
    Current,
    /// The state is ahead by at most a second: the request is decided at the state's own time.
    Late,
    /// The state is further ahead: it counts as exactly empty and is left as it is.
    Behind,
    /// The state is ahead by more than a period: a check that it denies re-bases it.
    Wild,
}

/// A meter as a reading of the clock finds it.
struct Seen<'a> {
    /// Owned if it had to be re-based.
    meter: Cow<'a, Meter>,
    /// The time to decide at.
    at: Timestamp,
    behind: bool,
}

impl Seen<'_> {
    fn available(&self) -> u64 {
        if self.behind { 0 } else { self.meter.available(self.at) }
    }

    fn fits(&self, cost: u64) -> bool {
        if self.behind { cost == 0 } else { self.meter.fits(self.at, cost) }
    }

    fn outcome(&self, cost: u64, allowed: bool) -> Outcome {
        let numbers = (self.available(), self.meter.limit().capacity());
        let available_at = |units| match self.behind {
            true => self.meter.available_at_from_behind(units),
            false => self.meter.available_at(self.at, units),
        };
        Numbers::new(self.at, cost, allowed, numbers, available_at).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HOUR, MAX_COUNT, MINUTE, SECOND};
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
        // One token a minute, and the limit changes every ten seconds: what had trickled in must not be
        // lost each time.
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
    fn b7_a_state_from_the_future_counts_as_exactly_empty_and_is_full_again_after_one_refill() {
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
    fn b7_a_window_that_was_given_back_whole_locks_nobody_out_when_the_clock_goes_back() {
        let mut meter = Meter::new(Limit::fixed_window(10, MINUTE));
        let (wild, now) = (Timestamp::from_secs(9_000_000), Timestamp::from_secs(1_000));
        assert!(meter.decide(wild, 3).allowed());
        meter.give(wild, 3);
        assert_eq!(meter.decide(now, 1).remaining, 9);
    }

    #[test]
    fn b9_a_reading_that_came_late_counts_as_the_newer_one() {
        // Another thread was first, with a reading that is a microsecond newer.
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

    use crate::{Algorithm, Bucket};
}
