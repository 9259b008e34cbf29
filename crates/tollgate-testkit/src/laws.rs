//! The laws.
//!
//! Each law is a property over random limits and schedules, run against a fresh store for every
//! case. `PROPTEST_CASES` sets the number of cases.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, FileFailurePersistence, TestRunner};
use tollgate::{Limit, MINUTE, Request, Rule, Store, Verdict};

use crate::bound::{Admitted, check_history};
use crate::world::{CLIENTS, World, run, runtime};
use crate::{Step, any_limit, steps};

mod atomicity;
mod calendar;
mod debt;
mod history;
mod islands;
mod overflow;
mod replacing;
mod settling;
mod slots;
mod time;

pub(crate) use atomicity::race;

/// The laws over the stores that `make` returns.
#[derive(Clone, Copy, Debug)]
pub struct Laws<F> {
    make: F,
    tick: Duration,
    cases: u32,
    sharded: bool,
}

/// The default number of cases of a law.
pub(crate) const CASES: u32 = 256;

pub(crate) fn property<T: std::fmt::Debug>(
    cases: u32,
    strategy: impl Strategy<Value = T>,
    law: impl Fn(T) -> Result<(), TestCaseError>,
) {
    let mut config = Config::default();
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = cases;
    }
    config.max_global_rejects = config.cases.saturating_mul(50);
    config.source_file = Some(concat!(env!("CARGO_MANIFEST_DIR"), "/src/laws.rs"));
    config.failure_persistence = Some(Box::new(FileFailurePersistence::SourceParallel("regressions")));
    if let Err(broken) = TestRunner::new(config).run(&strategy, law) {
        panic!("{broken}");
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).expect("a span fits")
}

/// A rule that counts by client.
fn per_client(limits: impl Into<tollgate::Limits>) -> Rule {
    Rule::new("per-client", limits).key(["client"])
}

/// The time after which a limit is whole again from any state, its whole debt included.
fn full_refill(limit: &Limit) -> Duration {
    use tollgate::Algorithm::{CalendarWindow, FixedWindow, Reserve, SlidingLog, SlidingWindow, TokenBucket};
    let refill = |bucket: tollgate::Bucket, debt: u64| {
        let steps = (bucket.capacity + debt).div_ceil(bucket.amount) + u64::from(bucket.stepped);
        bucket.interval * u32::try_from(steps).expect("small numbers")
    };
    match limit.algorithm() {
        FixedWindow { period, .. } | SlidingLog { period, .. } => period,
        CalendarWindow { unit, .. } => unit.longest(),
        SlidingWindow { period, .. } => 2 * period,
        TokenBucket(bucket) => refill(bucket, limit.max_debt()),
        Reserve { sustained, reserve } => refill(sustained, limit.max_debt()).max(refill(reserve, 0)),
        other => unreachable!("an algorithm without a refill: {other:?}"),
    }
}

