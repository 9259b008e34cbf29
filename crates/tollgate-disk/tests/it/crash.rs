//! A process under load is killed with SIGKILL at random times, hundreds of times, always on the
//! same directory. After each kill the state is compared with the answers of the process.
//!
//! The process is this test's own binary. It logs to its standard output, in the order of events: a
//! line before it asks for a unit, and a line when it has the answer, with the number of writes
//! finished by then. The parent reads the pipe to its end after the kill.
//!
//! The clocks of all processes stand still, so that the units in use are the units drawn.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use crate::common::Directory;
use tollgate::{
    Clock as _, DAY, Limit, Limiter, ManualClock, Request, Rule, RuleSet, SECOND, SystemClock, Timestamp,
    block_on,
};
use tollgate_disk::{DiskStore, Durability};

const CLIENTS: u64 = 300;
const THREADS: u64 = 6;

/// One limit of each algorithm, none of which refills during a test.
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

/// Draws units for random keys on several threads, `times` times each. Every event goes to `log`.
fn draw(limiter: &Disk, times: u64, log: &(impl Fn(&str) + Sync)) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                let mut random = SystemClock.now().as_nanos() ^ (thread << 56);
                for _ in 0..times {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let (client, rule) = ((random >> 33) % CLIENTS, RULES[((random >> 20) % 5) as usize]);
                    log(&format!("asks {rule} {client}\n"));
                    let name = client.to_string();
                    let answer = block_on(limiter.check_async(Request::client(&name).only(rule))).unwrap();
                    assert!(answer.allowed() && !answer.degraded(), "{answer:?}");
                    log(&format!("has {rule} {client} {}\n", limiter.store().disk_stats().writes));
                }
            });
        }
    });
}

/// The log of a killed process, by rule and client.
#[derive(Default)]
struct Log {
    /// Units asked for.
    asked: BTreeMap<(String, u64), u64>,
    /// Answers, each with the number of writes finished by then.
    answered: Vec<((String, u64), u64)>,
}

impl Log {
    fn read(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        match *words {
            ["asks", rule, client] => {
                *self.asked.entry((rule.into(), client.parse().unwrap())).or_default() += 1
            }
            ["has", rule, client, writes] => {
                self.answered.push(((rule.into(), client.parse().unwrap()), writes.parse().unwrap()));
            }
            // The last line may be incomplete.
            _ => {}
        }
    }

    /// The answers that must not be lost. In relaxed mode: those with at least two writes finished
    /// after them, since the second of these began after the answer.
    fn durable(&self, durability: Durability) -> BTreeMap<(String, u64), u64> {
        let last = self.answered.iter().map(|(_, writes)| *writes).max().unwrap_or(0);
        let mut durable = BTreeMap::new();
        for (key, writes) in &self.answered {
            if durability == Durability::Strict || writes + 2 <= last {
                *durable.entry(key.clone()).or_default() += 1;
            }
        }
        durable
    }
}

const DIR: &str = "TOLLGATE_CRASH_DIR";
const MODE: &str = "TOLLGATE_CRASH_MODE";

/// Started by the tests below, this is the process that is killed. Otherwise it draws for a while,
/// and every unit must be found after a restart.
#[test]
fn a_process_that_is_not_killed_loses_nothing() {
    if let Some(dir) = std::env::var_os(DIR) {
        let strict = std::env::var(MODE).is_ok_and(|mode| mode == "strict");
        let limiter = open(dir.as_ref(), if strict { Durability::Strict } else { Durability::Relaxed });
        // Unbuffered, so that a kill loses no line.
        let stdout =
            std::fs::File::from(std::os::fd::AsFd::as_fd(&std::io::stdout()).try_clone_to_owned().unwrap());
        let log = |line: &str| (&stdout).write_all(line.as_bytes()).unwrap_or_else(|_| std::process::exit(0));
        log("open\n");
        draw(&limiter, u64::MAX, &log);
        return;
    }
    for durability in [Durability::Relaxed, Durability::Strict] {
        let dir = Directory::new();
        let log = Arc::new(std::sync::Mutex::new(Log::default()));
        let limiter = open(dir.path(), durability);
        draw(&limiter, 200, &|line| log.lock().unwrap().read(line.trim_end()));
        drop(limiter);
        let limiter = open(dir.path(), durability);
        let log = log.lock().unwrap();
        assert!(log.asked.iter().all(|((rule, client), times)| used(&limiter, rule, *client) == *times));
    }
}

fn start(dir: &Path, durability: Durability) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "crash::a_process_that_is_not_killed_loses_nothing",
            "--nocapture",
            "--test-threads=1",
        ])
        .env(DIR, dir)
        .env(MODE, if durability == Durability::Strict { "strict" } else { "relaxed" })
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

fn kill_repeatedly(durability: Durability) {
    let kills = std::env::var("TOLLGATE_KILLS").map_or(100, |kills| kills.parse().unwrap());
    let dir = Directory::new();
    // Units in use after the last kill, by rule and client.
    let mut found: BTreeMap<(String, u64), u64> = BTreeMap::new();
    let (mut random, mut answers) = (SystemClock.now().as_nanos(), 0);
    for kill in 0..kills {
        let mut process = start(dir.path(), durability);
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // Some processes are killed while they load, or right after they start.
        let lines_before_kill = (random >> 33) % [1, 30, 1_000, 4_000][kill % 4];
        let mut log = Log::default();
        for line in lines.by_ref().take(usize::try_from(lines_before_kill).unwrap()) {
            log.read(&line.unwrap());
        }
        process.kill().unwrap();
        lines.for_each(|line| log.read(&line.unwrap()));
        process.wait().unwrap();

        let limiter = open(dir.path(), durability);
        let durable = log.durable(durability);
        for rule in RULES {
            for client in 0..CLIENTS {
                let key = (rule.to_owned(), client);
                let of = |counts: &BTreeMap<(String, u64), u64>| counts.get(&key).copied().unwrap_or(0);
                let (before, now) = (of(&found), used(&limiter, rule, client));
                let (least, most) = (before + of(&durable), before + of(&log.asked));
                assert!(
                    (least..=most).contains(&now),
                    "kill {kill}: {rule} {client} has {now} in use, which is not {least} to {most}"
                );
                found.insert(key, now);
            }
        }
        answers += log.answered.len();
        block_on(limiter.store().close()).unwrap();
    }
    eprintln!("{kills} kills, {answers} answers");
    assert!(answers > 10 * kills, "there was some load");
}

#[test]
fn strict_loses_no_answered_request_whenever_it_is_killed() {
    kill_repeatedly(Durability::Strict);
}

#[test]
fn relaxed_loses_nothing_older_than_the_last_write_whenever_it_is_killed() {
    kill_repeatedly(Durability::Relaxed);
}
