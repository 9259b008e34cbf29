//! The script against the core: the same requests at the same times, equal answers to the unit and the microsecond.

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use common::Redis;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tollgate::{
    Algorithm, Answer, Applied, Bucket, Cause, Charge, Error, Limit, Limits, MemoryStore, Meter, Op, Outcome,
    Override, Request, Rule, RuleSet, SECOND, Store, StoreError, Timestamp, Verdict,
};
use tollgate_redis::{RedisStore, SCRIPT};
use tollgate_testkit::{World, any_limit, run};

fn redis() -> &'static Redis {
    static REDIS: OnceLock<Redis> = OnceLock::new();
    REDIS.get_or_init(|| Redis::start(&[]))
}

/// How many answers were compared.
static COMPARED: AtomicU64 = AtomicU64::new(0);

/// Asks both, and both must say the same.
struct Twin {
    redis: RedisStore,
    memory: MemoryStore,
    /// Whether the clock has gone back: what is then done to a state is done at its own time, which
    /// may lie between two microseconds.
    went_back: Arc<AtomicBool>,
}

/// Whether the states of a limit are written at whole microseconds: those of others have times of
/// their own that lie between two, which shows when the clock goes back.
fn in_micros(limit: &Limit) -> bool {
    let whole = |bucket: Bucket| bucket.interval.as_nanos().is_multiple_of(1_000 * u128::from(bucket.amount));
    match limit.algorithm() {
        Algorithm::TokenBucket(bucket) => whole(bucket),
        Algorithm::Reserve { sustained, reserve } => whole(sustained) && whole(reserve),
        _ => true,
    }
}

/// The same but for a microsecond.
fn is_near(got: &Outcome, expected: &Outcome) -> bool {
    let moments = |outcome: &Outcome| {
        let Outcome { now, verdict, reset_at, grows_at, .. } = *outcome;
        [now.saturating_add(verdict.retry_after().unwrap_or_default()), reset_at, grows_at]
    };
    let mut both = moments(got).into_iter().zip(moments(expected));
    let near = |(one, other): (Timestamp, Timestamp)| one.as_nanos().abs_diff(other.as_nanos()) <= 1_000;
    both.all(near) && (got.allowed(), got.remaining) == (expected.allowed(), expected.remaining)
}

impl Store for Twin {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let got = self.redis.apply(op, charges, now).await?;
        let expected = self.memory.apply(op, charges, now).await?;
        if std::thread::panicking() {
            return Ok(got);
        }
        let what = || format!("{op:?} of {charges:?} at {now:?}");
        assert_eq!(got.now, up(expected.now), "{}", what());
        for (got, expected) in got.answers.iter().zip(&expected.answers) {
            COMPARED.fetch_add(1, Ordering::Relaxed);
            let cause = match expected.cause {
                Cause::Block { until } => Cause::Block { until: up(until) },
                cause => cause,
            };
            let expected = Answer { outcome: coarse(expected.outcome), cause, ..*expected };
            let near = self.went_back.load(Ordering::Relaxed) && is_near(&got.outcome, &expected.outcome);
            let same = *got == if near { Answer { outcome: got.outcome, ..expected } } else { expected };
            assert!(same, "{}: {got:?}, expected {expected:?}", what());
        }
        let rest = |applied: &Applied| (applied.converted, applied.changed);
        assert_eq!(rest(&got), rest(&expected), "{}", what());
        Ok(got)
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        self.redis.accepts(limit)
    }
}

/// A moment as a clock of microseconds sees it.
fn up(at: Timestamp) -> Timestamp {
    Timestamp::from_nanos(at.as_nanos().div_ceil(1_000) * 1_000)
}

/// An outcome as a clock of microseconds sees it: what is promised never comes early.
fn coarse(outcome: Outcome) -> Outcome {
    let now = up(outcome.now);
    let verdict = match outcome.verdict {
        Verdict::Denied { retry_after } => {
            let at = up(outcome.now.saturating_add(retry_after));
            Verdict::Denied { retry_after: at.since(now).max(Duration::from_micros(1)) }
        }
        verdict => verdict,
    };
    Outcome { now, verdict, reset_at: up(outcome.reset_at), grows_at: up(outcome.grows_at), ..outcome }
}

/// Limits with the small numbers of the laws, and some whose numbers are as large as they come.
fn wide_limit() -> impl Strategy<Value = Limit> {
    let large = [
        "1234567/d",
        "999999999999999/d sliding",
        "1000003/d sliding",
        "123456789/36500d fixed aligned",
        "700000000/s",
        "1/365d",
        "5000/36500d sliding",
        "99991 refill 7/d",
        "40 refill 13 every 7us",
        "1000000 refill 999983 every 86399s reserve 12345 refill 17/s",
        "7 refill 7/min reserve 3 refill 1/h",
        "500/7s log",
    ];
    let large: Vec<Limit> = large.iter().map(|notation| notation.parse().unwrap()).collect();
    prop_oneof![3 => any_limit(Duration::from_micros(1)), 1 => prop::sample::select(large)]
}