/// Whether denied attempts count: the laws about free denials do not apply then.
fn counts_denied(limit: &Limit) -> bool {
    limit.counts_denied()
}

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// The laws over the stores that `make` returns, each fresh and empty.
    pub const fn new(make: F) -> Self {
        Self { make, tick: Duration::from_nanos(1), cases: CASES, sharded: false }
    }

    /// The store's resolution in time: limits and schedules use multiples of it.
    #[must_use]
    pub const fn resolution(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Sets the number of random cases of a law, 256 by default. `PROPTEST_CASES` takes precedence.
    #[must_use]
    pub const fn cases(mut self, cases: u32) -> Self {
        self.cases = cases;
        self
    }

    /// Declares a store that decides keys on different servers one after the other: it gives back a
    /// cost that another server's limit denies, but it may have converted a state.
    #[must_use]
    pub const fn sharded(mut self) -> Self {
        self.sharded = true;
        self
    }

    fn property<T: std::fmt::Debug>(
        &self,
        strategy: impl Strategy<Value = T>,
        law: impl Fn(T) -> Result<(), TestCaseError>,
    ) {
        property(self.cases, strategy, law);
    }

    fn world(&self, rules: impl IntoIterator<Item = Rule>) -> World<S> {
        let _context = runtime().enter();
        World::new((self.make)(), rules)
    }

    /// A limit, and a schedule on the scale of its period.
    fn limit_and_steps(&self, max: usize) -> impl Strategy<Value = (Limit, Vec<Step>)> + use<S, F> {
        let tick = self.tick;
        any_limit(tick).prop_flat_map(move |limit| (Just(limit), steps(tick, full_refill(&limit), max)))
    }

    /// One to three rules, keyed or global, with one or two limits each; some are shadow rules,
    /// some record denied costs, some have a unit cost above 1.
    fn any_rules(&self) -> impl Strategy<Value = Vec<Rule>> + use<S, F> {
        let limits = prop::collection::vec(any_limit(self.tick), 1..=2);
        let flags = (any::<bool>(), prop::bool::weighted(0.25), prop::bool::weighted(0.25));
        let rule = (limits, prop_oneof![3 => Just(1_u64), 1 => 2..4_u64], flags);
        prop::collection::vec(rule, 1..=3).prop_map(|rules| {
            type Drawn = (Vec<Limit>, u64, (bool, bool, bool));
            let build = |(index, (limits, cost, (keyed, shadow, records))): (usize, Drawn)| {
                let rule = Rule::new(&format!("rule-{index}"), limits).cost(cost);
                let rule = if keyed { rule.key(["client"]) } else { rule };
                let rule = if records { rule.record_denied() } else { rule };
                if shadow { rule.shadow() } else { rule }
            };
            rules.into_iter().enumerate().map(build).collect()
        })
    }

    /// Replays a schedule and calls `each` with each decision.
    fn replay(world: &World<S>, steps: &[Step], mut each: impl FnMut(&Step, tollgate::Decision)) {
        for step in steps {
            world.clock.advance(step.wait);
            each(step, world.check(Request::client(CLIENTS[step.client]).cost(step.cost)));
        }
    }

    /// B1. No schedule gets more units admitted than the limit's definition allows, in any span.
    pub fn b1_never_too_many(&self) {
        self.property(self.limit_and_steps(60), |(limit, steps)| {
            let world = self.world([per_client(limit)]);
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

    /// B2. A denied client may hammer: every other outcome is the same as if it had not.
    pub fn b2_denial_is_free(&self) {
        self.property(self.limit_and_steps(40), |(limit, steps)| {
            prop_assume!(!counts_denied(&limit));
            let (calm, hammered) = (self.world([per_client(limit)]), self.world([per_client(limit)]));
            for step in &steps {
                calm.clock.advance(step.wait);
                hammered.clock.advance(step.wait);
                let request = Request::client(CLIENTS[step.client]).cost(step.cost);
                let decision = hammered.check(request);
                if decision.allowed() {
                    prop_assert_eq!(&decision, &calm.check(request));
                    continue;
                }
                prop_assert_eq!(&decision, &calm.peek(request), "a denial answers as a peek");
                for _ in 0..3 {
                    prop_assert_eq!(&decision, &hammered.check(request), "and repeats it");
                }
            }
            Ok(())
        });
    }

    /// B3. Exactly `remaining` further requests of cost 1 are admitted at the same instant, under
    /// any rules.
    pub fn b3_remaining_is_true(&self) {
        let tick = self.tick;
        let world = self.any_rules().prop_flat_map(move |rules| (Just(rules), steps(tick, MINUTE, 30)));
        self.property(world, |(rules, steps)| {
            let enforcing = rules.iter().any(|rule| !rule.is_shadow());
            let world = self.world(rules);
            let mut last = None;
            Self::replay(&world, &steps, |step, decision| {
                last = Some((CLIENTS[step.client], decision.remaining()))
            });
            let Some((client, remaining)) = last else { return Ok(()) };
            prop_assume!(enforcing);
            prop_assert_eq!(world.peek(client).remaining(), remaining, "a peek changes nothing");
            for left in (0..remaining).rev() {
                let decision = world.check(client);
                prop_assert!(decision.allowed(), "{} promised, {} short", remaining, left + 1);
                prop_assert_eq!(decision.remaining(), left);
            }
            prop_assert!(!world.check(client).allowed(), "{} promised, one more came", remaining);
            Ok(())
        });
    }

    /// B4. After a denial, a peek is denied one tick before the promised time and admitted at it,
    /// in debt too.
    pub fn b4_retry_after_is_exact(&self) {
        let tick = self.tick;
        let world = self.any_rules().prop_flat_map(move |rules| {
            let recorded = prop_oneof![Just(0), 1..30_u64];
            (Just(rules), steps(tick, MINUTE, 30), 0..30_u64, recorded)
        });
        self.property(world, |(rules, steps, cost, recorded)| {
            let world = self.world(rules);
            Self::replay(&world, &steps, |_, _| ());
            // Drain the budget first, so that most requests are denied, and sometimes let a little
            // refill.
            let left = world.peek("a").remaining().min(1_000);
            let _ = world.check(Request::client("a").cost(left));
            run(world.limiter.record(Request::client("a").cost(recorded))).expect("the store records");
            world.clock.advance(steps[0].wait);
            let request = Request::client("a").cost(cost);
            let decision = world.check(request);
            match decision.verdict() {
                Verdict::Allowed => {}
                Verdict::Never => {
                    let fits = |report: &tollgate::Report| cost * report.unit_cost <= report.limit.capacity();
                    prop_assert!(!decision.limits().iter().filter(|report| !report.shadow).all(fits));
                }
                Verdict::Denied { retry_after } => {
                    let at = decision.now().saturating_add(retry_after);
                    world.clock.set(at.saturating_sub(tick));
                    prop_assert!(!world.peek(request).allowed(), "admitted a tick early, {:?}", retry_after);
                    world.clock.set(at);
                    prop_assert!(
                        world.peek(request).allowed(),
                        "denied at the promised time, {:?}",
                        retry_after
                    );
                }
            }
            Ok(())
        });
    }

    /// B5. Other clients, even ones with similar names, change nothing for a client.
    pub fn b5_keys_are_islands(&self) {
        self.property(self.limit_and_steps(40), |(limit, steps)| {
            let crowd = self.world([per_client(limit)]);
            let alone = CLIENTS.map(|_| self.world([per_client(limit)]));
            for step in &steps {
                crowd.clock.advance(step.wait);
                alone.iter().for_each(|world| world.clock.advance(step.wait));
                let request = Request::client(CLIENTS[step.client]).cost(step.cost);
                prop_assert_eq!(crowd.check(request), alone[step.client].check(request));
            }
            Ok(())
        });
        let world = self.world([Rule::new("pair", Limit::per_minute(1)).key(["x", "y"])]);
        for pair in [[("x", "a"), ("y", "bc")], [("x", "ab"), ("y", "c")], [("x", "a"), ("y", "b")]] {
            assert!(world.check(&pair).allowed(), "{pair:?} is a key of its own");
        }
    }

    /// B6. Forgetting a key as soon as it is idle changes no later outcome.
    pub fn b6_forgetting_is_invisible(&self) {
        self.property(self.limit_and_steps(40), |(limit, steps)| {
            let (keeps, forgets) = (self.world([per_client(limit)]), self.world([per_client(limit)]));
            for step in &steps {
                keeps.clock.advance(step.wait);
                forgets.clock.advance(step.wait);
                let client = CLIENTS[step.client];
                if forgets.peek(client).remaining() == limit.capacity() {
                    run(forgets.limiter.reset(client)).expect("the store resets");
                }
                let request = Request::client(client).cost(step.cost);
                prop_assert_eq!(keeps.check(request), forgets.check(request));
            }
            Ok(())
        });
    }
}
