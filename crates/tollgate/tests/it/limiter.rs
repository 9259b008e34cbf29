//! C and G: composition of rules, and statistics.

use tollgate::{
    Cause, Counts, Error, Limit, Limiter, MAX_COUNT, MINUTE, ManualClock, OnExpiry, Override, Request, Rule,
    RuleSet, SECOND, Timestamp, Verdict, block_on,
};

fn limiter(rules: impl IntoIterator<Item = Rule>) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let rules = RuleSet::new(rules).unwrap();
    (Limiter::builder(rules).clock(clock.clone()).build().unwrap(), clock)
}

fn per_client(limit: Limit) -> Rule {
    Rule::new("per-client", limit).key(["client"])
}

#[test]
fn c1_two_limits_on_one_key_both_apply() {
    let limits = [Limit::per_second(10), Limit::fixed_window(15, MINUTE)];
    let (limiter, clock) = limiter([Rule::new("r", limits).key(["client"])]);
    let admitted = || (0..100).filter(|_| limiter.check("a").unwrap().allowed()).count();
    assert_eq!(admitted(), 10, "a spike");
    clock.advance(SECOND);
    assert_eq!(admitted(), 5, "sustained load");
    clock.advance(SECOND);
    assert_eq!(admitted(), 0);
}

#[test]
fn c3_a_global_cap_and_a_client_cap_both_apply() {
    let (limiter, _) = limiter([
        Rule::new("global", Limit::fixed_window(10, MINUTE)),
        per_client(Limit::fixed_window(6, MINUTE)),
    ]);
    let admitted = |client| (0..100).filter(|_| limiter.check(client).unwrap().allowed()).count();
    assert_eq!(admitted("greedy"), 6, "one client cannot take it all");
    assert_eq!(admitted("other"), 4, "and together they cannot exceed the global cap");
    let denied = limiter.check("third").unwrap();
    assert_eq!(denied.rule().unwrap().as_str(), "global");
    assert_eq!(denied.limits()[1].outcome.remaining, 6, "the third client's budget is whole");
}

#[test]
fn c2_a_rule_charges_its_unit_cost_and_a_shadow_rule_never_denies() {
    let (limiter, _) = limiter([
        Rule::new("heavy", Limit::fixed_window(10, MINUTE)).cost(5),
        Rule::new("watch", Limit::fixed_window(1, MINUTE)).shadow(),
    ]);
    let first = limiter.check("a").unwrap();
    assert_eq!((first.allowed(), first.remaining()), (true, 1), "ten units, five a request");
    let second = limiter.check("a").unwrap();
    assert!(second.allowed() && !second.limits()[1].outcome.allowed(), "reported, never denies");
    assert!(!limiter.check("a").unwrap().allowed());
    assert_eq!(limiter.check(Request::client("a").cost(3)).unwrap().verdict(), Verdict::Never);
}

/// A model's service: requests are counted for all clients together, tokens for each.
fn requests_and_tokens() -> Limiter {
    let requests = Rule::new("requests", Limit::fixed_window(5, MINUTE));
    let tokens = Rule::new("tokens", Limit::fixed_window(1_000, MINUTE)).key(["client"]);
    limiter([requests, tokens]).0
}

fn remaining(decision: &tollgate::Decision) -> Vec<u64> {
    decision.limits().iter().map(|limit| limit.outcome.remaining).collect()
}

#[test]
fn c2_a_rule_named_in_a_requests_costs_charges_that_cost_in_every_verb() {
    let limiter = requests_and_tokens();
    let tokens = |cost| [("tokens", cost)];
    let (hundred, none) = (tokens(100), tokens(0));
    let request = Request::client("a").costs(&hundred);
    assert_eq!(remaining(&limiter.check(request).unwrap()), [4, 900]);
    assert_eq!(remaining(&block_on(limiter.check_async(request.cost(2))).unwrap()), [2, 800]);
    assert_eq!(remaining(&block_on(limiter.peek(request)).unwrap()), [2, 800]);
    limiter.check_many(&[request.cost(0), request.costs(&none).cost(0), request.costs(&[])], |decision| {
        assert!(decision.unwrap().allowed());
    });
    assert_eq!(remaining(&block_on(limiter.peek("a")).unwrap()), [1, 699], "100, none and 1");
    let refunded = block_on(limiter.refund(request)).unwrap();
    assert_eq!((refunded, remaining(&block_on(limiter.peek("a")).unwrap())), (100, vec![2, 799]));
    let all = block_on(limiter.check_all(&[request, Request::client("b").costs(&hundred)])).unwrap();
    assert_eq!(remaining(all.whole()), [1, 699, 900], "the shared budget is charged once");
    assert!(block_on(limiter.wait(request, MINUTE)).unwrap().allowed());
    assert_eq!(remaining(&block_on(limiter.peek("a")).unwrap()), [0, 599]);
}

