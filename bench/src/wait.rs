//! Waiting for admission: what a waiter costs, and how long a runtime is held up, in a process of
//! its own for each contender.

use std::fmt::Write as _;
use std::future::Future;
use std::num::NonZeroU32;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use governor::{DefaultDirectRateLimiter, DefaultKeyedRateLimiter, Quota, RateLimiter};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tollgate::{HOUR, Limit, Limiter, Rule, RuleSet, TokioClock};

const CONTENDERS: [&str; 5] = ["tollgate", "governor", "leaky-bucket", "tokio Semaphore", "bare sleep"];

/// What is measured, in the order of the table, and the goal for tollgate.
const ROWS: [(&str, &str); 8] = [
    ("memory a waiter, bytes", "at most 900"),
    ("processor time to join, each, 100 000 on one key, us", "at most 2"),
    ("50 000 of 100 000 on one key leave at once, processor time, ms", "at most 50"),
    ("20 000 deadlines at once, processor time, ms", "at most 50"),
    ("a sleep of 1 ms elsewhere on the runtime meanwhile, worst, ms", "at most 5"),
    ("5 000 clients under a global 100/s, processor time in 4 s, ms", "at most 100"),
    ("processor time of 100 000 sleeping waiters in 5 s, ms", "at most 4"),
    ("out of order, of 3 000", "0"),
];

const CROWD: usize = 100_000;
const DEADLINES: usize = 20_000;
const CLIENTS: u64 = 5_000;

/// Measures every contender in a child, one after the other, and prints a table.
pub fn table() -> String {
    let measured = CONTENDERS.map(measure);
    let mut text =
        format!("| | {} | goal |\n|---|{}---|\n", CONTENDERS.join(" | "), "---|".repeat(CONTENDERS.len()));
    for (index, (row, goal)) in ROWS.iter().enumerate() {
        let cells: Vec<&str> = measured.iter().map(|cells| cells[index].as_str()).collect();
        let _ = writeln!(text, "| {row} | {} | {goal} |", cells.join(" | "));
    }
    text
}

/// The cells of a contender. A row that it cannot do, or not in bounded time, has a dash.
fn measure(contender: &str) -> Vec<String> {
    let cell = |part: usize| {
        let own = std::env::current_exe().expect("this program");
        let output =
            Command::new(own).args(["wait", contender, &part.to_string()]).output().expect("a child");
        let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        eprintln!("{contender}, {}: {said}", ROWS[part].0);
        if output.status.success() { said } else { "-".into() }
    };
    (0..ROWS.len()).map(cell).collect()
}

/// Prints one cell.
pub fn report(contender: &str, part: usize) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime");
    let said = match contender {
        "tollgate" => runtime.block_on(cell(part, Tollgate::new)),
        "governor" => runtime.block_on(cell(part, Governor::new)),
        "leaky-bucket" => runtime.block_on(cell(part, Leaky::new)),
        "tokio Semaphore" => runtime.block_on(cell(part, |_| Permits(Arc::new(Semaphore::new(0))))),
        _ => runtime.block_on(cell(part, |_| Bare)),
    };
    println!("{}", said.unwrap_or_else(|| "-".into()));
    // Not worth tidying up.
    std::process::exit(0);
}

/// Measures one cell with the limiter that `new` makes: it admits one request in each period, and
/// has admitted the first.
async fn cell<W: Wait>(part: usize, new: impl Fn(Duration) -> W) -> Option<String> {
    match part {
        0 => Some(format!("{:.0}", memory(new(2 * HOUR)).await)),
        1 => Some(format!("{:.2}", joining(new(2 * HOUR)).await)),
        2 => Some(format!("{:.1}", leaving(new(2 * HOUR)).await)),
        3 => Some(format!("{:.1}", deadlines(new(2 * HOUR)).await.0)),
        4 => Some(format!("{:.1}", deadlines(new(2 * HOUR)).await.1)),
        5 => match W::clients() {
            Some(admitted) => Some(format!("{:.0}", clients(admitted).await)),
            None => None,
        },
        6 => Some(format!("{:.1}", sleeping(new(2 * HOUR)).await)),
        _ if W::IS_LIMITER => Some(out_of_order(new(Duration::from_millis(1))).await.to_string()),
        _ => None,
    }
}

/// A limiter with one key. Clones share it.
trait Wait: Clone + Send + Sync + 'static {
    /// Whether it admits anything.
    const IS_LIMITER: bool;

    /// Waits until it is admitted (true), or for at most so long.
    fn wait_within(self, timeout: Duration) -> impl Future<Output = bool> + Send;

    /// Waits for hours.
    fn wait(self) -> impl Future<Output = bool> + Send {
        self.wait_within(3 * HOUR)
    }

    /// Lets many clients wait under a limit for all and one for each. Counts the admitted.
    fn clients() -> Option<Arc<AtomicU64>> {
        None
    }
}

