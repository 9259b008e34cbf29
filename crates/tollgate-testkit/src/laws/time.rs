//! B7: time may misbehave.

use std::ops::Range;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Algorithm, Bucket, Limit, MINUTE, ManualClock, Request, SECOND, Store, Timestamp, Verdict};

use super::{Laws, full_refill, nanos, per_client};
use crate::any_limit;
use crate::bound::{Admitted, check_history};
use crate::world::{World, run, runtime};

/// The next movement of the clock, in ticks.
#[derive(Clone, Copy, Debug)]
enum Move {
    /// Stay at the same time.
    Stay,
    /// Go ahead by this many ticks.
    Ahead(u64),
    /// Go back by this many ticks.
    Back(u64),
    /// Go to the next multiple of the period, or this many ticks before it.
    BeforeEdge(u64),
    /// Go to the last multiple of the period, or this many ticks before it.
    BackAcrossEdge(u64),
    /// Go to the latest time so far.
    Newest,
}

/// The request to make then.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Check(u64),
    Peek(u64),
    /// The whole limit, which drains it or is denied.
    Drain,
    /// More than the whole limit.
    Never,
    /// A cost that was already used.
    Record(u64),
}

/// The period that contains a moment: the calendar's, or one that starts at a multiple of itself.
fn window_at(limit: &Limit, now: Timestamp) -> Range<u64> {
    if let Algorithm::CalendarWindow { unit, zone, .. } = limit.algorithm() {
        let window = zone.window(unit, now);
        return window.start.as_nanos()..window.end.as_nanos();
    }
    let period = nanos(limit.period());
    let start = now.as_nanos() - now.as_nanos() % period;
    start..start + period
}

/// A time after `now` that a state records: the start of a window, a step. `None` for two buckets
/// of which one steps.
fn edge_after(limit: &Limit, now: Timestamp, tick: Duration) -> Option<Timestamp> {
    let next = |edges: Duration| {
        let edges = nanos(edges);
        Timestamp::from_nanos((now.as_nanos() / edges + 1) * edges)
    };
    match limit.algorithm() {
        Algorithm::FixedWindow { period, aligned: true, .. } | Algorithm::SlidingWindow { period, .. } => {
            Some(next(period))
        }
        Algorithm::CalendarWindow { .. } => Some(Timestamp::from_nanos(window_at(limit, now).end)),
        Algorithm::TokenBucket(bucket) if bucket.stepped => Some(next(bucket.interval)),
        Algorithm::Reserve { sustained, reserve } if sustained.stepped || reserve.stepped => None,
        _ => Some(next(tick)),
    }
}

