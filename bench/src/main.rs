//! tollgate beside its rivals, and beside floors that no limiter can go below, interleaved in one
//! process.
//!
//! `cargo xtask bench` prints the tables and writes `bench/RESULTS.md` and `docs/bench.svg`. Times
//! move from run to run and from machine to machine: compare the ratios.

mod chart;
mod contenders;
#[cfg(feature = "disk")]
mod disk;
#[cfg(feature = "disk")]
mod engines;
mod floors;
#[cfg(feature = "server")]
mod grpc;
mod latency;
mod layers;
mod memory;
#[cfg(feature = "server")]
mod process;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "server")]
mod resp;
mod rivals;
#[cfg(feature = "server")]
mod server;
mod table;
#[cfg(feature = "server")]
mod turns;
mod wait;

use std::path::Path;

use contenders::Keys;
use table::{Case, Table};

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [] => everything(),
        ["memory", contender, keys] => memory::report(contender, keys.parse().expect("a number of keys")),
        ["wait"] => section("## Waiting", &wait::table()),
        ["wait", contender, part] => wait::report(contender, part.parse().expect("a row")),
        ["latency"] => println!("{}", latency::table()),
        ["chart"] => write("docs/bench.svg", &chart::draw(&Table::read(&part(&results(), TIMES)))),
        ["only", wanted] => println!("{}", times(wanted).markdown()),
        #[cfg(feature = "server")]
        ["server"] => section("## Servers", &server::table(root(), "")),
        #[cfg(feature = "server")]
        ["server", part @ ("http" | "resp" | "grpc")] => println!("{}", server::table(root(), part)),
        #[cfg(feature = "disk")]
        ["disk"] => section("## Disk", &disk::table(root(), "")),
        #[cfg(feature = "disk")]
        ["disk", part] => println!("{}", disk::table(root(), part)),
        #[cfg(feature = "redis")]
        ["redis"] => section("## Redis", &redis::table("")),
        #[cfg(feature = "redis")]
        ["redis", part] => println!("{}", redis::table(part)),
        #[cfg(feature = "server")]
        ["bare", address] => server::serve_bare(address),
        #[cfg(feature = "server")]
        ["bare-grpc", address] => grpc::serve_bare(address),
        _ => eprintln!(
            "usage: tollgate-bench [chart | latency | wait | server [http | resp | grpc] | redis | disk | only PART-OF-A-CASE'S-NAME]"
        ),
    }
}

fn everything() {
    let times = times("");
    write("docs/bench.svg", &chart::draw(&times));
    let report = format!(
        "# Results\n\nWritten by `cargo xtask bench`. {}\n\n## Nanoseconds per check\n\nMedians of {} rounds in which everyone has a turn. \
         Every check is of a uniformly random key that has been seen before.\n\n{}\n{}\n{}\n{}",
        table::machine(),
        table::ROUNDS,
        times.markdown(),
        memory::table(),
        latency::table(),
        instructions(),
    );
    println!("{report}");
    let kept = OTHERS.map(|heading| part(&results(), heading)).concat();
    write(RESULTS, &format!("{report}\n{kept}"));
}

/// A part of the results that is measured by itself, anew.
fn section(heading: &str, table: &str) {
    println!("{}\n\n{table}", table::machine());
    let text = results();
    let old = part(&text, heading);
    let text = if old.is_empty() {
        format!("{}\n\n{table}", text.trim_end())
    } else {
        text.replace(&old, &format!("{}\n\n", table.trim_end()))
    };
    write(RESULTS, &format!("{}\n", text.trim_end()));
}

/// What is measured by commands of their own.
const OTHERS: [&str; 4] = ["## Servers", "## Redis", "## Disk", "## Waiting"];

const RESULTS: &str = "bench/RESULTS.md";

/// The heading of the times.
const TIMES: &str = "## Nanoseconds per check";

/// The results as they stand.
fn results() -> String {
    std::fs::read_to_string(root().join(RESULTS)).unwrap_or_default()
}

/// What stands under a heading, with it.
fn part(text: &str, heading: &str) -> String {
    let Some(start) = text.find(heading) else { return String::new() };
    let end = text[start + 3..].find("\n## ").map_or(text.len(), |end| start + 3 + end + 1);
    text[start..end].to_owned()
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the project's root")
}

fn write(file: &str, text: &str) {
    std::fs::write(root().join(file), text).expect("a writable project");
}

/// All cases whose name contains `wanted`.
fn times(wanted: &str) -> Table {
    let mut table = Table::default();
    for keys in [1, 1_000, 1_000_000, 10_000_000] {
        for kind in [Keys::Numbers, Keys::Strings] {
            let case = Case { name: format!("{keys} keys, {kind}, admitted"), keys };
            table.measure(case, wanted, &[1, 2], || contenders::keyed(keys, kind));
        }
    }
    for keys in [1, 1_000_000] {
        let case = Case { name: format!("{keys} keys, {}, denied", Keys::Numbers), keys };
        table.measure(case, wanted, &[1], || contenders::denied(keys));
    }
    let case = Case { name: "no key, admitted".into(), keys: 1 };
    table.measure(case, wanted, &[1, 2], contenders::unkeyed);
    let case = Case { name: "middleware, 1000 clients, admitted".into(), keys: 1_000 };
    table.measure(case, wanted, &[1], || layers::all(1_000));
    table
}

/// What `cargo xtask bench --instructions` recorded.
fn instructions() -> String {
    let record = include_str!("../instructions/record.txt");
    let mut lines = record.lines();
    let compiler = lines.next().unwrap_or_default();
    let rows: String = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(case, count)| format!("| {case} | {count} |\n"))
        .collect();
    format!(
        "## Instructions per check, the clock's not counted ({compiler})\n\n| case | instructions |\n|---|---|\n{rows}"
    )
}
