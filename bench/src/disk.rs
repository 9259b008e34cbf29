//! tollgate on a real disk: what following changes costs a check, how many answers share a sync,
//! how long loading takes and how large the file is.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tollgate::{Limit, Limiter, MemoryStore, Request, RuleSet, Store, block_on};
use tollgate_disk::{DiskStats, DiskStore, Durability};

use crate::contenders::random_keys;
use crate::engines;

const KEYS: u64 = 1_000_000;
const ROUNDS: usize = 7;
/// Long enough for a dozen flushes.
const CHECKS: u64 = 4_000_000;
const CALLERS: usize = 64;

/// Measures what is wanted, and says it in Markdown.
pub fn table(root: &Path, wanted: &str) -> String {
    let work = root.join("bench/target/disk");
    let _ = fs::remove_dir_all(&work);
    let mut text = String::from(
        "## Disk\n\nWritten by `cargo xtask bench --disk`. Medians of rounds in which everyone has a turn.\n\n",
    );
    let parts: [(&str, fn(&Path, &mut String)); 4] =
        [("check", check), ("strict", strict), ("load", load), ("engines", engines::compare)];
    for (name, part) in parts {
        if name.contains(wanted) {
            fs::create_dir_all(&work).expect("a writable project");
            part(&work, &mut text);
            fs::remove_dir_all(&work).expect("a writable project");
        }
    }
    text
}

fn relaxed(dir: &Path, limit: Limit) -> Limiter<DiskStore> {
    let memory = MemoryStore::new().max_keys(2 * KEYS);
    let store = DiskStore::builder(dir).memory(memory).open().expect("a writable project");
    Limiter::builder(RuleSet::per_client(limit)).store(store).build().expect("valid")
}

fn take<S: Store>(limiter: &Limiter<S>, key: u64) {
    assert!(limiter.in_memory().expect("in memory").check(key).expect("valid").allowed());
}

/// Nanoseconds per check of random keys.
fn nanos<S: Store>(limiter: &Limiter<S>, seed: u64, threads: u64) -> f64 {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            scope.spawn(move || {
                random_keys(1 + seed * 31 + thread, KEYS, CHECKS / threads).for_each(|key| take(limiter, key))
            });
        }
    });
    begun.elapsed().as_nanos() as f64 / (CHECKS / threads) as f64
}

/// Single checks, in order of how long they took.
fn singles<S: Store>(limiter: &Limiter<S>, seed: u64) -> Vec<u64> {
    let mut times: Vec<u64> = random_keys(seed, KEYS, CHECKS)
        .map(|key| {
            let begun = Instant::now();
            take(limiter, key);
            begun.elapsed().as_nanos() as u64
        })
        .collect();
    times.sort_unstable();
    times
}

fn check(work: &Path, text: &mut String) {
    let limit = Limit::per_second(1_000_000);
    let memory = MemoryStore::new().max_keys(2 * KEYS);
    let memory = Limiter::builder(RuleSet::per_client(limit)).store(memory).build().expect("valid");
    let disk = relaxed(&work.join("relaxed"), limit);
    (0..KEYS).for_each(|key| take(&memory, key));
    (0..KEYS).for_each(|key| take(&disk, key));
    let _ = writeln!(
        text,
        "### Checks, relaxed\n\n{KEYS} keys, every check of a random one and admitted, as fast as it goes: some 100 000 keys or more change \
         between two flushes.\n\n| threads | memory, ns | relaxed, ns | memory's time to relaxed's |\n|---|---|---|---|"
    );
    for threads in [1, 2] {
        let (mut ours, mut theirs, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..ROUNDS {
            theirs.push(nanos(&memory, round as u64, threads));
            ours.push(nanos(&disk, round as u64, threads));
            // The other's turn is not to be disturbed by what is left to write.
            block_on(disk.store().flush()).expect("a disk");
            ratios.push(theirs[round] / ours[round]);
            eprintln!(
                "{threads} threads, round {round}: memory {:.0}, relaxed {:.0}",
                theirs[round], ours[round]
            );
        }
        let _ = writeln!(
            text,
            "| {threads} | {:.0} | {:.0} | {:.2} |",
            median(theirs),
            median(ours),
            median(ratios)
        );
    }
    let before = disk.store().disk_stats();
    let _ = writeln!(
        text,
        "\nSingle checks on one thread, nanoseconds, two readings of the clock included:\n\n| | p50 | p99 | p99.9 | p99.99 | slowest |\n|---|---|---|---|---|---|"
    );
    for (name, times) in [("memory", singles(&memory, 99)), ("relaxed", singles(&disk, 99))] {
        let at = |share: f64| times[(times.len() as f64 * share) as usize - 1];
        let _ = writeln!(
            text,
            "| {name} | {} | {} | {} | {} | {} |",
            at(0.5),
            at(0.99),
            at(0.999),
            at(0.9999),
            at(1.0)
        );
    }
    let DiskStats { writes, written_bytes, last_write, .. } = disk.store().disk_stats();
    let _ = writeln!(
        text,
        "\nMeanwhile {} flushes wrote {:.0} MB; the last took {} ms.\n",
        writes - before.writes,
        (written_bytes - before.written_bytes) as f64 / 1e6,
        last_write.as_millis()
    );
}

fn strict(work: &Path, text: &mut String) {
    let _ = writeln!(
        text,
        "### Checks, strict\n\n{CALLERS} callers at a time, on two threads, random ones of {KEYS} keys; each waits for its answer before it asks again.\n\n\
         | callers | answers per second | answers per sync | milliseconds to an answer |\n|---|---|---|---|"
    );
    let store = DiskStore::builder(work.join("strict"))
        .memory(MemoryStore::new().max_keys(2 * KEYS))
        .durability(Durability::Strict)
        .open()
        .expect("a writable project");
    let limiter = Limiter::builder(RuleSet::per_client(Limit::per_second(1_000_000))).store(store);
    let limiter =
        limiter.clock(tollgate::TokioClock).deadline(Duration::from_secs(60)).build().expect("valid");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    for callers in [1, CALLERS] {
        let each = 20_000 / callers as u64;
        let (mut rates, mut shared) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            let before = limiter.store().disk_stats().syncs;
            let begun = Instant::now();
            runtime.block_on(async {
                let caller = |seed: usize| {
                    let limiter = limiter.clone();
                    tokio::spawn(async move {
                        for key in random_keys(1 + seed as u64, KEYS, each) {
                            let name = key.to_string();
                            let answer = limiter.check_async(Request::client(&name)).await.expect("valid");
                            assert!(answer.allowed() && !answer.degraded());
                        }
                    })
                };
                for caller in (0..callers).map(caller).collect::<Vec<_>>() {
                    caller.await.expect("no panic");
                }
            });
            let answers = (each * callers as u64) as f64;
            rates.push(answers / begun.elapsed().as_secs_f64());
            shared.push(answers / (limiter.store().disk_stats().syncs - before) as f64);
        }
        let rate = median(rates);
        let _ = writeln!(
            text,
            "| {callers} | {rate:.0} | {:.1} | {:.2} |",
            median(shared),
            callers as f64 * 1e3 / rate
        );
    }
    text.push('\n');
}

