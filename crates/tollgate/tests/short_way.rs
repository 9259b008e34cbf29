//! The short way through the memory store decides exactly as the long way does.
//!
//! The laws run over `check_async`, which takes the long way; this is what carries them over to
//! `check`.

use proptest::prelude::*;
use tollgate::{
    Limit, Limiter, MINUTE, ManualClock, MemoryStore, Request, Rule, RuleSet, Timestamp, block_on,
};
use tollgate_testkit::{Step, any_limit, steps};

const CLIENTS: [&str; 3] = ["a", "a\0", "b"];

/// What is done between checks, to both alike, so that states move in and out of their tables.
#[derive(Clone, Copy, Debug)]
enum Aside {
    Nothing,
    Peek,
    Refund,
    Block,
    Reset,
    Reserve,
    Change,
    Reclaim,
}

fn aside() -> impl Strategy<Value = Aside> {
    use Aside::{Block, Change, Nothing, Peek, Reclaim, Refund, Reserve, Reset};
    prop_oneof![
        12 => Just(Nothing), 1 => Just(Peek), 1 => Just(Refund), 1 => Just(Block),
        1 => Just(Reset), 1 => Just(Reserve), 1 => Just(Change), 1 => Just(Reclaim),
    ]
}

fn rules(limits: &[Limit]) -> RuleSet {
    RuleSet::new([Rule::new("per-client", limits.to_vec()).key(["client"]).cost(2)]).unwrap()
}

fn do_aside(limiter: &Limiter, aside: Aside, client: &str, limits: [&[Limit]; 2], now: Timestamp, odd: bool) {
    match aside {
        Aside::Nothing => {}
        Aside::Peek => drop(block_on(limiter.peek(client))),
        Aside::Refund => drop(block_on(limiter.refund(client))),
        Aside::Block => drop(block_on(limiter.block(client, now.saturating_add(MINUTE / 4)))),
        Aside::Reset => drop(block_on(limiter.reset(client))),
        Aside::Reserve => {
            let reservation = block_on(limiter.reserve(client, MINUTE / 8)).unwrap();
            if odd {
                drop(block_on(reservation.settle(2)));
            }
        }
        Aside::Change => limiter.set_rules(rules(limits[usize::from(odd)])).unwrap(),
        Aside::Reclaim => drop(limiter.store().reclaim(now)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn b10_the_short_way_and_the_long_way_agree(
        limits in prop::collection::vec(any_limit(std::time::Duration::from_nanos(1)), 1..=3),
        others in prop::collection::vec(any_limit(std::time::Duration::from_nanos(1)), 1..=3),
        steps in steps(std::time::Duration::from_nanos(1), MINUTE, 60),
        asides in prop::collection::vec((aside(), any::<bool>()), 60),
    ) {
        let clock = ManualClock::at(Timestamp::from_millis(1_800_000_123_456));
        let build = || {
            let store = MemoryStore::new().max_keys(2).sweep(MINUTE / 2, MINUTE);
            Limiter::builder(rules(&limits)).store(store).clock(clock.clone()).build().unwrap()
        };
        let (short, long) = (build(), build());
        for (Step { wait, client, cost }, (aside, odd)) in steps.into_iter().zip(asides) {
            clock.advance(wait);
            let now = tollgate::Clock::now(&clock);
            for limiter in [&short, &long] {
                do_aside(limiter, aside, CLIENTS[client], [&limits, &others], now, odd);
            }
            let request = Request::client(CLIENTS[client]).cost(cost);
            let decision = short.check(request).unwrap();
            prop_assert_eq!(&decision, &block_on(long.check_async(request)).unwrap());
            prop_assert!(short.stats().live_keys <= Some(2));
        }
        prop_assert_eq!(short.stats().total, long.stats().total);
        prop_assert_eq!(&short.stats().rules, &long.stats().rules);
    }
}
