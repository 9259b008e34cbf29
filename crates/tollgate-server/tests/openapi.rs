//! `/openapi.json` and `/metrics`, tested with third-party tools: schemathesis, which generates
//! requests from the document and checks every response, and the parser of Prometheus's Python
//! client.

use std::fs;
use std::process::{Command, Stdio};

use common::{Server, TOKEN, directory};
use python::python_with;

mod common;
#[path = "../../tollgate-http/tests/common/python.rs"]
mod python;

/// No pattern describes a limit's notation, so invalid ones are generated. An invalid check of a
/// batch is reported within a 200.
const SETTINGS: &str = r#"
[[operations]]
include-name = "PUT /v1/clients/{client}/limits"
checks.positive_data_acceptance.enabled = false
[[operations]]
include-name = "POST /v1/check/batch"
checks.negative_data_rejection.enabled = false
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
    assert!(said.contains("Tested: 24"), "every operation: {said}");
    assert_eq!(server.get("/healthz").status, 200);
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
