//! Ambiguous requests, batches with an invalid check, reports of blocks, and what messages say.

use std::fs;
use std::process::Command;

use crate::common::{Server, TOLLGATE, directory, tollgate};
use crate::wire::Wire;
use serde_json::{Value, json};

/// A proxy before or after tollgate may read the other one of the two.
#[test]
fn a_duplicate_is_rejected_and_costs_nothing() {
    let server = Server::start(&[]);
    for (path, field) in [
        ("/check/a?cost=1&cost=2", "cost"),
        ("/check/a?cost=1&c%6Fst=1", "cost"),
        ("/auth?deny_status=403&deny_status=404", "deny_status"),
        ("/v1/top?count=1&count=2", "count"),
        ("/v1/clients/a?plan=gold&plan=free", "plan"),
        ("/v1/clients/a?client=b", "client"),
    ] {
        let answer = server.admin("GET", path, None);
        assert_eq!((answer.status, &answer.json()["field"]), (400, &json!(field)), "{path}: {answer:?}");
    }
    assert_eq!(server.admin("DELETE", "/v1/clients/a/limits?rule=x&rule=y", None).status, 400);
    for body in [
        r#"{"attributes":{"client":"a","client":"b"}}"#,
        r#"{"attributes":{"client":"a","cli\u0065nt":"a"}}"#,
        r#"{"attributes":{"client":"a"},"attributes":{"client":"b"}}"#,
        r#"{"attributes":{"client":"a"},"cost":1,"cost":1}"#,
    ] {
        for path in ["/v1/check", "/v1/reserve"] {
            let answer = server.send("POST", path, &[], body);
            assert_eq!((answer.status, &answer.json()["code"]), (400, &json!("invalid_body")), "{body}");
            assert!(answer.json()["detail"].as_str().unwrap().contains("duplicate"), "{answer:?}");
        }
        let batch = server.send("POST", "/v1/check/batch", &[], &format!("{{\"checks\":[{body}]}}"));
        assert_eq!(batch.json()["results"][0]["error"]["code"], "invalid_body", "{body}");
    }
    assert_eq!(server.get("/check/a").json()["remaining"], 9);
}

#[test]
fn an_invalid_check_of_a_batch_does_not_affect_the_others() {
    let server = Server::start(&[]);
    let checks = json!({"checks": [
        {"attributes": {"client": "a"}},
        {"attributes": {"client": ""}},
        {"attributes": {"client": "a"}, "peek": true},
        {"attributes": {"client": "a"}, "peek": 1},
        {"attributes": {"client": "a"}, "cost": 9_999_999_999_999_999_u64},
        [],
        {"attributes": {"client": "a"}, "cost": 2},
    ]});
    let answer = server.post("/v1/check/batch", &checks);
    assert_eq!(answer.status, 200);
    let body = answer.json();
    let reported = |result: &Value| match &result["error"] {
        Value::Null => json!(result["remaining"]),
        error => json!([error["status"], error["field"]]),
    };
    let reported: Vec<Value> = body["results"].as_array().unwrap().iter().map(reported).collect();
    let refused = |field: &str| json!([400, field]);
    assert_eq!(
        reported,
        [
            json!(9),
            refused("checks[1].attributes.client"),
            json!(9),
            refused("checks[3].peek"),
            refused("checks[4].cost"),
            refused("checks[5]"),
            json!(7),
        ]
    );
}

