//! The script against the core: for equal requests at equal times, answers that are equal to the
//! unit and the microsecond.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::common::Redis;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use tollgate::{
    Algorithm, Answer, Applied, Bucket, CalendarUnit, Cause, Charge, Error, Limit, Limits, MemoryStore,
    Meter, OnExpiry, Op, Outcome, Override, Request, Rule, RuleSet, SECOND, Store, StoreError, Timestamp,
    Verdict, Zone,
};
use tollgate_redis::RedisStore;
use tollgate_testkit::{World, any_limit, run};

fn redis() -> &'static Redis {
    static REDIS: OnceLock<Redis> = OnceLock::new();
    REDIS.get_or_init(|| Redis::start(&[]))
}

/// Number of answers compared.
static COMPARED: AtomicU64 = AtomicU64::new(0);

/// A store on Redis and one in memory. Their answers must be equal.
struct Twin {
    redis: RedisStore,
    memory: MemoryStore,
    /// Whether the clock has gone back. A state is then changed at the time when it was written,
    /// which may lie between two microseconds.
    went_back: Arc<AtomicBool>,
}

/// Whether the times in a limit's states are whole microseconds. Other times lie between two
/// microseconds, which shows when the clock goes back.
fn has_whole_micros(limit: &Limit) -> bool {
    let whole = |bucket: Bucket| bucket.interval.as_nanos().is_multiple_of(1_000 * u128::from(bucket.amount));
    match limit.algorithm() {
        Algorithm::TokenBucket(bucket) => whole(bucket),
        Algorithm::Reserve { sustained, reserve } => whole(sustained) && whole(reserve),
        _ => true,
    }
}

/// Whether two outcomes are equal but for a microsecond.
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
        let call = || format!("{op:?} of {charges:?} at {now:?}");
        assert_eq!(got.now, rounded_up(expected.now), "{}", call());
        for (got, expected) in got.answers.iter().zip(&expected.answers) {
            COMPARED.fetch_add(1, Ordering::Relaxed);
            let cause = match expected.cause {
                Cause::Block { until } => Cause::Block { until: rounded_up(until) },
                cause => cause,
            };
            let expected = Answer { outcome: rounded_outcome(expected.outcome), cause, ..*expected };
            let near = self.went_back.load(Ordering::Relaxed) && is_near(&got.outcome, &expected.outcome);
            let same = *got == if near { Answer { outcome: got.outcome, ..expected } } else { expected };
            assert!(same, "{}: {got:?}, expected {expected:?}", call());
        }
        let rest = |applied: &Applied| (applied.converted, applied.changed);
        assert_eq!(rest(&got), rest(&expected), "{}", call());
        Ok(got)
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        self.redis.accepts(limit)
    }
}

/// A time, rounded up to microseconds.
fn rounded_up(at: Timestamp) -> Timestamp {
    Timestamp::from_nanos(at.as_nanos().div_ceil(1_000) * 1_000)
}

/// An outcome with its times rounded up to microseconds: no promised time is early.
fn rounded_outcome(outcome: Outcome) -> Outcome {
    let now = rounded_up(outcome.now);
    let verdict = match outcome.verdict {
        Verdict::Denied { retry_after } => {
            let at = rounded_up(outcome.now.saturating_add(retry_after));
            Verdict::Denied { retry_after: at.since(now).max(Duration::from_micros(1)) }
        }
        verdict => verdict,
    };
    Outcome {
        now,
        verdict,
        reset_at: rounded_up(outcome.reset_at),
        grows_at: rounded_up(outcome.grows_at),
        ..outcome
    }
}

/// Limits with the small numbers of the laws, and some with the largest numbers allowed.
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
        "99991 refill 7/d debt 200000",
        "1000003/d sliding debt 5",
        "700000000/s debt 0",
        "1000/month",
        "5/week at Europe/Berlin debt 2",
        "3/year at Asia/Tokyo counting denied",
        "999999999999999/month at Pacific/Apia",
        "7 refill 7/min reserve 3 refill 1/h debt 1",
    ];
    let large: Vec<Limit> = large.iter().map(|notation| notation.parse().unwrap()).collect();
    prop_oneof![3 => any_limit(Duration::from_micros(1)), 1 => prop::sample::select(large)]
}

