//! B10, B11 and C5: outcomes, replaced limits, reservations and blocks.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Error, HOUR, Limit, MINUTE, OnExpiry, Request, Rule, RuleSet, SECOND, Store, Timestamp};

use super::{Laws, counts_denied, full_refill, nanos, per_client};
use crate::oracle::{Expected, Naive, Oracle, Verb, first_time, naive};
use crate::world::{CLIENTS, run};
use crate::{replacements, steps};

/// Longer than any schedule.
const YEAR: Duration = Duration::from_secs(365 * 24 * 60 * 60);

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
                    Verb::Peek | Verb::Acquire { .. } => world.peek(request),
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

    /// B11. Units in use stay in use when a limit is replaced: every outcome, through any number of
    /// replacements, is that of the naive oracle. A peek, a check of cost 0 and a request that
    /// another limit denies convert no state.
    pub fn b11_replacing_a_limit_keeps_history(&self) {
        let tick = self.tick;
        let script = replacements(tick).prop_flat_map(move |limits| {
            let period = limits.iter().map(full_refill).max().unwrap_or(MINUTE);
            let asks = prop::collection::vec((0..limits.len(), 0..5_u8), 30);
            (Just(limits), steps(tick, period, 30), asks)
        });
        self.property(script, |(limits, steps, asks)| {
            prop_assume!(!limits.iter().any(counts_denied));
            // A second limit, which denies every request with a `guard` attribute.
            let rules = |limit: &Limit| {
                [per_client(*limit), Rule::new("guard", Limit::fixed_window(1, YEAR)).key(["guard"])]
            };
            let world = self.world(rules(&limits[0]));
            assert!(world.check(&[("guard", "x")]).allowed());
            let mut stored = (limits[0], naive(&limits[0]));
            for (step, (limit, ask)) in steps.iter().zip(asks) {
                world.clock.advance(step.wait);
                let (now, limit) = (world.now().as_nanos(), &limits[limit]);
                let changed = RuleSet::new(rules(limit)).expect("valid rules");
                world.limiter.set_rules(changed).expect("accepted");
                let view = |stored: &(Limit, Box<dyn Naive>)| stored.1.replaced_by(limit, now);
                let mut converted = if stored.0 == *limit { None } else { Some(view(&stored)) };
                let cell = converted.as_mut().unwrap_or(&mut stored.1);
                let cost = step.cost;
                let fits = cell.fits(now, cost);
                if ask == 4 {
                    // A record is drawn under the limit that wrote the state, and converts nothing.
                    let _ = run(world.limiter.record(Request::client("a").cost(cost)));
                    if cost > 0 && stored.1.in_use(now) == 0 {
                        stored = (*limit, naive(limit));
                    }
                    // A window that nothing is taken from does not open.
                    let recorded = stored.1.recordable(now).min(cost);
                    if recorded > 0 {
                        stored.1.take(now, recorded);
                    }
                    continue;
                }
                let both = [("client", "a"), ("guard", "x")];
                let guarded = ask == 3 && !self.sharded;
                let request = Request::new(if guarded { &both } else { &both[..1] }).cost(cost);
                let decision = if ask == 0 { world.peek(request) } else { world.check(request) };
                let takes = ask != 0 && cost > 0 && fits && decision.allowed();
                if takes {
                    cell.take(now, cost);
                }
                let expected = (cell.available(now), first_time(&**cell, now, nanos(tick), limit.capacity()));
                let outcome = decision.limits()[0].outcome;
                prop_assert_eq!(
                    (outcome.allowed(), outcome.remaining, outcome.owed, outcome.reset_at.as_nanos()),
                    (fits, expected.0, cell.owed(now), expected.1),
                    "{} of {} under {}, written under {}",
                    if ask == 0 { "a peek" } else { "a check" },
                    cost,
                    limit,
                    stored.0
                );
                let denies = ask != 0 && cost > 0 && !fits;
                if let Some(converted) = converted.filter(|_| takes || denies) {
                    stored = (*limit, converted);
                }
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
