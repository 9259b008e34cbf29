//! A Cluster under resharding and failover, requests that span its slots, hosts that hang, and
//! commands that must not be sent twice.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Cluster, Redis, Sentinels, until};
use crate::node::Node;
use tollgate::{
    Clock as _, Decision, HOUR, Limit, Limiter, OnExpiry, Request, Rule, RuleSet, SECOND, Store as _,
    TokioClock,
};
use tollgate_redis::RedisStore;
use tollgate_testkit::run;

#[test]
fn e4_a_slot_migrates_under_traffic_and_no_check_fails() {
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
        assert_eq!(decision.remaining(), 1_000 - spent, "the state moves with the slot");
    };
    (0..10).for_each(|_| check());
    assert_eq!(target.cli(&["cluster", "setslot", &slot, "importing", &id(source)]), "OK");
    assert_eq!(source.cli(&["cluster", "setslot", &slot, "migrating", &id(target)]), "OK");
    (0..10).for_each(|_| check());
    // ASK: the key has migrated, the slot has not.
    let names = source.cli(&["cluster", "getkeysinslot", &slot, "10"]);
    for name in names.lines() {
        let port = target.port.to_string();
        assert_eq!(source.cli(&["migrate", "127.0.0.1", &port, name, "0", "5000"]), "OK");
    }
    (0..10).for_each(|_| check());
    // MOVED: the slot has migrated.
    for at in [target, source] {
        assert_eq!(at.cli(&["cluster", "setslot", &slot, "node", &id(target)]), "OK");
    }
    (0..10).for_each(|_| check());
}

#[test]
fn e4_a_lost_master_degrades_only_the_clients_of_its_slots() {
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
        assert!(!node.check("closed", client).degraded(), "the master of {client} is alive");
    }
    node.until_back();
    node.assert_exact();
}

#[test]
fn e3_a_request_takes_from_every_slot_or_from_none() {
    let cluster = Cluster::start();
    let store =
        RedisStore::builder(&cluster.url()).unwrap().remember_denials(Duration::ZERO).build().unwrap();
    let rules = RuleSet::new([
        Rule::new("global", Limit::fixed_window(5, HOUR)),
        Rule::new("attempts", "100/h fixed counting denied".parse::<Limit>().unwrap()).key(["method"]),
        Rule::new("per-client", Limit::sliding_log(3, HOUR)).key(["client"]),
        Rule::new("watched", Limit::per(1, HOUR)).key(["path"]).shadow(),
    ]);
    let limiter = Limiter::builder(rules.unwrap())
        .store(store)
        .clock(TokioClock)
        .deadline(10 * SECOND)
        .build()
        .unwrap();
    let attributes = |client| [("client", client), ("method", "GET"), ("path", "/")];
    let check = |client| run(limiter.check_async(Request::new(&attributes(client)))).unwrap();
    let left = |decision: &Decision| -> Vec<u64> {
        decision.limits().iter().map(|report| report.outcome.remaining).collect()
    };
    assert_eq!(left(&check("a")), [4, 99, 2, 0]);
    assert_eq!(left(&check("a")), [3, 98, 1, 0], "the shadow rule has no room, and does not deny");
    assert_eq!(left(&check("a")), [2, 97, 0, 0]);
    let denied = check("a");
    assert!(!denied.allowed() && !denied.degraded());
    assert_eq!(denied.rule().map(|rule| rule.to_string()).as_deref(), Some("per-client"));
    assert_eq!(left(&denied), [2, 96, 0, 0], "given back, except the counted attempt");
    assert_eq!(left(&check("b")), [1, 95, 2, 0]);
    assert_eq!(left(&check("b")), [0, 94, 1, 0]);
    let denied = check("c");
    assert!(!denied.allowed());
    assert_eq!(left(&denied), [0, 93, 3, 0], "nothing is taken");
    let hold = run(limiter.reserve(Request::new(&attributes("c")), HOUR, OnExpiry::GiveBack)).unwrap();
    assert!(!hold.decision().allowed());
    assert_eq!(left(hold.decision()), [0, 92, 3, 0]);
    // The attempt counts, whether its slot comes before or after the slot that denies.
    run(limiter.reset(Request::new(&[]).only("global"))).unwrap();
    let hold = run(limiter.reserve(Request::new(&attributes("a")), HOUR, OnExpiry::GiveBack)).unwrap();
    assert!(!hold.decision().allowed());
    assert_eq!(left(hold.decision()), [5, 91, 0, 0]);
}

