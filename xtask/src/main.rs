//! One door to everything that is more than one cargo command: `cargo xtask test`.

use std::env;
use std::path::Path;
use std::process::{Command, ExitCode};

mod fair;
mod node;
mod prose;
mod redis_campaign;
mod simulate;
mod viewers;

const HELP: &str = "\
cargo xtask test     format, lints, all tests, interleavings, doctests, docs: what CI runs
cargo xtask laws N   the laws over N random cases each instead of 256: a campaign, run by hand
cargo xtask truth N  the Redis script against the core, N random schedules of each kind instead of 1000
cargo xtask kills N  the disk store's process killed N times in each mode instead of 100, and processes
                     with streams on disk and in Redis killed N times instead of 8
cargo xtask fuzz N   the parser of the Redis protocol and the normal form of paths, fuzzed for N seconds each
cargo xtask redis-campaign
                     two servers and 24 clients through the everyday troubles of a real Redis, a Sentinel's
                     and a Cluster's; prints the table of docs/fleet.md
  --only PART        only the cases with PART in their name
  --binary FILE      with this program instead of the one that it builds
cargo xtask bench    tollgate beside its rivals and the floors; writes bench/RESULTS.md and docs/bench.svg
  --only PART        only the cases with PART in their name; writes nothing
  --server           the server beside nginx, axum and a rival's under wrk, Redis under redis-benchmark, and tonic
  --server PART      only http, resp or grpc of these; writes nothing
  --redis            a node with a real Redis beside redis-benchmark and a rival's
  --disk             checks, syncs and loading of the disk store, and the storage engines that could be beneath it
  --wait             waiters beside those of governor, leaky-bucket and tokio's Semaphore: memory, joining,
                     leaving, deadlines, order
  --simulate         10 million lines replayed under three limits and for suggestions, beside wc and zcat
  --fair             a polite client of a server on Redis, alone and beside one that floods it
  --viewers          a server under load and idle, without and with fifty viewers of its dashboard
  --instructions     only counts instructions with callgrind, and compares with the record
cargo xtask pictures draws docs/algorithms.svg and docs/budget.svg anew, and takes the screenshots of the tests' run";

/// The screenshots that the tests of the dashboard and of `tollgate top` leave.
const SCREENSHOTS: [&str; 4] = ["dashboard-light.png", "dashboard-dark.png", "client.png", "top.svg"];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments.as_slice() {
        ["test"] => test(),
        ["laws", cases] => laws(cases),
        ["truth", cases] => truth(cases),
        ["kills", kills] => kill(kills),
        ["fuzz", seconds] => fuzz(seconds),
        ["redis-campaign", options @ ..] => campaign(options),
        ["bench"] => bench(&[]),
        ["bench", "--only", part] => bench(&["only", part]),
        ["bench", "--instructions"] => instructions(),
        ["bench", "--server"] => bench_servers(&["server"]),
        ["bench", "--server", part @ ("http" | "resp" | "grpc")] => bench_servers(&["server", part]),
        ["bench", "--redis"] => bench_redis(),
        ["bench", "--wait"] => bench(&["wait"]),
        ["bench", "--simulate"] => simulate::bench(),
        ["bench", "--fair"] => fair::bench(),
        ["bench", "--viewers"] => viewers::bench(),
        ["bench", "--disk"] => bench_with("disk", &["disk"]),
        ["pictures"] => pictures(),
        _ => Err(format!("what should be done?\n\n{HELP}")),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(complaint) => {
            eprintln!("xtask: {complaint}");
            ExitCode::FAILURE
        }
    }
}

/// Everything that has to hold before a change lands, cheapest first.
fn test() -> Result<(), String> {
    set_up()?;
    cargo("formatting", &["fmt", "--all", "--", "--check"])?;
    eprintln!("── prose");
    prose::check(root())?;
    cargo("lints", &["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"])?;
    if has("nextest") {
        cargo("tests", &["nextest", "run", "--workspace", "--all-features"])?;
    } else {
        cargo("tests", &["test", "--workspace", "--all-features", "--lib", "--bins", "--tests"])?;
    }
    // The core must stand without its features too.
    cargo("the core alone", &["check", "--package", "tollgate", "--no-default-features"])?;
    cargo("doctests", &["test", "--workspace", "--all-features", "--doc"])?;
    for which in [["--lib", "interleavings"], ["--test", "shuttle"]] {
        run(
            "interleavings",
            in_workspace("cargo")
                .args([
                    "test",
                    "--package",
                    "tollgate",
                    "--features",
                    "dump",
                    "--target-dir",
                    "target/shuttle",
                ])
                .args(which)
                .env("RUSTFLAGS", "--cfg shuttle"),
        )?;
    }
    instructions()?;
    run(
        "docs",
        in_workspace("cargo")
            .args(["doc", "--workspace", "--all-features", "--no-deps"])
            .env("RUSTDOCFLAGS", "-D warnings"),
    )
}

