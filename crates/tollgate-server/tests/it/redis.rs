//! Servers that share a real Redis: one budget for all, and the responses while it is down.

use std::path::PathBuf;
use std::process::Command;

use crate::common::{Server, TOLLGATE, directory, tollgate};
use crate::redis_server::{Redis, until};
use serde_json::{Value, json};

/// A configuration with one rule per failure policy, selected by path.
fn config(name: &str, redis: &Redis) -> PathBuf {
    let rule = |policy: &str| {
        format!(
            "[[rule]]\nname = \"{policy}\"\nmatch = {{ path = \"/{policy}\" }}\nkey = [\"client\"]\nlimit = \"8/h fixed\"\n\
             on_store_error = \"{policy}\"\n"
        )
    };
    let text = format!(
        "[store]\nkind = \"redis\"\nurl = \"{}\"\ndeadline = \"1s\"\nremember_denials = \"0s\"\n{}{}{}",
        redis.url(),
        rule("open"),
        rule("closed"),
        rule("local"),
    );
    let file = directory(name).join("tollgate.toml");
    std::fs::write(&file, text).unwrap();
    file
}

fn check(client: &str, policy: &str) -> Value {
    json!({ "attributes": { "client": client, "path": format!("/{policy}") } })
}

#[test]
fn b9_two_servers_share_one_limit() {
    let redis = Redis::start(&[]);
    // A busy machine may exceed the default deadline.
    let servers = [(); 2].map(|()| {
        let mut command = Command::new(TOLLGATE);
        Server::logging(command.args(["serve", "--redis", &redis.url()]).env("TOLLGATE_STORE_DEADLINE", "5s"))
    });
    let answers: Vec<u16> = (0..12).map(|turn| servers[turn % 2].get("/check/alice").status).collect();
    assert_eq!(answers, [200, 200, 200, 200, 200, 200, 200, 200, 200, 200, 429, 429]);
    assert_eq!(servers[0].get("/check/bob").json()["remaining"], 9);
    assert_eq!(servers[1].get("/check/bob?cost=0").json()["remaining"], 9);
    assert_eq!(servers[0].get("/readyz").status, 200);
    let stats = servers[0].admin("GET", "/v1/stats", None).json();
    assert_eq!(
        (&stats["store"], &stats["liveKeys"], &stats["storeDown"]),
        (&json!("redis"), &Value::Null, &Value::Null)
    );
    assert!(servers[1].metric("tollgate_redis_up") > 0.5);
}