#[derive(Clone, Debug)]
enum Step {
    Check(u64),
    Peek(u64),
    Refund(u64),
    Penalise(u64),
    Block(Duration),
    Reset,
    Reserve(u64, Duration),
    /// The oldest reservation that is left, at this cost.
    Settle(u64),
    /// The rules from the second list, or back.
    Change,
    /// The clock goes back, by more than a reading may be late.
    Back(Duration),
    /// A check on a path that has budgets of its own.
    Elsewhere(u64),
    /// A check under a limit that comes with it, one of a few.
    Inline(u64, usize),
}

fn any_cost() -> impl Strategy<Value = u64> {
    prop_oneof![6 => Just(1), 1 => Just(0), 4 => 1..12_u64, 1 => 1..1_000_000_000_u64, 1 => Just(tollgate::MAX_COUNT)]
}

fn any_span() -> impl Strategy<Value = Duration> {
    prop_oneof![Just(0), 0..10_u64, 0..2_000_000_u64, 0..100_000_000_u64, 0..200_000_000_000_u64]
        .prop_map(Duration::from_micros)
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => any_cost().prop_map(Step::Check),
        1 => any_cost().prop_map(Step::Peek),
        2 => any_cost().prop_map(Step::Refund),
        2 => any_cost().prop_map(Step::Penalise),
        1 => any_span().prop_map(Step::Block),
        1 => Just(Step::Reset),
        3 => (any_cost(), any_span()).prop_map(|(cost, ttl)| Step::Reserve(cost, ttl)),
        2 => any_cost().prop_map(Step::Settle),
        1 => Just(Step::Change),
        1 => (1_000_001..200_000_000_u64).prop_map(|micros| Step::Back(Duration::from_micros(micros))),
        2 => any_cost().prop_map(Step::Elsewhere),
        4 => (any_cost(), 0..6_usize).prop_map(|(cost, limit)| Step::Inline(cost, limit)),
    ]
}

/// Limits that come with requests: fast and slow, that divide and that do not, and windows.
fn inline_limits() -> [Limit; 6] {
    ["100/h", "1000/s", "7/min", "3/s burst 9", "10/60s fixed", "4/60s fixed"]
        .map(|limit| limit.parse().unwrap())
}

/// Limits that the script's short way knows: it is gone only if all of a request's are.
fn usual_limit() -> impl Strategy<Value = Limit> {
    let period =
        prop_oneof![Just(60_000_000_u64), Just(1_000_000), 1..5_000_u64].prop_map(Duration::from_micros);
    (1..20_u64, 1..15_u64, period, 0..3_u8).prop_map(|(count, amount, period, kind)| match kind {
        0 => Limit::fixed_window(count, period),
        1 => Limit::sliding_window(count, period),
        _ => Limit::token_bucket(count, amount, period),
    })
}

/// One to three rules of one to three limits, keyed or for all, some that only watch, some with a cost of their own; and
/// the same with other limits. (Of a limit that was gone in between, a store may or may not remember something.)
fn any_rules() -> impl Strategy<Value = (Vec<Rule>, Vec<Rule>)> {
    let usual = rules_of(usual_limit().boxed(), 0.0);
    prop_oneof![2 => rules_of(wide_limit().boxed(), 0.2), 1 => usual]
}

fn rules_of(limit: BoxedStrategy<Limit>, shadows: f64) -> impl Strategy<Value = (Vec<Rule>, Vec<Rule>)> {
    let limits = prop::collection::vec((limit.clone(), limit), 1..=3);
    let rule = (limits, prop::bool::weighted(0.7), 1..4_u64, prop::bool::weighted(shadows));
    prop::collection::vec(rule, 1..=3).prop_map(|rules| {
        let build = |(index, limits, keyed, cost, shadow): (usize, Vec<Limit>, bool, u64, bool)| {
            let rule = Rule::new(&format!("rule-{index}"), limits).cost(cost);
            let rule = if keyed { rule.key(["client"]) } else { rule };
            if shadow { rule.shadow() } else { rule }
        };
        let both = rules.into_iter().enumerate().map(|(index, (limits, keyed, cost, shadow))| {
            let (one, other) = limits.into_iter().unzip();
            (build((index, one, keyed, cost, shadow)), build((index, other, keyed, cost, shadow)))
        });
        both.unzip()
    })
}

