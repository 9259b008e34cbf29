//! How many bytes a key takes, resident, in a process of its own.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::process::Command;

use governor::{DefaultKeyedRateLimiter, Quota, RateLimiter};
use tollgate::{HOUR, Limit, Limiter, MemoryStore, Rule, RuleSet};

use crate::contenders::name;

const CONTENDERS: [&str; 6] = [
    "tollgate, token bucket",
    "tollgate, token bucket, 20-byte strings",
    "tollgate, fixed window",
    "tollgate, sliding window",
    "governor, u64",
    "governor, 20-byte strings",
];

pub fn table() -> String {
    let mut text = String::from("## Bytes a key, resident\n\n| keys | contender | bytes |\n|---|---|---|\n");
    for keys in [1_000_000, 10_000_000] {
        for contender in CONTENDERS {
            let _ = writeln!(text, "| {keys} | {contender} | {} |", measure(contender, keys));
        }
    }
    text
}

/// Measures in a child, so that nothing else is resident.
fn measure(contender: &str, keys: u64) -> String {
    let own = std::env::current_exe().expect("this program");
    let output = Command::new(own).args(["memory", contender, &keys.to_string()]).output().expect("a child");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

pub fn report(contender: &str, keys: u64) {
    let before = resident();
    let limiter = |limit: Limit| {
        let rules = RuleSet::new([Rule::new("per-client", limit).key(["client"])]).expect("valid");
        Limiter::builder(rules).store(MemoryStore::new().max_keys(keys)).build().expect("valid")
    };
    let mut buffer = [0; 20];
    let mut kept: (
        Option<Limiter>,
        Option<DefaultKeyedRateLimiter<u64>>,
        Option<DefaultKeyedRateLimiter<String>>,
    ) = (None, None, None);
    let quota = Quota::per_hour(NonZeroU32::new(100).expect("not zero"));
    let mut fill = |limit: Limit, strings: bool| {
        let limiter = limiter(limit);
        for key in 0..keys {
            let decision = if strings { limiter.check(name(key, &mut buffer)) } else { limiter.check(key) };
            assert!(decision.expect("valid").allowed());
        }
        limiter
    };
    match contender {
        "tollgate, token bucket" => kept.0 = Some(fill(Limit::per_hour(100), false)),
        "tollgate, token bucket, 20-byte strings" => kept.0 = Some(fill(Limit::per_hour(100), true)),
        "tollgate, fixed window" => kept.0 = Some(fill(Limit::fixed_window(100, HOUR), false)),
        "tollgate, sliding window" => kept.0 = Some(fill(Limit::sliding_window(100, HOUR), false)),
        "governor, u64" => {
            let limiter = RateLimiter::keyed(quota);
            (0..keys).for_each(|key| assert!(limiter.check_key(&key).is_ok()));
            kept.1 = Some(limiter);
        }
        _ => {
            let limiter = RateLimiter::keyed(quota);
            (0..keys).for_each(|key| assert!(limiter.check_key(&name(key, &mut [0; 20]).to_owned()).is_ok()));
            kept.2 = Some(limiter);
        }
    }
    println!("{:.1}", (resident() - before) as f64 / keys as f64);
    drop(kept);
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages") * 4096
}
