//! tollgate with a real Redis: what a node gets out of it, beside what redis-benchmark gets out of
//! the same script, and beside limitador. One thread asks and Redis has the other processor.
//! Everyone has a turn in each round, and medians are told.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use limitador::AsyncRateLimiter;
use limitador::limit::{Context, Limit as TheirLimit};
use limitador::storage::redis::AsyncRedisStorage;
use tollgate::{Limit, Limiter, RuleSet, TokioClock};
use tollgate_redis::{RedisStore, SCRIPT};

const ROUNDS: usize = 7;
/// How many requests are under way at a time.
const TOGETHER: u64 = 64;
const CLIENTS: u64 = 100_000;
const REQUESTS: u64 = 150_000;
/// Limiters whose first check is timed.
const FIRSTS: u64 = 200;
/// How many clients hammer.
const HAMMERING: u64 = 10_000;

/// A Redis of its own.
struct Redis {
    process: Child,
    port: u16,
}

impl Redis {
    fn start() -> Self {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address").port();
        let mut command = Command::new("redis-server");
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        let mut process = command.stdout(Stdio::piped()).spawn().expect("redis-server");
        let log = BufReader::new(process.stdout.take().expect("a log"));
        assert!(log.lines().map_while(Result::ok).any(|line| line.contains("Ready to accept")));
        Self { process, port }
    }

    fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli").args(["-p", &self.port.to_string()]).args(arguments).output();
        String::from_utf8_lossy(&output.expect("redis-cli").stdout).trim().to_owned()
    }

    fn used_memory(&self) -> u64 {
        let info = self.cli(&["info", "memory"]);
        info.lines()
            .find_map(|line| line.strip_prefix("used_memory:"))
            .expect("a number")
            .trim()
            .parse()
            .expect("a number")
    }

    /// How many scripts it has run.
    fn scripts(&self) -> u64 {
        let stats = self.cli(&["info", "commandstats"]);
        let calls = |line: &str| line.split("calls=").nth(1)?.split(',').next()?.parse::<u64>().ok();
        stats.lines().filter(|line| line.starts_with("cmdstat_eval")).filter_map(calls).sum()
    }

    /// Requests per second and the mean latency in microseconds that redis-benchmark gets out of
    /// the script.
    fn benchmark(&self, sha: &str, pipeline: u64, requests: u64) -> (f64, f64) {
        let (port, pipeline) = (self.port.to_string(), pipeline.to_string());
        let (requests, clients) = (requests.to_string(), CLIENTS.to_string());
        let mut command = Command::new("redis-benchmark");
        command.args(["-p", &port, "-c", "1", "-P", &pipeline, "-n", &requests, "-r", &clients, "--csv"]);
        command.args([
            "evalsha",
            sha,
            "1",
            "tollgate:{__rand_int__}:per-client:0",
            "take",
            "",
            "0",
            LIMIT_TEXT,
            "1",
            "1",
        ]);
        let said = String::from_utf8(command.output().expect("redis-benchmark").stdout).expect("text");
        let row = said.lines().last().expect("a row");
        let numbers: Vec<f64> =
            row.rsplit(',').filter_map(|field| field.trim_matches('"').parse().ok()).collect();
        // The last of the row are p100, p99, p95, p50, least, mean, and the rate.
        (numbers[6], numbers[5] * 1_000.0)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A bucket that admits everyone here, and how the script is told of it.
const LIMIT: &str = "1000000/h";
const LIMIT_TEXT: &str = "b 1000000 3600000 1000 0";

fn node(redis: &Redis, limit: Limit, remember: Duration) -> Limiter<RedisStore> {
    let store = RedisStore::builder(&redis.url())
        .expect("a URL")
        .remember_denials(remember)
        .build()
        .expect("a store");
    let limiter = Limiter::builder(RuleSet::per_client(limit))
        .store(store)
        .clock(TokioClock)
        .deadline(Duration::from_secs(10));
    limiter.build().expect("a limiter")
}

/// Requests per second of `ask`, so many under way together.
async fn rate<F: Future<Output = ()>>(together: u64, requests: u64, ask: impl Fn(u64) -> F) -> f64 {
    let begun = Instant::now();
    let next = AtomicU64::new(0);
    let worker = async |seed: u64| {
        let mut random = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        while next.fetch_add(1, Ordering::Relaxed) < requests {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            ask(random % CLIENTS).await;
        }
    };
    futures_util::future::join_all((1..=together).map(worker)).await;
    requests as f64 / begun.elapsed().as_secs_f64()
}

async fn ours(
    limiter: &Limiter<RedisStore>,
    clients: u64,
    together: u64,
    requests: u64,
    allowed: bool,
) -> f64 {
    let names: Vec<String> = (0..clients).map(|client| format!("{client:012}")).collect();
    rate(together, requests, async |client| {
        let name = &names[(client % clients) as usize];
        let decision = limiter.check_async(name.as_str()).await.expect("an answer");
        assert!(!decision.degraded() && decision.allowed() == allowed);
    })
    .await
}

async fn theirs(limiter: &AsyncRateLimiter, requests: u64) -> f64 {
    let namespace = "bench".into();
    rate(TOGETHER, requests, async |client| {
        let values = HashMap::from([("client".to_owned(), format!("{client:012}"))]);
        let context = Context::from(values);
        let answer = limiter.check_rate_limited_and_update(&namespace, &context, 1).await.expect("an answer");
        assert!(!answer.limited);
    })
    .await
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// Measures everything, and says it in Markdown.
pub fn table(wanted: &str) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let mut text = String::from(
        "## Redis\n\nWritten by `cargo xtask bench --redis`: one thread asks, Redis has the other processor. ",
    );
    let _ = writeln!(
        text,
        "{TOGETHER} requests under way together on one connection, {CLIENTS} random clients; medians of {ROUNDS} rounds in which \
         everyone has a turn.\n"
    );
    runtime.block_on(async {
        if "throughput".contains(wanted) {
            throughput(&mut text).await;
        }
        if "denials".contains(wanted) {
            denials(&mut text).await;
        }
        if "first".contains(wanted) {
            first(&mut text).await;
        }
        if "bytes".contains(wanted) {
            bytes(&mut text).await;
        }
    });
    text
}

async fn throughput(text: &mut String) {
    let redis = Redis::start();
    let sha = redis.cli(&["script", "load", SCRIPT]);
    let node = node(&redis, LIMIT.parse().expect("a limit"), Duration::ZERO);
    let storage = AsyncRedisStorage::new(&redis.url()).await.expect("their storage");
    let limitador = AsyncRateLimiter::new_with_storage(Box::new(storage));
    let client = "client".try_into().expect("an expression");
    limitador.add_limit(TheirLimit::new("bench", 1_000_000, 3_600, Vec::new(), [client]));
    let before = redis.scripts();
    ours(&node, CLIENTS, TOGETHER, 10_000, true).await;
    let trips = (redis.scripts() - before) as f64 / 10_000.0;
    let (mut script, mut own, mut other, mut alone, mut own_alone) = (vec![], vec![], vec![], vec![], vec![]);
    for round in 1..=ROUNDS {
        script.push(redis.benchmark(&sha, TOGETHER, REQUESTS).0);
        own.push(ours(&node, CLIENTS, TOGETHER, REQUESTS, true).await);
        other.push(theirs(&limitador, REQUESTS / 3).await);
        alone.push(redis.benchmark(&sha, 1, 20_000).1);
        own_alone.push(1e6 / ours(&node, CLIENTS, 1, 20_000, true).await);
        eprintln!(
            "{round}/{ROUNDS}: script {:.0}, tollgate {:.0}, limitador {:.0}",
            script[round - 1],
            own[round - 1],
            other[round - 1]
        );
    }
    let ratio =
        |one: &[f64], other: &[f64]| median(one.iter().zip(other).map(|(one, other)| one / other).collect());
    let _ = writeln!(text, "| | requests per second | tollgate's rate to its |\n|---|---|---|");
    let _ = writeln!(
        text,
        "| tollgate, every check asked ({trips:.2} scripts a check) | {:.0} | 1.00 |",
        median(own.clone())
    );
    let _ = writeln!(
        text,
        "| redis-benchmark, the same script | {:.0} | {:.2} |",
        median(script.clone()),
        ratio(&own, &script)
    );
    let _ = writeln!(
        text,
        "| limitador, Redis storage | {:.0} | {:.2} |",
        median(other.clone()),
        ratio(&own, &other)
    );
    let _ = writeln!(
        text,
        "\nOne request at a time: {:.0} us a check, redis-benchmark {:.0} us.\n",
        median(own_alone),
        median(alone)
    );
}

async fn denials(text: &mut String) {
    let redis = Redis::start();
    let limit: Limit = "1/36500d fixed".parse().expect("a limit");
    let (direct, remembering) =
        (node(&redis, limit, Duration::ZERO), node(&redis, limit, Duration::from_secs(3_600)));
    for client in 0..HAMMERING {
        let client = format!("{client:012}");
        for limiter in [&direct, &remembering] {
            let _ = limiter.check_async(client.as_str()).await;
        }
    }
    let (mut asked, mut remembered) = (Vec::new(), Vec::new());
    let before = redis.scripts();
    for _ in 0..ROUNDS {
        asked.push(ours(&direct, HAMMERING, TOGETHER, REQUESTS / 3, false).await);
        remembered.push(ours(&remembering, HAMMERING, TOGETHER, 2_000_000, false).await);
    }
    let scripts = (redis.scripts() - before) - ROUNDS as u64 * (REQUESTS / 3);
    let times = median(asked.iter().zip(&remembered).map(|(asked, remembered)| remembered / asked).collect());
    let _ = writeln!(text, "| denials of {HAMMERING} clients that hammer | requests per second |\n|---|---|");
    let _ = writeln!(text, "| asked every time | {:.0} |", median(asked));
    let _ = writeln!(text, "| remembered | {:.0}, {times:.1} times as many |", median(remembered));
    let _ =
        writeln!(text, "\nOf {} remembered denials, Redis was asked for {scripts}.\n", ROUNDS * 2_000_000);
}

/// The first checks of a limiter, each of a store that has not connected yet. The very first is
/// of a Redis without the script.
async fn first(text: &mut String) {
    let redis = Redis::start();
    let mut took = [vec![], vec![]];
    for client in 0..FIRSTS {
        if client % 2 == 0 {
            redis.cli(&["script", "flush"]);
        }
        let limiter = node(&redis, LIMIT.parse().expect("a limit"), Duration::ZERO);
        for which in &mut took {
            let asked = Instant::now();
            let decision = limiter.check_async(format!("{client:012}").as_str()).await.expect("an answer");
            which.push(asked.elapsed().as_secs_f64() * 1e3);
            assert!(!decision.degraded());
        }
    }
    let slowest = took[0].iter().copied().fold(0.0, f64::max);
    let [first, second] = took.map(median);
    let _ = writeln!(
        text,
        "The first check of a process, which connects and in half of {FIRSTS} cases loads the script: \
         {first:.2} ms, at most {slowest:.2}; its second check {second:.2} ms.\n"
    );
}

async fn bytes(text: &mut String) {
    let _ =
        writeln!(text, "| bytes of Redis memory a key (names of 39 bytes, {CLIENTS} keys) | |\n|---|---|");
    let cases = [
        ("1000/d fixed", 1),
        ("1000/d sliding", 1),
        ("1000/d", 1),
        ("1000 refill 1000/d reserve 100 refill 10/d", 1),
        ("1000/d log", 1),
        ("1000/d log", 10),
        ("1000/d log", 100),
    ];
    for (notation, times) in cases {
        let redis = Redis::start();
        let limiter = Arc::new(node(&redis, notation.parse().expect("a limit"), Duration::ZERO));
        let empty = redis.used_memory();
        let keys = if times > 10 { CLIENTS / 10 } else { CLIENTS };
        for client in (0..keys).step_by(64) {
            let batch = (client..(client + 64).min(keys)).map(async |client| {
                let client = format!("{client:012}");
                for _ in 0..times {
                    assert!(limiter.check_async(client.as_str()).await.expect("an answer").allowed());
                }
            });
            futures_util::future::join_all(batch).await;
        }
        let each = (redis.used_memory() - empty) / keys;
        let requests = if notation.ends_with("log") { format!(", {times} admitted") } else { String::new() };
        let _ = writeln!(text, "| `{notation}`{requests} | {each} |");
    }
}
