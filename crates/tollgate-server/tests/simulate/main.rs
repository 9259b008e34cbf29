//! `tollgate simulate`, as a process: logs in, reports out.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use common::{TOLLGATE, directory, tollgate};
use serde_json::{Value, json};

mod bad_input;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/node.rs"]
mod node;
mod page;
#[path = "../../../tollgate-http/tests/common/python.rs"]
mod python;
#[expect(dead_code, reason = "grpc and envoy_config use the rest")]
#[path = "../common/rls.rs"]
mod rls;
mod suggest;

/// A line of the combined format, so many seconds after noon.
fn line(client: &str, second: u64, path: &str) -> String {
    let (hour, minute, second) = (12 + second / 3_600, second / 60 % 60, second % 60);
    let time = format!("17/Nov/2026:{hour:02}:{minute:02}:{second:02} +0000");
    format!("{client} - - [{time}] \"GET {path} HTTP/1.1\" 200 7 \"-\" \"test\"\n")
}

/// Two clients: `a` sends five requests at noon and one a minute later, `b` one of them between.
fn small_log() -> Vec<String> {
    let mut lines: Vec<String> = (0..5).map(|_| line("192.0.2.1", 0, "/")).collect();
    lines.push(line("192.0.2.2", 30, "/login"));
    lines.push(line("192.0.2.1", 60, "/"));
    lines
}

fn write(directory: &Path, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
    let path = directory.join(name);
    fs::write(&path, bytes).unwrap();
    path
}

fn simulate(logs: &[&Path], arguments: &[&str]) -> Output {
    let logs = logs.iter().map(|log| log.to_str().unwrap());
    tollgate(&std::iter::once("simulate").chain(logs).chain(arguments.iter().copied()).collect::<Vec<_>>())
}

/// The report as JSON.
fn report(logs: &[&Path], arguments: &[&str]) -> Value {
    let ran = simulate(logs, &[arguments, &["--json"]].concat());
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    serde_json::from_slice(&ran.stdout).unwrap()
}

#[test]
fn c9_a_calendar_limit_is_replayed_on_the_calendar_of_the_log() {
    // Two hours before and after midnight in Auckland, which is at 11:00Z, and all on one day of
    // UTC.
    let at = |hour: u64| {
        format!("192.0.2.1 - - [17/Nov/2026:{hour:02}:00:00 +0000] \"GET / HTTP/1.1\" 200 7 \"-\" \"t\"\n")
    };
    let log = [9, 10, 11, 12].map(at).concat();
    let log = write(&directory("simulate-calendar"), "access.log", log);
    let limits = ["--limit", "1/day at Pacific/Auckland", "--limit", "1/month", "--limit", "1/day at UTC"];
    let report = report(&[&log], &limits);
    let numbers = [0, 1, 2].map(|index| {
        let candidate = &report["candidates"][index];
        (
            candidate["limit"].as_str().unwrap(),
            candidate["admitted"].as_u64(),
            candidate["longestWaitMs"].as_u64(),
        )
    });
    let hours = |hours: u64| Some(hours * 3_600_000);
    assert_eq!(numbers[0], ("1/day at Pacific/Auckland", Some(2), hours(23)));
    assert_eq!(numbers[1], ("1/month", Some(1), hours(13 * 24 + 14)));
    assert_eq!(numbers[2], ("1/day at UTC", Some(1), hours(14)));
}