#[test]
fn c2_a_cost_of_a_rule_is_multiplied_by_the_rules_unit_cost() {
    let (limiter, _) = limiter([Rule::new("heavy", Limit::fixed_window(100, MINUTE)).cost(5)]);
    let decision = limiter.check(Request::client("a").costs(&[("heavy", 3)])).unwrap();
    assert_eq!(remaining(&decision), [85]);
}

#[test]
fn b8_costs_of_rules_are_taken_all_or_not_at_all() {
    let limiter = requests_and_tokens();
    let check = |cost, tokens| limiter.check(Request::client("a").cost(cost).costs(&[("tokens", tokens)]));
    assert!(check(1, 600).unwrap().allowed());
    let denied = check(1, 401).unwrap();
    assert_eq!((denied.allowed(), denied.rule().unwrap().as_str()), (false, "tokens"));
    assert_eq!(denied.retry_after(), Some(MINUTE));
    assert_eq!(check(0, 1_001).unwrap().verdict(), Verdict::Never);
    let denied = check(5, 400).unwrap();
    assert_eq!((denied.allowed(), denied.rule().unwrap().as_str()), (false, "requests"));
    assert_eq!(remaining(&check(4, 400).unwrap()), [0, 0], "the denied ones took nothing");
}

#[test]
fn d3_costs_of_unknown_rules_costs_out_of_range_and_reservations_with_costs_are_refused() {
    let limiter = requests_and_tokens();
    let check = |costs: &[(&str, u64)]| limiter.check(Request::client("a").costs(costs)).unwrap_err();
    assert_eq!(check(&[("tokens", 1), ("token", 1)]), Error::UnknownRule { rule: "token".into() });
    let value = MAX_COUNT + 1;
    assert_eq!(check(&[("tokens", value)]), Error::InvalidCost { value });
    let costs = [("tokens", 2)];
    let reserved = limiter.reserve(Request::client("a").costs(&costs), MINUTE, OnExpiry::GiveBack);
    assert_eq!(block_on(reserved).err().map(|error| error.code()), Some("invalid_rule"));
    assert_eq!(remaining(&block_on(limiter.peek("a")).unwrap()), [5, 1_000]);
}

#[test]
fn c2_a_request_that_no_rule_covers_is_allowed_with_no_reports() {
    let (limiter, _) = limiter([per_client(Limit::per_minute(1))]);
    let decision = limiter.check(&[("tenant", "t")]).unwrap();
    assert!(decision.allowed() && decision.limits().is_empty());
    assert_eq!((decision.remaining(), decision.rule()), (u64::MAX, None));
}

#[test]
fn c4_an_override_changes_the_limit_and_keeps_units_in_use() {
    let (limiter, _) = limiter([per_client(Limit::fixed_window(10, MINUTE))]);
    assert!(limiter.check(Request::client("partner").cost(10)).unwrap().allowed());
    assert!(!limiter.check("partner").unwrap().allowed());
    let rules = RuleSet::new([per_client(Limit::fixed_window(10, MINUTE))]).unwrap();
    let plan = Override::new("per-client", Limit::fixed_window(1000, MINUTE)).matching("client", "partner");
    limiter.set_rules(rules.with_overrides([plan]).unwrap()).unwrap();
    assert_eq!(limiter.check("partner").unwrap().remaining(), 989, "ten of ten used stay used");
    assert_eq!(limiter.check("other").unwrap().remaining(), 9);
}

