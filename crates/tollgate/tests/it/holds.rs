//! The bound on reservations and slots, in all and per caller, and those that no store has.

use std::time::Duration;

use tollgate::{
    Caller, Cause, Error, HOUR, HoldsBound, Limit, Limiter, MINUTE, ManualClock, MemoryStore, OnExpiry,
    Request, Rule, RuleSet, SECOND, Settlement, Slot, Timestamp, Verdict, block_on,
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn limiter(clock: &ManualClock) -> Limiter {
    let rules = RuleSet::new([
        Rule::new("shared", Limit::fixed_window(1_000, HOUR)),
        Rule::new("slots", Limit::concurrent(100)).key(["slots"]),
    ]);
    let builder = Limiter::builder(rules.unwrap()).clock(clock.clone());
    builder.max_holds(10).holds_per_caller(0.2).build().unwrap()
}

/// The verdict and the cause of a reservation that stays in the store.
fn reserve(
    limiter: &Limiter,
    caller: Option<Caller>,
    name: &str,
    cost: u64,
    ttl: Duration,
) -> (Verdict, Cause) {
    let request = Request::client(name).cost(cost);
    let request = if let Some(caller) = caller { request.caller(caller) } else { request };
    let reservation = block_on(limiter.reserve(request, ttl, OnExpiry::GiveBack)).unwrap();
    let decision = reservation.decision().clone();
    reservation.detach();
    (decision.verdict(), decision.cause())
}

fn full(bound: HoldsBound, retry_after: Duration) -> (Verdict, Cause) {
    (Verdict::Denied { retry_after }, Cause::HoldsFull { bound })
}

const ALLOWED: (Verdict, Cause) = (Verdict::Allowed, Cause::Limit);

#[test]
fn c5_a_caller_has_its_share_of_the_holds_whatever_clients_it_names() {
    let clock = ManualClock::at(NOW);
    let limiter = limiter(&clock);
    let [one, other] = ["one", "other"].map(|name| Some(Caller::new(name)));
    assert_eq!(reserve(&limiter, one, "a", 1, 10 * SECOND), ALLOWED);
    assert_eq!(reserve(&limiter, one, "b", 0, 20 * SECOND), ALLOWED, "a reservation of 0 counts");
    let denied = full(HoldsBound::Caller, 20 * SECOND);
    for cost in [0, 1] {
        assert_eq!(reserve(&limiter, one, "c", cost, SECOND), denied, "the first ends after 20 s");
    }
    let slots = Request::new(&[("slots", "a")]).caller(one.unwrap());
    let slot = block_on(limiter.acquire(slots, SECOND)).unwrap();
    assert_eq!((slot.decision().verdict(), slot.decision().cause()), denied, "slots and reservations alike");
    assert_eq!(reserve(&limiter, other, "a", 1, SECOND), ALLOWED, "another caller has room");
    let proxy = one.map(|caller| caller.with_share(2));
    assert_eq!(reserve(&limiter, proxy, "a", 1, SECOND), ALLOWED, "a larger share");
    let stats = limiter.stats();
    assert_eq!((stats.holds, stats.max_holds, stats.holds_refused), (4, 10, 3));
    clock.advance(20 * SECOND);
    assert_eq!(reserve(&limiter, one, "c", 1, SECOND), ALLOWED, "as told");
    assert_eq!(limiter.stats().holds, 2);
}

#[test]
fn c5_holds_are_bounded_in_all_and_leave_when_they_are_settled_released_or_denied() {
    let clock = ManualClock::at(NOW);
    let limiter = limiter(&clock);
    let request = Request::client("a").cost(1);
    let held = block_on(limiter.reserve(request, MINUTE, OnExpiry::Keep)).unwrap().detach().unwrap();
    let slots: Vec<Slot<MemoryStore>> =
        (0..9).map(|_| block_on(limiter.acquire(&[("slots", "a")], 30 * SECOND)).unwrap()).collect();
    assert!(slots.iter().all(|slot| slot.decision().allowed()));
    assert_eq!(reserve(&limiter, None, "b", 1, SECOND), full(HoldsBound::All, 30 * SECOND));
    assert_eq!(limiter.check("a").unwrap().verdict(), Verdict::Allowed, "a check holds nothing");
    block_on(limiter.settle(held, request)).unwrap();
    assert_eq!(limiter.stats().holds, 9);
    drop(slots);
    assert_eq!(limiter.stats().holds, 0);
    let denied = reserve(&limiter, None, "b", 5_000, SECOND);
    assert_eq!((denied, limiter.stats().holds), ((Verdict::Never, Cause::Limit), 0));
}

#[test]
fn c5_a_renewed_hold_stays_and_a_guard_that_is_dropped_leaves() {
    let clock = ManualClock::at(NOW);
    let limiter = limiter(&clock);
    let request = Request::client("a").cost(1);
    let guard = block_on(limiter.reserve(request, 10 * SECOND, OnExpiry::GiveBack)).unwrap();
    clock.advance(9 * SECOND);
    block_on(guard.renew(MINUTE)).unwrap();
    clock.advance(MINUTE);
    assert_eq!(limiter.stats().holds, 1);
    drop(guard);
    assert_eq!(limiter.stats().holds, 0);
}

/// No rule covers it, so no store has it.
#[test]
fn c7_a_reservation_that_no_rule_covers_is_settled_once_by_the_limiter_that_made_it() {
    let rules = || RuleSet::new([Rule::new("other", Limit::per_hour(10)).key(["user"])]).unwrap();
    let clock = ManualClock::at(NOW);
    let build = || Limiter::builder(rules()).clock(clock.clone()).build().unwrap();
    let (limiter, elsewhere) = (build(), build());
    let request = Request::client("a").cost(3);
    let reserve = || block_on(limiter.reserve(request, MINUTE, OnExpiry::Keep)).unwrap().detach().unwrap();
    let (first, second) = (reserve(), reserve());
    assert_eq!(block_on(elsewhere.settle(first, request)), Err(Error::NotReserved));
    assert_eq!(block_on(limiter.settle(first, request)), Ok(Settlement { shortfall: 0 }));
    assert_eq!(block_on(limiter.settle(first, request)), Err(Error::NotReserved));
    block_on(limiter.renew(second, request, 2 * MINUTE)).unwrap();
    clock.advance(4 * MINUTE);
    assert_eq!(block_on(limiter.settle(second, request)), Err(Error::NotReserved), "it has ended");
}

#[cfg(feature = "dump")]
#[test]
fn c5_holds_of_a_restored_store_count() {
    let clock = ManualClock::at(NOW);
    let old = limiter(&clock);
    assert_eq!(reserve(&old, None, "a", 1, MINUTE), ALLOWED);
    let mut dump = Vec::new();
    old.store().dump(&mut dump).unwrap();
    let store = MemoryStore::restore(&*dump).unwrap();
    let rules = old.rules();
    let new = Limiter::builder(rules).store(store).clock(clock.clone()).max_holds(1).build().unwrap();
    assert_eq!(new.stats().holds, 1);
    assert_eq!(reserve(&new, None, "b", 1, SECOND), full(HoldsBound::All, 2 * MINUTE));
    clock.advance(2 * MINUTE);
    assert_eq!(reserve(&new, None, "b", 1, SECOND), ALLOWED);
}
