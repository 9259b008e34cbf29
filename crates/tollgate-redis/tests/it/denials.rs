//! The cache of denials: Redis is not asked again until a denial could change.

use std::time::Duration;

use crate::common::{Redis, direct, until};
use tollgate::{
    Decision, HOUR, Limit, Limiter, MINUTE, ManualClock, OnExpiry, Request, Rule, RuleSet, SECOND,
    Store as _, Timestamp,
};
use tollgate_redis::RedisStore;
use tollgate_testkit::run;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);
const DEADLINE: Duration = SECOND;

struct World {
    redis: Redis,
    clock: ManualClock,
    limiter: Limiter<RedisStore>,
}

impl World {
    fn new(rules: impl IntoIterator<Item = Rule>) -> Self {
        let redis = Redis::start(&[]);
        let clock = ManualClock::at(START);
        let store = direct(&redis.url()).remember_denials(10 * MINUTE).build().unwrap();
        let rules = RuleSet::new(rules).unwrap();
        let limiter =
            Limiter::builder(rules).store(store).clock(clock.clone()).deadline(DEADLINE).build().unwrap();
        Self { redis, clock, limiter }
    }

    fn check(&self, cost: u64) -> Decision {
        run(self.limiter.check_async(Request::client("a").cost(cost))).unwrap()
    }

    /// Number of scripts that Redis has run.
    fn script_calls(&self) -> u64 {
        let stats = self.redis.cli(&["info", "commandstats"]);
        let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        stats.lines().filter(|line| line.contains("_eval")).filter_map(calls).sum()
    }

    /// Whether `action` asks Redis.
    fn asks(&self, action: impl FnOnce()) -> bool {
        let before = self.script_calls();
        action();
        self.script_calls() > before
    }
}

fn per_client(limit: Limit) -> Rule {
    Rule::new("per-client", limit).key(["client"])
}

#[test]
fn a_hammering_client_costs_redis_nothing_until_it_could_be_admitted() {
    let world = World::new([per_client(Limit::per_minute(2)), Rule::new("global", Limit::per_second(1_000))]);
    (0..2).for_each(|_| assert!(world.check(1).allowed()));
    world.clock.advance(SECOND);
    let denied = world.check(1);
    let wait = denied.verdict().retry_after().unwrap();
    assert_eq!(wait, Duration::from_secs(29));
    let hammered = world.asks(|| {
        for second in 1..29 {
            world.clock.advance(Duration::from_secs(1));
            let again = world.check(1);
            assert!(!again.allowed() && !again.degraded());
            assert_eq!(again.verdict().retry_after(), Some(Duration::from_secs(29 - second)));
            assert_eq!((again.remaining(), again.reset_at()), (0, denied.reset_at()));
        }
        world.clock.advance(Duration::from_nanos(999_999_999));
        assert!(!world.check(1).allowed());
    });
    assert!(!hammered);
    assert_eq!(world.limiter.store().status().remembered_denials, 29);
    world.clock.advance(Duration::from_nanos(1));
    assert!(world.check(1).allowed(), "admitted exactly when the denial expires");
}

#[test]
fn an_operation_of_this_process_on_a_client_invalidates_its_cached_denials() {
    type Act = fn(&World);
    let acts: [(&str, Act); 3] = [
        ("reset", |world| run(world.limiter.reset("a")).unwrap()),
        ("refund", |world| assert_eq!(run(world.limiter.refund("a")).unwrap(), 1)),
        ("limit", |world| {
            let rules = RuleSet::new([per_client(Limit::fixed_window(3, HOUR))]).unwrap();
            world.limiter.set_rules(rules).unwrap();
        }),
    ];
    for (name, act) in acts {
        let world = World::new([per_client(Limit::fixed_window(2, HOUR))]);
        (0..2).for_each(|_| assert!(world.check(1).allowed()));
        (0..2).for_each(|_| assert!(!world.check(1).allowed()));
        act(&world);
        assert!(world.check(1).allowed(), "{name}");
    }
    let world = World::new([per_client(Limit::fixed_window(2, HOUR))]);
    run(world.limiter.block("a", START.saturating_add(HOUR))).unwrap();
    (0..2).for_each(|_| assert!(!world.check(1).allowed()));
    run(world.limiter.block("a", START)).unwrap();
    assert!(world.check(1).allowed(), "the block is lifted");
    let reservation = run(world.limiter.reserve("a", HOUR, OnExpiry::GiveBack)).unwrap();
    (0..2).for_each(|_| assert!(!world.check(1).allowed()));
    assert_eq!(run(reservation.settle(0)).unwrap().shortfall, 0);
    assert!(world.check(1).allowed(), "the reservation is given back");
}