#[derive(Clone, Debug)]
enum Step {
    Check(u64),
    /// Checks a request that something else denied.
    Refuse(u64),
    Peek(u64),
    Refund(u64),
    Penalise(u64),
    Record(u64),
    Block(Duration),
    Reset,
    Reserve(u64, Duration, OnExpiry),
    /// Acquires a slot of every limit on concurrency.
    Acquire(u64, Duration),
    /// Renews the oldest open reservation and the oldest slot.
    Renew(Duration),
    /// Releases the oldest slot.
    Release,
    /// Settles the oldest open reservation at this cost.
    Settle(u64),
    /// Reserves nothing.
    ReserveNothing(Duration),
    /// Settles one of the reservations of nothing so far at this cost, perhaps again or too late.
    SettleNothing(u64, usize),
    /// Renews one of the reservations of nothing so far.
    RenewNothing(Duration, usize),
    /// Switches to the other list of rules.
    Change,
    /// Sets the clock back, by more than a reading may be late.
    Back(Duration),
    /// Checks a path that an override gives a budget.
    Overridden(u64),
    /// Checks under the inline limit of this index.
    Inline(u64, usize),
    /// Checks the credits by themselves.
    Credits(u64),
    /// Blocks the credits.
    BlockCredits(Duration),
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
        1 => any_cost().prop_map(Step::Refuse),
        1 => any_cost().prop_map(Step::Peek),
        2 => any_cost().prop_map(Step::Refund),
        2 => any_cost().prop_map(Step::Penalise),
        1 => any_span().prop_map(Step::Block),
        1 => Just(Step::Reset),
        3 => any_cost().prop_map(Step::Record),
        3 => (any_cost(), any_span(), any::<bool>()).prop_map(|(cost, ttl, keep)| {
            Step::Reserve(cost, ttl, if keep { OnExpiry::Keep } else { OnExpiry::GiveBack })
        }),
        6 => (any_cost(), any_span()).prop_map(|(cost, ttl)| Step::Acquire(cost, ttl)),
        1 => any_span().prop_map(Step::Renew),
        2 => Just(Step::Release),
        2 => any_cost().prop_map(Step::Settle),
        3 => any_span().prop_map(Step::ReserveNothing),
        5 => (any_cost(), 0..4_usize).prop_map(|(cost, index)| Step::SettleNothing(cost, index)),
        2 => (any_span(), 0..4_usize).prop_map(|(ttl, index)| Step::RenewNothing(ttl, index)),
        1 => Just(Step::Change),
        1 => (1_000_001..200_000_000_u64).prop_map(|micros| Step::Back(Duration::from_micros(micros))),
        2 => any_cost().prop_map(Step::Overridden),
        4 => (any_cost(), 0..6_usize).prop_map(|(cost, limit)| Step::Inline(cost, limit)),
        1 => any_cost().prop_map(Step::Credits),
        1 => any_span().prop_map(Step::BlockCredits),
    ]
}

/// Inline limits: buckets with fast and slow refill, with whole and fractional nanoseconds per
/// token, and windows.
fn inline_limits() -> [Limit; 6] {
    ["100/h", "1000/s", "7/min", "3/s burst 9", "10/60s fixed", "4/60s fixed"]
        .map(|limit| limit.parse().unwrap())
}

/// Limits that the script's fast path decides. It needs all limits of a request to be such.
fn ordinary_limit() -> impl Strategy<Value = Limit> {
    let period =
        prop_oneof![Just(60_000_000_u64), Just(1_000_000), 1..5_000_u64].prop_map(Duration::from_micros);
    (1..20_u64, 1..15_u64, period, 0..4_u8).prop_map(|(count, amount, period, kind)| match kind {
        0 => Limit::fixed_window(count, period),
        3 => Limit::per_calendar(count, CalendarUnit::Hour, Zone::UTC),
        1 => Limit::sliding_window(count, period),
        _ => Limit::token_bucket(count, amount, period),
    })
}

