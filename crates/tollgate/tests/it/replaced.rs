//! B11: guards that were made under rules that have been replaced since.

use std::time::Duration;

use tollgate::{
    HOUR, Limit, Limiter, Limits, ManualClock, OnExpiry, Override, Request, Rule, RuleSet, SECOND, Timestamp,
    block_on,
};

const TTL: Duration = Duration::from_secs(30);

fn rules(limits: impl Into<Limits>) -> RuleSet {
    RuleSet::new([Rule::new("per-client", limits).key(["client"])]).unwrap()
}

fn limiter(rules: RuleSet) -> (Limiter, ManualClock) {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    (Limiter::builder(rules).clock(clock.clone()).build().unwrap(), clock)
}

fn request(cost: u64) -> Request<'static> {
    Request::client("a").cost(cost)
}

fn left(limiter: &Limiter) -> u64 {
    block_on(limiter.peek("a")).unwrap().remaining()
}

#[test]
fn b11_settling_a_reservation_of_an_older_limit_does_not_bring_that_limit_back() {
    let ends: [fn(tollgate::Reservation<tollgate::MemoryStore>); 3] = [
        |reservation| assert_eq!(block_on(reservation.settle(10)).unwrap().shortfall, 0),
        |reservation| {
            block_on(reservation.renew(TTL)).unwrap();
            reservation.detach();
        },
        drop,
    ];
    for end in ends {
        let (limiter, _) = limiter(rules(Limit::per_hour(100)));
        let reserved = block_on(limiter.reserve(request(10), TTL, OnExpiry::Keep)).unwrap();
        limiter.set_rules(rules(Limit::per_hour(1_000))).unwrap();
        assert!(limiter.check(request(500)).unwrap().allowed());
        end(reserved);
        assert_eq!(left(&limiter), 490);
    }
}

#[test]
fn b11_a_reservation_is_settled_under_the_limit_in_force() {
    let (limiter, _) = limiter(rules(Limit::fixed_window(10, HOUR)));
    let reserved = block_on(limiter.reserve(request(1), TTL, OnExpiry::Keep)).unwrap();
    limiter.set_rules(rules(Limit::fixed_window(4, HOUR).debt(0))).unwrap();
    assert_eq!(block_on(reserved.settle(6)).unwrap().shortfall, 2);
    assert_eq!(left(&limiter), 0);
}

#[test]
fn b11_a_reservation_is_settled_under_the_override_in_force_for_its_client() {
    let (limiter, _) = limiter(rules(Limit::per_hour(100)));
    let reserved = block_on(limiter.reserve(request(10), TTL, OnExpiry::Keep)).unwrap();
    let gold = Override::new("per-client", Limit::per_hour(1_000)).matching("client", "a");
    limiter.set_rules(rules(Limit::per_hour(50)).with_overrides([gold]).unwrap()).unwrap();
    assert!(limiter.check(request(500)).unwrap().allowed());
    block_on(reserved.settle(10)).unwrap();
    assert_eq!(left(&limiter), 490);
}

#[test]
fn b11_a_slot_that_a_rate_replaced_is_renewed_and_released_under_the_rate() {
    let (limiter, clock) = limiter(rules(Limit::concurrent(5)));
    let slot = block_on(limiter.acquire("a", TTL)).unwrap();
    limiter.set_rules(rules(Limit::per_hour(1_000))).unwrap();
    assert!(limiter.check(request(500)).unwrap().allowed());
    clock.advance(SECOND);
    block_on(slot.renew()).unwrap();
    assert_eq!(left(&limiter), 499);
    block_on(slot.release()).unwrap();
    assert_eq!(left(&limiter), 500);
}

#[test]
fn b11_a_reservation_outlives_its_rule() {
    let (limiter, _) = limiter(rules(Limit::per_hour(100)));
    let reserved = block_on(limiter.reserve(request(10), TTL, OnExpiry::Keep)).unwrap();
    let other = Rule::new("other", Limit::per_hour(7)).key(["client"]);
    limiter.set_rules(RuleSet::new([other]).unwrap()).unwrap();
    block_on(reserved.settle(4)).unwrap();
    limiter.set_rules(rules(Limit::per_hour(100))).unwrap();
    assert_eq!(left(&limiter), 96);
}
