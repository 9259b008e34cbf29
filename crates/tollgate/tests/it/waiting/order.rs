//! C6: order of arrival among those that the same budget keeps waiting.

use tollgate::{Decision, Error, HOUR, Limit, Limiter, MINUTE, ManualClock, Rule, RuleSet, SECOND};

use super::crowd::Crowd;
use super::{START, later, limiter, wait};

type Answers = Crowd<Result<Decision, Error>>;

fn under(rules: impl IntoIterator<Item = Rule>) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(START);
    let limiter = Limiter::builder(RuleSet::new(rules).unwrap()).clock(clock.clone());
    (limiter.build().unwrap(), clock)
}

fn client(number: usize) -> &'static str {
    ["a", "b", "c", "d", "e", "f", "g", "h"][number]
}

#[test]
fn c6_clients_under_a_global_limit_are_served_in_order_of_arrival() {
    let per_client = Rule::new("per-client", Limit::per_second(1_000)).key(["client"]);
    let (limiter, clock) = under([Rule::new("global", Limit::per_second(100).burst(1)), per_client]);
    assert!(limiter.check("z").unwrap().allowed());
    let mut crowd = Answers::new(&clock);
    for arrival in 0..200 {
        crowd.join(wait(&limiter, client(arrival * 5 % 8), 1, HOUR));
    }
    crowd.polls = 0;
    crowd.advance_to(later(2 * SECOND));
    assert_eq!(crowd.ended, (0..200).collect::<Vec<_>>());
    // Each is woken once to be the first, and once when its unit is there.
    assert!(crowd.polls <= 2 * 200, "{} polls", crowd.polls);
}

/// A client that waits for its own limit is in nobody's way.
#[test]
fn c6_a_client_that_its_own_limit_keeps_waiting_does_not_hold_up_others() {
    let per_client = Rule::new("per-client", Limit::per_minute(1)).key(["client"]);
    let (limiter, clock) = under([Rule::new("global", Limit::per_second(1).burst(1)), per_client]);
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Answers::new(&clock);
    for client in ["a", "b", "a", "c"] {
        crowd.join(wait(&limiter, client, 1, HOUR));
    }
    crowd.advance_to(later(SECOND));
    assert_eq!(crowd.ended, [1]);
    crowd.advance_to(later(2 * SECOND));
    assert_eq!(crowd.ended, [1, 3]);
    crowd.advance_to(later(3 * MINUTE));
    assert_eq!(crowd.ended, [1, 3, 0, 2]);
    assert_eq!(crowd.answer(0).unwrap().0, later(MINUTE));
}

/// It has waited for its own limit, and then for the global one: it keeps its place.
#[test]
fn c6_a_waiter_keeps_its_place_when_another_budget_keeps_it_waiting() {
    let per_client = Rule::new("per-client", Limit::token_bucket(1, 1, 10 * SECOND)).key(["client"]);
    let (limiter, clock) = under([Rule::new("global", Limit::token_bucket(1, 1, 4 * SECOND)), per_client]);
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Answers::new(&clock);
    // Global units come every 4 seconds, those of `a` at 10 and 20.
    for client in ["a", "b", "c", "d", "e", "a", "f"] {
        crowd.join(wait(&limiter, client, 1, HOUR));
    }
    crowd.advance_to(later(9 * SECOND));
    assert_eq!(crowd.ended, [1, 2]);
    crowd.advance_to(later(12 * SECOND));
    assert_eq!(crowd.ended, [1, 2, 0], "it came before `d`");
    crowd.advance_to(later(HOUR / 2));
    assert_eq!(crowd.ended, [1, 2, 0, 3, 4, 5, 6], "`a` has a unit again at 22 seconds, and came before `f`");
}

#[test]
fn c6_one_admission_wakes_one_waiter() {
    let (limiter, clock) = limiter(Limit::per_second(1).burst(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Answers::new(&clock);
    for _ in 0..100 {
        crowd.join(wait(&limiter, "a", 1, HOUR));
    }
    crowd.polls = 0;
    crowd.advance_to(later(10 * SECOND));
    assert_eq!(crowd.ended, (0..10).collect::<Vec<_>>());
    assert!(crowd.polls <= 21, "{} polls", crowd.polls);
}

/// Many requests of one client, whose own budget has less than the global one.
#[test]
fn c6_a_crowd_of_one_client_does_not_move_from_queue_to_queue() {
    let per_client = Rule::new("per-client", Limit::per_second(1).burst(1)).key(["client"]);
    let (limiter, clock) = under([Rule::new("global", Limit::per_second(2).burst(1)), per_client]);
    let mut crowd = Answers::new(&clock);
    for _ in 0..200 {
        crowd.join(wait(&limiter, "a", 1, HOUR));
        crowd.join(wait(&limiter, "b", 1, HOUR));
    }
    crowd.polls = 0;
    crowd.advance_to(later(20 * SECOND));
    assert_eq!(crowd.ended.len(), 41);
    for parity in 0..2 {
        let of_client = crowd.ended.iter().filter(|index| *index % 2 == parity);
        assert!(of_client.is_sorted(), "in order of arrival");
    }
    assert!(crowd.polls <= 41 * 8, "{} polls", crowd.polls);
}

/// Whoever was woken to be admitted may be dropped instead.
#[test]
fn c6_a_waiter_dropped_after_it_was_woken_passes_its_turn_on() {
    let (limiter, clock) = limiter(Limit::per_second(1).burst(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut crowd = Answers::new(&clock);
    for _ in 0..3 {
        crowd.join(wait(&limiter, "a", 1, HOUR));
    }
    // Woken, and not polled.
    clock.advance(SECOND);
    crowd.leave(0);
    assert_eq!(crowd.answer(1).expect("admitted").0, later(SECOND));
    assert!(!limiter.check("a").unwrap().allowed(), "nothing else was taken");
    // The one in the middle is nobody's concern.
    crowd.join(wait(&limiter, "a", 1, HOUR));
    crowd.leave(2);
    crowd.advance_to(later(2 * SECOND));
    assert_eq!(crowd.ended, [1, 3]);
    assert_eq!(limiter.stats().waiters, 0);
}

/// A dropped waker may drop a task, and with it another waiter.
#[test]
fn c6_a_waker_may_own_another_waiter() {
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Wake, Waker};

    struct Owner(Mutex<Option<super::Waiting>>);

    impl Wake for Owner {
        fn wake(self: Arc<Self>) {
            drop(self.0.lock().unwrap().take());
        }
    }

    let (limiter, clock) = limiter(Limit::per_second(1).burst(1));
    assert!(limiter.check("a").unwrap().allowed());
    let mut owned = wait(&limiter, "a", 1, HOUR);
    assert!(super::poll(&mut owned).is_pending());
    let mut first = wait(&limiter, "a", 1, HOUR);
    let waker = Waker::from(Arc::new(Owner(Mutex::new(Some(owned)))));
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // The next poll replaces the waker, which was the last of its kind.
    drop(waker);
    assert!(super::poll(&mut first).is_pending());
    clock.advance(SECOND);
    assert!(super::admitted(&mut first));
}
