//! A process under load is killed with SIGKILL at random moments, hundreds of times, always on the same
//! directory, and what is found afterwards is held against what it had answered.
//!
//! The process is this test's own binary. It tells what it does on its standard output, in the order in
//! which it happens: a line before it asks for a unit, and one when it has the answer, with how many
//! writes had been finished by then. What is in the pipe when it is killed is still read.
//!
//! The limiters of all processes stand at one time, so that what is in use is what was drawn.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use common::Directory;
use tollgate::{
    Clock as _, DAY, Limit, Limiter, ManualClock, Request, Rule, RuleSet, SECOND, SystemClock, Timestamp,
    block_on,
};
use tollgate_disk::{DiskStore, Durability};

const CLIENTS: u64 = 300;
const THREADS: u64 = 6;

/// Limits that give nothing back while a test runs, one of each kind.
fn rules() -> RuleSet {
    let limits = [
        ("fixed", Limit::fixed_window(1_000_000, 1_000 * DAY)),
        ("sliding", Limit::sliding_window(1_000_000, 1_000 * DAY)),
        ("log", Limit::sliding_log(10_000, 1_000 * DAY)),
        ("bucket", Limit::token_bucket(10_000, 1, DAY)),
        ("reserve", Limit::token_bucket(10, 1, DAY).reserve(10_000, 1, DAY)),
    ];
    RuleSet::new(limits.map(|(name, limit)| Rule::new(name, limit).key(["client"]))).unwrap()
}

const RULES: [&str; 5] = ["fixed", "sliding", "log", "bucket", "reserve"];

type Disk = Limiter<DiskStore>;

fn open(dir: &Path, durability: Durability) -> Disk {
    let store = DiskStore::builder(dir).durability(durability).flush_interval(SECOND / 100).open().unwrap();
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    Limiter::builder(rules()).store(store).clock(clock).build().unwrap()
}

fn used(limiter: &Disk, rule: &str, client: u64) -> u64 {
    let client = client.to_string();
    let answer = block_on(limiter.peek(Request::client(&client).only(rule))).unwrap();
    answer.limit() - answer.remaining()
}

/// Draws units for random keys on several threads, `times` times each, and tells `tell` of it.
fn draw(limiter: &Disk, times: u64, tell: &(impl Fn(&str) + Sync)) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = SystemClock.now().as_nanos() ^ (thread << 56);
                for _ in 0..times {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let (client, rule) = ((random >> 33) % CLIENTS, RULES[((random >> 20) % 5) as usize]);
                    tell(&format!("asks {rule} {client}\n"));
                    let name = client.to_string();
                    let answer = block_on(limiter.check_async(Request::client(&name).only(rule))).unwrap();
                    assert!(answer.allowed() && !answer.degraded(), "{answer:?}");
                    tell(&format!("has {rule} {client} {}\n", limiter.store().disk_stats().writes));
                }
            });
        }
    });
}

/// What a killed process had asked for and had been answered, by rule and client.
#[derive(Default)]
struct Told {
    asked: BTreeMap<(String, u64), u64>,
    /// With how many writes were finished when the answer had come.
    answered: Vec<((String, u64), u64)>,
}

impl Told {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match *words {
            ["asks", rule, client] => {
                *self.asked.entry((rule.into(), client.parse().unwrap())).or_default() += 1
            }
            ["has", rule, client, writes] => {
                self.answered.push(((rule.into(), client.parse().unwrap()), writes.parse().unwrap()));
            }
            // The last line may be cut.
            _ => {}
        }
    }

    /// The answers that must not be forgotten. In relaxed mode: those that came when at least two fewer
    /// writes were finished than at the end, since the second of them began after the answer.
    fn safe(&self, durability: Durability) -> BTreeMap<(String, u64), u64> {
        let last = self.answered.iter().map(|(_, writes)| *writes).max().unwrap_or(0);
        let mut safe = BTreeMap::new();
        for (key, writes) in &self.answered {
            if durability == Durability::Strict || writes + 2 <= last {
                *safe.entry(key.clone()).or_default() += 1;
            }
        }
        safe
    }
}

