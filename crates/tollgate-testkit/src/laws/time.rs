//! B7: time may misbehave.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Limit, MINUTE, ManualClock, Request, SECOND, Store, Timestamp};

use super::{Laws, full_refill, per_client};
use crate::world::{World, runtime};
use crate::{any_limit, most_on_path};

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// B7. A clock that stands still, jumps and goes back breaks nothing, and gets nobody more than
    /// the limit allows for the time that it ran forward.
    pub fn b7_time_may_misbehave(&self) {
        let jump = prop_oneof![
            3 => Just((0_u64, false)),
            3 => (0..2_000_000_000_u64).prop_map(|nanos| (nanos, false)),
            2 => (0..900_000_000_u64).prop_map(|nanos| (nanos, true)),
            1 => (0..200_000_000_000_000_u64).prop_map(|nanos| (nanos, false)),
            1 => (0..200_000_000_000_000_u64).prop_map(|nanos| (nanos, true)),
        ];
        let walk = prop::collection::vec((jump, 0..5_u64), 1..60);
        let tick = self.tick;
        self.property((any_limit(tick), walk), |(limit, walk)| {
            let world = self.world([per_client(limit)]);
            let (mut forward, mut wild_steps, mut admitted, mut newest) = (Duration::ZERO, 0, 0, world.now());
            for ((nanos, back), cost) in walk {
                let span =
                    Duration::from_nanos(nanos - nanos % u64::try_from(tick.as_nanos()).expect("small"));
                if back {
                    world.clock.set(world.now().saturating_sub(span));
                    wild_steps += usize::from(newest.since(world.now()) > SECOND);
                } else {
                    world.clock.advance(span);
                    forward += span;
                }
                newest =
                    if newest.since(world.now()) > SECOND { world.now() } else { newest.max(world.now()) };
                if world.check(Request::client("a").cost(cost)).allowed() {
                    admitted += u128::from(cost);
                }
            }
            let bound = most_on_path(&limit, forward, wild_steps);
            prop_assert!(admitted <= bound, "{limit}: {admitted} of at most {bound}");
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

    /// B7. What was written by a wild reading counts as exactly empty when the clock is right
    /// again, not as a fresh budget; and one full refill later the client is whole again.
    pub fn b7_a_wild_reading_locks_nobody_out_for_longer_than_one_refill(&self) {
        self.property((any_limit(self.tick), 2..100_000_u64), |(limit, ahead_secs)| {
            let world = self.world([per_client(limit)]);
            let right = world.now();
            world.clock.advance(full_refill(&limit) + Duration::from_secs(ahead_secs));
            prop_assert!(world.check("a").allowed());
            world.clock.set(right);
            prop_assert_eq!(world.peek("a").remaining(), 0, "{}", limit);
            prop_assert!(!world.check("a").allowed(), "{}", limit);
            world.clock.advance(full_refill(&limit) + SECOND);
            prop_assert_eq!(world.peek("a").remaining(), limit.capacity(), "{}", limit);
            Ok(())
        });
    }
}
