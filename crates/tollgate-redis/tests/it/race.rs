//! B9 across processes: eight processes race for a thousand units by the server's clock, and are
//! admitted exactly a thousand times.

#![expect(clippy::print_stdout, reason = "a racer reports to its parent on standard output")]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::process::{Command, Stdio};

use crate::common::{Cluster, Redis, unique};
use tollgate::{HOUR, Limit, Limiter, MINUTE, Rule, RuleSet, TokioClock};
use tollgate_redis::RedisStore;

const PROCESSES: usize = 8;
const UNITS: u64 = 1_000;

/// The work of one process: this test's binary, with its URL, prefix and limit in the environment.
async fn racer(url: &str, prefix: &str, limit: &str) -> u64 {
    let limit: Limit = limit.parse().unwrap();
    let rules = RuleSet::new([
        Rule::new("per-client", [limit, Limit::fixed_window(UNITS * 10, HOUR)]).key(["client"])
    ]);
    let store = RedisStore::builder(url).unwrap().prefix(prefix).build().unwrap();
    let limiter =
        Limiter::builder(rules.unwrap()).store(store).clock(TokioClock).deadline(MINUTE).build().unwrap();
    assert!(limiter.peek("a").await.unwrap().allowed());
    println!("ready");
    let mut go = String::new();
    std::io::stdin().read_line(&mut go).unwrap();
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..UNITS / 16 {
                    let decision = limiter.check_async("a").await.unwrap();
                    assert!(!decision.degraded());
                    admitted += u64::from(decision.allowed());
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    admitted
}

fn race(test: &str, url: &str, limit: &str) {
    let prefix = format!("race-{}", unique());
    let mut racers: Vec<_> = (0..PROCESSES)
        .map(|_| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args([&format!("race::{test}"), "--exact", "--nocapture", "--test-threads=1"]);
            command.env("TOLLGATE_RACE", format!("{url} {prefix} {limit}"));
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut outputs: Vec<_> =
        racers.iter_mut().map(|racer| BufReader::new(racer.stdout.take().unwrap())).collect();
    for output in &mut outputs {
        let ready = output.lines().map_while(Result::ok).any(|line| line.ends_with("ready"));
        assert!(ready, "every racer reports that it is ready");
    }
    racers.iter_mut().for_each(|racer| writeln!(racer.stdin.as_mut().unwrap(), "go").unwrap());
    let mut admitted = 0;
    for (mut racer, mut output) in racers.into_iter().zip(outputs) {
        let mut output_text = String::new();
        output.read_to_string(&mut output_text).unwrap();
        assert!(racer.wait().unwrap().success(), "{output_text}");
        let count = output_text
            .lines()
            .find_map(|line| line.split("admitted=").nth(1))
            .unwrap_or_else(|| panic!("{output_text}"));
        admitted += count.trim().parse::<u64>().unwrap();
    }
    assert_eq!(admitted, UNITS, "{limit}");
}

/// Runs the race if this process is a racer. Returns whether it is.
fn raced() -> bool {
    let Ok(race) = std::env::var("TOLLGATE_RACE") else { return false };
    let [url, prefix, limit] = *race.splitn(3, ' ').collect::<Vec<_>>() else { panic!("{race}") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    println!("admitted={}", runtime.block_on(racer(url, prefix, limit)));
    true
}

#[test]
fn b9_eight_processes_race_for_a_thousand_units_and_admit_exactly_a_thousand() {
    if raced() {
        return;
    }
    let redis = Redis::start(&[]);
    let test = "b9_eight_processes_race_for_a_thousand_units_and_admit_exactly_a_thousand";
    for limit in ["1000/365d fixed", "1000/365d sliding", "1000/365d log", "1000/365d"] {
        race(test, &redis.url(), limit);
    }
}

#[test]
fn b9_eight_processes_race_in_a_cluster() {
    if raced() {
        return;
    }
    race("b9_eight_processes_race_in_a_cluster", &Cluster::start().url(), "1000/365d");
}
