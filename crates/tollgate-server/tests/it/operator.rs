//! An operator's day: reloads, blocks, a stop and a start under load, without a lost request.

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::common::{Answer, Server, TOLLGATE, directory, eventually, parse, tollgate};
use serde_json::{Value, json};

/// A client with a persistent connection.
struct Caller {
    stream: BufReader<TcpStream>,
    /// The number of responses.
    answered: u64,
}

impl Caller {
    fn connect(address: &str) -> io::Result<Self> {
        Ok(Self { stream: BufReader::new(TcpStream::connect(address)?), answered: 0 })
    }

    fn get(&mut self, path: &str) -> io::Result<Answer> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: tollgate\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        self.answer()
    }

    fn answer(&mut self) -> io::Result<Answer> {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.stream.read_line(&mut head)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        let mut answer = parse(&head);
        let mut body = vec![0; answer.header("content-length").unwrap().parse().unwrap()];
        self.stream.read_exact(&mut body)?;
        answer.body = String::from_utf8(body).unwrap();
        self.answered += 1;
        Ok(answer)
    }
}

/// Continuous traffic and its count of responses.
#[derive(Default)]
struct Traffic {
    answered: AtomicU64,
    over: AtomicBool,
}

impl Traffic {
    /// Sends requests until the server is gone, and panics if one on an established connection gets
    /// no response.
    fn flow(&self, address: &str, client: &str) {
        while let Ok(mut caller) = Caller::connect(address) {
            loop {
                match caller.get(&format!("/check/{client}")) {
                    Ok(answer) => {
                        assert!(matches!(answer.status, 200 | 429), "{answer:?}");
                        self.answered.fetch_add(1, Ordering::Relaxed);
                        if answer.header("connection") == Some("close") {
                            break;
                        }
                    }
                    // Only a stopping server may refuse a connection without a response.
                    Err(error) => {
                        assert!(
                            self.over.load(Ordering::Relaxed) && caller.answered == 0,
                            "{client}: {error}"
                        );
                        break;
                    }
                }
            }
        }
    }

    /// Waits for `more` responses.
    fn goes_on(&self, more: u64) {
        let before = self.answered.load(Ordering::Relaxed);
        while self.answered.load(Ordering::Relaxed) < before + more {
            thread::yield_now();
        }
    }
}

/// Replaces a file by a rename, as editors do.
fn replace(file: &Path, text: &str) {
    let new = file.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, file).unwrap();
}

fn rules(limit: &str) -> String {
    format!("[[rule]]\nname = \"per-client\"\nkey = [\"client\"]\nlimit = \"{limit}\"\n")
}

fn left(server: &Server, client: &str) -> Value {
    server.get(&format!("/check/{client}?cost=0")).json()["remaining"].clone()
}

#[test]
fn an_operators_day() {
    day("2");
}

#[test]
fn an_operators_day_with_one_thread() {
    day("1");
}

fn day(workers: &str) {
    let file = directory(&format!("operator-day-{workers}")).join("tollgate.toml");
    let name = file.to_str().unwrap().to_owned();
    fs::write(&file, rules("1000/hour fixed")).unwrap();
    assert!(tollgate(&["validate", &name]).status.success());
    let start =
        || Server::logging(Command::new(TOLLGATE).args(["serve", "--workers", workers, "--config", &name]));
    let mut server = start();
    let address = server.address.clone();
    let traffic = Traffic::default();

    thread::scope(|scope| {
        let callers: Vec<_> = (0..4)
            .map(|number| {
                let (traffic, address) = (&traffic, &address);
                scope.spawn(move || traffic.flow(address, &format!("caller-{number}")))
            })
            .collect();
        assert_eq!(server.get("/check/quiet?cost=10").json()["remaining"], 990);
        traffic.goes_on(1_000);

        // A reload under load takes effect and keeps usage.
        replace(&file, &rules("2000/hour fixed"));
        server.log_line("is in effect");
        assert_eq!(left(&server, "quiet"), 1_990);
        fs::write(&file, rules("3000/hour fixed")).unwrap();
        server.log_line("is in effect");
        assert_eq!(left(&server, "quiet"), 2_990, "a write in place is noticed too");
        traffic.goes_on(1_000);

        // An invalid file changes nothing; the log and the metrics report it.
        assert_eq!(server.metric("tollgate_config_stale"), 0.0);
        replace(&file, &rules("4000/hour fixt"));
        let complaint = server.log_line("nothing has changed");
        assert!(complaint.contains("tollgate.toml:4:") && complaint.contains("fixed"), "{complaint}");
        assert_eq!(left(&server, "quiet"), 2_990);
        assert_eq!(server.metric("tollgate_config_stale"), 1.0);
        assert_eq!(server.metric("tollgate_reloads_total{result=\"failed\"}"), 1.0);
        fs::remove_file(&file).unwrap();
        server.signal("HUP");
        server.log_line("cannot read");
        replace(&file, &rules("1000/hour fixed"));
        server.log_line("is in effect");
        assert_eq!((left(&server, "quiet"), server.metric("tollgate_config_stale")), (json!(990), 0.0));
        traffic.goes_on(1_000);

        // A block and its removal affect no other client.
        assert_eq!(server.admin("PUT", "/v1/clients/quiet/block", Some(&json!({"for": "1h"}))).status, 200);
        server.log_line("a client was blocked");
        assert_eq!(server.get("/check/quiet").status, 429);
        assert_eq!(server.admin("DELETE", "/v1/clients/quiet/block", None).status, 204);
        assert_eq!(server.get("/check/quiet").json()["remaining"], 989);
        traffic.goes_on(1_000);

        // A stop under load answers every accepted request.
        traffic.over.store(true, Ordering::Relaxed);
        server.signal("TERM");
        assert_eq!(server.exit_code(), Some(0));
        for caller in callers {
            caller.join().unwrap();
        }
    });
    assert!(server.log_line("stopped").contains("INFO"));

    let server = start();
    assert_eq!(server.get("/check/quiet").json()["remaining"], 999, "memory is lost on a restart");
}