#[derive(Clone)]
struct Tollgate(Limiter);

impl Tollgate {
    fn new(period: Duration) -> Self {
        let limiter = Self::under([Rule::new("one", Limit::token_bucket(1, 1, period)).key(["client"])]);
        assert!(limiter.check(7_u64).expect("valid").allowed());
        Self(limiter)
    }

    fn under<const N: usize>(rules: [Rule; N]) -> Limiter {
        let rules = RuleSet::new(rules).expect("valid");
        Limiter::builder(rules).clock(TokioClock).build().expect("valid")
    }
}

impl Wait for Tollgate {
    const IS_LIMITER: bool = true;

    async fn wait_within(self, timeout: Duration) -> bool {
        self.0.wait(7_u64, timeout).await.expect("valid").allowed()
    }

    fn clients() -> Option<Arc<AtomicU64>> {
        let admitted = Arc::new(AtomicU64::new(0));
        let limiter = Self::under([
            Rule::new("global", Limit::per_second(100).burst(1)),
            Rule::new("per-client", Limit::per_second(10)).key(["client"]),
        ]);
        for client in 0..CLIENTS {
            let limiter = limiter.clone();
            let admitted = Arc::clone(&admitted);
            tokio::spawn(async move {
                let decision = limiter.wait(client, HOUR).await.expect("valid");
                admitted.fetch_add(u64::from(decision.allowed()), Ordering::Relaxed);
            });
        }
        Some(admitted)
    }
}

#[derive(Clone)]
struct Governor(Arc<DefaultDirectRateLimiter>);

impl Governor {
    fn new(period: Duration) -> Self {
        let limiter = RateLimiter::direct(Quota::with_period(period).expect("not zero"));
        assert!(limiter.check().is_ok());
        Self(Arc::new(limiter))
    }
}

impl Wait for Governor {
    const IS_LIMITER: bool = true;

    /// It has no deadline of its own.
    async fn wait_within(self, timeout: Duration) -> bool {
        tokio::time::timeout(timeout, self.0.until_ready()).await.is_ok()
    }

    async fn wait(self) -> bool {
        self.0.until_ready().await;
        true
    }

    fn clients() -> Option<Arc<AtomicU64>> {
        let per_second = |count| Quota::per_second(NonZeroU32::new(count).expect("not zero"));
        let admitted = Arc::new(AtomicU64::new(0));
        let global: Arc<DefaultDirectRateLimiter> =
            Arc::new(RateLimiter::direct(per_second(100).allow_burst(NonZeroU32::MIN)));
        let keyed: Arc<DefaultKeyedRateLimiter<u64>> = Arc::new(RateLimiter::keyed(per_second(10)));
        for client in 0..CLIENTS {
            let global = Arc::clone(&global);
            let keyed = Arc::clone(&keyed);
            let admitted = Arc::clone(&admitted);
            tokio::spawn(async move {
                keyed.until_key_ready(&client).await;
                global.until_ready().await;
                admitted.fetch_add(1, Ordering::Relaxed);
            });
        }
        Some(admitted)
    }
}

#[derive(Clone)]
struct Leaky(Arc<leaky_bucket::RateLimiter>);

impl Leaky {
    fn new(period: Duration) -> Self {
        let mut limiter = leaky_bucket::RateLimiter::builder();
        limiter.max(1).initial(0).refill(1).interval(period);
        Self(Arc::new(limiter.build()))
    }
}

impl Wait for Leaky {
    const IS_LIMITER: bool = true;

    async fn wait_within(self, timeout: Duration) -> bool {
        tokio::time::timeout(timeout, self.0.acquire_one()).await.is_ok()
    }

    async fn wait(self) -> bool {
        self.0.acquire_one().await;
        true
    }
}

#[derive(Clone)]
struct Permits(Arc<Semaphore>);

impl Wait for Permits {
    const IS_LIMITER: bool = false;

    async fn wait_within(self, timeout: Duration) -> bool {
        tokio::time::timeout(timeout, self.0.acquire()).await.is_ok()
    }

    async fn wait(self) -> bool {
        self.0.acquire().await.is_ok()
    }
}

/// What a task that sleeps costs.
#[derive(Clone)]
struct Bare;

impl Wait for Bare {
    const IS_LIMITER: bool = false;

    async fn wait_within(self, timeout: Duration) -> bool {
        tokio::time::sleep(timeout).await;
        false
    }
}

/// Tasks that wait, once all of them sleep.
async fn crowd<W: Wait>(one: &W) -> Vec<JoinHandle<bool>> {
    let mut tasks = Vec::with_capacity(CROWD);
    for _ in 0..CROWD {
        tasks.push(tokio::spawn(one.clone().wait()));
    }
    settled().await;
    tasks
}

