//! What the store says of itself is what checks get: refused commands, passwords, TLS.

use std::time::Duration;

use crate::common::proxy::Proxy;
use crate::common::{Cluster, Redis, Sentinels, until};
use crate::node::{LIMIT, Node};
use crate::reach::{COMMANDS, Certificates};
use tollgate::{HOUR, Limit};
use tollgate_testkit::run;

/// A server with a user who may run `commands`, and that user's URL.
fn with_user(commands: &str) -> (Redis, String) {
    let redis = Redis::start(&[]);
    let mut acl = vec!["acl", "setuser", "tollgate", "on", ">secret", "~fail-*", "-@all"];
    acl.extend(commands.split(' '));
    assert_eq!(redis.cli(&acl), "OK");
    let url = format!("redis://tollgate:secret@127.0.0.1:{}", redis.port);
    (redis, url)
}

#[test]
fn e4_each_command_that_a_user_may_not_run_is_named_at_the_start() {
    let (redis, url) = with_user(COMMANDS);
    let node = Node::new(&url);
    assert_eq!(run(node.limiter.store().ping()), Ok(()));
    for command in COMMANDS.split(' ').filter(|command| *command != "+eval") {
        let command = command.trim_start_matches('+');
        assert_eq!(redis.cli(&["acl", "setuser", "tollgate", &format!("-{command}")]), "OK");
        let node = Node::new(&url);
        let refused = run(node.limiter.store().ping()).unwrap_err().to_string();
        let down = node.down().unwrap();
        for text in [&refused, &down] {
            assert!(text.contains("NOPERM") && text.contains(&format!("'{command}'")), "{command}: {text}");
        }
        assert!(command == "evalsha" || down.contains(&format!("+{command}")), "{down}");
        node.assert_degraded();
        assert_eq!(redis.cli(&["acl", "setuser", "tollgate", &format!("+{command}")]), "OK");
        node.until_back();
    }
    node.until_back();
    assert_eq!(redis.cli(&["keys", "*probe*"]), "", "a probe leaves nothing behind");
}

#[test]
fn e4_a_command_that_is_refused_later_is_named_too() {
    let (redis, url) = with_user(COMMANDS);
    let node = Node::with_limit(&url, Limit::sliding_log(LIMIT, HOUR));
    node.assert_exact();
    assert_eq!(redis.cli(&["acl", "setuser", "tollgate", "-rpush"]), "OK");
    until("the store says what is missing", || {
        let _ = node.check("open", "a");
        node.down().is_some_and(|down| down.contains("'rpush'"))
    });
    node.assert_degraded();
    assert_eq!(redis.cli(&["acl", "setuser", "tollgate", "+rpush"]), "OK");
    node.until_back();
    node.assert_exact();
}

#[test]
fn e4_a_command_that_is_renamed_is_named() {
    for (command, name) in [("EVALSHA", "EVALSHA"), ("RPUSH", "rpush"), ("PEXPIRE", "pexpire")] {
        let redis = Redis::start(&["--rename-command", command, ""]);
        let node = Node::new(&redis.url());
        node.assert_degraded();
        node.until_down();
        let down = node.down().unwrap();
        assert!(down.contains("unknown command") && down.contains(&format!("'{name}'")), "{down}");
        assert!(run(node.limiter.store().ping()).is_err());
    }
}

/// No check is sent, and nobody asks.
#[test]
fn e4_an_idle_store_notices_that_its_password_was_changed() {
    let redis = Redis::start(&[]);
    let set = |password: &str| {
        let ways = [&[][..], &["--no-auth-warning", "-a", "first"], &["--no-auth-warning", "-a", "second"]];
        let command = ["config", "set", "requirepass", password];
        assert!(ways.iter().any(|login| redis.cli(&[login, &command[..]].concat()) == "OK"));
        let kill = ["--no-auth-warning", "-a", password, "client", "kill", "type", "normal"];
        assert!(redis.cli(&kill).parse::<u64>().is_ok());
    };
    set("first");
    let node = Node::new(&redis.url().replace("redis://", "redis://:first@"));
    assert!(!node.check("open", "a").degraded());
    set("second");
    until("the store says so", || node.down().is_some_and(|down| down.contains("WRONGPASS")));
    set("first");
    until("the store says so", || node.down().is_none());
    assert!(!node.check("open", "a").degraded());
}

