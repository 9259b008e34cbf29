//! The script against the core: for equal requests at equal times, answers that are equal to the
//! unit and the microsecond.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::Redis;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tollgate::{Limits, MemoryStore, Meter, Override, Request, Rule, RuleSet, SECOND, Timestamp};
use tollgate_testkit::{World, run};

mod client;
mod schedules;
mod twin;

use client::Client;
use schedules::{Step, any_cost, any_rules, any_span, any_step, inline_limits, wide_limit};
use twin::{COMPARED, Twin, has_whole_micros, is_near, rounded_outcome};

fn redis() -> &'static Redis {
    static REDIS: OnceLock<Redis> = OnceLock::new();
    REDIS.get_or_init(|| Redis::start(&[]))
}

/// Runs a property, over `TOLLGATE_CASES` cases if that is set.
fn property<T: std::fmt::Debug>(
    strategy: impl Strategy<Value = T>,
    law: impl Fn(T) -> Result<(), TestCaseError>,
) {
    let cases = std::env::var("TOLLGATE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(500);
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    if let Err(broken) = TestRunner::new(config).run(&strategy, law) {
        panic!("{broken}");
    }
}

/// The clock goes back by more than a second, or not at all: the memory store decides a late
/// reading at its newest reading of any key.
#[test]
fn b10_every_verb_on_every_limit_answers_as_the_memory_store_does() {
    let steps = prop::collection::vec((any_step(), any_span(), prop::bool::ANY), 1..120);
    property((any_rules(), steps), |((rules, other), steps)| {
        let went_back = Arc::new(AtomicBool::new(false));
        let memory = MemoryStore::new().log_ceiling(20_000);
        let twin = Twin { redis: redis().store(), memory, went_back: Arc::clone(&went_back) };
        let (first, limits) = (rules[0].clone(), rules[0].limits());
        let on_path = |limits: Limits| Override::new("rule-0", limits).matching("path", "/x");
        let with_more = |rules: &[Rule]| {
            let inline = Rule::inline("inline").key(["client"]);
            let rules = RuleSet::new(rules.iter().cloned().chain([inline])).unwrap();
            rules.with_overrides([on_path(limits)]).unwrap()
        };
        let world = World::new(twin, [Rule::new(&first.name(), first.limits())]);
        world.limiter.set_rules(with_more(&rules)).unwrap();
        let limiter = &world.limiter;
        let inline = inline_limits().map(|limit| limiter.inline(limit).unwrap());
        let mut client = Client::new(limiter, &inline);
        let (mut newest, mut seen, mut changed) = (world.now(), BTreeSet::new(), false);
        for (step, wait, waits) in steps {
            if waits {
                world.clock.advance(wait);
                newest = newest.max(world.now());
            }
            // The store decides a late reading at the newest reading it has seen.
            while let Some(newer) = seen.range(world.now()..=world.now().saturating_add(SECOND)).next_back() {
                if *newer == world.now() {
                    break;
                }
                world.clock.set(*newer);
            }
            seen.insert(world.now());
            match step {
                Step::Change => {
                    changed = !changed;
                    limiter.set_rules(with_more(if changed { &other } else { &rules })).unwrap();
                }
                Step::Back(span) => {
                    // Redis forgets each limit of a key by itself when it is idle.
                    let mut all = rules.iter().chain(&other);
                    if all.all(|rule| rule.limits().len() == 1 && rule.limits().iter().all(has_whole_micros))
                    {
                        // No further back than idle keys are kept.
                        let earliest = newest.saturating_sub(Duration::from_secs(240));
                        world.clock.set(world.now().saturating_sub(span).max(earliest));
                        went_back.store(true, Ordering::Relaxed);
                    }
                }
                Step::Block(span) if waits => drop(run(limiter.block("a", world.now().saturating_add(span)))),
                step => client.take(step),
            }
        }
        Ok(())
    });
    eprintln!("{} answers compared", COMPARED.load(Ordering::Relaxed));
}

#[test]
fn b10_one_limit_at_any_times_answers_as_the_core_does() {
    let back = prop_oneof![8 => Just(0), 2 => 0..2_000_000_u64, 1 => 0..100_000_000_u64];
    let step = (any_cost(), any_span(), back, 0..10_u8);
    let steps = prop::collection::vec(step, 1..120);
    property((wide_limit(), steps), |(limit, steps)| {
        let world = World::new(redis().store(), [Rule::new("r", limit).key(["client"])]);
        let (mut meter, mut went_back) = (Meter::new(limit), false);
        for (cost, wait, back, verb) in steps {
            world.clock.advance(wait);
            let back = if has_whole_micros(&limit) { back } else { 0 };
            world.clock.set(world.now().saturating_sub(Duration::from_micros(back)));
            went_back |= back > 1_000_000;
            let (now, request) = (world.now(), Request::client("a").cost(cost));
            let decided_at = meter.peek(now, 0).now;
            if decided_at > now && decided_at.as_nanos() % 1_000 > 0 {
                // A late reading, and a state written between two microseconds.
                continue;
            }
            match verb {
                0 => {
                    run(world.limiter.refund(request)).unwrap();
                    // A store does not change an idle state, and forgets a state that turns idle.
                    // A cost of 0 changes nothing, nor does it note that a window has lapsed.
                    let at = meter.peek(now, 0).now;
                    if cost > 0 && !meter.is_idle(at) {
                        meter.give(at, cost);
                        if meter.is_idle(at) {
                            meter = Meter::new(limit);
                        }
                    }
                }
                1 => {
                    let taken = run(world.limiter.penalise(request)).unwrap();
                    // An idle state may have been forgotten.
                    if cost > 0 && meter.is_idle(decided_at) {
                        meter = Meter::new(limit);
                    }
                    let expected = if cost > 0 { meter.penalise(now, cost) } else { 0 };
                    prop_assert_eq!(taken, expected);
                }
                2 => {
                    let recorded = run(world.limiter.record(request)).unwrap();
                    if cost > 0 && meter.is_idle(decided_at) {
                        meter = Meter::new(limit);
                    }
                    let drawn = if cost > 0 { meter.record(now, cost) } else { 0 };
                    prop_assert_eq!(recorded.shortfall(), cost - drawn);
                    let (got, expected) =
                        (recorded.decision().limits()[0].outcome, rounded_outcome(meter.peek(now, 0)));
                    let same = got == expected || went_back && is_near(&got, &expected);
                    prop_assert!(same, "{limit} at {now:?}: {got:?}, expected {expected:?}");
                }
                _ => {
                    let decision = world.check(request);
                    let (got, expected) =
                        (decision.limits()[0].outcome, rounded_outcome(meter.decide(now, cost)));
                    let same = got == expected || went_back && is_near(&got, &expected);
                    prop_assert!(same, "{limit} at {now:?}: {got:?}, expected {expected:?}");
                }
            }
        }
        prop_assert!(world.now() > Timestamp::EPOCH.saturating_add(SECOND));
        Ok(())
    });
}
