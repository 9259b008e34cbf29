//! Stores rebuilt from their pages.

use super::*;
use crate::Timestamp;
use crate::{
    Clock, HOUR, Limiter, MINUTE, ManualClock, OnExpiry, OnFull, Request, Rule, RuleSet, SECOND, block_on,
};
use std::collections::BTreeMap;
use std::time::Duration;

fn limiter_with(store: MemoryStore, clock: &ManualClock) -> Limiter {
    store.set_tracked(true);
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

/// Pages as a durable store keeps them.
type SavedPages = BTreeMap<Vec<u8>, Vec<u8>>;

fn save_changes(saved: &mut SavedPages, store: &MemoryStore) {
    store.changed_pages(|name, content| {
        if content.is_empty() {
            saved.remove(name);
        } else {
            saved.insert(name.to_vec(), content.to_vec());
        }
    });
}

fn load(saved: &SavedPages, seed: [u64; 2]) -> MemoryStore {
    let store = MemoryStore::new().seeded(seed);
    let keys: u64 = saved.iter().map(|(name, content)| store.loader().load(name, content).unwrap()).sum();
    assert_eq!(store.memory_stats().live, keys);
    store
}

/// The state of every busy key, as text.
fn state(store: &MemoryStore, now: Timestamp) -> Vec<String> {
    let mut all = Vec::new();
    for shard in store.shards.iter() {
        shard.0.lock().each(|id, Unpacked { tag, cells }| {
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
fn the_changed_pages_rebuild_the_state_after_random_operations() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let bounded = |store: MemoryStore| store.max_keys(400).on_full(OnFull::Pool).sweep(SECOND, 10 * SECOND);
    let mut limiter = limiter_with(bounded(MemoryStore::new()), &clock);
    let (mut saved, mut seed, mut holds) = (SavedPages::new(), 42, Vec::new());
    for step in 0..20_000 {
        let client = format!("c{}", random(&mut seed, 120));
        let path = format!("p{}", random(&mut seed, 20));
        let attributes = [("client", client.as_str()), ("path", path.as_str())];
        let known = usize::from(random(&mut seed, 2) == 0);
        let mut request = Request::new(&attributes[..=known]).cost(random(&mut seed, 4));
        // A request under one rule takes the fast path.
        if let Some(only) = RULES.get(usize::try_from(random(&mut seed, 8)).unwrap()) {
            request = request.only(only);
        }
        match random(&mut seed, 40) {
            0 => drop(block_on(limiter.refund(request))),
            1 => drop(block_on(limiter.penalise(request))),
            2 => drop(block_on(limiter.reset(request))),
            3 => drop(block_on(limiter.block(request, clock.now().saturating_add(5 * SECOND)))),
            4 => holds.extend(block_on(limiter.reserve(request, 20 * SECOND, OnExpiry::GiveBack))),
            5 => drop(holds.pop()),
            6 => drop(limiter.store().sweep_all(clock.now())),
            7 => drop(limiter.store().reclaim(clock.now())),
            8 => drop(block_on(limiter.peek(request))),
            _ => drop(limiter.check(request)),
        }
        clock.advance(Duration::from_millis(random(&mut seed, 40)));
        if random(&mut seed, 30) == 0 {
            save_changes(&mut saved, limiter.store());
            let copy = load(&saved, limiter.store().seed());
            assert_eq!(state(&copy, clock.now()), state(limiter.store(), clock.now()), "step {step}");
            if random(&mut seed, 10) == 0 {
                // As after a restart, which drops the reservations' handles.
                limiter = limiter_with(bounded(copy), &clock);
                holds.clear();
            }
        }
    }
}

/// Names and contents of pages in hexadecimal. A change of identities, of homes or of the format
/// needs another version.
#[test]
fn pages_stay_as_they_were_written() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = limiter_with(MemoryStore::new().seeded([1, 2]), &clock);
    for client in ["alice", "42"] {
        let request = [("client", client), ("path", "p1")];
        assert!(limiter.check(Request::new(&request).cost(3)).unwrap().allowed());
    }
    block_on(limiter.block("alice", clock.now().saturating_add(HOUR))).unwrap();
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let mut lines = Vec::new();
    let page = |name: &[u8], content: &[u8]| lines.push(format!("{} {}", hex(name), hex(content)));
    limiter.store().changed_pages(page);
    assert_eq!(lines.join("\n"), include_str!("v2.txt").trim_end());
}

#[test]
fn an_unchanged_page_is_not_handed_out() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = limiter_with(MemoryStore::new(), &clock);
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
    let two = |cost| Request::new(&[("client", "alice"), ("path", "/")]).only("two").cost(cost);
    assert!(limiter.check(two(40)).unwrap().allowed());
    assert_eq!(changed(&limiter), [NAME]);
    assert!(!limiter.check(two(1)).unwrap().allowed());
    assert_eq!(changed(&limiter), [NAME], "an attempt is counted");
    assert!(!limiter.check(two(41)).unwrap().allowed());
    assert_eq!(changed(&limiter), [0; 0], "one that never fits is not");
    let path = Request::new(&[("path", "p2")]).only("log").cost(15);
    assert!(limiter.check(path).unwrap().allowed());
    assert_eq!(changed(&limiter), [NAME + ID]);
    assert!(!limiter.check(path).unwrap().allowed());
    assert_eq!(changed(&limiter), [0; 0]);
    let global = Request::new(&[]).only("global").cost(4_000);
    assert!(limiter.check(global).unwrap().allowed());
    assert_eq!(changed(&limiter), [NAME]);
    for _ in 0..3 {
        assert!(!limiter.check(global).unwrap().allowed());
        assert!(!block_on(limiter.peek(global)).unwrap().allowed());
        assert!(limiter.check(global.cost(0)).unwrap().allowed());
        assert_eq!(changed(&limiter), [0; 0], "nor do those of a global budget");
    }
    block_on(limiter.reset(global)).unwrap();
    assert_eq!(changed(&limiter), [NAME]);
    limiter.store().all_pages_changed();
    let everything = changed(&limiter);
    assert_eq!((everything.len(), everything.last()), (ALL_SHARDS * 128 + 1, Some(&(NAME + ID))));
}

#[test]
fn a_page_of_another_store_or_a_damaged_one_is_refused() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    // Under one seed in 128 the global budget has the same page as under another.
    let limiter = limiter_with(MemoryStore::new().seeded([3, 4]), &clock);
    let mut saved = SavedPages::new();
    for client in ["a", "b", "c"] {
        assert!(limiter.check(Request::new(&[("client", client), ("path", "p")])).unwrap().allowed());
    }
    save_changes(&mut saved, limiter.store());
    for (name, content) in &saved {
        let seed = limiter.store().seed();
        let refused = |name: &[u8], content: &[u8], seed| {
            let store = MemoryStore::new().seeded(seed);
            let refused =
                store.loader().load(name, content).is_err_and(|error| error.code() == "invalid_page");
            refused && store.memory_stats().live == 0
        };
        assert!(!refused(name, content, seed));
        assert!(refused(name, content, [1, 2]), "another store's page");
        assert!(refused(name, &[], seed) && refused(&[], content, seed));
        assert!((1..content.len()).all(|length| refused(name, &content[..length], seed)), "truncated");
        assert!(refused(name, &[content, &[0][..]].concat(), seed), "trailing bytes");
        let twice = load(&saved, seed).loader().load(name, content).unwrap_err();
        assert!(twice.to_string().contains("repeats a key"));
    }
}

#[test]
fn b7_a_clock_set_back_loses_no_noted_removal() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = limiter_with(MemoryStore::new(), &clock);
    let mut saved = SavedPages::new();
    let alice = Request::client("alice").only("bucket").cost(30);
    assert!(limiter.check(alice).unwrap().allowed());
    block_on(limiter.block(alice, clock.now().saturating_add(SECOND))).unwrap();
    save_changes(&mut saved, limiter.store());
    clock.advance(2 * SECOND);
    // The key moves back into a table.
    assert!(limiter.check(alice.cost(1)).unwrap().allowed());
    limiter.store().reclaim(clock.now().saturating_sub(HOUR));
    save_changes(&mut saved, limiter.store());
    assert_eq!(load(&saved, limiter.store().seed()).memory_stats().live, 1);
}

