//! C6: whoever waits obeys the rules in force, and feels what is done to its budget.

use tollgate::{
    Cause, Decision, Error, HOUR, Limit, Limiter, MINUTE, ManualClock, Request, Rule, RuleSet, SECOND, Store,
    Verdict, block_on,
};

use super::crowd::Crowd;
use super::{later, limiter};

type Answers = Crowd<Result<Decision, Error>>;

fn per_client(limit: Limit) -> RuleSet {
    RuleSet::new([Rule::new("per-client", limit).key(["client"])]).unwrap()
}

fn wait<S: Store>(
    limiter: &Limiter<S>,
    client: &'static str,
    timeout: std::time::Duration,
) -> impl Future<Output = Result<Decision, Error>> + use<S> {
    let limiter = limiter.clone();
    async move { limiter.wait(client, timeout).await }
}

fn admitted(crowd: &Answers) -> usize {
    crowd.answers().filter(|(_, (_, answer))| answer.as_ref().unwrap().allowed()).count()
}

/// So many requests of one client that wait for the second unit.
fn crowd(limiter: &Limiter, clock: &ManualClock, count: usize) -> Answers {
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Crowd::new(clock);
    for _ in 0..count {
        crowd.join(wait(limiter, "a", HOUR));
    }
    crowd
}

#[test]
fn c6_a_slower_limit_reaches_those_that_wait() {
    let (limiter, clock) = limiter(Limit::per_second(20).burst(1));
    let mut crowd = crowd(&limiter, &clock, 40);
    limiter.set_rules(per_client(Limit::token_bucket(1, 1, 2 * SECOND))).unwrap();
    crowd.advance_to(later(5 * SECOND));
    assert!((2..=3).contains(&admitted(&crowd)), "{} in 5 s", admitted(&crowd));
    assert_eq!(crowd.waiting(), 40 - admitted(&crowd));
}

#[test]
fn c6_a_faster_limit_reaches_those_that_wait() {
    let (limiter, clock) = limiter(Limit::per_second(1).burst(1));
    let mut crowd = crowd(&limiter, &clock, 40);
    limiter.set_rules(per_client(Limit::per_second(1_000).burst(1))).unwrap();
    crowd.advance_to(later(SECOND / 10));
    assert_eq!(admitted(&crowd), 40);
}

#[test]
fn c6_rules_that_do_not_cover_those_that_wait_let_them_go() {
    let (limiter, clock) = limiter(Limit::per_hour(1));
    let mut crowd = crowd(&limiter, &clock, 10);
    limiter
        .set_rules(RuleSet::new([Rule::new("other", Limit::per_hour(1)).key(["tenant"])]).unwrap())
        .unwrap();
    crowd.settle();
    assert_eq!((admitted(&crowd), clock.sleepers()), (10, 0));
}

/// The first in the queue is still covered; those behind it are not.
#[test]
fn c6_rules_that_cover_only_the_first_let_those_behind_it_go() {
    let clock = ManualClock::at(super::START);
    let limiter = Limiter::builder(per_client(Limit::per_hour(1))).clock(clock.clone()).build().unwrap();
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    for path in ["/x", "/y", "/x", "/y"] {
        let limiter = limiter.clone();
        crowd.join(async move { limiter.wait(&[("client", "a"), ("path", path)], 2 * HOUR).await });
    }
    let rule = Rule::new("per-client", Limit::per_hour(1)).matching("path", "/x").key(["client"]);
    limiter.set_rules(RuleSet::new([rule]).unwrap()).unwrap();
    crowd.settle();
    assert_eq!(crowd.ended, [1, 3], "not covered");
    crowd.advance_to(later(2 * HOUR));
    assert_eq!(crowd.ended, [1, 3, 0, 2]);
}

