//! `/openapi.json` and `/metrics`, tested with third-party tools: schemathesis, which generates
//! requests from the document and checks every response; Redocly's linter; openapi-typescript,
//! whose client a compiler checks; and the parser of Prometheus's Python client.

use std::fs;
use std::process::{Command, Stdio};

use crate::common::{Server, TOKEN, directory};
use crate::node::node_tools;
use crate::python::python_with;
use serde_json::{Value, json};

/// No pattern describes a limit's notation, so invalid ones are generated. An invalid check of a
/// batch is reported within a 200. A stream without an end cannot be compared with a schema. A
/// settlement and a short time to live end a hold, and the tool expects only DELETE to do so.
const SETTINGS: &str = r#"
[[operations]]
include-name = "PUT /v1/clients/{client}/limits"
checks.positive_data_acceptance.enabled = false
[[operations]]
include-name = "POST /v1/playground"
checks.positive_data_acceptance.enabled = false
[[operations]]
include-name = "POST /v1/check/batch"
checks.negative_data_rejection.enabled = false
[[operations]]
include-path-regex = "^/v1/(reserve|acquire)/"
checks.ensure_resource_availability.enabled = false
[[operations]]
include-name = "GET /v1/live"
enabled = false
"#;

/// A server whose rules cover every request and deny some.
fn server(name: &str) -> Server {
    let file = directory(&format!("openapi-{name}")).join("tollgate.toml");
    let rules = r#"
        [[rule]]
        name = "per-client"
        key = ["client"]
        limit = ["100/s burst 200", "10000/hour sliding"]
        [[rule]]
        name = "everyone \"at once\""
        limit = "100000/s"
        shadow = true
    "#;
    fs::write(&file, rules).unwrap();
    Server::with_config(&file)
}

#[test]
fn the_server_conforms_to_its_openapi_document() {
    let server = server("document");
    let tool = python_with("schemathesis==4.32.5").join("schemathesis");
    let workplace = directory("openapi-tool");
    fs::write(workplace.join("schemathesis.toml"), SETTINGS).unwrap();
    let ran = Command::new(tool)
        .current_dir(workplace)
        .args(["run", &format!("http://{}/openapi.json", server.address)])
        .args(["--header", &format!("Authorization: Bearer {TOKEN}")])
        .args(["--max-examples", "25", "--seed", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success(), "{said}");
    assert!(said.contains("Tested: 32"), "every operation: {said}");
    assert_eq!(server.get("/healthz").status, 200);
}

/// A program that uses the generated types. It has an error where TypeScript expects one.
const PROGRAM: &str = r#"
import type { operations, paths } from "./schema";
type Set = paths["/v1/clients/{client}/limits"]["put"];
export const body: Set["requestBody"]["content"]["application/json"] = { rule: "per-client", limit: ["1/s", "9/d"] };
export const reach: string = ({} as Set["responses"][200]["content"]["application/json"]).reach;
export const remaining: operations["by_path"]["responses"][200]["content"]["application/json"]["remaining"] = 9;
// @ts-expect-error a number is no limit
export const wrong: typeof body = { rule: "per-client", limit: 5 };
"#;

#[test]
fn a_linter_and_a_generator_of_clients_accept_the_document() {
    let server = server("linted");
    let (tools, workplace) = (node_tools(), directory("openapi-linted"));
    fs::write(workplace.join("openapi.json"), server.get("/openapi.json").body).unwrap();
    fs::write(workplace.join("program.ts"), PROGRAM).unwrap();
    let commands: [(&str, &[&str]); 3] = [
        ("redocly", &["lint", "--extends=recommended-strict", "openapi.json"]),
        ("openapi-typescript", &["openapi.json", "--output", "schema.d.ts"]),
        ("tsc", &["--strict", "--noEmit", "program.ts"]),
    ];
    for (program, arguments) in commands {
        let mut command = Command::new(tools.join("node_modules/.bin").join(program));
        command.current_dir(&workplace).args(arguments);
        // Neither statistics nor a search for newer versions.
        command.env("REDOCLY_TELEMETRY", "off").env("REDOCLY_SUPPRESS_UPDATE_NOTICE", "true");
        let ran = command.output().unwrap();
        let said = [ran.stdout, ran.stderr].map(|said| String::from_utf8_lossy(&said).into_owned());
        assert!(ran.status.success(), "{program}: {}", said.concat());
    }
}

#[test]
fn the_document_says_where_the_server_is_and_which_operations_need_the_token() {
    let document = server("described").get("/openapi.json").json();
    assert_eq!(document["servers"], json!([{ "url": "/" }]));
    assert_eq!(document["components"]["securitySchemes"]["admin"]["scheme"], "bearer");
    assert_eq!(document["security"], json!([{}]), "no token by default");
    let mut ids = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let is_admin = operation["tags"][0] == "administration";
            let security = if is_admin { json!([{ "admin": [] }]) } else { Value::Null };
            assert_eq!(operation["security"], security, "{method} {path}");
            assert_eq!(operation["responses"]["401"].is_object(), is_admin, "{method} {path}");
            ids.push(operation["operationId"].as_str().unwrap().to_owned());
        }
    }
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "{ids:?}");
}

