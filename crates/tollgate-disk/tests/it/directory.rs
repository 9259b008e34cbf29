//! Directories that are refused, and the state that a directory keeps.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use crate::common::Directory;
use redb::{Database, ReadableTable as _, TableDefinition};
use tollgate::{
    Clock as _, DAY, Error, HOUR, Limit, Limiter, MINUTE, ManualClock, MemoryStore, OnExpiry, Request, Rule,
    RuleSet, SECOND, Timestamp, block_on,
};
use tollgate_disk::{DiskStore, Durability, OpenError, Progress};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn limiter(dir: &Directory, rules: &RuleSet, clock: &ManualClock) -> Limiter<DiskStore> {
    let store = DiskStore::open(dir.path()).unwrap();
    Limiter::builder(rules.clone()).store(store).clock(clock.clone()).build().unwrap()
}

fn remaining(limiter: &Limiter<DiskStore>, client: &str) -> u64 {
    block_on(limiter.peek(client)).unwrap().remaining()
}

fn take(limiter: &Limiter<DiskStore>, client: &str, cost: u64) -> bool {
    limiter.in_memory().unwrap().check(Request::client(client).cost(cost)).unwrap().allowed()
}

type Pages<'a> = redb::Table<'a, &'static [u8], &'static [u8]>;

/// A directory with the state of one client.
fn used() -> Directory {
    let dir = Directory::new();
    let limiter = limiter(&dir, &RuleSet::per_client(Limit::per_hour(10)), &ManualClock::at(NOW));
    assert!(take(&limiter, "alice", 3));
    dir
}

#[test]
fn a_second_store_is_refused_while_the_first_uses_the_directory() {
    let dir = used();
    let first = DiskStore::open(dir.path()).unwrap();
    let error = DiskStore::open(dir.path()).unwrap_err();
    assert!(
        matches!(error, OpenError::InUse { process: Some(process), .. } if process == std::process::id())
    );
    assert!(error.to_string().contains("stop that one first"), "{error}");
    // Closing releases the directory before the store is dropped.
    block_on(first.close()).unwrap();
    assert!(DiskStore::open(dir.path()).is_ok());
}

#[test]
fn a_second_store_is_refused_even_if_the_lock_file_was_removed() {
    let dir = used();
    let _first = DiskStore::open(dir.path()).unwrap();
    fs::remove_file(dir.path().join("lock")).unwrap();
    let error = DiskStore::open(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
}

#[test]
fn a_store_with_the_shortest_interval_can_be_closed() {
    let dir = used();
    let store = DiskStore::builder(dir.path()).flush_interval(std::time::Duration::ZERO).open().unwrap();
    block_on(store.flush()).unwrap();
    block_on(store.close()).unwrap();
}

#[test]
fn a_directory_that_cannot_be_written_is_refused() {
    let dir = used();
    // A read-only mount: root may write to any directory but that.
    let mount = r#"mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@""#;
    let child = Command::new("unshare")
        .args(["-rm", "sh", "-c", mount])
        .arg(dir.path())
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "directory::a_directory_that_can_be_written_is_not_refused", "--nocapture"])
        .env("TOLLGATE_DIR", dir.path())
        .output()
        .unwrap();
    let output = String::from_utf8_lossy(&child.stdout);
    assert!(output.contains("cannot read and write"), "{output} {}", String::from_utf8_lossy(&child.stderr));
    assert!(output.contains("or name another directory"), "{output}");
}

#[test]
fn a_directory_that_can_be_written_is_not_refused() {
    let dir = used();
    let named = std::env::var_os("TOLLGATE_DIR");
    let opened = DiskStore::open(named.as_deref().map_or(dir.path(), Path::new));
    #[expect(clippy::print_stdout, reason = "the test above reads it, and is the parent of this process")]
    match &opened {
        Err(error) => println!("{error}"),
        Ok(_) => assert!(named.is_none(), "the mount is not read-only"),
    }
}

#[test]
fn a_path_that_is_a_file_is_refused() {
    let dir = used();
    let error = DiskStore::open(dir.file()).unwrap_err();
    assert!(matches!(error, OpenError::Inaccessible { .. }), "{error}");
}