#[test]
fn the_numbers_of_a_report_are_those_of_its_log() {
    let log = write(&directory("simulate-numbers"), "access.log", small_log().concat());
    let report = report(&[&log], &["--limit", "2/min fixed", "--limit", "9/min log"]);
    let traffic = &report["traffic"];
    assert_eq!(
        (&traffic["requests"], &traffic["clients"], &traffic["spanMs"]),
        (&json!(7), &json!(2), &json!(60_000))
    );
    assert_eq!(
        (&traffic["from"], &traffic["to"]),
        (&json!("2026-11-17T12:00:00Z"), &json!("2026-11-17T12:01:00Z"))
    );
    let tight = &report["candidates"][0];
    assert_eq!(
        (&tight["limit"], &tight["admitted"], &tight["denied"]),
        (&json!("2/minute fixed"), &json!(4), &json!(3))
    );
    assert_eq!((&tight["clientsTouched"], &tight["longestWaitMs"]), (&json!(1), &json!(60_000)));
    let worst = json!([{ "client": "192.0.2.1", "requests": 6, "denied": 3, "longestWaitMs": 60_000 }]);
    assert_eq!(tight["worst"], worst);
    assert_eq!(tight["clientsByShareDenied"][0], json!({ "upToPercent": 0, "clients": 1 }));
    assert_eq!(tight["clientsByShareDenied"][5], json!({ "upToPercent": 50, "clients": 1 }));
    assert_eq!(tight["deniedOverTime"][0], 3);
    assert_eq!(
        (&report["candidates"][1]["denied"], &report["log"]["formats"]),
        (&json!(0), &json!(["combined"]))
    );
}

#[test]
fn compressed_split_and_piped_logs_give_the_same_report() {
    let directory = directory("simulate-inputs");
    let lines = small_log();
    let whole = write(&directory, "whole.log", lines.concat());
    let limit = ["--limit", "2/min fixed"];
    let expected = report(&[&whole], &limit);
    let same = |report: &Value| {
        assert_eq!(report["traffic"], expected["traffic"]);
        assert_eq!(report["candidates"], expected["candidates"]);
    };
    let every_other = |first: usize| lines.iter().skip(first).step_by(2).cloned().collect::<String>();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gz.write_all(every_other(0).as_bytes()).unwrap();
    let gz = write(&directory, "even.log.gz", gz.finish().unwrap());
    let zst = |text: &str| {
        ruzstd::encoding::compress_to_vec(text.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest)
    };
    // Two frames, joined inside a line.
    let odd = every_other(1);
    let (one, other) = odd.split_at(odd.len() / 2);
    let zst = write(&directory, "odd.log.zst", [zst(one), zst(other)].concat());
    same(&report(&[&gz, &zst], &limit));
    for arguments in [&["--json"][..], &["--json", "--html", "/dev/null"]] {
        let mut command = Command::new(TOLLGATE);
        let mut piped = command
            .args(["simulate", "--limit", "2/min fixed"])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        piped.stdin.take().unwrap().write_all(lines.concat().as_bytes()).unwrap();
        same(&serde_json::from_slice(&piped.wait_with_output().unwrap().stdout).unwrap());
    }
}

#[test]
fn a_configuration_decides_by_all_its_rules_and_attributes() {
    let directory = directory("simulate-config");
    let log = write(&directory, "access.log", small_log().concat());
    let rules = r#"
        [[rule]]
        name = "per-client"
        key = ["client"]
        limit = "3/min fixed"
        [[rule]]
        name = "login"
        match = { path = "/login*" }
        key = ["client"]
        limit = "1/min"
        cost = 2
    "#;
    let config = write(&directory, "tollgate.toml", rules);
    let report = report(&[&log], &["--config", config.to_str().unwrap()]);
    let candidate = &report["candidates"][0];
    assert_eq!(
        (&candidate["denied"], &candidate["neverAdmitted"]),
        (&json!(3), &json!(1)),
        "two of a, and the login"
    );
    let by_rule = json!([{ "rule": "per-client", "denied": 2 }, { "rule": "login", "denied": 1 }]);
    assert_eq!(candidate["deniedByRule"], by_rule);
}