/// The slots of half of these clients come after the slot that denies.
#[test]
fn c7_a_denied_reservation_records_no_cost_in_any_slot() {
    let cluster = Cluster::start();
    let rules = RuleSet::new([
        Rule::new("global", Limit::fixed_window(5, HOUR)),
        Rule::new("recording", Limit::fixed_window(5, HOUR)).key(["client"]).record_denied(),
    ]);
    let limiter = Limiter::builder(rules.unwrap())
        .store(RedisStore::open(&cluster.url()).unwrap())
        .clock(TokioClock)
        .deadline(10 * SECOND)
        .build()
        .unwrap();
    for client in (0..20).map(|client| format!("client-{client}")) {
        let request = Request::client(&client).cost(6);
        let hold = run(limiter.reserve(request, HOUR, OnExpiry::GiveBack)).unwrap();
        assert!(!hold.decision().allowed() && !hold.decision().degraded());
        assert_eq!(run(limiter.peek(request)).unwrap().owed(), 0, "{client}");
    }
}

/// A host that accepts connections and sends nothing.
fn silent() -> TcpListener {
    TcpListener::bind("127.0.0.1:0").unwrap()
}

#[test]
fn e4_a_sentinel_or_seed_that_hangs_does_not_block_the_others() {
    let silent = silent();
    let silent = silent.local_addr().unwrap();
    let watched = Sentinels::start();
    let node = Node::new(&watched.url().replace("redis+sentinel://", &format!("redis+sentinel://{silent},")));
    node.until_back();
    node.assert_exact();
    let cluster = Cluster::start();
    let node = Node::new(&cluster.url().replace("redis+cluster://", &format!("redis+cluster://{silent},")));
    node.until_back();
    node.assert_exact();
}

/// A Redis behind a proxy that, once armed, drops the connection instead of forwarding an answer.
struct BreakingProxy {
    redis: Redis,
    armed: Arc<AtomicBool>,
}

impl BreakingProxy {
    /// Starts both. `PROXY` in `settings` stands for the proxy's port.
    fn start(settings: &[&str]) -> (Self, u16) {
        let proxy = silent();
        let port = proxy.local_addr().unwrap().port();
        let settings: Vec<String> =
            settings.iter().map(|setting| setting.replace("PROXY", &port.to_string())).collect();
        let redis = Redis::start(&settings.iter().map(String::as_str).collect::<Vec<_>>());
        let armed = Arc::new(AtomicBool::new(false));
        let (upstream, armed_here) = (redis.port, armed.clone());
        std::thread::spawn(move || {
            for client in proxy.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(("127.0.0.1", upstream)).unwrap();
                let (mut requests, mut to_server) =
                    (client.try_clone().unwrap(), server.try_clone().unwrap());
                std::thread::spawn(move || std::io::copy(&mut requests, &mut to_server));
                let armed = armed_here.clone();
                std::thread::spawn(move || forward_answers(server, client, &armed));
            }
        });
        (Self { redis, armed }, port)
    }
}

fn forward_answers(mut server: TcpStream, mut client: TcpStream, armed: &AtomicBool) {
    let mut buffer = [0; 65_536];
    while let Ok(read @ 1..) = server.read(&mut buffer) {
        if armed.swap(false, Ordering::SeqCst) {
            let _ = client.shutdown(std::net::Shutdown::Both);
            return;
        }
        if client.write_all(&buffer[..read]).is_err() {
            return;
        }
    }
}

#[test]
fn b9_a_command_that_may_have_been_executed_is_not_sent_again() {
    let in_cluster = [
        "--cluster-enabled",
        "yes",
        "--cluster-announce-port",
        "PROXY",
        "--cluster-announce-ip",
        "127.0.0.1",
    ];
    for (settings, scheme) in [(&[][..], "redis"), (&in_cluster[..], "redis+cluster")] {
        let (proxy, port) = BreakingProxy::start(settings);
        if scheme == "redis+cluster" {
            assert_eq!(proxy.redis.cli(&["cluster", "addslotsrange", "0", "16383"]), "OK");
            until("the cluster is up", || proxy.redis.cli(&["cluster", "info"]).contains("cluster_state:ok"));
        }
        let node = Node::new(&format!("{scheme}://127.0.0.1:{port}"));
        assert_eq!(node.check("open", "a").remaining(), 7);
        proxy.armed.store(true, Ordering::SeqCst);
        assert!(node.check("open", "a").degraded(), "the answer is lost");
        let attributes = [("policy", "open"), ("client", "a")];
        until("Redis is back", || !run(node.limiter.peek(Request::new(&attributes))).unwrap().degraded());
        assert_eq!(node.check("open", "a").remaining(), 5, "{scheme}: executed once");
    }
}

/// Its units come back when it expires.
#[test]
fn c5_a_guard_that_is_dropped_outside_of_a_runtime_does_not_panic() {
    let (single, cluster) = (Redis::start(&[]), Cluster::start());
    for url in [single.url(), cluster.url()] {
        let node = Node::new(&url);
        let attributes = [("policy", "open"), ("client", "a")];
        let hold = run(node.limiter.reserve(Request::new(&attributes), HOUR, OnExpiry::GiveBack)).unwrap();
        assert!(hold.decision().allowed() && !hold.decision().degraded());
        drop(hold);
        node.assert_exact();
    }
}

