//! How many instructions a check takes, counted by callgrind: the same on every run, however noisy
//! the machine.
//!
//! Each case is run twice, with different numbers of checks, and the difference counts, so that
//! setting up costs nothing. The clock stands still: reading it is not counted. Some 30 of the
//! instructions are this program's own. `cargo xtask test` compares with `record.txt`.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{
    Clock, Decision, Error, HOUR, Limit, Limiter, Limits, MemoryStore, Observer, OnExpiry, Request, Rule,
    RuleSet, Sleep, Timestamp, block_on,
};

const CASES: [&str; 19] = [
    "admitted",
    "denied",
    "observed",
    "string",
    "batch",
    "fixed window",
    "sliding window",
    "three limits",
    "global",
    "global and client",
    "inline",
    "inline batch",
    "by route",
    "shadow",
    "log",
    "counted denial",
    "1 hold",
    "100 holds",
    "1000 holds",
];
const FEW: u64 = 10_048;
const MANY: u64 = 30_016;
/// More instructions than recorded by this share, in thousandths, is a regression.
const TOLERANCE: u64 = 30;
const RECORD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/record.txt");

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

/// A clock that advances by a nanosecond with each reading.
#[derive(Clone, Copy, Debug)]
struct Ticking;

impl Clock for Ticking {
    fn now(&self) -> Timestamp {
        static TICKS: AtomicU64 = AtomicU64::new(1_800_000_000_000_000_000);
        Timestamp::from_nanos(TICKS.fetch_add(1, Ordering::Relaxed))
    }

    fn sleep_until(&self, _at: Timestamp) -> Sleep {
        Box::pin(std::future::pending())
    }
}

/// Sees everything and does nothing, as the server's sees everything.
struct Idle;

impl Observer for Idle {}

fn limiter(limits: impl Into<Limits>) -> Limiter {
    with_rules([Rule::new("per-client", limits).key(["client"])])
}

fn with_rules<const N: usize>(rules: [Rule; N]) -> Limiter {
    let rules = RuleSet::new(rules).expect("valid");
    Limiter::builder(rules).store(MemoryStore::new()).clock(Still).build().expect("valid")
}

/// What callgrind watches.
fn watch(case: &str, checks: u64) {
    let many = Limit::per_day(100_000_000);
    let limiter = match case {
        "denied" => limiter(Limit::per_day(1)),
        "fixed window" => limiter(Limit::fixed_window(100_000_000, HOUR)),
        "sliding window" => limiter(Limit::sliding_window(100_000_000, HOUR)),
        "three limits" => {
            limiter([many, Limit::fixed_window(100_000_000, HOUR), Limit::per_day(200_000_000)])
        }
        "observed" => {
            Limiter::builder(RuleSet::per_client(many)).clock(Still).observer(Idle).build().expect("valid")
        }
        "global" => with_rules([Rule::new("global", many)]),
        "global and client" => {
            with_rules([Rule::new("global", many), Rule::new("client", many).key(["client"])])
        }
        "inline" => with_rules([Rule::inline("inline").key(["client"])]),
        // As a server has it: beside a rule of its own.
        "inline batch" => {
            with_rules([Rule::new("client", many).key(["client"]), Rule::inline("inline").key(["client"])])
        }
        "by route" => with_rules([
            Rule::new("route", many).matching("path", "/api/*").key(["client", "path"]),
            Rule::new("client", many).key(["client"]),
        ]),
        "shadow" => with_rules([
            Rule::new("client", many).key(["client"]),
            Rule::new("watched", Limit::per_day(1)).key(["client"]).shadow(),
        ]),
        // A log of 4000 entries, of which one lapses with each check.
        "log" => {
            let rules = RuleSet::per_client(Limit::sliding_log(4_000, Duration::from_nanos(4_000)));
            Limiter::builder(rules).clock(Ticking).build().expect("valid")
        }
        "counted denial" => limiter(Limit::fixed_window(1, HOUR).counting_denied()),
        _ => limiter(many),
    };
    let key = |check: u64| 1_000_000 + check % 100;
    if case == "batch" {
        let keys: Vec<u64> = (0..64).map(key).collect();
        for _ in 0..checks / 64 {
            limiter.check_many(&keys, |decision| {
                std::hint::black_box(&decision);
            });
        }
        return;
    }
    let inline = limiter.inline(Limit::per_minute(100_000_000)).expect("valid");
    if case == "inline batch" {
        let requests = [Request::client("a-client").under("inline", &inline); 64];
        for _ in 0..checks / 64 {
            limiter.check_many(&requests, |decision| {
                std::hint::black_box(&decision);
            });
        }
        return;
    }
    hold(case, &limiter);
    // A loop for each, so that choosing between them is not counted.
    match case {
        "string" => repeat(checks, |_| limiter.check("a-client-of-20-bytes")),
        "inline" => repeat(checks, |_| limiter.check(Request::client("a-client").under("inline", &inline))),
        "by route" => {
            let attributes = [("client", "a-client"), ("path", "/api/items"), ("method", "GET")];
            repeat(checks, |_| limiter.check(Request::new(&attributes)));
        }
        "log" | "1 hold" | "100 holds" | "1000 holds" => repeat(checks, |_| limiter.check(1)),
        _ => repeat(checks, |check| limiter.check(key(check))),
    }
}

