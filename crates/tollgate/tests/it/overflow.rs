//! A plan that falls back on credits: what the laws of the test kit do not reach.

use std::time::Duration;

use tollgate::{
    Cause, Decision, FailurePolicy, HOUR, Limit, Limiter, MINUTE, ManualClock, MemoryStore, OnExpiry, OnFull,
    Override, Request, Rule, RuleSet, Store, Timestamp, block_on,
};
use tollgate_testkit::{Fault, FaultyStore};

fn plan(limit: Limit) -> Rule {
    Rule::new("plan", limit).key(["client"]).overflow("credits")
}

fn credits(limit: u64) -> Rule {
    Rule::new("credits", Limit::fixed_window(limit, 1000 * HOUR)).key(["client"])
}

fn limiter_on<S: Store>(store: S, rules: RuleSet) -> (Limiter<S>, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    (Limiter::builder(rules).store(store).clock(clock.clone()).build().unwrap(), clock)
}

fn limiter(rules: impl IntoIterator<Item = Rule>) -> (Limiter, ManualClock) {
    limiter_on(MemoryStore::new(), RuleSet::new(rules).unwrap())
}

fn left(decision: &Decision) -> Vec<u64> {
    decision.limits().iter().map(|limit| limit.outcome.remaining).collect()
}

fn drawn(decision: &Decision) -> Vec<u64> {
    decision.limits().iter().filter_map(|limit| limit.overflow.drawn()).collect()
}

fn request(cost: u64) -> Request<'static> {
    Request::client("alice").cost(cost)
}

/// 300 of 1000 are left of the plan, and 800 are asked for.
#[test]
fn c10_the_plan_is_drawn_on_first_and_the_credits_for_the_rest() {
    let (limiter, clock) = limiter([plan(Limit::per_hour(1000)), credits(5000)]);
    assert_eq!(drawn(&limiter.check(request(700)).unwrap()), [700, 0]);
    let decision = limiter.check(request(800)).unwrap();
    assert_eq!((drawn(&decision), left(&decision)), (vec![300, 500], vec![0, 4500]));
    assert_eq!(decision.remaining(), 4500);
    let denied = limiter.check(request(4510)).unwrap();
    assert_eq!((drawn(&denied), denied.remaining()), (vec![0, 0], 4500));
    assert_eq!(
        denied.retry_after(),
        Some(Duration::from_secs(36)),
        "ten tokens of the plan, and all credits"
    );
    assert_eq!(denied.rule().unwrap().as_str(), "plan");
    clock.advance(Duration::from_secs(36));
    assert_eq!(drawn(&limiter.check(request(4510)).unwrap()), [10, 4500]);
    assert_eq!(limiter.check(request(6001)).unwrap().retry_after(), None, "more than both ever have");
    let stats = limiter.stats();
    let of = |name: &str| stats.rules.iter().find(|(rule, _)| *rule.as_str() == *name).unwrap().1;
    assert_eq!((of("plan").allowed, of("plan").denied), (3, 2));
    assert_eq!((of("credits").allowed, of("credits").denied), (2, 0), "counted when they are drawn on");
}

#[test]
fn c10_rules_that_share_an_overflow_are_covered_together() {
    let hour = plan(Limit::fixed_window(10, HOUR));
    let minute = Rule::new("burst", Limit::fixed_window(4, MINUTE)).key(["client"]).overflow("credits");
    let (limiter, _) = limiter([hour, minute, credits(20)]);
    let decision = limiter.check(request(6)).unwrap();
    let summary: Vec<_> = decision
        .limits()
        .iter()
        .map(|limit| (limit.rule.as_str(), limit.overflow.drawn().unwrap(), limit.outcome.remaining))
        .collect();
    assert_eq!(summary, [("plan", 4, 6), ("credits", 2, 18), ("burst", 4, 0), ("credits", 2, 18)]);
    assert_eq!(decision.remaining(), 18);
    for left in (0..18).rev() {
        assert_eq!(limiter.check(request(1)).unwrap().remaining(), left);
    }
    assert!(!limiter.check(request(1)).unwrap().allowed());
}

