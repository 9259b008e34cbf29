//! How long single checks take while a table grows from nothing to five million keys.

use std::fmt::Write as _;
use std::num::NonZeroU32;
use std::time::Instant;

use governor::{Quota, RateLimiter};

use crate::contenders::per_client_limiter;

const KEYS: u64 = 5_000_000;

pub fn report() -> String {
    let mut report = format!(
        "\n## While growing to {KEYS} keys, nanoseconds of single checks, the clock's reading included\n\n| contender | p50 | p99 | p99.9 | max |\n|---|---|---|---|---|\n"
    );
    let limiter = per_client_limiter(KEYS);
    row(&mut report, "tollgate", |key| limiter.check(key).expect("valid").allowed());
    drop(limiter);
    let governor = RateLimiter::keyed(Quota::per_second(NonZeroU32::new(1_000_000).expect("not zero")));
    row(&mut report, "governor, keyed", |key| governor.check_key(&key).is_ok());
    report
}

fn row(report: &mut String, name: &str, mut check: impl FnMut(u64) -> bool) {
    let mut times: Vec<u64> = Vec::with_capacity(KEYS as usize);
    for key in 0..KEYS {
        let begun = Instant::now();
        assert!(check(key));
        times.push(begun.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    let at = |share: f64| times[(KEYS as f64 * share) as usize - 1];
    let _ = writeln!(report, "| {name} | {} | {} | {} | {} |", at(0.5), at(0.99), at(0.999), at(1.0));
}
