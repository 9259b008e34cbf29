//! C10: what a rule's budget does not have is drawn on its overflow.

use proptest::prelude::*;
use tollgate::{HOUR, Limit, OnExpiry, Request, Rule, SECOND, Store, Verdict};

use super::history::expected_of;
use super::{Laws, counts_denied, full_refill, race};
use crate::bound::{Admitted, check_history};
use crate::oracle::{Pair, Verb};
use crate::world::{World, run};
use crate::{any_limit, steps};

/// The client of a schedule.
const CLIENT: &str = "a";

/// A plan that overflows into credits.
fn pair(plan: &[Limit], credits: &[Limit], unit_cost: u64) -> [Rule; 2] {
    let plan = Rule::new("plan", plan.to_vec()).key(["client"]).cost(unit_cost).overflow("credits");
    [plan, Rule::new("credits", credits.to_vec()).key(["client"])]
}

/// A step of two budgets whose costs are known afterwards.
#[derive(Clone, Copy, Debug)]
enum Spend {
    Check(u64),
    Record(u64),
    Reserve { estimate: u64, cost: u64, is_late: bool },
}

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    fn any_pair(&self) -> impl Strategy<Value = (Vec<Limit>, Vec<Limit>, u64)> + use<S, F> {
        let limits = || prop::collection::vec(any_limit(self.tick), 1..=2);
        (limits(), limits(), prop_oneof![3 => Just(1_u64), 1 => 2..4_u64])
    }

    /// C10. Every outcome of both budgets is that of the naive oracle, to the unit and to the tick:
    /// what is drawn on each, what is left, and when both together cover the cost.
    pub fn c10_an_overflow_covers_what_the_plan_lacks(&self) {
        let tick = self.tick;
        let verb = prop_oneof![
            8 => Just(Verb::Check),
            1 => Just(Verb::Peek),
            1 => Just(Verb::Refund),
            2 => Just(Verb::Record),
        ];
        let script = self.any_pair().prop_flat_map(move |(plan, credits, unit_cost)| {
            let period = plan.iter().chain(&credits).map(full_refill).max().unwrap_or(SECOND);
            let costs = prop::collection::vec(prop_oneof![3 => 0..5_u64, 1 => 0..45_u64], 40);
            let verbs = prop::collection::vec(verb.clone(), 40);
            (Just((plan, credits, unit_cost)), steps(tick, period, 40), verbs, costs)
        });
        self.property(script, |((plan, credits, unit_cost), steps, verbs, costs)| {
            let mut oracle = Pair::new(&plan, &credits, unit_cost, tick);
            let world = self.world(pair(&plan, &credits, unit_cost));
            for ((step, verb), cost) in steps.iter().zip(verbs).zip(costs) {
                world.clock.advance(step.wait);
                let request = Request::client(CLIENT).cost(cost);
                let expected = oracle.ask(verb, cost, world.now());
                let decision = match verb {
                    Verb::Check => world.check(request),
                    Verb::Peek => world.peek(request),
                    Verb::Record => {
                        run(world.limiter.record(request)).expect("the store records").decision().clone()
                    }
                    _ => {
                        run(world.limiter.refund(request)).expect("the store refunds");
                        world.peek(request)
                    }
                };
                let got: Vec<_> = decision
                    .limits()
                    .iter()
                    .map(|report| {
                        let drawn =
                            if verb == Verb::Refund { 0 } else { report.overflow.drawn().expect("both") };
                        (expected_of(report), drawn)
                    })
                    .collect();
                prop_assert_eq!(got, expected, "{:?} of {} at {:?}", verb, cost, world.now());
            }
            Ok(())
        });
    }

    /// C10. B1 to B4 hold for the two budgets: neither admits more than its own limits, a denial
    /// draws on neither, both together admit exactly what is left, and they cover a denied cost
    /// exactly at the promised time.
    pub fn c10_the_laws_hold_for_both_budgets_together(&self) {
        let tick = self.tick;
        let script = self.any_pair().prop_flat_map(move |(plan, credits, unit_cost)| {
            let period = plan.iter().chain(&credits).map(full_refill).max().unwrap_or(SECOND);
            (Just((plan, credits, unit_cost)), steps(tick, period, 40), 0..45_u64)
        });
        self.property(script, |((plan, credits, unit_cost), steps, cost)| {
            prop_assume!(!plan.iter().chain(&credits).any(counts_denied));
            let world = self.world(pair(&plan, &credits, unit_cost));
            let mut admitted: Vec<Admitted> = vec![Admitted::new(); plan.len() + credits.len()];
            for step in &steps {
                world.clock.advance(step.wait);
                let request = Request::client(CLIENT).cost(step.cost);
                let (peeked, decision) = (world.peek(request), world.check(request));
                prop_assert_eq!(peeked.verdict(), decision.verdict());
                if !decision.allowed() {
                    prop_assert_eq!(&decision, &peeked, "a denial answers as a peek");
                    prop_assert_eq!(&decision, &world.check(request), "and repeats it");
                }
                for (report, history) in decision.limits().iter().zip(&mut admitted) {
                    history.push((decision.now(), report.overflow.drawn().expect("both")));
                }
            }
            for (limit, history) in plan.iter().chain(&credits).zip(&admitted) {
                check_history(limit, history).map_err(TestCaseError::fail)?;
            }
            self.retry_of_both_is_exact(&world, cost)?;
            let remaining = world.peek(CLIENT).remaining();
            for left in (0..remaining).rev() {
                let decision = world.check(CLIENT);
                prop_assert!(decision.allowed(), "{} promised, {} short", remaining, left + 1);
                prop_assert_eq!(decision.remaining(), left);
            }
            prop_assert!(!world.check(CLIENT).allowed(), "{} promised, one more came", remaining);
            Ok(())
        });
    }

    fn retry_of_both_is_exact(&self, world: &World<S>, cost: u64) -> Result<(), TestCaseError> {
        let request = Request::client(CLIENT).cost(cost);
        let decision = world.peek(request);
        if let Verdict::Denied { retry_after } = decision.verdict() {
            let at = decision.now().saturating_add(retry_after);
            world.clock.set(at.saturating_sub(self.tick));
            prop_assert!(!world.peek(request).allowed(), "admitted a tick early, {:?}", retry_after);
            world.clock.set(at);
            prop_assert!(world.peek(request).allowed(), "denied at the promised time, {:?}", retry_after);
        }
        Ok(())
    }

    /// C10. What was used is recorded to the unit: by the plan, then by the credits, and what both
    /// lack is owed by the plan. A settlement gives back credits first.
    pub fn c10_what_was_used_is_recorded_by_both_budgets(&self) {
        let spend = prop_oneof![
            3 => (0..9_u64).prop_map(Spend::Check),
            2 => (0..19_u64).prop_map(Spend::Record),
            3 => (1..9_u64, 0..19_u64, any::<bool>())
                .prop_map(|(estimate, cost, is_late)| Spend::Reserve { estimate, cost, is_late }),
        ];
        // Limits of which nothing comes back while the test lasts.
        let long = 50_000 * SECOND;
        let limit = || {
            let builds = [Limit::fixed_window, Limit::sliding_log, |limit, period| {
                Limit::token_bucket(limit, 1, period)
            }];
            (0..builds.len(), 1..20_u64, 0..30_u64)
                .prop_map(move |(build, limit, debt)| builds[build](limit, long).debt(debt))
        };
        let script = (limit(), limit(), prop::collection::vec(spend, 1..30), any::<bool>());
        self.property(script, |(plan, credits, script, keep)| {
            let world = self.world(pair(&[plan], &[credits], 1));
            let on_expiry = if keep { OnExpiry::Keep } else { OnExpiry::GiveBack };
            let request = |cost| Request::client(CLIENT).cost(cost);
            let (mut of_plan, mut of_credits) = (0, 0);
            let record = |(of_plan, of_credits): (&mut u64, &mut u64), cost: u64| {
                let from_plan = cost.min(plan.capacity().saturating_sub(*of_plan));
                let from_credits = (cost - from_plan).min(credits.capacity() - *of_credits);
                let most = plan.capacity() + plan.max_debt() - *of_plan;
                let recorded = (cost - from_credits).min(most);
                (*of_plan, *of_credits) = (*of_plan + recorded, *of_credits + from_credits);
                cost - from_credits - recorded
            };
            for spend in script {
                match spend {
                    Spend::Check(cost) => {
                        if world.check(request(cost)).allowed() {
                            let shortfall = record((&mut of_plan, &mut of_credits), cost);
                            prop_assert_eq!(shortfall, 0);
                        }
                    }
                    Spend::Record(cost) => {
                        let recorded = run(world.limiter.record(request(cost))).expect("the store records");
                        let shortfall = record((&mut of_plan, &mut of_credits), cost);
                        prop_assert_eq!(recorded.shortfall(), shortfall);
                    }
                    Spend::Reserve { estimate, cost, is_late } => {
                        let ttl = 10 * SECOND;
                        let reservation = run(world.limiter.reserve(request(estimate), ttl, on_expiry));
                        let reservation = reservation.expect("the store reserves");
                        if !reservation.decision().allowed() {
                            continue;
                        }
                        let before = (of_plan, of_credits);
                        record((&mut of_plan, &mut of_credits), estimate);
                        if is_late {
                            world.clock.advance(ttl);
                        }
                        let settled = run(reservation.settle(cost)).expect("held or kept");
                        let shortfall = match cost.checked_sub(estimate) {
                            // Given back at the expiry, and recorded now.
                            _ if is_late && !keep => {
                                (of_plan, of_credits) = before;
                                record((&mut of_plan, &mut of_credits), cost)
                            }
                            Some(more) => record((&mut of_plan, &mut of_credits), more),
                            // An estimate that was kept when it expired stays charged.
                            None if is_late => 0,
                            None => {
                                let back = estimate - cost;
                                let credits_back = back.min(of_credits - before.1);
                                of_credits -= credits_back;
                                of_plan -= back - credits_back;
                                0
                            }
                        };
                        prop_assert_eq!(settled.shortfall, shortfall);
                    }
                }
                let decision = world.peek(request(0));
                let limits = decision.limits();
                let in_use = |index: usize| {
                    let report = limits[index];
                    report.limit.capacity() - report.outcome.remaining + report.outcome.owed
                };
                prop_assert_eq!((in_use(0), in_use(1)), (of_plan, of_credits), "{:?}", spend);
                let lent = credits.capacity() - of_credits;
                prop_assert_eq!(decision.allowed(), of_plan <= plan.capacity() || lent > 0);
            }
            Ok(())
        });
    }

    /// C10. An overflow is all or nothing with every other limit, and threads that race get exactly
    /// what both budgets have. An administrative verb reaches the overflow only by name.
    pub fn c10_an_overflow_is_atomic(&self) {
        let guard = Rule::new("guard", Limit::fixed_window(1, HOUR)).key(["guard"]);
        let limits = [Limit::fixed_window(10, HOUR), Limit::fixed_window(50, HOUR)];
        let world = self.world(pair(&limits[..1], &limits[1..], 1).into_iter().chain([guard]));
        let guarded = [("client", CLIENT), ("guard", "x")];
        assert!(world.check(Request::new(&guarded).cost(1)).allowed());
        let denied = world.check(Request::new(&guarded).cost(20));
        assert_eq!(denied.rule().map(|rule| rule.as_str()), Some("guard"));
        let left =
            || world.peek(CLIENT).limits().iter().map(|limit| limit.outcome.remaining).collect::<Vec<_>>();
        assert_eq!(left(), [9, 50], "a denial draws on neither");
        assert!(world.check(Request::client(CLIENT).cost(20)).allowed());
        assert_eq!(left(), [0, 39]);
        run(world.limiter.reset(CLIENT)).expect("the store resets");
        assert_eq!(left(), [10, 39], "the plan alone");
        run(world.limiter.reset(Request::client(CLIENT).only("credits"))).expect("the store resets");
        assert_eq!(left(), [10, 50]);
        run(world.limiter.block(CLIENT, 5 * SECOND)).expect("the store blocks");
        let blocked = world.peek(CLIENT);
        assert_eq!(
            (blocked.remaining(), blocked.retry_after()),
            (0, Some(5 * SECOND)),
            "in spite of credits"
        );
        world.clock.advance(5 * SECOND);
        let plan = [Limit::fixed_window(60, HOUR), Limit::sliding_log(40, HOUR)];
        let world = self.world(pair(&plan, &[Limit::fixed_window(60, HOUR)], 1));
        assert_eq!(race(&world.limiter, 100), 100);
    }
}
