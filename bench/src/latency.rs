//! How long single checks take while a table grows, and while it is swept.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use governor::{Quota, RateLimiter};
use tollgate::{Limit, Limiter, MemoryStore, Rule, RuleSet};

use crate::contenders::{per_client, random_keys};

const GROWN: u64 = 5_000_000;
const SWEPT: u64 = 1_000_000;

pub fn table() -> String {
    let mut text = format!(
        "## Single checks, nanoseconds, two readings of the clock included\n\n\
         Growing: from nothing to {GROWN} keys. Sweeping: {SWEPT} keys that turn idle at once, forgotten and seen again all the time \
         (governor forgets when it is told to: here ten times a second, on the thread that checks).\n\n\
         | | contender | p50 | p99 | p99.9 | slowest |\n|---|---|---|---|---|---|\n"
    );
    let limiter = per_client(GROWN);
    row(&mut text, "growing | tollgate", 0..GROWN, |key| limiter.check(key).expect("valid").allowed());
    drop(limiter);
    let quota = |per_second| Quota::per_second(NonZeroU32::new(per_second).expect("not zero"));
    let governor = RateLimiter::keyed(quota(1_000_000));
    row(&mut text, "growing | governor, keyed", 0..GROWN, |key| governor.check_key(&key).is_ok());
    drop(governor);

    let rules = RuleSet::new([Rule::new("per-client", Limit::per_second(1_000_000)).key(["client"])]);
    let store = MemoryStore::new().max_keys(SWEPT).sweep(Duration::from_millis(100), Duration::ZERO);
    let limiter = Limiter::builder(rules.expect("valid")).store(store).build().expect("valid");
    let keys = || random_keys(7, SWEPT, GROWN);
    row(&mut text, "sweeping | tollgate", keys(), |key| limiter.check(key).expect("valid").allowed());
    let reclaimed = limiter.store().memory_stats().reclaimed;
    assert!(reclaimed > SWEPT, "the sweeps forgot only {reclaimed} keys");
    let governor = RateLimiter::keyed(quota(1_000_000));
    let mut swept = Instant::now();
    row(&mut text, "sweeping | governor, keyed", keys(), |key| {
        if swept.elapsed() > Duration::from_millis(100) {
            governor.retain_recent();
            swept = Instant::now();
        }
        governor.check_key(&key).is_ok()
    });
    text
}

fn row(text: &mut String, name: &str, keys: impl Iterator<Item = u64>, mut check: impl FnMut(u64) -> bool) {
    let mut times: Vec<u64> = Vec::with_capacity(GROWN as usize);
    for key in keys {
        let begun = Instant::now();
        assert!(check(key));
        times.push(begun.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    let at = |share: f64| times[(times.len() as f64 * share) as usize - 1];
    let line = format!("| {name} | {} | {} | {} | {} |", at(0.5), at(0.99), at(0.999), at(1.0));
    eprintln!("{line}");
    let _ = writeln!(text, "{line}");
}