fn load(work: &Path, text: &mut String) {
    let _ = writeln!(
        text,
        "### Loading\n\n{KEYS} live keys. After a crash the engine first goes through the file.\n\n\
         | limit | bytes a key, written once | after every key changed ten times | loads in, ms | after a crash, ms |\n|---|---|---|---|---|"
    );
    let limits = [
        ("token bucket", Limit::token_bucket(1_000, 1, Duration::from_secs(3_600))),
        ("fixed window", Limit::fixed_window(1_000, Duration::from_secs(360_000))),
        ("sliding window", Limit::sliding_window(1_000, Duration::from_secs(360_000))),
        ("sliding log", Limit::sliding_log(1_000, Duration::from_secs(360_000))),
    ];
    for (name, limit) in limits {
        let (dir, crashed) = (work.join("load"), work.join("crashed"));
        let limiter = relaxed(&dir, limit);
        (0..KEYS).for_each(|key| take(&limiter, key));
        block_on(limiter.store().flush()).expect("a disk");
        let once = on_disk(&dir);
        for _ in 0..9 {
            (0..KEYS).for_each(|key| take(&limiter, key));
            block_on(limiter.store().flush()).expect("a disk");
        }
        // What another process finds if this one is killed now.
        copy(&dir, &crashed);
        drop(limiter);
        let many = on_disk(&dir);
        let time = |dir: &Path| {
            let begun = Instant::now();
            let limiter = relaxed(dir, limit);
            let took = begun.elapsed().as_secs_f64() * 1e3;
            assert_eq!(limiter.store().live_keys(), Some(KEYS));
            took
        };
        let clean: Vec<f64> = (0..5).map(|_| time(&dir)).collect();
        let after_a_crash: Vec<f64> = (0..5)
            .map(|round| {
                let copied = work.join(format!("crashed-{round}"));
                copy(&crashed, &copied);
                time(&copied)
            })
            .collect();
        let per_key = |bytes: u64| bytes as f64 / KEYS as f64;
        let line = format!(
            "| {name} | {:.0} | {:.0} | {:.0} | {:.0} |",
            per_key(once),
            per_key(many),
            median(clean),
            median(after_a_crash)
        );
        eprintln!("{line}");
        let _ = writeln!(text, "{line}");
        fs::remove_dir_all(&dir).expect("a writable project");
        fs::remove_dir_all(&crashed).expect("a writable project");
    }
    text.push('\n');
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a writable project");
    fs::copy(from.join("state.redb"), to.join("state.redb")).expect("a writable project");
}

/// What a directory takes up.
pub fn on_disk(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let known = fs::metadata(path).expect("a file");
    if !known.is_dir() {
        return known.blocks() * 512;
    }
    let inside = fs::read_dir(path).expect("a directory");
    inside.map(|entry| on_disk(&entry.map_or_else(|_| PathBuf::new(), |entry| entry.path()))).sum()
}

pub fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
