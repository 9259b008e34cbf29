//! Sentinels that name another master while the old one still answers.

use crate::common::proxy::Proxy;
use crate::common::{Redis, Sentinels, until};
use crate::node::Node;
use tollgate_redis::Change;

/// Scripts that a server ran.
fn scripts(server: &Redis) -> u64 {
    let stats = server.cli(&["info", "commandstats"]);
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls=")?.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

fn is_master(server: &Redis) -> bool {
    server.cli(&["role"]).starts_with("master")
}

/// The masters to which a node moved.
fn moves(node: &Node) -> Vec<String> {
    let to = |change: Change| match change {
        Change::Moved { to, .. } => Some(to),
        _ => None,
    };
    node.all_changes().into_iter().filter_map(to).collect()
}

fn address(server: &Redis) -> String {
    format!("127.0.0.1:{}", server.port)
}

/// A planned failover: Sentinels turn the old master into a replica only after 8 seconds, and until
/// then it admits what nobody else knows of.
#[test]
fn e4_a_master_that_was_replaced_is_left_while_it_still_answers_as_a_master() {
    let group = Sentinels::start();
    let node = Node::new(&group.url());
    node.assert_exact();
    let [old, new] = &group.servers[..] else { panic!("a master and a replica") };
    group.fail_over();
    until("the node has moved", || {
        assert!(!node.check("open", "traffic").degraded());
        !moves(&node).is_empty()
    });
    assert!(is_master(old), "the old master was left before it was told");
    assert_eq!(moves(&node), [address(new)]);
    assert_eq!(node.limiter.store().status().master_switches, 1);
    let before = scripts(old);
    node.assert_exact();
    assert_eq!(scripts(old), before);
    assert_eq!(node.changes(), [""; 0], "no breaker opened");
    until("the old master is a replica", || !is_master(old));
    node.assert_exact();
}

/// The Sentinels cannot log in to the master any more. The node can.
#[test]
fn e4_a_master_that_the_sentinels_lost_sight_of_is_left_for_good() {
    let group = Sentinels::start();
    for server in &group.servers {
        assert_eq!(server.cli(&["acl", "setuser", "app", "on", ">secret", "~*", "+@all"]), "OK");
    }
    let node = Node::new(&group.url().replace("://", "://app:secret@"));
    node.assert_exact();
    let [old, new] = &group.servers[..] else { panic!("a master and a replica") };
    let as_app = |arguments: &[&str]| {
        old.cli(&[&["--user", "app", "--pass", "secret", "--no-auth-warning"], arguments].concat())
    };
    assert_eq!(as_app(&["acl", "setuser", "default", "off"]), "OK");
    for kind in ["normal", "pubsub"] {
        assert!(as_app(&["client", "kill", "type", kind, "user", "default"]).parse::<u64>().is_ok());
    }
    until("the node has moved", || {
        let _ = node.check("open", "traffic");
        moves(&node) == [address(new)]
    });
    assert!(as_app(&["role"]).starts_with("master"), "the old master lives, and was never told");
    node.until_back();
    node.assert_exact();
    assert_eq!(node.limiter.store().status().master_switches, 1);
}

/// Points a Sentinel at another master.
fn point(sentinel: &Redis, master: &Redis) {
    assert_eq!(sentinel.cli(&["sentinel", "remove", "main"]), "OK");
    let port = master.port.to_string();
    assert_eq!(sentinel.cli(&["sentinel", "monitor", "main", "127.0.0.1", &port, "1"]), "OK");
}

#[test]
fn e4_one_sentinel_alone_moves_nobody_and_a_majority_does() {
    let group = Sentinels::start();
    let other = Redis::start(&[]);
    let [alone, second, _] = &group.sentinels[..] else { panic!("three sentinels") };
    // The bytes that it is sent tell how often it is asked.
    let proxy = Proxy::start(alone.port);
    let node = Node::new(&group.url().replace(&alone.port.to_string(), &proxy.port.to_string()));
    node.assert_exact();
    point(alone, &other);
    let before = proxy.bytes();
    until("the sentinel was asked a few times", || proxy.bytes() > before + 500);
    node.assert_exact();
    assert_eq!((moves(&node), scripts(&other)), (Vec::new(), 0));
    // A new process does not trust it either.
    let late = Node::new(&group.url());
    late.assert_exact();
    assert_eq!(scripts(&other), 0);
    point(second, &other);
    for node in [&node, &late] {
        until("the node has moved", || moves(node) == [address(&other)]);
        node.assert_exact();
    }
}

/// What a replica refuses was not executed, so it is sent to the new master at once.
#[test]
fn e4_a_demoted_master_degrades_no_check() {
    let group = Sentinels::start();
    let other = Redis::start(&[]);
    let node = Node::new(&group.url());
    node.assert_exact();
    let [old, _] = &group.servers[..] else { panic!("a master and a replica") };
    group.sentinels.iter().for_each(|sentinel| point(sentinel, &other));
    assert_eq!(old.cli(&["replicaof", "127.0.0.1", &other.port.to_string()]), "OK");
    node.assert_exact();
    assert_eq!(node.changes(), [""; 0], "no breaker opened");
    assert_eq!(moves(&node), [address(&other)]);
}

#[test]
fn e4_sentinels_that_are_gone_do_not_cost_a_living_master() {
    let mut group = Sentinels::start();
    let node = Node::new(&group.url());
    node.assert_exact();
    group.sentinels.clear();
    for _ in 0..3 {
        node.assert_exact();
    }
    assert_eq!((node.changes(), moves(&node)), (Vec::new(), Vec::new()));
}
