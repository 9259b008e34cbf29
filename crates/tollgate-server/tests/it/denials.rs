//! The log of denials: who was denied, by which rule, over which protocol.

use std::fs;
use std::process::Command;

use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use serde_json::Value;

use crate::common::{Server, TOLLGATE, directory};
use crate::rls::{Envoy, descriptor, under};
use crate::wire::Wire;

const RULES: &str = r#"
    [[rule]]
    name = "per-client"
    key = ["client"]
    limit = "1/hour fixed"
    [[rule]]
    name = "edge"
    match = { domain = "edge" }
    key = ["remote_address"]
    limit = "1/hour fixed"
"#;

/// A server with its log, on all protocols.
fn serve(name: &str, settings: &str) -> Server {
    let file = directory(&format!("denials-{name}")).join("tollgate.toml");
    fs::write(&file, format!("{settings}{RULES}")).unwrap();
    let free = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
    Server::with_log(Command::new(TOLLGATE).arg("serve").args(free).arg("--config").arg(file))
}

/// The lines of the log of denials.
fn lines(mut server: Server) -> Vec<Value> {
    server.signal("TERM");
    let log = server.rest_of_log();
    let lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    lines.filter(|line| line["target"] == "tollgate::denied").collect()
}

#[test]
fn g2_a_denial_is_a_line_with_its_client_rule_and_protocol() {
    let server = serve("protocols", "");
    (0..3).for_each(|_| drop(server.get("/check/alice")));
    let mut wire = Wire::connect(&server);
    for _ in 0..3 {
        wire.send("TOLL.CHECK client bob\r\nPING\r\n");
        while wire.line() != "+PONG" {}
    }
    let envoy = Envoy::of(&server);
    for _ in 0..3 {
        envoy.status("edge", &descriptor(&[("remote_address", "203.0.113.9")]));
    }
    let top = server.admin("GET", "/v1/top", None).json();
    let denied: Vec<&Value> = top["mostDenied"].as_array().unwrap().iter().map(|one| &one["rule"]).collect();
    assert_eq!(denied, ["per-client", "per-client"], "{top}");
    assert_eq!(top["heaviest"][0].get("rule"), None, "{top}");
    // An open connection would hold the stop up.
    drop((wire, envoy));
    let lines = lines(server);
    let said: Vec<[&str; 4]> = lines
        .iter()
        .map(|line| ["client", "rule", "protocol", "cause"].map(|field| line[field].as_str().unwrap_or("")))
        .collect();
    assert_eq!(
        said,
        [
            ["alice", "per-client", "http", "limit"],
            ["bob", "per-client", "resp", "limit"],
            ["domain=edge,remote_address=203.0.113.9", "edge", "grpc", "limit"],
        ],
        "the second denial of each is counted, not logged"
    );
}

#[test]
fn g2_a_denial_by_an_envoy_limit_of_0_is_a_line_like_any_other() {
    let yaml = directory("denials-zero-yaml").join("edge.yaml");
    let limit = |key: &str, name: &str| {
        format!("  - key: {key}\n    rate_limit: {{{name}unit: hour, requests_per_unit: 0}}\n")
    };
    let limits = limit("banned", "") + &limit("closed", "name: closed-for-now, ");
    fs::write(&yaml, format!("domain: yaml\ndescriptors:\n{limits}")).unwrap();
    let server = serve("zero", &format!("[server]\nenvoy_config = {yaml:?}\n"));
    let envoy = Envoy::of(&server);
    let inline = under(&descriptor(&[("user", "carol")]), 0, RateLimitUnit::Hour);
    for _ in 0..2 {
        assert!(!envoy.allows("yaml", &descriptor(&[("banned", "alice")])));
        assert!(!envoy.allows("yaml", &descriptor(&[("closed", "bob")])));
        assert!(!envoy.allows("other", &inline));
    }
    // An open connection would hold the stop up.
    drop(envoy);
    let lines = lines(server);
    let said: Vec<[&str; 4]> = lines
        .iter()
        .map(|line| ["client", "rule", "protocol", "cause"].map(|field| line[field].as_str().unwrap_or("")))
        .collect();
    assert_eq!(
        said,
        [
            ["banned=alice", "yaml", "grpc", "limit"],
            ["closed=bob", "closed-for-now", "grpc", "limit"],
            ["user=carol", "envoy.override", "grpc", "limit"],
        ]
    );
}

#[test]
fn g2_the_lines_of_a_client_are_sampled_and_counted() {
    let server = serve("sampled", "");
    let mut wire = Wire::connect(&server);
    wire.send("TOLL.CHECK client carol\r\n".repeat(1_002));
    wire.send("PING\r\n");
    while wire.line() != "+PONG" {}
    let counts: Vec<u64> = lines(server).iter().map(|line| line["denials"].as_u64().unwrap()).collect();
    assert_eq!(counts, [1, 1_000]);
}

#[test]
fn g2_names_in_the_log_of_denials_are_cut_escaped_or_masked() {
    let hostile = format!("%1B[31m%0A{}", "x".repeat(200));
    let plain = serve("hostile", "");
    (0..2).for_each(|_| drop(plain.get(&format!("/check/{hostile}"))));
    let lines_of_plain = lines(plain);
    let name = lines_of_plain[0]["client"].as_str().unwrap();
    assert!(lines_of_plain.len() == 1 && name.starts_with("\u{1b}[31m\nxxx") && name.len() < 70, "{name:?}");
    let masked = serve("masked", "[server]\nhash_keys_in_logs = true\n");
    (0..2).for_each(|_| drop(masked.get("/check/alice")));
    let name = lines(masked)[0]["client"].clone();
    assert!(!name.as_str().unwrap().contains("alice"), "{name}");
}
