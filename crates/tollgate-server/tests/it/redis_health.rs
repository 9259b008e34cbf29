//! What a server says of its Redis is what checks get: in the log, in `/readyz`, in the metrics and
//! to administrators.

use std::process::Command;
use std::time::Duration;

use crate::common::{Server, TOLLGATE, directory, eventually};
use crate::redis_server::proxy::Proxy;
use crate::redis_server::{Redis, Sentinels, until};
use serde_json::json;

/// The commands that docs/fleet.md tells operators to allow.
fn documented() -> Vec<&'static str> {
    let fleet = include_str!("../../../../docs/fleet.md");
    let line = fleet.lines().find(|line| line.contains("ACL SETUSER tollgate")).unwrap();
    line.split(' ').filter(|word| word.starts_with(['+', '-'])).collect()
}

/// A Redis with a user who may run what the documentation says.
fn with_user() -> (Redis, String) {
    let redis = Redis::start(&[]);
    let user = ["acl", "setuser", "tollgate", "on", ">secret", "~tollgate:*"];
    assert_eq!(redis.cli(&[&user[..], &documented()[..]].concat()), "OK");
    let url = format!("redis://tollgate:secret@127.0.0.1:{}", redis.port);
    (redis, url)
}

fn server(url: &str) -> Server {
    let mut command = Command::new(TOLLGATE);
    command.args(["serve", "--redis", url]).env("TOLLGATE_SERVER_LOG_FORMAT", "json");
    Server::logging(command.env("TOLLGATE_STORE_DEADLINE", "5s"))
}

#[test]
fn e4_health_is_red_while_nothing_is_limited() {
    let (redis, url) = with_user();
    let refuse = |command: &str| assert_eq!(redis.cli(&["acl", "setuser", "tollgate", command]), "OK");
    for command in ["evalsha", "pexpire", "rpush"] {
        refuse(&format!("-{command}"));
        let mut server = server(&url);
        let line = server.log_line("Redis is away");
        assert!(line.contains("NOPERM") && line.contains(&format!("'{command}'")), "{line}");
        let ready = server.get("/readyz");
        assert_eq!(ready.status, 503);
        assert!(ready.body.contains("refuses requests (NOPERM)"), "{ready:?}");
        assert!(server.metric("tollgate_redis_up") < 0.5);
        let stats = server.admin("GET", "/v1/stats", None).json();
        assert!(stats["storeDown"].as_str().unwrap().contains(command), "{stats}");
        assert_eq!(server.get("/check/a").json()["degraded"], true);
        refuse(&format!("+{command}"));
        server.log_line("Redis is back");
        until("it is ready", || server.get("/readyz").status == 200);
        assert!(server.metric("tollgate_redis_up") > 0.5);
        assert_eq!(server.get("/check/a").json()["degraded"], false);
    }
}

/// No request but that for the metrics.
#[test]
fn e4_a_changed_password_is_noticed_without_traffic() {
    let (redis, url) = with_user();
    let mut server = server(&url);
    eventually("it is up", || {
        server.metric("tollgate_redis_up") > 0.5 && server.get("/readyz").status == 200
    });
    assert_eq!(redis.cli(&["acl", "setuser", "tollgate", "resetpass", ">another"]), "OK");
    assert_eq!(redis.cli(&["client", "kill", "user", "tollgate"]), "1");
    eventually("it is down", || server.metric("tollgate_redis_up") < 0.5);
    let line = server.log_line("WRONGPASS");
    assert!(line.contains("WARN") && !line.contains("secret"), "{line}");
    let ready = server.get("/readyz");
    assert!(ready.status == 503 && ready.body.contains("(WRONGPASS)"), "{ready:?}");
}

#[test]
fn e4_a_verb_that_failed_says_why_to_an_administrator_in_the_log_and_in_a_metric() {
    let (mut redis, url) = with_user();
    let mut server = server(&url);
    assert_eq!(server.get("/check/a").status, 200);
    let before = server.metric("tollgate_store_errors_total");
    let cleared = server.admin("DELETE", "/v1/rules/per-client/state", None);
    assert_eq!(cleared.status, 503);
    let detail = cleared.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("NOPERM") && detail.contains("'scan'"), "{detail}");
    let line = server.log_line("the store failed");
    assert!(line.contains("NOPERM") && line.contains("'scan'"), "{line}");
    assert!((server.metric("tollgate_store_errors_total") - before - 1.0).abs() < 0.5);
    assert!(server.metric("tollgate_redis_up") > 0.5, "checks are not concerned");
    redis.kill();
    for (method, path) in
        [("DELETE", "/v1/clients/a"), ("PUT", "/v1/clients/a/block"), ("GET", "/v1/clients/a")]
    {
        let failed = server.admin(method, path, (method == "PUT").then_some(&json!({ "for": "1m" })));
        assert_eq!(failed.status, 503, "{failed:?}");
        let detail = failed.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains("refused") || detail.contains("broken pipe"), "{path}: {detail}");
    }
    // A client is not told.
    let refused = server.post("/v1/check", &json!({ "attributes": { "client": "a" } }));
    assert!(!refused.body.contains("refused"), "{refused:?}");
}

