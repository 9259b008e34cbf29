//! The Redis protocol: the real server and unmodified clients.

use std::collections::HashMap;
use std::fs;
use std::io::Write as _;
use std::process::{Command, Output, Stdio};

use common::{Server, TOKEN, directory};
use node::node_tools;
use python::python_with;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use redis::{Client, Connection, ErrorKind, RedisError, TlsCertificates, Value};
use serde_json::json;
use tokio::runtime;
use tokio::task::JoinSet;
use wire::{Wire, command};

#[path = "../common/mod.rs"]
mod common;
#[path = "../common/node.rs"]
mod node;
#[path = "../../../tollgate-http/tests/common/python.rs"]
mod python;
#[path = "../common/wire.rs"]
mod wire;

mod admin;
mod clients;
mod record;
mod throttle;
mod transactions;

/// RESP2 and RESP3, as flags of `redis-cli`.
const VERSIONS: [&str; 2] = ["-2", "-3"];

fn port(server: &Server) -> &str {
    server.listens("resp").rsplit(':').next().unwrap()
}

/// `redis-cli`, which shows the type of a reply.
fn redis_cli(server: &Server, version: &str) -> Command {
    let mut command = Command::new("redis-cli");
    command.args(["-p", port(server), "--no-raw", version]).env_remove("REDISCLI_AUTH");
    command
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap().trim_end().to_owned()
}

/// The output for one command, on a new connection.
fn cli(server: &Server, version: &str, command: &str) -> String {
    said(&redis_cli(server, version).args(command.split(' ')).output().unwrap())
}

