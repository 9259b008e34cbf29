//! The laws that a plain counter can keep.

use proptest::prelude::*;
use tollgate::{Counter, CounterStore, HOUR, Limit, ManualClock, Request, Rule};

use crate::bound::{Admitted, check_history};
use crate::laws::{CASES, property, race};
use crate::oracle::{Oracle, Verb};
use crate::world::{CLIENTS, START, World, runtime};
use crate::{Step, steps};

/// The laws over the counters that `make` returns. Their numbers expire on the clock passed to it.
#[derive(Clone, Copy, Debug)]
pub struct CounterLaws<F>(F);

impl<C: Counter, F: Fn(ManualClock) -> C> CounterLaws<F> {
    /// The laws over the counters that `make` returns, each fresh and empty.
    pub const fn new(make: F) -> Self {
        Self(make)
    }

    fn world(&self, limit: Limit) -> World<CounterStore<C>> {
        let _context = runtime().enter();
        let clock = ManualClock::at(START);
        let counter = (self.0)(clock.clone());
        World::with_clock(clock, CounterStore(counter), [rule(limit)])
    }

    fn replay(
        world: &World<CounterStore<C>>,
        steps: &[Step],
        mut each: impl FnMut(&Step, tollgate::Decision),
    ) {
        for step in steps {
            world.clock.advance(step.wait);
            each(step, world.check(Request::client(CLIENTS[step.client]).cost(step.cost)));
        }
    }

    /// B1. No schedule gets more units admitted than the limit's definition allows.
    pub fn b1_never_too_many(&self) {
        property(CASES, limit_and_steps(), |(limit, steps)| {
            let world = self.world(limit);
            let mut admitted: [Admitted; 3] = Default::default();
            Self::replay(&world, &steps, |step, decision| {
                if decision.allowed() {
                    admitted[step.client].push((decision.now(), step.cost));
                }
            });
            admitted
                .iter()
                .try_for_each(|history| check_history(&limit, history))
                .map_err(TestCaseError::fail)
        });
    }

    /// B5. Other clients change nothing for a client.
    pub fn b5_keys_are_islands(&self) {
        property(CASES, limit_and_steps(), |(limit, steps)| {
            let crowd = self.world(limit);
            let alone = CLIENTS.map(|_| self.world(limit));
            for step in &steps {
                crowd.clock.advance(step.wait);
                alone.iter().for_each(|world| world.clock.advance(step.wait));
                let request = Request::client(CLIENTS[step.client]).cost(step.cost);
                prop_assert_eq!(crowd.check(request), alone[step.client].check(request));
            }
            Ok(())
        });
    }

    /// B6. The verdicts and the remaining units are those of an oracle that forgets nothing.
    pub fn b6_forgetting_is_invisible(&self) {
        property(CASES, limit_and_steps(), |(limit, steps)| {
            let world = self.world(limit);
            let mut oracle = Oracle::new(&[rule(limit)], std::time::Duration::from_nanos(1));
            for step in &steps {
                world.clock.advance(step.wait);
                let client = CLIENTS[step.client];
                let expected = oracle.ask(Verb::Check, &[("client", client)], step.cost, world.now());
                let decision = world.check(Request::client(client).cost(step.cost));
                prop_assert_eq!(decision.remaining(), expected[0].remaining);
                prop_assert_eq!(decision.allowed(), expected[0].allowed);
            }
            Ok(())
        });
    }

    /// B9. Threads that race for `limit` units get exactly `limit`.
    pub fn b9_racing_threads_admit_exactly_the_limit(&self) {
        for limit in [Limit::fixed_window(100, HOUR).aligned(), Limit::sliding_window(100, HOUR)] {
            assert_eq!(race(&self.world(limit.counting_denied()).limiter, 100), 100, "{limit}");
        }
    }
}

fn rule(limit: Limit) -> Rule {
    Rule::new("per-client", limit).key(["client"])
}

/// A limit that a counter supports, and a schedule on the scale of its period.
fn limit_and_steps() -> impl Strategy<Value = (Limit, Vec<Step>)> {
    let nanosecond = std::time::Duration::from_nanos(1);
    let period =
        prop_oneof![Just(60_000_000_000_u64), 1..5_000_u64].prop_map(std::time::Duration::from_nanos);
    (1..20_u64, period, any::<bool>()).prop_flat_map(move |(limit, period, sliding)| {
        let window = if sliding {
            Limit::sliding_window(limit, period)
        } else {
            Limit::fixed_window(limit, period).aligned()
        };
        (Just(window.counting_denied()), steps(nanosecond, period, 40))
    })
}
