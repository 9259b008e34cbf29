//! tollgate beside its best-known rival and beside floors that no limiter can go below, interleaved in one process.
//!
//! `cargo xtask bench` prints the table and writes it to `bench/RESULTS.md`. Times move from run to run and from machine to machine:
//! compare the ratios.

mod contenders;
mod growth;
mod memory;

use std::fmt::Write as _;
use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use contenders::{Contender, Keys};

/// Each figure is the median of this many rounds, in each of which every contender has its turn.
const ROUNDS: usize = 5;
const CHECKS: u64 = 500_000;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["memory", contender, keys] => memory::report(contender, keys.parse().expect("a number of keys")),
        [] => {
            let report = report();
            println!("{report}");
            std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/RESULTS.md"), report)
                .expect("RESULTS.md can be written");
        }
        _ => eprintln!("usage: tollgate-bench"),
    }
}

fn report() -> String {
    let mut report = String::from(
        "# Results\n\nWritten by `cargo xtask bench`. Nanoseconds per check, medians of interleaved rounds; the ratio is to governor.\n\n",
    );
    let _ = writeln!(report, "{}\n", machine());
    report.push_str("| keys | type | threads | contender | ns | ratio |\n|---|---|---|---|---|---|\n");
    for (keys, kind) in [
        (1, Keys::Numbers),
        (1_000, Keys::Numbers),
        (1_000_000, Keys::Numbers),
        (1_000_000, Keys::Strings),
        (10_000_000, Keys::Numbers),
        (10_000_000, Keys::Strings),
    ] {
        let contenders = contenders::keyed(keys, kind);
        for threads in [1, 2] {
            rows(&mut report, &format!("{keys} | {kind}"), &contenders, threads, keys);
        }
    }
    let unkeyed = contenders::unkeyed();
    for threads in [1, 2] {
        rows(&mut report, "none | -", &unkeyed, threads, 1);
    }
    report.push_str("\n## Bytes a key, resident\n\n| keys | contender | bytes |\n|---|---|---|\n");
    for keys in [1_000_000, 10_000_000] {
        for contender in memory::CONTENDERS {
            let _ = writeln!(report, "| {keys} | {contender} | {} |", memory::measure(contender, keys));
        }
    }
    report.push_str(&growth::report());
    report
}

fn rows(report: &mut String, case: &str, contenders: &[Box<dyn Contender>], threads: u64, keys: u64) {
    let mut times: Vec<Vec<f64>> = vec![Vec::new(); contenders.len()];
    for _ in 0..ROUNDS {
        for (contender, times) in contenders.iter().zip(&mut times) {
            if threads == 1 || contender.is_shared() {
                times.push(time(&**contender, threads, keys));
            }
        }
    }
    let medians: Vec<Option<f64>> = times.into_iter().map(median).collect();
    let governor =
        contenders.iter().zip(&medians).find(|(contender, _)| contender.name().starts_with("governor"));
    let base = governor.and_then(|(_, median)| *median).unwrap_or(f64::NAN);
    for (contender, median) in contenders.iter().zip(medians) {
        if let Some(median) = median {
            let row =
                format!("| {case} | {threads} | {} | {median:.0} | {:.2} |", contender.name(), median / base);
            eprintln!("{row}");
            let _ = writeln!(report, "{row}");
        }
    }
}

/// Nanoseconds per check and thread.
fn time(contender: &dyn Contender, threads: u64, keys: u64) -> f64 {
    let start = Barrier::new(usize::try_from(threads).expect("few"));
    let run = |seed: u64| {
        start.wait();
        let begun = Instant::now();
        black_box(contender.run(seed, keys, CHECKS));
        begun.elapsed().as_nanos() as f64 / CHECKS as f64
    };
    let times: Vec<f64> = thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|thread| scope.spawn(move || thread)).collect();
        let threads: Vec<u64> = handles.into_iter().map(|handle| handle.join().expect("no panic")).collect();
        let run = &run;
        let handles: Vec<_> =
            threads.into_iter().map(|thread| scope.spawn(move || run(thread + 1))).collect();
        handles.into_iter().map(|handle| handle.join().expect("no panic")).collect()
    });
    times.iter().sum::<f64>() / times.len() as f64
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

fn machine() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu
        .lines()
        .find_map(|line| line.strip_prefix("model name"))
        .unwrap_or(": unknown")
        .trim_start_matches([' ', '\t', ':']);
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let lock = include_str!("../Cargo.lock");
    let version = |name: &str| {
        let entry = format!("name = \"{name}\"\nversion = \"");
        lock.rsplit_once(&entry).and_then(|(_, rest)| rest.split('"').next()).unwrap_or("?").to_owned()
    };
    format!(
        "{model}, {cores} cores; governor {}, hashbrown {}, tollgate {}.",
        version("governor"),
        version("hashbrown"),
        version("tollgate")
    )
}
