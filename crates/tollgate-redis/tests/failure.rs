//! What happens when Redis fails, with a real one that really does: each way to fail, under each policy.

mod common;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Cluster, Redis, Watched, cli, unique, until};
use tollgate::{
    Clock as _, Decision, FailurePolicy, HOUR, Limit, Limiter, ManualClock, Request, Rule, RuleSet,
    SystemClock, TokioClock,
};
use tollgate_redis::{Change, RedisStore};
use tollgate_testkit::run;

/// The three policies beside each other on one store: what a request is matched on says which it gets.
struct Node {
    limiter: Limiter<RedisStore>,
    changes: Arc<Mutex<Vec<Change>>>,
}

const LIMIT: u64 = 8;

/// More than a busy machine makes a healthy Redis take.
const DEADLINE: Duration = Duration::from_millis(250);

impl Node {
    fn new(url: &str) -> Self {
        Self::with_limit(url, Limit::fixed_window(LIMIT, HOUR))
    }

    fn with_limit(url: &str, limit: Limit) -> Self {
        let changes = Arc::new(Mutex::new(Vec::new()));
        let told = changes.clone();
        let store = RedisStore::builder(url)
            .unwrap()
            .prefix(&format!("fail-{}", unique()))
            .remember_denials(Duration::ZERO)
            .on_change(move |change| told.lock().unwrap().push(change.clone()))
            .build()
            .unwrap();
        let rule = |name: &str, policy| {
            Rule::new(name, limit).matching("policy", name).key(["client"]).on_store_error(policy)
        };
        let rules = RuleSet::new([
            rule("open", FailurePolicy::Open),
            rule("closed", FailurePolicy::Closed),
            rule("local", FailurePolicy::Local),
        ]);
        let limiter = Limiter::builder(rules.unwrap())
            .store(store)
            .clock(TokioClock)
            .deadline(DEADLINE)
            .local_share(0.25)
            .build()
            .unwrap();
        Self { limiter, changes }
    }

    fn check(&self, policy: &str, client: &str) -> Decision {
        let attributes = [("policy", policy), ("client", client)];
        // A check that never ends would be the failure, not the test.
        let check = async {
            tokio::time::timeout(Duration::from_secs(20), self.limiter.check_async(Request::new(&attributes)))
                .await
        };
        run(check).expect("no check hangs").unwrap()
    }

    /// Each policy does what it says: without the store, and without a word of its error.
    fn assert_degraded(&self) {
        let client = unique();
        let open = self.check("open", &client);
        assert!(open.allowed() && open.degraded(), "{open:?}");
        let closed = self.check("closed", &client);
        assert!(!closed.allowed() && closed.degraded(), "{closed:?}");
        let local: Vec<bool> = (0..LIMIT).map(|_| self.check("local", &client).allowed()).collect();
        let share = local.iter().filter(|allowed| **allowed).count();
        assert_eq!(share, 2, "a quarter of {LIMIT}, so that four servers admit {LIMIT}");
        assert!(self.check("local", &client).degraded());
    }

    /// Everything is decided by Redis, to the unit.
    fn assert_exact(&self) {
        for policy in ["open", "closed", "local"] {
            let client = unique();
            let decisions: Vec<Decision> = (0..=LIMIT).map(|_| self.check(policy, &client)).collect();
            assert!(decisions.iter().all(|decision| !decision.degraded()), "{decisions:?}");
            let admitted = decisions.iter().filter(|decision| decision.allowed()).count();
            assert_eq!(u64::try_from(admitted).unwrap(), LIMIT);
        }
    }

    fn until_back(&self) {
        until("it is noticed that Redis is back", || !self.check("open", "someone").degraded());
    }

    fn until_down(&self) {
        until("it is noticed that Redis is away", || self.limiter.store().status().down.is_some());
    }

