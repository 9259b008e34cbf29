//! Stores that are brought back from their pages.

use super::*;
use crate::Timestamp;
use crate::{Clock, HOUR, Limiter, MINUTE, ManualClock, OnFull, Request, Rule, RuleSet, SECOND, block_on};
use std::collections::BTreeMap;
use std::time::Duration;

fn made(store: MemoryStore, clock: &ManualClock) -> Limiter {
    let limits = [Limit::per_minute(100), Limit::fixed_window(40, MINUTE).counting_denied()];
    let rules = RuleSet::new([
        Rule::new("bucket", Limit::per_minute(50)).key(["client"]),
        Rule::new("two", limits).key(["client", "path"]),
        Rule::new("log", Limit::sliding_log(20, MINUTE)).key(["path"]),
        Rule::new("global", Limit::per_minute(7).reserve(5_000, 1, SECOND)),
        Rule::new("watched", Limit::sliding_window(500, HOUR)).shadow().matching("path", "p1"),
    ]);
    Limiter::builder(rules.unwrap()).store(store).clock(clock.clone()).build().unwrap()
}

const RULES: [&str; 4] = ["bucket", "two", "global", "watched"];

/// Pages as a store elsewhere keeps them.
type Kept = BTreeMap<Vec<u8>, Vec<u8>>;

fn bring_up_to_date(kept: &mut Kept, store: &MemoryStore) {
    store.changed_pages(|name, content| {
        if content.is_empty() {
            kept.remove(name);
        } else {
            kept.insert(name.to_vec(), content.to_vec());
        }
    });
}

fn loaded(kept: &Kept, seed: [u64; 2]) -> MemoryStore {
    let store = MemoryStore::new().seeded(seed);
    let keys: u64 = kept.iter().map(|(name, content)| store.loader().load(name, content).unwrap()).sum();
    assert_eq!(store.memory_stats().live, keys);
    store
}

/// All that there is to know of a store, as of now.
fn state(store: &MemoryStore, now: Timestamp) -> Vec<String> {
    let mut all = Vec::new();
    for shard in &store.shards {
        shard.0.lock().each(|id, Whole { tag, cells }| {
            if cells.iter().any(|cell| !cell.is_idle(now)) {
                all.push(format!("{id:?} {tag:?} {cells:?}"));
            }
        });
    }
    all.sort();
    all
}

fn random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

#[test]
fn the_pages_that_changed_are_all_that_changed_whatever_is_done() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let bounded = |store: MemoryStore| store.max_keys(400).on_full(OnFull::Pool).sweep(SECOND, 10 * SECOND);
    let store = bounded(MemoryStore::new());
    store.follow(true);
    let mut limiter = made(store, &clock);
    let (mut kept, mut seed, mut holds) = (Kept::new(), 42, Vec::new());
    for step in 0..20_000 {
        let client = format!("c{}", random(&mut seed, 120));
        let path = format!("p{}", random(&mut seed, 20));
        let attributes = [("client", client.as_str()), ("path", path.as_str())];
        let known = usize::from(random(&mut seed, 2) == 0);
        let mut request = Request::new(&attributes[..=known]).cost(random(&mut seed, 4));
        // One rule alone goes the short way.
        if let Some(only) = RULES.get(usize::try_from(random(&mut seed, 8)).unwrap()) {
            request = request.only(only);
        }
        match random(&mut seed, 40) {
            0 => drop(block_on(limiter.refund(request))),
            1 => drop(block_on(limiter.penalise(request))),
            2 => drop(block_on(limiter.reset(request))),
            3 => drop(block_on(limiter.block(request, clock.now().saturating_add(5 * SECOND)))),
            4 => holds.extend(block_on(limiter.reserve(request, 20 * SECOND))),
            5 => drop(holds.pop()),
            6 => drop(limiter.store().sweep_all(clock.now())),
            7 => drop(limiter.store().reclaim(clock.now())),
            8 => drop(block_on(limiter.peek(request))),
            _ => drop(limiter.check(request)),
        }
        clock.advance(Duration::from_millis(random(&mut seed, 40)));
        if random(&mut seed, 30) == 0 {
            bring_up_to_date(&mut kept, limiter.store());
            let copy = loaded(&kept, limiter.store().seed());
            assert_eq!(state(&copy, clock.now()), state(limiter.store(), clock.now()), "step {step}");
            if random(&mut seed, 10) == 0 {
                // As after a restart. Who held something finds nothing there any more.
                let copy = bounded(copy);
                copy.follow(true);
                limiter = made(copy, &clock);
                holds.clear();
            }
        }
    }
}

