//! C8: slots of one process: guards, renewal, failing stores, and limits that change their kind.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::{
    Clock, Error, FailurePolicy, HOUR, Limit, Limiter, ManualClock, MemoryStore, OnExpiry, Request, Rule,
    RuleSet, SECOND, Slot, Store, Timestamp, block_on,
};
use tollgate_testkit::{Fault, FaultyStore};

const TTL: Duration = Duration::from_secs(30);

fn rules(limit: impl Into<tollgate::Limits>) -> RuleSet {
    RuleSet::new([Rule::new("per-client", limit).key(["client"])]).unwrap()
}

fn limiter(limit: Limit) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    (Limiter::builder(rules(limit)).clock(clock.clone()).build().unwrap(), clock)
}

fn acquire<S: Store>(limiter: &Limiter<S>) -> Slot<S> {
    block_on(limiter.acquire("a", TTL)).unwrap()
}

fn left<S: Store>(limiter: &Limiter<S>) -> u64 {
    block_on(limiter.peek("a")).unwrap().remaining()
}

fn poll<F: Future>(future: std::pin::Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn c8_a_dropped_guard_releases_its_slot_and_a_detached_one_keeps_it() {
    let (limiter, clock) = limiter(Limit::concurrent(2));
    let (first, second) = (acquire(&limiter), acquire(&limiter));
    assert!(first.decision().allowed() && second.decision().allowed());
    let denied = acquire(&limiter);
    assert_eq!(denied.decision().retry_after(), Some(TTL), "the earliest expiry");
    assert_eq!(block_on(denied.renew()), Err(Error::NotReserved));
    drop(denied);
    assert_eq!(left(&limiter), 0, "a denied guard releases nobody's slot");
    drop(first);
    assert_eq!(left(&limiter), 1);
    let id = second.detach().unwrap();
    assert_eq!(left(&limiter), 1);
    clock.advance(TTL / 2);
    block_on(limiter.renew(id, "a", TTL)).unwrap();
    clock.advance(TTL - SECOND);
    assert_eq!(left(&limiter), 1);
    block_on(limiter.release(id, "a")).unwrap();
    assert_eq!(left(&limiter), 2);
    assert_eq!(block_on(limiter.release(id, "a")), Err(Error::NotReserved));
    assert_eq!(block_on(limiter.renew(id, "a", TTL)), Err(Error::NotReserved), "its name is gone");
}

/// A reservation's slot can be released before its cost is known.
#[test]
fn c8_releasing_the_slot_of_a_reservation_gives_back_no_units() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let rules = rules([Limit::concurrent(2), Limit::fixed_window(10, HOUR)]);
    let limiter = Limiter::builder(rules).clock(clock).build().unwrap();
    let left = || {
        let decision = block_on(limiter.peek("a")).unwrap();
        decision.limits().iter().map(|report| report.outcome.remaining).collect::<Vec<_>>()
    };
    let reserved = block_on(limiter.reserve(Request::client("a").cost(4), TTL, OnExpiry::Keep)).unwrap();
    let id = reserved.detach().unwrap();
    assert_eq!(left(), [1, 6]);
    block_on(limiter.release(id, "a")).unwrap();
    assert_eq!(left(), [2, 6], "the estimate stays charged");
    block_on(limiter.settle(id, Request::client("a").cost(1))).unwrap();
    assert_eq!(left(), [2, 9]);
}

#[test]
fn c8_work_under_way_keeps_its_slot_for_longer_than_its_time_to_live() {
    let (limiter, clock) = limiter(Limit::concurrent(1));
    let slot = acquire(&limiter);
    let mut work = Box::pin(slot.hold_during(std::future::pending::<()>()));
    for _ in 0..20 {
        assert!(poll(work.as_mut()).is_pending());
        assert!(!acquire(&limiter).decision().allowed());
        clock.advance(TTL / 3);
    }
}

#[test]
fn c8_work_whose_slot_was_lost_is_stopped() {
    let (limiter, clock) = limiter(Limit::concurrent(1));
    let slot = acquire(&limiter);
    let mut work = Box::pin(slot.hold_during(std::future::pending::<()>()));
    assert!(poll(work.as_mut()).is_pending());
    // The process was suspended.
    clock.advance(TTL);
    let other = acquire(&limiter);
    assert!(other.decision().allowed());
    assert_eq!(poll(work.as_mut()), Poll::Ready(Err(Error::NotReserved)));
    drop(work);
    drop(slot);
    assert_eq!(left(&limiter), 0, "the other's slot stays");
    assert_eq!(block_on(other.hold_during(async { 7 })), Ok(7));
}

#[test]
fn b11_a_lower_limit_grants_nothing_until_fewer_are_live() {
    let (limiter, clock) = limiter(Limit::concurrent(3));
    let held: Vec<_> = (0..3)
        .map(|_| {
            clock.advance(SECOND);
            acquire(&limiter)
        })
        .collect();
    limiter.set_rules(rules(Limit::concurrent(2))).unwrap();
    let wait = |slot: Slot<_>| slot.decision().retry_after();
    assert_eq!(wait(acquire(&limiter)), Some(TTL - SECOND), "when the second expires, one is live");
    for slot in &held {
        assert_eq!(block_on(slot.renew()), Ok(()));
    }
    assert_eq!(limiter.stats().converted, 0, "live slots are the same under every number");
    let mut held = held.into_iter();
    drop(held.next());
    assert_eq!(left(&limiter), 0, "two are live");
    drop(held.next());
    assert_eq!(left(&limiter), 1);
}