    fn was_told(&self) -> Vec<&'static str> {
        let word = |change: &Change| match change {
            Change::Down { .. } => "down",
            Change::Back => "back",
            _ => "?",
        };
        self.changes.lock().unwrap().iter().map(word).collect()
    }
}

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
    assert_eq!(node.was_told(), ["down", "back"]);
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

/// Time in the test's hands: not before the deadline, and not after it.
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
    assert!(node.check("open", "slow").degraded(), "longer than the deadline is a failure");
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
        assert_eq!(node.check("open", "a").remaining(), LIMIT - 4, "nothing was lost, and nothing taken");
        node.assert_exact();
    }
}

#[test]
fn e4_a_replica_that_only_reads() {
    let master = Redis::start(&[]);
    let replica = Redis::start(&["--replicaof", &format!("127.0.0.1 {}", master.port)]);
    until("the replica follows", || replica.cli(&["info", "replication"]).contains("master_link_status:up"));
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
fn e4_a_script_that_was_flushed_is_loaded_again_and_nobody_notices() {
    let redis = Redis::start(&[]);
    let node = Node::new(&redis.url());
    for _ in 0..LIMIT {
        assert_eq!(redis.cli(&["script", "flush"]), "OK");
        let decision = node.check("closed", "a");
        assert!(decision.allowed() && !decision.degraded());
    }
    assert!(!node.check("closed", "a").allowed());
}

#[test]
fn e4_sentinels_fail_over_in_mid_traffic() {
    let mut watched = Watched::start();
    let node = Node::new(&watched.url());
    node.assert_exact();
    // The planned kind: the old master lives on and only reads.
    let old = watched.sentinels[0].cli(&["sentinel", "get-master-addr-by-name", "main"]);
    until("the sentinels agree to", || watched.sentinels[0].cli(&["sentinel", "failover", "main"]) == "OK");
    until("another master is named", || {
        let _ = node.check("open", "traffic");
        watched
            .sentinels
            .iter()
            .all(|sentinel| sentinel.cli(&["sentinel", "get-master-addr-by-name", "main"]) != old)
    });
    node.until_back();
    node.assert_exact();
    // The other kind. The sentinels must first see the old master as a replica of the new one.
    let new = watched.sentinels[0].cli(&["sentinel", "get-master-addr-by-name", "main"]);
    let port: u16 = new.lines().last().unwrap().parse().unwrap();
    let master = watched.servers.iter().position(|server| server.port == port).unwrap();
    until("the old master follows", || cli(port, &["info", "replication"]).contains("state=online"));
    let other = watched.servers[1 - master].port;
    until("the sentinels know that", || {
        watched.sentinels.iter().all(|sentinel| {
            let replicas = sentinel.cli(&["sentinel", "replicas", "main"]);
            replicas.contains(&format!("127.0.0.1:{other}")) && replicas.contains("master-link-status\nok")
        })
    });
    watched.servers[master].kill();
    node.assert_degraded();
    node.until_back();
    node.assert_exact();
}

#[test]
fn e4_a_cluster_moves_a_slot_in_mid_traffic() {
    let cluster = Cluster::start();
    let node = Node::with_limit(&cluster.url(), Limit::fixed_window(1_000, HOUR));
    let key = format!("{{{}}}", "mover");
    let from = cluster.master_of(&key);
    let to = (0..6)
        .find(|node| *node != from && cluster.nodes[*node].cli(&["role"]).starts_with("master"))
        .unwrap();
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let id = |node: &Redis| node.cli(&["cluster", "myid"]);
    let slot = source.cli(&["cluster", "keyslot", &key]);
    let mut spent = 0;
    let mut check = || {
        let decision = node.check("closed", "mover");
        spent += 1;
        assert!(decision.allowed() && !decision.degraded(), "{decision:?}");
        assert_eq!(decision.remaining(), 1_000 - spent, "moved with everything in it");
    };
    (0..10).for_each(|_| check());
    assert_eq!(target.cli(&["cluster", "setslot", &slot, "importing", &id(source)]), "OK");
    assert_eq!(source.cli(&["cluster", "setslot", &slot, "migrating", &id(target)]), "OK");
    (0..10).for_each(|_| check());
    // ASK: the key is there already, the slot is not.
    let names = source.cli(&["cluster", "getkeysinslot", &slot, "10"]);
    for name in names.lines() {
        let port = target.port.to_string();
        assert_eq!(source.cli(&["migrate", "127.0.0.1", &port, name, "0", "5000"]), "OK");
    }
    (0..10).for_each(|_| check());
    // MOVED.
    for at in [target, source] {
        assert_eq!(at.cli(&["cluster", "setslot", &slot, "node", &id(target)]), "OK");
    }
    (0..10).for_each(|_| check());
}

#[test]
fn e4_a_cluster_loses_a_master_and_only_its_clients_notice() {
    let mut cluster = Cluster::start();
    let node = Node::new(&cluster.url());
    let lost = cluster.master_of("{someone}");
    let elsewhere: Vec<String> = (0..200)
        .map(|client| format!("client-{client}"))
        .filter(|client| cluster.master_of(&format!("{{{client}}}")) != lost)
        .take(5)
        .collect();
    elsewhere.iter().for_each(|client| assert!(!node.check("open", client).degraded()));
    assert!(!node.check("open", "someone").degraded());
    cluster.nodes[lost].kill();
    let open = node.check("open", "someone");
    assert!(open.allowed() && open.degraded());
    let closed = node.check("closed", "someone");
    assert!(!closed.allowed() && closed.degraded());
    for client in &elsewhere {
        assert!(!node.check("closed", client).degraded(), "{client} has a master");
    }
    node.until_back();
    node.assert_exact();
}

#[test]
fn e3_a_cluster_takes_from_every_slot_or_from_none() {
    let cluster = Cluster::start();
    let store =
        RedisStore::builder(&cluster.url()).unwrap().remember_denials(Duration::ZERO).build().unwrap();
    let rules = RuleSet::new([
        Rule::new("global", Limit::fixed_window(5, HOUR)),
        Rule::new("attempts", "100/h fixed counting denied".parse::<Limit>().unwrap()).key(["method"]),
        Rule::new("per-client", Limit::sliding_log(3, HOUR)).key(["client"]),
        Rule::new("watched", Limit::per(1, HOUR)).key(["path"]).shadow(),
    ]);
    let limiter = Limiter::builder(rules.unwrap()).store(store).clock(TokioClock).build().unwrap();
    let attributes = |client| [("client", client), ("method", "GET"), ("path", "/")];
    let check = |client| run(limiter.check_async(Request::new(&attributes(client)))).unwrap();
    let left = |decision: &Decision| -> Vec<u64> {
        decision.limits().iter().map(|report| report.outcome.remaining).collect()
    };
    assert_eq!(left(&check("a")), [4, 99, 2, 0]);
    assert_eq!(left(&check("a")), [3, 98, 1, 0], "the watched one has no room, and denies nobody");
    assert_eq!(left(&check("a")), [2, 97, 0, 0]);
    let denied = check("a");
    assert!(!denied.allowed() && !denied.degraded());
    assert_eq!(denied.rule().map(|rule| rule.to_string()).as_deref(), Some("per-client"));
    assert_eq!(left(&denied), [2, 96, 0, 0], "given back, but for the attempt");
    assert_eq!(left(&check("b")), [1, 95, 2, 0]);
    assert_eq!(left(&check("b")), [0, 94, 1, 0]);
    let denied = check("c");
    assert!(!denied.allowed());
    assert_eq!(left(&denied), [0, 93, 3, 0], "taken from nobody");
    let hold = run(limiter.reserve(Request::new(&attributes("c")), HOUR)).unwrap();
    assert!(!hold.decision().allowed());
    assert_eq!(left(hold.decision()), [0, 92, 3, 0]);
    // Whichever slot denies, and whichever comes before it: an attempt is an attempt.
    run(limiter.reset(Request::new(&[]).only("global"))).unwrap();
    let hold = run(limiter.reserve(Request::new(&attributes("a")), HOUR)).unwrap();
    assert!(!hold.decision().allowed());
    assert_eq!(left(hold.decision()), [5, 91, 0, 0]);
}

/// A host that accepts connections and says nothing.
fn silent() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn e4_one_sentinel_or_seed_that_hangs_keeps_nobody_from_the_others() {
    let silent = silent();
    let silent = silent.local_addr().unwrap();
    let watched = Watched::start();
    let node = Node::new(&watched.url().replace("redis+sentinel://", &format!("redis+sentinel://{silent},")));
    node.until_back();
    node.assert_exact();
    let cluster = Cluster::start();
    let node = Node::new(&cluster.url().replace("redis+cluster://", &format!("redis+cluster://{silent},")));
    node.until_back();
    node.assert_exact();
}

#[test]
fn e4_another_runtime_takes_over_when_the_one_that_was_trying_ends() {
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
    until("the other one has found it", || {
        !second.block_on(node.limiter.check_async(Request::new(&attributes))).unwrap().degraded()
    });
}

/// A Redis behind a proxy that, once told to, breaks the connection instead of handing on an answer.
struct Breaking {
    redis: Redis,
    armed: Arc<AtomicBool>,
}

impl Breaking {
    /// `settings` for a server that is reached through `PORT`, the proxy's.
    fn start(settings: &[&str]) -> (Self, u16) {
        let proxy = silent();
        let port = proxy.local_addr().unwrap().port();
        let settings: Vec<String> =
            settings.iter().map(|setting| setting.replace("PROXY", &port.to_string())).collect();
        let redis = Redis::start(&settings.iter().map(String::as_str).collect::<Vec<_>>());
        let armed = Arc::new(AtomicBool::new(false));
        let (behind, breaks) = (redis.port, armed.clone());
        std::thread::spawn(move || {
            for client in proxy.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(("127.0.0.1", behind)).unwrap();
                let (mut requests, mut to_server) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut requests, &mut to_server));
                let breaks = breaks.clone();
                std::thread::spawn(move || answer(server, client, &breaks));
            }
        });
        (Self { redis, armed }, port)
    }
}

