//! The program runs as its documentation says, and a kill keeps the estimate.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tollgate::{Limiter, Request, RuleSet, block_on};
use tollgate_disk::DiskStore;

fn chat(directory: &Path, arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_chat"));
    command.args(arguments.split(' ')).env("BUDGETS", directory);
    command
}

/// What the program says, and whether it was within its budget.
fn said(directory: &Path, arguments: &str) -> (String, bool) {
    let output = chat(directory, arguments).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    (String::from_utf8(output.stdout).unwrap(), output.status.success())
}

fn directory() -> PathBuf {
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("budgets");
    let _ = std::fs::remove_dir_all(&directory);
    directory
}

#[test]
fn c7_a_stream_settles_what_it_used_and_a_killed_one_its_estimate() {
    let directory = directory();
    let mut killed = chat(&directory, "stream dave 700 1000000").stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(killed.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "reserved 700, 9300 left\n");
    killed.kill().unwrap();
    killed.wait().unwrap();

    // Longer than its reservation, which it renews.
    let (stream, answered) = said(&directory, "stream alice 600 400");
    assert_eq!(stream, "reserved 600, 9400 left\nused 400, 0 beyond the debt\n");
    assert!(answered);
    assert_eq!(said(&directory, "call alice 25").0, "used 25, 9575 left, 0 owed\n");

    let record = |client: &str, cost: u64| {
        let rules = RuleSet::per_client("10_000/hour fixed debt 5_000".parse().unwrap());
        let store = DiskStore::open(&directory).unwrap();
        let limiter = Limiter::builder(rules).store(store).build().unwrap();
        block_on(limiter.record(Request::client(client).cost(cost))).unwrap().decision().remaining()
    };
    assert_eq!(record("dave", 0), 9_300, "the estimate stays charged");
    assert_eq!(record("carol", 9_900), 100);
    assert_eq!(
        said(&directory, "stream carol 50 150").0,
        "reserved 50, 50 left\nused 150, 0 beyond the debt\n"
    );
    for refused in ["stream carol 1 1", "call carol 1"] {
        let (denied, answered) = said(&directory, refused);
        assert!(denied.starts_with("over budget: 0 left, 50 owed, retry in ") && !answered, "{denied}");
    }
}