/// Installs what the tests need and this machine lacks: the parts of the toolchain that a minimal
/// one comes without, a Python with virtual environments, a Node with its package manager, and
/// servers.
fn set_up() -> Result<(), String> {
    for (part, subcommand) in [("rustfmt", "fmt"), ("clippy", "clippy")] {
        if !has(subcommand) {
            run(&format!("installing {part}"), in_workspace("rustup").args(["component", "add", part]))?;
        }
    }
    // Packages for these are installed by the tests that need them.
    install_unless(&["python3", "-m", "venv", "--help"], "python3-venv")?;
    install_unless(&["node", "--version"], "nodejs")?;
    install_unless(&["npm", "--version"], "npm")?;
    // It checks the unit that the server is packaged with.
    install_unless(&["systemd-analyze", "--version"], "systemd")?;
    // Tests start servers of their own, on free ports.
    install_unless(&["redis-server", "--version"], "redis-server")?;
    install_unless(&["nginx", "-v"], "nginx-light")?;
    install_unless(&["caddy", "version"], "caddy")?;
    // It has promtool beside it. Both check what is packaged for them.
    install_unless(&["prometheus", "--version"], "prometheus")?;
    // Tests open pages in it.
    install_unless(&["chromium", "--version"], "chromium")
}

fn laws(cases: &str) -> Result<(), String> {
    let mut laws = in_workspace("cargo");
    laws.args([
        "test",
        "--release",
        "--package",
        "tollgate",
        "--test",
        "it",
        "--",
        "conformance",
        "exact_rates",
    ]);
    // Every case makes a store. Blocks that glibc maps one by one leave no holes when they are
    // freed: 40 000 cases took 24 GB otherwise.
    run("the laws", laws.env("PROPTEST_CASES", cases).env("MALLOC_MMAP_THRESHOLD_", "30000"))
}

fn truth(cases: &str) -> Result<(), String> {
    set_up()?;
    let mut truth = in_workspace("cargo");
    truth.args(["test", "--package", "tollgate-redis", "--test", "it", "--", "truth", "--nocapture"]);
    run("the script against the core", truth.env("TOLLGATE_CASES", cases))
}

fn kill(kills: &str) -> Result<(), String> {
    let tests = [("tollgate-disk", "crash"), ("tollgate-disk", "streams"), ("tollgate-redis", "streams")];
    for (package, test) in tests {
        let mut kill = in_workspace("cargo");
        kill.args(["test", "--package", package, "--test", "it", "--", test, "--nocapture"]);
        run("killing", kill.env("TOLLGATE_KILLS", kills))?;
    }
    Ok(())
}

/// The fuzz targets.
const FUZZED: [&str; 2] = ["frame", "path"];

fn campaign(options: &[&str]) -> Result<(), String> {
    let (mut part, mut binary) = ("", None);
    for option in options.chunks(2) {
        match *option {
            ["--only", name] => part = name,
            ["--binary", file] => binary = Some(file),
            _ => return Err(format!("what should be done?\n\n{HELP}")),
        }
    }
    redis_campaign::run(part, binary)
}

/// libFuzzer, with the instrumentation that it needs: the flags that `cargo fuzz` gives without a
/// sanitizer, which a stable compiler knows too. They are for the target only, hence it is named.
fn fuzz(seconds: &str) -> Result<(), String> {
    const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
                         -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
                         -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares";
    let version = in_workspace("rustc").arg("-vV").output().map_err(|error| format!("no rustc: {error}"))?;
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    let host = version
        .lines()
        .find_map(|line| line.strip_prefix("host: "))
        .ok_or("rustc does not say what it runs on")?;
    let run_one = |target: &&str| {
        let corpus = root().join("fuzz/target/corpus").join(target);
        std::fs::create_dir_all(&corpus).map_err(|error| format!("cannot keep a corpus: {error}"))?;
        run(
            "fuzzing",
            in_workspace("cargo")
                .args(["run", "--release", "--manifest-path", "fuzz/Cargo.toml", "--target", host])
                .args(["--bin", target, "--"])
                .args([&format!("-max_total_time={seconds}"), "-max_len=4096", "-print_final_stats=1"])
                .arg(corpus)
                .env("RUSTFLAGS", FLAGS),
        )
    };
    FUZZED.iter().try_for_each(run_one)
}

