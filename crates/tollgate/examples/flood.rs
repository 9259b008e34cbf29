//! A flood: ten million clients send one request each to a store of a hundred thousand keys, while
//! a thousand good clients keep working.
//!
//! `cargo run --release -p tollgate --example flood`
#![expect(clippy::print_stdout, reason = "an example")]

use tollgate::{Error, Limit, Limiter, MINUTE, ManualClock, MemoryStore, Rule, RuleSet, Timestamp};

const FLOOD: u64 = 10_000_000;
const GOOD: u64 = 1_000;

fn main() -> Result<(), Error> {
    let rules = RuleSet::new([Rule::new("per-client", Limit::fixed_window(100, MINUTE)).key(["client"])])?;
    let store = MemoryStore::new().max_keys(100_000);
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = Limiter::builder(rules).store(store).clock(clock).build()?;
    let mut good_admitted = vec![0_u64; usize::try_from(GOOD).unwrap_or(0)];
    for (good, admitted) in (0..).zip(&mut good_admitted) {
        *admitted += u64::from(limiter.check(("good", good))?.allowed());
    }
    let (mut flood_admitted, mut resident_before) = (0, 0);
    for newcomer in 0..FLOOD {
        flood_admitted += u64::from(limiter.check(("flood", newcomer))?.allowed());
        // The good clients send more requests than their limit.
        let good = newcomer % GOOD;
        if newcomer % 7 == 0
            && let Some(admitted) = good_admitted.get_mut(usize::try_from(good).unwrap_or(0))
        {
            *admitted += u64::from(limiter.check(("good", good))?.allowed());
        }
        if newcomer == FLOOD / 10 {
            resident_before = resident_kib();
        }
    }
    let stats = limiter.store().memory_stats();
    println!("{stats:?}");
    println!("{flood_admitted} of the flood admitted, as many as the store had room for");
    println!("each good client got {:?} of 100", (good_admitted.iter().min(), good_admitted.iter().max()));
    println!(
        "resident: {resident_before} KiB after a tenth of the flood, {} KiB after all of it",
        resident_kib()
    );
    assert!(
        good_admitted.iter().all(|admitted| *admitted == 100),
        "no good client got more, or was forgotten and got a new budget"
    );
    assert_eq!(stats.live, 100_000);
    Ok(())
}

/// The resident memory of the process, on Linux.
fn resident_kib() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).unwrap_or(0) * 4
}