/// One to three rules of one to three limits, keyed or global, some of them shadow rules, some of
/// which record denied costs, with different costs; and the same rules with other limits. The
/// number of limits stays the same, because a store may or may not forget a limit that is absent
/// for a while.
fn any_rules() -> impl Strategy<Value = (Vec<Rule>, Vec<Rule>)> {
    let ordinary = rules_of(ordinary_limit().boxed(), 0.0);
    let slots = (1..5_u64).prop_map(Limit::concurrent);
    let slots = rules_of(prop_oneof![2 => slots, 1 => wide_limit()].boxed(), 0.2);
    let rules = prop_oneof![2 => rules_of(wide_limit().boxed(), 0.2), 1 => ordinary, 1 => slots];
    let credits = prop::collection::vec((wide_limit(), wide_limit()), 0..=2);
    (rules, credits, any::<bool>()).prop_map(|((one, other), credits, is_keyed)| {
        let (mut limits, mut others): (Vec<Limit>, Vec<Limit>) = credits.into_iter().unzip();
        // Larger limits are refused together with an overflow.
        let is_large = |limit: &Limit| limit.capacity() + limit.max_debt() > 1 << 50;
        let mut all =
            one.iter().chain(&other).flat_map(|rule| rule.limits().iter().copied().collect::<Vec<_>>());
        if all.any(|limit| is_large(&limit)) || limits.iter().chain(&others).any(is_large) {
            (limits, others) = (Vec::new(), Vec::new());
        }
        (with_credits(one, limits, is_keyed), with_credits(other, others, is_keyed))
    })
}

/// The rules, and one rule that as many of them overflow into as can: those that enforce at the
/// cost of the first.
fn with_credits(mut rules: Vec<Rule>, limits: Vec<Limit>, is_keyed: bool) -> Vec<Rule> {
    let cost = rules[0].unit_cost();
    for rule in rules.iter_mut().filter(|_| !limits.is_empty()) {
        let has_key = !is_keyed || !rule.key_attributes().is_empty();
        if has_key && rule.unit_cost() == cost && !rule.is_shadow() {
            *rule = rule.clone().overflow("credits");
        }
    }
    let credits = Rule::new("credits", limits).key(is_keyed.then_some("client"));
    let has_credits = rules.iter().any(|rule| rule.overflow_rule().is_some());
    rules.into_iter().chain(has_credits.then_some(credits)).collect()
}