#[test]
fn a_cached_denial_does_not_deny_a_request_of_lower_cost() {
    let world = World::new([per_client(Limit::fixed_window(5, HOUR))]);
    assert!(world.check(2).allowed());
    assert_eq!(world.check(4).remaining(), 3);
    assert!(world.check(1).allowed());
    let again = world.check(4);
    assert_eq!((again.allowed(), again.remaining()), (false, 2), "the admitted request invalidated it");
}

#[test]
fn b2_limits_that_count_denied_attempts_are_not_cached() {
    let world = World::new([per_client("2/h fixed counting denied".parse().unwrap())]);
    (0..2).for_each(|_| assert!(world.check(1).allowed()));
    assert!(!world.check(1).allowed());
    assert!(world.asks(|| assert!(!world.check(1).allowed())));
}

#[test]
fn peeks_and_other_clients_are_not_answered_from_the_cache() {
    let world = World::new([per_client(Limit::fixed_window(1, HOUR))]);
    (0..2).for_each(|_| drop(world.check(1)));
    assert!(world.asks(|| drop(run(world.limiter.peek("a")))));
    assert!(world.asks(|| assert!(run(world.limiter.check_async("b")).unwrap().allowed())));
}

#[test]
fn cached_denials_are_served_while_redis_is_down() {
    let mut world = World::new([per_client(Limit::fixed_window(1, HOUR))]);
    (0..2).for_each(|_| drop(world.check(1)));
    world.redis.kill();
    let cached = world.check(1);
    assert!(!cached.allowed() && !cached.degraded());
    assert!(world.limiter.store().live_keys().is_none());
}

/// Its caller has left, but the call runs to its end.
#[test]
fn a_cancelled_reset_invalidates_cached_denials_too() {
    let world = World::new([per_client(Limit::fixed_window(1, HOUR))]);
    (0..3).for_each(|_| drop(world.check(1)));
    world.redis.signal("-STOP");
    run(async {
        let mut cancelled = std::pin::pin!(world.limiter.reset("a"));
        assert!(futures_util::poll!(cancelled.as_mut()).is_pending());
    });
    assert!(!world.check(1).allowed(), "the denial is true until Redis has reset the client");
    world.redis.signal("-CONT");
    until("the reset has ended", || world.check(1).allowed());
}

/// Redis may have executed a call that it did not answer in time.
#[test]
fn a_reset_without_an_answer_invalidates_cached_denials_too() {
    let world = World::new([per_client(Limit::fixed_window(1, HOUR))]);
    (0..3).for_each(|_| drop(world.check(1)));
    assert_eq!(world.redis.cli(&["client", "pause", "60000", "write"]), "OK");
    run(async {
        let mut reset = std::pin::pin!(world.limiter.reset("a"));
        assert!(futures_util::poll!(reset.as_mut()).is_pending());
        let is_held_back = || world.redis.cli(&["info", "clients"]).contains("blocked_clients:1");
        until("Redis has the reset, and holds it back", is_held_back);
        world.clock.advance(DEADLINE);
        assert!(reset.await.is_err());
    });
    assert_eq!(world.redis.cli(&["client", "unpause"]), "OK");
    // A check on a newer connection may be decided before the reset, so none is sent until then.
    until("Redis has executed the reset", || world.redis.cli(&["keys", "*{a}*"]).is_empty());
    until("Redis is back", || !world.check(0).degraded());
    assert!(world.asks(|| assert!(world.check(1).allowed())), "Redis has executed the reset since");
}

