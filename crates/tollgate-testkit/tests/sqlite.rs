//! The SQLite example keeps every law, shares its file and survives SIGKILL.

#[path = "../examples/sqlite.rs"]
#[expect(dead_code, reason = "the example's main")]
mod sqlite;

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use sqlite::SqliteStore;
use tollgate::{DAY, HOUR, Limit, Limiter, MINUTE, ManualClock, Rule, RuleSet, SECOND, Timestamp, block_on};
use tollgate_testkit::World;

tollgate_testkit::conformance!(in_memory, || SqliteStore::open(":memory:").unwrap());
tollgate_testkit::conformance!(
    in_a_file,
    || {
        let file = File::new();
        // The directory entry is removed at once, the file with its last connection.
        SqliteStore::open(file.path()).unwrap()
    },
    resolution = std::time::Duration::from_nanos(1),
    together,
    cases = 1
);

#[test]
fn the_example_is_under_200_lines() {
    assert!(include_str!("../examples/sqlite.rs").lines().count() < 200);
}

/// A file in a temporary directory, which is removed on drop.
struct File(PathBuf);

impl File {
    fn new() -> Self {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = std::env::temp_dir().join(format!("tollgate-sqlite-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Self(directory)
    }

    fn path(&self) -> PathBuf {
        self.0.join("limits.sqlite")
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn per_client(limit: Limit) -> Rule {
    Rule::new("per-client", limit).key(["client"])
}

#[test]
fn b6_only_rows_with_no_units_in_use_are_deleted() {
    let world =
        World::new(SqliteStore::open(":memory:").unwrap(), [per_client(Limit::fixed_window(10, HOUR))]);
    assert!(world.check("soon").allowed());
    world.clock.advance(MINUTE);
    let until = world.now().saturating_add(2 * HOUR);
    block_on(world.limiter.block("blocked", until)).unwrap();
    assert!(world.check("later").allowed());
    let forget = || world.limiter.store().forget(world.now()).unwrap();
    world.clock.advance(HOUR - MINUTE);
    assert_eq!(forget(), 0, "idle, but not before now");
    world.clock.advance(SECOND);
    assert_eq!(forget(), 1);
    assert_eq!(["soon", "later", "blocked"].map(|client| world.peek(client).remaining()), [10, 9, 0]);
    world.clock.advance(2 * HOUR);
    assert_eq!(forget(), 2);
}

#[test]
fn e4_an_invalid_row_is_a_store_failure_and_not_a_full_budget() {
    let file = File::new();
    let world = World::new(SqliteStore::open(file.path()).unwrap(), [per_client(Limit::per_hour(10))]);
    assert_eq!(world.check("a").remaining(), 9);
    let other = rusqlite::Connection::open(file.path()).unwrap();
    for row in ["", "{}", r#"{"limit":"10/hour","numbers":[]}"#, r#"{"limit":null,"numbers":[0,0,0,1]}"#] {
        assert_eq!(other.execute("UPDATE cells SET state = ?1", [row]).unwrap(), 1);
        assert!(world.check("a").degraded(), "{row}");
    }
}

const UNITS: u64 = 1_000;
const FILE: &str = "TOLLGATE_SQLITE_FILE";

fn open(path: &Path) -> Limiter<SqliteStore> {
    let rules = RuleSet::new([per_client(Limit::fixed_window(UNITS, 1_000 * DAY))]).unwrap();
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let store = SqliteStore::open(path).unwrap();
    Limiter::builder(rules).store(store).clock(clock).deadline(HOUR).build().unwrap()
}

/// Takes units until none is left, and prints a line before and after each.
fn take_all(path: &Path) {
    let limiter = open(path);
    let stdout = std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned().unwrap();
    // Unbuffered: a printed line survives a kill.
    let mut stdout = std::fs::File::from(stdout);
    loop {
        stdout.write_all(b"asks\n").unwrap();
        let decision = block_on(limiter.check_async("a")).unwrap();
        match decision.allowed() {
            // The file was busy for too long: nothing was taken.
            true if decision.degraded() => {}
            true => stdout.write_all(b"has\n").unwrap(),
            false => return,
        }
    }
}

/// Pairs of processes take units from one file, and most are killed. Every answered unit is in use,
/// no unit is in use that was not asked for, and all together get no more than the limit.
#[test]
fn b9_processes_that_share_a_file_and_are_killed_get_exactly_the_limit() {
    if let Some(path) = std::env::var_os(FILE) {
        return take_all(path.as_ref());
    }
    let file = File::new();
    drop(open(&file.path()));
    let start = || -> Child {
        let name = "b9_processes_that_share_a_file_and_are_killed_get_exactly_the_limit";
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", name, "--nocapture", "--test-threads=1"]).env(FILE, file.path());
        command.stdout(Stdio::piped()).spawn().unwrap()
    };
    let (mut asked, mut answered) = (0, 0);
    for lines_before_kill in [3, 10, 25, 40, usize::MAX] {
        let kills = lines_before_kill < usize::MAX;
        let processes = [start(), start()].map(|mut process| {
            let lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
            (process, lines)
        });
        for (mut process, mut lines) in processes {
            // The first line begins with the output of the test harness.
            let mut count = |line: String| {
                asked += u64::from(line.ends_with("asks"));
                answered += u64::from(line.ends_with("has"));
            };
            lines.by_ref().take(lines_before_kill).for_each(&mut count);
            if kills {
                process.kill().unwrap();
            }
            lines.for_each(&mut count);
            assert!(process.wait().unwrap().success() || kills);
        }
        let used = UNITS - block_on(open(&file.path()).peek("a")).unwrap().remaining();
        assert!((answered..=asked).contains(&used), "{answered} answered, {used} in use, {asked} asked");
    }
    assert!(answered <= UNITS && answered + 8 >= UNITS, "{answered}: at most one lost with each kill");
}