#[test]
fn changes_of_a_global_budget_are_tracked() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = limiter_with(MemoryStore::new(), &clock);
    let mut saved = SavedPages::new();
    let global = Request::new(&[]).only("global").cost(10);
    for _ in 0..3 {
        // A cost of 0 first: it must not hide the change that follows.
        assert!(limiter.check(global.cost(0)).unwrap().allowed());
        assert!(limiter.check(global).unwrap().allowed());
        save_changes(&mut saved, limiter.store());
        let copy = load(&saved, limiter.store().seed());
        assert_eq!(state(&copy, clock.now()), state(limiter.store(), clock.now()));
    }
}

#[test]
fn b7_a_denial_that_rebases_a_log_is_a_change() {
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = limiter_with(MemoryStore::new(), &clock);
    // So many other keys that no sweep reaches the log first.
    for client in 0..20_000 {
        assert!(limiter.check(Request::client(&client.to_string()).only("bucket")).unwrap().allowed());
    }
    let log = Request::new(&[("path", "p2")]).only("log");
    assert!(limiter.check(log).unwrap().allowed());
    let mut saved = SavedPages::new();
    save_changes(&mut saved, limiter.store());
    clock.set(clock.now().saturating_sub(HOUR));
    assert!(!limiter.check(log).unwrap().allowed());
    save_changes(&mut saved, limiter.store());
    clock.advance(MINUTE);
    let again = limiter_with(load(&saved, limiter.store().seed()), &clock);
    assert_eq!(block_on(again.peek(log)).unwrap().remaining(), 20);
}
