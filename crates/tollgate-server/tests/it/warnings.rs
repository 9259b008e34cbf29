//! `warn`: softer than a denial, on every protocol.

use std::fs;

use serde_json::{Value, json};

use crate::common::{Server, directory};
use crate::rls::{Envoy, descriptor, fields};
use crate::wire::Wire;

const RULE: &str = r#"
    [[rule]]
    name = "per-client"
    key = ["client"]
    limit = "5/hour fixed"
    warn = "80%"
"#;

#[test]
fn a_warning_is_in_the_header_the_body_and_the_metrics() {
    let file = directory("warnings").join("tollgate.toml");
    fs::write(&file, RULE).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let warned: Vec<(u16, Option<String>, Value)> = (0..6)
        .map(|_| {
            let answer = server.get("/check/alice");
            let header = answer.header("ratelimit-warning").map(str::to_owned);
            (answer.status, header, answer.json()["warning"].clone())
        })
        .collect();
    let warning = |used: u64| (200, Some(format!("\"per-client\";u={used}")), json!(used));
    assert_eq!(warned[2], (200, None, Value::Null));
    assert_eq!(warned[3], warning(80));
    assert_eq!(warned[4], warning(100));
    assert_eq!(warned[5], (429, None, Value::Null), "a denial is no warning");
    assert_eq!(server.metric(r#"tollgate_rule_warned_total{rule="per-client"}"#), 2.0);
    let checked = server.post("/v1/check", &json!({"attributes": {"client": "bob"}, "cost": 4})).json();
    assert_eq!((&checked["warning"], &checked["limits"][0]["warning"]), (&json!(80), &json!(80)));
}

#[test]
fn a_warning_is_in_grpcs_header_fields_and_in_toll_check() {
    let file = directory("warnings-elsewhere").join("tollgate.toml");
    fs::write(&file, RULE).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let envoy = Envoy::of(&server);
    let warned: Vec<Vec<String>> = (0..6)
        .map(|_| {
            let answer = envoy.ask("edge", &[descriptor(&[("client", "carol")])]);
            fields(&answer, "ratelimit-warning").into_iter().map(str::to_owned).collect()
        })
        .collect();
    let warning = |used: u64| vec![format!("\"per-client\";u={used}")];
    assert_eq!(warned[2..], [vec![], warning(80), warning(100), vec![]]);
    let mut wire = Wire::connect(&server);
    assert_eq!(wire.ask("TOLL.CHECK client dave COST 3"), "*14");
    let mut wire = Wire::connect(&server);
    assert_eq!(wire.ask("TOLL.CHECK client dave COST 1"), "*16");
    while wire.line() != "warning" {}
    assert_eq!(wire.line(), ":80");
}