/// Returns when the process has used next to nothing of the processors for a while.
async fn settled() {
    loop {
        let before = processor_ns();
        tokio::time::sleep(Duration::from_millis(50)).await;
        if processor_ns() - before < 2_000_000 {
            return;
        }
    }
}

async fn memory<W: Wait>(one: W) -> f64 {
    // The runtime's own memory is there already.
    tokio::spawn(Bare.wait_within(Duration::ZERO)).await.expect("no panic");
    let before = resident();
    let tasks = crowd(&one).await;
    let bytes = resident() - before;
    drop(tasks);
    bytes as f64 / CROWD as f64
}

async fn joining<W: Wait>(one: W) -> f64 {
    let before = processor_ns();
    let tasks = crowd(&one).await;
    let used = processor_ns() - before;
    drop(tasks);
    used as f64 / 1e3 / CROWD as f64
}

async fn leaving<W: Wait>(one: W) -> f64 {
    let mut tasks = crowd(&one).await;
    // Not those that came first or last.
    let leavers: Vec<_> = (0..CROWD / 2).map(|index| tasks.swap_remove(index)).collect();
    let before = processor_ns();
    leavers.iter().for_each(JoinHandle::abort);
    for leaver in leavers {
        assert!(leaver.await.is_err());
    }
    let used = processor_ns() - before;
    drop(tasks);
    used as f64 / 1e6
}

/// The processor time, and by how much the worst of many sleeps of 1 ms was late.
async fn deadlines<W: Wait>(one: W) -> (f64, f64) {
    let timeout = Duration::from_secs(5);
    let started = Instant::now();
    // The first has the time to wait, so the others are behind it at their deadline.
    let first = tokio::spawn(one.clone().wait());
    tokio::time::sleep(Duration::from_millis(50)).await;
    // The same deadline, whenever they join.
    let join = |one: W| async move { one.wait_within(timeout.saturating_sub(started.elapsed())).await };
    let tasks: Vec<_> = (0..DEADLINES).map(|_| tokio::spawn(join(one.clone()))).collect();
    settled().await;
    assert!(started.elapsed() < timeout, "they join faster");
    let elsewhere = tokio::spawn(async move {
        let mut worst = Duration::ZERO;
        while started.elapsed() < timeout + Duration::from_millis(300) {
            let begun = Instant::now();
            tokio::time::sleep(Duration::from_millis(1)).await;
            worst = worst.max(begun.elapsed().saturating_sub(Duration::from_millis(1)));
        }
        worst
    });
    tokio::time::sleep((timeout - Duration::from_millis(20)).saturating_sub(started.elapsed())).await;
    let before = processor_ns();
    for task in tasks {
        assert!(!task.await.expect("no panic"));
    }
    let used = processor_ns() - before;
    let worst = elsewhere.await.expect("no panic");
    first.abort();
    (used as f64 / 1e6, worst.as_secs_f64() * 1e3)
}

async fn clients(admitted: Arc<AtomicU64>) -> f64 {
    let before = processor_ns();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let used = processor_ns() - before;
    let admitted = admitted.load(Ordering::Relaxed);
    eprintln!("{admitted} admitted in 4 s");
    used as f64 / 1e6
}

async fn sleeping<W: Wait>(one: W) -> f64 {
    let tasks = crowd(&one).await;
    let before = processor_ns();
    tokio::time::sleep(Duration::from_secs(5)).await;
    let used = processor_ns() - before;
    drop(tasks);
    used as f64 / 1e6
}

/// How many of 3 000 were overtaken by one that came later.
async fn out_of_order<W: Wait>(one: W) -> u64 {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let arrived = Arc::new(AtomicU64::new(0));
    for index in 0..3_000_u64 {
        let mut waiting = Box::pin(one.clone().wait());
        let sender = sender.clone();
        let polled = Arc::clone(&arrived);
        tokio::spawn(async move {
            let admitted = std::future::poll_fn(|context| {
                let admitted = waiting.as_mut().poll(context);
                polled.fetch_max(index + 1, Ordering::Release);
                admitted
            });
            assert!(admitted.await);
            let _ = sender.send(index);
        });
        // It has arrived before the next does.
        while arrived.load(Ordering::Acquire) <= index {
            tokio::task::yield_now().await;
        }
    }
    drop(sender);
    let mut newest = 0;
    let mut overtaken = 0;
    while let Some(index) = receiver.recv().await {
        overtaken += u64::from(index < newest);
        newest = newest.max(index);
    }
    overtaken
}

fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok()).expect("a number of pages") * 4096
}

/// What all threads have used of the processors.
fn processor_ns() -> u64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux");
    let used = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<u64>().ok()
    });
    used.sum()
}
