//! C6 and C8: waiting for a slot.

use std::sync::Arc;
use std::time::Duration;

use tollgate::{
    Clock as _, Error, HOUR, Limit, Limiter, MINUTE, ManualClock, MemoryStore, Rule, RuleSet, SECOND, Slot,
    Store, Timestamp, Verdict, block_on,
};
use tollgate_testkit::FaultyStore;

use super::crowd::Crowd;
use super::{START, later, limiter};

const TTL: Duration = Duration::from_secs(30);

type Slots<S> = Crowd<Result<Slot<S>, Error>>;

fn acquire<S: Store>(
    limiter: &Limiter<S>,
    timeout: Duration,
) -> impl Future<Output = Result<Slot<S>, Error>> + use<S> {
    let limiter = limiter.clone();
    async move { limiter.acquire_within("a", TTL, timeout).await }
}

fn is_held<S: Store>(crowd: &Slots<S>, index: usize) -> Option<bool> {
    crowd.answer(index).map(|(_, slot)| slot.as_ref().unwrap().decision().allowed())
}

#[test]
fn c8_a_released_slot_goes_to_the_first_that_waits_at_once() {
    let (limiter, clock) = limiter(Limit::concurrent(2));
    let mut slots: Vec<_> = (0..2).map(|_| block_on(acquire(&limiter, HOUR)).unwrap()).collect();
    assert!(slots.iter().all(|slot| slot.decision().allowed()));
    let mut crowd = Slots::new(&clock);
    for _ in 0..4 {
        crowd.join(acquire(&limiter, HOUR));
    }
    assert_eq!(crowd.waiting(), 4);
    drop(slots.pop());
    crowd.settle();
    assert_eq!(crowd.ended, [0]);
    block_on(slots.pop().unwrap().release()).unwrap();
    crowd.settle();
    assert_eq!(crowd.ended, [0, 1]);
    // A slot that nobody releases expires.
    crowd.advance_to(later(TTL));
    assert_eq!(crowd.ended, [0, 1, 2, 3]);
    assert!((0..4).all(|index| is_held(&crowd, index) == Some(true)));
}

#[test]
fn c8_whoever_waits_for_a_slot_is_answered_at_its_deadline() {
    let (limiter, clock) = limiter(Limit::concurrent(1));
    let first = block_on(limiter.acquire("a", HOUR)).unwrap();
    let mut crowd = Slots::new(&clock);
    for secs in [20, 10, 30] {
        crowd.join(acquire(&limiter, secs * SECOND));
    }
    crowd.advance_to(later(25 * SECOND));
    assert_eq!(crowd.ended, [1, 0]);
    for (secs, index) in [(20, 0), (10, 1)] {
        let (at, slot) = crowd.answer(index).unwrap();
        let verdict = slot.as_ref().unwrap().decision().verdict();
        assert_eq!(*at, later(secs * SECOND));
        assert!(matches!(verdict, Verdict::Denied { retry_after } if retry_after > MINUTE));
    }
    drop(first);
    crowd.settle();
    assert_eq!(is_held(&crowd, 2), Some(true));
    // A cancelled wait takes no slot.
    let mut crowd = Slots::new(&clock);
    crowd.join(acquire(&limiter, HOUR));
    crowd.join(acquire(&limiter, HOUR));
    crowd.leave(0);
    crowd.advance_to(later(2 * HOUR));
    assert_eq!((is_held(&crowd, 1), limiter.stats().waiters), (Some(true), 0));
}

#[test]
fn c8_a_rate_beside_the_slots_is_waited_for_as_well() {
    let clock = ManualClock::at(START);
    let rules = RuleSet::new([
        Rule::new("slots", Limit::concurrent(1)).key(["client"]),
        Rule::new("rate", Limit::token_bucket(1, 1, 10 * SECOND)).key(["client"]),
    ]);
    let limiter = Limiter::builder(rules.unwrap()).clock(clock.clone()).build().unwrap();
    let first = block_on(acquire(&limiter, HOUR)).unwrap();
    let mut crowd = Slots::new(&clock);
    crowd.join(acquire(&limiter, MINUTE));
    clock.advance(SECOND);
    drop(first);
    crowd.settle();
    assert_eq!(crowd.waiting(), 1, "the slot is free, and the unit comes later");
    crowd.advance_to(later(MINUTE));
    assert_eq!(crowd.answer(0).unwrap().0, later(10 * SECOND));
}

#[test]
fn c8_a_shared_store_is_asked_again_at_a_bounded_pace_and_when_a_slot_expires() {
    let clock = ManualClock::at(START);
    let store = Arc::new(FaultyStore::new(MemoryStore::new()));
    let node = || {
        let rules = RuleSet::new([Rule::new("slots", Limit::concurrent(1)).key(["client"])]).unwrap();
        Limiter::builder(rules).store(Arc::clone(&store)).clock(clock.clone()).build().unwrap()
    };
    let (one, other) = (node(), node());
    let held = block_on(other.acquire("a", 10 * SECOND)).unwrap();
    let mut crowd = Slots::new(&clock);
    for _ in 0..5 {
        crowd.join(acquire(&one, HOUR));
    }
    let calls = store.calls();
    crowd.advance_to(later(5 * SECOND));
    let calls = store.calls() - calls;
    assert!((5 * 4..=5 * 20).contains(&calls), "{calls} in 5 s: every 50 to 250 ms");
    drop(held);
    crowd.advance_to(later(5 * SECOND + SECOND / 4));
    assert_eq!(is_held(&crowd, 0), Some(true), "another process has released it");
    // Now at its expiry, which comes before the next question.
    let granted: Timestamp = crowd.answer(0).unwrap().0;
    crowd.advance_to(granted.saturating_add(TTL));
    assert_eq!(crowd.answer(1).expect("expired").0, granted.saturating_add(TTL));
    assert!(clock.now() >= granted);
}