/// The time in which a wholly spent limit is whole again, at the longest.
fn longest_refill(limit: &Limit) -> Duration {
    let refill = |bucket: Bucket| {
        let (capacity, amount) = (u128::from(bucket.capacity), u128::from(bucket.amount));
        let interval = bucket.interval.as_nanos();
        let nanos = match bucket.stepped {
            true => capacity.div_ceil(amount) * interval,
            false => (capacity * interval).div_ceil(amount),
        };
        Duration::from_nanos(u64::try_from(nanos).expect("a refill fits"))
    };
    match limit.algorithm() {
        Algorithm::FixedWindow { period, .. }
        | Algorithm::SlidingWindow { period, .. }
        | Algorithm::SlidingLog { period, .. } => period,
        Algorithm::CalendarWindow { unit, .. } => unit.longest(),
        Algorithm::TokenBucket(bucket) => refill(bucket),
        Algorithm::Reserve { sustained, reserve } => refill(sustained).max(refill(reserve)),
        other => unreachable!("an algorithm without a refill: {other:?}"),
    }
}

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// B7. A clock that goes back by up to one period and forward again admits no more than B1
    /// allows over the times that it showed, even across the edge of a window or a step, and with
    /// denials, peeks and checks of cost 0 in between.
    ///
    /// Not for a key that was forgotten as idle before the step back: an hour later the store may
    /// drop the window, and back in it the client has a whole budget. Here nothing forgets: one key
    /// is asked all the time, and no sweep runs.
    pub fn b7_a_clock_that_goes_back_hands_out_nothing_anew(&self) {
        let tick = nanos(self.tick);
        // A reading may be late by one second.
        let late = 1_000_000_000 / tick;
        let near = prop_oneof![
            4 => 0..3_u64,
            2 => (0..3_u64).prop_map(move |ticks| late + ticks - 1),
            1 => 0..2 * late,
        ];
        let step = prop_oneof![
            3 => Just(Move::Stay),
            2 => (0..2 * late).prop_map(Move::Ahead),
            1 => (0..100 * late).prop_map(Move::Ahead),
            3 => near.clone().prop_map(Move::Back),
            1 => (0..100 * late).prop_map(Move::Back),
            2 => near.clone().prop_map(Move::BeforeEdge),
            3 => near.prop_map(Move::BackAcrossEdge),
            3 => Just(Move::Newest),
        ];
        let ask = prop_oneof![
            5 => (1..5_u64).prop_map(Ask::Check),
            1 => Just(Ask::Check(0)),
            2 => (0..5_u64).prop_map(Ask::Peek),
            3 => Just(Ask::Drain),
            1 => Just(Ask::Never),
            1 => (1..30_u64).prop_map(Ask::Record),
        ];
        let walk = prop::collection::vec((step, ask), 1..60);
        self.property((any_limit(self.tick), walk), |(limit, walk)| {
            let world = self.world([per_client(limit)]);
            let period = nanos(limit.period());
            let (mut newest, mut admitted) = (world.now().as_nanos(), Admitted::new());
            for (step, ask) in walk {
                let now = world.now().as_nanos();
                let window = window_at(&limit, world.now());
                let to = match step {
                    Move::Stay => now,
                    Move::Ahead(ticks) => now + ticks * tick,
                    Move::Back(ticks) => now - ticks * tick,
                    Move::BeforeEdge(ticks) => window.end - ticks * tick,
                    Move::BackAcrossEdge(ticks) => window.start - ticks * tick,
                    Move::Newest => newest,
                };
                // Going back by more than a period is another law, and so is forgetting idle keys.
                // Edges may lie between two ticks.
                let furthest = period.min(nanos(4 * MINUTE));
                let to = to.max(newest.saturating_sub(furthest)).div_ceil(tick) * tick;
                newest = newest.max(to);
                world.clock.set(Timestamp::from_nanos(to));
                let request = |cost| Request::client("a").cost(cost);
                let decision = match ask {
                    Ask::Check(cost) => world.check(request(cost)),
                    Ask::Drain => world.check(request(limit.capacity())),
                    Ask::Never => world.check(request(limit.capacity() + 1)),
                    Ask::Peek(cost) => {
                        let _ = world.peek(request(cost));
                        continue;
                    }
                    Ask::Record(cost) => {
                        // A record may open a window, which a history of admissions does not show.
                        if !matches!(limit.algorithm(), Algorithm::FixedWindow { aligned: false, .. }) {
                            let _ = run(world.limiter.record(request(cost)));
                        }
                        continue;
                    }
                };
                let cost = match ask {
                    Ask::Check(cost) => cost,
                    _ => limit.capacity(),
                };
                if decision.allowed() {
                    admitted.push((decision.now(), cost));
                }
            }
            check_history(&limit, &admitted).map_err(TestCaseError::fail)?;
            // B4 holds at any time.
            let denied = world.check("a");
            if let Verdict::Denied { retry_after } = denied.verdict() {
                let at = denied.now().saturating_add(retry_after);
                world.clock.set(at.saturating_sub(self.tick));
                prop_assert!(!world.peek("a").allowed(), "admitted before {:?} were over", retry_after);
                world.clock.set(at);
                prop_assert!(world.peek("a").allowed(), "denied when {:?} were over", retry_after);
            }
            Ok(())
        });
    }

    /// B7. A reading that is up to a second older than the state is decided at the time of the
    /// state, and the decision says so. An older one finds the state exactly empty, and leaves it
    /// unchanged.
    pub fn b7_a_late_reading_is_decided_at_the_states_own_time(&self) {
        self.property(any_limit(self.tick), |limit| {
            let world = self.world([per_client(limit)]);
            let written = edge_after(&limit, world.now(), self.tick);
            prop_assume!(written.is_some());
            let written = written.expect("assumed");
            self.spend(&world, &limit, written);
            for late in [self.tick, SECOND - self.tick, SECOND] {
                world.clock.set(written.saturating_sub(late));
                for decision in [world.peek("a"), world.check("a")] {
                    prop_assert_eq!((decision.now(), decision.remaining()), (written, 0), "{:?} late", late);
                }
            }
            world.clock.set(written.saturating_sub(SECOND + self.tick));
            for decision in [world.peek("a"), world.check(Request::client("a").cost(0))] {
                prop_assert_eq!((decision.now(), decision.remaining()), (world.now(), 0), "{}", limit);
            }
            world.clock.set(written);
            prop_assert_eq!(world.peek("a").remaining(), 0, "unchanged: {}", limit);
            Ok(())
        });
    }

    /// B7. A state that is ahead by a period at most is left as it is. One that is further ahead is
    /// exactly empty as of now, and whole a period later. The period of a bucket is one full
    /// refill, in whole steps where it refills in steps.
    pub fn b7_a_state_is_wild_beyond_one_period(&self) {
        self.property(any_limit(self.tick), |limit| {
            let period = longest_refill(&limit);
            prop_assert_eq!(limit.period(), period, "{}", limit);
            // A reading may be late by one second.
            prop_assume!(period > SECOND);
            for (ahead, remaining) in [(period, 0), (period + self.tick, limit.capacity())] {
                let world = self.world([per_client(limit)]);
                let written = edge_after(&limit, world.now(), self.tick);
                prop_assume!(written.is_some());
                let written = written.expect("assumed");
                self.spend(&world, &limit, written);
                world.clock.set(written.saturating_sub(ahead));
                prop_assert!(!world.check("a").allowed(), "{}", limit);
                world.clock.set(written);
                prop_assert_eq!(world.peek("a").remaining(), remaining, "{} ahead by {:?}", limit, ahead);
            }
            Ok(())
        });
    }

    /// Sets the clock, and records the whole limit and its debt: the state can have been written at
    /// no other time.
    fn spend(&self, world: &World<S>, limit: &Limit, now: Timestamp) {
        world.clock.set(now);
        let whole = Request::client("a").cost(limit.capacity() + limit.max_debt());
        let recorded = run(world.limiter.record(whole)).expect("the store records");
        assert_eq!(recorded.shortfall(), 0, "{limit}");
    }

    /// B7. A clock that jumps by any span, ahead and back, breaks nothing.
    pub fn b7_a_clock_that_jumps_breaks_nothing(&self) {
        let jump = (prop_oneof![Just(0), 0..2_000_000_000_u64, 0..200_000_000_000_000_u64], any::<bool>());
        let walk = prop::collection::vec((jump, 0..5_u64), 1..60);
        let tick = nanos(self.tick);
        self.property((any_limit(self.tick), walk), |(limit, walk)| {
            let world = self.world([per_client(limit)]);
            for ((nanos, back), cost) in walk {
                let span = Duration::from_nanos(nanos - nanos % tick);
                if back {
                    world.clock.set(world.now().saturating_sub(span));
                } else {
                    world.clock.advance(span);
                }
                let decision = world.check(Request::client("a").cost(cost));
                prop_assert!(decision.remaining() <= limit.capacity());
                let late = decision.now().since(world.now());
                prop_assert!(late <= SECOND && decision.now() >= world.now(), "decided {:?} later", late);
            }
            Ok(())
        });
        for now in [Timestamp::EPOCH, Timestamp::MAX] {
            let _context = runtime().enter();
            let world = World::with_clock(
                ManualClock::at(now),
                (self.make)(),
                [per_client([Limit::per_second(3), Limit::sliding_window(5, MINUTE)])],
            );
            assert!(world.check("a").allowed(), "at {now:?}");
        }
    }

    /// B7. A state written at a wild reading counts as exactly empty when the clock is right again,
    /// not as a full budget; one period and one full refill later the budget is whole.
    pub fn b7_a_wild_reading_locks_nobody_out_for_long(&self) {
        self.property((any_limit(self.tick), 2..100_000_u64), |(limit, ahead_secs)| {
            let world = self.world([per_client(limit)]);
            let right = world.now();
            world.clock.advance(full_refill(&limit) + Duration::from_secs(ahead_secs));
            prop_assert!(world.check("a").allowed());
            world.clock.set(right);
            prop_assert_eq!(world.peek("a").remaining(), 0, "{}", limit);
            prop_assert!(!world.check("a").allowed(), "{}", limit);
            world.clock.advance(limit.period() + full_refill(&limit) + SECOND);
            prop_assert_eq!(world.peek("a").remaining(), limit.capacity(), "{}", limit);
            Ok(())
        });
    }
}