#[test]
fn a_file_of_another_version_is_refused_and_says_what_to_do() {
    let dir = used();
    let about: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("about");
    let database = Database::open(dir.file()).unwrap();
    let writing = database.begin_write().unwrap();
    let content = 2_u64.to_le_bytes();
    let checksum = crc32fast::hash(&[b"state", &content[..]].concat());
    let newer = [&content[..], &checksum.to_le_bytes()].concat();
    writing.open_table(about).unwrap().insert("state", &*newer).unwrap();
    writing.commit().unwrap();
    drop(database);
    let error = DiskStore::open(dir.path()).unwrap_err();
    assert!(matches!(error, OpenError::OtherVersion { version: 2, .. }));
    assert!(error.to_string().contains("format 2; this version reads 3"), "{error}");
}

#[test]
fn a_file_with_a_missing_or_stale_page_is_refused() {
    let pages: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pages");
    let dir = used();
    let tamper = |change: &dyn Fn(&mut Pages<'_>)| {
        let database = Database::open(dir.file()).unwrap();
        let writing = database.begin_write().unwrap();
        change(&mut writing.open_table(pages).unwrap());
        writing.commit().unwrap();
    };
    let first = |table: &Pages<'_>| {
        let (name, content) = table.first().unwrap().unwrap();
        (name.value().to_vec(), content.value().to_vec())
    };
    let older = std::cell::OnceCell::new();
    tamper(&|table| older.set(first(table)).unwrap());
    let (name, content) = older.into_inner().unwrap();
    let limiter = limiter(&dir, &RuleSet::per_client(Limit::per_hour(10)), &ManualClock::at(NOW));
    assert!(take(&limiter, "alice", 3));
    drop(limiter);
    tamper(&|table| drop(table.insert(&*name, &*content).unwrap()));
    let error = DiskStore::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("older than the rest"), "{error}");
    tamper(&|table| drop(table.remove(&*name).unwrap()));
    let error = DiskStore::open(dir.path()).unwrap_err();
    assert!(error.to_string().contains("pages are missing"), "{error}");
}

#[test]
fn a_truncated_file_is_refused_and_not_changed() {
    let dir = used();
    let length = fs::metadata(dir.file()).unwrap().len();
    for cut in [length / 2, 100, 0] {
        OpenOptions::new().write(true).open(dir.file()).unwrap().set_len(cut).unwrap();
        let before = fs::read(dir.file()).unwrap();
        for _ in 0..2 {
            let error = DiskStore::open(dir.path()).unwrap_err();
            assert!(matches!(error, OpenError::Damaged { .. }), "{cut}: {error}");
            assert!(error.to_string().contains("put back a copy"), "{error}");
            assert!(fs::read(dir.file()).unwrap() == before, "{cut}");
        }
    }
    fs::write(dir.file(), "not a state file").unwrap();
    assert!(matches!(DiskStore::open(dir.path()).unwrap_err(), OpenError::Damaged { .. }));
}

#[test]
fn an_unfinished_new_file_is_replaced() {
    let dir = Directory::new();
    fs::create_dir(dir.path()).unwrap();
    fs::write(dir.path().join("state.redb.new"), "a process was killed here").unwrap();
    let store = DiskStore::open(dir.path()).unwrap();
    assert_eq!(store.memory().memory_stats().live, 0);
}

#[test]
fn other_users_may_not_read_the_state() {
    let dir = used();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(dir.path()), mode(&dir.file())), (0o700, 0o600));
}

#[test]
fn all_state_is_loaded_again() {
    let dir = Directory::new();
    let clock = ManualClock::at(NOW);
    let limits = [Limit::per_hour(100), Limit::sliding_window(90, HOUR)];
    let rules = RuleSet::new([
        Rule::new("two", limits).key(["client"]),
        Rule::new("log", Limit::sliding_log(70, HOUR)).key(["client"]),
        Rule::new("global", Limit::per_hour(700)),
    ])
    .unwrap();
    let old = limiter(&dir, &rules, &clock);
    for client in ["a", "b", "c", "d"] {
        assert!(take(&old, client, 5));
    }
    let reservation =
        block_on(old.reserve(Request::client("a").cost(20), 2 * HOUR, OnExpiry::GiveBack)).unwrap();
    let kept = reservation.detach();
    let nothing = block_on(old.reserve(Request::client("d").cost(0), HOUR, OnExpiry::Keep)).unwrap();
    let nothing = nothing.detach().unwrap();
    block_on(old.settle(nothing, Request::client("d").cost(3))).unwrap();
    block_on(old.block("b", NOW.saturating_add(HOUR))).unwrap();
    block_on(old.reset(Request::client("c"))).unwrap();
    let before = ["a", "b", "c", "d", "e"].map(|client| block_on(old.peek(client)).unwrap());
    drop(old);
    let new = limiter(&dir, &rules, &clock);
    assert_eq!(["a", "b", "c", "d", "e"].map(|client| block_on(new.peek(client)).unwrap()), before);
    assert_eq!(remaining(&new, "a"), 45);
    let again = block_on(new.settle(nothing, Request::client("d").cost(3)));
    assert_eq!(again, Err(Error::NotReserved), "a settlement counts once");
    let _ = kept;
}