/// Counts instructions with callgrind, and compares with the record.
fn instructions() -> Result<(), String> {
    install_unless(&["valgrind", "--version"], "valgrind")?;
    cargo("instructions", &["run", "--release", "--manifest-path", "bench/instructions/Cargo.toml"])
}

/// In a workspace of its own, so that nobody who builds tollgate has to build its rivals.
fn bench(arguments: &[&str]) -> Result<(), String> {
    run(
        "bench",
        in_workspace("cargo")
            .args(["run", "--release", "--manifest-path", "bench/Cargo.toml", "--"])
            .args(arguments),
    )
}

/// A node beside others that ask the same Redis. A rival needs a C++ compiler and libclang to be
/// built, and minutes.
fn bench_redis() -> Result<(), String> {
    install_unless(&["redis-server", "--version"], "redis-server")?;
    install_unless(
        &["sh", "-c", "ls /usr/lib/llvm-*/lib/libclang.so /usr/lib/llvm-*/lib/libclang-*.so"],
        "libclang-dev",
    )?;
    bench_with("redis", &["redis"])
}

/// What is measured by itself, with what only that needs.
fn bench_with(feature: &str, arguments: &[&str]) -> Result<(), String> {
    run(
        "bench",
        in_workspace("cargo")
            .args(["run", "--release", "--manifest-path", "bench/Cargo.toml", "--features", feature, "--"])
            .args(arguments),
    )
}

/// The server beside others, under load generators: what has to be installed for that is.
fn bench_servers(arguments: &[&str]) -> Result<(), String> {
    install_unless(&["which", "wrk"], "wrk")?;
    install_unless(&["nginx", "-v"], "nginx-light")?;
    // Its load generator comes with it.
    install_unless(&["redis-server", "--version"], "redis-server")?;
    let rivals = "bench/target/rivals";
    if !root().join(rivals).join("bin/throttlecrab-server").exists() {
        install_unless(&["protoc", "--version"], "protobuf-compiler")?;
        cargo(
            "installing a rival",
            &["install", "throttlecrab-server", "--version", "0.4.40", "--root", rivals],
        )?;
    }
    cargo("the server", &["build", "--profile", "dist", "--package", "tollgate-server"])?;
    bench_with("server", arguments)
}

/// Installs a Debian package, unless what it is needed for works.
fn install_unless(works: &[&str], package: &str) -> Result<(), String> {
    let (program, arguments) = works.split_first().ok_or("nothing to try")?;
    if in_workspace(program).args(arguments).output().is_ok_and(|output| output.status.success()) {
        return Ok(());
    }
    let apt = |arguments: &[&str]| {
        let mut apt = in_workspace("apt-get");
        apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        run(&format!("installing {package}"), &mut apt)
    };
    apt(&["update"])?;
    apt(&["install", "--yes", "--no-install-recommends", package])
}

fn pictures() -> Result<(), String> {
    for (example, file) in [("picture", "docs/algorithms.svg"), ("picture_budget", "docs/budget.svg")] {
        cargo("pictures", &["run", "--quiet", "--package", "tollgate", "--example", example, "--", file])?;
    }
    // The tests leave screenshots, so that they show what is tested.
    set_up()?;
    let tests = ["test", "--package", "tollgate-server", "--test", "it", "--", "dashboard", "top"];
    cargo("screenshots", &tests)?;
    for name in SCREENSHOTS {
        let (from, to) = (root().join("target/tmp/screenshots").join(name), root().join("docs").join(name));
        std::fs::copy(&from, &to).map_err(|error| format!("cannot copy {}: {error}", from.display()))?;
    }
    Ok(())
}

/// Whether cargo has a subcommand.
fn has(subcommand: &str) -> bool {
    let asked = in_workspace("cargo").args([subcommand, "--version"]).output();
    asked.is_ok_and(|output| output.status.success())
}

fn cargo(what: &str, arguments: &[&str]) -> Result<(), String> {
    run(what, in_workspace("cargo").args(arguments))
}

fn run(what: &str, command: &mut Command) -> Result<(), String> {
    eprintln!("── {what}");
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{what} failed ({status}): {command:?}")),
        Err(error) => Err(format!("{what} could not be started ({error}): {command:?}")),
    }
}

fn in_workspace(program: &str) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root());
    command
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."))
}