/// The latest answer about the global limit is that to another client.
#[test]
fn d1_the_numbers_of_a_cached_denial_are_those_of_its_now() {
    let world =
        World::new([per_client(Limit::fixed_window(1, HOUR)), Rule::new("global", Limit::per_minute(60))]);
    let numbers = |decision: Decision| -> Vec<_> {
        decision.limits().iter().map(|report| (report.outcome, report.cause)).collect()
    };
    let cached_is_true = || {
        let cached = world.check(1);
        assert_eq!(numbers(cached), numbers(run(world.limiter.peek("a")).unwrap()));
    };
    let other = |client| assert!(run(world.limiter.check_async(client)).unwrap().allowed());
    (0..2).for_each(|_| drop(world.check(1)));
    ["b", "c", "d", "e"].into_iter().for_each(other);
    assert!(!world.asks(|| assert!(!world.check(1).allowed())));
    cached_is_true();
    assert_eq!(run(world.limiter.penalise(Request::new(&[]).only("global").cost(7))).unwrap(), 7);
    assert!(!world.asks(|| assert!(!world.check(1).allowed())));
    cached_is_true();
    for _ in 0..20 {
        world.clock.advance(SECOND - Duration::from_millis(1));
        cached_is_true();
    }
    assert!(!world.asks(|| assert!(!world.check(1).allowed())), "all is back");
}

#[test]
fn c7_what_a_client_in_debt_owes_is_never_answered_from_the_cache() {
    let world = World::new([per_client(Limit::per_minute(60))]);
    run(world.limiter.record(Request::client("a").cost(68))).unwrap();
    for owed in [8, 6, 4] {
        assert_eq!(world.check(1).owed(), owed);
        world.clock.advance(2 * SECOND);
    }
}

#[test]
fn no_denial_is_cached_beyond_the_maximum_age() {
    let world = World::new([per_client(Limit::fixed_window(1, HOUR))]);
    (0..2).for_each(|_| drop(world.check(1)));
    world.clock.advance(10 * MINUTE);
    assert!(world.asks(|| assert!(!world.check(1).allowed())), "another process may have given units back");
}

/// The overflow lends too little, so it denies with its rule: both are asked about again.
#[test]
fn a_denial_of_two_budgets_is_forgotten_when_either_changes() {
    let plan = Rule::new("plan", Limit::fixed_window(2, HOUR)).key(["client"]).overflow("credits");
    let credits = Rule::new("credits", Limit::per_minute(2)).key(["client"]);
    let world = World::new([plan, credits]);
    assert!(world.check(4).allowed());
    assert_eq!(world.check(1).verdict().retry_after(), Some(Duration::from_secs(30)), "the next credit");
    assert!(!world.asks(|| {
        world.clock.advance(Duration::from_secs(29));
        assert!(!world.check(1).allowed());
    }));
    let credit = Request::client("a").only("credits");
    run(world.limiter.refund(credit)).unwrap();
    assert!(world.check(1).allowed(), "a credit was given back");
    assert!(!world.check(1).allowed());
    run(world.limiter.refund(Request::client("a").only("plan"))).unwrap();
    assert!(world.check(1).allowed(), "a unit of the plan was given back");
    assert!(!world.check(1).allowed());
    world.clock.advance(Duration::from_secs(60));
    assert_eq!(world.check(3).remaining(), 2, "more credits are reported, though too few");
}

#[test]
fn c7_a_denied_cost_is_recorded_each_time_and_never_answered_from_the_cache() {
    let rule = || per_client(Limit::fixed_window(10, HOUR));
    let world = World::new([rule()]);
    assert!(!world.check(13).allowed());
    assert!(!world.asks(|| assert!(!world.check(13).allowed())), "cached: nothing is recorded");
    world.limiter.set_rules(RuleSet::new([rule().record_denied()]).unwrap()).unwrap();
    for owed in [3, 10] {
        assert_eq!(world.check(13).owed(), owed);
    }
    assert_eq!(world.limiter.stats().shortfall, 6, "beyond one whole limit of debt");
}