#[test]
fn keys_and_costs_are_read_from_any_field() {
    let directory = directory("simulate-keys");
    let call = |user: &str, team: &str, tokens: u64| json!({ "at": "2026-11-17T12:00:00Z", "who": { "name": user }, "team": team, "usage": { "total": tokens } });
    let calls = [call("a", "x", 60), call("a", "y", 60), call("a", "x", 60), call("b", "x", 10)];
    let log = write(&directory, "api.jsonl", calls.map(|call| format!("{call}\n")).concat());
    let fields =
        ["--field", "time=at", "--field", "user=who.name", "--cost", "usage.total", "--limit", "100/min"];
    let by_user = report(&[&log], &[&fields[..], &["--key", "user"]].concat());
    assert_eq!((&by_user["traffic"]["clients"], &by_user["candidates"][0]["denied"]), (&json!(2), &json!(2)));
    let by_both = report(&[&log], &[&fields[..], &["--key", "user,team"]].concat());
    assert_eq!((&by_both["traffic"]["clients"], &by_both["candidates"][0]["denied"]), (&json!(3), &json!(1)));
    assert_eq!(by_both["candidates"][0]["worst"][0]["client"], "a + x");
    assert_eq!(by_both["traffic"]["units"], 190);
    let by_path = write(&directory, "paths.log", small_log().concat());
    let by_path = report(&[&by_path], &["--key", "path:/login", "--limit", "1/min"]);
    assert_eq!((&by_path["traffic"]["clients"], &by_path["traffic"]["withoutKey"]), (&json!(1), &json!(6)));
}

#[test]
fn the_terminal_shows_a_summary_charts_and_the_worst_clients() {
    let log = write(&directory("simulate-terminal"), "access.log", small_log().concat());
    let ran = simulate(&[&log], &["--limit", "2/min fixed"]);
    let text = String::from_utf8(ran.stdout).unwrap();
    for part in [
        "requests   7",
        "clients    2",
        "denied     3 (42.8571 %)",
        "waits      up to 1m",
        "█",
        "░",
        "25 to 50 %",
    ] {
        assert!(text.contains(part), "{part:?} in {text}");
    }
    assert!(text.trim_end().ends_with("192.0.2.1"), "{text}");
    let plain = String::from_utf8(simulate(&[&log], &[]).stdout).unwrap();
    assert!(plain.contains("--suggest"), "what to do next: {plain}");
}

/// In a pseudo-terminal of 80 columns and 24 lines.
#[test]
fn a_terminal_shows_the_progress_and_then_only_the_report() {
    let lines: String =
        (0..60_000).map(|nth| line(&format!("198.51.100.{}", nth % 256), nth / 10, "/")).collect();
    let log = write(&directory("simulate-progress"), "access.log", lines);
    let steps = json!([
        ["wrote", "replaying ["],
        ["wrote", "requests, "],
        ["wrote", " left"],
        ["see", "waits up to"],
        ["miss", " left"],
    ]);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/terminal.py");
    let mut played = Command::new(python::python_with("pyte==0.8.2").join("python"));
    played.arg(script).arg(steps.to_string()).args([TOLLGATE, "simulate"]).arg(log);
    let played = played.args(["--limit", "1/min fixed"]).output().unwrap();
    assert!(played.status.success(), "{}", String::from_utf8_lossy(&played.stderr));
    let ended: Value = serde_json::from_slice(&played.stdout).unwrap();
    assert_eq!(ended["code"], 0, "{ended}");
    assert!(ended["wide"].as_u64().unwrap() <= 80, "{ended}");
}

/// A log is judged as the server judges the requests.
#[test]
fn f5_a_path_of_a_log_is_normalised_as_the_server_does() {
    let directory = directory("simulate-paths");
    let long = format!("{}/login", "/.".repeat(2_000));
    let spelled = ["/login", "/%6Cogin", "//login/", "/a/../login;x?y", "/LOGIN", &long];
    let lines: String = spelled.iter().map(|path| line("192.0.2.1", 0, path)).collect();
    let log = write(&directory, "access.log", lines);
    for (setting, denied) in [("normalized", 4), ("case-insensitive", 5), ("raw", 0)] {
        let rules = "[[rule]]\nname = \"login\"\nmatch = { path = \"/login\" }\nlimit = \"1/hour fixed\"\n";
        let config = format!("[server]\npath = \"{setting}\"\n{rules}");
        let config = write(&directory, "tollgate.toml", config);
        let report = report(&[&log], &["--config", config.to_str().unwrap()]);
        assert_eq!(report["candidates"][0]["denied"], denied, "{setting}: {report}");
    }
}
