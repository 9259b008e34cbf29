//! Limits from the YAML of Envoy's rate limit service, over gRPC.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use common::{Server, TOLLGATE, directory, eventually, tollgate};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use rls::{Envoy, back, descriptor, fields, hits, left, limit, request, under};
use serde_json::{Value, json};

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/rls.rs"]
mod rls;

mod over_limit;
mod reload;
mod validate;

/// A configuration with a bit of everything.
const EDGE: &str = "
domain: edge
descriptors:
  - key: path
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: path
    value: /login
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: path
    value: /api/*
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: path
    value: /health
  - key: path
    value: /api/root
    rate_limit: {unit: hour, requests_per_unit: 12}
  - key: tenant
    value: acme
    rate_limit: {unit: hour, requests_per_unit: 7}
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 4, name: users-of-acme}
      - key: user
        value: root
        rate_limit: {unit: day, requests_per_unit: 9}
  - key: generic_key
    descriptors:
      - key: generic_key
        rate_limit: {unit: hour, requests_per_unit: 6}
  - key: staff
    rate_limit: {unlimited: true}
  - key: banned
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: suspect
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: watched
    shadow_mode: true
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: basic
    rate_limit: {name: basic, unit: hour, requests_per_unit: 1}
  - key: premium
    rate_limit: {name: premium, replaces: [{name: basic}], unit: hour, requests_per_unit: 8}
  - key: detailed
    detailed_metric: true
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: odd
    rate_limit: {unit: 90s, requests_per_unit: 6, algorithm: bucket}
";

/// Writes a file into an empty directory for the test.
fn written(name: &str, text: &str) -> PathBuf {
    let file = directory(&format!("envoy-config-{name}")).join("ratelimit.yaml");
    fs::write(&file, text).unwrap();
    file
}

/// Replaces a file by a rename, as editors do.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, file).unwrap();
}

fn serve(path: &Path) -> (Server, Envoy) {
    let server = Server::everywhere(&["--envoy-config", path.to_str().unwrap()]);
    let envoy = Envoy::of(&server);
    (server, envoy)
}

/// As [`serve`], with the log kept. The shell drops the helper's flags, which turn gRPC off.
fn serve_logging(path: &Path) -> (Server, Envoy) {
    let script =
        r#"exec "$TOLLGATE" serve --http 127.0.0.1:0 --grpc 127.0.0.1:0 --resp off --envoy-config "$FILE""#;
    let mut shell = Command::new("sh");
    let server = Server::logging(shell.args(["-c", script]).env("TOLLGATE", TOLLGATE).env("FILE", path));
    let envoy = Envoy::of(&server);
    (server, envoy)
}

/// A descriptor's limit, unit, name and remaining units.
#[track_caller]
fn shown(envoy: &Envoy, entries: &[(&str, &str)]) -> Option<(u32, Unit, String, u32)> {
    let status = envoy.status("edge", &hits(&descriptor(entries), 0));
    let (count, unit, name) = limit(&status)?;
    Some((count, unit, name.to_owned(), status.limit_remaining))
}

#[test]
fn c2_the_most_specific_descriptor_wins() {
    let (_server, envoy) = serve(&written("specific", EDGE));
    for (path, count, name) in [
        ("/", 5, "edge.path"),
        ("", 5, "edge.path"),
        ("/login/", 5, "edge.path"),
        ("/login", 2, "edge.path_/login"),
        ("/api/", 3, "edge.path_/api/*"),
        ("/api/users", 3, "edge.path_/api/*"),
        ("/api/root", 12, "edge.path_/api/root"),
    ] {
        let expected = Some((count, Unit::Hour, name.to_owned(), count));
        assert_eq!(shown(&envoy, &[("path", path)]), expected, "{path:?}");
    }
    assert_eq!(shown(&envoy, &[("path", "/health")]), None, "a value without a limit is not limited");
    assert!(envoy.allows("edge", &hits(&descriptor(&[("path", "/api/a")]), 3)));
    assert!(!envoy.allows("edge", &descriptor(&[("path", "/api/a")])));
    assert_eq!(
        envoy.left("edge", &descriptor(&[("path", "/api/b")])),
        Some(3),
        "each value of a pattern is an island"
    );
    assert_eq!(envoy.left("edge", &descriptor(&[("path", "/a")])), Some(5));
    let long = "/".repeat(5_000);
    assert!(envoy.allows("edge", &hits(&descriptor(&[("path", &long)]), 5)));
    assert!(!envoy.allows("edge", &descriptor(&[("path", &long)])), "an error would admit the request");
    assert_eq!(envoy.left("edge", &descriptor(&[("path", &format!("{long}/"))])), Some(5));
}

#[test]
fn c2_a_descriptor_matches_at_its_own_depth_and_in_its_order() {
    let (_server, envoy) = serve(&written("depth", EDGE));
    let acme = ("tenant", "acme");
    assert_eq!(shown(&envoy, &[acme]), Some((7, Unit::Hour, "edge.tenant_acme".into(), 7)));
    assert_eq!(shown(&envoy, &[acme, ("user", "ann")]), Some((4, Unit::Day, "users-of-acme".into(), 4)));
    let root = Some((9, Unit::Day, "edge.tenant_acme.user_root".into(), 9));
    assert_eq!(shown(&envoy, &[acme, ("user", "root")]), root);
    for free in [
        &[][..],
        &[("tenant", "other")],
        &[("tenant", "other"), ("user", "ann")],
        &[("user", "ann")],
        &[("user", "ann"), acme],
        &[acme, ("user", "ann"), ("path", "/")],
        &[acme, acme],
        &[("client", "ann")],
        &[("generic_key", "a")],
    ] {
        let status = envoy.status("edge", &descriptor(free));
        assert_eq!((status.code(), limit(&status)), (Code::Ok, None), "{free:?}");
    }
    let ann = descriptor(&[acme, ("user", "ann")]);
    assert!(envoy.allows("edge", &hits(&ann, 4)) && !envoy.allows("edge", &ann));
    assert_eq!(envoy.left("edge", &descriptor(&[acme, ("user", "bob")])), Some(4));
    assert_eq!(envoy.left("edge", &descriptor(&[acme])), Some(7), "the parent is not charged");
    let pair = |one, other| descriptor(&[("generic_key", one), ("generic_key", other)]);
    assert!(envoy.allows("edge", &pair("a", "b")));
    assert_eq!(envoy.left("edge", &pair("a", "b")), Some(5), "a key may occur twice");
    assert_eq!(envoy.left("edge", &pair("b", "a")), Some(6));
}

#[test]
fn unlimited_is_reported_and_shadows_never_deny() {
    let (_server, envoy) = serve(&written("unlimited", EDGE));
    for _ in 0..3 {
        let status = envoy.status("edge", &hits(&descriptor(&[("staff", "ann")]), u64::MAX));
        assert_eq!((status.code(), limit(&status), status.limit_remaining), (Code::Ok, None, u32::MAX));
        assert!(envoy.allows("edge", &descriptor(&[("suspect", "x")])));
        let status = envoy.status("edge", &descriptor(&[("watched", "x")]));
        assert_eq!((status.code(), left(&status)), (Code::Ok, Some(0)));
        assert_eq!(limit(&status), Some((1, Unit::Hour, "edge.watched")));
    }
}

#[test]
fn b8_a_limit_of_zero_denies_and_charges_no_other_descriptor() {
    let (_server, envoy) = serve(&written("nothing", EDGE));
    let path = descriptor(&[("path", "/")]);
    let free = descriptor(&[("other", "x")]);
    let answer = envoy.ask("edge", &[path.clone(), descriptor(&[("banned", "x")]), free]);
    let codes: Vec<Code> = answer.statuses.iter().map(|status| status.code()).collect();
    assert_eq!(codes, [Code::Ok, Code::OverLimit, Code::Ok]);
    assert_eq!(limit(&answer.statuses[1]), Some((0, Unit::Hour, "")));
    assert!(fields(&answer, "retry-after").is_empty(), "{answer:?}");
    assert_eq!(left(&answer.statuses[0]), Some(5), "b3");
    assert_eq!(envoy.left("edge", &path), Some(5));
    let login = descriptor(&[("path", "/login")]);
    assert!(envoy.allows("edge", &hits(&login, 2)));
    let answer = envoy.ask("edge", &[path.clone(), login]);
    assert_eq!(answer.overall_code(), Code::OverLimit);
    assert_eq!(envoy.left("edge", &path), Some(5), "nor does an exhausted one");
}

#[test]
fn a_replaced_limit_does_not_apply_beside_its_replacement() {
    let (_server, envoy) = serve(&written("replaces", EDGE));
    let [basic, premium] = ["basic", "premium"].map(|key| descriptor(&[(key, "ann")]));
    for turn in 0..3 {
        for both in [[&basic, &premium], [&premium, &basic]] {
            let answer = envoy.ask("edge", &both.map(Clone::clone));
            for (sent, status) in both.iter().zip(&answer.statuses) {
                assert_eq!(status.code(), Code::Ok);
                let name = limit(status).map(|limit| limit.2);
                assert_eq!(name, (*sent == &premium).then_some("premium"), "{turn}: {answer:?}");
            }
        }
    }
    assert_eq!(envoy.left("edge", &premium), Some(2));
    assert_eq!(envoy.left("edge", &basic), Some(1), "it was never charged");
    assert!(envoy.allows("edge", &basic) && !envoy.allows("edge", &basic), "alone it counts");
    assert!(envoy.allows("edge", &hits(&premium, 2)));
    assert_eq!(envoy.ask("edge", &[basic, premium]).overall_code(), Code::OverLimit);
}

#[test]
fn units_and_algorithms_that_the_reference_does_not_have() {
    let (_server, envoy) = serve(&written("odd", EDGE));
    let odd = descriptor(&[("odd", "x")]);
    let status = envoy.status("edge", &hits(&odd, 6));
    assert_eq!(limit(&status), Some((6, Unit::Unknown, "edge.odd")));
    assert_eq!((status.code(), status.limit_remaining), (Code::Ok, 0));
    assert!((1..=90).contains(&status.duration_until_reset.unwrap().seconds), "{status:?}");
    // The denied hit is owed and paid off after 15 seconds, and one comes back 15 seconds later. In
    // a window, none would for 90.
    let answer = envoy.ask("edge", &[odd]);
    assert_eq!(answer.overall_code(), Code::OverLimit);
    let retry_after: u64 = fields(&answer, "retry-after")[0].parse().unwrap();
    assert!((16..=30).contains(&retry_after), "{answer:?}");
}

/// The admitted units and the denials of a name in `GET /v1/top`.
fn counted(server: &Server, name: &str) -> (u64, u64) {
    let top = server.admin("GET", "/v1/top?count=1000", None).json();
    let find = |list: &Value| {
        let entry = list.as_array().unwrap().iter().find(|entry| entry["client"] == json!(name));
        entry.map_or(0, |entry| entry["atLeast"].as_u64().unwrap())
    };
    (find(&top["heaviest"]), find(&top["mostDenied"]))
}

#[test]
fn g2_detailed_descriptors_are_counted_by_value() {
    let (server, envoy) = serve(&written("detailed", EDGE));
    let ann = descriptor(&[("detailed", "ann")]);
    assert!(envoy.allows("edge", &hits(&ann, 3)));
    assert!(envoy.allows("edge", &ann));
    assert!(envoy.allows("edge", &descriptor(&[("detailed", "bob")])));
    assert!(envoy.allows("edge", &descriptor(&[("path", "/secret")])));
    assert_eq!(counted(&server, "edge.detailed_ann"), (4, 0));
    assert_eq!(counted(&server, "edge.detailed_bob"), (1, 0));
    assert!(!envoy.allows("edge", &hits(&ann, 2)));
    assert!(!envoy.allows("edge", &hits(&ann, 3)));
    assert_eq!(counted(&server, "edge.detailed_ann"), (4, 2));
    let top = server.admin("GET", "/v1/top", None).body;
    assert!(!top.contains("secret"), "other descriptors are not listed: {top}");
}

#[test]
fn g2_a_detailed_descriptor_that_was_not_charged_is_not_counted_as_admitted() {
    let (server, envoy) = serve(&written("detailed-denied", EDGE));
    let ann = descriptor(&[("detailed", "ann")]);
    let login = descriptor(&[("path", "/login")]);
    assert!(envoy.allows("edge", &hits(&login, 2)));
    assert_eq!(envoy.ask("edge", &[hits(&ann, 3), login]).overall_code(), Code::OverLimit);
    assert_eq!(envoy.left("edge", &ann), Some(5));
    assert_eq!(counted(&server, "edge.detailed_ann").0, 0, "the other descriptor was denied");
}

#[test]
fn g2_a_detailed_descriptor_beside_one_that_is_always_denied_is_not_counted_as_admitted() {
    let (server, envoy) = serve(&written("detailed-banned", EDGE));
    let ann = descriptor(&[("detailed", "ann")]);
    let banned = descriptor(&[("banned", "x")]);
    assert_eq!(envoy.ask("edge", &[hits(&ann, 3), banned]).overall_code(), Code::OverLimit);
    assert_eq!(envoy.left("edge", &ann), Some(5));
    assert_eq!(counted(&server, "edge.detailed_ann").0, 0);
}

#[test]
fn g2_a_refund_of_a_detailed_descriptor_is_not_counted_as_admitted() {
    let limits = written("detailed-back", EDGE);
    let file = limits.with_file_name("tollgate.toml");
    fs::write(&file, format!("[server]\ngrpc_refunds = true\nenvoy_config = {limits:?}")).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let envoy = Envoy::of(&server);
    let ann = descriptor(&[("detailed", "ann")]);
    assert!(envoy.allows("edge", &hits(&ann, 4)));
    assert_eq!(left(&envoy.status("edge", &back(&hits(&ann, 3)))), Some(4));
    assert!(counted(&server, "edge.detailed_ann").0 <= 4, "it never had more than 4");
}

#[test]
fn g1_each_descriptors_rule_has_its_metrics() {
    let (server, envoy) = serve(&written("metrics", EDGE));
    let login = descriptor(&[("path", "/login")]);
    assert!(envoy.allows("edge", &login) && envoy.allows("edge", &login) && !envoy.allows("edge", &login));
    assert!(envoy.allows("edge", &hits(&descriptor(&[("watched", "x")]), 1)));
    assert!(envoy.allows("edge", &hits(&descriptor(&[("watched", "x")]), 1)));
    for (rule, outcome, expected) in [
        ("edge.path_/login", "allowed", 2.0),
        ("edge.path_/login", "denied", 1.0),
        ("edge.path", "allowed", 0.0),
        ("edge.watched", "shadow_denied", 1.0),
    ] {
        let metric = format!("tollgate_rule_decisions_total{{rule=\"{rule}\",outcome=\"{outcome}\"}}");
        assert_eq!(server.metric(&metric), expected, "{metric}");
    }
}

#[test]
fn an_uncovered_descriptor_is_counted() {
    let (server, envoy) = serve(&written("uncovered", EDGE));
    assert!(envoy.allows("edge", &descriptor(&[("pfad", "/login")])));
    assert_eq!(server.metric("tollgate_uncovered_total"), 1.0);
    assert!(envoy.allows("edge", &descriptor(&[("path", "/login")])));
    assert_eq!(server.metric("tollgate_uncovered_total"), 1.0);
}

#[test]
fn a_domain_without_a_file_is_decided_by_the_rules() {
    let (server, envoy) = serve(&written("domains", EDGE));
    let ann = descriptor(&[("client", "ann"), ("path", "/login")]);
    let status = envoy.status("inside", &ann);
    assert_eq!((limit(&status), left(&status)), (Some((10, Unit::Minute, "per-client")), Some(9)));
    assert_eq!(envoy.left("edge", &ann), None, "a domain with a file is decided by that file alone");
    assert_eq!(envoy.left("inside", &descriptor(&[("path", "/login")])), None);
    assert_eq!(server.get("/check/ann").json()["remaining"], 8, "http knows nothing of descriptors");
    let inline = under(&descriptor(&[("path", "/login")]), 50, RateLimitUnit::Hour);
    assert_eq!(left(&envoy.status("edge", &inline)), Some(49), "an inline limit takes precedence");
    assert_eq!(envoy.left("edge", &descriptor(&[("path", "/login")])), Some(2));
}
