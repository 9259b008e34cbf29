//! B10 and C5: outcomes, reservations and blocks.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Error, HOUR, Limit, MINUTE, OnExpiry, Request, Rule, SECOND, Store, Timestamp};

use super::{Laws, full_refill, per_client};
use crate::oracle::{Expected, Oracle, Verb};
use crate::steps;
use crate::world::{CLIENTS, run};

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// B10. Every outcome is that of the naive oracle, to the unit and to the tick.
    pub fn b10_outcomes_are_those_of_the_oracle(&self) {
        let tick = self.tick;
        let verb = prop_oneof![
            8 => Just(Verb::Check),
            1 => Just(Verb::Refuse),
            1 => Just(Verb::Peek),
            1 => Just(Verb::Refund),
            1 => Just(Verb::Penalise),
            2 => Just(Verb::Record),
        ];
        let script = self.any_rules().prop_flat_map(move |rules| {
            let period = rules.iter().flat_map(Rule::limits).map(full_refill).max().unwrap_or(MINUTE);
            let verbs = prop::collection::vec(verb.clone(), 40);
            (Just(rules), steps(tick, period, 40), verbs)
        });
        self.property(script, |(rules, steps, verbs)| {
            let mut oracle = Oracle::new(&rules, tick);
            let keyed_only = |verb: Verb| {
                verb == Verb::Penalise && rules.iter().any(|rule| rule.key_attributes().is_empty())
            };
            let world = self.world(rules.clone());
            for (step, verb) in steps.iter().zip(verbs).filter(|(_, verb)| !keyed_only(*verb)) {
                world.clock.advance(step.wait);
                let client = CLIENTS[step.client];
                let request = Request::client(client).cost(step.cost);
                let before = oracle.shortfall();
                let expected = oracle.ask(verb, &[("client", client)], step.cost, world.now());
                let decision = match verb {
                    Verb::Check => world.check(request),
                    Verb::Refuse => {
                        run(world.limiter.refuse_all(&[request])).expect("the store refuses").remove(0)
                    }
                    Verb::Refund => {
                        run(world.limiter.refund(request)).expect("the store refunds");
                        world.peek(request)
                    }
                    Verb::Penalise => {
                        run(world.limiter.penalise(request)).expect("the store penalises");
                        world.peek(request)
                    }
                    Verb::Record => {
                        let recorded = run(world.limiter.record(request)).expect("the store records");
                        prop_assert_eq!(recorded.shortfall(), oracle.shortfall() - before);
                        recorded.decision().clone()
                    }
                    Verb::Peek | Verb::Acquire { .. } | Verb::Reserve { .. } => world.peek(request),
                };
                let got: Vec<Expected> = decision.limits().iter().map(expected_of).collect();
                prop_assert_eq!(
                    got,
                    expected,
                    "{:?} of {} by {:?} at {:?}",
                    verb,
                    step.cost,
                    client,
                    world.now()
                );
                let admitted =
                    decision.limits().iter().all(|report| report.shadow || report.outcome.allowed());
                prop_assert_eq!(decision.allowed(), admitted);
                prop_assert_eq!(world.limiter.stats().shortfall, oracle.shortfall());
            }
            Ok(())
        });
    }

    /// C5. Reservations are held, settled for less or more, and expire.
    pub fn c5_reservations_live_in_the_store(&self) {
        for limit in [Limit::fixed_window(10, HOUR), Limit::sliding_log(10, HOUR), Limit::per_hour(10)] {
            let world = self.world([per_client(limit)]);
            let reserve = |cost| {
                run(world.limiter.reserve(Request::client("a").cost(cost), 30 * SECOND, OnExpiry::GiveBack))
                    .expect("valid")
            };
            let left = || world.peek("a").remaining();
            let less = reserve(6);
            assert!(less.decision().allowed());
            assert_eq!(left(), 4);
            assert_eq!(run(less.settle(2)).expect("held").shortfall, 0);
            assert_eq!(left(), 8, "the excess came back");
            assert_eq!(run(reserve(3).settle(5)).expect("held").shortfall, 0);
            assert_eq!(left(), 3, "the shortfall was taken");
            assert_eq!(run(reserve(2).settle(9)).expect("held").shortfall, 0);
            assert_eq!((left(), world.peek("a").owed()), (0, 6), "the rest was recorded");
            assert!(!reserve(1).decision().allowed());
            run(world.limiter.reset("a")).expect("the store resets");
            let late = reserve(7);
            world.clock.advance(30 * SECOND);
            assert_eq!(left(), 10, "expired unsettled: all given back");
            let hold = late.detach().expect("held");
            let settle = || run(world.limiter.settle(hold, Request::client("a").cost(7)));
            assert_eq!(settle().expect("recorded late").shortfall, 0);
            assert_eq!(left(), 3);
            assert_eq!(settle(), Err(Error::NotReserved), "counted once");
            assert_eq!(left(), 3);
            let renewed = reserve(3);
            world.clock.advance(20 * SECOND);
            run(renewed.renew(30 * SECOND)).expect("renewed");
            world.clock.advance(30 * SECOND - self.tick);
            assert_eq!(run(renewed.settle(1)).expect("still held").shortfall, 0);
        }
    }

    /// C5. A block denies everything until it ends or is lifted, under any traffic.
    pub fn c5_blocks_live_in_the_store(&self) {
        let world = self.world([
            Rule::new("global", Limit::per_second(100)),
            per_client(Limit::fixed_window(10, MINUTE)),
        ]);
        let until = world.now().saturating_add(5 * MINUTE);
        run(world.limiter.block("a", until)).expect("the store blocks");
        assert_eq!(world.check("a").retry_after(), Some(5 * MINUTE));
        assert!(world.check("b").allowed(), "others are not blocked");
        world.clock.advance(5 * MINUTE - self.tick);
        assert_eq!(world.check("a").retry_after(), Some(self.tick));
        world.clock.advance(self.tick);
        assert_eq!(world.check("a").remaining(), 9);
        run(world.limiter.block("a", world.now().saturating_add(HOUR))).expect("the store blocks");
        assert!(!world.peek("a").allowed());
        run(world.limiter.block("a", Timestamp::EPOCH)).expect("the store unblocks");
        assert_eq!(world.peek("a").remaining(), 9, "a block takes nothing");
    }
}

pub(super) fn expected_of(report: &tollgate::Report) -> Expected {
    use tollgate::Verdict::{Allowed, Denied, Never};
    let retry_after = match report.outcome.verdict {
        Allowed => Some(Duration::ZERO),
        Denied { retry_after } => Some(retry_after),
        Never => None,
    };
    Expected {
        rule: report.rule.to_string(),
        allowed: report.outcome.allowed(),
        remaining: report.outcome.remaining,
        owed: report.outcome.owed,
        reset_at: report.outcome.reset_at,
        retry_after,
    }
}