#[test]
fn c6_rules_under_which_a_request_never_fits_are_told_at_once() {
    let (limiter, clock) = limiter(Limit::per_minute(5).burst(5));
    assert!(limiter.check(Request::client("a").cost(5)).unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    for cost in [1, 3] {
        let limiter = limiter.clone();
        crowd.join(async move { limiter.wait(Request::client("a").cost(cost), HOUR).await });
    }
    limiter.set_rules(per_client(Limit::per_minute(2))).unwrap();
    crowd.settle();
    let (_, told) = crowd.answer(1).expect("not first, and told");
    assert_eq!(told.as_ref().unwrap().verdict(), Verdict::Never);
    assert!(crowd.answer(0).is_none());
}

#[test]
fn c6_a_reset_and_a_refund_are_felt_at_once() {
    let (limiter, clock) = limiter(Limit::per_minute(1));
    let mut crowd = crowd(&limiter, &clock, 3);
    crowd.advance_to(later(SECOND));
    block_on(limiter.reset("a")).unwrap();
    crowd.settle();
    assert_eq!(crowd.answer(0).expect("admitted").0, later(SECOND));
    assert_eq!(admitted(&crowd), 1);
    block_on(limiter.refund("a")).unwrap();
    crowd.settle();
    assert_eq!((admitted(&crowd), crowd.waiting()), (2, 1));
}

#[test]
fn c6_units_that_a_settlement_gives_back_go_to_the_first_that_waits() {
    let (limiter, clock) = limiter(Limit::fixed_window(10, HOUR));
    let reservation = limiter.reserve(Request::client("a").cost(10), MINUTE, tollgate::OnExpiry::Keep);
    let reservation = block_on(reservation).unwrap();
    let mut crowd = Crowd::new(&clock);
    crowd.join(wait(&limiter, "a", 2 * HOUR));
    block_on(reservation.settle(9)).unwrap();
    crowd.settle();
    assert_eq!(admitted(&crowd), 1);
}

#[test]
fn c6_a_block_is_told_at_once_to_everyone_whom_it_outlasts() {
    let (limiter, clock) = limiter(Limit::per_minute(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    for timeout in [3 * HOUR, 2 * MINUTE, 4 * MINUTE, 3 * HOUR] {
        crowd.join(wait(&limiter, "a", timeout));
    }
    crowd.advance_to(later(SECOND));
    block_on(limiter.block("a", HOUR)).unwrap();
    crowd.settle();
    assert_eq!(crowd.ended, [1, 2], "the others have the time");
    for (_, (at, told)) in crowd.answers() {
        let told = told.as_ref().unwrap();
        assert_eq!((*at, told.allowed()), (later(SECOND), false));
        assert_eq!(told.cause(), Cause::Block { until: later(HOUR + SECOND) });
        assert!(told.retry_after() >= Some(HOUR), "and those ahead of it");
    }
    let late = crowd.join(wait(&limiter, "a", MINUTE));
    assert!(crowd.answer(late).is_some(), "who comes later is told, too");
    // The block is lifted.
    block_on(limiter.block("a", clock_now(&clock))).unwrap();
    crowd.advance_to(later(MINUTE));
    assert!(crowd.answer(0).unwrap().1.as_ref().unwrap().allowed());
}

fn clock_now(clock: &ManualClock) -> tollgate::Timestamp {
    tollgate::Clock::now(clock)
}

/// It is the global limit that keeps the client waiting.
#[test]
fn c6_a_block_is_told_to_a_client_that_waits_for_another_budget() {
    let clock = ManualClock::at(super::START);
    let rules = RuleSet::new([
        Rule::new("global", Limit::per_minute(1)),
        Rule::new("per-client", Limit::per_second(10)).key(["client"]),
    ]);
    let limiter = Limiter::builder(rules.unwrap()).clock(clock.clone()).build().unwrap();
    assert!(limiter.check("z").unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    for client in ["b", "a", "a", "c"] {
        crowd.join(wait(&limiter, client, 10 * MINUTE));
    }
    block_on(limiter.block("a", HOUR)).unwrap();
    crowd.settle();
    assert_eq!(crowd.ended, [1, 2]);
    crowd.advance_to(later(2 * MINUTE));
    assert_eq!(crowd.ended, [1, 2, 0, 3]);
}

#[test]
fn c6_debt_that_outlasts_a_waiter_is_told_at_once() {
    let (limiter, clock) = limiter(Limit::per_minute(1).debt(5));
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    crowd.join(wait(&limiter, "a", 2 * MINUTE));
    block_on(limiter.record(Request::client("a").cost(5))).unwrap();
    crowd.settle();
    assert_eq!(crowd.answer(0).unwrap().1.as_ref().unwrap().retry_after(), Some(6 * MINUTE));
}

#[test]
fn c6_a_penalty_is_felt_at_once() {
    let (limiter, clock) = limiter(Limit::per_minute(2));
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    let limiter_of_two = limiter.clone();
    crowd.join(async move { limiter_of_two.wait(Request::client("a").cost(2), 40 * SECOND).await });
    assert_eq!(crowd.waiting(), 1, "the other unit comes in 30 seconds");
    assert_eq!(block_on(limiter.penalise("a")).unwrap(), 1);
    crowd.settle();
    assert_eq!(crowd.answer(0).unwrap().1.as_ref().unwrap().retry_after(), Some(MINUTE));
}
