//! Failures of a real Redis: each kind of failure, under each failure policy.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{Redis, Sentinels, cli, until};
use crate::node::{LIMIT, Node};
use futures_util::future::join_all;
use tollgate::{Clock as _, HOUR, Limit, Limiter, ManualClock, Request, RuleSet, SystemClock};
use tollgate_redis::RedisStore;
use tollgate_testkit::run;

#[test]
fn e4_redis_that_refuses_connections() {
    let mut redis = Redis::start(&[]);
    redis.kill();
    let node = Node::new(&redis.url());
    node.assert_degraded();
    let status = node.limiter.store().status();
    assert!(status.down.is_some_and(|reason| reason.contains("refused")) && status.trips == 1);
    assert!(node.limiter.stats().store_errors > 0);
    assert!(redis.run());
    node.until_back();
    node.assert_exact();
    assert_eq!(node.changes(), ["down", "back"]);
}

#[test]
fn e4_redis_killed_and_started_again() {
    let mut redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    node.assert_exact();
    redis.kill();
    node.assert_degraded();
    assert!(redis.run());
    node.until_back();
    node.assert_exact();
}

/// The node was idle while Redis restarted. Its connection is stale, no answer is degraded, and
/// each check is taken once.
#[test]
fn e4_the_first_checks_after_a_restart_of_redis_are_not_degraded() {
    let mut redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    for client in ["a", "b", "c"] {
        node.assert_exact();
        redis.kill();
        assert!(redis.run());
        let attributes = [("policy", "closed"), ("client", client)];
        let checks = (0..LIMIT).map(|_| node.limiter.check_async(Request::new(&attributes)));
        for decision in run(join_all(checks)) {
            let decision = decision.unwrap();
            assert!(decision.allowed() && !decision.degraded(), "{decision:?}");
        }
        assert!(!node.check("closed", client).allowed());
    }
    assert_eq!((node.limiter.store().status().trips, node.changes().len()), (0, 0));
}

#[test]
fn e4_redis_that_hangs() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    node.assert_exact();
    redis.signal("-STOP");
    node.assert_degraded();
    node.until_down();
    let reason = node.limiter.store().status().down.unwrap();
    assert!(reason.contains("no answer") || reason.contains("not answer"), "{reason}");
    node.assert_degraded();
    redis.signal("-CONT");
    node.until_back();
    node.assert_exact();
}

/// Manual time: the check fails at its deadline, neither before nor after.
#[test]
fn e4_a_hanging_redis_costs_a_request_its_deadline_and_no_more() {
    let redis = Redis::start(&[]);
    let clock = ManualClock::at(SystemClock.now());
    let rules = RuleSet::per_client(Limit::per_second(10));
    let store = RedisStore::open(&redis.url()).unwrap();
    let deadline = Duration::from_millis(50);
    let limiter =
        Limiter::builder(rules).store(store).clock(clock.clone()).deadline(deadline).build().unwrap();
    assert!(!run(limiter.check_async("a")).unwrap().degraded());
    redis.signal("-STOP");
    run(async {
        let mut check = std::pin::pin!(limiter.check_async("a"));
        assert!(futures_util::poll!(check.as_mut()).is_pending());
        clock.advance(deadline - Duration::from_nanos(1));
        assert!(futures_util::poll!(check.as_mut()).is_pending());
        clock.advance(Duration::from_nanos(1));
        assert!(check.await.unwrap().degraded());
    });
    redis.signal("-CONT");
}

#[test]
fn e4_redis_that_is_slow_now_and_then() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    node.assert_exact();
    redis.cli(&["client", "pause", "600", "all"]);
    assert!(node.check("open", "slow").degraded(), "an answer after the deadline is a failure");
    node.until_back();
    node.assert_exact();
}

#[test]
fn e4_redis_that_is_out_of_memory() {
    let redis = Redis::start(&["--maxmemory-policy", "noeviction"]);
    for limit in [Limit::fixed_window(LIMIT, HOUR), Limit::sliding_log(LIMIT, HOUR), Limit::per(LIMIT, HOUR)]
    {
        let node = Node::with_limit(&redis.url(), limit);
        (0..3).for_each(|_| assert!(node.check("open", "a").allowed()));
        redis.cli(&["config", "set", "maxmemory", "1"]);
        node.assert_degraded();
        let status = node.limiter.store().status();
        assert!(status.down.as_ref().is_some_and(|reason| reason.contains("OOM")), "{status:?}");
        redis.cli(&["config", "set", "maxmemory", "0"]);
        node.until_back();
        assert_eq!(node.check("open", "a").remaining(), LIMIT - 4, "nothing was lost, and nothing was taken");
        node.assert_exact();
    }
}

#[test]
fn e4_a_replica_is_read_only() {
    let master = Redis::start(&[]);
    let replica = Redis::start(&["--replicaof", &format!("127.0.0.1 {}", master.port)]);
    until("the replica is in sync", || {
        replica.cli(&["info", "replication"]).contains("master_link_status:up")
    });
    let node = Node::new(&replica.url());
    node.assert_degraded();
    assert!(node.limiter.store().status().down.is_some_and(|reason| reason.contains("READONLY")));
    replica.cli(&["replicaof", "no", "one"]);
    node.until_back();
    node.assert_exact();
}

