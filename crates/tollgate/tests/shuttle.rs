//! The memory store's locking under random interleavings, explored by `shuttle`.
//!
//! Built only with `--cfg shuttle`, which replaces the store's locks and atomics with instrumented
//! ones; `cargo xtask test` does that.
#![cfg(shuttle)]

use std::collections::BTreeMap;

use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::sync::{Arc, Mutex};
use shuttle::thread;
use tollgate::{HOUR, Limit, Limiter, ManualClock, MemoryStore, Rule, RuleSet, Timestamp, block_on};

const SCHEDULES: usize = 2_000;

fn limiter(store: MemoryStore, rules: impl IntoIterator<Item = Rule>) -> Limiter {
    let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
    Limiter::builder(RuleSet::new(rules).unwrap()).store(store).clock(clock).build().unwrap()
}

fn keyed_by(attributes: &[&'static str]) -> Vec<Rule> {
    attributes.iter().map(|name| Rule::new(name, Limit::fixed_window(10, HOUR)).key([*name])).collect()
}

/// The stack of a thread. A limiter is made on it, and shuttle's own are of 32 KiB.
const STACK_BYTES: usize = 1 << 20;

/// Runs `test` under so many random schedules.
fn explore(test: impl Fn() + Send + Sync + 'static, schedules: usize) {
    let mut config = shuttle::Config::new();
    config.stack_size = STACK_BYTES;
    shuttle::Runner::new(shuttle::scheduler::RandomScheduler::new(schedules), config).run(test);
}

/// Runs `work` on `count` threads and joins them.
fn on_threads(count: usize, work: impl Fn(usize) + Send + Sync + 'static) {
    let work = Arc::new(work);
    let threads: Vec<_> = (0..count)
        .map(|index| {
            let work = work.clone();
            thread::spawn(move || work(index))
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn b8_opposite_orders_do_not_deadlock() {
    explore(
        || {
            let limiter = limiter(MemoryStore::new(), keyed_by(&["one", "two"]));
            // Each request shares a budget or a shard with another, and names them in its own
            // order.
            let requests =
                [[("one", "x"), ("two", "y")], [("one", "y"), ("two", "x")], [("one", "z"), ("two", "x")]];
            let shared = limiter.clone();
            on_threads(3, move |index| assert!(shared.check(&requests[index]).unwrap().allowed()));
            assert_eq!(limiter.stats().live_keys, Some(5));
        },
        SCHEDULES,
    );
}

#[test]
fn b9_racing_threads_admit_exactly_the_limit_and_denials_take_nothing() {
    explore(
        || {
            let rules = [
                Rule::new("small", Limit::fixed_window(2, HOUR)),
                Rule::new("large", Limit::fixed_window(9, HOUR)).key(["client"]),
            ];
            let limiter = limiter(MemoryStore::new(), rules);
            let admitted = Arc::new(AtomicU64::new(0));
            let (shared, counter) = (limiter.clone(), admitted.clone());
            on_threads(3, move |_| {
                counter.fetch_add(u64::from(shared.check("a").unwrap().allowed()), Ordering::SeqCst);
            });
            assert_eq!(admitted.load(Ordering::SeqCst), 2);
            let left = block_on(limiter.peek("a")).unwrap();
            assert_eq!(left.limits()[1].outcome.remaining, 7);
        },
        SCHEDULES,
    );
}

#[test]
fn e5_new_keys_on_many_threads_never_exceed_the_bound() {
    explore(
        || {
            let limiter = limiter(MemoryStore::new().max_keys(2), keyed_by(&["client"]));
            let (shared, clients) = (limiter.clone(), ["a", "b", "c", "d"]);
            let admitted = Arc::new(AtomicU64::new(0));
            let counter = admitted.clone();
            on_threads(4, move |index| {
                counter
                    .fetch_add(u64::from(shared.check(clients[index]).unwrap().allowed()), Ordering::SeqCst);
                assert!(shared.stats().live_keys.unwrap() <= 2);
            });
            assert_eq!((admitted.load(Ordering::SeqCst), limiter.stats().live_keys), (2, Some(2)));
        },
        SCHEDULES,
    );
}

#[test]
fn b9_racing_threads_on_one_client_admit_exactly_the_limit() {
    explore(
        || {
            let limiter =
                limiter(MemoryStore::new(), [Rule::new("rule", Limit::per_hour(3)).key(["client"])]);
            let admitted = Arc::new(AtomicU64::new(0));
            let (shared, counter) = (limiter.clone(), admitted.clone());
            on_threads(3, move |_| {
                shared.check_many(&["a", "b", "a"], |decision| {
                    counter.fetch_add(u64::from(decision.unwrap().allowed()), Ordering::SeqCst);
                });
            });
            assert_eq!(
                admitted.load(Ordering::SeqCst),
                6,
                "three of six for one, three of three for the other"
            );
        },
        SCHEDULES,
    );
}

/// Checks race with the other verbs and with maintenance.
#[test]
fn b9_a_global_budget_is_exact_under_every_verb() {
    explore(
        || {
            let limiter = limiter(MemoryStore::new(), [Rule::new("global", Limit::per_hour(3))]);
            let admitted = Arc::new(AtomicU64::new(0));
            let (shared, counter) = (limiter.clone(), admitted.clone());
            on_threads(4, move |index| match index {
                0 | 1 => {
                    for _ in 0..2 {
                        counter.fetch_add(u64::from(shared.check("a").unwrap().allowed()), Ordering::SeqCst);
                    }
                }
                2 => {
                    assert!(block_on(shared.peek("a")).unwrap().remaining() <= 3);
                    counter.fetch_sub(block_on(shared.refund("a")).unwrap(), Ordering::SeqCst);
                }
                _ => {
                    let mut dump = Vec::new();
                    shared.store().dump(&mut dump).unwrap();
                    let live = MemoryStore::restore(&*dump).unwrap().memory_stats().live;
                    assert!(live <= 1);
                    shared.store().reclaim(Timestamp::from_secs(1_000_000));
                }
            });
            let left = block_on(limiter.peek("a")).unwrap().remaining();
            assert_eq!(left, 3_u64.wrapping_sub(admitted.load(Ordering::SeqCst)));
            assert_eq!(limiter.stats().live_keys, Some(u64::from(left < 3)));
        },
        SCHEDULES,
    );
}

/// Two global rules, in one shard.
#[test]
fn b9_global_budgets_that_share_a_shard_do_not_share_a_budget() {
    explore(
        || {
            let rules =
                ["one", "two"].map(|name| Rule::new(name, Limit::per_hour(2)).matching("client", name));
            let limiter = limiter(MemoryStore::new(), rules);
            let shared = limiter.clone();
            on_threads(2, move |index| {
                let client = ["one", "two"][index];
                let allowed = [0; 3].map(|_| shared.check(client).unwrap().allowed());
                assert_eq!(allowed, [true, true, false]);
            });
            assert_eq!(limiter.stats().live_keys, Some(2));
        },
        SCHEDULES,
    );
}

/// A copy built from changed pages misses no change, however checks on keyed and global budgets
/// interleave.
#[test]
fn every_changed_page_is_handed_out() {
    explore(
        || {
            let client = || Rule::new("client", Limit::per_hour(9)).key(["client"]).matching("client", "a");
            let rules = || [Rule::new("global", Limit::per_hour(9)).matching("client", "b"), client()];
            let limiter = limiter(MemoryStore::new(), rules());
            limiter.store().set_tracked(true);
            let saved = Arc::new(Mutex::new(BTreeMap::new()));
            let (shared, copy) = (limiter.clone(), saved.clone());
            let collect = |store: &MemoryStore, saved: &Mutex<SavedPages>| {
                // Held during the call: two concurrent callers could apply pages out of order.
                let mut saved = saved.lock().unwrap();
                store.changed_pages(|name, content| drop(saved.insert(name.to_vec(), content.to_vec())));
            };
            on_threads(3, move |index| match index {
                0 => (0..2).for_each(|_| collect(shared.store(), &copy)),
                1 => {
                    assert!(shared.check("a").unwrap().allowed() && shared.check("b").unwrap().allowed());
                    assert_eq!(block_on(shared.refund("b")).unwrap(), 1);
                }
                _ => ["b", "a", "b"].into_iter().for_each(|client| drop(shared.check(client).unwrap())),
            });
            collect(limiter.store(), &saved);
            let loaded = MemoryStore::new().seeded(limiter.store().seed());
            for (name, content) in saved.lock().unwrap().iter().filter(|(_, content)| !content.is_empty()) {
                loaded.loader().load(name, content).unwrap();
            }
            let again = self::limiter(loaded, rules());
            for client in ["a", "b"] {
                let [old, new] = [&limiter, &again].map(|limiter| block_on(limiter.peek(client)).unwrap());
                assert_eq!((old.remaining(), new.remaining()), (7, 7));
            }
        },
        SCHEDULES,
    );
}

type SavedPages = BTreeMap<Vec<u8>, Vec<u8>>;
