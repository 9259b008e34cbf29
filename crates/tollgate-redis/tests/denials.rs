//! Denials are remembered until they could change, and Redis is not asked meanwhile.

mod common;

use std::time::Duration;

use common::{Redis, direct};
use tollgate::{
    Decision, HOUR, Limit, Limiter, MINUTE, ManualClock, Request, Rule, RuleSet, Store as _, Timestamp,
};
use tollgate_redis::RedisStore;
use tollgate_testkit::run;

const START: Timestamp = Timestamp::from_secs(1_800_000_000);

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
            Limiter::builder(rules).store(store).clock(clock.clone()).deadline(HOUR).build().unwrap();
        Self { redis, clock, limiter }
    }

    fn check(&self, cost: u64) -> Decision {
        run(self.limiter.check_async(Request::client("a").cost(cost))).unwrap()
    }

    /// How many scripts Redis has run.
    fn asked(&self) -> u64 {
        let stats = self.redis.cli(&["info", "commandstats"]);
        let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        stats.lines().filter(|line| line.contains("_eval")).filter_map(calls).sum()
    }

    /// Whether `what` asks Redis.
    fn asks(&self, what: impl FnOnce()) -> bool {
        let before = self.asked();
        what();
        self.asked() > before
    }
}

fn per_client(limit: Limit) -> Rule {
    Rule::new("per-client", limit).key(["client"])
}

#[test]
fn a_hammering_client_costs_redis_nothing_until_the_moment_it_could_be_admitted() {
    let world = World::new([per_client(Limit::per_minute(2)), Rule::new("global", Limit::per_second(1_000))]);
    (0..2).for_each(|_| assert!(world.check(1).allowed()));
    let denied = world.check(1);
    let wait = denied.verdict().retry_after().unwrap();
    assert_eq!(wait, Duration::from_secs(30));
    let hammered = world.asks(|| {
        for second in 1..30 {
            world.clock.advance(Duration::from_secs(1));
            let again = world.check(1);
            assert!(!again.allowed() && !again.degraded());
            assert_eq!(again.verdict().retry_after(), Some(Duration::from_secs(30 - second)));
            assert_eq!((again.remaining(), again.reset_at()), (0, denied.reset_at()));
        }
        world.clock.advance(Duration::from_nanos(999_999_999));
        assert!(!world.check(1).allowed());
    });
    assert!(!hammered);
    assert_eq!(world.limiter.store().status().remembered_denials, 30);
    world.clock.advance(Duration::from_nanos(1));
    assert!(world.check(1).allowed(), "and then it is admitted, on the dot");
}

#[test]
fn what_this_node_does_to_a_client_ends_what_it_remembers() {
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
    assert!(world.check(1).allowed(), "a block that is lifted");
    let reservation = run(world.limiter.reserve("a", HOUR)).unwrap();
    (0..2).for_each(|_| assert!(!world.check(1).allowed()));
    assert_eq!(run(reservation.settle(0)).unwrap().shortfall, 0);
    assert!(world.check(1).allowed(), "a reservation that is given back");
}

#[test]
fn a_dearer_request_that_was_denied_says_nothing_of_a_cheaper_one() {
    let world = World::new([per_client(Limit::fixed_window(5, HOUR))]);
    assert!(world.check(2).allowed());
    assert_eq!(world.check(4).remaining(), 3);
    assert!(world.check(1).allowed());
    let again = world.check(4);
    assert_eq!((again.allowed(), again.remaining()), (false, 2), "and is asked for again after it");
}

#[test]
fn b2_attempts_that_count_are_always_asked_for() {
    let world = World::new([per_client("2/h fixed counting denied".parse().unwrap())]);
    (0..2).for_each(|_| assert!(world.check(1).allowed()));
    assert!(!world.check(1).allowed());
    assert!(world.asks(|| assert!(!world.check(1).allowed())));
}

#[test]
fn a_peek_is_always_asked_for_and_another_client_too() {
    let world = World::new([per_client(Limit::fixed_window(1, HOUR))]);
    (0..2).for_each(|_| drop(world.check(1)));
    assert!(world.asks(|| drop(run(world.limiter.peek("a")))));
    assert!(world.asks(|| assert!(run(world.limiter.check_async("b")).unwrap().allowed())));
}

#[test]
fn what_is_remembered_is_told_even_while_redis_is_away() {
    let mut world = World::new([per_client(Limit::fixed_window(1, HOUR))]);
    (0..2).for_each(|_| drop(world.check(1)));
    world.redis.kill();
    let known = world.check(1);
    assert!(!known.allowed() && !known.degraded());
    assert!(world.limiter.store().live_keys().is_none());
}

/// Redis may have done what nobody waited for.
#[test]
fn a_reset_that_was_given_up_on_the_way_ends_what_is_remembered_too() {
    let world = World::new([per_client(Limit::fixed_window(1, HOUR))]);
    (0..3).for_each(|_| drop(world.check(1)));
    world.redis.cli(&["client", "pause", "300", "all"]);
    let given_up =
        run(async { tokio::time::timeout(Duration::from_millis(100), world.limiter.reset("a")).await });
    assert!(given_up.is_err(), "Redis was to be slower than that");
    assert!(world.check(1).allowed());
}

#[test]
fn nothing_is_remembered_for_longer_than_was_allowed() {
    let world = World::new([per_client(Limit::fixed_window(1, HOUR))]);
    (0..2).for_each(|_| drop(world.check(1)));
    world.clock.advance(10 * MINUTE);
    assert!(world.asks(|| assert!(!world.check(1).allowed())), "another node may have given something back");
}
