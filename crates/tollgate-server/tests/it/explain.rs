//! Why was I denied? `POST /v1/explain` and `tollgate explain` say so, and change nothing.

use std::fs;
use std::process::{Command, Output};

use crate::common::{Server, TOKEN, TOLLGATE, directory};
use serde_json::{Value, json};

const RULES: &str = r#"
    [server]
    attributes = ["plan"]
    [[rule]]
    name = "global"
    limit = "5000/s"
    [[rule]]
    name = "per-client"
    key = ["client"]
    limit = ["3/hour fixed", "100/day fixed"]
    [[rule]]
    name = "login"
    match = { path = ["/login", "/signin*"], method = "POST" }
    key = ["client"]
    limit = "login"
    shadow = true
    [[rule]]
    name = "tenant"
    key = ["plan"]
    limit = "10/s"
    [[override]]
    rule = "per-client"
    match = { client = "partner-*" }
    limit = "1000/hour fixed"
"#;

fn server(name: &str) -> Server {
    let file = directory(&format!("explain-{name}")).join("tollgate.toml");
    fs::write(&file, RULES).unwrap();
    Server::with_config(&file)
}

fn explain(server: &Server, attributes: Value) -> Value {
    let answer = server.admin("POST", "/v1/explain", Some(&json!({ "attributes": attributes })));
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

fn rule<'a>(explanation: &'a Value, name: &str) -> &'a Value {
    let rules = explanation["rules"].as_array().unwrap();
    rules.iter().find(|rule| rule["rule"] == name).unwrap_or_else(|| panic!("no {name} in {explanation}"))
}

