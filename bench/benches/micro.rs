//! The pieces by themselves: `cargo bench --manifest-path bench/Cargo.toml`.

use divan::{Bencher, black_box};
use tollgate::{Clock, CoarseClock, Limit, MINUTE, Meter, SECOND, SystemClock, Timestamp};

fn main() {
    divan::main();
}

#[divan::bench(args = ["token bucket", "token bucket with fractions", "fixed window", "sliding window", "sliding log", "reserve"])]
fn decide(bencher: Bencher<'_, '_>, algorithm: &str) {
    let limit = match algorithm {
        "token bucket" => Limit::per_second(1_000_000),
        "token bucket with fractions" => Limit::per_second(700_000_000),
        "fixed window" => Limit::fixed_window(1_000_000, MINUTE),
        "sliding window" => Limit::sliding_window(1_000_000, MINUTE),
        "sliding log" => Limit::sliding_log(1_000, SECOND),
        _ => Limit::per_second(1_000).reserve(500, 1, SECOND),
    };
    let mut meter = Meter::new(limit);
    let mut now = 1_800_000_000_000_000_000;
    bencher.bench_local(|| {
        now += 1_000_000;
        meter.decide(black_box(Timestamp::from_nanos(now)), 1)
    });
}

#[divan::bench]
fn precise_clock() -> Timestamp {
    SystemClock.now()
}

#[divan::bench]
fn coarse_clock() -> Timestamp {
    CoarseClock.now()
}

#[divan::bench]
fn notation() -> Limit {
    black_box("100 per minute burst 20").parse().expect("valid")
}
