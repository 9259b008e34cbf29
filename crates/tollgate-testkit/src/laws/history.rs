//! B10, B11 and C5: the same history everywhere, kept through changes.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Error, HOUR, Limit, MINUTE, Request, Rule, RuleSet, SECOND, Store, Timestamp};

use super::{Laws, full_refill, per_client};
use crate::oracle::{Expected, Oracle, Verb};
use crate::world::{CLIENTS, run};
use crate::{any_limit, steps};

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// B10. The same requests at the same times get the outcomes that the naive oracle gives, to
    /// the unit and to the tick.
    pub fn b10_outcomes_are_those_of_the_oracle(&self) {
        let tick = self.tick;
        let verb = prop_oneof![
            8 => Just(Verb::Check),
            1 => Just(Verb::Peek),
            1 => Just(Verb::Refund),
            1 => Just(Verb::Penalise),
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
                let expected = oracle.ask(verb, &[("client", client)], step.cost, world.now());
                let decision = match verb {
                    Verb::Check => world.check(request),
                    Verb::Refund => {
                        run(world.limiter.refund(request)).expect("the store refunds");
                        world.peek(request)
                    }
                    Verb::Penalise => {
                        run(world.limiter.penalise(request)).expect("the store penalises");
                        world.peek(request)
                    }
                    Verb::Peek => world.peek(request),
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
            }
            Ok(())
        });
    }

    /// B11. Under a changed limit, units in use stay in use, unit for unit, as far as the new limit
    /// goes, with no debt.
    pub fn b11_changing_a_limit_keeps_history(&self) {
        let tick = self.tick;
        let script =
            (any_limit(tick), any_limit(tick), any_limit(tick)).prop_flat_map(move |(one, two, three)| {
                (Just([one, two, three]), steps(tick, full_refill(&one), 20))
            });
        self.property(script, |(limits, steps)| {
            let world = self.world([per_client(limits[0])]);
            Self::replay(&world, &steps, |_, _| ());
            let now_is = |limit: &Limit| {
                let rules = RuleSet::new([per_client(*limit)]).expect("a valid rule");
                world.limiter.set_rules(rules).expect("accepted");
            };
            let used = |limit: &Limit| limit.capacity() - world.peek("a").remaining();
            for [before, limit] in [[&limits[0], &limits[1]], [&limits[1], &limits[2]]] {
                let in_use = used(before);
                now_is(limit);
                prop_assert_eq!(used(limit), in_use.min(limit.capacity()), "now {}", limit);
                // Who only asks under a limit does not change under which the state is kept.
                let _ = world.check(Request::client("a").cost(0));
                now_is(before);
                prop_assert_eq!(used(before), in_use, "{} again", before);
                now_is(limit);
                // Now it is written under this one.
                let _ = world.check("a");
            }
            world.clock.advance(full_refill(&limits[2]));
            prop_assert_eq!(world.peek("a").remaining(), limits[2].capacity(), "no debt under {}", limits[2]);
            Ok(())
        });
    }

    /// C5. Reservations: held, settled for less or more, expired.
    pub fn c5_reservations_live_in_the_store(&self) {
        for limit in [Limit::fixed_window(10, HOUR), Limit::sliding_log(10, HOUR), Limit::per_hour(10)] {
            let world = self.world([per_client(limit)]);
            let reserve = |cost| {
                run(world.limiter.reserve(Request::client("a").cost(cost), 30 * SECOND)).expect("valid")
            };
            let left = || world.peek("a").remaining();
            let less = reserve(6);
            assert!(less.decision().allowed());
            assert_eq!(left(), 4);
            assert_eq!(run(less.settle(2)).expect("held").shortfall, 0);
            assert_eq!(left(), 8, "what was not needed came back");
            assert_eq!(run(reserve(3).settle(5)).expect("held").shortfall, 0);
            assert_eq!(left(), 3, "what was lacking was taken");
            assert_eq!(run(reserve(2).settle(9)).expect("held").shortfall, 6);
            assert_eq!(left(), 0, "as far as it went");
            assert!(!reserve(1).decision().allowed());
            run(world.limiter.reset("a")).expect("the store resets");
            let late = reserve(7);
            world.clock.advance(30 * SECOND);
            assert_eq!(left(), 10, "expired unsettled: all given back");
            assert_eq!(run(late.settle(7)), Err(Error::NotReserved));
            assert_eq!(left(), 10);
        }
    }

    /// C5. Blocks deny everything until they end or are lifted, and survive whatever traffic does.
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

fn expected_of(report: &tollgate::Report) -> Expected {
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
        reset_at: report.outcome.reset_at,
        retry_after,
    }
}