/// alice used her three of an hour, and asks why.
#[test]
fn the_rules_that_match_those_that_do_not_and_the_limit_that_denies_are_named() {
    let server = server("named");
    let alice = json!({"client": "alice", "path": "/search", "method": "GET"});
    for _ in 0..3 {
        assert_eq!(server.post("/v1/check", &json!({ "attributes": alice })).status, 200);
    }
    let before = server.admin("GET", "/v1/stats", None).json()["total"].clone();
    let explained = explain(&server, alice.clone());
    assert_eq!((&explained["allowed"], &explained["rule"]), (&json!(false), &json!("per-client")));
    let hour = explained["retry"]["inSeconds"].as_u64().unwrap();
    assert!((3_590..=3_600).contains(&hour), "{explained}");

    let per_client = rule(&explained, "per-client");
    assert_eq!(per_client["key"], json!({"client": "alice"}));
    let limits: Vec<(&Value, &Value)> = per_client["limits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| (&limit["notation"], &limit["allowed"]))
        .collect();
    assert_eq!(limits, [(&json!("3/hour fixed"), &json!(false)), (&json!("100/day fixed"), &json!(true))]);

    let login = rule(&explained, "login");
    assert_eq!((&login["covers"], &login["limits"]), (&json!(false), &json!([])));
    assert_eq!(
        login["obstacles"],
        json!([
            {"kind": "mismatch", "attribute": "method", "value": "GET", "required": ["POST"]},
            {"kind": "mismatch", "attribute": "path", "value": "/search", "required": ["/login", "/signin*"]},
        ])
    );
    assert_eq!(
        rule(&explained, "tenant")["obstacles"],
        json!([{"kind": "missing_key", "attribute": "plan"}])
    );

    // It changes nothing and is not counted.
    let left = |explanation: &Value| rule(explanation, "per-client")["limits"][1]["remaining"].clone();
    assert_eq!(left(&explain(&server, alice)), left(&explained));
    assert_eq!(server.admin("GET", "/v1/stats", None).json()["total"], before);
}

#[test]
fn an_override_a_block_and_a_shadow_are_named() {
    let server = server("override");
    let partner = explain(&server, json!({"client": "partner-7", "path": "/signin/x", "method": "POST"}));
    let per_client = rule(&partner, "per-client");
    assert_eq!(per_client["override"]["match"], json!({"client": "partner-*"}));
    assert_eq!(per_client["limits"][0]["remaining"], 1_000);
    assert_eq!(rule(&partner, "login")["shadow"], true);
    assert!(partner["retry"].is_null(), "admitted now: {partner}");

    server.admin("PUT", "/v1/clients/bob/block", Some(&json!({"for": "10m"})));
    let blocked = explain(&server, json!({"client": "bob"}));
    assert_eq!((&blocked["allowed"], &blocked["blocked"]), (&json!(false), &json!(true)));
    assert_eq!(rule(&blocked, "per-client")["limits"][0]["blocked"], true);
    assert_eq!(rule(&blocked, "global")["limits"][0]["allowed"], true);
}

/// Whatever the cost, the explanation is what the check then decides.
#[test]
fn what_is_explained_is_what_the_check_decides() {
    let server = server("agrees");
    for cost in [1, 0, 2, 1, 1, 4, 5_001] {
        let body = json!({"attributes": {"client": "carol"}, "cost": cost});
        let explained = server.admin("POST", "/v1/explain", Some(&body)).json();
        let peek = json!({"attributes": {"client": "carol"}, "cost": cost, "peek": true});
        let peeked = server.post("/v1/check", &peek).json();
        let checked = server.post("/v1/check", &body).json();
        for field in ["allowed", "rule", "remaining", "limit"] {
            assert_eq!(explained[field], peeked[field], "{field} at {cost}");
        }
        assert_eq!(explained["allowed"], checked["allowed"], "{cost}");
        let limits: Vec<Value> = explained["rules"]
            .as_array()
            .unwrap()
            .iter()
            .flat_map(|rule| rule["limits"].as_array().unwrap().clone())
            .collect();
        let notations =
            |limits: &[Value]| limits.iter().map(|limit| limit["notation"].clone()).collect::<Vec<_>>();
        assert_eq!(notations(&limits), notations(peeked["limits"].as_array().unwrap()));
    }
}

#[test]
fn an_explanation_needs_the_token_and_a_valid_request() {
    let server = server("token");
    let body = json!({"attributes": {"client": "a"}});
    assert_eq!(server.post("/v1/explain", &body).status, 401);
    let wrong = server.admin("POST", "/v1/explain", Some(&json!({"attributes": {"client": ""}})));
    assert_eq!((wrong.status, &wrong.json()["field"]), (400, &json!("attributes.client")));
}

fn run(server: &Server, arguments: &[&str]) -> Output {
    let mut command = Command::new(TOLLGATE);
    command.arg("explain").args(arguments).args(["--server", &format!("http://{}", server.address)]);
    command.env("TOLLGATE_ADMIN_TOKEN", TOKEN).env("HOME", "/nonexistent").output().unwrap()
}

#[test]
fn the_command_explains_in_words_and_its_exit_code_is_the_decision() {
    let server = server("command");
    let admitted = run(&server, &["client=alice", "path=/search"]);
    let said = String::from_utf8(admitted.stdout).unwrap();
    assert_eq!(admitted.status.code(), Some(0), "{said}");
    for line in [
        "admitted; per-client has the least left: 3\n",
        "per-client: charges 1\n  admits  3/hour fixed: 3 of 3 left\n  admits  100/day fixed: 100 of 100 left\n",
        "login, a shadow: it never denies: does not cover the request\n",
        "  the request has no method; it must be \"POST\"\n  path is \"/search\", not \"/login\" or \"/signin*\"\n",
        "tenant: does not cover the request\n  the request has no plan, by which the rule counts\n",
    ] {
        assert!(said.contains(line), "{line:?} is missing in\n{said}");
    }
    let denied = run(&server, &["client=alice", "--cost", "4"]);
    let said = String::from_utf8(denied.stdout).unwrap();
    assert_eq!(denied.status.code(), Some(1), "{said}");
    assert!(said.starts_with("denied by per-client; it is never admitted at this cost\n"), "{said}");
    let partner = run(&server, &["client=partner-1"]);
    assert!(String::from_utf8(partner.stdout).unwrap().contains("  override: client = \"partner-*\"\n"));
    let json = run(&server, &["client=alice", "--json"]);
    assert_eq!(serde_json::from_slice::<Value>(&json.stdout).unwrap()["allowed"], true);
    for (wrong, said) in
        [(["client"], "write an attribute and its value, such as client=alice"), (["client=\u{1b}[2J"], "")]
    {
        let output = run(&server, &wrong);
        let text =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(said) && !text.contains('\u{1b}'), "{text}");
    }
}