/// Runs a property. `TOLLGATE_CASES` makes it a campaign.
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

/// What undoes a take gives back to just what it drew on, whatever others have drawn since: calls of the script as a Cluster
/// makes them when another slot denies.
#[test]
fn e3_undoing_a_take_gives_nobody_what_was_not_its_own() {
    let redis = redis();
    let key = format!("undo-{}", common::unique());
    let call = |verb: &str, limit: &str, at: u64, cost: u64, ticket: Option<&str>| -> Vec<String> {
        let key = format!("{{{key}}}:{limit}");
        let (at, cost) = ((1_800_000_000_000_000 + at).to_string(), cost.to_string());
        let mut arguments = vec!["eval", SCRIPT, "1", &key, verb, &at, "60000", limit, &cost, "1"];
        arguments.extend(ticket);
        redis.cli(&arguments).lines().map(str::to_owned).collect()
    };
    let admitted = |answer: &[String]| answer[3] == "0";
    // Two a minute: B, C and D within a minute would be three.
    let log = "l 2 60000000";
    let ticket = call("try", log, 0, 1, None).pop().unwrap();
    assert!(admitted(&call("take", log, 5_000, 1, None)), "B");
    call("undo", log, 10_000, 1, Some(&ticket));
    assert!(admitted(&call("take", log, 20_000, 1, None)), "C");
    assert!(!admitted(&call("take", log, 60_000_000, 1, None)), "D");
    assert!(admitted(&call("take", log, 60_005_000, 1, None)), "and B's has lapsed now");
    // A sliding window, across the edge of its period: what was drawn before it is given back before it.
    let sliding = "s 10 60000000 0";
    let ticket = call("try", sliding, 59_000_000, 4, None).pop().unwrap();
    assert_eq!(call("take", sliding, 60_000_000, 2, None)[4], "4");
    assert_eq!(call("undo", sliding, 60_000_000, 4, Some(&ticket))[4], "8");
    // A window that has opened anew owes nothing to the one before.
    let fixed = "f 10 60000000 0 0";
    let ticket = call("try", fixed, 0, 4, None).pop().unwrap();
    assert_eq!(call("take", fixed, 60_000_000, 3, None)[4], "7");
    assert_eq!(call("undo", fixed, 60_000_000, 4, Some(&ticket))[4], "7");
    // A bucket of one a second: of four, two have come back by themselves.
    let bucket = "b 10 1000000000 1000 0";
    let ticket = call("try", bucket, 0, 4, None).pop().unwrap();
    assert_eq!(call("take", bucket, 2_000_000, 5, None)[4], "3");
    assert_eq!(call("undo", bucket, 2_000_000, 4, Some(&ticket))[4], "5");
    // Two of the sustained bucket and three of its reserve, each to its own.
    let reserve = "r 2 1000000000 1000 0 10 1000000000000 1000 0";
    let ticket = call("try", reserve, 0, 5, None).pop().unwrap();
    assert_eq!(call("take", reserve, 1_000_000, 4, None)[4], "4");
    assert_eq!(call("undo", reserve, 1_000_000, 5, Some(&ticket))[4], "8");
}