#[test]
fn readiness_fails_first_and_a_second_signal_skips_the_delay() {
    let mut command = Command::new(TOLLGATE);
    let mut server = Server::logging(command.arg("serve").env("TOLLGATE_SERVER_STOP_DELAY", "1h"));
    assert_eq!(server.get("/readyz").status, 200);
    server.signal("TERM");
    server.log_line("stopping");
    let answer = server.get("/readyz");
    assert_eq!((answer.status, &answer.json()["code"]), (503, &json!("not_ready")));
    assert_eq!(
        (server.get("/healthz").status, server.get("/check/a").status),
        (200, 200),
        "requests are still served"
    );
    server.signal("TERM");
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_request_in_flight_is_finished_before_the_stop() {
    let mut server = Server::logging(Command::new(TOLLGATE).arg("serve"));
    let mut caller = Caller::connect(&server.address).unwrap();
    let body = json!({"attributes": {"client": "a"}}).to_string();
    let (first, second) = body.split_at(10);
    let stream = caller.stream.get_mut();
    write!(stream, "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{first}", body.len())
        .unwrap();
    eventually("the connection is open", || server.metric("tollgate_connections{listener=\"http\"}") >= 2.0);
    server.signal("TERM");
    server.log_line("stopping");
    eventually("connections are refused", || Caller::connect(&server.address).is_err());
    write!(caller.stream.get_mut(), "{second}").unwrap();
    let answer = caller.answer().unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert_eq!(server.exit_code(), Some(0));
}

#[test]
fn a_file_that_lost_its_rules_changes_nothing() {
    let file = directory("operator-lost").join("tollgate.toml");
    fs::write(&file, rules("1000/hour fixed")).unwrap();
    let mut server =
        Server::logging(Command::new(TOLLGATE).args(["serve", "--config", file.to_str().unwrap()]));
    assert_eq!(server.get("/check/a?cost=10").json()["remaining"], 990);
    for lost in ["", "# nothing but a comment\n", "[server]\n", "rule = []"] {
        fs::write(&file, lost).unwrap();
        server.signal("HUP");
        let complaint = server.log_line("in effect");
        assert!(complaint.contains("restart the server"), "{complaint}");
        assert_eq!(
            (left(&server, "a"), server.metric("tollgate_config_stale")),
            (json!(990), 1.0),
            "{lost:?}"
        );
    }
    replace(&file, &rules("2000/hour fixed"));
    server.log_line("is in effect");
    assert_eq!((left(&server, "a"), server.metric("tollgate_config_stale")), (json!(1_990), 0.0));
}

#[test]
fn an_emptied_file_of_settings_changes_nothing() {
    let file = directory("operator-emptied").join("tollgate.toml");
    fs::write(&file, "[server]\nheaders = \"x\"").unwrap();
    let mut server =
        Server::logging(Command::new(TOLLGATE).args(["serve", "--config", file.to_str().unwrap()]));
    fs::write(&file, "").unwrap();
    let complaint = server.log_line("in effect");
    assert!(complaint.contains("restart the server"), "{complaint}");
    assert!(server.get("/check/a").header("x-ratelimit-limit").is_some());
}

#[test]
fn a_per_client_limit_survives_a_reload() {
    let file = directory("operator-own").join("tollgate.toml");
    fs::write(&file, rules("10/hour fixed")).unwrap();
    let mut server =
        Server::logging(Command::new(TOLLGATE).args(["serve", "--config", file.to_str().unwrap()]));
    let limit = json!({"rule": "per-client", "limit": "100/hour fixed"});
    assert_eq!(server.admin("PUT", "/v1/clients/vip/limits", Some(&limit)).status, 200);
    replace(&file, &rules("20/hour fixed"));
    server.log_line("is in effect");
    assert_eq!((left(&server, "vip"), left(&server, "other")), (json!(100), json!(20)));
    replace(
        &file,
        "[server]\ntimeout = \"5s\"\n[store]\nmax_keys = 5\n[[rule]]\nname = \"other\"\nkey = [\"client\"]\nlimit = \"30/hour\"",
    );
    let warning = server.log_line("needs a restart");
    assert!(warning.contains("\"timeout, [store]: "), "only the changed settings: {warning}");
    server.log_line("is in effect");
    assert_eq!(left(&server, "vip"), 30, "its rule is gone");
    assert_eq!(server.admin("GET", "/v1/rules", None).json()["overrides"], json!([]));
    replace(&file, &rules("20/hour fixed"));
    server.log_line("is in effect");
    assert_eq!(left(&server, "vip"), 100, "its rule is back");
}

#[test]
fn a_request_is_logged_with_its_id() {
    let mut command = Command::new(TOLLGATE);
    let mut server =
        Server::logging(command.arg("serve").env("TOLLGATE_SERVER_LOG", "info,tollgate::access=debug"));
    let answer = server.send("GET", "/check/a", &[("x-request-id", "abc-123")], "");
    assert_eq!(answer.header("x-request-id"), Some("abc-123"));
    let line: Value = serde_json::from_str(&server.log_line("answered")).unwrap();
    assert_eq!((&line["request_id"], &line["path"]), (&json!("abc-123"), &json!("/check/a")));
    assert_eq!(
        (&line["status"], &line["method"], &line["from"]),
        (&json!(200), &json!("GET"), &json!("127.0.0.1"))
    );
    assert_eq!(server.admin("DELETE", "/v1/clients/a", None).status, 204);
    let line: Value = serde_json::from_str(&server.log_line("was reset")).unwrap();
    assert!(line["span"]["request_id"].as_str().unwrap().len() > 8, "{line}");
    server.log_line("answered");
    let generated: Vec<String> =
        (0..2).map(|_| server.get("/check/a").header("x-request-id").unwrap().to_owned()).collect();
    assert_ne!(generated[0], generated[1]);
    let line: Value = serde_json::from_str(&server.log_line("answered")).unwrap();
    assert_eq!(line["request_id"], generated[0].as_str());
}

#[test]
fn a_request_without_an_id_is_logged_without_one() {
    let mut command = Command::new(TOLLGATE);
    let mut server = Server::logging(command.args(["serve", "--redis", "redis://127.0.0.1:1"]));
    server.get("/check/a");
    let line: Value = serde_json::from_str(&server.log_line("the store failed")).unwrap();
    assert_eq!(line["span"], json!({"name": "request"}), "{line}");
}

#[test]
fn a_block_is_logged_with_its_duration_and_request() {
    let mut server = Server::logging(Command::new(TOLLGATE).arg("serve"));
    assert_eq!(server.admin("PUT", "/v1/clients/a/block", Some(&json!({"for": "10m"}))).status, 200);
    let line: Value = serde_json::from_str(&server.log_line("a client was blocked")).unwrap();
    assert_eq!((&line["client"], &line["duration"]), (&json!("a"), &json!("600s")), "{line}");
    assert_eq!(line["span"]["name"], "request", "{line}");
}

#[test]
fn reclaimed_keys_are_logged() {
    let file = directory("operator-idle").join("tollgate.toml");
    let rule = "[[rule]]\nname = \"r\"\nkey = [\"client\"]\nlimit = \"1000/ms\"\n";
    fs::write(&file, format!("[store]\nsweep_interval = \"20ms\"\nidle_for = \"1ms\"\n{rule}")).unwrap();
    let mut server =
        Server::logging(Command::new(TOLLGATE).args(["serve", "--config", file.to_str().unwrap()]));
    server.get("/check/a");
    let line: Value = serde_json::from_str(&server.log_line("were reclaimed")).unwrap();
    assert_eq!((&line["reclaimed"], &line["left"]), (&json!(1), &json!(0)));
    assert_eq!(server.metric("tollgate_keys_reclaimed_total"), 1.0);
}
