//! A full table: the responses to new clients, and how an administrator empties it.

use std::fs;
use std::process::Command;

use crate::common::{Server, TOLLGATE, directory};
use crate::redis_server::Redis;
use crate::wire::Wire;
use serde_json::json;

const CAPACITY: &str = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity";

#[test]
fn e5_a_full_table_is_a_503_with_a_true_retry_time_and_is_reported() {
    let file = directory("full-table").join("tollgate.toml");
    let rule = "[[rule]]\nname = \"per-client\"\nkey = [\"client\"]\nlimit = \"10/hour fixed\"";
    fs::write(&file, format!("[store]\nmax_keys = 2\n{rule}")).unwrap();
    let mut command = Command::new(TOLLGATE);
    let mut server = Server::logging(command.args(["serve", "--config", file.to_str().unwrap()]));
    let first = server.get("/check/a").json();
    assert_eq!(server.get("/check/b").status, 200);
    assert_eq!(server.get("/readyz").json(), json!({"status": "ready"}));

    let newcomers = [
        server.get("/check/c"),
        server.post("/v1/check", &json!({"attributes": {"client": "d"}})),
        server.get("/auth?deny_status=403"),
        server.post("/v1/reserve", &json!({"attributes": {"client": "e"}})),
    ];
    for answer in &newcomers {
        let body = answer.json();
        assert_eq!((answer.status, &body["type"]), (503, &json!(CAPACITY)), "{body}");
        assert_eq!(body["resetAt"], first["resetAt"], "when the first in the table turns idle: {body}");
        let wait = body["retryAfterMs"].as_u64().unwrap();
        let seconds: u64 = answer.header("retry-after").unwrap().parse().unwrap();
        assert!(wait > 3_000_000 && seconds.abs_diff(wait / 1_000) <= 1, "{wait} {seconds}");
    }
    assert_eq!(server.get("/check/a").status, 200, "keys in the table are not affected");
    let ready = server.get("/readyz");
    assert_eq!((ready.status, ready.json()), (200, json!({"status": "ready", "full": ["per-client"]})));
    assert_eq!(server.metric("tollgate_rule_refused_total{rule=\"per-client\"}"), 4.0);

    assert_eq!(server.admin("DELETE", "/v1/rules/per-client/state", None).json(), json!({"keys": 2}));
    assert_eq!(server.get("/check/c").json()["remaining"], 9);
    server.signal("TERM");
    let mut log = String::new();
    while !log.contains("\"stopped\"") {
        log += &server.log_line("");
    }
    assert_eq!(log.matches("the table is full").count(), 1, "once a minute: {log}");
}

#[test]
fn an_administrator_resets_one_rule_only() {
    let rules = r#"
        [[rule]]
        name = "r"
        key = ["client"]
        limit = ["2/hour fixed", "5/day log"]
        [[override]]
        rule = "r"
        match = { path = "/p" }
        limit = "2/hour fixed"
        [[rule]]
        name = "q:r"
        key = ["client"]
        limit = "9/hour fixed"
        [[rule]]
        name = "all"
        limit = "1000/hour fixed"
    "#;
    let redis = Redis::start(&[]);
    let directory = directory("full-clear");
    let data = directory.join("data");
    for (kind, store) in [
        ("memory", String::new()),
        ("disk", format!("[store]\nkind = \"disk\"\ndata = {data:?}\ndurability = \"strict\"")),
        ("redis", format!("[store]\nkind = \"redis\"\nurl = \"{}\"\ndeadline = \"5s\"", redis.url())),
    ] {
        let file = directory.join(format!("{kind}.toml"));
        fs::write(&file, format!("{store}\n{rules}")).unwrap();
        let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
        let check = |client: &str, path: &str| {
            server.post("/v1/check", &json!({"attributes": {"client": client, "path": path}}))
        };
        for client in ["a", "b", "{odd}, *"] {
            assert_eq!([(); 3].map(|()| check(client, "/").status), [200, 200, 429], "{kind}");
            assert_eq!([(); 3].map(|()| check(client, "/p").status), [200, 200, 429], "{kind}");
        }
        server.admin("PUT", "/v1/clients/b/block", Some(&json!({"for": "1h"})));
        let mut wire = Wire::connect(&server);
        let mut throttle = || {
            wire.send("CL.THROTTLE k 0 1 3600\r\n");
            wire.five()[0]
        };
        assert_eq!([throttle(), throttle()], [0, 1], "{kind}");

        let cleared = server.admin("DELETE", "/v1/rules/r/state", None);
        assert_eq!(cleared.status, 200, "{kind} {cleared:?}");
        assert!(cleared.json()["keys"].as_u64().unwrap() >= 6, "{kind} {cleared:?}");
        for client in ["a", "{odd}, *"] {
            let answer = check(client, "/").json();
            assert_eq!((&answer["allowed"], &answer["limits"][0]["remaining"]), (&json!(true), &json!(1)));
            let left = &answer["limits"].as_array().unwrap()[2];
            assert_eq!((&left["rule"], &left["remaining"]), (&json!("q:r"), &json!(4)), "{kind}");
        }
        assert_eq!(check("b", "/").json()["rule"], "q:r", "the block was under all of the client's rules");
        assert_eq!(throttle(), 1, "{kind}");
        assert_eq!(server.admin("DELETE", "/v1/rules/cl.throttle/state", None).status, 200);
        assert_eq!(throttle(), 0, "{kind}");
        let global = server.admin("DELETE", "/v1/rules/all/state", None).json();
        assert_eq!(global, json!({"keys": 1}), "{kind}");
        let unknown = server.admin("DELETE", "/v1/rules/nothing/state", None);
        assert_eq!((unknown.status, &unknown.json()["field"]), (404, &json!("rule")));
        assert_eq!(server.send("DELETE", "/v1/rules/r/state", &[], "").status, 401);
    }
}