#[test]
fn e4_redis_own_sentence_says_why_a_login_failed() {
    let redis = Redis::start(&["--requirepass", "secret"]);
    let cluster = Cluster::start();
    let sentinels = Sentinels::start();
    for server in cluster.nodes.iter().chain(&sentinels.servers) {
        assert_eq!(server.cli(&["acl", "setuser", "default", "resetpass", ">secret"]), "OK");
    }
    for url in [redis.url(), cluster.url(), sentinels.url()] {
        let wrong = url.replace("://", "://:not-the-one@");
        let sentences =
            [(&url, "NOAUTH Authentication required"), (&wrong, "WRONGPASS invalid username-password")];
        for (url, sentence) in sentences {
            let node = Node::new(url);
            node.assert_degraded();
            until("the store says why", || node.down().is_some_and(|down| down.contains(sentence)));
            assert!(!node.down().unwrap().contains("not-the-one"));
        }
        Node::new(&url.replace("://", "://:secret@")).until_back();
    }
}

#[test]
fn e4_tls_on_one_side_only_is_said() {
    let plain = Redis::start(&[]);
    let node = Node::new(&format!("rediss://127.0.0.1:{}", plain.port));
    node.assert_degraded();
    let down = node.down().unwrap();
    assert!(down.contains("does not speak TLS") && down.contains("redis://"), "{down}");
    let certificates = Certificates::new();
    let secure = certificates.server();
    let node = Node::new(&format!("redis://127.0.0.1:{}", secure.port));
    node.assert_degraded();
    let down = node.down().unwrap();
    assert!(down.contains("rediss://"), "{down}");
}

#[test]
fn d2_a_ca_that_is_no_certificate_is_refused_before_anything_is_dialled() {
    let file = std::env::temp_dir().join(format!("tollgate-ca-{}", crate::common::unique()));
    for text in ["", "no certificate", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"] {
        std::fs::write(&file, text).unwrap();
        let error =
            tollgate_redis::RedisStore::open(&format!("rediss://h?ca={}", file.display())).unwrap_err();
        assert!(error.to_string().contains("a PEM file with a certificate"), "{error}");
    }
    std::fs::remove_file(file).unwrap();
}

/// The script has 87 kB.
#[test]
fn e4_a_probe_is_small_also_while_the_breaker_is_open() {
    const PROBES: u64 = 50;
    let redis = Redis::start(&[]);
    let proxy = Proxy::start(redis.port);
    let node = Node::new(&proxy.url());
    node.until_back();
    let before = proxy.bytes();
    (0..PROBES).for_each(|_| assert_eq!(run(node.limiter.store().ping()), Ok(())));
    let bytes = (proxy.bytes() - before) / PROBES;
    assert!(bytes < 300, "a probe has {bytes} bytes");
    // A probe of an open breaker is one on the old connection, and one on a new one.
    redis.cli(&["config", "set", "maxmemory", "1"]);
    node.assert_degraded();
    let before = proxy.bytes();
    let probes = || -> u64 {
        let stats = redis.cli(&["info", "commandstats"]);
        let calls = stats.lines().filter_map(|line| line.strip_prefix("cmdstat_eval")?.split_once(":calls="));
        calls.map(|(_, rest)| rest.split(',').next().unwrap().parse::<u64>().unwrap()).sum()
    };
    let first = probes();
    until("it is probed", || probes() >= first + 10);
    let bytes = (proxy.bytes() - before) / (probes() - first);
    assert!(bytes < 600, "a probe of an open breaker has {bytes} bytes");
    redis.cli(&["config", "set", "maxmemory", "0"]);
    node.until_back();
    node.assert_exact();
}

/// It is measured by the deadline, and told once.
#[test]
fn e4_a_redis_that_is_nearly_too_far_away_is_told_at_the_start() {
    let redis = Redis::start(&[]);
    let proxy = Proxy::start(redis.port);
    let is_slow = |node: &Node| {
        let is_slow =
            |change: &&tollgate_redis::Change| matches!(change, tollgate_redis::Change::Slow { .. });
        node.all_changes().iter().filter(is_slow).count()
    };
    let deadline = Duration::from_secs(2);
    let near = Node::with(&proxy.url(), Limit::fixed_window(LIMIT, HOUR), deadline, deadline);
    near.assert_exact();
    proxy.set_delay(Duration::from_millis(550), Duration::ZERO);
    let far = Node::with(&proxy.url(), Limit::fixed_window(LIMIT, HOUR), deadline, deadline);
    assert!(!far.check("open", "a").degraded());
    until("it is told", || is_slow(&far) == 1);
    let round_trip = far.limiter.store().status().round_trip.unwrap();
    assert!(round_trip >= Duration::from_millis(1_100), "{round_trip:?}");
    assert_eq!(is_slow(&near), 0);
}