#[test]
fn e4_redis_that_is_still_loading() {
    let mut redis = Redis::start(&[]);
    redis.cli(&["eval", "for i = 1, 40000 do redis.call('SET', 'filler' .. i, i) end", "0"]);
    redis.cli(&["save"]);
    redis.kill();
    redis.arguments.extend(
        ["--key-load-delay", "100", "--loading-process-events-interval-bytes", "1024"].map(str::to_owned),
    );
    assert!(redis.run());
    let node = Node::new(&redis.url());
    node.assert_degraded();
    let status = node.limiter.store().status();
    assert!(status.down.as_ref().is_some_and(|reason| reason.contains("LOADING")), "{status:?}");
    redis.cli(&["config", "set", "key-load-delay", "0"]);
    node.until_back();
    node.assert_exact();
}

#[test]
fn e4_a_flushed_script_is_loaded_again_and_no_check_fails() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    for _ in 0..LIMIT {
        assert_eq!(redis.cli(&["script", "flush"]), "OK");
        let decision = node.check("closed", "a");
        assert!(decision.allowed() && !decision.degraded());
    }
    assert!(!node.check("closed", "a").allowed());
}

/// A server that runs the first EVAL, so that the store connects, and answers NOSCRIPT from then
/// on.
fn noscript_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let answer = |stream: TcpStream, ran: &AtomicBool| -> io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        // The count of arguments after `*`, the length in bytes after `$`.
        let number = |reader: &mut BufReader<TcpStream>| -> io::Result<usize> {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            line.trim_end().trim_start_matches(['*', '$']).parse().map_err(io::Error::other)
        };
        loop {
            let mut name = Vec::new();
            for argument in 0..number(&mut reader)? {
                let mut text = vec![0; number(&mut reader)? + 2];
                reader.read_exact(&mut text)?;
                name = if argument == 0 { text } else { name };
            }
            let name = String::from_utf8_lossy(&name).trim_end().to_owned();
            let runs = name == "EVAL" && !ran.swap(true, Ordering::Relaxed);
            let reply: &[u8] = match name.as_str() {
                "EVAL" | "EVALSHA" if !runs => b"-NOSCRIPT No matching script. Please use EVAL.\r\n",
                _ => b"+OK\r\n",
            };
            (&stream).write_all(reply)?;
        }
    };
    thread::spawn(move || {
        let ran = AtomicBool::new(false);
        listener.incoming().flatten().for_each(|stream| drop(answer(stream, &ran)));
    });
    url
}

#[test]
fn e4_noscript_in_answer_to_eval_is_a_store_error() {
    let url = noscript_server();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = RedisStore::open(&url).unwrap();
        let refused = store.ping().await.unwrap_err();
        assert!(refused.to_string().contains("NOSCRIPT in answer to EVAL"), "{refused}");
        let limiter =
            Limiter::builder(RuleSet::per_client(Limit::per_second(10))).store(store).build().unwrap();
        assert!(limiter.check_async("a").await.unwrap().degraded());
    });
}

#[test]
fn e4_sentinels_fail_over_under_traffic() {
    let mut group = Sentinels::start();
    let node = Node::new(&group.url());
    node.assert_exact();
    // A planned failover: the old master lives on, read-only.
    let old = group.sentinels[0].cli(&["sentinel", "get-master-addr-by-name", "main"]);
    until("the sentinels accept the failover", || {
        group.sentinels[0].cli(&["sentinel", "failover", "main"]) == "OK"
    });
    until("the sentinels name another master", || {
        let _ = node.check("open", "traffic");
        group
            .sentinels
            .iter()
            .all(|sentinel| sentinel.cli(&["sentinel", "get-master-addr-by-name", "main"]) != old)
    });
    node.until_back();
    node.assert_exact();
    // An unplanned failover. First the sentinels must see the old master as a replica of the new.
    let new = group.sentinels[0].cli(&["sentinel", "get-master-addr-by-name", "main"]);
    let port: u16 = new.lines().last().unwrap().parse().unwrap();
    let master = group.servers.iter().position(|server| server.port == port).unwrap();
    until("the old master is in sync", || cli(port, &["info", "replication"]).contains("state=online"));
    let other = group.servers[1 - master].port;
    until("the sentinels know the new replica", || {
        group.sentinels.iter().all(|sentinel| {
            let replicas = sentinel.cli(&["sentinel", "replicas", "main"]);
            replicas.contains(&format!("127.0.0.1:{other}")) && replicas.contains("master-link-status\nok")
        })
    });
    group.servers[master].kill();
    node.assert_degraded();
    node.until_back();
    node.assert_exact();
}

#[test]
fn e4_another_runtime_probes_after_the_runtime_of_the_prober_ended() {
    let mut redis = Redis::start(&[]);
    redis.kill();
    let node = Node::new(&redis.url());
    let runtime =
        || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let attributes = [("policy", "open"), ("client", "a")];
    let first = runtime();
    assert!(first.block_on(node.limiter.check_async(Request::new(&attributes))).unwrap().degraded());
    drop(first);
    assert!(redis.run());
    let second = runtime();
    until("Redis is back for the second runtime", || {
        !second.block_on(node.limiter.check_async(Request::new(&attributes))).unwrap().degraded()
    });
}
