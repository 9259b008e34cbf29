//! C6: nobody is admitted after its deadline, and everybody is answered at it.

use std::sync::Arc;

use tollgate::{
    Decision, Error, HOUR, Limit, Limiter, MINUTE, ManualClock, MemoryStore, Request, Rule, RuleSet, SECOND,
    Verdict, block_on,
};
use tollgate_testkit::{Fault, FaultyStore};

use super::crowd::Crowd;
use super::{START, admitted, later, limiter, poll, wait};

type Answers = Crowd<Result<Decision, Error>>;

fn counts(crowd: &Answers) -> (usize, usize) {
    let admitted = crowd.answers().filter(|(_, (_, answer))| answer.as_ref().unwrap().allowed()).count();
    (admitted, crowd.answers().count() - admitted)
}

#[test]
fn c6_a_crowd_is_answered_at_its_deadline() {
    let (limiter, clock) = limiter(Limit::per_second(1).burst(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    for _ in 0..2_000 {
        crowd.join(wait(&limiter, "a", 1, 3 * SECOND));
    }
    crowd.advance_to(later(3 * SECOND));
    assert_eq!((counts(&crowd), crowd.waiting()), ((3, 1_997), 0));
    for (_, (at, answer)) in crowd.answers() {
        let answer = answer.as_ref().unwrap();
        assert!(*at <= later(3 * SECOND));
        assert!(answer.allowed() || answer.retry_after() > Some(std::time::Duration::ZERO));
    }
    assert_eq!((clock.sleepers(), limiter.stats().waiters), (0, 0));
}

#[test]
fn c6_those_behind_one_with_more_time_are_answered_at_their_own_deadlines() {
    let (limiter, clock) = limiter(Limit::per_hour(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    crowd.join(wait(&limiter, "a", 1, 2 * HOUR));
    for index in 0..300_u32 {
        crowd.join(wait(&limiter, "a", 1, MINUTE + SECOND * (index * 7 % 10)));
    }
    crowd.advance_to(later(2 * MINUTE));
    assert_eq!(counts(&crowd), (0, 300));
    for (index, (at, answer)) in crowd.answers() {
        let index = u32::try_from(index - 1).unwrap();
        assert_eq!(*at, later(MINUTE + SECOND * (index * 7 % 10)));
        let retry_after = answer.as_ref().unwrap().retry_after().unwrap();
        assert!(retry_after > HOUR - 2 * MINUTE, "somebody is ahead: {retry_after:?}");
    }
}

/// The task of the first in the queue is busy when its time comes, and until after its deadline.
#[test]
fn c6_nobody_is_admitted_after_its_deadline() {
    let (limiter, clock) = limiter(Limit::per_minute(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut waiting = wait(&limiter, "a", 1, MINUTE);
    assert!(poll(&mut waiting).is_pending());
    clock.advance(MINUTE + SECOND);
    assert!(!admitted(&mut waiting));
    assert!(limiter.check("a").unwrap().allowed(), "it has taken nothing");
}

/// One waiter sleeps for all. Its task is busy.
#[test]
fn c6_a_busy_task_does_not_keep_others_from_their_deadlines() {
    let (limiter, clock) = limiter(Limit::per_hour(1));
    for client in ["a", "b"] {
        assert!(limiter.check(client).unwrap().allowed());
    }
    let mut crowd = Crowd::new(&clock);
    let busy = [crowd.join(wait(&limiter, "a", 1, 2 * HOUR)), crowd.join(wait(&limiter, "b", 1, SECOND))];
    let others: Vec<usize> = (2..6).map(|secs| crowd.join(wait(&limiter, "a", 1, secs * SECOND))).collect();
    busy.iter().for_each(|index| crowd.set_busy(*index, true));
    crowd.advance_to(later(10 * SECOND));
    for (secs, index) in (2..6).zip(others) {
        assert_eq!(crowd.answer(index).expect("answered").0, later(secs * SECOND));
    }
}

/// One is due and busy, and so is the one that is woken next, to set the timer.
#[test]
fn c6_busy_tasks_do_not_keep_others_asleep() {
    let (limiter, clock) = limiter(Limit::per_hour(1));
    for client in ["a", "b", "c"] {
        assert!(limiter.check(client).unwrap().allowed());
    }
    let mut crowd = Crowd::new(&clock);
    let busy = ["a", "b"].map(|client| crowd.join(wait(&limiter, client, 1, 2 * HOUR)));
    let other = crowd.join(wait(&limiter, "c", 1, 2 * HOUR));
    busy.iter().for_each(|index| crowd.set_busy(*index, true));
    crowd.advance_to(later(2 * HOUR));
    let (at, answer) = crowd.answer(other).expect("answered");
    assert!(answer.as_ref().unwrap().allowed() && *at <= later(HOUR + SECOND), "{at:?}");
}

/// The store answers the first late, and those behind it have less time.
#[test]
fn c6_a_question_under_way_does_not_outlast_the_deadline() {
    let clock = ManualClock::at(START);
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let rules = RuleSet::new([Rule::new("rule", Limit::fixed_window(10, HOUR)).key(["client"])]).unwrap();
    let limiter = Limiter::builder(rules).store(Arc::clone(&store)).clock(clock.clone()).deadline(HOUR);
    let limiter = limiter.build().unwrap();
    store.set(Fault::HangAfterwards);
    let mut crowd = Crowd::new(&clock);
    for millis in [1_000, 500, 700] {
        crowd.join(wait(&limiter, "a", 4, millis * SECOND / 1_000));
    }
    store.set(Fault::None);
    crowd.advance_to(later(SECOND));
    assert_eq!(counts(&crowd), (0, 3));
    assert_eq!(block_on(limiter.peek("a")).unwrap().remaining(), 10, "given back");
    assert_eq!(crowd.ended, [1, 2, 0]);
    for (millis, (_, (at, answer))) in [1_000, 500, 700].into_iter().zip(crowd.answers()) {
        assert_eq!(*at, later(millis * SECOND / 1_000));
        let answer = answer.as_ref().unwrap();
        assert!(answer.retry_after().unwrap() > std::time::Duration::ZERO);
        assert_eq!(answer.rule().unwrap().as_str(), "rule");
    }
}

/// A store that answers later is not asked by those that give up.
#[test]
fn c6_a_crowd_that_gives_up_asks_the_store_nothing() {
    let clock = ManualClock::at(START);
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let rules = RuleSet::new([Rule::new("rule", Limit::per_hour(1)).key(["client"])]).unwrap();
    let limiter = Limiter::builder(rules).store(Arc::clone(&store)).clock(clock.clone()).build().unwrap();
    assert!(block_on(limiter.wait("a", SECOND)).unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    crowd.join(wait(&limiter, "a", 1, 2 * HOUR));
    let calls = store.calls();
    for _ in 0..100 {
        crowd.join(wait(&limiter, "a", 1, MINUTE));
    }
    crowd.advance_to(later(MINUTE));
    assert_eq!((counts(&crowd), store.calls() - calls), ((0, 100), 0));
}

#[test]
fn c6_what_never_fits_is_told_at_once_also_behind_others() {
    let (limiter, clock) = limiter(Limit::per_minute(2));
    assert!(limiter.check(Request::client("a").cost(2)).unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    crowd.join(wait(&limiter, "a", 2, HOUR));
    let never = crowd.join(wait(&limiter, "a", 3, HOUR));
    assert_eq!(crowd.answer(never).expect("told").1.as_ref().unwrap().verdict(), Verdict::Never);
    assert_eq!(crowd.waiting(), 1);
}

#[test]
fn c6_a_cost_of_0_is_not_queued() {
    let (limiter, clock) = limiter(Limit::per_minute(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Crowd::new(&clock);
    crowd.join(wait(&limiter, "a", 1, HOUR));
    let free = crowd.join(wait(&limiter, "a", 0, HOUR));
    assert!(crowd.answer(free).expect("not behind it").1.as_ref().unwrap().allowed());
}

/// In debt nothing is admitted: it waits for that alone.
#[test]
fn c6_a_cost_of_0_waits_in_debt_and_for_nobody() {
    let (limiter, clock) = limiter(Limit::per_minute(2).debt(2));
    block_on(limiter.record(Request::client("a").cost(4))).unwrap();
    let mut crowd = Crowd::new(&clock);
    crowd.join(wait(&limiter, "a", 2, HOUR));
    let free = crowd.join(wait(&limiter, "a", 0, HOUR));
    crowd.advance_to(later(MINUTE));
    assert_eq!(crowd.answer(free).expect("nothing is owed").0, later(MINUTE));
    let free = crowd.join(wait(&limiter, "a", 0, HOUR));
    assert!(crowd.answer(free).is_some());
    assert_eq!(crowd.waiting(), 1);
    // A reset reaches it as well.
    block_on(limiter.record(Request::client("a").cost(4))).unwrap();
    let free = crowd.join(wait(&limiter, "a", 0, HOUR));
    assert!(crowd.answer(free).is_none());
    block_on(limiter.reset("a")).unwrap();
    crowd.settle();
    assert_eq!(crowd.waiting(), 0);
}

#[test]
fn c6_more_waiters_than_may_be_are_answered_at_once() {
    let clock = ManualClock::at(START);
    let limiter = Limiter::builder(RuleSet::per_client(Limit::per_minute(1))).max_waiters(2);
    let limiter = limiter.clock(clock.clone()).build().unwrap();
    let mut crowd = Crowd::new(&clock);
    for _ in 0..4 {
        crowd.join(wait(&limiter, "a", 1, HOUR));
    }
    assert_eq!((counts(&crowd), crowd.waiting()), ((1, 1), 2));
    let stats = limiter.stats();
    assert_eq!((stats.waiters, stats.waiters_refused), (2, 1));
    let other = crowd.join(wait(&limiter, "b", 1, HOUR));
    assert!(crowd.answer(other).unwrap().1.as_ref().unwrap().allowed(), "it need not wait");
    let other = crowd.join(wait(&limiter, "b", 1, HOUR));
    assert_eq!(crowd.answer(other).unwrap().1.as_ref().unwrap().retry_after(), Some(MINUTE));
}
