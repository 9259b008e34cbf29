//! The short way through the memory store decides exactly as the long way does.
//!
//! The laws run over `check_async`, which takes the long way; this is what carries them over to
//! `check`.

use proptest::prelude::*;
use tollgate::{
    Limit, Limiter, MINUTE, ManualClock, MemoryStore, Override, Request, Rule, RuleSet, Timestamp, block_on,
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

/// Rules of several shapes: for each client, for all of them together, both, and with overrides
/// that share the rule's budget and that have their own.
fn rules(limits: &[Limit], shape: u8) -> RuleSet {
    let rule = || Rule::new("rule", limits.to_vec()).cost(2);
    let all = || Rule::new("all", limits.to_vec());
    let replaced = |name: &str, value: &str| {
        let fewer =
            limits.first().map_or(Limit::per_minute(1), |limit| Limit::per_minute(limit.capacity().min(3)));
        Override::new("rule", fewer).matching(name, value)
    };
    match shape {
        0 => RuleSet::new([rule()]),
        1 => RuleSet::new([rule().key(["client"])]),
        2 => RuleSet::new([all(), rule().key(["client"])]),
        3 => RuleSet::new([rule().key(["client"]), Rule::inline("brought").key(["client"])]),
        _ => RuleSet::new([rule().key(["client"])])
            .and_then(|rules| rules.with_overrides([replaced("path", "/x"), replaced("client", "b")])),
    }
    .unwrap()
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
        asides in prop::collection::vec((aside(), any::<bool>(), 0..12_u8), 60),
        shape in 0..5_u8,
    ) {
        let clock = ManualClock::at(Timestamp::from_millis(1_800_000_123_456));
        // A full table has two keys, or as many as there can be: which idle ones are forgotten first, so
        // that there is room, is each store's secret.
        let most = if shape < 2 { 2 } else { 8 };
        let build = || {
            let store = MemoryStore::new().seeded([1, 2]).max_keys(most).sweep(MINUTE / 2, MINUTE);
            Limiter::builder(rules(&limits, shape)).store(store).clock(clock.clone()).build().unwrap()
        };
        let (short, long) = (build(), build());
        let inline = [Limit::per_minute(3), Limit::fixed_window(2, MINUTE)].map(|limit| short.inline(limit).unwrap());
        for (Step { wait, client, cost }, (aside, odd, other)) in steps.into_iter().zip(asides) {
            if other == 0 {
                // By less than it takes for a key to be forgotten.
                clock.set(tollgate::Clock::now(&clock).saturating_sub(wait.min(MINUTE / 2)));
            } else {
                clock.advance(wait);
            }
            let now = tollgate::Clock::now(&clock);
            for limiter in [&short, &long] {
                let other = rules(if odd { &others } else { &limits }, shape);
                do_aside(limiter, aside, CLIENTS[client], &other, now, odd);
            }
            let on_path = [("client", CLIENTS[client]), ("path", "/x")];
            let request = match (shape, odd) {
                (3, _) => Request::client(CLIENTS[client]).under("brought", &inline[usize::from(odd)]),
                (4, true) => Request::new(&on_path),
                _ => Request::client(CLIENTS[client]),
            };
            let decision = short.check(request.cost(cost)).unwrap();
            prop_assert_eq!(&decision, &block_on(long.check_async(request.cost(cost))).unwrap());
            prop_assert!(short.stats().live_keys <= Some(most));
        }
        prop_assert_eq!(short.stats().total, long.stats().total);
        prop_assert_eq!(&short.stats().rules, &long.stats().rules);
    }

    #[test]
    fn b10_a_batch_gets_the_same_answers_as_one_request_at_a_time(
        limits in prop::collection::vec(any_limit(std::time::Duration::from_nanos(1)), 1..=3),
        steps in steps(std::time::Duration::from_nanos(1), MINUTE, 200),
        batches in prop::collection::vec((1..90_usize, aside(), any::<bool>()), 6),
        shape in 0..4_u8,
    ) {
        let clock = ManualClock::at(Timestamp::from_millis(1_800_000_123_456));
        let rules = || match shape {
            0 | 1 => rules(&limits, shape),
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
