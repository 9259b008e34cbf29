//! quick look
use std::hint::black_box;
use std::time::Instant;
use std::num::NonZeroU32;
use governor::{Quota, RateLimiter};
use tollgate::*;

fn time(n: usize, mut f: impl FnMut(u64) -> bool, keys: u64) -> f64 {
    let mut x = 88172645463325252u64;
    let t = Instant::now();
    let mut c = 0u64;
    for _ in 0..n {
        x ^= x << 13; x ^= x >> 7; x ^= x << 17;
        c += f(((x as u128 * keys as u128) >> 64) as u64) as u64;
    }
    black_box(c);
    t.elapsed().as_nanos() as f64 / n as f64
}

fn main() {
    for keys in std::env::args().skip(1).map(|a| a.parse::<u64>().unwrap()) {
        let gov = RateLimiter::keyed(Quota::per_second(NonZeroU32::new(1_000_000).unwrap()));
        let rules = || RuleSet::new([Rule::new("per-client", Limit::per_second(1_000_000)).key(["client"])]).unwrap();
        let store = || MemoryStore::new().max_keys(20_000_000);
        let toll = Limiter::builder(rules()).store(store()).build().unwrap();
        let manual = ManualClock::at(SystemClock.now());
        let still = Limiter::builder(rules()).store(store()).clock(manual).build().unwrap();
        for k in 0..keys { let _ = gov.check_key(&k); let _ = toll.check(k); let _ = still.check(k); }
        let n = 2_000_000;
        let (mut g, mut t, mut s) = (vec![], vec![], vec![]);
        for _ in 0..5 {
            g.push(time(n, |k| gov.check_key(&k).is_ok(), keys));
            t.push(time(n, |k| toll.check(k).unwrap().allowed(), keys));
            s.push(time(n, |k| still.check(k).unwrap().allowed(), keys));
        }
        for v in [&mut g, &mut t, &mut s] { v.sort_by(f64::total_cmp); }
        println!("{keys:>9} keys: governor {:.0} tollgate {:.0} ({:.2}) manual clock {:.0} ({:.2})", g[2], t[2], t[2]/g[2], s[2], s[2]/g[2]);
    }
}
