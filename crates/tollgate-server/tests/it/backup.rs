//! `POST /v1/backup`: the state of a running server, for `tollgate restore`.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use crate::common::{Server, TOKEN, TOLLGATE, directory, eventually};
use serde_json::{Value, json};

const LIMIT: u64 = 1_000_000;

fn remaining(server: &Server, client: &str) -> u64 {
    server.get(&format!("/check/{client}?cost=0")).json()["remaining"].as_u64().unwrap()
}

/// Takes a backup with an ordinary client.
fn backup(server: &Server) -> Result<String, ureq::Error> {
    let request = ureq::post(format!("http://{}/v1/backup", server.address));
    let mut response = request.header("authorization", format!("Bearer {TOKEN}")).send_empty()?;
    response.body_mut().with_config().limit(u64::MAX).read_to_string()
}

/// Asks for a backup and reads only the beginning of the answer.
fn begun_backup(server: &Server) -> TcpStream {
    let mut stream = TcpStream::connect(&server.address).unwrap();
    write!(
        stream,
        "POST /v1/backup HTTP/1.1\r\nhost: tollgate\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\n\r\n"
    )
    .unwrap();
    let mut status = [0; 12];
    stream.read_exact(&mut status).unwrap();
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

fn restore(data: &Path, dump: &str) {
    let mut restore = Command::new(TOLLGATE);
    restore.args(["restore", "--data"]).arg(data).stdin(Stdio::piped());
    let mut restore = restore.spawn().unwrap();
    restore.stdin.take().unwrap().write_all(dump.as_bytes()).unwrap();
    assert!(restore.wait().unwrap().success());
}

#[test]
fn a_backup_under_traffic_restores_the_numbers() {
    let limit = format!("{LIMIT}/d fixed");
    let workplace = directory("backup-traffic");
    let (old, new) = (workplace.join("old"), workplace.join("new"));
    for (store, arguments) in [("memory", vec![]), ("disk", vec!["--data", old.to_str().unwrap()])] {
        let server = Server::start(&[&["--limit", &limit], &*arguments].concat());
        let quiet: Vec<Value> = (0..500)
            .map(|client| json!({ "attributes": { "client": format!("quiet-{client}") }, "cost": client }))
            .collect();
        assert_eq!(server.post("/v1/check/batch", &json!({ "checks": quiet })).status, 200);
        assert_eq!(server.admin("PUT", "/v1/clients/bad/block", Some(&json!({ "for": "1h" }))).status, 200);
        let (admitted, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
        let (dump, before, after) = thread::scope(|scope| {
            let traffic = scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    assert_eq!(server.get("/check/busy").status, 200);
                    admitted.fetch_add(1, Ordering::Relaxed);
                }
            });
            eventually("traffic flows", || admitted.load(Ordering::Relaxed) > 10);
            let before = admitted.load(Ordering::Relaxed);
            let dump = backup(&server);
            is_over.store(true, Ordering::Relaxed);
            traffic.join().unwrap();
            (dump.unwrap(), before, admitted.load(Ordering::Relaxed))
        });
        drop(server);

        let data = new.join(store);
        restore(&data, &dump);
        let server = Server::start(&["--limit", &limit, "--data", data.to_str().unwrap()]);
        for client in [0, 1, 7, 250, 499] {
            assert_eq!(remaining(&server, &format!("quiet-{client}")), LIMIT - client, "{store}");
        }
        let busy = LIMIT - remaining(&server, "busy");
        assert!((before..=after).contains(&busy), "{store}: {before} <= {busy} <= {after}");
        assert_eq!(server.get("/check/bad").status, 429, "{store}: blocked");
    }
}

#[test]
fn a_backup_for_a_slow_reader_is_not_buffered() {
    let mut command = Command::new(TOLLGATE);
    let mut server = Server::logging(command.args(["serve", "--limit", "10/d fixed"]));
    for batch in 0..30 {
        let check = |client| json!({ "attributes": { "client": format!("{batch}-{client}") } });
        let checks: Vec<Value> = (0..10_000).map(check).collect();
        assert_eq!(server.post("/v1/check/batch", &json!({ "checks": checks })).status, 200);
    }
    // The peak of everything but a pause.
    let size = u64::try_from(backup(&server).unwrap().len()).unwrap();
    let peak = server.peak_bytes();
    let mut stream = begun_backup(&server);
    // The reader pauses, and the server goes on deciding.
    for _ in 0..2_000 {
        assert_eq!(server.get("/check/0-0?cost=0").status, 200);
    }
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).unwrap();
    assert!(String::from_utf8_lossy(&rest).contains("{\"end\":300000}"), "it is complete");
    let grown = server.peak_bytes().saturating_sub(peak);
    assert!(grown < size / 10, "{grown} bytes more for a backup of {size}");

    drop(begun_backup(&server));
    server.log_line("a backup ended early");
}

#[test]
fn with_redis_the_answer_says_what_to_back_up() {
    let server = Server::start(&["--redis", "redis://127.0.0.1:1"]);
    let answer = server.admin("POST", "/v1/backup", None);
    assert_eq!((answer.status, &answer.json()["code"]), (501, &json!("unsupported")));
    assert!(answer.json()["detail"].as_str().unwrap().contains("BGSAVE"), "{answer:?}");
}
