//! C7: what was used is recorded.

use std::time::Duration;

use proptest::prelude::*;
use tollgate::{Decision, Limit, MINUTE, OnExpiry, Report, Request, Reservation, Rule, SECOND, Store};

use super::{Laws, counts_denied, per_client};
use crate::world::{CLIENTS, World, run, runtime};
use crate::{Random, any_limit, steps};

/// The streams of the law below: 10 threads open 100 each, over 10 budgets.
const THREADS: usize = 10;
const STREAMS: usize = 100;
const BUDGETS: [&str; 10] = ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"];

/// How long a stream is reserved for.
const TTL: Duration = Duration::from_secs(30);

/// What the streams of each budget used, and how much of that was beyond their estimates.
type Spent = [(u64, u64); BUDGETS.len()];

/// A step of a budget whose costs are known afterwards.
#[derive(Clone, Copy, Debug)]
enum Spend {
    /// Take a cost, if it fits.
    Check(u64),
    /// Record a cost.
    Record(u64),
    /// Reserve an estimate, and settle it at the actual cost.
    Reserve(u64, u64),
    /// Reserve an estimate, and settle it at the actual cost after it has expired.
    SettleLate(u64, u64),
}

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// C7. At any time the units in use are those that were admitted and recorded, to the unit, and
    /// up to the debt. Nothing is admitted while units are owed, not even a cost of 0.
    pub fn c7_what_was_used_is_recorded_to_the_unit(&self) {
        let spend = prop_oneof![
            3 => (0..5_u64).prop_map(Spend::Check),
            2 => (0..9_u64).prop_map(Spend::Record),
            2 => (1..5_u64, 0..9_u64).prop_map(|(estimate, cost)| Spend::Reserve(estimate, cost)),
            1 => (1..5_u64, 0..9_u64).prop_map(|(estimate, cost)| Spend::SettleLate(estimate, cost)),
        ];
        // Limits of which nothing comes back while the test lasts.
        let long = 50_000 * SECOND;
        let builds = [
            Limit::fixed_window,
            Limit::sliding_window,
            Limit::sliding_log,
            |limit, period| Limit::token_bucket(limit, 1, period),
            |limit, _| Limit::per_year(limit),
        ];
        let limit = (0..builds.len(), 1..20_u64, 0..30_u64)
            .prop_map(move |(build, limit, debt)| builds[build](limit, long).debt(debt));
        let script = (limit, prop::collection::vec(spend, 1..30), any::<bool>());
        self.property(script, |(limit, script, keep)| {
            let world = self.world([per_client(limit)]);
            let on_expiry = if keep { OnExpiry::Keep } else { OnExpiry::GiveBack };
            let request = |cost| Request::client("a").cost(cost);
            let most = limit.capacity() + limit.max_debt();
            let mut used = 0;
            for spend in script {
                let owes = used > limit.capacity();
                match spend {
                    Spend::Check(cost) => {
                        let allowed = world.check(request(cost)).allowed();
                        prop_assert_eq!(allowed, used + cost <= limit.capacity(), "{} of {}", cost, used);
                        used += if allowed { cost } else { 0 };
                    }
                    Spend::Record(cost) => {
                        let recorded = run(world.limiter.record(request(cost))).expect("the store records");
                        prop_assert_eq!(recorded.shortfall(), (used + cost).saturating_sub(most));
                        used = most.min(used + cost);
                    }
                    Spend::Reserve(estimate, cost) | Spend::SettleLate(estimate, cost) => {
                        let ttl = 10 * SECOND;
                        let reservation = run(world.limiter.reserve(request(estimate), ttl, on_expiry));
                        let reservation = reservation.expect("the store reserves");
                        if !reservation.decision().allowed() {
                            prop_assert!(owes || used + estimate > limit.capacity());
                            continue;
                        }
                        if matches!(spend, Spend::SettleLate(..)) {
                            world.clock.advance(ttl);
                        }
                        // An estimate that was kept when it expired stays charged.
                        let is_kept = keep && matches!(spend, Spend::SettleLate(..));
                        let cost = if is_kept { cost.max(estimate) } else { cost };
                        let settled = run(reservation.settle(cost)).expect("held or kept");
                        prop_assert_eq!(settled.shortfall, (used + cost).saturating_sub(most));
                        used = most.min(used + cost);
                    }
                }
                let decision = world.peek(request(0));
                let left = limit.capacity().saturating_sub(used);
                let owed = used.saturating_sub(limit.capacity());
                prop_assert_eq!((decision.remaining(), decision.owed()), (left, owed), "{:?}", spend);
                prop_assert_eq!(decision.allowed(), owed == 0);
            }
            Ok(())
        });
    }

    /// C7. A rule that records denied costs is left as by a check that it denied and a record of
    /// the same cost: on all of its limits and its overflow, and on no other rule. The answer is
    /// that of the next peek.
    pub fn c7_a_denied_cost_is_recorded_in_the_decision(&self) {
        let tick = self.tick;
        let limits = prop::collection::vec(any_limit(tick), 1..=2);
        let script = (limits, prop::option::of(any_limit(tick)), any_limit(tick), 1..3_u64);
        let script = (script, steps(tick, MINUTE, 40));
        self.property(script, |((limits, credits, guard, cost), steps)| {
            prop_assume!(!limits.iter().chain(&credits).chain([&guard]).any(counts_denied));
            let rules = |records: bool| {
                let plan = Rule::new("plan", limits.clone()).key(["client"]).cost(cost);
                let plan = if credits.is_some() { plan.overflow("credits") } else { plan };
                let plan = if records { plan.record_denied() } else { plan };
                let credits = credits.map(|limit| Rule::new("credits", limit).key(["client"]));
                [plan, Rule::new("guard", guard)].into_iter().chain(credits)
            };
            let (recording, plain) = (self.world(rules(true)), self.world(rules(false)));
            for step in &steps {
                recording.clock.advance(step.wait);
                plain.clock.advance(step.wait);
                let request = Request::client(CLIENTS[step.client]).cost(step.cost);
                let (got, decision) = (recording.check(request), plain.check(request));
                prop_assert_eq!(got.allowed(), decision.allowed());
                let denies = |report: &Report| *report.rule == *"plan" && !report.outcome.allowed();
                if decision.limits().iter().any(denies) {
                    run(plain.limiter.record(request.only("plan"))).expect("the store records");
                }
                let expected = plain.peek(request);
                prop_assert_eq!(&recording.peek(request), &expected);
                prop_assert_eq!(recording.limiter.stats().shortfall, plain.limiter.stats().shortfall);
                if !got.allowed() {
                    let outcomes = |decision: &Decision| {
                        decision.limits().iter().map(|it| it.outcome).collect::<Vec<_>>()
                    };
                    prop_assert_eq!(outcomes(&got), outcomes(&expected));
                }
            }
            Ok(())
        });
    }

    /// C7. A thousand concurrent streams reserve estimates, renew them, settle what they used, are
    /// dropped, or are killed and never heard of again. What is in use afterwards is what was used,
    /// to the unit, and exceeds the limits by at most what the settled streams used beyond their
    /// estimates.
    pub fn c7_a_thousand_streams_record_what_they_used(&self) {
        let limit = Limit::fixed_window(1_000, 50_000 * SECOND).debt(100_000);
        let world = self.world([per_client(limit)]);
        let spent: Vec<Spent> = std::thread::scope(|scope| {
            let spend = |thread| {
                scope.spawn({
                    let world = &world;
                    move || streams(world, thread)
                })
            };
            let threads: Vec<_> = (1..).take(THREADS).map(spend).collect();
            threads.into_iter().map(|thread| thread.join().expect("a thread of streams")).collect()
        });
        world.clock.advance(2 * TTL + SECOND);
        // Beyond the limit, whatever the schedule was.
        let last = 2 * limit.capacity();
        run(world.limiter.record(Request::client(BUDGETS[0]).cost(last))).expect("the store records");
        let mut over_limit = 0;
        for (index, client) in BUDGETS.into_iter().enumerate() {
            let sum = |part: fn((u64, u64)) -> u64| spent.iter().map(|spent| part(spent[index])).sum::<u64>();
            let last = if index == 0 { last } else { 0 };
            let (used, beyond) = (sum(|spent| spent.0) + last, sum(|spent| spent.1) + last);
            let decision = world.peek(Request::client(client).cost(0));
            let in_use = limit.capacity() - decision.remaining() + decision.owed();
            assert_eq!(in_use, used, "recorded and used by {client}");
            assert!(decision.owed() <= beyond, "{} owed, {beyond} beyond the estimates", decision.owed());
            over_limit += decision.owed();
        }
        assert!(over_limit > 0, "more was used than the limits");
    }
}