#[test]
fn c5_an_administrative_verb_leaves_global_budgets_unchanged() {
    let (limiter, clock) = limiter([
        Rule::new("global", Limit::fixed_window(100, MINUTE)),
        per_client(Limit::fixed_window(10, MINUTE)),
    ]);
    let left = |client| {
        let limits = block_on(limiter.peek(client)).unwrap();
        (limits.limits()[0].outcome.remaining, limits.limits()[1].outcome.remaining)
    };
    assert!(limiter.check(Request::client("a").cost(4)).unwrap().allowed());
    assert_eq!(left("a"), (96, 6));
    assert_eq!(block_on(limiter.refund("a")), Ok(1));
    assert_eq!(left("a"), (97, 7), "a refund undoes a check, everywhere");
    assert_eq!(block_on(limiter.penalise(Request::client("a").cost(50))), Ok(7), "up to empty");
    assert_eq!(left("a"), (97, 0));
    assert_eq!(block_on(limiter.penalise(Request::client("a").cost(5).only("global"))), Ok(5));
    assert_eq!(left("a"), (92, 0));
    block_on(limiter.reset("a")).unwrap();
    assert_eq!(left("a"), (92, 10), "the global budget is not reset");
    block_on(limiter.block("a", Timestamp::from_secs(1_000_010))).unwrap();
    assert!(!limiter.check("a").unwrap().allowed() && limiter.check("b").unwrap().allowed());
    clock.advance(10 * SECOND);
    assert!(limiter.check("a").unwrap().allowed());
    let lost = block_on(limiter.refund(Request::client("a").only("nowhere")));
    assert_eq!(lost, Err(Error::UnknownRule { rule: "nowhere".into() }));
}

#[test]
fn c5_a_dropped_reservation_gives_everything_back_at_once() {
    let (limiter, _) = limiter([per_client(Limit::fixed_window(10, MINUTE))]);
    let reservation =
        block_on(limiter.reserve(Request::client("a").cost(8), MINUTE, OnExpiry::GiveBack)).unwrap();
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 2);
    drop(reservation);
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 10);
    let too_much =
        block_on(limiter.reserve(Request::client("a").cost(11), MINUTE, OnExpiry::GiveBack)).unwrap();
    assert_eq!(too_much.decision().verdict(), Verdict::Never);
    assert_eq!(block_on(too_much.settle(1)), Err(Error::NotReserved));
}

#[test]
fn b12_an_own_request_reaches_all_budgets_of_the_client() {
    let plan = [Limit::fixed_window(1_000, MINUTE), Limit::fixed_window(5_000, MINUTE)];
    let rules = RuleSet::new([per_client(Limit::fixed_window(10, MINUTE))]).unwrap();
    let rules = rules.with_overrides([Override::new("per-client", plan).matching("plan", "gold")]).unwrap();
    let limiter =
        Limiter::builder(rules).clock(ManualClock::at(Timestamp::from_secs(1_000_000))).build().unwrap();
    let gold = [("client", "a"), ("plan", "gold")];
    let left = || {
        let decision = block_on(limiter.peek(&gold)).unwrap();
        decision.limits().iter().map(|report| report.outcome.remaining).collect::<Vec<_>>()
    };
    assert!(limiter.check(Request::new(&gold).cost(600)).unwrap().allowed());
    let own = Request::client("a").own();
    assert_eq!(block_on(limiter.penalise(own.cost(50))), Ok(50));
    assert_eq!(left(), [350, 4_350], "the plan's budget is one of the client's");
    block_on(limiter.block(own, Timestamp::from_secs(2_000_000))).unwrap();
    assert!(!limiter.check(&gold).unwrap().allowed());
    block_on(limiter.block(own, Timestamp::EPOCH)).unwrap();
    assert_eq!(left(), [350, 4_350]);
    assert_eq!(block_on(limiter.refund(own.cost(50))), Ok(50));
    assert_eq!(left(), [400, 4_400]);
}