fn rules_of(limit: BoxedStrategy<Limit>, shadows: f64) -> impl Strategy<Value = (Vec<Rule>, Vec<Rule>)> {
    let limits = prop::collection::vec((limit.clone(), limit), 1..=3);
    let flags = (prop::bool::weighted(0.7), prop::bool::weighted(shadows), prop::bool::weighted(0.3));
    let rule = (limits, 1..4_u64, flags);
    prop::collection::vec(rule, 1..=3).prop_map(|rules| {
        let build = |index: usize, limits: Vec<Limit>, cost: u64, (keyed, shadow, records)| {
            let rule = Rule::new(&format!("rule-{index}"), limits).cost(cost);
            let rule = if keyed { rule.key(["client"]) } else { rule };
            let rule = if records { rule.record_denied() } else { rule };
            if shadow { rule.shadow() } else { rule }
        };
        let both = rules.into_iter().enumerate().map(|(index, (limits, cost, flags))| {
            let (one, other) = limits.into_iter().unzip();
            (build(index, one, cost, flags), build(index, other, cost, flags))
        });
        both.unzip()
    })
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
        let (mut newest, mut seen) = (world.now(), BTreeSet::new());
        let mut changed = false;
        let (mut reserved, mut held, mut nothing) = (Vec::new(), Vec::new(), Vec::new());
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
            let request = |cost: u64| Request::client("a").cost(cost);
            match step {
                Step::Check(cost) => drop(run(limiter.check_async(request(cost)))),
                Step::Refuse(cost) => drop(run(limiter.refuse_all(&[request(cost)]))),
                Step::Peek(cost) => drop(run(limiter.peek(request(cost)))),
                Step::Refund(cost) => drop(run(limiter.refund(request(cost)))),
                Step::Penalise(cost) => drop(run(limiter.penalise(request(cost)))),
                Step::Record(cost) => drop(run(limiter.record(request(cost)))),
                Step::Block(span) if waits => drop(run(limiter.block("a", world.now().saturating_add(span)))),
                Step::Block(span) => drop(run(limiter.block("a", span))),
                Step::Reset => drop(run(limiter.reset("a"))),
                Step::Reserve(cost, ttl, on_expiry) => {
                    if let Ok(reservation) = run(limiter.reserve(request(cost), ttl, on_expiry)) {
                        reserved.push(reservation);
                    }
                }
                Step::Acquire(cost, ttl) => {
                    held.extend(run(limiter.acquire(request(cost), ttl)).unwrap().detach());
                }
                Step::Release => {
                    if !held.is_empty() {
                        let _ = run(limiter.release(held.remove(0), "a"));
                    }
                }
                Step::Renew(ttl) => {
                    if let Some(slot) = held.first() {
                        let _ = run(limiter.renew(*slot, "a", ttl));
                    }
                    if let Some(reservation) = reserved.first() {
                        let _ = run(reservation.renew(ttl));
                    }
                }
                Step::Settle(cost) => {
                    if !reserved.is_empty() {
                        let _ = run(reserved.remove(0).settle(cost));
                    }
                }
                Step::ReserveNothing(ttl) => {
                    let reserved = run(limiter.reserve(request(0), ttl, OnExpiry::Keep)).unwrap();
                    nothing.extend(reserved.detach());
                }
                Step::SettleNothing(cost, index) => {
                    if let Some(hold) = nothing.iter().rev().nth(index) {
                        let _ = run(limiter.settle(*hold, request(cost)));
                    }
                }
                Step::RenewNothing(ttl, index) => {
                    if let Some(hold) = nothing.iter().rev().nth(index) {
                        let _ = run(limiter.renew(*hold, request(1), ttl));
                    }
                }
                Step::Change => {
                    changed = !changed;
                    limiter.set_rules(with_more(if changed { &other } else { &rules })).unwrap();
                }
                Step::Back(span) => {
                    // Redis forgets each limit of a key by itself when it is idle.
                    let mut all = rules.iter().chain(&other);
                    if !all.all(|rule| rule.limits().len() == 1 && rule.limits().iter().all(has_whole_micros))
                    {
                        continue;
                    }
                    // No further back than idle keys are kept.
                    let earliest = newest.saturating_sub(Duration::from_secs(240));
                    world.clock.set(world.now().saturating_sub(span).max(earliest));
                    went_back.store(true, Ordering::Relaxed);
                }
                Step::Overridden(cost) => {
                    let attributes = [("client", "a"), ("path", "/x")];
                    let _ = run(limiter.check_async(Request::new(&attributes).cost(cost)));
                }
                Step::Credits(cost) => drop(run(limiter.check_async(request(cost).only("credits")))),
                Step::BlockCredits(span) => {
                    drop(run(limiter.block(Request::client("a").only("credits"), span)))
                }
                Step::Inline(cost, index) => {
                    let _ = run(limiter.check_async(request(cost).under("inline", &inline[index])));
                }
            }
        }
        for reservation in reserved {
            reservation.detach();
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
                    // An idle state may have been forgotten.
                    if cost > 0 && meter.is_idle(decided_at) {
                        meter = Meter::new(limit);
                    }
                    prop_assert_eq!(taken, meter.penalise(now, cost));
                }
                2 => {
                    let recorded = run(world.limiter.record(request)).unwrap();
                    if cost > 0 && meter.is_idle(decided_at) {
                        meter = Meter::new(limit);
                    }
                    prop_assert_eq!(recorded.shortfall(), cost - meter.record(now, cost));
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