#[test]
fn the_pattern_of_a_duration_matches_what_the_server_accepts() {
    const MATCHING: &str = "const [pattern, ...texts] = process.argv.slice(1);
        console.log(JSON.stringify(texts.filter((text) => new RegExp(pattern, 'u').test(text))))";
    let server = server("durations");
    let schemas = &server.get("/openapi.json").json()["components"]["schemas"];
    let reserve =
        |ttl: &str| server.post("/v1/reserve", &json!({ "attributes": { "client": ttl }, "ttl": ttl }));
    let block = |span: &str| server.admin("PUT", "/v1/clients/a/block", Some(&json!({ "for": span })));
    let agree =
        |schema: &str, field: &str, status: &dyn Fn(&str) -> u16, valid: &[&str], invalid: &[&str]| {
            let pattern = schemas[schema]["properties"][field]["pattern"].as_str().unwrap();
            let mut node = Command::new("node");
            let matching =
                node.args(["-e", MATCHING, "--", pattern]).args(valid).args(invalid).output().unwrap();
            assert_eq!(serde_json::from_slice::<Value>(&matching.stdout).unwrap(), json!(valid), "{field}");
            let accepted = valid.iter().chain(invalid).filter(|span| status(span) == 200);
            assert_eq!(accepted.collect::<Vec<_>>(), valid.iter().collect::<Vec<_>>(), "{field}");
        };
    let valid = ["500ms", "30s", "90 s", "3600s", "10m", "60 minutes", "1m30s", "1h"];
    agree(
        "Reserve",
        "ttl",
        &|ttl| reserve(ttl).status,
        &valid,
        &["", "0s", "10", "3601s", "61m", "2h", "1s1m"],
    );
    let valid = ["500ms", "90s", "86400s", "10m", "20 minutes", "1h30m", "30d", "2 weeks"];
    agree("Block", "for", &|span| block(span).status, &valid, &["", "0s", "10", "10x", "1m1h"]);
}

#[test]
fn prometheus_parses_the_metrics() {
    /// Prints the value of one sample; fails if the page is not what it should be.
    const READER: &str = "
import sys
from prometheus_client.openmetrics.parser import text_string_to_metric_families
families = list(text_string_to_metric_families(sys.stdin.read()))
samples = [s for f in families for s in f.samples]
assert all(f.documentation for f in families)
assert len({(s.name, tuple(sorted(s.labels.items()))) for s in samples}) == len(samples)
print([s.value for s in samples if s.name == 'tollgate_rule_decisions_total' and s.labels == {'rule': 'everyone \"at once\"', 'outcome': 'allowed'}])
";
    let server = server("metrics");
    for client in 0..100 {
        assert_eq!(server.get(&format!("/check/{client}")).status, 200);
    }
    server.get("/no/such/path");
    let page = server.get("/metrics");
    assert_eq!(
        page.header("content-type"),
        Some("application/openmetrics-text; version=1.0.0; charset=utf-8")
    );
    let series = page.body.lines().filter(|line| !line.starts_with('#')).count();
    let mut reader = Command::new(python_with("prometheus-client==0.26.0").join("python"));
    let mut reader =
        reader.args(["-c", READER]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut reader.stdin.take().unwrap(), page.body.as_bytes()).unwrap();
    let read = reader.wait_with_output().unwrap();
    assert!(read.status.success());
    assert_eq!(String::from_utf8(read.stdout).unwrap(), "[100]\n");
    for client in 100..200 {
        server.get(&format!("/check/{client}?cost=100000"));
        server.get(&format!("/{client}"));
    }
    let after = server.get("/metrics").body.lines().filter(|line| !line.starts_with('#')).count();
    assert_eq!(series, after, "the number of series does not depend on clients");
}
