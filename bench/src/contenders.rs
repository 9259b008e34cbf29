//! Who takes part.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use tollgate::{Limit, Limiter, MemoryStore, Rule, RuleSet};

/// What keys look like.
#[derive(Clone, Copy, PartialEq)]
pub enum Keys {
    Numbers,
    Strings,
}

impl fmt::Display for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Numbers => "u64",
            Self::Strings => "20-byte string",
        })
    }
}

pub trait Contender: Sync {
    fn name(&self) -> &'static str;
    /// Checks uniformly random keys, and says how many were admitted: all, unless something is wrong.
    fn run(&self, seed: u64, keys: u64, checks: u64) -> u64;
    fn is_shared(&self) -> bool {
        true
    }
}

/// Uniformly random keys, the same for everyone; or, with a seed of 0, each in turn.
pub fn random_keys(seed: u64, keys: u64, checks: u64) -> impl Iterator<Item = u64> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..checks).map(move |turn| {
        if seed == 0 {
            return turn;
        }
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        ((u128::from(x) * u128::from(keys)) >> 64) as u64
    })
}

/// A 20-byte name, formatted into a buffer as a server would have it.
pub fn name(key: u64, buffer: &mut [u8; 20]) -> &str {
    let mut rest = key;
    for byte in buffer.iter_mut().rev() {
        *byte = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    std::str::from_utf8(buffer).expect("digits")
}

pub fn per_client_limiter(keys: u64) -> Limiter {
    let rules =
        RuleSet::new([Rule::new("per-client", Limit::per_day(100_000)).key(["client"])]).expect("valid");
    Limiter::builder(rules).store(MemoryStore::new().max_keys(keys * 2 + 10)).build().expect("valid")
}

fn quota() -> Quota {
    Quota::per_hour(NonZeroU32::new(100_000).expect("not zero"))
}

pub fn keyed(keys: u64, kind: Keys) -> Vec<Box<dyn Contender>> {
    let contenders: Vec<Box<dyn Contender>> = match kind {
        Keys::Numbers => vec![
            Box::new(Tollgate(per_client_limiter(keys))),
            Box::new(Governor(RateLimiter::keyed(quota()))),
            Box::new(Map::new()),
            Box::new(Cells::new(keys)),
        ],
        Keys::Strings => {
            vec![
                Box::new(TollgateNames(per_client_limiter(keys))),
                Box::new(GovernorNames(RateLimiter::keyed(quota()))),
            ]
        }
    };
    for contender in &contenders {
        // Every key once, so that nothing is new any more.
        contender.run(0, keys, keys);
    }
    contenders
}

pub fn unkeyed() -> Vec<Box<dyn Contender>> {
    let rules = RuleSet::new([Rule::new("global", Limit::per_second(500_000_000))]).expect("valid");
    let quota = Quota::per_second(NonZeroU32::new(500_000_000).expect("not zero"));
    vec![
        Box::new(TollgateGlobal(Limiter::builder(rules).build().expect("valid"))),
        Box::new(GovernorDirect(RateLimiter::direct(quota))),
    ]
}

struct Tollgate(Limiter);

impl Contender for Tollgate {
    fn name(&self) -> &'static str {
        "tollgate"
    }

    fn run(&self, seed: u64, keys: u64, checks: u64) -> u64 {
        random_keys(seed, keys, checks)
            .map(|key| u64::from(self.0.check(key).expect("valid").allowed()))
            .sum()
    }
}

struct TollgateNames(Limiter);

impl Contender for TollgateNames {
    fn name(&self) -> &'static str {
        "tollgate"
    }

    fn run(&self, seed: u64, keys: u64, checks: u64) -> u64 {
        let mut buffer = [0; 20];
        let mut check = |key| u64::from(self.0.check(name(key, &mut buffer)).expect("valid").allowed());
        random_keys(seed, keys, checks).map(&mut check).sum()
    }
}

struct TollgateGlobal(Limiter);

impl Contender for TollgateGlobal {
    fn name(&self) -> &'static str {
        "tollgate, global rule"
    }

    fn run(&self, _seed: u64, _keys: u64, checks: u64) -> u64 {
        (0..checks).map(|_| u64::from(self.0.check("anyone").expect("valid").allowed())).sum()
    }
}

struct Governor(DefaultKeyedRateLimiter<u64>);

impl Contender for Governor {
    fn name(&self) -> &'static str {
        "governor, keyed"
    }

    fn run(&self, seed: u64, keys: u64, checks: u64) -> u64 {
        random_keys(seed, keys, checks).map(|key| u64::from(self.0.check_key(&key).is_ok())).sum()
    }
}

struct GovernorNames(DefaultKeyedRateLimiter<String>);

impl Contender for GovernorNames {
    fn name(&self) -> &'static str {
        "governor, keyed"
    }

    fn run(&self, seed: u64, keys: u64, checks: u64) -> u64 {
        let mut buffer = [0; 20];
        let mut check = |key| u64::from(self.0.check_key(&name(key, &mut buffer).to_owned()).is_ok());
        random_keys(seed, keys, checks).map(&mut check).sum()
    }
}

struct GovernorDirect(DefaultDirectRateLimiter);

impl Contender for GovernorDirect {
    fn name(&self) -> &'static str {
        "governor, direct"
    }

    fn run(&self, _seed: u64, _keys: u64, checks: u64) -> u64 {
        (0..checks).map(|_| u64::from(self.0.check().is_ok())).sum()
    }
}

/// Floor: a plain hash map with a fast hash, one thread, no clock.
struct Map(Mutex<hashbrown::HashMap<u64, u64, foldhash::fast::RandomState>>);

impl Map {
    fn new() -> Self {
        Self(Mutex::default())
    }
}

impl Contender for Map {
    fn name(&self) -> &'static str {
        "floor: hashbrown, one thread, no clock"
    }

    fn run(&self, seed: u64, keys: u64, checks: u64) -> u64 {
        let mut map = self.0.lock().expect("no panic");
        let mut add = |key| {
            let value = map.entry(key).or_insert(0);
            *value += 1;
            u64::from(*value > 0)
        };
        random_keys(seed, keys, checks).map(&mut add).sum()
    }

    fn is_shared(&self) -> bool {
        false
    }
}

/// Floor: compare-and-swap on a perfectly indexed array, the time read for each check.
struct Cells(Vec<AtomicU64>, Instant);

impl Cells {
    fn new(keys: u64) -> Self {
        Self((0..keys).map(|_| AtomicU64::new(0)).collect(), Instant::now())
    }
}

impl Contender for Cells {
    fn name(&self) -> &'static str {
        "floor: CAS on an indexed array, clock read"
    }

    fn run(&self, seed: u64, keys: u64, checks: u64) -> u64 {
        let take = |key: u64| {
            let now = self.1.elapsed().as_nanos() as u64;
            let next =
                |full_at: u64| Some(full_at.max(now) + 1_000).filter(|next| next - now <= 1_000_000_000);
            let cell = &self.0[usize::try_from(key).expect("an index")];
            u64::from(cell.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok())
        };
        random_keys(seed, keys, checks).map(take).sum()
    }
}