/// The streams of one thread.
fn streams<S: Store>(world: &World<S>, seed: u64) -> Spent {
    // For the stores whose reservations are dropped.
    let _context = runtime().enter();
    let (mut open, mut spent, mut random) = (Vec::new(), Spent::default(), Random(seed));
    let mut below = |bound| random.below(bound);
    for stream in 0..STREAMS {
        let (budget, estimate) = (stream % BUDGETS.len(), 1 + below(60));
        let on_expiry = if below(2) == 0 { OnExpiry::Keep } else { OnExpiry::GiveBack };
        let request = Request::client(BUDGETS[budget]).cost(estimate);
        let reserved = run(world.limiter.reserve(request, TTL, on_expiry)).expect("the store reserves");
        if reserved.decision().allowed() {
            open.push((reserved, budget, estimate, on_expiry));
        }
        if below(2) == 0 && !open.is_empty() {
            let oldest = open.remove(0);
            end(oldest, below(4), below(120), &mut spent);
        }
    }
    for stream in open {
        end(stream, below(4), below(120), &mut spent);
    }
    spent
}

/// Ends a stream: settled, renewed and settled, dropped, or killed.
fn end<S: Store>(
    (stream, budget, estimate, on_expiry): (Reservation<S>, usize, u64, OnExpiry),
    fate: u64,
    actual: u64,
    spent: &mut Spent,
) {
    let (used, beyond) = match fate {
        0 | 1 => {
            if fate == 1 {
                run(stream.renew(TTL)).expect("not expired");
            }
            assert_eq!(run(stream.settle(actual)).expect("held").shortfall, 0);
            (actual, actual.saturating_sub(estimate))
        }
        fate => {
            if fate == 2 {
                drop(stream);
            } else {
                // A process that was killed runs no destructor.
                std::mem::forget(stream);
            }
            (if on_expiry == OnExpiry::Keep { estimate } else { 0 }, 0)
        }
    };
    spent[budget].0 += used;
    spent[budget].1 += beyond;
}
