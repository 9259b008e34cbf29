//! The HTTP API, over a real socket.

use std::fs;

use crate::common::{Server, directory};
use serde_json::{Value, json};

/// A server with a global rule, a rule per client, one for logins, and a shadow rule.
fn server(name: &str) -> Server {
    let file = directory(&format!("api-{name}")).join("tollgate.toml");
    let rules = r#"
        [[rule]]
        name = "global"
        limit = "1000/hour fixed"
        [[rule]]
        name = "per-client"
        key = ["client"]
        limit = ["10/hour fixed", "100/day fixed"]
        [[rule]]
        name = "login"
        match = { path = "/login" }
        key = ["client"]
        limit = "3/hour fixed"
        [[rule]]
        name = "watch"
        key = ["tenant"]
        limit = "1/hour fixed"
        shadow = true
        [[override]]
        rule = "per-client"
        match = { client = "gold-*" }
        limit = ["50/hour fixed", "100/day fixed"]
    "#;
    fs::write(&file, rules).unwrap();
    Server::with_config(&file)
}

/// The remaining units of a rule's first limit.
fn left(answer: &Value, rule: &str) -> u64 {
    let limits = answer["limits"].as_array().unwrap_or_else(|| panic!("{answer}"));
    let limit =
        limits.iter().find(|limit| limit["rule"] == rule).unwrap_or_else(|| panic!("{rule} in {answer}"));
    limit["remaining"].as_u64().unwrap()
}

