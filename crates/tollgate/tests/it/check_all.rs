//! Rules on demand, inline limits, and requests that are decided as one.

use std::sync::Arc;

use tollgate::{
    Decision, Error, FailurePolicy, HOUR, Limit, Limiter, MINUTE, ManualClock, MemoryStore, Request, Rule,
    RuleSet, SECOND, Store, Timestamp, block_on,
};
use tollgate_testkit::{Fault, FaultyStore};

fn limiter(rules: impl IntoIterator<Item = Rule>) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let rules = RuleSet::new(rules).unwrap();
    (Limiter::builder(rules).clock(clock.clone()).build().unwrap(), clock)
}

fn window(limit: u64) -> Limit {
    Limit::fixed_window(limit, MINUTE)
}

fn on_demand(name: &str) -> Rule {
    Rule::new(name, window(1)).key(["client"]).on_demand()
}

#[test]
fn c2_a_rule_on_demand_covers_only_requests_that_name_it() {
    let (limiter, _) = limiter([on_demand("asked"), Rule::new("per-client", window(5)).key(["client"])]);
    let plain = limiter.check("a").unwrap();
    assert_eq!(plain.limits().len(), 1);
    assert_eq!(plain.rule().unwrap().as_str(), "per-client");
    let asked = limiter.check(Request::client("a").only("asked")).unwrap();
    assert_eq!((asked.rule().unwrap().as_str(), asked.remaining()), ("asked", 0));
    let many = [Request::client("a"), Request::client("b").only("asked")];
    let mut rules = Vec::new();
    limiter.check_many(&many, |decision| rules.push(decision.unwrap().rule().unwrap().as_str()));
    assert_eq!(rules, ["per-client", "asked"], "in a batch too");
    let stats = limiter.stats();
    let counts: Vec<_> = stats.rules.iter().map(|(rule, counts)| (rule.as_str(), counts.allowed)).collect();
    assert_eq!(counts, [("per-client", 2), ("asked", 2)], "each rule counts its own");
}

#[test]
fn b12_inline_windows_of_one_period_share_a_count() {
    let (limiter, clock) = limiter([Rule::inline("asked").key(["client"])]);
    let inline = |limit| limiter.inline(limit).unwrap();
    let check = |limit: Limit| limiter.check(Request::client("a").under("asked", &inline(limit))).unwrap();
    assert_eq!(check(window(10)).remaining(), 9);
    assert_eq!(check(window(10)).remaining(), 8);
    assert_eq!(check(window(100)).remaining(), 97, "units in use count against any limit");
    assert!(!check(window(2)).allowed());
    assert_eq!(check(window(100)).remaining(), 96, "and a denial gives nothing back");
    assert_eq!(check(Limit::fixed_window(5, SECOND)).remaining(), 4, "another period is another count");
    assert_eq!(check(Limit::per_minute(10)).remaining(), 9, "and buckets share a time");
    clock.advance(MINUTE);
    assert_eq!(check(window(10)).remaining(), 9);
    let peeked = block_on(limiter.peek(Request::client("b").under("asked", &inline(window(7))))).unwrap();
    assert_eq!(peeked.remaining(), 7, "other verbs take inline limits too");
}

#[test]
fn d3_a_limit_that_cannot_be_inline_is_refused() {
    let (limiter, _) = limiter([Rule::inline("asked").key(["client"])]);
    let refused = |limit| limiter.inline(limit).unwrap_err();
    assert_eq!(refused(Limit::sliding_log(10, MINUTE)).code(), "invalid_limit");
    assert_eq!(refused(window(10).aligned()).code(), "invalid_limit");
    let long = refused(Limit::token_bucket(1_000, 1, 24 * 60 * MINUTE)).to_string();
    assert!(long.contains("longest_inline_refill"), "{long}");
    let one = limiter.inline(window(1)).unwrap();
    let check = |rule| limiter.check(Request::client("a").under(rule, &one));
    assert!(matches!(check("nobody"), Err(Error::UnknownRule { .. })));
    assert_eq!(limiter.stats().total.allowed, 0);
    assert!(check("asked").unwrap().allowed());
    assert_eq!(check("asked").unwrap().limits()[0].limit, window(1), "as it was passed");
}

fn transfer<S: Store>(limiter: &Limiter<S>, costs: [u64; 2]) -> tollgate::AllOrNothing {
    let both = [Request::client("a").cost(costs[0]), Request::client("b").cost(costs[1])];
    block_on(limiter.check_all(&both)).unwrap()
}

#[test]
fn b8_requests_decided_together_take_all_or_nothing() {
    let (limiter, _) = limiter([Rule::new("per-client", window(10)).key(["client"])]);
    let first = transfer(&limiter, [3, 8]);
    let left: Vec<u64> = first.each().iter().map(|each| each.remaining()).collect();
    assert!(first.whole().allowed());
    assert_eq!((left, first.whole().remaining()), (vec![7, 2], 2));
    let denied = transfer(&limiter, [1, 3]);
    assert!(!denied.whole().allowed() && denied.each()[0].allowed() && !denied.each()[1].allowed());
    assert_eq!(denied.whole().retry_after(), Some(MINUTE));
    let looked = transfer(&limiter, [0, 0]);
    let left: Vec<u64> = looked.each().iter().map(|each| each.remaining()).collect();
    assert_eq!(left, [7, 2], "nothing was taken from either");
    let counts = limiter.stats().total;
    assert_eq!((counts.allowed, counts.denied), (2, 1), "one decision each");
}