#[test]
fn e4_a_far_redis_is_warned_of_at_the_start_and_can_be_used() {
    let redis = Redis::start(&[]);
    let proxy = Proxy::start(redis.port);
    proxy.set_delay(Duration::from_millis(80), Duration::ZERO);
    let mut command = Command::new(TOLLGATE);
    command.args(["serve", "--redis", &proxy.url()]).env("TOLLGATE_STORE_DEADLINE", "300ms");
    let mut far = Server::logging(command.env("TOLLGATE_SERVER_LOG_FORMAT", "json"));
    let line = far.log_line("more than half of store.deadline");
    assert!(line.contains("300ms") && line.contains("round_trip"), "{line}");
    eventually("it decides", || far.get("/check/a").json()["degraded"] == false);
    assert!(far.metric("tollgate_redis_round_trip_microseconds") >= 160_000.0);
}

#[test]
fn e4_eviction_is_told_at_the_start_and_counted() {
    let redis = Redis::start(&["--maxmemory-policy", "allkeys-lru"]);
    let mut server = server(&redis.url());
    let line = server.log_line("maxmemory-policy noeviction");
    assert!(line.contains("WARN") && line.contains("allkeys-lru"), "{line}");
    assert!(server.metric("tollgate_redis_evicted_keys_total") < 0.5);
    redis.cli(&["eval", "for i = 1, 9000 do redis.call('SET', 'filler' .. i, ('x'):rep(1000)) end", "0"]);
    redis.cli(&["config", "set", "maxmemory", "6mb"]);
    eventually("it is counted", || server.metric("tollgate_redis_evicted_keys_total") > 0.5);
    server.log_line("Redis evicted keys");
}

#[test]
fn e4_another_master_is_told_in_the_log_and_counted() {
    let group = Sentinels::start();
    let mut server = server(&group.url());
    assert_eq!(server.get("/check/a").json()["degraded"], false);
    assert!(server.metric("tollgate_redis_master_switches_total") < 0.5);
    group.fail_over();
    let line = server.log_line("the Sentinels name another master");
    for address in group.servers.iter().map(|server| format!("127.0.0.1:{}", server.port)) {
        assert!(line.contains(&address), "{line}");
    }
    assert!((server.metric("tollgate_redis_master_switches_total") - 1.0).abs() < 0.5);
    assert_eq!(server.get("/check/a").json()["degraded"], false);
}

/// A rolling deploy: the servers convert each other's states, and no client gets more than the
/// laxer limit allows.
#[test]
fn b11_two_configurations_on_one_store_are_told_and_admit_no_more_than_the_laxer() {
    const LAXER: usize = 20;
    let redis = Redis::start(&[]);
    let mut servers = [("10", "strict"), ("20", "lax")].map(|(limit, name)| {
        let text = format!(
            "[store]\nkind = \"redis\"\nurl = \"{}\"\ndeadline = \"5s\"\n[[rule]]\nname = \"r\"\nkey = \
             [\"client\"]\nlimit = \"{limit}/h fixed\"\n",
            redis.url(),
        );
        let file = directory(&format!("redis-two-{name}")).join("tollgate.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(TOLLGATE);
        // Nobody reads the rest of the log.
        Server::logging(command.args(["serve", "--config"]).arg(&file).env("TOLLGATE_SERVER_LOG", "warn"))
    });
    let addresses = servers.each_ref().map(|server| server.address.clone());
    let mut most = 0;
    std::thread::scope(|scope| {
        let told = scope.spawn(|| servers[0].log_line("states are converted again and again"));
        for client in (0..).take_while(|_| !told.is_finished()) {
            let path = format!("/check/client-{client}");
            let status =
                |turn: usize| crate::common::send(&addresses[turn % 2], "GET", &path, &[], "").status;
            most = most.max((0..4 * LAXER).filter(|turn| status(*turn) == 200).count());
        }
        let line = told.join().unwrap();
        assert!(line.contains("converted"), "{line}");
    });
    assert!((10..=LAXER).contains(&most), "{most} of {LAXER}");
}
