//! The first hour: what a new user writes, and what the server makes of it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use crate::common::{Server, TOLLGATE, directory, tollgate};
use crate::rls::{Envoy, descriptor};
use crate::wire::Wire;
use serde_json::json;

fn written(name: &str, text: &str) -> PathBuf {
    let file = directory(&format!("first-hour-{name}")).join("tollgate.toml");
    fs::write(&file, text).unwrap();
    file
}

/// A server with this configuration, on all protocols.
fn server(name: &str, text: &str) -> Server {
    Server::everywhere(&["--config", written(name, text).to_str().unwrap()])
}

/// The warnings of `tollgate validate`.
fn warnings(name: &str, text: &str) -> Vec<String> {
    let output = tollgate(&["validate", written(name, text).to_str().unwrap()]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    said.lines().filter_map(|line| line.strip_prefix("warning: ")).map(str::to_owned).collect()
}

#[test]
fn c2_a_match_may_list_values() {
    let rules = r#"
        [[rule]]
        name = "write"
        match = { method = ["POST", "PUT"], path = "/api/*" }
        limit = "2/hour fixed"
    "#;
    let server = server("lists", rules);
    let check = |method: &str| {
        server.post("/v1/check", &json!({"attributes": {"method": method, "path": "/api/x"}})).status
    };
    assert_eq!(["POST", "PUT", "POST", "GET"].map(check), [200, 200, 429, 200]);
    let rules = server.admin("GET", "/v1/rules", None).json();
    assert_eq!(rules["rules"][0]["match"], json!({"method": ["POST", "PUT"], "path": "/api/*"}));
}

#[test]
fn c2_validate_warns_of_attributes_that_no_source_supplies() {
    let rule = |text: &str| format!("[[rule]]\nname = \"r\"\nlimit = \"1/s\"\n{text}\n");
    for (text, part) in [
        ("key = [\"ip\"]", "has the attribute \"ip\"; did you mean \"client\"?"),
        ("match = { metod = \"POST\" }", "did you mean \"method\"?"),
        ("key = [\"x-api-key\"]", "did you mean \"header:x-api-key\"?"),
        ("key = [\"plan\"]", "list it in `attributes` under [server]"),
    ] {
        let warnings = warnings("unsupplied", &rule(text));
        assert!(warnings.len() == 1 && warnings[0].contains(part), "{text}: {warnings:?}");
    }
    for text in ["key = [\"client\", \"path\"]", "key = [\"header:x-key\"]", "match = { domain = \"edge\" }"]
    {
        assert_eq!(warnings("supplied", &rule(text)), [""; 0], "{text}");
    }
    let declared = format!("[server]\nattributes = [\"plan\"]\n{}", rule("key = [\"plan\"]"));
    assert_eq!(warnings("declared", &declared), [""; 0]);
    let file = written("logged", &rule("key = [\"ip\"]"));
    let mut server = Server::logging(Command::new(TOLLGATE).arg("serve").arg("--config").arg(file));
    assert!(server.log_line("did you mean").contains("WARN"), "the log at the start says so too");
}

#[test]
fn c4_validate_warns_of_patterns_and_overrides_that_never_match() {
    let overrides = |matches: &[&str]| {
        let rule =
            "[[rule]]\nname = \"r\"\nkey = [\"client\"]\nmatch = { path = \"/api/*\" }\nlimit = \"1/s\"\n";
        let each = |matched: &&str| {
            format!("[[override]]\nrule = \"r\"\nmatch = {{ {matched} }}\nlimit = \"2/s\"\n")
        };
        format!("{rule}{}", matches.iter().map(each).collect::<String>())
    };
    for (matches, part) in [
        (&["path = \"/api/*/x\""][..], "takes a * literally"),
        (&["path = \"/login\""], "because the rule covers no such path"),
        (&["client = \"a*\"", "client = \"ab\""], "because an earlier one matches the same"),
        (&["client = [\"a\", \"b\"]", "client = \"b\", path = \"/api/x\""], "because an earlier one"),
    ] {
        let warnings = warnings("never", &overrides(matches));
        assert!(warnings.len() == 1 && warnings[0].contains(part), "{matches:?}: {warnings:?}");
    }
    for matches in [&["client = \"ab\"", "client = \"a*\""][..], &["path = \"/api/x\""], &["path = \"/*\""]] {
        assert_eq!(warnings("some", &overrides(matches)), [""; 0], "{matches:?}");
    }
}

const PER_CLIENT: &str = "[[rule]]\nname = \"r\"\nkey = [\"client\"]\nlimit = \"9/hour fixed\"\n";

/// The answers of all three protocols to a request that no rule covers: whether each admits it.
fn uncovered(server: &Server) -> [bool; 3] {
    let http = server.post("/v1/check", &json!({"attributes": {"clinet": "alice"}}));
    assert_eq!(http.json()["limits"], json!([]), "{http:?}");
    let mut wire = Wire::connect(server);
    assert_eq!(wire.ask("TOLL.CHECK clinet alice"), "*14");
    assert_eq!(wire.line(), "$7");
    assert_eq!(wire.line(), "allowed");
    let resp = wire.line() == ":1";
    let grpc = Envoy::of(server).allows("edge", &descriptor(&[("clinet", "alice")]));
    [http.status == 200, resp, grpc]
}

#[test]
fn c2_on_uncovered_decides_requests_that_no_rule_covers_over_every_protocol() {
    let (admitting, denying) = (
        server("admitting", PER_CLIENT),
        server("denying", &format!("[server]\non_uncovered = \"deny\"\n{PER_CLIENT}")),
    );
    assert_eq!((uncovered(&admitting), uncovered(&denying)), ([true; 3], [false; 3]));
    for server in [&admitting, &denying] {
        assert_eq!(server.metric("tollgate_uncovered_total"), 3.0);
        assert_eq!(server.get("/check/alice").json()["remaining"], 8);
    }
    let denied = denying.post("/v1/check", &json!({"attributes": {"clinet": "alice"}}));
    assert_eq!((denied.status, &denied.json()["retryAfterMs"]), (429, &json!(null)));
    assert!(denied.body.contains("no rule covers the request"), "{denied:?}");
}

/// A domain of Envoy's YAML is decided by its file alone, and a descriptor that it does not list is
/// uncovered.
#[test]
fn c2_on_uncovered_decides_descriptors_that_the_yaml_does_not_list() {
    let file = written(
        "yaml",
        &format!("[server]\non_uncovered = \"deny\"\nenvoy_config = \"edge.yaml\"\n{PER_CLIENT}"),
    );
    let yaml =
        "domain: edge\ndescriptors:\n  - key: path\n    rate_limit: {unit: hour, requests_per_unit: 9}\n";
    fs::write(file.with_file_name("edge.yaml"), yaml).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let envoy = Envoy::of(&server);
    let (listed, other) = (descriptor(&[("path", "/")]), descriptor(&[("pth", "/")]));
    assert!(envoy.allows("edge", &listed) && !envoy.allows("edge", &other));
    let both = envoy.ask("edge", &[listed, other]);
    assert_eq!(both.overall_code, 1, "a request with a descriptor that is listed is covered: {both:?}");
}

#[test]
fn c2_the_log_names_the_attributes_that_no_rule_covers_once() {
    let file = written("uncovered-log", PER_CLIENT);
    let mut server = Server::logging(Command::new(TOLLGATE).arg("serve").arg("--config").arg(file));
    let hostile = "a\u{1b}[31m\n".repeat(40);
    for _ in 0..3 {
        server.post("/v1/check", &json!({"attributes": {"clinet": "alice", hostile.as_str(): "x"}}));
    }
    server.signal("TERM");
    let log = server.rest_of_log();
    let lines: Vec<&str> = log.lines().filter(|line| line.contains("no rule covers")).collect();
    assert!(lines.len() == 1 && lines[0].contains("did you mean"), "{log}");
    assert!(lines[0].len() < 900 && !log.contains('\u{1b}'), "{log}");
}

const TWO_LIMITS: &str = r#"
    [[rule]]
    name = "r"
    key = ["client"]
    limit = ["1/s", "2/day fixed"]
    [[override]]
    rule = "r"
    match = { client = "gold" }
"#;

/// An override of a burst must not lift the daily cap by accident.
#[test]
fn c4_an_override_replaces_all_limits_or_those_that_it_names() {
    let all = warnings("all-limits", &format!("{TWO_LIMITS}limit = \"9/s\""));
    assert!(all.len() == 1 && all[0].contains("replaces all 2 limits of the rule by 1"), "{all:?}");
    let named = format!("{TWO_LIMITS}limit = {{ \"1 per second\" = \"9/s\" }}");
    assert_eq!(warnings("named-limit", &named), [""; 0]);
    let server = server("named-limit", &named);
    let gold: Vec<u16> = (0..4).map(|_| server.get("/check/gold").status).collect();
    assert_eq!(gold, [200, 200, 429, 429], "the daily cap stays");
    let shown = server.admin("GET", "/v1/rules", None).json();
    assert_eq!(shown["overrides"][0]["limits"], json!(["9/second", "2/day fixed"]));
    for (limit, part) in [
        ("{ \"3/s\" = \"9/s\" }", "it has \"1/second\" and \"2/day fixed\""),
        ("{ \"1/s\" = \"9/z\" }", "unknown unit"),
    ] {
        let file = written("no-such-limit", &format!("{TWO_LIMITS}limit = {limit}"));
        let said = tollgate(&["validate", file.to_str().unwrap()]).stderr;
        let said = String::from_utf8(said).unwrap();
        assert!(said.contains("tollgate.toml:9:9") && said.contains(part), "{said}");
    }
}

#[test]
fn d3_limits_as_people_write_them() {
    for limit in ["10r/h", "10 requests/h", "10/Hour", "10/59m60s"] {
        let server = Server::start(&["--limit", limit]);
        let rules = server.admin("GET", "/v1/rules", None).json();
        assert_eq!(rules["rules"][0]["limits"], json!(["10/hour"]), "{limit}");
    }
}