#[test]
fn b8_a_shared_budget_is_charged_once_with_the_largest_cost() {
    let (limiter, _) =
        limiter([Rule::new("global", window(100)), Rule::new("per-client", window(10)).key(["client"])]);
    let both = transfer(&limiter, [2, 5]);
    assert_eq!(both.each()[0].limits()[0].outcome.remaining, 95);
    assert_eq!(both.whole().limits().len(), 3, "the global budget once, and each client's");
    let rules = limiter.stats().rules;
    assert!(rules.iter().all(|(_, counts)| counts.allowed == 1), "{rules:?}");
}

#[test]
fn b8_requests_in_opposite_orders_on_two_threads_never_take_too_much() {
    let (limiter, _) = limiter([Rule::new("per-client", window(1_000)).key(["client"])]);
    let admitted: usize = std::thread::scope(|scope| {
        let go = |clients: [&'static str; 2]| {
            let limiter = limiter.clone();
            scope.spawn(move || {
                let both = clients.map(Request::client);
                (0..2_000).filter(|_| block_on(limiter.check_all(&both)).unwrap().whole().allowed()).count()
            })
        };
        let threads = [go(["a", "b"]), go(["b", "a"])];
        threads.map(|thread| thread.join().unwrap()).iter().sum()
    });
    assert_eq!(admitted, 1_000);
}

#[test]
fn e4_requests_decided_together_follow_the_failure_policies() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let rule = |name: &str, policy| Rule::new(name, window(10)).key([name]).on_store_error(policy);
    let rules = RuleSet::new([rule("open", FailurePolicy::Open), rule("closed", FailurePolicy::Closed)]);
    let limiter = Limiter::builder(rules.unwrap()).store(Arc::clone(&store)).clock(clock).build().unwrap();
    let check = |attributes: &[[(&str, &str); 1]]| {
        let requests: Vec<Request<'_>> = attributes.iter().map(|pairs| Request::new(pairs)).collect();
        block_on(limiter.check_all(&requests)).unwrap()
    };
    store.set(Fault::Fail);
    let open = check(&[[("open", "1")], [("open", "2")]]);
    assert!(open.whole().allowed() && open.whole().degraded());
    let closed = check(&[[("open", "1")], [("closed", "2")]]);
    assert!(!closed.whole().allowed() && closed.whole().unavailable());
    assert!(closed.each()[0].allowed() && !closed.each()[1].allowed());
    assert_eq!(closed.whole().retry_after(), Some(SECOND));
}

#[test]
fn e5_new_keys_that_share_a_pool_are_charged_once() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let store = MemoryStore::new().max_keys(1).on_full(tollgate::OnFull::Pool);
    let rules = RuleSet::new([Rule::new("r", [window(2), window(50)]).key(["client"])]).unwrap();
    let limiter = Limiter::builder(rules).store(store).clock(clock).build().unwrap();
    assert!(limiter.check("first").unwrap().allowed());
    let check = |clients: [&'static str; 3]| {
        let together = block_on(limiter.check_all(&clients.map(Request::client))).unwrap();
        (together.whole().allowed(), together.each()[2].remaining())
    };
    assert_eq!(check(["b", "first", "c"]), (true, 1), "b and c draw on one pool, once");
    assert_eq!(check(["c", "first", "b"]), (false, 1), "the first client's budget is spent");
    assert!(limiter.check("d").unwrap().allowed());
    assert!(!limiter.check("e").unwrap().allowed());
}

/// Each request has a budget of its own under the same rule.
#[test]
fn c7_of_several_requests_only_the_denied_ones_are_recorded() {
    let rule = Rule::new("tokens", Limit::fixed_window(10, HOUR)).key(["client"]).record_denied();
    let limiter = Limiter::builder(RuleSet::new([rule]).unwrap()).build().unwrap();
    let owed = |client| block_on(limiter.peek(client)).unwrap().owed();
    let left = |decision: &Decision| (decision.allowed(), decision.remaining(), decision.owed());
    let over = limiter.check(Request::client("a").cost(13)).unwrap();
    assert_eq!(left(&over), (false, 0, 3), "a synchronous check records too");
    let both = [Request::client("a").cost(2), Request::client("b").cost(2)];
    let together = block_on(limiter.check_all(&both)).unwrap();
    let each: Vec<_> = together.each().iter().map(left).collect();
    assert_eq!(each, [(false, 0, 5), (true, 10, 0)]);
    let refused = block_on(limiter.refuse_all(&both)).unwrap();
    let each: Vec<_> = refused.iter().map(left).collect();
    assert_eq!(each, [(false, 0, 7), (true, 10, 0)]);
    assert_eq!((owed("a"), owed("b"), limiter.stats().shortfall), (7, 0, 0));
    assert!(!block_on(limiter.check_all(&[Request::client("a").cost(9)])).unwrap().whole().allowed());
    assert_eq!((owed("a"), limiter.stats().shortfall), (10, 6), "beyond one whole limit of debt");
}
