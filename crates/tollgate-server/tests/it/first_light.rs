//! F1: the real binary, over a real socket, from the ready line to the last signal.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Output};
use std::thread;

use crate::common::{Server, TOLLGATE};
use serde_json::Value;

fn get(server: &Server, path: &str) -> (u16, Value) {
    let answer = server.get(path);
    (answer.status, answer.json())
}

fn check(server: &Server, arguments: &[&str]) -> Output {
    let url = format!("http://{}", server.address);
    Command::new(TOLLGATE).arg("check").args(arguments).args(["--server", &url]).output().unwrap()
}

#[test]
fn f1_ten_per_minute_and_client_with_no_configuration_at_all() {
    let server = Server::start(&[]);
    let (_, first) = get(&server, "/check/alice");
    for left in (0..9).rev() {
        let (status, body) = get(&server, "/check/alice");
        assert_eq!(
            (status, &body["allowed"], &body["remaining"]),
            (200, &Value::from(true), &Value::from(left))
        );
        assert_eq!(body["resetAt"], first["resetAt"]);
    }
    let (status, denied) = get(&server, "/check/alice");
    assert_eq!(status, 429);
    let reset_at = denied["resetAt"].as_u64().unwrap();
    assert_eq!(denied["detail"], format!("rate limit exceeded; window resets at {reset_at}"));
    assert_eq!(denied["type"], "https://iana.org/assignments/http-problem-types#quota-exceeded");
    assert_eq!(denied["violated-policies"], serde_json::json!(["per-client"]));
    assert_eq!((&denied["allowed"], &denied["degraded"]), (&Value::from(false), &Value::from(false)));
    assert!(denied["retryAfterMs"].as_u64().unwrap() <= 60_000);
    let (status, other) = get(&server, "/check/bob");
    assert_eq!((status, &other["remaining"], &other["limit"]), (200, &Value::from(9), &Value::from(10)));
    assert_eq!(other["rule"], "per-client");
}

#[test]
fn f1_a_cost_is_charged_and_a_cost_of_zero_peeks() {
    let server = Server::start(&["--limit", "100/hour burst 20"]);
    assert_eq!(get(&server, "/check/a?cost=15").1["remaining"], 5);
    assert_eq!(get(&server, "/check/a?cost=0").1["remaining"], 5);
    let (status, denied) = get(&server, "/check/a?cost=6");
    assert_eq!((status, &denied["remaining"]), (429, &Value::from(5)));
    let (status, never) = get(&server, "/check/a?cost=21");
    assert_eq!((status, &never["retryAfterMs"]), (429, &Value::Null));
}

#[test]
fn f1_a_client_is_identified_by_its_percent_decoded_bytes() {
    let server = Server::start(&["--limit", "1/hour"]);
    assert_eq!(get(&server, "/check/%C3%A9t%C3%A9").0, 200);
    assert_eq!(get(&server, "/check/a%2Fb").0, 200);
    assert_eq!(get(&server, "/check/a%2fb").0, 429, "the same client, spelled otherwise");
    assert_eq!(get(&server, "/check/a%00").0, 200);
    assert_eq!(get(&server, "/check/a").0, 200);
    assert_eq!(get(&server, &format!("/check/{}", "x".repeat(1024))).0, 200);
}

#[test]
fn d2_an_error_is_a_problem_body_that_names_the_field() {
    let server = Server::start(&[]);
    for (request, status, field) in [
        ("GET /check/", 400, "client"),
        ("GET /check/%ff%fe", 400, "client"),
        ("GET /check/%zz", 400, "client"),
        ("GET /check/%e", 400, "client"),
        ("GET /check/a?cost", 400, "cost"),
        ("GET /check/a?c%6Fst=x", 400, "cost"),
        ("GET /check/a?cost=", 400, "cost"),
        ("GET /check/a?cost=-1", 400, "cost"),
        ("GET /check/a?cost=+1", 400, "cost"),
        ("GET /check/a?cost=1.5", 400, "cost"),
        ("GET /check/a?cost=1000000000000000", 400, "cost"),
        ("GET /check/a?cost=99999999999999999999999", 400, "cost"),
        ("GET /check/a?cots=5", 400, "cots"),
        ("GET /check/a?cost=1&peek=true", 400, "peek"),
        ("POST /check/a", 405, "method"),
        ("DELETE /check/a", 405, "method"),
        ("GET /chek/a", 404, "path"),
        ("GET /check/a/b", 404, "path"),
        ("GET /dashboard", 404, "path"),
    ] {
        let (method, path) = request.split_once(' ').unwrap();
        let answer = server.send(method, path, &[], "");
        let (head, body) = (&answer.head, &answer.body);
        assert_eq!(answer.status, status, "{request}: {body}");
        assert!(head.contains("content-type: application/problem+json"), "{request}: {head}");
        let problem: Value = serde_json::from_str(body).unwrap();
        assert_eq!(
            (&problem["status"], &problem["field"]),
            (&Value::from(status), &Value::from(field)),
            "{request}"
        );
        assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 20), "{request}: {body}");
        assert_eq!(status == 405, head.contains("allow: "), "{request}: {head}");
    }
    let (status, long) = get(&server, &format!("/check/{}", "x".repeat(1025)));
    assert_eq!((status, &long["code"]), (400, &Value::from("invalid_key")));
    assert_eq!(get(&server, "/check/a").1["remaining"], 9, "none of that cost anything");
}