#[test]
fn idle_state_is_removed_and_the_file_shrinks() {
    let dir = Directory::new();
    let clock = ManualClock::at(NOW);
    let rules = RuleSet::per_client(Limit::per_minute(10));
    let memory = MemoryStore::new().sweep(SECOND, SECOND);
    let store = DiskStore::builder(dir.path()).memory(memory).open().unwrap();
    let limiter = Limiter::builder(rules.clone()).store(store).clock(clock.clone()).build().unwrap();
    for client in 0..200_000 {
        assert!(take(&limiter, &client.to_string(), 1));
    }
    block_on(limiter.store().flush()).unwrap();
    let large = limiter.store().disk_stats().file_bytes;
    assert!(large > 200_000 * 20, "{large}");
    clock.advance(HOUR);
    assert!(take(&limiter, "the only one", 1));
    limiter.store().memory().sweep_all(clock.now());
    block_on(limiter.store().flush()).unwrap();
    // The next commit begins after the compaction.
    block_on(limiter.store().flush()).unwrap();
    let small = limiter.store().disk_stats().file_bytes;
    assert!(small * 4 < large, "{large} and then {small}");
    block_on(limiter.store().close()).unwrap();
    assert_eq!(fs::metadata(dir.file()).unwrap().len(), limiter.store().disk_stats().file_bytes);
    assert_eq!(DiskStore::open(dir.path()).unwrap().memory().memory_stats().live, 1);
}

#[test]
fn b7_a_clock_set_back_between_runs_locks_no_client_out_for_longer_than_a_refill() {
    for limit in [Limit::fixed_window(10, MINUTE), Limit::sliding_log(10, MINUTE), Limit::per_minute(10)] {
        let dir = Directory::new();
        let clock = ManualClock::at(NOW);
        let rules = RuleSet::per_client(limit);
        let old = limiter(&dir, &rules, &clock);
        assert!(take(&old, "alice", 2));
        drop(old);
        clock.set(NOW.saturating_sub(DAY));
        let new = limiter(&dir, &rules, &clock);
        assert!(!take(&new, "alice", 1), "{limit}: a state from a day ahead is exactly empty");
        assert!(take(&new, "bob", 10), "{limit}: other clients have full budgets");
        // After another restart a minute is still enough.
        drop(new);
        let again = limiter(&dir, &rules, &clock);
        clock.advance(MINUTE);
        assert_eq!((remaining(&again, "alice"), remaining(&again, "bob")), (10, 10), "{limit}");
    }
}

#[test]
fn b7_after_a_week_off_short_budgets_are_full_and_long_ones_are_not() {
    let dir = Directory::new();
    let clock = ManualClock::at(NOW);
    let rules = RuleSet::new([
        Rule::new("hour", Limit::per_hour(10)).key(["client"]),
        Rule::new("month", Limit::fixed_window(1_000, 30 * DAY)).key(["client"]),
    ])
    .unwrap();
    let old = limiter(&dir, &rules, &clock);
    assert!(take(&old, "alice", 10));
    drop(old);
    clock.advance(7 * DAY);
    let new = limiter(&dir, &rules, &clock);
    let of = |rule| block_on(new.peek(Request::client("alice").only(rule))).unwrap().remaining();
    assert_eq!((of("hour"), of("month")), (10, 990));
}

#[test]
fn loading_reports_its_progress() {
    let dir = used();
    let (sender, receiver) = std::sync::mpsc::channel();
    let sender = std::sync::Mutex::new(sender);
    let store = DiskStore::builder(dir.path())
        .on_progress(move |progress| sender.lock().unwrap().send(progress).unwrap())
        .durability(Durability::Strict)
        .open();
    drop(store.unwrap());
    assert_eq!(receiver.iter().collect::<Vec<_>>(), [Progress::Loading { done: 1, of: 1 }]);
}
