//! Costs of rules in a check: a request and its tokens, counted by two rules.

use std::fs;

use serde_json::{Value, json};

use crate::common::{Server, directory};

fn server(name: &str) -> Server {
    let file = directory(&format!("costs-{name}")).join("tollgate.toml");
    let rules = r#"
        [[rule]]
        name = "requests"
        limit = "10/hour fixed"
        [[rule]]
        name = "tokens"
        key = ["client"]
        limit = "1000/hour fixed"
    "#;
    fs::write(&file, rules).unwrap();
    Server::with_config(&file)
}

fn check(client: &str, tokens: u64) -> Value {
    json!({"attributes": {"client": client}, "costs": {"tokens": tokens}})
}

/// The remaining requests and tokens.
fn remaining(answer: &Value) -> [u64; 2] {
    [0, 1].map(|index| answer["limits"][index]["remaining"].as_u64().unwrap_or_else(|| panic!("{answer}")))
}

#[test]
fn b8_costs_of_rules_are_charged_all_or_not_at_all() {
    let server = server("check");
    let answer = server.post("/v1/check", &check("a", 600));
    assert_eq!((answer.status, remaining(&answer.json())), (200, [9, 400]));
    let denied = server.post("/v1/check", &check("a", 401));
    assert_eq!((denied.status, &denied.json()["violated-policies"]), (429, &json!(["tokens"])));
    assert_eq!(remaining(&denied.json()), [9, 400], "a denial costs nothing anywhere");
    let mut peek = check("a", 400);
    peek["peek"] = json!(true);
    assert_eq!(remaining(&server.post("/v1/check", &peek).json()), [9, 400]);
    let both = json!({"attributes": {"client": "a"}, "cost": 2, "costs": {"tokens": 300.0}});
    assert_eq!(remaining(&server.post("/v1/check", &both).json()), [7, 100], "other rules charge `cost`");
}

#[test]
fn a_batch_charges_the_costs_of_each_check_and_names_an_unknown_rule() {
    let server = server("batch");
    let unknown = |peek: bool| json!({"attributes": {"client": "a"}, "costs": {"token": 1}, "peek": peek});
    let plain = json!({"attributes": {"client": "a"}});
    let checks = [check("a", 600), check("a", 600), unknown(false), unknown(true), check("b", 0), plain];
    let body = server.post("/v1/check/batch", &json!({"checks": checks})).json();
    let results = body["results"].as_array().unwrap();
    let allowed: Vec<Option<bool>> = results.iter().map(|result| result["allowed"].as_bool()).collect();
    assert_eq!(allowed, [Some(true), Some(false), None, None, Some(true), Some(true)], "{body}");
    for index in [2, 3] {
        let error = &results[index]["error"];
        assert_eq!(error["code"], "unknown_rule", "{body}");
        assert_eq!(error["field"], format!("checks[{index}].costs.token"), "{body}");
    }
    assert_eq!((remaining(&results[4]), remaining(&results[5])), ([8, 1000], [7, 399]));
}

#[test]
fn d2_an_invalid_cost_of_a_rule_names_the_rule_and_costs_nothing() {
    let server = server("invalid");
    let many: serde_json::Map<String, Value> = (0..65).map(|i| (i.to_string(), json!(1))).collect();
    for (costs, field, code, status) in [
        (json!({"token": 1}), "costs.token", "unknown_rule", 404),
        (json!({"tokens": -1}), "costs.tokens", "invalid_body", 400),
        (json!({"tokens": "5"}), "costs.tokens", "invalid_body", 400),
        (json!({"tokens": 1_000_000_000_000_000_u64}), "costs.tokens", "invalid_cost", 400),
        (json!(many), "costs", "invalid_cost", 400),
    ] {
        let answer = server.post("/v1/check", &json!({"attributes": {"client": "a"}, "costs": costs}));
        let body = answer.json();
        assert_eq!(answer.status, status, "{costs}: {body}");
        assert_eq!((&body["field"], &body["code"]), (&json!(field), &json!(code)), "{costs}: {body}");
    }
    let twice = r#"{"attributes":{"client":"a"},"costs":{"tokens":1,"tokens":2}}"#;
    let answer = server.send("POST", "/v1/check", &[], twice);
    assert!(answer.status == 400 && answer.body.contains("duplicate name"), "{answer:?}");
    let reserve = json!({"attributes": {"client": "a"}, "costs": {"tokens": 1}});
    assert_eq!(server.post("/v1/reserve", &reserve).status, 400, "a reservation has one cost");
    assert_eq!(remaining(&server.post("/v1/check", &check("a", 0)).json()), [9, 1000]);
}
