//! The rivals, each used as its documentation says.

use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use governor::{Quota, RateLimiter};

use crate::contenders::{Contender, name, random_keys};

fn many(count: u32) -> NonZeroU32 {
    NonZeroU32::new(count).expect("not zero")
}

fn quota() -> Quota {
    Quota::per_hour(many(100_000_000))
}

pub fn governor_numbers() -> Contender {
    governor_keyed(quota())
}

/// One request a day.
pub fn governor_once() -> Contender {
    governor_keyed(Quota::with_period(Duration::from_secs(86_400)).expect("not zero"))
}

fn governor_keyed(quota: Quota) -> Contender {
    let limiter = RateLimiter::keyed(quota);
    Contender::new(
        "governor, keyed",
        Box::new(move |seed, keys, checks| {
            random_keys(seed, keys, checks).map(|key: u64| u64::from(limiter.check_key(&key).is_ok())).sum()
        }),
    )
}

/// Its map owns its keys, so every check needs one to look up with.
pub fn governor_strings() -> Contender {
    let limiter = RateLimiter::keyed(quota());
    Contender::new(
        "governor, keyed",
        Box::new(move |seed, keys, checks| {
            let mut buffer = [0; 20];
            let mut check = |key| u64::from(limiter.check_key(&name(key, &mut buffer).to_owned()).is_ok());
            random_keys(seed, keys, checks).map(&mut check).sum()
        }),
    )
}

pub fn governor_direct() -> Contender {
    let limiter = RateLimiter::direct(Quota::per_second(many(500_000_000)));
    Contender::new(
        "governor, direct",
        Box::new(move |_, _, checks| (0..checks).map(|_| u64::from(limiter.check().is_ok())).sum()),
    )
}

pub fn ratelimit() -> Contender {
    let limiter = ratelimit::Ratelimiter::builder(500_000_000)
        .max_tokens(1_000_000_000)
        .initial_available(1_000_000_000)
        .build()
        .expect("valid");
    Contender::new(
        "ratelimit",
        Box::new(move |_, _, checks| (0..checks).map(|_| u64::from(limiter.try_wait().is_ok())).sum()),
    )
}

pub fn leaky_bucket() -> Contender {
    let limiter = leaky_bucket::RateLimiter::builder()
        .max(1_000_000_000)
        .initial(1_000_000_000)
        .refill(500_000)
        .interval(Duration::from_millis(1))
        .build();
    Contender::new(
        "leaky-bucket",
        Box::new(move |_, _, checks| (0..checks).map(|_| u64::from(limiter.try_acquire(1))).sum()),
    )
}

/// It is made for one thread; several need a mutex.
pub fn throttlecrab(keys: u64) -> Contender {
    let store = throttlecrab::PeriodicStore::with_capacity(usize::try_from(keys * 2).expect("fits"));
    let limiter = Mutex::new(throttlecrab::RateLimiter::new(store));
    Contender::new(
        "throttlecrab, behind a mutex",
        Box::new(move |seed, keys, checks| {
            let mut buffer = [0; 20];
            let mut check = |key| {
                let mut limiter = limiter.lock().expect("no panic");
                let now = SystemTime::now();
                let answer =
                    limiter.rate_limit(name(key, &mut buffer), 100_000_000, 100_000_000, 3_600, 1, now);
                u64::from(answer.expect("valid").0)
            };
            random_keys(seed, keys, checks).map(&mut check).sum()
        }),
    )
    .slow()
}

pub fn limitador(keys: u64) -> Contender {
    use limitador::limit::{Context, Limit, Namespace};
    let limiter = limitador::RateLimiter::new(keys * 2 + 10);
    let client = "client".try_into().expect("an expression");
    limiter.add_limit(Limit::new("bench", 100_000_000, 86_400, vec![], vec![client]));
    let namespace = Namespace::from("bench");
    Contender::new(
        "limitador, in memory",
        Box::new(move |seed, keys, checks| {
            let mut buffer = [0; 20];
            let mut check = |key| {
                let values = HashMap::from([("client".to_owned(), name(key, &mut buffer).to_owned())]);
                let context: Context<'_> = values.into();
                let answer = limiter.check_rate_limited_and_update(&namespace, &context, 1);
                u64::from(!answer.expect("in memory").limited)
            };
            random_keys(seed, keys, checks).map(&mut check).sum()
        }),
    )
    .slow()
}
