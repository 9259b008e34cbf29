//! C8: room for what is under way.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{
    Error, Limit, OnExpiry, Overflow, Request, Rule, RuleSet, SECOND, Slot, Store, Timestamp, Verdict,
};

use super::history::expected_of;
use super::{Laws, nanos, per_client};
use crate::any_limit;
use crate::oracle::{Expected, Oracle, Verb};
use crate::world::{CLIENTS, World, run, runtime};

/// A step of requests that are under way for a while.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Acquire a slot for a request of this cost, for this many ticks.
    Acquire(u64, u64),
    Peek(u64),
    /// Renew one of the slots acquired so far, live or not, for this many ticks.
    Renew(usize, u64),
    /// Release one.
    Release(usize),
    /// Replace the number of slots.
    Replace(u64),
}

/// A movement of the clock, in ticks.
#[derive(Clone, Copy, Debug)]
enum Move {
    Ahead(u64),
    Back(u64),
}

/// How long the slots of a misbehaving clock last.
const TTL: Duration = Duration::from_secs(30);

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// C8. Every outcome of slots, with rates beside them in one decision, is that of the naive
    /// oracle: to the slot and to the tick, through expiries, renewals, releases and replaced
    /// limits.
    pub fn c8_outcomes_of_slots_are_those_of_the_oracle(&self) {
        let tick = self.tick;
        let ticks = prop_oneof![0..50_u64, 0..5_000_000_000_u64, 0..4_000_000_000_000_u64]
            .prop_map(move |nanos| 1 + nanos / self::nanos(tick));
        let step = prop_oneof![
            6 => (prop_oneof![4 => Just(1_u64), 1 => Just(0), 2 => 1..5_u64], ticks.clone())
                .prop_map(|(cost, ttl)| Step::Acquire(cost, ttl)),
            1 => (0..3_u64).prop_map(Step::Peek),
            2 => (0..100_usize, ticks.clone()).prop_map(|(which, ttl)| Step::Renew(which, ttl)),
            2 => (0..100_usize).prop_map(Step::Release),
            1 => (1..6_u64).prop_map(Step::Replace),
        ];
        let steps = prop::collection::vec((step, 0..3_usize, prop_oneof![2 => Just(0), 1 => ticks]), 1..40);
        let rules =
            (1..6_u64, 1..8_u64, any_limit(tick), 1..4_u64, prop::bool::weighted(0.25), any::<bool>());
        self.property((rules, steps), |((slots, global, rate, cost, shadow, slots_first), steps)| {
            let rules = |slots| {
                let limits = if slots_first {
                    [Limit::concurrent(slots), rate]
                } else {
                    [rate, Limit::concurrent(slots)]
                };
                let own = Rule::new("own", limits).key(["client"]).cost(cost);
                [if shadow { own.shadow() } else { own }, Rule::new("all", Limit::concurrent(global))]
            };
            let (world, mut oracle) = (self.world(rules(slots)), Oracle::new(&rules(slots), tick));
            let mut held = Vec::new();
            for (number, (step, client, wait)) in (1..).zip(steps) {
                world.clock.advance(Duration::from_nanos(wait * nanos(tick)));
                let (client, now) = (CLIENTS[client], world.now());
                let (attributes, request) = ([("client", client)], Request::client(client));
                let compare = |got: &tollgate::Decision, expected: Vec<Expected>| {
                    let got: Vec<Expected> = got.limits().iter().map(expected_of).collect();
                    prop_assert_eq!(got, expected, "{:?} by {:?} at {:?}", step, client, now);
                    Ok(())
                };
                match step {
                    Step::Acquire(cost, ttl) => {
                        let ttl = Duration::from_nanos(ttl * nanos(tick));
                        let expected =
                            oracle.ask(Verb::Acquire { name: number, ttl }, &attributes, cost, now);
                        let slot = run(world.limiter.acquire(request.cost(cost), ttl)).expect("valid");
                        compare(slot.decision(), expected)?;
                        held.extend(slot.detach().map(|id| (id, number, client)));
                    }
                    Step::Peek(cost) => {
                        let expected = oracle.ask(Verb::Peek, &attributes, cost, now);
                        compare(&world.peek(request.cost(cost)), expected)?;
                    }
                    Step::Renew(which, ttl) if !held.is_empty() => {
                        let (id, name, client) = held[which % held.len()];
                        let ttl = Duration::from_nanos(ttl * nanos(tick));
                        let renewed = run(world.limiter.renew(id, Request::client(client), ttl));
                        let expected = oracle.renew(&[("client", client)], name, ttl, now);
                        prop_assert_eq!(renewed.is_ok(), expected, "{:?}: {:?}", step, renewed);
                    }
                    Step::Release(which) if !held.is_empty() => {
                        let (id, name, client) = held[which % held.len()];
                        let released = run(world.limiter.release(id, Request::client(client)));
                        let expected = oracle.release(&[("client", client)], name, now);
                        prop_assert_eq!(released.is_ok(), expected, "{:?}: {:?}", step, released);
                    }
                    Step::Replace(slots) => {
                        oracle.replace(&rules(slots), now);
                        world
                            .limiter
                            .set_rules(RuleSet::new(rules(slots)).expect("valid"))
                            .expect("accepted");
                    }
                    Step::Renew(..) | Step::Release(_) => {}
                }
            }
            Ok(())
        });
    }

    /// C8. Holders on many threads take slots, renew them, release them, drop them, or are killed.
    /// There are never more of them than the limit, the slots of the killed come back when they
    /// expire, and all others stay.
    pub fn c8_racing_holders_never_exceed_the_limit(&self) {
        const SLOTS: u64 = 5;
        let world = self.world([Rule::new("all", Limit::concurrent(SLOTS))]);
        let (live, killed, granted) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8_u64 {
                let (world, live, killed, granted) = (&world, &live, &killed, &granted);
                scope.spawn(move || {
                    let _context = runtime().enter();
                    for round in 0..40 {
                        let slot = run(world.limiter.acquire("a", TTL)).expect("the store answers");
                        if !slot.decision().allowed() {
                            continue;
                        }
                        granted.fetch_add(1, Ordering::SeqCst);
                        let holders = live.fetch_add(1, Ordering::SeqCst) + 1;
                        assert!(holders <= SLOTS, "{holders} holders of {SLOTS} slots");
                        run(slot.renew()).expect("it is live");
                        if (thread + round) % 40 == 39 && killed.fetch_add(1, Ordering::SeqCst) < 2 {
                            // A process that was killed runs no destructor.
                            std::mem::forget(slot);
                            continue;
                        }
                        live.fetch_sub(1, Ordering::SeqCst);
                        run(slot.release()).expect("it is live");
                    }
                });
            }
        });
        let (live, granted) = (live.into_inner(), granted.into_inner());
        assert!(granted > SLOTS, "slots were used again");
        assert_eq!(world.peek("a").remaining(), SLOTS - live);
        let _context = runtime().enter();
        let slot = run(world.limiter.acquire("a", 2 * TTL)).expect("the store answers");
        assert!(slot.decision().allowed());
        world.clock.advance(TTL);
        assert_eq!(world.peek("a").remaining(), SLOTS - 1, "the killed ones' came back, and no other");
        run(slot.release()).expect("it is live");
    }

    /// C8. A check cannot return the name of a slot and refuses the rule; so do `check_all` and
    /// `wait`. Refunds, penalties and records leave slots alone. A reservation takes a slot until
    /// it is settled, at any cost, or expires.
    pub fn c8_a_verb_without_a_name_takes_no_slot(&self) {
        let world = self.world([
            per_client([Limit::fixed_window(100, 1_000 * SECOND), Limit::concurrent(2)]),
            Rule::new("rate", Limit::fixed_window(10, 1_000 * SECOND)).key(["user"]),
        ]);
        let limiter = &world.limiter;
        let refused = Some(Error::SlotNeeded { rule: "per-client".into() });
        assert_eq!(run(limiter.check_async("a")).err(), refused);
        assert_eq!(run(limiter.check_all(&["a"])).err(), refused);
        assert_eq!(run(limiter.wait("a", SECOND)).err(), refused);
        if let Some(memory) = limiter.in_memory() {
            assert_eq!(memory.check("a").err(), refused);
        }
        assert!(world.check(&[("user", "a")]).allowed(), "a rule without slots");
        let request = Request::client("a").cost(7);
        run(limiter.record(request)).expect("recorded");
        assert_eq!(run(limiter.refund(request)), Ok(7));
        assert_eq!(run(limiter.penalise(request)), Ok(7));
        let left =
            || world.peek("a").limits().iter().map(|report| report.outcome.remaining).collect::<Vec<_>>();
        assert_eq!(left(), [93, 2]);
        let reserve = |cost| {
            let request = Request::client("a").cost(cost);
            run(limiter.reserve(request, TTL, OnExpiry::Keep)).expect("valid")
        };
        let (first, second) = (reserve(5), reserve(6));
        assert_eq!(left(), [82, 0]);
        assert!(!reserve(1).decision().allowed(), "no slot is left");
        assert!(reserve(0).decision().allowed(), "a reservation of 0 takes no slot");
        run(first.settle(9)).expect("held");
        assert_eq!(left(), [78, 1]);
        world.clock.advance(TTL);
        assert_eq!(left(), [78, 2], "the estimate is kept, the slot is not");
        run(second.settle(8)).expect("recorded late");
        assert_eq!(left(), [76, 2]);
        // A rate has replaced the slots: the one that is settled is given back whole all the same.
        let (held, other) = (reserve(3).detach().expect("held"), reserve(1));
        let with = |other| {
            let rule = per_client([Limit::fixed_window(100, 1_000 * SECOND), other]);
            limiter.set_rules(RuleSet::new([rule]).expect("valid")).expect("accepted");
        };
        with(Limit::fixed_window(50, 1_000 * SECOND));
        run(limiter.settle(held, Request::client("a").cost(5))).expect("held");
        with(Limit::concurrent(2));
        assert_eq!(left(), [70, 1], "the other is under way");
        run(other.settle(1)).expect("held");
    }

    /// C8 and C10. An overflow lends units and no slot: the slots of a plan are those of its own
    /// limit, however much the overflow has, and a request without a slot draws on neither budget.
    pub fn c8_an_overflow_lends_no_slot(&self) {
        let step = (0..6_u64, any::<bool>(), 0..20_u64);
        let script = (1..4_u64, 1..20_u64, 1..40_u64, prop::collection::vec(step, 1..40), any::<bool>());
        self.property(script, |(slots, own, lent, steps, slots_first)| {
            // Limits of which nothing comes back while the test lasts.
            let rate = |units| Limit::fixed_window(units, 50_000 * SECOND);
            let mut limits = [rate(own), Limit::concurrent(slots)];
            limits.rotate_left(usize::from(slots_first));
            let world = self.world([
                Rule::new("plan", limits).key(["client"]).overflow("credits"),
                Rule::new("credits", rate(lent)).key(["client"]),
            ]);
            let (mut left, mut lent, mut live) = (own, lent, Vec::new());
            for (cost, releases, wait) in steps {
                world.clock.advance(Duration::from_secs(wait));
                let now = world.now();
                live.retain(|(_, expires_at)| now < *expires_at);
                if releases && !live.is_empty() {
                    let (id, _) = live.remove(0);
                    prop_assert_eq!(run(world.limiter.release(id, "a")), Ok(()));
                }
                let slot = run(world.limiter.acquire(Request::client("a").cost(cost), TTL)).expect("valid");
                let decision = slot.decision().clone();
                let has_slot = live.len() < slots as usize;
                prop_assert_eq!(
                    decision.allowed(),
                    has_slot && cost <= left + lent,
                    "{} of {:?}",
                    cost,
                    live
                );
                if decision.allowed() {
                    let from_plan = cost.min(left);
                    (left, lent) = (left - from_plan, lent - (cost - from_plan));
                }
                if let Some(id) = slot.detach() {
                    live.push((id, now.saturating_add(TTL)));
                }
                let free = slots - live.len() as u64;
                let reports = decision.limits();
                let of_slots = reports.iter().find(|report| report.limit.is_concurrent()).expect("covered");
                prop_assert_eq!((of_slots.outcome.remaining, of_slots.overflow), (free, Overflow::None));
                if let Some((_, first)) = live.first().filter(|_| !has_slot) {
                    let wait = Verdict::Denied { retry_after: first.since(now) };
                    prop_assert_eq!(of_slots.outcome.verdict, wait, "the earliest expiry");
                }
                let units: Vec<u64> = reports
                    .iter()
                    .filter(|report| !report.limit.is_concurrent())
                    .map(|report| report.outcome.remaining)
                    .collect();
                prop_assert_eq!(units, [left, lent], "a denial draws on neither");
            }
            Ok(())
        });
    }

    /// C8 and B7. Over the times that the clock showed there are never more live slots than the
    /// limit, though it goes back by up to their time to live and forward again.
    pub fn c8_a_clock_that_goes_back_frees_no_slot(&self) {
        let (tick, late) = (nanos(self.tick), nanos(SECOND) / nanos(self.tick));
        let step = prop_oneof![
            2 => Just(Move::Ahead(0)),
            3 => (0..40 * late).prop_map(Move::Ahead),
            2 => (0..2 * late).prop_map(Move::Back),
            2 => (0..30 * late).prop_map(Move::Back),
        ];
        let walk = prop::collection::vec((step, any::<bool>()), 1..60);
        self.property((1..4_u64, walk), |(slots, walk)| {
            let world = self.world([per_client(Limit::concurrent(slots))]);
            let (mut newest, mut live) = (world.now().as_nanos(), Vec::<u64>::new());
            for (step, acquires) in walk {
                let to = match step {
                    Move::Ahead(ticks) => world.now().as_nanos() + ticks * tick,
                    Move::Back(ticks) => world.now().as_nanos() - ticks * tick,
                };
                let to = to.max(newest - nanos(TTL));
                newest = newest.max(to);
                world.clock.set(Timestamp::from_nanos(to));
                if !acquires {
                    let _ = world.peek("a");
                    continue;
                }
                let slot = run(world.limiter.acquire("a", TTL)).expect("the store answers");
                let now = slot.decision().now().as_nanos();
                if slot.decision().allowed() {
                    live.push(now);
                    // A slot is over once the clock has shown its expiry.
                    live.retain(|made_at| newest < *made_at + nanos(TTL));
                    prop_assert!(live.len() as u64 <= slots, "{} of {} slots", live.len(), slots);
                }
                slot.detach();
            }
            Ok(())
        });
    }

    /// C8 and B7. A slot lasts as long as was asked, whatever the clock showed when it was made.
    pub fn c8_a_wild_reading_keeps_no_slot(&self) {
        self.property((1..100_000_u64, 1..4_u64), |(ahead_secs, slots)| {
            let world = self.world([per_client(Limit::concurrent(slots))]);
            let (right, acquire) = (world.now(), |world: &World<S>| {
                run(world.limiter.acquire("a", TTL)).expect("the store answers")
            });
            world.clock.advance(TTL + Duration::from_secs(ahead_secs));
            let held: Vec<Slot<S>> = (0..slots).map(|_| acquire(&world)).collect();
            prop_assert!(held.iter().all(|slot| slot.decision().allowed()));
            world.clock.set(right);
            prop_assert_eq!(acquire(&world).decision().retry_after(), Some(TTL));
            world.clock.advance(TTL - self.tick);
            prop_assert!(!acquire(&world).decision().allowed());
            world.clock.advance(self.tick);
            prop_assert_eq!(world.peek("a").remaining(), slots);
            let _context = runtime().enter();
            held.into_iter().for_each(|slot| {
                slot.detach();
            });
            Ok(())
        });
    }
}