#[test]
fn a_check_by_attributes_reports_every_limit_that_covers_it() {
    let server = server("check");
    let login = json!({"attributes": {"client": "a", "path": "/login"}, "cost": 2});
    let answer = server.post("/v1/check", &login);
    assert_eq!(answer.status, 200);
    let body = answer.json();
    assert_eq!(
        (&body["allowed"], &body["rule"], &body["remaining"]),
        (&json!(true), &json!("login"), &json!(1))
    );
    assert_eq!(left(&body, "global"), 998);
    assert_eq!(left(&body, "per-client"), 8);
    assert_eq!(body["limits"][1]["notation"], "10/hour fixed");
    assert_eq!(body["limits"][2]["notation"], "100/day fixed");
    assert!(answer.header("ratelimit").unwrap().contains(r#""per-client.2";r=98"#), "{}", answer.head);

    let denied = server.post("/v1/check", &login);
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert!(denied.header("retry-after").unwrap().parse::<u64>().unwrap() > 3_000);
    let body = denied.json();
    assert_eq!(body["violated-policies"], json!(["login"]));
    assert_eq!(
        (left(&body, "global"), left(&body, "per-client")),
        (998, 8),
        "a denial costs nothing anywhere"
    );

    let never = server.post("/v1/check", &json!({"attributes": {"client": "b"}, "cost": 11})).json();
    assert_eq!((&never["allowed"], &never["retryAfterMs"]), (&json!(false), &Value::Null));
    let watched = json!({"attributes": {"tenant": "t"}});
    assert_eq!(server.post("/v1/check", &watched).status, 200);
    let shadow = server.post("/v1/check", &watched).json();
    assert_eq!(shadow["allowed"], true);
    assert_eq!(
        (&shadow["limits"][1]["allowed"], &shadow["limits"][1]["shadow"]),
        (&json!(false), &json!(true))
    );
}

#[test]
fn a_request_that_no_rule_covers_is_allowed_without_numbers() {
    let file = directory("api-uncovered").join("tollgate.toml");
    fs::write(&file, "[[rule]]\nname = \"r\"\nkey = [\"tenant\"]\nlimit = \"1/s\"").unwrap();
    let server = Server::with_config(&file);
    let answer = server.post("/v1/check", &json!({"attributes": {"client": "a"}}));
    assert_eq!((answer.status, &answer.json()["limits"]), (200, &json!([])));
    assert_eq!((&answer.json()["limit"], &answer.json()["remaining"]), (&Value::Null, &Value::Null));
    assert_eq!(server.get("/check/a").json()["remaining"], Value::Null);
    assert_eq!(server.get(&format!("/check/{}", "x".repeat(1_025))).status, 400, "whatever the rules are");
}

#[test]
fn c5_a_peek_changes_nothing() {
    let server = server("peek");
    let peek = json!({"attributes": {"client": "a"}, "cost": 10, "peek": true});
    for _ in 0..3 {
        assert_eq!(server.post("/v1/check", &peek).json()["remaining"], 10);
    }
    assert_eq!(
        server.send("POST", "/v1/check", &[], r#"{"attributes":{"client":"w"},"cost":4.0}"#).json()["remaining"],
        6
    );
    let too_much = json!({"attributes": {"client": "a"}, "cost": 11, "peek": true});
    assert_eq!(server.post("/v1/check", &too_much).status, 429);
}

#[test]
fn a_batch_is_decided_in_order_and_separately() {
    let server = server("batch");
    let check = |client: &str, cost: u64| json!({"attributes": {"client": client}, "cost": cost});
    let peek = json!({"attributes": {"client": "a"}, "peek": true});
    let checks = [check("a", 6), check("a", 6), peek, check("b", 1), check("a", 4), check("a", 1)];
    let answer = server.post("/v1/check/batch", &json!({"checks": checks}));
    assert_eq!(answer.status, 200);
    let body = answer.json();
    let results: Vec<(bool, u64)> = body["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|result| (result["allowed"].as_bool().unwrap(), left(result, "per-client")))
        .collect();
    assert_eq!(results, [(true, 4), (false, 4), (true, 4), (true, 9), (true, 0), (false, 0)]);
    let many: Vec<Value> = (0..10_000).map(|_| json!({"attributes": {"client": "c"}, "cost": 0})).collect();
    let answer = server.post("/v1/check/batch", &json!({"checks": many}));
    assert_eq!((answer.status, answer.json()["results"].as_array().unwrap().len()), (200, 10_000));
    assert_eq!(server.post("/v1/check/batch", &json!({"checks": []})).json(), json!({"results": []}));
}

#[test]
fn c5_a_reservation_is_settled_by_its_id_once() {
    let server = server("reserve");
    let reserve = |client: &str, cost: u64| {
        server.post(
            "/v1/reserve",
            &json!({"attributes": {"client": client, "unused": "x"}, "cost": cost, "ttl": "1h"}),
        )
    };
    let settle =
        |id: &str, cost: u64| server.post(&format!("/v1/reserve/{id}/settle"), &json!({"cost": cost}));
    let peek = |client: &str| {
        server.post("/v1/check", &json!({"attributes": {"client": client}, "peek": true})).json()["remaining"]
            .clone()
    };
    let reserved = reserve("a", 8).json();
    let id = reserved["id"].as_str().unwrap();
    assert_eq!((&reserved["allowed"], &peek("a")), (&json!(true), &json!(2)));
    assert_eq!(settle(id, 3).json(), json!({"shortfall": 0}));
    assert_eq!(peek("a"), 7);
    let again = settle(id, 3);
    assert_eq!((again.status, &again.json()["code"]), (404, &json!("not_reserved")));
    assert!(again.json()["detail"].as_str().unwrap().contains("it was settled"), "{again:?}");

    let short = reserve("a", 5).json();
    assert_eq!(settle(short["id"].as_str().unwrap(), 9).json(), json!({"shortfall": 0}), "two are owed");
    assert_eq!(reserve("a", 1).status, 429);

    let dropped = reserve("b", 5).json();
    let path = format!("/v1/reserve/{}", dropped["id"].as_str().unwrap());
    assert_eq!((server.send("DELETE", &path, &[], "").status, &peek("b")), (204, &json!(10)));
    assert_eq!(server.send("DELETE", &path, &[], "").status, 404);
    for nonsense in ["x", "AAAAAAAAAAAAAAAAAAAAAAAAAAAA", "%00"] {
        assert_eq!(settle(nonsense, 1).status, 404, "{nonsense}");
    }
    for ttl in ["0s", "61m", "soon", ""] {
        let answer = server.post("/v1/reserve", &json!({"attributes": {"client": "c"}, "ttl": ttl}));
        assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("ttl")), "{ttl}");
    }
}

#[test]
fn c5_an_unsettled_reservation_is_released() {
    let server = server("expire");
    let body = json!({"attributes": {"client": "a"}, "cost": 10, "ttl": "20ms", "on_expiry": "give_back"});
    let reserved = server.post("/v1/reserve", &body).json();
    crate::common::eventually("the reservation expires", || server.get("/check/a?cost=10").status == 200);
    let path = format!("/v1/reserve/{}/settle", reserved["id"].as_str().unwrap());
    crate::common::eventually("as long again has passed", || {
        server.post(&path, &json!({"cost": 0})).status == 404
    });
}

#[test]
fn an_admin_sees_all_budgets_of_a_client_and_resets_them() {
    let server = server("admin");
    let login = json!({"attributes": {"client": "a", "path": "/login"}});
    assert_eq!(server.post("/v1/check", &login).status, 200);
    let shown = server.admin("GET", "/v1/clients/a", None).json();
    assert_eq!(shown["client"], "a");
    assert_eq!((left(&shown, "per-client"), left(&shown, "login")), (9, 2), "whatever path they match");
    assert!(!shown.to_string().contains("global"), "{shown}");
    assert_eq!(server.admin("DELETE", "/v1/clients/a", None).status, 204);
    let shown = server.admin("GET", "/v1/clients/a", None).json();
    assert_eq!((left(&shown, "per-client"), left(&shown, "login")), (10, 3));
    assert_eq!(
        left(&server.post("/v1/check", &login).json(), "global"),
        998,
        "the shared budget is not reset"
    );
    let with_path = server.admin("GET", "/v1/clients/a?path=/login", None);
    assert_eq!((with_path.status, left(&with_path.json(), "login")), (200, 2));
    let strange = server.admin("GET", "/v1/clients/a%2Fb%20%C3%BC", None).json();
    assert_eq!(strange["client"], "a/b ü");
}

#[test]
fn an_admin_blocks_and_unblocks_a_client() {
    let server = server("block");
    let blocked = server.admin("PUT", "/v1/clients/a/block", Some(&json!({"for": "10m"})));
    assert_eq!(blocked.status, 200);
    assert!(blocked.json()["until"].as_u64().unwrap() > 1_700_000_000_000);
    let denied = server.get("/check/a");
    assert_eq!(denied.status, 429);
    assert!(denied.json()["retryAfterMs"].as_u64().unwrap() > 500_000);
    assert_eq!(server.get("/check/b").status, 200);
    assert_eq!(server.admin("DELETE", "/v1/clients/a/block", None).status, 204);
    assert_eq!(server.get("/check/a").json()["remaining"], 9);
    let wrong = server.admin("PUT", "/v1/clients/a/block", Some(&json!({"for": "a while"})));
    assert_eq!((wrong.status, &wrong.json()["field"]), (400, &json!("for")));
}

#[test]
fn b11_an_admin_sets_a_clients_limits_and_usage_is_kept() {
    let server = server("limits");
    assert_eq!(server.get("/check/a?cost=10").status, 200);
    let put = |rule: &str, limit: Value| {
        server.admin("PUT", "/v1/clients/a/limits", Some(&json!({"rule": rule, "limit": limit})))
    };
    assert_eq!(put("per-client", json!(["100/hour fixed", "200/day fixed"])).status, 200);
    assert_eq!(server.get("/check/a?cost=0").json()["remaining"], 90);
    assert_eq!(server.get("/check/b").json()["remaining"], 9);
    assert_eq!(server.get("/check/gold-1").json()["remaining"], 49, "the file's overrides still apply");
    let rules = server.admin("GET", "/v1/rules", None).json();
    assert_eq!(rules["rules"][2]["match"], json!({"path": "/login"}));
    assert_eq!(rules["rules"][3]["shadow"], true);
    assert_eq!(
        rules["overrides"][0]["match"],
        json!({"client": "a"}),
        "a per-client limit takes precedence: {rules}"
    );

    let bad = put("per-client", json!("10/minuet"));
    assert_eq!((bad.status, &bad.json()["code"]), (400, &json!("invalid_limit")));
    assert!(bad.json()["detail"].as_str().unwrap().contains("did you mean"), "{bad:?}");
    assert_eq!(put("global", json!("1/s")).status, 404, "not keyed by client alone");
    assert_eq!(put("per-client", json!("1000000/s log")).status, 400, "more than the store keeps");
    assert_eq!(server.admin("DELETE", "/v1/clients/a/limits?rule=per-client", None).status, 200);
    assert_eq!(server.get("/check/a").status, 429);
}

#[test]
fn d2_a_rule_without_per_client_limits_is_not_called_unknown() {
    let server = server("not-own");
    let path = "/v1/clients/a/limits";
    for (rule, said) in [
        ("global", "rule \"global\" is not keyed by client alone; use an [[override]]"),
        ("watch", "rule \"watch\" is not keyed by client alone; use an [[override]]"),
        ("nowhere", "there is no rule \"nowhere\"; GET /v1/rules lists the rules"),
    ] {
        let put = server.admin("PUT", path, Some(&json!({"rule": rule, "limit": "1/s"})));
        let delete = server.admin("DELETE", &format!("{path}?rule={rule}"), None);
        for answer in [put, delete] {
            assert_eq!((answer.status, &answer.json()["field"]), (404, &json!("rule")), "{answer:?}");
            assert_eq!(answer.json()["detail"], said);
        }
    }
}

#[test]
fn c5_an_admin_penalises_and_refunds() {
    let server = server("penalise");
    let act = |verb: &str, body: Value| server.admin("POST", &format!("/v1/clients/a/{verb}"), Some(&body));
    assert_eq!(act("penalise", json!({"rule": "login", "cost": 2})).json(), json!({"units": 2}));
    assert_eq!(act("penalise", json!({"cost": 50})).json(), json!({"units": 50}), "the day's limit had 100");
    assert_eq!(server.get("/check/a").status, 429);
    assert_eq!(act("refund", json!({"cost": 4})).json(), json!({"units": 4}));
    assert_eq!(server.get("/check/a").json()["remaining"], 3);
    for verb in ["refund", "penalise"] {
        assert_eq!(act(verb, json!({"rule": "global"})).status, 404, "not keyed by client alone");
    }
    let unknown = act("refund", json!({"rule": "nowhere"}));
    assert_eq!((unknown.status, &unknown.json()["field"]), (404, &json!("rule")));
    assert_eq!(
        server.post("/v1/check", &json!({"attributes": {"x": "y"}})).json()["remaining"],
        998,
        "the shared budget is unchanged"
    );
}

#[test]
fn g1_g2_statistics_and_top_clients() {
    let server = server("stats");
    server.get("/check/heavy?cost=9");
    server.get("/check/light");
    for _ in 0..3 {
        assert_eq!(server.get("/check/heavy?cost=2").status, 429);
    }
    let stats = server.admin("GET", "/v1/stats", None).json();
    assert_eq!((&stats["total"]["allowed"], &stats["total"]["denied"]), (&json!(2), &json!(3)));
    assert_eq!(stats["total"]["rejectionRate"], 60.0);
    assert_eq!((&stats["rules"][1]["rule"], &stats["rules"][1]["denied"]), (&json!("per-client"), &json!(3)));
    assert!(stats["liveKeys"].as_u64().unwrap() >= 2, "{stats}");
    let top = server.admin("GET", "/v1/top?count=1", None).json();
    assert_eq!(top["heaviest"], json!([{"client": "heavy", "atLeast": 9, "atMost": 9}]));
    assert_eq!(
        top["mostDenied"],
        json!([{"client": "heavy", "rule": "per-client", "atLeast": 3, "atMost": 3}])
    );
    assert_eq!(server.metric(r#"tollgate_decisions_total{outcome="denied"}"#), 3.0);
    assert_eq!(server.metric(r#"tollgate_rule_decisions_total{rule="per-client",outcome="allowed"}"#), 2.0);
    assert_eq!(server.metric(r#"tollgate_http_responses_total{status="429"}"#), 3.0);
    assert_eq!(server.metric(r#"tollgate_http_request_duration_seconds_count{route="client"}"#), 5.0);
    assert_eq!(server.metric("tollgate_store_duration_seconds_count"), 5.0);
    let batch = json!({"checks": [{"attributes": {"client": "x"}}, {"attributes": {"client": "y"}}]});
    assert_eq!(server.post("/v1/check/batch", &batch).status, 200);
    assert_eq!(server.metric("tollgate_store_duration_seconds_count"), 7.0);
}

#[test]
fn d2_an_invalid_request_names_the_field_and_costs_nothing() {
    let server = server("wrong");
    let long = "x".repeat(1025);
    let attributes: serde_json::Map<String, Value> = (0..65).map(|i| (i.to_string(), json!("v"))).collect();
    for (path, body, field) in [
        ("/v1/check", json!({"attributes": {"client": ""}}), "attributes.client"),
        ("/v1/check", json!({"attributes": {"client": long}}), "attributes.client"),
        ("/v1/check", json!({"attributes": {"client": 7}}), "attributes.client"),
        ("/v1/check", json!({"attributes": attributes}), "attributes"),
        ("/v1/check", json!({"attributes": {"client": "a"}, "cost": -1}), "cost"),
        ("/v1/check", json!({"attributes": {"client": "a"}, "cost": 1_000_000_000_000_000_u64}), "cost"),
        ("/v1/check", json!({"attributes": {"client": "a"}, "cost": 1.5}), "cost"),
        ("/v1/check", json!({"attributes": {"client": "a"}, "cost": 1e16}), "cost"),
        ("/v1/check", json!({"attributes": {"client": "a"}, "costs": 1}), "costs"),
        ("/v1/check", json!([]), "body"),
        ("/v1/reserve", json!({"attributes": {"client": "a"}, "cost": "7"}), "cost"),
    ] {
        let answer = server.post(path, &body);
        assert_eq!(answer.status, 400, "{path} {body}: {answer:?}");
        assert_eq!(answer.json()["field"], field, "{path} {body}: {answer:?}");
        assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    }
    for checks in
        [json!([{"attributes": {"client": "a"}}]), json!([[{"attributes": {"client": "a"}}]]), json!([])]
    {
        let answer = server.post("/v1/check/batch", &checks);
        assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("body")), "{answer:?}");
        assert!(answer.json()["detail"].as_str().unwrap().contains("{\"checks\": […]}"), "{answer:?}");
    }
    for body in ["{", "{\"attributes\":{}} x", "", "\u{0}", "nul"] {
        let answer = server.send("POST", "/v1/check", &[], body);
        assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("invalid_body")), "{body:?}");
    }
    let many: Vec<Value> = (0..10_001).map(|_| json!({"attributes": {"client": "a"}})).collect();
    let answer = server.post("/v1/check/batch", &json!({"checks": many}));
    assert_eq!((answer.status, &answer.json()["field"]), (413, &json!("checks")));
    for (method, path, allow) in
        [("GET", "/v1/check", "post"), ("PUT", "/v1/reserve", "post"), ("POST", "/healthz", "get,head")]
    {
        let answer = server.send(method, path, &[], "");
        assert_eq!((answer.status, answer.header("allow")), (405, Some(allow)), "{path}");
        assert_eq!(answer.json()["field"], "method");
    }
    assert_eq!(server.get("/v1/nothing").json()["field"], "path");
    assert_eq!(server.get("/check/a").json()["remaining"], 9, "none of that cost anything");
}

#[test]
fn health_and_readiness() {
    let server = server("health");
    assert_eq!(server.get("/healthz").json(), json!({"status": "up"}));
    assert_eq!(server.get("/readyz").json(), json!({"status": "ready"}));
}

#[test]
fn header_fields_have_the_configured_style() {
    for (style, field) in [
        ("trio", "ratelimit-remaining: 9"),
        ("x", "x-ratelimit-remaining: 9"),
        ("standard", "ratelimit: \"per-client\";r=9;t=60"),
    ] {
        let file = directory(&format!("api-style-{style}")).join("tollgate.toml");
        fs::write(&file, format!("[server]\nheaders = \"{style}\"")).unwrap();
        let answer = Server::with_config(&file).get("/check/a");
        assert!(answer.head.lines().any(|line| line == field), "{style}: {}", answer.head);
    }
}
