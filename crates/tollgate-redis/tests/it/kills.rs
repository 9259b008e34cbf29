//! C8 across processes: holders of slots in one Redis are killed with SIGKILL at random moments.
//! There are never more live slots than the limit, the slots of a dead holder are back within their
//! time to live, and nobody else's move.

#![expect(clippy::print_stdout, reason = "a holder reports to its parent on standard output")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use crate::common::{Redis, unique};
use tollgate::{Clock as _, Limit, Limiter, MINUTE, Rule, RuleSet, TokioClock};
use tollgate_redis::RedisStore;

const SLOTS: u64 = 4;
const HOLDERS: usize = 6;
const ROUNDS: usize = 6;
const KILLS: usize = 3;
const TTL: Duration = Duration::from_secs(4);

fn limiter(url: &str, prefix: &str) -> Limiter<RedisStore> {
    let rules = RuleSet::new([Rule::new("jobs", Limit::concurrent(SLOTS))]).unwrap();
    let store = RedisStore::builder(url).unwrap().prefix(prefix).build().unwrap();
    Limiter::builder(rules).store(store).clock(TokioClock).deadline(MINUTE).build().unwrap()
}

/// The work of one process: takes a slot, says so, holds it until it is told to go on, and gives it
/// back. From `took` until it is told to go on, or killed, it holds a slot for certain.
async fn holder(url: &str, prefix: &str) {
    let limiter = limiter(url, prefix);
    let (told, mut go_on) = tokio::sync::mpsc::unbounded_channel();
    std::thread::spawn(move || std::io::stdin().lines().map_while(Result::ok).all(|_| told.send(()).is_ok()));
    loop {
        let slot = limiter.acquire("a", TTL).await.unwrap();
        assert!(!slot.decision().degraded());
        if !slot.decision().allowed() {
            sleep(Duration::from_millis(5)).await;
            continue;
        }
        println!("took");
        if slot.hold_during(go_on.recv()).await.expect("its slot is renewed").is_none() {
            return;
        }
        slot.release().await.expect("it was held until now");
    }
}

async fn sleep(span: Duration) {
    TokioClock.sleep_until(TokioClock.now().saturating_add(span)).await;
}

/// A process, and its number.
struct Holder {
    process: Child,
    number: usize,
}

impl Holder {
    fn start(number: usize, url: &str, prefix: &str, reports: &Sender<(usize, String)>) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["kills::c8_killed_holders_give_back_their_own_slots", "--exact", "--nocapture"]);
        command.env("TOLLGATE_HOLDER", format!("{url} {prefix}"));
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (output, reports) = (BufReader::new(process.stdout.take().unwrap()), reports.clone());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                let word = line.rsplit(' ').next().unwrap_or_default().to_owned();
                let _ = reports.send((number, word));
            }
            let _ = reports.send((number, "ended".into()));
        });
        Self { process, number }
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The processes and what they reported.
struct Fleet {
    holders: BTreeMap<usize, Holder>,
    reports: Receiver<(usize, String)>,
    /// The living processes that took a slot and were not told to go on.
    holding: BTreeSet<usize>,
}

impl Fleet {
    /// Takes in one report.
    fn observe(&mut self) {
        let (number, report) = self.reports.recv_timeout(MINUTE).expect("a process reports within a minute");
        match report.as_str() {
            "took" => {
                // A killed process may have reported before.
                if self.holders.contains_key(&number) {
                    self.holding.insert(number);
                }
                let holding = self.holding.len();
                assert!(holding as u64 <= SLOTS, "{holding} holders of {SLOTS} slots");
            }
            "ended" => assert!(!self.holders.contains_key(&number), "holder {number} lost its slot"),
            _ => {}
        }
    }

    fn observe_until(&mut self, reached: impl Fn(&Self) -> bool) {
        while !reached(self) {
            self.observe();
        }
    }
}

#[test]
fn c8_killed_holders_give_back_their_own_slots() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    if let Ok(holder_of) = std::env::var("TOLLGATE_HOLDER") {
        let (url, prefix) = holder_of.split_once(' ').unwrap();
        return runtime.block_on(holder(url, prefix));
    }
    let redis = Redis::start(&[]);
    let (url, prefix) = (redis.url(), format!("kills-{}", unique()));
    let (reporter, reports) = channel();
    let start = |number| (number, Holder::start(number, &url, &prefix, &reporter));
    let holders = (0..HOLDERS).map(start).collect();
    let mut fleet = Fleet { holders, reports, holding: BTreeSet::new() };
    let mut random = 7_u64;
    for round in 1..=ROUNDS {
        // All slots are taken, those of the killed ones again.
        fleet.observe_until(|fleet| fleet.holding.len() as u64 == SLOTS);
        let mut nth = |most: usize| {
            // Knuth's generator: the schedule is the same on every run.
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            usize::try_from(random >> 33).unwrap() % most
        };
        // One of them goes on, and others are killed, whatever they do at that moment.
        let goes_on = *fleet.holding.iter().nth(nth(fleet.holding.len())).unwrap();
        fleet.holding.remove(&goes_on);
        let stdin = fleet.holders.get_mut(&goes_on).unwrap().process.stdin.as_mut().unwrap();
        writeln!(stdin).unwrap();
        for kill in 0..KILLS {
            let victim = *fleet.holders.keys().nth(nth(fleet.holders.len())).unwrap();
            let mut victim = fleet.holders.remove(&victim).unwrap();
            victim.kill();
            fleet.holding.remove(&victim.number);
            fleet.holders.extend([start(HOLDERS * round + kill)]);
        }
    }
    fleet.observe_until(|fleet| fleet.holding.len() as u64 == SLOTS);
    // With all holders dead, all slots come back.
    fleet.holders.clear();
    let limiter = limiter(&url, &prefix);
    runtime.block_on(async {
        let mut peeked = limiter.peek("a").await.unwrap();
        assert!(peeked.remaining() < SLOTS, "the dead hold their slots for a while");
        while peeked.remaining() < SLOTS {
            let wait = peeked.reset_at().since(peeked.now());
            assert!(wait <= TTL, "back within their time to live");
            sleep(wait).await;
            peeked = limiter.peek("a").await.unwrap();
        }
    });
}
