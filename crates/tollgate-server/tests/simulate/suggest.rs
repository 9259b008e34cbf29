//! `--suggest`: the tightest limits, and that they are the tightest.

use serde_json::Value;

use super::common::directory;
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
    let fixed: u64 = suggestions(&found)[2].1.split('/').next().unwrap().parse().unwrap();
    let tighter = report(&[&log], &["--limit", &format!("{}/min fixed", fixed - 1 - fixed / 100)]);
    assert!(tighter["candidates"][0]["denied"].as_u64().unwrap() * 100 > requests, "{fixed} is the tightest");
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