const DIR: &str = "TOLLGATE_CRASH_DIR";
const MODE: &str = "TOLLGATE_CRASH_MODE";

/// The process that is killed. When nobody wants to kill it, it does the same for a while in here, and
/// everything must add up.
#[test]
fn a_process_that_is_not_killed_forgets_nothing() {
    if let Some(dir) = std::env::var_os(DIR) {
        let strict = std::env::var(MODE).is_ok_and(|mode| mode == "strict");
        let limiter = open(dir.as_ref(), if strict { Durability::Strict } else { Durability::Relaxed });
        // Unbuffered: what is told is told.
        let stdout =
            std::fs::File::from(std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned().unwrap());
        let tell =
            |line: &str| (&stdout).write_all(line.as_bytes()).unwrap_or_else(|_| std::process::exit(0));
        tell("open\n");
        draw(&limiter, u64::MAX, &tell);
        return;
    }
    for durability in [Durability::Relaxed, Durability::Strict] {
        let dir = Directory::new();
        let told = Arc::new(std::sync::Mutex::new(Told::default()));
        let limiter = open(dir.path(), durability);
        draw(&limiter, 200, &|line| told.lock().unwrap().read(line.trim_end()));
        drop(limiter);
        let limiter = open(dir.path(), durability);
        let told = told.lock().unwrap();
        assert!(told.asked.iter().all(|((rule, client), times)| used(&limiter, rule, *client) == *times));
    }
}

fn start(dir: &Path, durability: Durability) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_is_not_killed_forgets_nothing", "--nocapture", "--test-threads=1"])
        .env(DIR, dir)
        .env(MODE, if durability == Durability::Strict { "strict" } else { "relaxed" })
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn killed_again_and_again(durability: Durability) {
    let kills = std::env::var("TOLLGATE_KILLS").map_or(100, |kills| kills.parse().unwrap());
    let dir = Directory::new();
    // What there is, by rule and client, as it was found after the last kill.
    let mut found: BTreeMap<(String, u64), u64> = BTreeMap::new();
    let (mut random, mut answers) = (SystemClock.now().as_nanos(), 0);
    for kill in 0..kills {
        let mut process = start(dir.path(), durability);
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Some are killed while they are still loading, or have only begun.
        let patience = (random >> 33) % [1, 30, 1_000, 4_000][kill % 4];
        let mut told = Told::default();
        for line in lines.by_ref().take(usize::try_from(patience).unwrap()) {
            told.read(&line.unwrap());
        }
        process.kill().unwrap();
        lines.for_each(|line| told.read(&line.unwrap()));
        process.wait().unwrap();

        let limiter = open(dir.path(), durability);
        let safe = told.safe(durability);
        for rule in RULES {
            for client in 0..CLIENTS {
                let key = (rule.to_owned(), client);
                let of = |counts: &BTreeMap<(String, u64), u64>| counts.get(&key).copied().unwrap_or(0);
                let (before, now) = (of(&found), used(&limiter, rule, client));
                let (least, most) = (before + of(&safe), before + of(&told.asked));
                assert!(
                    (least..=most).contains(&now),
                    "kill {kill}: {rule} {client} has {now} in use, which is not {least} to {most}"
                );
                found.insert(key, now);
            }
        }
        answers += told.answered.len();
        block_on(limiter.store().close()).unwrap();
    }
    eprintln!("{kills} kills, {answers} answers");
    assert!(answers > 10 * kills, "there was some load");
}

#[test]
fn strict_forgets_no_answered_request_whenever_it_is_killed() {
    killed_again_and_again(Durability::Strict);
}

#[test]
fn relaxed_forgets_nothing_older_than_the_last_write_whenever_it_is_killed() {
    killed_again_and_again(Durability::Relaxed);
}