#[test]
fn sigterm_and_sigint_finish_and_exit_zero() {
    let ends_well = |signal: &str| {
        let mut server = Server::start(&[]);
        assert_eq!(get(&server, "/check/a").0, 200);
        // Neither an idle connection nor an unfinished request may delay the stop.
        let idle = TcpStream::connect(&server.address).unwrap();
        let mut endless = TcpStream::connect(&server.address).unwrap();
        write!(endless, "GET /check/a HTTP/1.1\r\nhost: x\r\n").unwrap();
        server.signal(signal);
        assert_eq!(server.exit_code(), Some(0), "{signal}");
        drop(idle);
        let mut rest = String::new();
        server.process.stdout.take().unwrap().read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "", "nothing else ever goes to stdout");
    };
    thread::scope(|scope| {
        scope.spawn(|| ends_well("TERM"));
        scope.spawn(|| ends_well("INT"));
    });
}

#[test]
fn tollgate_check_exits_zero_one_or_two() {
    let server = Server::start(&["--limit", "1/hour"]);
    let out = |output: &Output| String::from_utf8_lossy(&output.stdout).into_owned();
    let peeked = check(&server, &["a b/ü", "--cost", "0"]);
    assert_eq!((peeked.status.code(), out(&peeked).as_str()), (Some(0), "allowed, 1 left\n"));
    let allowed = check(&server, &["a b/ü"]);
    assert_eq!(allowed.status.code(), Some(0));
    let said = out(&allowed);
    assert!(said.starts_with("allowed, 0 left; the limit is whole again at 2"), "{said}");
    let seconds = said.strip_suffix(" s\n").and_then(|said| said.rsplit_once("Z, in ")).unwrap().1;
    assert!((1..=3_600).contains(&seconds.parse::<u64>().unwrap()), "{said}");
    let denied = check(&server, &["a b/ü"]);
    assert_eq!(denied.status.code(), Some(1));
    assert!(out(&denied).starts_with("denied, try again in "), "{denied:?}");
    let never = check(&server, &["c", "--cost", "2"]);
    assert_eq!((never.status.code(), out(&never).contains("whole limit")), (Some(1), true));
    let invalid = check(&server, &[""]);
    assert_eq!(invalid.status.code(), Some(2));
    let nobody =
        Command::new(TOLLGATE).args(["check", "a", "--server", "http://127.0.0.1:1"]).output().unwrap();
    assert_eq!(nobody.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("tollgate serve"), "{nobody:?}");
}

#[test]
fn tollgate_check_reports_invalid_addresses_and_degraded_decisions() {
    let said = |server: &str| {
        let output = Command::new(TOLLGATE).args(["check", "a", "--server", server]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for server in ["127.0.0.1:1", "localhost"] {
        assert!(said(server).ends_with(&format!("; write http://{server}\n")), "{}", said(server));
    }
    for server in ["ftp://127.0.0.1:1", "http://no such host"] {
        let said = said(server);
        assert!(said.contains("check --server") && !said.contains("is a server running"), "{said}");
    }
    let server = Server::start(&["--redis", "redis://127.0.0.1:1"]);
    let degraded = check(&server, &["a"]);
    let words = String::from_utf8_lossy(&degraded.stdout);
    let said = words.starts_with("allowed") && words.ends_with(", without the store: it does not answer\n");
    assert!(degraded.status.code() == Some(0) && said, "{words}");
}

#[test]
fn command_line_errors_are_sentences_with_a_fix() {
    let tollgate = |arguments: &[&str]| {
        let output = Command::new(TOLLGATE).args(arguments).output().unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let (code, help, _) = tollgate(&[]);
    assert!(code == Some(0) && help.contains("Examples:") && help.contains("tollgate serve"), "{help}");
    let (code, _, complaint) = tollgate(&["serve", "--limit", "10/minuet"]);
    assert!(code == Some(2) && complaint.contains("did you mean \"minute\"?"), "{complaint}");
    let (code, _, complaint) = tollgate(&["serve", "--limit", "100_000_000/day log"]);
    assert!(code == Some(2) && complaint.contains("log_ceiling"), "{complaint}");
    let (code, _, complaint) = tollgate(&["serve", "--envoy-config", "/nowhere.yaml"]);
    assert!(code == Some(2) && complaint.contains("/nowhere.yaml"), "{complaint}");
    let (code, _, complaint) = tollgate(&["serve", "--http", "off", "--grpc", "off", "--resp", "off"]);
    assert!(code == Some(2) && complaint.contains("every listener is off"), "{complaint}");
    let (code, _, complaint) = tollgate(&["serve", "--redis", "redis://user:hunter2@a,b"]);
    assert!(code == Some(2) && complaint.contains("one host"), "{complaint}");
    assert!(!complaint.contains("hunter2"), "{complaint}");
    let taken = Server::everywhere(&[]);
    for protocol in ["http", "grpc", "resp"] {
        let mut arguments = vec!["serve".to_owned()];
        for other in ["http", "grpc", "resp"] {
            let address = if other == protocol { taken.listens(protocol) } else { "off" };
            arguments.extend([format!("--{other}"), address.to_owned()]);
        }
        let (code, _, complaint) = tollgate(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        let said = format!("choose other addresses, or free ports with --{protocol} 127.0.0.1:0, or");
        assert!(code == Some(2) && complaint.contains(&said), "{complaint}");
        assert_eq!(complaint.lines().count(), 1, "{complaint}");
    }
}
