//! The fast path of the memory store decides exactly as the general path.
//!
//! A wrapped store does not decide in memory, so that every request takes the general path.

use proptest::prelude::*;
use tollgate::{
    Limit, Limiter, MAX_VALUE_BYTES, MINUTE, ManualClock, MemoryStore, OnExpiry, Override, Request, Rule,
    RuleSet, Store, Timestamp, block_on,
};
use tollgate_testkit::{FaultyStore, Step, any_limit, steps};

const CLIENTS: [&str; 3] = ["a", "a\0", "b"];

/// The third and the fourth cannot be part of a key.
const PATHS: [&str; 4] = ["/x", "7", "", LONG];

const LONG: &str = match str::from_utf8(&[b'x'; MAX_VALUE_BYTES + 1]) {
    Ok(long) => long,
    Err(_) => "",
};

/// An operation between checks, on both limiters, so that states move in and out of their tables.
#[derive(Clone, Copy, Debug)]
enum Interlude {
    Nothing,
    Peek,
    Refund,
    Record,
    Block,
    Reset,
    Reserve,
    Change,
    Reclaim,
}

fn interlude() -> impl Strategy<Value = Interlude> {
    use Interlude::{Block, Change, Nothing, Peek, Reclaim, Record, Refund, Reserve, Reset};
    prop_oneof![
        12 => Just(Nothing), 1 => Just(Peek), 1 => Just(Refund), 1 => Just(Block),
        2 => Just(Record), 1 => Just(Reset), 1 => Just(Reserve), 1 => Just(Change), 1 => Just(Reclaim),
    ]
}

/// Rules of several shapes: keyed, global, both with the same limits or with one each, inline, with
/// overrides that share the rule's budget and that have their own, that are shadows or warn, and by
/// several attributes.
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
        4 => {
            let (first, last) = (limits.first().copied(), limits.last().copied());
            let one = |name, limit: Option<Limit>| Rule::new(name, limit.unwrap_or(Limit::per_minute(1)));
            RuleSet::new([one("all", first), one("rule", last).key(["client"])])
        }
        3 => RuleSet::new([rule().key(["client"]), Rule::inline("inline").key(["client"]).cost(2)]),
        6 => RuleSet::new([
            rule().key(["client"]),
            Rule::inline("inline").key(["client"]).matching("client", "a*"),
        ]),
        7 => RuleSet::new([all().warn_at(50), rule().key(["client"]).shadow()]),
        8 => RuleSet::new([all().shadow(), rule().key(["client"]).warn_at(50)]),
        9 => {
            let by_path = Rule::new("path", Limit::per_minute(9)).key(["path"]);
            RuleSet::new([all(), rule().key(["client", "path"]), by_path])
        }
        _ => RuleSet::new([rule().key(["client"])])
            .and_then(|rules| rules.with_overrides([replaced("path", "/x"), replaced("client", "b")])),
    }
    .unwrap()
}