#[test]
fn c10_credits_can_be_shared_named_and_overridden() {
    let plan = Rule::new("plan", Limit::fixed_window(10, HOUR)).key(["org", "client"]).overflow("credits");
    let shared = Rule::new("credits", Limit::fixed_window(5, HOUR)).key(["org"]);
    let rich = Override::new("credits", Limit::fixed_window(50, HOUR)).matching("org", "rich");
    let rules = RuleSet::new([plan, shared]).unwrap().with_overrides([rich]).unwrap();
    let (limiter, _) = limiter_on(MemoryStore::new(), rules);
    let ask = |org: &'static str, client: &'static str, cost| {
        limiter.check(Request::new(&[("org", org), ("client", client)]).cost(cost)).unwrap()
    };
    assert_eq!(left(&ask("acme", "alice", 12)), [0, 3]);
    assert_eq!(left(&ask("acme", "bob", 13)), [0, 0], "one budget of credits");
    assert!(!ask("acme", "carol", 11).allowed());
    assert_eq!(left(&ask("rich", "dave", 60)), [0, 0]);
    let named = limiter.check(Request::new(&[("org", "other")]).only("credits").cost(2)).unwrap();
    assert_eq!((left(&named), drawn(&named)), (vec![3], vec![]), "a rule like any other");
    let together = [
        Request::new(&[("org", "o"), ("client", "a")]).cost(12),
        Request::new(&[("org", "o")]).only("credits").cost(3),
    ];
    let both = block_on(limiter.check_all(&together)).unwrap();
    assert_eq!(left(both.whole()), [0, 2], "charged once, with the larger cost");
}

#[test]
fn c10_a_refund_goes_to_the_budget_that_was_drawn_on_last() {
    let (limiter, _) = limiter([plan(Limit::fixed_window(10, HOUR)), credits(10)]);
    let refund = |request: Request<'_>| block_on(limiter.refund(request)).unwrap();
    let now = || left(&block_on(limiter.peek(request(0))).unwrap());
    assert!(limiter.check(request(15)).unwrap().allowed());
    assert_eq!((refund(request(7)), now()), (7, vec![2, 10]), "five credits, then two of the plan");
    assert!(limiter.check(request(5)).unwrap().allowed());
    assert_eq!((refund(request(1)), now()), (1, vec![0, 8]));
    assert!(limiter.check(Request::client("alice").only("credits").cost(3)).unwrap().allowed());
    assert_eq!((refund(request(4).only("plan")), now()), (4, vec![4, 5]), "the rule that is named");
    assert_eq!((refund(request(7)), now()), (7, vec![10, 6]), "the plan has units left, so it is first");
    assert_eq!((refund(request(9)), now()), (4, vec![10, 10]), "never beyond the limits");
}

#[test]
fn c10_a_reservation_holds_both_parts_and_a_dropped_one_gives_them_back() {
    let (limiter, clock) = limiter([plan(Limit::fixed_window(10, HOUR)), credits(10)]);
    let now = || left(&block_on(limiter.peek(request(0))).unwrap());
    let reserve = |cost| block_on(limiter.reserve(request(cost), MINUTE, OnExpiry::GiveBack)).unwrap();
    let held = reserve(14);
    assert_eq!((drawn(held.decision()), now()), (vec![10, 4], vec![0, 6]));
    drop(held);
    assert_eq!(now(), [10, 10]);
    let held = reserve(14);
    let from_credits = reserve(3);
    block_on(from_credits.renew(HOUR)).unwrap();
    clock.advance(2 * MINUTE);
    assert_eq!(now(), [10, 7], "one has expired, and one was renewed");
    drop(held);
    // All of it was reserved of the credits, and what is beyond is recorded at the plan first.
    assert_eq!(block_on(from_credits.settle(15)).unwrap().shortfall, 0);
    assert_eq!(now(), [0, 5]);
    let hold = reserve(5).detach().unwrap();
    block_on(limiter.settle(hold, request(1))).unwrap();
    assert_eq!(now(), [0, 4]);
    assert!(block_on(limiter.settle(hold, request(9))).is_err(), "counted once");
    assert_eq!(now(), [0, 4]);
    assert!(block_on(limiter.wait(request(4), MINUTE)).unwrap().allowed());
    assert_eq!(now(), [0, 0]);
}

