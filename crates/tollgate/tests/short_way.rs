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

/// One rule, for each client or for all of them together.
fn rules(limits: &[Limit], global: bool) -> RuleSet {
    let rule = Rule::new("rule", limits.to_vec()).cost(2);
    RuleSet::new([if global { rule } else { rule.key(["client"]) }]).unwrap()
}

fn do_aside(limiter: &Limiter, aside: Aside, client: &str, other: &RuleSet, now: Timestamp, odd: bool) {
    // What is done to a client leaves global budgets alone, unless their rule is named.
    let client = Request::client(client).only("rule");
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
        Aside::Change => limiter.set_rules(other.clone()).unwrap(),
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
        global: bool,
    ) {
        let clock = ManualClock::at(Timestamp::from_millis(1_800_000_123_456));
        let build = || {
            let store = MemoryStore::new().max_keys(2).sweep(MINUTE / 2, MINUTE);
            Limiter::builder(rules(&limits, global)).store(store).clock(clock.clone()).build().unwrap()
        };
        let (short, long) = (build(), build());
        for (Step { wait, client, cost }, (aside, odd)) in steps.into_iter().zip(asides) {
            clock.advance(wait);
            let now = tollgate::Clock::now(&clock);
            for limiter in [&short, &long] {
                let other = rules(if odd { &others } else { &limits }, global);
                do_aside(limiter, aside, CLIENTS[client], &other, now, odd);
            }
            let request = Request::client(CLIENTS[client]).cost(cost);
            let decision = short.check(request).unwrap();
            prop_assert_eq!(&decision, &block_on(long.check_async(request)).unwrap());
            prop_assert!(short.stats().live_keys <= Some(2));
        }
        prop_assert_eq!(short.stats().total, long.stats().total);
        prop_assert_eq!(&short.stats().rules, &long.stats().rules);
    }

    #[test]
    fn b10_a_batch_gets_the_same_answers_as_one_request_at_a_time(
        limits in prop::collection::vec(any_limit(std::time::Duration::from_nanos(1)), 1..=3),
        steps in steps(std::time::Duration::from_nanos(1), MINUTE, 200),
        batches in prop::collection::vec((1..90_usize, aside(), any::<bool>()), 6),
        shape in 0..4,
    ) {
        let clock = ManualClock::at(Timestamp::from_millis(1_800_000_123_456));
        let rules = || match shape {
            0 | 1 => rules(&limits, shape == 1),
            // Several rules, and a request that is not covered by the same ones as its neighbours.
            2 => RuleSet::new([Rule::new("all", limits.clone()), Rule::new("rule", limits.clone()).key(["client"])]).unwrap(),
            _ => RuleSet::new([Rule::new("rule", limits.clone()).key(["client"]).matching("client", "a*")]).unwrap(),
        };
        let build = || {
            let store = MemoryStore::new().max_keys(2);
            Limiter::builder(rules()).store(store).clock(clock.clone()).build().unwrap()
        };
        let (together, alone) = (build(), build());
        let mut steps = steps.into_iter();
        for (size, aside, odd) in batches {
            let batch: Vec<Step> = steps.by_ref().take(size).collect();
            clock.advance(batch.first().map_or(MINUTE, |step| step.wait));
            let now = tollgate::Clock::now(&clock);
            for limiter in [&together, &alone] {
                do_aside(limiter, aside, CLIENTS[0], &rules(), now, odd);
            }
            // One that cannot be counted, among those that can.
            let requests: Vec<Request<'_>> = batch
                .iter()
                .map(|step| Request::client(CLIENTS[step.client]).cost(step.cost))
                .chain([Request::client(""), Request::client("a").cost(u64::MAX)])
                .collect();
            let mut answers = Vec::new();
            together.check_many(&requests, |answer| answers.push(answer));
            let expected: Vec<_> = requests.iter().map(|request| alone.check(*request)).collect();
            prop_assert_eq!(answers, expected);
        }
        // Not how many keys are live: which idle ones are forgotten first is each store's secret.
        prop_assert_eq!(together.stats().total, alone.stats().total);
        prop_assert_eq!(together.stats().rules, alone.stats().rules);
    }
}