fn apply_interlude<S: Store>(
    limiter: &Limiter<S>,
    memory: &MemoryStore,
    interlude: Interlude,
    client: &str,
    other: &RuleSet,
    now: Timestamp,
    odd: bool,
) {
    // An administrative verb leaves global budgets unchanged, unless their rule is named.
    let client = Request::client(client).only("rule");
    match interlude {
        Interlude::Nothing => {}
        Interlude::Peek => drop(block_on(limiter.peek(client))),
        Interlude::Refund => drop(block_on(limiter.refund(client))),
        Interlude::Record => drop(block_on(limiter.record(client.cost(if odd { 3 } else { 12 })))),
        Interlude::Block => drop(block_on(limiter.block(client, now.saturating_add(MINUTE / 4)))),
        Interlude::Reset => drop(block_on(limiter.reset(client))),
        Interlude::Reserve => {
            let reservation = block_on(limiter.reserve(client, MINUTE / 8, OnExpiry::GiveBack)).unwrap();
            if odd {
                drop(block_on(reservation.settle(2)));
            }
        }
        Interlude::Change => limiter.set_rules(other.clone()).unwrap(),
        Interlude::Reclaim => drop(memory.reclaim(now)),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn b10_the_fast_path_and_the_general_path_agree(
        limits in prop::collection::vec(any_limit(std::time::Duration::from_nanos(1)), 1..=3),
        others in prop::collection::vec(any_limit(std::time::Duration::from_nanos(1)), 1..=3),
        steps in steps(std::time::Duration::from_nanos(1), MINUTE, 60),
        interludes in prop::collection::vec((interlude(), any::<bool>(), 0..12_u8), 60),
        shape in 0..10_u8,
        small in any::<bool>(),
    ) {
        let clock = ManualClock::at(Timestamp::from_millis(1_800_000_123_456));
        // A full store has two keys, or all of them: which idle key is forgotten first, to make
        // room, differs between stores.
        let is_full = small && shape < 2;
        let max_keys = if is_full { 2 } else { 16 };
        let store = || MemoryStore::new().seeded([1, 2]).max_keys(max_keys).sweep(MINUTE / 2, MINUTE);
        let builder = || Limiter::builder(rules(&limits, shape)).clock(clock.clone());
        let fast = builder().store(store()).build().unwrap();
        let general = builder().store(FaultyStore::new(store())).build().unwrap();
        // Whole tokens, a count, and tokens of two different fractions of a nanosecond.
        let inline = [3, 7, 11].map(|count| Limit::per_minute(count).burst(3));
        let inline = [inline[0], inline[1], inline[2], Limit::fixed_window(2, MINUTE)];
        let inline = inline.map(|limit| fast.inline(limit).unwrap());
        for (Step { wait, client, cost }, (interlude, odd, other)) in steps.into_iter().zip(interludes) {
            if other == 0 && !is_full {
                // By less than the time after which a key is forgotten. A full store forgets an
                // idle key at once, and an earlier reading shows whether it did.
                clock.set(tollgate::Clock::now(&clock).saturating_sub(wait.min(MINUTE / 2)));
            } else {
                clock.advance(wait);
            }
            let now = tollgate::Clock::now(&clock);
            let other_rules = rules(if odd { &others } else { &limits }, shape);
            apply_interlude(&fast, fast.store(), interlude, CLIENTS[client], &other_rules, now, odd);
            let memory = general.store().inner();
            apply_interlude(&general, memory, interlude, CLIENTS[client], &other_rules, now, odd);
            let on_path = [("client", CLIENTS[client]), ("path", "/x")];
            let any_path = [("client", CLIENTS[client]), ("path", PATHS[usize::from(other) % PATHS.len()])];
            let request = match (shape, odd) {
                // With both attributes, one of them, or none.
                (9, _) => Request::new(&any_path[usize::from(other % 3 == 2)..if odd { 1 } else { 2 }]),
                (3 | 6, _) => Request::client(CLIENTS[client]).under("inline", &inline[usize::from(other) % 4]),
                (4, true) => Request::new(&on_path),
                _ => Request::client(CLIENTS[client]),
            };
            // A cost of 0 writes nothing, which only shows when the clock goes back.
            let cost = if other < 3 { 0 } else { cost };
            let decision = fast.check(request.cost(cost));
            prop_assert!(decision.is_ok() || shape == 9);
            prop_assert_eq!(decision, block_on(general.check_async(request.cost(cost))));
            prop_assert!(fast.stats().live_keys <= Some(max_keys));
        }
        prop_assert_eq!(fast.stats().total, general.stats().total);
        prop_assert_eq!(&fast.stats().rules, &general.stats().rules);
    }

    #[test]
    fn b10_a_batch_gets_the_same_decisions_as_single_requests(
        limits in prop::collection::vec(any_limit(std::time::Duration::from_nanos(1)), 1..=3),
        steps in steps(std::time::Duration::from_nanos(1), MINUTE, 200),
        batches in prop::collection::vec((1..90_usize, interlude(), any::<bool>()), 6),
        shape in 0..5_u8,
    ) {
        let clock = ManualClock::at(Timestamp::from_millis(1_800_000_123_456));
        let rules = || match shape {
            0 | 1 => rules(&limits, shape),
            // Inline limits between plain ones.
            4 => rules(&limits, 3),
            // Several rules, and requests that different rules cover.
            2 => RuleSet::new([Rule::new("all", limits.clone()), Rule::new("rule", limits.clone()).key(["client"])]).unwrap(),
            _ => RuleSet::new([Rule::new("rule", limits.clone()).key(["client"]).matching("client", "a*")]).unwrap(),
        };
        let build = || {
            let store = MemoryStore::new().max_keys(2);
            Limiter::builder(rules()).store(store).clock(clock.clone()).build().unwrap()
        };
        let (batched, single) = (build(), build());
        let inline = batched.inline(Limit::per_minute(7).burst(3)).unwrap();
        let mut steps = steps.into_iter();
        for (size, interlude, odd) in batches {
            let batch: Vec<Step> = steps.by_ref().take(size).collect();
            clock.advance(batch.first().map_or(MINUTE, |step| step.wait));
            let now = tollgate::Clock::now(&clock);
            for limiter in [&batched, &single] {
                apply_interlude(limiter, limiter.store(), interlude, CLIENTS[0], &rules(), now, odd);
            }
            // Two invalid requests among the valid ones, last or first.
            let one = |step: &Step| {
                let request = Request::client(CLIENTS[step.client]).cost(step.cost);
                if shape == 4 && !step.cost.is_multiple_of(3) { request.under("inline", &inline) } else { request }
            };
            let mut requests: Vec<Request<'_>> = batch
                .iter()
                .map(one)
                .chain([Request::client(""), Request::client("a").cost(u64::MAX)])
                .collect();
            requests.rotate_right(if odd { 2 } else { 0 });
            let mut answers = Vec::new();
            batched.check_many(&requests, |answer| answers.push(answer));
            let expected: Vec<_> = requests.iter().map(|request| single.check(*request)).collect();
            prop_assert_eq!(answers, expected);
        }
        // The number of live keys may differ: which idle key is forgotten first differs between
        // stores.
        prop_assert_eq!(batched.stats().total, single.stats().total);
        prop_assert_eq!(batched.stats().rules, single.stats().rules);
    }
}

#[test]
fn d3_a_value_that_cannot_be_part_of_a_key_is_an_error_however_many_attributes_the_key_has() {
    for key in [&["path"][..], &["client", "path"]] {
        let rule = Rule::new("rule", Limit::per_minute(9)).key(key.iter().copied());
        let limiter = Limiter::builder(RuleSet::new([rule]).unwrap()).build().unwrap();
        for path in ["", LONG] {
            let invalid = limiter.check(&[("client", "a"), ("path", path)]).unwrap_err();
            assert_eq!(invalid.code(), "invalid_key");
            limiter.check_many(&[&[("client", "a"), ("path", path)]], |answer| {
                assert_eq!(answer, Err(invalid.clone()));
            });
        }
        assert_eq!(limiter.stats().live_keys, Some(0));
    }
}

#[test]
fn c2_a_shadow_rule_without_enough_keeps_no_new_key() {
    let rules = [
        Rule::new("rule", Limit::per_minute(9)).key(["client"]),
        Rule::new("shadow", Limit::per_minute(1)).key(["client"]).shadow(),
    ];
    let limiter = Limiter::builder(RuleSet::new(rules).unwrap()).build().unwrap();
    assert!(limiter.check(Request::client("a").cost(2)).unwrap().allowed());
    assert_eq!(limiter.stats().live_keys, Some(1));
}

#[test]
fn e5_a_check_that_takes_nothing_needs_the_room_of_all_its_keys() {
    let rules =
        [Rule::new("all", Limit::per_minute(9)), Rule::new("rule", Limit::per_minute(9)).key(["client"])];
    let rules = RuleSet::new(rules).unwrap();
    let store = || MemoryStore::new().max_keys(1);
    let fast = Limiter::builder(rules.clone()).store(store()).build().unwrap();
    let general = Limiter::builder(rules).store(FaultyStore::new(store())).build().unwrap();
    let nothing = Request::client("a").cost(0);
    let answers = [fast.check(nothing), block_on(general.check_async(nothing))];
    assert!(
        answers.iter().all(|answer| answer.as_ref().is_ok_and(|decision| !decision.allowed())),
        "{answers:?}"
    );
}
