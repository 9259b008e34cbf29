//! C7: settling counts once, however often it is sent.

use proptest::prelude::*;
use tollgate::{Error, HoldId, Limit, MINUTE, OnExpiry, Request, Rule, SECOND, Settlement, Store};

use super::history::expected_of;
use super::{Laws, full_refill, per_client};
use crate::oracle::{Expected, Oracle, Verb};
use crate::world::{CLIENTS, run};
use crate::{Step, steps};

/// What a step of the schedule does.
#[derive(Clone, Copy, Debug)]
enum Ask {
    Check,
    /// Reserve nothing, for as long as the step waits.
    Reserve,
    /// Settle one of the reservations so far.
    Settle(usize),
    /// Renew one of the reservations so far, for as long as the step waits.
    Renew(usize),
}

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// C7. A settlement that is sent again is an error and records nothing: of a reservation that
    /// holds units, of one that holds nothing, and of one that is cancelled.
    pub fn c7_settling_counts_once(&self) {
        let world = self.world([
            Rule::new("global", Limit::sliding_log(100, MINUTE)),
            per_client([Limit::fixed_window(50, MINUTE), Limit::per_month(1_000)]),
        ]);
        let mut left = 50;
        for (estimate, cost) in [(4, 3), (0, 3), (0, 20), (2, 0), (0, 0), (0, 30)] {
            let request = |cost| Request::client("a").cost(cost);
            let reserved = run(world.limiter.reserve(request(estimate), 10 * SECOND, OnExpiry::Keep));
            let hold = reserved.expect("the store reserves").detach().expect("allowed");
            assert_eq!(world.peek(request(0)).remaining(), left - estimate);
            let settled = run(world.limiter.settle(hold, request(cost)));
            assert_eq!(settled, Ok(Settlement { shortfall: 0 }), "{estimate} at {cost}");
            left = left.saturating_sub(cost);
            for again in [cost, 7, 0] {
                let settled = run(world.limiter.settle(hold, request(again)));
                assert_eq!(settled, Err(Error::NotReserved), "{estimate} at {cost}, again at {again}");
            }
            assert_eq!(run(world.limiter.renew(hold, request(1), SECOND)), Err(Error::NotReserved));
            assert_eq!(world.peek(request(0)).remaining(), left);
        }
        assert_eq!(world.peek(Request::client("a").cost(0)).owed(), 6, "56 of 50");
    }

    /// C7. Under any rules, reservations that hold nothing are settled once, renewed, and too late,
    /// and all limits have the numbers of the oracle.
    pub fn c7_reservations_of_nothing_are_those_of_the_oracle(&self) {
        let tick = self.tick;
        let ask = prop_oneof![
            2 => Just(Ask::Check),
            3 => Just(Ask::Reserve),
            5 => (0..8_usize).prop_map(Ask::Settle),
            2 => (0..8_usize).prop_map(Ask::Renew),
        ];
        let script = self.any_rules().prop_flat_map(move |rules| {
            let period = rules.iter().flat_map(Rule::limits).map(full_refill).max().unwrap_or(MINUTE);
            (Just(rules), steps(tick, period, 40), prop::collection::vec(ask.clone(), 40))
        });
        self.property(script, |(rules, steps, asks)| {
            let mut oracle = Oracle::new(&rules, tick);
            let enforces = rules.iter().any(|rule| !rule.is_shadow());
            let world = self.world(rules);
            let mut made: Vec<(HoldId, &str)> = Vec::new();
            for (Step { wait, client, cost }, ask) in steps.into_iter().zip(asks) {
                world.clock.advance(wait);
                let (now, ttl) = (world.now(), wait.max(tick));
                let made_for = |index: usize| made.get(made.len().checked_sub(1 + index)?).copied();
                let refused =
                    |granted: bool| if granted || !enforces { Ok(()) } else { Err(Error::NotReserved) };
                let client = match ask {
                    Ask::Settle(index) | Ask::Renew(index) => {
                        made_for(index).map_or("", |(_, client)| client)
                    }
                    _ => CLIENTS[client],
                };
                let attributes = [("client", client)];
                let request = |cost| Request::client(client).cost(cost);
                match ask {
                    Ask::Check => {
                        let _ = oracle.ask(Verb::Check, &attributes, cost, now);
                        let _ = world.check(request(cost));
                    }
                    Ask::Reserve => {
                        let reserved = run(world.limiter.reserve(request(0), ttl, OnExpiry::Keep));
                        if let Some(hold) = reserved.expect("the store reserves").detach() {
                            made.push((hold, client));
                            oracle.reserve_nothing(hold.0, now.saturating_add(2 * ttl));
                        }
                    }
                    Ask::Settle(index) => {
                        let Some((hold, _)) = made_for(index) else { continue };
                        let expected = oracle.settle_nothing(hold.0, &attributes, cost, now);
                        let settled = run(world.limiter.settle(hold, request(cost)));
                        let shortfall = expected.unwrap_or(0);
                        let expected = refused(expected.is_some()).map(|()| Settlement { shortfall });
                        prop_assert_eq!(settled, expected, "the {}th last", index);
                    }
                    Ask::Renew(index) => {
                        let Some((hold, _)) = made_for(index) else { continue };
                        let expected = oracle.renew_nothing(hold.0, now, now.saturating_add(2 * ttl));
                        let renewed = run(world.limiter.renew(hold, request(1), ttl));
                        prop_assert_eq!(renewed, refused(expected), "the {}th last", index);
                    }
                }
                let expected = oracle.ask(Verb::Peek, &attributes, 1, now);
                let got: Vec<Expected> = world.peek(request(1)).limits().iter().map(expected_of).collect();
                prop_assert_eq!(got, expected, "{:?}", ask);
            }
            Ok(())
        });
    }
}
