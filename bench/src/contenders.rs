//! Who takes part, and with which keys.

use std::fmt;
use std::time::Duration;

use tollgate::{
    AsRequest, Clock, CoarseClock, HOUR, Limit, Limiter, Limits, MemoryStore, Rule, RuleSet, SystemClock,
};

use crate::{floors, rivals};

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

/// Checks as many random keys out of so many as it is told, beginning with a seed, and says how
/// many were admitted.
pub type Run = Box<dyn Fn(u64, u64, u64) -> u64 + Sync>;

pub struct Contender {
    pub name: &'static str,
    pub run: Run,
    /// Whether several threads can use it.
    pub shared: bool,
    /// Whether it is meant to deny everything.
    pub denies: bool,
    /// How many checks to time.
    pub checks: u64,
}

impl Contender {
    pub fn new(name: &'static str, run: Run) -> Self {
        Self { name, run, shared: true, denies: false, checks: 500_000 }
    }

    pub fn for_one_thread(mut self) -> Self {
        self.shared = false;
        self
    }

    /// One that takes microseconds: fewer checks will do.
    pub fn slow(mut self) -> Self {
        self.checks = 50_000;
        self
    }

    fn denying(mut self) -> Self {
        self.denies = true;
        self
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

/// Random keys, a batch at a time.
pub fn batches(seed: u64, keys: u64, checks: u64, mut each: impl FnMut(&[u64])) {
    let mut batch = Vec::with_capacity(64);
    let mut keys = random_keys(seed, keys, checks);
    loop {
        batch.clear();
        batch.extend(keys.by_ref().take(64));
        if batch.is_empty() {
            return;
        }
        each(&batch);
    }
}

/// A limit that stays in use from one round to the next, so that every key is busy.
const LIMIT: Limit = Limit::per_day(100_000_000);

pub fn limiter(limits: impl Into<Limits>, keys: u64, clock: impl Clock + 'static) -> Limiter {
    let rules = RuleSet::new([Rule::new("per-client", limits).key(["client"])]).expect("valid");
    let store = MemoryStore::new().max_keys(keys * 2 + 10);
    Limiter::builder(rules).store(store).clock(clock).build().expect("valid")
}

pub fn per_client(keys: u64) -> Limiter {
    limiter(LIMIT, keys, SystemClock)
}

fn admitted(limiter: &Limiter, request: impl AsRequest) -> u64 {
    u64::from(limiter.check(request).expect("valid").allowed())
}

fn numbers(limiter: Limiter) -> Run {
    Box::new(move |seed, keys, checks| {
        random_keys(seed, keys, checks).map(|key| admitted(&limiter, key)).sum()
    })
}

fn strings(limiter: Limiter) -> Run {
    Box::new(move |seed, keys, checks| {
        let mut buffer = [0; 20];
        random_keys(seed, keys, checks).map(|key| admitted(&limiter, name(key, &mut buffer))).sum()
    })
}

fn batched(limiter: Limiter) -> Run {
    Box::new(move |seed, keys, checks| {
        let mut admitted = 0;
        batches(seed, keys, checks, |batch| {
            limiter.check_many(batch, |decision| admitted += u64::from(decision.expect("valid").allowed()));
        });
        admitted
    })
}

/// Everyone who counts by key, with every key already known.
pub fn keyed(keys: u64, kind: Keys) -> Vec<Contender> {
    let mut contenders = match kind {
        Keys::Numbers => vec![
            Contender::new("tollgate", numbers(per_client(keys))),
            Contender::new("tollgate, coarse clock", numbers(limiter(LIMIT, keys, CoarseClock))),
            Contender::new("tollgate, batches of 64", batched(per_client(keys))),
            rivals::governor_numbers(),
            floors::cells(keys),
            floors::cells_without_clock(keys),
            floors::cells_in_batches(keys),
            floors::map(),
        ],
        Keys::Strings => vec![
            Contender::new("tollgate", strings(per_client(keys))),
            Contender::new("tollgate, coarse clock", strings(limiter(LIMIT, keys, CoarseClock))),
            rivals::governor_strings(),
        ],
    };
    if kind == Keys::Numbers && keys <= 1_000_000 {
        let three = [LIMIT, Limit::fixed_window(100_000_000, HOUR), Limit::per_day(200_000_000)];
        contenders.push(Contender::new(
            "tollgate, three limits on each key",
            numbers(limiter(three, keys, SystemClock)),
        ));
    }
    if kind == Keys::Strings && keys <= 1_000_000 {
        contenders.push(rivals::throttlecrab(keys));
        contenders.push(rivals::limitador(keys));
    }
    for contender in &contenders {
        // Every key once, so that nothing is new any more.
        (contender.run)(0, keys, keys);
    }
    contenders
}

/// Everyone whose budget is spent for the day.
pub fn denied(keys: u64) -> Vec<Contender> {
    let once = Limit::per_day(1);
    let contenders = vec![
        Contender::new("tollgate", numbers(limiter(once, keys, SystemClock))).denying(),
        Contender::new("tollgate, batches of 64", batched(limiter(once, keys, SystemClock))).denying(),
        rivals::governor_once().denying(),
    ];
    for contender in &contenders {
        (contender.run)(0, keys, keys);
    }
    contenders
}

/// Everyone who counts everything together.
pub fn unkeyed() -> Vec<Contender> {
    let rules =
        RuleSet::new([Rule::new("global", Limit::per(500_000_000, Duration::from_secs(1)))]).expect("valid");
    let build = |coarse: bool| {
        let builder = Limiter::builder(rules.clone());
        let limiter = if coarse { builder.clock(CoarseClock).build() } else { builder.build() };
        let limiter = limiter.expect("valid");
        Box::new(move |_, _, checks| (0..checks).map(|_| admitted(&limiter, "anyone")).sum::<u64>())
    };
    vec![
        Contender::new("tollgate", build(false)),
        Contender::new("tollgate, coarse clock", build(true)),
        rivals::governor_direct(),
        rivals::ratelimit(),
        rivals::leaky_bucket(),
        floors::one_cell(),
    ]
}