/// The clock goes back by more than a second here, or not at all: a reading that merely came late is
/// decided at the newest that the memory store knows of, whoever's that was.
#[test]
fn b10_every_verb_on_every_limit_says_what_the_memory_store_says() {
    let steps = prop::collection::vec((any_step(), any_span(), prop::bool::ANY), 1..120);
    property((any_rules(), steps), |((rules, other), steps)| {
        let went_back = Arc::new(AtomicBool::new(false));
        let memory = MemoryStore::new().log_ceiling(10_000);
        let twin = Twin { redis: redis().store(), memory, went_back: Arc::clone(&went_back) };
        let (first, limits) = (rules[0].clone(), rules[0].limits());
        let elsewhere = |limits: Limits| Override::new("rule-0", limits).matching("path", "/x");
        let with_more = |rules: &[Rule]| {
            let inline = Rule::inline("inline").key(["client"]);
            let rules = RuleSet::new(rules.iter().cloned().chain([inline])).unwrap();
            rules.with_overrides([elsewhere(limits)]).unwrap()
        };
        let world = World::new(twin, [first]);
        world.limiter.set_rules(with_more(&rules)).unwrap();
        let limiter = &world.limiter;
        let inline = inline_limits().map(|limit| limiter.inline(limit).unwrap());
        let (mut newest, mut seen) = (world.now(), BTreeSet::new());
        let mut changed = false;
        let mut reserved = Vec::new();
        for (step, wait, waits) in steps {
            if waits {
                world.clock.advance(wait);
                newest = newest.max(world.now());
            }
            // A reading that merely came late is decided at the newest that the store has seen.
            while let Some(newer) = seen.range(world.now()..=world.now().saturating_add(SECOND)).next_back() {
                if *newer == world.now() {
                    break;
                }
                world.clock.set(*newer);
            }
            seen.insert(world.now());
            let request = |cost: u64| Request::client("a").cost(cost);
            match step {
                Step::Check(cost) => drop(run(limiter.check_async(request(cost)))),
                Step::Peek(cost) => drop(run(limiter.peek(request(cost)))),
                Step::Refund(cost) => drop(run(limiter.refund(request(cost)))),
                Step::Penalise(cost) => drop(run(limiter.penalise(request(cost)))),
                Step::Block(span) if waits => drop(run(limiter.block("a", world.now().saturating_add(span)))),
                Step::Block(span) => drop(run(limiter.block("a", span))),
                Step::Reset => drop(run(limiter.reset("a"))),
                Step::Reserve(cost, ttl) => {
                    if let Ok(reservation) = run(limiter.reserve(request(cost), ttl)) {
                        reserved.push(reservation);
                    }
                }
                Step::Settle(cost) => {
                    if !reserved.is_empty() {
                        let _ = run(reserved.remove(0).settle(cost));
                    }
                }
                Step::Change => {
                    changed = !changed;
                    limiter.set_rules(with_more(if changed { &other } else { &rules })).unwrap();
                }
                Step::Back(span) => {
                    // Of several limits on one key, Redis forgets each for itself when it is idle.
                    let mut all = rules.iter().chain(&other);
                    if !all.all(|rule| rule.limits().len() == 1 && rule.limits().iter().all(in_micros)) {
                        continue;
                    }
                    // No further than idle keys are remembered.
                    let earliest = newest.saturating_sub(Duration::from_secs(240));
                    world.clock.set(world.now().saturating_sub(span).max(earliest));
                    went_back.store(true, Ordering::Relaxed);
                }
                Step::Elsewhere(cost) => {
                    let attributes = [("client", "a"), ("path", "/x")];
                    let _ = run(limiter.check_async(Request::new(&attributes).cost(cost)));
                }
                Step::Inline(cost, which) => {
                    let _ = run(limiter.check_async(request(cost).under("inline", &inline[which])));
                }
            }
        }
        for reservation in reserved {
            reservation.leave();
        }
        Ok(())
    });
    eprintln!("{} answers compared", COMPARED.load(Ordering::Relaxed));
}

#[test]
fn b10_one_limit_at_any_times_says_what_the_core_says() {
    let back = prop_oneof![8 => Just(0), 2 => 0..2_000_000_u64, 1 => 0..100_000_000_u64];
    let step = (any_cost(), any_span(), back, 0..10_u8);
    let steps = prop::collection::vec(step, 1..120);
    property((wide_limit(), steps), |(limit, steps)| {
        let world = World::new(redis().store(), [Rule::new("r", limit).key(["client"])]);
        let (mut meter, mut went_back) = (Meter::new(limit), false);
        for (cost, wait, back, verb) in steps {
            world.clock.advance(wait);
            let back = if in_micros(&limit) { back } else { 0 };
            world.clock.set(world.now().saturating_sub(Duration::from_micros(back)));
            went_back |= back > 1_000_000;
            let (now, request) = (world.now(), Request::client("a").cost(cost));
            let own = meter.peek(now, 0).now;
            if own > now && own.as_nanos() % 1_000 > 0 {
                // A late reading, and a state whose own time is between two microseconds.
                continue;
            }
            match verb {
                0 => {
                    run(world.limiter.refund(request)).unwrap();
                    // A store does nothing to what is idle, and does not keep what has become so.
                    let at = meter.peek(now, 0).now;
                    if !meter.is_idle(at) {
                        meter.give(at, cost);
                        if meter.is_idle(at) {
                            meter = Meter::new(limit);
                        }
                    }
                }
                1 => {
                    let taken = run(world.limiter.penalise(request)).unwrap();
                    // What is idle may have been forgotten.
                    if cost > 0 && meter.is_idle(own) {
                        meter = Meter::new(limit);
                    }
                    prop_assert_eq!(taken, meter.penalise(now, cost));
                }
                _ => {
                    let decision = world.check(request);
                    let (got, expected) = (decision.limits()[0].outcome, coarse(meter.decide(now, cost)));
                    let same = got == expected || went_back && is_near(&got, &expected);
                    prop_assert!(same, "{limit} at {now:?}: {got:?}, expected {expected:?}");
                }
            }
        }
        prop_assert!(world.now() > Timestamp::EPOCH.saturating_add(SECOND));
        Ok(())
    });
}