#[test]
fn c5_administration_on_one_server_is_seen_by_the_other() {
    let redis = Redis::start(&[]);
    let file = config("redis-verbs", &redis);
    let [one, other] = [(); 2].map(|()| Server::with_config(&file));
    let batch: Vec<Value> = (0..10).map(|_| check("a", "open")).collect();
    let results = one.post("/v1/check/batch", &json!({ "checks": batch })).json();
    let allowed: Vec<bool> = results["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| result["allowed"] == json!(true))
        .collect();
    assert_eq!(allowed, [[true; 8].as_slice(), &[false; 2]].concat(), "in their order");
    assert_eq!(other.post("/v1/check", &check("a", "open")).status, 429);
    assert_eq!(other.admin("DELETE", "/v1/clients/a", None).status, 204);
    assert_eq!(one.post("/v1/check", &check("a", "open")).json()["remaining"], 7);
    let reserved = one
        .post(
            "/v1/reserve",
            &json!({ "attributes": { "client": "b", "path": "/open" }, "cost": 5, "ttl": "60s" }),
        )
        .json();
    assert_eq!(other.post("/v1/check", &check("b", "open")).json()["remaining"], 2);
    let settle = format!("/v1/reserve/{}/settle", reserved["id"].as_str().unwrap());
    assert_eq!(other.post(&settle, &json!({ "cost": 1 })).status, 200);
    assert_eq!(one.post("/v1/check", &check("b", "open")).json()["remaining"], 5);
}

#[test]
fn e4_clients_see_the_policy_and_not_the_error() {
    let mut redis = Redis::start(&[]);
    let file = config("redis-away", &redis);
    let mut server = Server::logging(
        Command::new(TOLLGATE)
            .args(["serve", "--config"])
            .arg(&file)
            .env("TOLLGATE_SERVER_LOG_FORMAT", "json"),
    );
    assert_eq!(server.post("/v1/check", &check("a", "closed")).status, 200);
    redis.kill();
    let answers = ["open", "closed", "local"].map(|policy| server.post("/v1/check", &check("a", policy)));
    assert_eq!(answers.each_ref().map(|answer| answer.status), [200, 503, 200]);
    for answer in &answers {
        assert_eq!(answer.json()["degraded"], true, "{answer:?}");
        let said = format!("{}{}", answer.head, answer.body).to_lowercase();
        for word in ["redis", "refused", "connection reset", "broken pipe", "error:"] {
            assert!(!said.contains(word), "{said}");
        }
    }
    let local: Vec<u16> = (0..8).map(|_| server.post("/v1/check", &check("b", "local")).status).collect();
    assert_eq!(local.iter().filter(|status| **status == 200).count(), 2, "a quarter of eight: {local:?}");
    assert_eq!(server.get("/readyz").status, 503);
    assert_eq!(server.get("/healthz").status, 200);
    assert!(server.metric("tollgate_redis_up") < 0.5);
    assert!(server.metric("tollgate_store_errors_total") >= 3.0);
    assert!(server.metric("tollgate_degraded_total") >= 3.0);
    assert!(server.admin("GET", "/v1/stats", None).json()["storeDown"].is_string());
    assert!(server.log_line("Redis is away").contains("WARN"));
    assert!(redis.run());
    server.log_line("Redis is back");
    until("it decides again", || server.post("/v1/check", &check("a", "closed")).status == 200);
    assert_eq!(server.get("/readyz").status, 200);
    assert!(server.metric("tollgate_redis_up") > 0.5);
}

/// Redis was away when the reservation was made, and is back when it is settled.
#[test]
fn c7_a_reservation_made_without_redis_is_charged_once() {
    let mut redis = Redis::start(&[]);
    let server = Server::with_config(&config("redis-once", &redis));
    redis.kill();
    let attributes = json!({ "client": "a", "path": "/open" });
    let reserved = server.post("/v1/reserve", &json!({ "attributes": attributes, "cost": 2, "ttl": "1h" }));
    let reserved = reserved.json();
    assert_eq!(reserved["degraded"], true);
    let settle = format!("/v1/reserve/{}/settle", reserved["id"].as_str().unwrap());
    assert_eq!(server.post(&settle, &json!({ "cost": 3 })).status, 503, "it is to be sent again");
    assert!(redis.run());
    until("it is ready", || server.get("/readyz").status == 200);
    let statuses = [(); 3].map(|()| server.post(&settle, &json!({ "cost": 3 })).status);
    assert_eq!(statuses, [200, 404, 404]);
    let left = server.post("/v1/check", &check("a", "open")).json();
    assert_eq!((&left["remaining"], &left["degraded"]), (&json!(4), &json!(false)));
}

#[test]
fn a_server_starts_without_redis_and_connects_later() {
    let mut redis = Redis::start(&[]);
    redis.kill();
    let mut server = Server::logging(Command::new(TOLLGATE).args(["serve", "--redis", &redis.url()]));
    server.log_line("Redis is away");
    assert_eq!(server.get("/check/alice").json()["degraded"], true);
    assert_eq!(server.get("/readyz").status, 503);
    assert!(redis.run());
    until("it is ready", || server.get("/readyz").status == 200);
    assert_eq!(server.get("/check/alice").json()["degraded"], false);
}

#[test]
fn validate_shows_the_store_without_the_password() {
    let file = directory("redis-validate").join("tollgate.toml");
    std::fs::write(
        &file,
        "[store]\nkind = \"redis\"\nurl = \"rediss+cluster://app:hunter2@h1,h2\"\nprefix = \"prod\"\n",
    )
    .unwrap();
    let said = String::from_utf8(tollgate(&["validate", file.to_str().unwrap()]).stdout).unwrap();
    assert!(said.contains("Keeps state at rediss+cluster://app:***@h1,h2, under prod:*"), "{said}");
    std::fs::write(&file, "[store]\nkind = \"redis\"\nurl = \"redis://app:hunter2@h1,h2\"\n").unwrap();
    let said = String::from_utf8(tollgate(&["validate", file.to_str().unwrap()]).stderr).unwrap();
    assert!(said.contains("one host") && !said.contains("hunter2"), "{said}");
}

/// The table of docs/operating.md has every metric of every store and of telemetry, and no other.
#[test]
fn g1_every_metric_is_documented() {
    let redis = Redis::start(&[]);
    let directory = directory("redis-metrics");
    let (data, exporting) = (directory.join("data"), directory.join("tollgate.toml"));
    // Nothing is exported within this test.
    std::fs::write(&exporting, "[telemetry]\notlp = \"http://127.0.0.1:4318\"\ninterval = \"1h\"\n").unwrap();
    let servers = [
        Server::with_config(&exporting),
        Server::start(&["--data", data.to_str().unwrap()]),
        Server::start(&["--redis", &redis.url()]),
    ];
    let mut exposed = std::collections::BTreeSet::new();
    for page in servers.iter().map(|server| server.get("/metrics").body) {
        for described in page.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
            let (name, kind) = described.split_once(' ').unwrap();
            exposed.insert(format!("{name}{}", if kind == "counter" { "_total" } else { "" }));
        }
    }
    let table = include_str!("../../../../docs/operating.md").lines().filter_map(|line| {
        let name = line.strip_prefix("| `tollgate_")?.split(['`', '{']).next()?;
        Some(format!("tollgate_{name}"))
    });
    assert_eq!(exposed, table.collect());
}