#[test]
fn c5_a_reservation_left_in_the_store_is_settled_by_its_id() {
    let (limiter, clock) = limiter([per_client(Limit::fixed_window(10, MINUTE))]);
    let left = || block_on(limiter.peek("a")).unwrap().remaining();
    let reserve = |cost| {
        block_on(limiter.reserve(Request::client("a").cost(cost), SECOND, OnExpiry::GiveBack))
            .unwrap()
            .detach()
    };
    let hold = reserve(8).unwrap();
    assert_eq!(left(), 2);
    let settle = |hold, client, cost| block_on(limiter.settle(hold, Request::client(client).cost(cost)));
    assert_eq!(settle(hold, "b", 3), Err(Error::NotReserved), "another client's reservation");
    assert_eq!(settle(hold, "a", 3).unwrap().shortfall, 0);
    assert_eq!((left(), settle(hold, "a", 3)), (7, Err(Error::NotReserved)), "settled once");
    let short = reserve(5).unwrap();
    assert_eq!((settle(short, "a", 9).unwrap().shortfall, left()), (0, 0));
    assert_eq!(block_on(limiter.peek("a")).unwrap().owed(), 2);
    assert_eq!(reserve(1), None, "denied");
    block_on(limiter.reset("a")).unwrap();
    let late = reserve(4).unwrap();
    clock.advance(SECOND);
    assert_eq!(left(), 10);
    clock.advance(SECOND);
    assert_eq!((left(), settle(late, "a", 1)), (10, Err(Error::NotReserved)), "as long again has passed");
    let kept = reserve(4).unwrap();
    let rules = [per_client(Limit::fixed_window(10, MINUTE)), Rule::new("new", Limit::per_minute(1))];
    limiter.set_rules(RuleSet::new(rules).unwrap()).unwrap();
    assert_eq!(settle(kept, "a", 3).unwrap().shortfall, 0, "a rule added since is not charged");
    assert_eq!(block_on(limiter.peek("b")).unwrap().remaining(), 1);
}

#[test]
fn d3_a_request_that_cannot_be_counted_is_an_error_with_its_code() {
    let (limiter, _) = limiter([per_client(Limit::per_minute(1))]);
    assert_eq!(limiter.check("").unwrap_err().code(), "invalid_key");
    assert_eq!(limiter.check(&"x".repeat(1025)).unwrap_err().code(), "invalid_key");
    assert!(limiter.check(&"x".repeat(1024)).is_ok());
    let dear = limiter.check(Request::client("a").cost(MAX_COUNT + 1)).unwrap_err();
    assert_eq!(dear.code(), "invalid_cost");
    assert!(dear.to_string().contains("1000000000000000"), "{dear}");
}

#[test]
fn g1_statistics_are_in_total_and_per_rule_and_survive_a_changed_limit() {
    let rules = |limit| [per_client(limit), Rule::new("watch", Limit::fixed_window(1, MINUTE)).shadow()];
    let (limiter, _) = limiter(rules(Limit::fixed_window(3, MINUTE)));
    assert_eq!(limiter.stats().total.rejection_rate(), 0.0);
    for _ in 0..4 {
        let _ = limiter.check("a").unwrap();
    }
    let _ = block_on(limiter.peek("a")).unwrap();
    let stats = limiter.stats();
    let all = Counts { allowed: 3, denied: 1, shadow_denied: 3, degraded: 0, warned: 0 };
    assert_eq!(stats.total, all, "a peek is not a request");
    assert_eq!(stats.total.rejection_rate(), 25.0);
    assert_eq!(stats.rules[0].1, Counts { allowed: 3, denied: 1, shadow_denied: 0, degraded: 0, warned: 0 });
    assert_eq!(stats.rules[1].1, Counts { allowed: 4, denied: 0, shadow_denied: 3, degraded: 0, warned: 0 });
    limiter.set_rules(RuleSet::new(rules(Limit::fixed_window(9, MINUTE))).unwrap()).unwrap();
    assert!(limiter.check("a").unwrap().allowed());
    assert_eq!(limiter.stats().rules[0].1.allowed, 4);
    assert_eq!(limiter.stats().live_keys, Some(2));
}

#[test]
fn g1_counting_from_many_threads_loses_nothing() {
    let (limiter, _) = limiter([per_client(Limit::fixed_window(1000, MINUTE))]);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..500).for_each(|_| drop(limiter.check("a").unwrap())));
        }
    });
    let total = limiter.stats().total;
    assert_eq!((total.allowed, total.denied), (1000, 3000));
}

#[test]
fn b8_clones_are_the_same_limiter() {
    let limiter = Limiter::new(Limit::fixed_window(5, MINUTE));
    let admitted = (0..10).filter(|_| limiter.clone().check("a").unwrap().allowed()).count();
    assert_eq!(admitted, 5, "a limiter cloned for every connection still limits");
}

