//! How many instructions a check takes, counted by callgrind: the same on every run, however noisy the machine.
//!
//! Each case is run twice, with different numbers of checks, and the difference counts, so that setting up costs nothing. The clock
//! stands still: reading it is not counted. `cargo xtask bench --instructions` compares with `bench/instructions.txt`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::process::Command;

use tollgate::{Clock, HOUR, Limit, Limiter, Rule, RuleSet, Sleep, Timestamp};

use crate::contenders::limiter;

const CASES: [&str; 8] =
    ["admitted", "denied", "string", "batch", "fixed window", "sliding window", "three limits", "global"];
const FEW: u64 = 10_000;
const MANY: u64 = 30_000;
/// More instructions than recorded by this share, in thousandths, is a regression.
const TOLERANCE: u64 = 30;
const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/instructions.txt");

/// A clock that stands still.
#[derive(Clone, Copy, Debug)]
struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_800_000_000)
    }

    fn sleep_until(&self, _at: Timestamp) -> Sleep {
        Box::pin(std::future::pending())
    }
}

/// What callgrind watches.
pub fn run(case: &str, checks: u64) {
    let many = Limit::per_day(100_000_000);
    let limiter = match case {
        "denied" => limiter(Limit::per_day(1), 1_000, Still),
        "fixed window" => limiter(Limit::fixed_window(100_000_000, HOUR), 1_000, Still),
        "sliding window" => limiter(Limit::sliding_window(100_000_000, HOUR), 1_000, Still),
        "three limits" => {
            limiter([many, Limit::fixed_window(100_000_000, HOUR), Limit::per_day(200_000_000)], 1_000, Still)
        }
        "global" => {
            let rules = RuleSet::new([Rule::new("global", many)]).expect("valid");
            Limiter::builder(rules).clock(Still).build().expect("valid")
        }
        _ => limiter(many, 1_000, Still),
    };
    let key = |check: u64| 1_000_000 + check % 100;
    if case == "batch" {
        let keys: Vec<u64> = (0..64).map(key).collect();
        for _ in 0..checks / 64 {
            limiter.check_many(&keys, |decision| drop(std::hint::black_box(decision)));
        }
        return;
    }
    for check in 0..checks {
        let decision = match case {
            "string" => limiter.check("a-client-of-20-bytes"),
            _ => limiter.check(key(check)),
        };
        drop(std::hint::black_box(decision));
    }
}

fn count(case: &str, checks: u64) -> u64 {
    let own = std::env::current_exe().expect("this program");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(own)
        .args(["instructions", case, &checks.to_string()])
        .output()
        .expect("valgrind; Debian's package has that name");
    let report = String::from_utf8_lossy(&output.stderr).into_owned();
    let collected =
        report.lines().find_map(|line| line.split_once("Collected : ")).map(|(_, count)| count.trim());
    collected.and_then(|count| count.parse().ok()).unwrap_or_else(|| panic!("callgrind said {report}"))
}

fn counts() -> BTreeMap<&'static str, u64> {
    let per_check = |case| (count(case, MANY) - count(case, FEW)) / (MANY - FEW);
    CASES.iter().map(|case| (*case, per_check(case))).collect()
}

pub fn table() -> String {
    let mut text = String::from(
        "## Instructions per check, the clock's not counted\n\n| case | instructions |\n|---|---|\n",
    );
    for (case, count) in counts() {
        let _ = writeln!(text, "| {case} | {count} |");
    }
    text
}

/// Compares with the record, or makes one. Says with its exit status whether anything got worse.
pub fn compare() -> i32 {
    let Ok(record) = std::fs::read_to_string(RECORD) else {
        let lines: String = counts().iter().map(|(case, count)| format!("{case}: {count}\n")).collect();
        std::fs::write(RECORD, &lines).expect("a writable bench directory");
        println!("recorded:\n{lines}");
        return 0;
    };
    let recorded: BTreeMap<&str, u64> = record
        .lines()
        .filter_map(|line| line.split_once(": ").and_then(|(case, count)| Some((case, count.parse().ok()?))))
        .collect();
    let mut worse = 0;
    for (case, count) in counts() {
        let before = recorded.get(case).copied().unwrap_or(count);
        let is_worse = count * 1_000 > before * (1_000 + TOLERANCE);
        worse |= i32::from(is_worse);
        println!(
            "{case:16} {count:6} instructions, {before:6} recorded{}",
            if is_worse { ": WORSE" } else { "" }
        );
    }
    if worse != 0 {
        println!("if that is the price of something, delete bench/instructions.txt and run this again");
    }
    worse
}