fn answer(mut server: TcpStream, mut client: TcpStream, breaks: &AtomicBool) {
    let mut buffer = [0; 65_536];
    while let Ok(read @ 1..) = server.read(&mut buffer) {
        if breaks.swap(false, Ordering::SeqCst) {
            let _ = client.shutdown(std::net::Shutdown::Both);
            return;
        }
        if client.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
}

#[test]
fn b9_what_may_have_been_executed_is_not_sent_again() {
    let in_cluster = [
        "--cluster-enabled",
        "yes",
        "--cluster-announce-port",
        "PROXY",
        "--cluster-announce-ip",
        "127.0.0.1",
    ];
    for (settings, scheme) in [(&[][..], "redis"), (&in_cluster[..], "redis+cluster")] {
        let (breaking, port) = Breaking::start(settings);
        if scheme == "redis+cluster" {
            assert_eq!(breaking.redis.cli(&["cluster", "addslotsrange", "0", "16383"]), "OK");
            until("it is a cluster", || {
                breaking.redis.cli(&["cluster", "info"]).contains("cluster_state:ok")
            });
        }
        let node = Node::new(&format!("{scheme}://127.0.0.1:{port}"));
        assert_eq!(node.check("open", "a").remaining(), 7);
        breaking.armed.store(true, Ordering::SeqCst);
        assert!(node.check("open", "a").degraded(), "the answer was lost on the way");
        let attributes = [("policy", "open"), ("client", "a")];
        until("it is back", || !run(node.limiter.peek(Request::new(&attributes))).unwrap().degraded());
        assert_eq!(node.check("open", "a").remaining(), 5, "{scheme}: once, not twice");
    }
}