#[test]
fn b11_a_limit_that_changes_its_kind_keeps_what_is_under_way() {
    let (limiter, _) = limiter(Limit::fixed_window(10, HOUR));
    assert!(limiter.check(Request::client("a").cost(4)).unwrap().allowed());
    let reserve = || block_on(limiter.reserve("a", TTL, OnExpiry::Keep)).unwrap();
    let (reserved, other) = (reserve(), reserve());
    limiter.set_rules(rules(Limit::concurrent(3))).unwrap();
    let slot = acquire(&limiter);
    assert!(slot.decision().allowed(), "units that were used are not under way");
    assert_eq!(left(&limiter), 0, "reservations are");
    block_on(reserved.settle(9)).unwrap();
    assert_eq!(left(&limiter), 1);
    limiter.set_rules(rules(Limit::fixed_window(10, HOUR))).unwrap();
    assert!(limiter.check("a").unwrap().allowed());
    assert_eq!(left(&limiter), 7, "as many used as slots were live, and one");
    drop(slot);
    assert_eq!(left(&limiter), 8);
    drop(other);
}

#[test]
fn e4_a_failing_store_leaves_slots_to_the_failure_policy() {
    let limited = |policy| {
        let store = Arc::new(FaultyStore::new(MemoryStore::new()));
        let rule = Rule::new("per-client", [Limit::concurrent(10), Limit::fixed_window(100, HOUR)]);
        let rules = RuleSet::new([rule.key(["client"]).on_store_error(policy)]).unwrap();
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let builder = Limiter::builder(rules).store(Arc::clone(&store)).clock(clock).local_share(0.2);
        store.set(Fault::Fail);
        builder.build().unwrap()
    };
    let open = acquire(&limited(FailurePolicy::Open));
    assert!(open.decision().allowed() && open.decision().degraded());
    assert_eq!(block_on(open.renew()), Ok(()));
    assert_eq!(open.detach(), None, "the store holds nothing");
    assert!(!acquire(&limited(FailurePolicy::Closed)).decision().allowed());
    let local = limited(FailurePolicy::Local);
    let (first, second) = (acquire(&local), acquire(&local));
    assert!(first.decision().allowed() && second.decision().allowed());
    assert!(!acquire(&local).decision().allowed(), "a share of two slots");
    assert_eq!(block_on(first.renew()), Ok(()));
    drop(first);
    assert!(acquire(&local).decision().allowed(), "released locally");
}

#[test]
fn b6_a_key_with_a_live_slot_is_not_forgotten_and_then_is() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let store = MemoryStore::new().sweep(Duration::from_nanos(1), Duration::ZERO);
    let builder = Limiter::builder(rules(Limit::concurrent(1))).store(store).clock(clock.clone());
    let limiter = builder.build().unwrap();
    assert!(acquire(&limiter).detach().is_some());
    clock.advance(TTL - Duration::from_nanos(1));
    limiter.store().sweep_all(clock.now());
    assert_eq!(limiter.stats().live_keys, Some(1));
    assert_eq!(left(&limiter), 0);
    clock.advance(Duration::from_nanos(1));
    limiter.store().sweep_all(clock.now());
    assert_eq!(limiter.stats().live_keys, Some(0));
}

/// In a runtime, a store that answers later is asked by a task: the drop does not wait.
#[cfg(feature = "tokio")]
#[tokio::test]
async fn c8_a_task_renews_a_guard_and_releases_it_when_it_is_dropped() {
    let (limiter, clock) = limiter(Limit::concurrent(1));
    let slot = limiter.acquire("a", TTL).await.unwrap().renewing();
    for _ in 0..10 {
        while clock.next_wake().is_none() {
            tokio::task::yield_now().await;
        }
        clock.advance(TTL / 3);
        tokio::task::yield_now().await;
        assert_eq!(left(&limiter), 0);
    }
    drop(slot);
    assert_eq!(left(&limiter), 1);
}

#[test]
fn c8_slots_that_come_with_a_request_are_held_against_whatever_number_comes() {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    let rules = RuleSet::new([Rule::inline("inline").key(["client"])]).unwrap();
    let limiter = Limiter::builder(rules).clock(clock.clone()).build().unwrap();
    let slots = |number| limiter.inline(Limit::concurrent(number)).unwrap();
    let acquire =
        |number| block_on(limiter.acquire(Request::client("a").under("inline", &slots(number)), TTL));
    let (first, second) = (acquire(2).unwrap(), acquire(2).unwrap());
    assert!(first.decision().allowed() && second.decision().allowed());
    assert!(!acquire(2).unwrap().decision().allowed());
    assert!(acquire(3).unwrap().decision().allowed(), "dropped at once");
    drop(first);
    assert!(!acquire(1).unwrap().decision().allowed());
    let bucket = limiter.inline(Limit::per_minute(1)).unwrap();
    let check = || limiter.check(Request::client("a").under("inline", &bucket)).unwrap().allowed();
    assert!(check() && !check(), "B12: another limit of the same key");
    let refused = limiter.check(Request::client("a").under("inline", &slots(9)));
    assert_eq!(refused, Err(Error::SlotNeeded { rule: "inline".into() }));
    block_on(limiter.reset(Request::client("a").own().only("inline"))).unwrap();
    assert!(check(), "the bucket was reset");
    assert_eq!(block_on(second.release()), Err(Error::NotReserved), "and so were the slots");
}

#[test]
fn b11_what_is_recorded_under_a_rate_that_replaced_slots_takes_no_slot() {
    let (limiter, clock) = limiter(Limit::concurrent(2));
    let slot = acquire(&limiter);
    limiter.set_rules(rules(Limit::fixed_window(10, HOUR))).unwrap();
    block_on(limiter.record(Request::client("a").cost(5))).unwrap();
    assert_eq!(left(&limiter), 4, "one slot and five units");
    assert!(slot.detach().is_some());
    clock.advance(TTL);
    assert_eq!(left(&limiter), 5);
}
