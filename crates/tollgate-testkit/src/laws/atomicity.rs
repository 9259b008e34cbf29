//! B8 and B9: atomicity over several limits and several threads.

use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{HOUR, Limit, Limiter, MINUTE, Report, Request, Rule, RuleSet, Store, SystemClock};

use super::{Laws, counts_denied, per_client};
use crate::steps;
use crate::world::{CLIENTS, World, run, runtime};

const THREADS: usize = 8;

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// B8. If one limit denies, no limit is charged, except those of a rule that records what it
    /// denied itself; if none does, each is charged its rule's cost.
    pub fn b8_all_or_nothing(&self) {
        let tick = self.tick;
        let world = self.any_rules().prop_flat_map(move |rules| (Just(rules), steps(tick, MINUTE, 40)));
        self.property(world, |(rules, steps)| {
            prop_assume!(!rules.iter().flat_map(Rule::limits).any(counts_denied));
            let world = self.world(rules.clone());
            for step in &steps {
                world.clock.advance(step.wait);
                let request = Request::client(CLIENTS[step.client]).cost(step.cost);
                let (before, after) = (world.peek(request), world.check(request));
                prop_assert_eq!(before.allowed(), after.allowed());
                for (was, is) in before.limits().iter().zip(after.limits()) {
                    let taken = was.outcome.remaining - is.outcome.remaining;
                    let same_rule = |report: &&Report| report.rule == was.rule;
                    let rule_admits =
                        before.limits().iter().filter(same_rule).all(|report| report.outcome.allowed());
                    let charged = after.allowed() && (!was.shadow || rule_admits);
                    let records = rules.iter().any(|rule| rule.name() == was.rule && rule.records_denied());
                    let recorded = !after.allowed() && records && !was.shadow && !rule_admits;
                    let cost = match step.cost * was.unit_cost {
                        cost if charged => cost,
                        cost if recorded => cost.min(was.outcome.remaining),
                        _ => 0,
                    };
                    prop_assert_eq!(taken, cost, "from {} of {}", was.limit, was.rule);
                }
            }
            Ok(())
        });
    }

    /// B8. A key that occurs twice in one request is charged once, with the larger cost, and
    /// against the smaller of two inline limits.
    pub fn b8_the_same_key_twice_is_charged_once(&self) {
        let inline = Rule::inline("inline").key(["client"]);
        let world = self.world([per_client(Limit::fixed_window(10, MINUTE)), inline]);
        let twice = [Request::client("a").cost(3), Request::client("a").cost(4)];
        let together = run(world.limiter.check_all(&twice)).expect("valid requests");
        assert!(together.whole().allowed());
        assert_eq!(together.whole().remaining(), 6, "charged four, the larger cost, once");
        let limits = [50, 5].map(|limit| {
            world.limiter.inline(Limit::fixed_window(limit, HOUR)).expect("the store keeps windows")
        });
        let under = |limit, cost| Request::client("a").under("inline", limit).cost(cost);
        let both = [under(&limits[0], 2), under(&limits[1], 3)];
        let together = run(world.limiter.check_all(&both)).expect("valid requests");
        assert_eq!(
            (together.whole().limit(), together.whole().remaining()),
            (5, 2),
            "charged once, against the smaller limit"
        );
        let denied = run(world.limiter.check_all(&both)).expect("valid requests");
        assert!(!denied.whole().allowed());
    }

    /// B8. Requests that name the same keys in opposite orders do not deadlock.
    pub fn b8_opposite_orders_do_not_deadlock(&self) {
        let limit = Limit::fixed_window(1_000_000, HOUR);
        let keys: Vec<String> = (0..6).map(|key| format!("key-{key}")).collect();
        let rules = |order: &mut dyn Iterator<Item = &String>| -> Vec<Rule> {
            order.map(|key| Rule::new(key, limit).key(["client"])).collect()
        };
        let store = {
            let _context = runtime().enter();
            std::sync::Arc::new((self.make)())
        };
        let forth = World::new(store.clone(), rules(&mut keys.iter()));
        let back = World::new(store, rules(&mut keys.iter().rev()));
        let rounds = 300;
        thread::scope(|scope| {
            for world in [&forth, &back, &forth, &back] {
                scope.spawn(move || (0..rounds).for_each(|_| assert!(world.check("a").allowed())));
            }
        });
        assert_eq!(forth.peek("a").remaining(), 1_000_000 - 4 * rounds);
    }

    /// B9. Threads that race for `limit` units get exactly `limit`, for every algorithm.
    pub fn b9_racing_threads_admit_exactly_the_limit(&self) {
        let limit = 100;
        for kind in [Limit::fixed_window, Limit::sliding_window, Limit::sliding_log, Limit::per] {
            let world = self.world([per_client([kind(limit, HOUR), Limit::fixed_window(limit * 2, HOUR)])]);
            assert_eq!(race(&world.limiter, limit), limit, "{}", kind(limit, HOUR));
            assert_eq!(world.peek("a").limits()[1].outcome.remaining, limit, "denials took nothing");
        }
    }

    /// B9. Threads that race with readings of a real clock, which reach the store out of order, get
    /// exactly the limit.
    pub fn b9_readings_out_of_order_admit_exactly_the_limit(&self) {
        let limit = 200;
        for kind in [Limit::fixed_window, Limit::sliding_window, Limit::sliding_log, Limit::per] {
            let store = {
                let _context = runtime().enter();
                (self.make)()
            };
            let rules = RuleSet::new([per_client(kind(limit, 365 * 24 * HOUR))]).expect("a valid rule");
            let builder =
                Limiter::builder(rules).store(store).clock(SystemClock).deadline(Duration::from_secs(3600));
            assert_eq!(
                race(&builder.build().expect("a valid limiter"), limit),
                limit,
                "{}",
                kind(limit, HOUR)
            );
        }
    }
}

/// Sends twice `limit` requests from several threads, and returns how many were admitted.
pub(crate) fn race<S: Store>(limiter: &Limiter<S>, limit: u64) -> u64 {
    let (admitted, start) = (AtomicU64::new(0), Barrier::new(THREADS));
    let attempts = usize::try_from(limit).expect("a small number") * 2 / THREADS;
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                for _ in 0..attempts {
                    let decision = run(limiter.check_async("a")).expect("a valid request");
                    admitted.fetch_add(u64::from(decision.allowed()), Ordering::SeqCst);
                }
            });
        }
    });
    admitted.into_inner()
}