#[test]
fn a_block_is_reported_with_its_end() {
    let file = directory("mistakes-block").join("tollgate.toml");
    fs::write(&file, "[[rule]]\nname = \"r\"\nkey = [\"client\"]\nlimit = \"10/hour fixed\"").unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    assert_eq!(server.get("/check/a").json().get("blocked"), None);
    let until =
        server.admin("PUT", "/v1/clients/a/block", Some(&json!({"for": "10m"}))).json()["until"].clone();
    let close = |reported: &Value| {
        let [reported, set] = [reported, &until].map(|millis| millis.as_i64().unwrap_or_default());
        (reported - set).abs() < 60_000
    };
    let by_path = server.get("/check/a");
    let by_attributes = server.post("/v1/check", &json!({"attributes": {"client": "a"}}));
    for answer in [&by_path, &by_attributes] {
        let body = answer.json();
        assert_eq!(answer.status, 429);
        assert_eq!(body["type"], "https://iana.org/assignments/http-problem-types#abnormal-usage-detected");
        assert_eq!(body["blocked"], true, "{body}");
        assert!(close(&body["until"]), "{body} {until}");
        assert!(body["detail"].as_str().unwrap().contains("block"), "{body}");
    }
    let shown = server.admin("GET", "/v1/clients/a", None).json();
    for limit in [&by_attributes.json()["limits"][0], &shown["limits"][0]] {
        assert!(limit["blocked"] == true && close(&limit["until"]), "{limit}");
    }
    let mut wire = Wire::connect(&server);
    assert_eq!(wire.ask("TOLL.CHECK client a"), "*16");
    wire.send("QUIT\r\n");
    assert!(wire.rest().contains("blocked_until_ms\r\n:"));
    server.admin("DELETE", "/v1/clients/a/block", None);
    assert_eq!(server.get("/check/a").json().get("until"), None);
    server.get("/check/a?cost=8");
    let full = server.get("/check/a").json();
    assert_eq!(full["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(full.get("blocked"), None);
}

#[test]
fn d3_an_attribute_by_path_names_the_request_that_takes_it() {
    let answer = Server::start(&[]).get("/check/bob?plan=gold");
    assert_eq!((answer.status, &answer.json()["field"]), (400, &json!("plan")));
    assert!(answer.json()["detail"].as_str().unwrap().contains("POST /v1/check"), "{answer:?}");
}

#[test]
fn d3_a_port_alone_is_one_on_loopback() {
    let mut command = Command::new(TOLLGATE);
    let server = Server::with_log(command.args(["serve", "--http", "0", "--grpc", "off", "--resp", "off"]));
    assert!(server.address.starts_with("127.0.0.1:"), "{}", server.address);
    let refused = tollgate(&["serve", "--http", "localhost"]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("--http localhost: ") && said.contains("such as \"127.0.0.1:8080\""), "{said}");
}

#[test]
fn d3_a_duration_is_called_a_duration() {
    let server = Server::start(&[]);
    let refused = server.admin("PUT", "/v1/clients/a/block", Some(&json!({"for": "forever"})));
    let detail = refused.json()["detail"].clone();
    assert!(detail.as_str().unwrap().starts_with("duration \"forever\": unknown unit"), "{detail}");
}

#[test]
fn d3_validating_yaml_prints_only_its_own_limits() {
    let file = directory("mistakes-yaml").join("edge.yaml");
    let yaml =
        "domain: edge\ndescriptors:\n  - key: path\n    rate_limit: {unit: hour, requests_per_unit: 9}\n";
    fs::write(&file, yaml).unwrap();
    let said = String::from_utf8(tollgate(&["validate", file.to_str().unwrap()]).stdout).unwrap();
    assert!(said.contains("edge.path") && !said.contains("per-client"), "{said}");
}

/// Times are numbers for programs, and dates and distances for people.
#[test]
fn d2_administrators_read_dates() {
    let server = Server::start(&["--limit", "10/hour fixed"]);
    server.get("/check/a");
    let read = |moment: &Value, seconds: std::ops::RangeInclusive<u64>| {
        let time = moment["time"].as_str().unwrap();
        assert!(time.len() == 20 && time.starts_with('2') && time.ends_with('Z'), "{moment}");
        assert!(seconds.contains(&moment["inSeconds"].as_u64().unwrap()), "{moment}");
    };
    read(&server.admin("GET", "/v1/clients/a", None).json()["limits"][0]["reset"], 3_000..=3_600);
    let block = json!({"for": "10m"});
    read(&server.admin("PUT", "/v1/clients/a/block", Some(&block)).json()["end"], 600..=600);
    read(&server.admin("GET", "/v1/blocks", None).json()["blocks"][0]["end"], 1..=600);
}