fn repeat(checks: u64, check: impl Fn(u64) -> Result<Decision, Error>) {
    for number in 0..checks {
        std::hint::black_box(&check(number));
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [case, checks] => watch(case, checks.parse().expect("a number of checks")),
        [] => return compare(),
        _ => panic!("this takes no arguments"),
    }
    ExitCode::SUCCESS
}

fn count(case: &str, checks: u64) -> u64 {
    let own = std::env::current_exe().expect("this program");
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(own)
        .args([case, &checks.to_string()])
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

/// The compiler: another one counts otherwise.
const COMPILER: &str = env!("COMPILER");

/// Compares with the record, or makes one. Fails if anything got worse.
fn compare() -> ExitCode {
    let counts = counts();
    let Ok(record) = std::fs::read_to_string(RECORD) else {
        let lines: String = counts.iter().map(|(case, count)| format!("{case}: {count}\n")).collect();
        std::fs::write(RECORD, format!("{COMPILER}\n{lines}")).expect("a writable directory");
        println!("recorded:\n{lines}");
        return ExitCode::SUCCESS;
    };
    let same_compiler = record.lines().next() == Some(COMPILER);
    let recorded: BTreeMap<&str, u64> = record
        .lines()
        .filter_map(|line| line.split_once(": ").and_then(|(case, count)| Some((case, count.parse().ok()?))))
        .collect();
    let mut worse = false;
    for (case, count) in counts {
        let before = recorded.get(case).copied().unwrap_or(0);
        let is_worse = count * 1_000 > before * (1_000 + TOLERANCE);
        worse |= is_worse;
        println!(
            "{case:18} {count:6} instructions, {before:6} recorded{}",
            if is_worse { ": WORSE" } else { "" }
        );
    }
    match (worse, same_compiler) {
        (false, _) => ExitCode::SUCCESS,
        (true, false) => {
            println!("but by another compiler than {COMPILER}: delete {RECORD} and run this again");
            ExitCode::SUCCESS
        }
        (true, true) => {
            println!("if that is the price of something, delete {RECORD} and run this again");
            ExitCode::FAILURE
        }
    }
}

/// Makes the reservations of a case. Not inlined, so that the loops of the others are what they
/// would be without it.
#[inline(never)]
fn hold(case: &str, limiter: &Limiter<MemoryStore>) {
    let holds = case.split_once(" hold").and_then(|(holds, _)| holds.parse().ok()).unwrap_or(0);
    for _ in 0..holds {
        let reserved = block_on(limiter.reserve(1, HOUR, OnExpiry::GiveBack));
        let _ = reserved.expect("valid").detach();
    }
}