#[test]
fn what_did_not_change_is_not_handed_out() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = made(MemoryStore::new(), &clock);
    limiter.store().follow(true);
    let changed = |limiter: &Limiter| {
        let mut names = Vec::new();
        limiter.store().changed_pages(|name, _| names.push(name.len()));
        names.sort_unstable();
        names
    };
    let alice = Request::client("alice").only("bucket").cost(30);
    assert!(limiter.check(alice).unwrap().allowed());
    assert_eq!(changed(&limiter), [NAME]);
    assert!(!limiter.check(alice).unwrap().allowed());
    assert!(block_on(limiter.peek("alice")).unwrap().allowed());
    assert_eq!(changed(&limiter), [0; 0], "a denial and a peek change nothing");
    let path = Request::new(&[("path", "p2")]).only("log").cost(15);
    assert!(limiter.check(path).unwrap().allowed());
    assert_eq!(changed(&limiter), [NAME_ALONE]);
    assert!(!limiter.check(path).unwrap().allowed());
    assert_eq!(changed(&limiter), [0; 0]);
    let global = Request::new(&[]).only("global").cost(4_000);
    assert!(limiter.check(global).unwrap().allowed());
    assert_eq!(changed(&limiter), [NAME]);
    for _ in 0..3 {
        assert!(!limiter.check(global).unwrap().allowed());
        assert!(!block_on(limiter.peek(global)).unwrap().allowed());
        assert!(limiter.check(global.cost(0)).unwrap().allowed());
        assert_eq!(changed(&limiter), [0; 0], "nor do those of a budget that everyone shares");
    }
    block_on(limiter.reset(global)).unwrap();
    assert_eq!(changed(&limiter), [NAME]);
    limiter.store().all_pages_changed();
    let everything = changed(&limiter);
    assert_eq!((everything.len(), everything.last()), (ALL_SHARDS * 128 + 1, Some(&NAME_ALONE)));
}

#[test]
fn a_page_of_another_store_or_a_damaged_one_is_refused() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = made(MemoryStore::new(), &clock);
    limiter.store().follow(true);
    let mut kept = Kept::new();
    for client in ["a", "b", "c"] {
        assert!(limiter.check(Request::new(&[("client", client), ("path", "p")])).unwrap().allowed());
    }
    bring_up_to_date(&mut kept, limiter.store());
    for (name, content) in &kept {
        let seed = limiter.store().seed();
        let refused = |name: &[u8], content: &[u8], seed| {
            let store = MemoryStore::new().seeded(seed);
            let refused =
                store.loader().load(name, content).is_err_and(|error| error.code() == "invalid_page");
            refused && store.memory_stats().live == 0
        };
        assert!(!refused(name, content, seed));
        assert!(refused(name, content, [1, 2]), "another store's");
        assert!(refused(name, &[], seed) && refused(&[], content, seed));
        assert!((1..content.len()).all(|length| refused(name, &content[..length], seed)), "cut short");
        assert!(refused(name, &[content, &[0][..]].concat(), seed), "more than all");
        let twice = loaded(&kept, seed).loader().load(name, content).unwrap_err();
        assert!(twice.to_string().contains("there before"));
    }
}

#[test]
fn b7_a_clock_set_back_loses_no_removal_that_was_noted_before() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = made(MemoryStore::new(), &clock);
    limiter.store().follow(true);
    let mut kept = Kept::new();
    let alice = Request::client("alice").only("bucket").cost(30);
    assert!(limiter.check(alice).unwrap().allowed());
    block_on(limiter.block(alice, clock.now().saturating_add(SECOND))).unwrap();
    bring_up_to_date(&mut kept, limiter.store());
    clock.advance(2 * SECOND);
    // Back into a table.
    assert!(limiter.check(alice.cost(1)).unwrap().allowed());
    limiter.store().reclaim(clock.now().saturating_sub(HOUR));
    bring_up_to_date(&mut kept, limiter.store());
    assert_eq!(loaded(&kept, limiter.store().seed()).memory_stats().live, 1);
}

#[test]
fn a_budget_that_everyone_shares_is_followed_wherever_its_state_is() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = made(MemoryStore::new(), &clock);
    limiter.store().follow(true);
    let mut kept = Kept::new();
    let global = Request::new(&[]).only("global").cost(10);
    for _ in 0..3 {
        // Looked at first, so that it is out of its table, unchanged, when it is drawn on.
        assert!(limiter.check(global.cost(0)).unwrap().allowed());
        assert!(limiter.check(global).unwrap().allowed());
        bring_up_to_date(&mut kept, limiter.store());
        let copy = loaded(&kept, limiter.store().seed());
        assert_eq!(state(&copy, clock.now()), state(limiter.store(), clock.now()));
    }
}

#[test]
fn b7_a_denial_that_left_a_log_exactly_empty_is_a_change() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = made(MemoryStore::new(), &clock);
    limiter.store().follow(true);
    // So many others that no sweep gets to the log first.
    for client in 0..20_000 {
        assert!(limiter.check(Request::client(&client.to_string()).only("bucket")).unwrap().allowed());
    }
    let log = Request::new(&[("path", "p2")]).only("log");
    assert!(limiter.check(log).unwrap().allowed());
    let mut kept = Kept::new();
    bring_up_to_date(&mut kept, limiter.store());
    clock.set(clock.now().saturating_sub(HOUR));
    assert!(!limiter.check(log).unwrap().allowed());
    bring_up_to_date(&mut kept, limiter.store());
    clock.advance(MINUTE);
    let again = made(loaded(&kept, limiter.store().seed()), &clock);
    assert_eq!(block_on(again.peek(log)).unwrap().remaining(), 20);
}