#[test]
fn clearing_a_rule_and_listing_blocks_reach_every_master() {
    let cluster = Cluster::start();
    let node = Node::new(&cluster.url());
    let store = node.limiter.store();
    let clients: Vec<String> = (0..100).map(|number| format!("client-{number}")).collect();
    for client in &clients {
        assert!(!node.check("closed", client).degraded());
        let _ = node.check("open", client);
        let attributes = [("policy", "open"), ("client", client.as_str())];
        run(node.limiter.block(Request::new(&attributes), HOUR)).unwrap();
    }
    let now = TokioClock.now();
    let mut blocked: Vec<String> =
        run(store.blocks(1_000, now)).unwrap().blocks.into_iter().map(|block| block.value).collect();
    blocked.sort();
    let mut all = clients.clone();
    all.sort();
    assert_eq!(blocked, all);
    assert_eq!(run(store.clear("closed")), Ok(100));
    assert_eq!(run(store.clear("closed")), Ok(0));
    for client in &clients {
        assert_eq!(node.check("closed", client).remaining(), crate::node::LIMIT - 1);
        assert!(!node.check("open", client).allowed(), "the block of another rule stays");
    }
}

#[test]
fn clearing_a_rule_fails_if_a_master_is_down() {
    let settings = ["--cluster-enabled", "yes", "--cluster-require-full-coverage", "no"];
    let [first, mut second] = [0; 2].map(|_| Redis::start(&settings));
    for (node, [from, to]) in [(&first, ["0", "8191"]), (&second, ["8192", "16383"])] {
        assert_eq!(node.cli(&["cluster", "addslotsrange", from, to]), "OK");
    }
    assert_eq!(second.cli(&["cluster", "meet", "127.0.0.1", &first.port.to_string()]), "OK");
    until("both nodes know all slots", || {
        [&first, &second].iter().all(|node| {
            let info = node.cli(&["cluster", "info"]);
            info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384")
        })
    });
    let url = format!("redis+cluster://127.0.0.1:{}", first.port);
    assert_eq!(run(Node::new(&url).limiter.store().clear("open")), Ok(0));
    second.kill();
    let cleared = run(Node::new(&url).limiter.store().clear("open"));
    let error = cleared.expect_err("one of two masters was asked").to_string();
    assert!(error.contains("1 of 2") && error.contains("try again"), "{error}");
}

#[test]
fn d3_an_overflow_into_another_slot_is_refused_and_one_in_the_same_slot_is_atomic() {
    let plan = Rule::new("plan", Limit::fixed_window(10, HOUR)).key(["org", "client"]).overflow("credits");
    let credits =
        |key: &[&'static str]| Rule::new("credits", Limit::fixed_window(20, HOUR)).key(key.iter().copied());
    let cluster = Cluster::start();
    let build = |credits: Rule, url: &str| {
        let global = Rule::new("global", Limit::fixed_window(25, HOUR));
        let rules = RuleSet::new([global, plan.clone(), credits]).unwrap();
        Limiter::builder(rules).store(RedisStore::open(url).unwrap()).clock(TokioClock).deadline(HOUR).build()
    };
    let error = build(credits(&["org"]), &cluster.url()).unwrap_err().to_string();
    assert!(error.contains("write the same key in both"), "{error}");
    assert!(build(credits(&["org"]), "redis://127.0.0.1:1").is_ok(), "one server reaches both");
    let limiter = build(credits(&["org", "client"]), &cluster.url()).unwrap();
    let left = |decision: &Decision| -> Vec<u64> {
        decision.limits().iter().map(|limit| limit.outcome.remaining).collect()
    };
    // Whichever slot comes first, what the other denies is given back to both parts.
    for client in ["a", "b", "c", "d", "e", "f"] {
        let attributes = [("org", "o"), ("client", client)];
        let request = |cost| Request::new(&attributes).cost(cost);
        let denied = run(limiter.check_async(request(26))).unwrap();
        assert_eq!((denied.allowed(), left(&denied)), (false, vec![25, 10, 20]), "{client}");
        let reserved = run(limiter.reserve(request(26), HOUR, OnExpiry::Keep)).unwrap();
        assert!(!reserved.decision().allowed());
        assert_eq!(left(&run(limiter.peek(request(0))).unwrap()), [25, 10, 20], "{client}");
    }
    let attributes = [("org", "o"), ("client", "a")];
    let admitted = run(limiter.check_async(Request::new(&attributes).cost(12))).unwrap();
    assert_eq!((admitted.allowed(), left(&admitted)), (true, vec![13, 0, 18]));
}
