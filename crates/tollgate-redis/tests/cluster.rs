//! A Cluster that changes, breaks and spans slots, and what is sent to it; hosts that hang.

mod common;
mod node;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{Cluster, Redis, Watched, until};
use node::Node;
use tollgate::{Clock as _, Decision, HOUR, Limit, Limiter, Request, Rule, RuleSet, Store as _, TokioClock};
use tollgate_redis::RedisStore;
use tollgate_testkit::run;

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

/// The keys of a rule lie on every master.
#[test]
fn a_rule_is_cleared_and_blocks_are_found_on_every_node_of_a_cluster() {
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
        run(store.blocks(1_000, now)).unwrap().into_iter().map(|block| block.value).collect();
    blocked.sort();
    let mut all = clients.clone();
    all.sort();
    assert_eq!(blocked, all);
    assert_eq!(run(store.clear("closed")), Ok(100));
    assert_eq!(run(store.clear("closed")), Ok(0));
    for client in &clients {
        assert_eq!(node.check("closed", client).remaining(), node::LIMIT - 1);
        assert!(!node.check("open", client).allowed(), "another rule's block");
    }
}