#[test]
fn e4_an_overflow_follows_the_failure_policy_of_the_rule_that_draws_on_it() {
    for (policy, allowed) in [
        (FailurePolicy::Open, [true, true, true]),
        (FailurePolicy::Closed, [false, false, false]),
        // Three tenths of ten and of twenty, in this process.
        (FailurePolicy::Local, [true, true, false]),
    ] {
        let rules = [plan(Limit::fixed_window(10, HOUR)).on_store_error(policy), credits(20)];
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let builder =
            Limiter::builder(RuleSet::new(rules).unwrap()).store(FaultyStore::new(MemoryStore::new()));
        let limiter = builder.clock(clock).local_share(0.3).build().unwrap();
        limiter.store().set(Fault::Fail);
        let decided = [5, 4, 1].map(|cost| block_on(limiter.check_async(request(cost))).unwrap());
        assert!(decided.iter().all(Decision::degraded));
        assert_eq!(decided.each_ref().map(Decision::allowed), allowed, "{policy:?}");
        if policy == FailurePolicy::Local {
            assert_eq!((drawn(&decided[0]), drawn(&decided[1])), (vec![3, 2], vec![0, 4]));
        }
    }
}

/// The plan's keys are known. Room for the credits of a client is needed only when it draws on
/// them.
#[test]
fn e1_in_a_full_table_an_overflow_without_room_lends_nothing() {
    let rules = || RuleSet::new([plan(Limit::fixed_window(10, HOUR)), credits(10)]).unwrap();
    let (limiter, _) = limiter_on(MemoryStore::new().max_keys(1), rules());
    assert!(limiter.check(request(4)).unwrap().allowed());
    assert_eq!(limiter.store().memory_stats().live, 1, "no credits were drawn");
    let decision = limiter.check(request(5)).unwrap();
    assert_eq!((decision.allowed(), decision.remaining()), (true, 1), "what the plan has");
    let denied = limiter.check(request(2)).unwrap();
    assert_eq!((denied.allowed(), denied.cause()), (false, Cause::Limit));
    assert!(!limiter.check("bob").unwrap().allowed());
    assert_eq!(limiter.store().memory_stats().refused, 1, "only the new client");
    let recorded = block_on(limiter.record(request(3))).unwrap();
    assert_eq!((recorded.decision().owed(), recorded.shortfall()), (2, 0), "owed by the plan");
    assert_eq!(limiter.store().memory_stats().live, 1);
    let (pooled, _) = limiter_on(MemoryStore::new().max_keys(1).on_full(OnFull::Pool), rules());
    assert!(pooled.check(request(4)).unwrap().allowed());
    assert_eq!(drawn(&pooled.check(request(8)).unwrap()), [6, 2], "on the pool of all new credits");
}

#[test]
fn b7_a_plan_from_a_wild_reading_is_repaired_although_credits_cover_the_request() {
    let (limiter, clock) = limiter([plan(Limit::fixed_window(10, HOUR)), credits(100)]);
    let now = Timestamp::from_secs(1_000_000);
    clock.set(Timestamp::from_secs(9_000_000));
    assert_eq!(drawn(&limiter.check(request(1)).unwrap()), [1, 0]);
    clock.set(now);
    assert_eq!(drawn(&limiter.check(request(1)).unwrap()), [0, 1], "the plan counts as empty");
    clock.advance(HOUR);
    assert_eq!(drawn(&limiter.check(request(1)).unwrap()), [1, 0], "for one period at most");
}