/// The output for several commands on one connection, without blank lines.
fn session(server: &Server, version: &str, commands: &[&str]) -> Vec<String> {
    let mut client = redis_cli(server, version);
    let mut client = client.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    client.stdin.take().unwrap().write_all((commands.join("\n") + "\n").as_bytes()).unwrap();
    let said = said(&client.wait_with_output().unwrap());
    said.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// The output for a reply of `CL.THROTTLE`.
fn five(numbers: [i64; 5]) -> String {
    let line = |(index, number)| format!("{}) (integer) {number}", index + 1);
    numbers.into_iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
}

/// The numbers in the output.
fn numbers(shown: &str) -> Vec<i64> {
    shown.lines().map(|line| line.rsplit(' ').next().unwrap().parse().unwrap()).collect()
}

/// How many requests a rule has admitted and denied.
fn counts(server: &Server, rule: &str) -> (u64, u64) {
    let stats = server.admin("GET", "/v1/stats", None).json();
    let rule = stats["rules"].as_array().unwrap().iter().find(|stats| stats["rule"] == rule).unwrap().clone();
    (rule["allowed"].as_u64().unwrap(), rule["denied"].as_u64().unwrap())
}

/// The Rust client, on a new connection.
fn connect(server: &Server, user: &str, version: &str) -> Result<Connection, RedisError> {
    Client::open(format!("redis://{user}{}/?protocol={version}", server.listens("resp")))?.get_connection()
}

#[test]
fn d2_an_invalid_command_is_an_error_and_costs_neither_budget_nor_connection() {
    let server = Server::everywhere(&[]);
    let integer = "(error) ERR value is not an integer or out of range";
    let numbers = "(error) ERR max_burst is at least 0, count and period at least 1";
    let quantity = "(error) ERR quantity is from 0 to 999999999999999";
    let throttle = "(error) ERR wrong number of arguments for 'cl.throttle' command";
    let check = "(error) ERR wrong number of arguments for 'toll.check' command";
    let cases = [
        ("CL.THROTTLE", throttle),
        ("CL.THROTTLE k 9 1", throttle),
        ("CL.THROTTLE k 9 1 3600 1 1", throttle),
        ("CL.THROTTLE k x 1 3600", integer),
        ("CL.THROTTLE k 9 1.5 3600", integer),
        ("CL.THROTTLE k 9 1 3600s", integer),
        ("CL.THROTTLE k 9 1 + 3600", integer),
        ("CL.THROTTLE k 9 1 3600 \"\"", integer),
        ("CL.THROTTLE k 9 1 99999999999999999999", integer),
        ("CL.THROTTLE k -1 1 3600", numbers),
        ("CL.THROTTLE k 9 0 3600", numbers),
        ("CL.THROTTLE k 9 1 0", numbers),
        ("CL.THROTTLE k 9 1 3600 -1", quantity),
        ("CL.THROTTLE k 9 1 3600 1000000000000000", quantity),
        ("CL.THROTTLE k 9223372036854775807 1 3600", "(error) ERR "),
        ("CL.THROTTLE k 9 9223372036854775807 3600", "(error) ERR "),
        ("CL.THROTTLE k 9 1 9223372036854775807", "(error) ERR "),
        ("TOLL.CHECK", check),
        ("TOLL.CHECK PEEK COST 1", check),
        ("TOLL.CHECK client", check),
        ("TOLL.CHECK client k client k", "(error) ERR 'client' is given twice"),
        ("TOLL.CHECK client k COST 1 cost 1", "(error) ERR 'cost' is given twice"),
        ("TOLL.CHECK client k COST", check),
        ("TOLL.CHECK client k COST x", integer),
        ("TOLL.CHECK client k COST -1", "(error) ERR the cost is from 0 to 999999999999999"),
        ("TOLL.CHECK client k COST 1000000000000000", "(error) ERR the cost is from 0 to 999999999999999"),
        ("PING a b", "(error) ERR wrong number of arguments for 'ping' command"),
        ("GET k", "(error) ERR unknown command 'get', with args beginning with: 'k'"),
        ("NONSENSE", "(error) ERR unknown command 'nonsense'"),
        ("CLIENT NONSENSE", "(error) ERR unknown subcommand 'nonsense' of CLIENT"),
        ("HELLO 4", "(error) NOPROTO unsupported protocol version"),
        ("HELLO x", "(error) ERR Protocol version is not an integer or out of range"),
        ("HELLO 3 NONSENSE", "(error) ERR syntax error in HELLO option 'nonsense'"),
        ("SELECT 1", "(error) ERR DB index is out of range"),
    ];
    for version in VERSIONS {
        let mut commands: Vec<&str> = cases.iter().map(|(command, _)| *command).collect();
        commands.push("CL.THROTTLE k 9 1 3600 0");
        let answers = session(&server, version, &commands);
        for ((command, expected), answer) in cases.iter().zip(&answers) {
            assert!(answer.starts_with(expected), "{command}: {answer}");
        }
        assert_eq!(answers[cases.len()..].join("\n"), five([0, 10, 10, -1, 0]));
    }
    assert_eq!(server.get("/check/k?cost=0").json()["remaining"], 10);
}

#[test]
fn toll_check_replies_with_a_map_or_a_flat_array() {
    let server = Server::everywhere(&[]);
    for version in VERSIONS {
        let check = |rest: &str| cli(&server, version, &format!("TOLL.CHECK client alice{version}{rest}"));
        let first = check("");
        let reset_at =
            server.get(&format!("/check/alice{version}?cost=0")).json()["resetAt"].as_u64().unwrap();
        let reported = |left: u64| decision(version, true, left, reset_at, 0);
        assert_eq!(first, reported(9));
        assert_eq!(check(" COST 3"), reported(6));
        assert_eq!(check(" PEEK"), reported(6), "it takes nothing");
        assert_eq!(check(" cost 2 peek"), reported(6));
        assert_eq!(check(" COST 0"), reported(6));
        assert_eq!(check(" PEEK COST 6"), reported(6));
        for left in (0..6).rev() {
            assert_eq!(check(""), reported(left));
        }
        let denied = check("");
        let is_wait = |line: &&str| line.starts_with("10) ") || line.contains("\"retry_after_ms\" => ");
        let wait = numbers(denied.lines().find(is_wait).unwrap())[0].try_into().unwrap();
        assert!((1..=60_000).contains(&wait), "{denied}");
        assert_eq!(denied, decision(version, false, 0, reset_at, wait));
        let never = cli(&server, version, &format!("TOLL.CHECK client other{version} COST 11"));
        assert_eq!(never.matches("(nil)").count(), 1, "how long to wait: {never}");
        let uncovered = cli(&server, version, "TOLL.CHECK path /x");
        assert!(server.metric("tollgate_uncovered_total") > 0.5);
        assert_eq!(uncovered.matches("(nil)").count(), 3, "limit, remaining, rule: {uncovered}");
    }
    assert_eq!(counts(&server, "per-client"), (20, 4), "peeks aside");
}

/// The output for a decision under the default limit.
fn decision(version: &str, allowed: bool, remaining: u64, reset_at_ms: u64, retry_after_ms: u64) -> String {
    let truth = |truth: bool| {
        if version == "-3" { format!("({truth})") } else { format!("(integer) {}", u8::from(truth)) }
    };
    let pairs = [
        ("allowed", truth(allowed)),
        ("limit", "(integer) 10".to_owned()),
        ("remaining", format!("(integer) {remaining}")),
        ("reset_at_ms", format!("(integer) {reset_at_ms}")),
        ("retry_after_ms", format!("(integer) {retry_after_ms}")),
        ("rule", "\"per-client\"".to_owned()),
        ("degraded", truth(false)),
    ];
    let lines = pairs.iter().enumerate().map(|(index, (name, value))| match version {
        "-3" => format!("{}# \"{name}\" => {value}", index + 1),
        _ => format!("{:>2}) \"{name}\"\n{:>2}) {value}", 2 * index + 1, 2 * index + 2),
    });
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn inline_commands_work_and_quit_closes() {
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    assert_eq!(wire.ask("PING"), "+PONG");
    assert_eq!(wire.ask("\r\n   ping  "), "+PONG", "blank lines and blanks mean nothing");
    wire.send("CL.THROTTLE typed 15 30 60\n");
    assert_eq!(wire.five(), [0, 16, 15, -1, 2]);
    wire.send("CL.THROTTLE again 15 30 60\r\nPING\r\n*2\r\n$4\r\nECHO\r\n$2\r\n\r\n\r\nQUIT\r\nPING\r\n");
    assert_eq!(wire.five(), [0, 16, 15, -1, 2]);
    assert_eq!(wire.rest(), "+PONG\r\n$2\r\n\r\n\r\n+OK\r\n");
}

#[test]
fn a_pipeline_is_answered_in_order() {
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    wire.send(
        "CL.THROTTLE k 1 1 3600\r\nECHO a\r\nCL.THROTTLE k 1 1 3600\r\nCL.THROTTLE k 1 x 3600\r\n\
         CL.THROTTLE k 1 1 3600\r\nTOLL.CHECK client k\r\nTOLL.CHECK client k PEEK\r\nHELLO 3\r\n\
         TOLL.CHECK client k\r\nNONSENSE\r\nCL.THROTTLE other 1 1 3600\r\nQUIT\r\n",
    );
    assert_eq!(wire.five()[..3], [0, 2, 1]);
    assert_eq!((wire.line().as_str(), wire.line().as_str()), ("$1", "a"));
    assert_eq!(wire.five()[..3], [0, 2, 0]);
    assert!(wire.line().starts_with("-ERR value is not an integer"));
    assert_eq!(wire.five()[..3], [1, 2, 0]);
    let rest = wire.rest();
    let left = "remaining\r\n:";
    let reported: Vec<&str> = rest.split(left).skip(1).map(|rest| rest.split('\r').next().unwrap()).collect();
    assert_eq!(reported, ["9", "9", "8"], "the peek sees what was taken just before it: {rest}");
    assert_eq!((rest.matches("*14\r\n").count(), rest.matches("%7\r\n").count()), (2, 2), "{rest}");
    let (unknown, throttled) = (rest.find("-ERR unknown command"), rest.find("*5\r\n:0\r\n:2\r\n:1\r\n"));
    assert!(unknown.is_some() && unknown < throttled && rest.ends_with("+OK\r\n"), "{rest}");
}

#[test]
fn c2_attributes_select_the_rule_and_its_key() {
    let file = directory("resp-attributes").join("tollgate.toml");
    let rules = r#"
        [[rule]]
        name = "login"
        match = { path = "/login" }
        key = ["client"]
        limit = "3/hour"
        [[rule]]
        name = "region"
        key = ["region", "client"]
        limit = "5/hour"
    "#;
    fs::write(&file, rules).unwrap();
    let server = Server::everywhere(&["--config", file.to_str().unwrap()]);
    let mut client = connect(&server, "", "resp3").unwrap();
    let mut check = |attributes: &[&str]| {
        let reported: HashMap<String, Value> =
            redis::cmd("TOLL.CHECK").arg(attributes).query(&mut client).unwrap();
        (reported["rule"].clone(), reported["remaining"].clone())
    };
    let of = |rule: &str, left: i64| (Value::BulkString(rule.into()), Value::Int(left));
    assert_eq!(check(&["client", "a", "path", "/login", "COST", "2"]), of("login", 1));
    assert_eq!(check(&["path", "/login", "client", "b"]), of("login", 2));
    assert_eq!(check(&["client", "a", "region", "eu"]), of("region", 4));
    assert_eq!(check(&["client", "a", "region", "us"]), of("region", 4));
    assert_eq!(check(&["region", "eu", "PEEK", "client", "a"]), of("region", 4));
    assert_eq!(check(&["region", "eu", "client", "a", "path", "/login"]), of("login", 0));
    assert_eq!(check(&["client", "a"]), (Value::Nil, Value::Nil));
}

#[test]
fn b5_keys_of_any_bytes_are_separate() {
    let server = Server::everywhere(&[]);
    let mut wire = Wire::connect(&server);
    let long = vec![b'x'; 60 << 10];
    let longer = vec![b'x'; (60 << 10) + 1];
    let keys: [&[u8]; 14] = [
        b"",
        b"a",
        b"A",
        b"a\0",
        b"\0",
        b"\0\0",
        b"\0=00",
        b"\xff",
        b"\xff\xfe",
        b"\xef\xbf\xbd",
        b"\r\n",
        b" a",
        &long,
        &longer,
    ];
    let throttle = |key: &[u8]| command([b"CL.THROTTLE", key, b"0", b"1", b"3600"]);
    let check = |key: &[u8]| command([b"TOLL.CHECK", b"client".as_slice(), key, b"COST", b"10"]);
    for limited in [0, 1] {
        for key in keys {
            wire.send(throttle(key));
            assert_eq!(wire.five()[..2], [limited, 1], "{:?}", key.escape_ascii().to_string());
            wire.send(check(key));
            assert_eq!([(); 4].map(|()| wire.line())[3], format!(":{}", 1 - limited));
            (0..19).for_each(|_| drop(wire.line()));
        }
    }
    // Each can be reset without the others.
    assert_eq!(wire.ask(&format!("AUTH {TOKEN}")), "+OK");
    for key in keys {
        wire.send(command([b"TOLL.RESET", key]));
        assert_eq!(wire.line(), "+OK");
        wire.send(throttle(key));
        assert_eq!(wire.five()[0], 0);
        wire.send(throttle(key));
        assert_eq!(wire.five()[0], 1);
    }
}

#[test]
fn commands_are_counted_in_the_metrics() {
    let server = Server::everywhere(&[]);
    let answered =
        || server.metric("tollgate_http_request_duration_seconds_count{route=\"resp\"}").round() as u64;
    assert_eq!(answered(), 0);
    let mut wire = Wire::connect(&server);
    wire.send("PING\r\nCL.THROTTLE k 0 1 3600\r\nCL.THROTTLE k 0 1 3600\r\nNONSENSE\r\n\r\n");
    assert_eq!(wire.line(), "+PONG");
    assert_eq!((wire.five()[0], wire.five()[0]), (0, 1));
    assert!(wire.line().starts_with("-ERR"));
    // Commands are counted shortly after the reply.
    common::eventually("all four are counted", || answered() == 4);
    for (outcome, count) in [("allowed", 1), ("denied", 1)] {
        let name = format!("tollgate_rule_decisions_total{{rule=\"cl.throttle\",outcome=\"{outcome}\"}}");
        assert_eq!(server.metric(&name).round() as u64, count, "{name}");
    }
}