/// A request of several operations sees the rules of one moment, although they change between two
/// of them.
#[test]
fn b11_a_snapshot_outlives_a_change_of_rules() {
    let one_rule = |name: &str, count| Rule::new(name, Limit::fixed_window(count, MINUTE)).key(["client"]);
    let (changing, _) = limiter([one_rule("old", 10)]);
    let (other, _) = limiter([one_rule("other", 30)]);
    let only = |rule| Request::client("a").only(rule);
    let remaining = |limiter: &Limiter, rule| block_on(limiter.peek(only(rule))).map(|peek| peek.remaining());
    assert_eq!(remaining(&changing, "old"), Ok(10), "the thread has these rules cached");
    let (snapshot, nested) = (changing.snapshot(), other.snapshot());
    block_on(snapshot.scope(async {
        assert_eq!(changing.check_async(only("old")).await.unwrap().remaining(), 9);
        changing.set_rules(RuleSet::new([one_rule("new", 20)]).unwrap()).unwrap();
        assert_eq!(changing.check_async(only("old")).await.unwrap().remaining(), 8);
        assert_eq!(other.peek("a").await.unwrap().remaining(), 30, "another limiter has its own rules");
        assert_eq!(changing.check_async("a").await.unwrap().remaining(), 7, "also if it names no rule");
        assert_eq!(changing.check_all(&[only("old")]).await.unwrap().whole().remaining(), 6);
        assert_eq!(nested.scope(changing.refund(only("old"))).await, Ok(1));
        assert!(changing.peek(only("new")).await.is_err());
        assert_eq!(changing.rules().rules()[0].name().as_str(), "old");
    }));
    assert_eq!(remaining(&changing, "new"), Ok(20));
    assert!(remaining(&changing, "old").is_err());
    assert_eq!(block_on(snapshot.scope(changing.peek("a"))).unwrap().remaining(), 7);
}

/// In a snapshot's scope `check` has the rules in force, and `check_async` the snapshot's: both
/// rule sets deny the second request, and no mixture of them admits it.
#[test]
fn c2_the_rules_that_do_not_cover_a_request_say_whether_it_is_denied() {
    let by_path = Rule::new("per-path", Limit::fixed_window(1, MINUTE)).key(["path"]);
    let (limiter, _) = limiter([by_path]);
    let (snapshot, request) = (limiter.snapshot(), Request::new(&[("path", "/x")]));
    limiter.set_rules(RuleSet::per_client(Limit::per_second(10)).deny_uncovered()).unwrap();
    block_on(snapshot.scope(async {
        assert!(limiter.check_async(request).await.unwrap().allowed());
        assert!(!limiter.check_async(request).await.unwrap().allowed());
        assert_eq!(limiter.check(request).unwrap().cause(), Cause::Uncovered);
    }));
}

#[test]
fn c2_a_request_that_no_rule_covers_is_denied_everywhere_if_the_set_says_so() {
    let rules = RuleSet::new([Rule::new("per-client", Limit::per_second(10)).key(["client"])]).unwrap();
    let limiter = Limiter::builder(rules.clone().deny_uncovered()).build().unwrap();
    let (typo, alice) = (Request::new(&[("clinet", "alice")]), Request::client("alice"));
    let denied = limiter.check(typo).unwrap();
    assert_eq!((denied.allowed(), denied.cause(), denied.retry_after()), (false, Cause::Uncovered, None));
    assert_eq!((denied.limits().len(), denied.unavailable()), (0, false));
    assert!(!block_on(limiter.peek(typo)).unwrap().allowed());
    assert!(!block_on(limiter.check_async(typo)).unwrap().allowed());
    assert!(!block_on(limiter.reserve(typo, SECOND, OnExpiry::GiveBack)).unwrap().decision().allowed());
    let mut batch = Vec::new();
    limiter.check_many(&[typo, alice], |decision| batch.push(decision.unwrap().allowed()));
    assert_eq!(batch, [false, true]);
    let together = block_on(limiter.check_all(&[typo, typo])).unwrap();
    assert!(!together.whole().allowed() && !together.each()[1].allowed());
    let together = block_on(limiter.check_all(&[typo, alice])).unwrap();
    assert!(together.whole().allowed(), "one of them is covered");
    assert_eq!(limiter.stats().total.denied, 5, "peeks aside");
    assert!(Limiter::builder(rules).build().unwrap().check(typo).unwrap().allowed(), "the default");
}
