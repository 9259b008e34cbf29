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
    /// Reserve the cost or nothing, for so many times as long as the step waits.
    Reserve {
        lasts: u32,
        keeps: bool,
        empty: bool,
    },
    /// Settle one of the reservations so far.
    Settle(usize),
    /// Renew one of the reservations so far, for so many times as long as the step waits.
    Renew {
        index: usize,
        lasts: u32,
    },
}

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// C7. A settlement that is sent again is an error and records nothing: of a reservation that
    /// holds units, of one of 0 units, and of one that is cancelled.
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

    /// C5 and C7. Under any rules, reservations of any cost are held, settled once, in time and
    /// late, renewed and expired, for shorter and for longer than a limit's period, and all limits
    /// have the numbers of the oracle.
    pub fn c7_reservations_are_those_of_the_oracle(&self) {
        let tick = self.tick;
        let lasts = || prop_oneof![3 => Just(1_u32), 1 => 2..5_u32, 1 => Just(50)];
        let ask = prop_oneof![
            2 => Just(Ask::Check),
            4 => (lasts(), any::<bool>(), any::<bool>())
                .prop_map(|(lasts, keeps, empty)| Ask::Reserve { lasts, keeps, empty }),
            5 => (0..4_usize).prop_map(Ask::Settle),
            1 => (0..4_usize, lasts()).prop_map(|(index, lasts)| Ask::Renew { index, lasts }),
        ];
        let script = self.any_rules().prop_flat_map(move |rules| {
            let period = rules.iter().flat_map(Rule::limits).map(full_refill).max().unwrap_or(MINUTE);
            (Just(rules), steps(tick, period, 40), prop::collection::vec(ask.clone(), 40))
        });
        self.property(script, |(rules, steps, asks)| {
            // Rules that only watch may hold nothing of what was reserved.
            prop_assume!(rules.iter().any(|rule| !rule.is_shadow()));
            let mut oracle = Oracle::new(&rules, tick);
            let world = self.world(rules);
            let mut made: Vec<(HoldId, &str)> = Vec::new();
            for (Step { wait, client, cost }, ask) in steps.into_iter().zip(asks) {
                world.clock.advance(wait);
                let (now, wait) = (world.now(), wait.max(tick));
                let made_for = |index: usize| made.get(made.len().checked_sub(1 + index)?).copied();
                let refused = |granted: bool| if granted { Ok(()) } else { Err(Error::NotReserved) };
                let client = match ask {
                    Ask::Settle(index) | Ask::Renew { index, .. } => {
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
                    Ask::Reserve { lasts, keeps, empty } => {
                        let (cost, ttl) = (if empty { 0 } else { cost }, wait * lasts);
                        let on_expiry = if keeps { OnExpiry::Keep } else { OnExpiry::GiveBack };
                        let reserved = run(world.limiter.reserve(request(cost), ttl, on_expiry));
                        let hold = reserved.expect("the store reserves").detach();
                        let name = hold.map_or(0, |hold| hold.0);
                        let _ = oracle.ask(Verb::Reserve { name, ttl, keeps }, &attributes, cost, now);
                        made.extend(hold.map(|hold| (hold, client)));
                    }
                    Ask::Settle(index) => {
                        let Some((hold, _)) = made_for(index) else { continue };
                        let expected = oracle.settle(&attributes, hold.0, cost, now);
                        let settled = run(world.limiter.settle(hold, request(cost)));
                        let shortfall = expected.unwrap_or(0);
                        let expected = refused(expected.is_some()).map(|()| Settlement { shortfall });
                        prop_assert_eq!(settled, expected, "the {}th last", index);
                    }
                    Ask::Renew { index, lasts } => {
                        let Some((hold, _)) = made_for(index) else { continue };
                        let ttl = wait * lasts;
                        let expected = oracle.renew_reservation(&attributes, hold.0, ttl, now);
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

    /// C7. A settlement after the expiry records what the expiry really gave back: a window that
    /// had lapsed before gave back nothing.
    pub fn c7_a_late_settlement_charges_once(&self) {
        for settled_at in [69, 71] {
            let world = self.world([per_client(Limit::fixed_window(10, MINUTE))]);
            let request = Request::client("a").cost(10);
            let reserved = run(world.limiter.reserve(request, 70 * SECOND, OnExpiry::GiveBack));
            let hold = reserved.expect("the store reserves").detach().expect("allowed");
            world.clock.advance(settled_at * SECOND);
            assert_eq!(run(world.limiter.settle(hold, request)), Ok(Settlement { shortfall: 0 }));
            assert_eq!(world.peek("a").remaining(), 10, "settled after {settled_at} s");
        }
    }

    /// C5. A reservation gives back the units that it drew, and not the most recent ones: in no
    /// span of a log's period more is used than its limit.
    pub fn c5_a_reservation_gives_back_its_own_units(&self) {
        let world = self.world([per_client(Limit::sliding_log(5, 10 * SECOND))]);
        let take = |cost| world.check(Request::client("a").cost(cost)).allowed();
        let request = Request::client("a").cost(3);
        let reserved = run(world.limiter.reserve(request, 30 * SECOND, OnExpiry::GiveBack));
        let reserved = reserved.expect("the store reserves");
        world.clock.advance(5 * SECOND);
        assert!(take(2));
        world.clock.advance(SECOND);
        run(reserved.settle(0)).expect("held");
        assert!(take(3));
        world.clock.advance(4 * SECOND);
        assert!(!take(1), "five were used in the last ten seconds");
        world.clock.advance(5 * SECOND);
        assert!(take(2) && !take(1));
    }
}
