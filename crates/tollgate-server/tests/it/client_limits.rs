//! Per-client limits set over HTTP: how far they reach, and what they survive.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::common::{Answer, Server, directory, tollgate};
use serde_json::{Value, json};

fn serve(data: &Path) -> Server {
    Server::start(&["--limit", "10/h fixed", "--data", data.to_str().unwrap()])
}

fn set(server: &Server, client: &str, limit: Value) -> Answer {
    let limit = json!({ "rule": "per-client", "limit": limit });
    server.admin("PUT", &format!("/v1/clients/{client}/limits"), Some(&limit))
}

fn remaining(server: &Server, client: &str) -> Value {
    server.get(&format!("/check/{client}?cost=0")).json()["remaining"].clone()
}

#[test]
fn in_memory_the_answer_says_that_a_limit_ends_with_the_server() {
    let server = Server::start(&["--limit", "10/h fixed"]);
    let answer = set(&server, "vip", json!("100/h fixed"));
    assert_eq!((answer.status, answer.json()), (200, json!({ "reach": "this server, until it stops" })));
    assert_eq!(remaining(&server, "vip"), 100);
    let answer = server.admin("DELETE", "/v1/clients/vip/limits", None);
    assert_eq!((answer.status, answer.json()), (200, json!({ "reach": "this server, until it stops" })));
    assert_eq!(remaining(&server, "vip"), 10);
}

#[test]
fn a_data_directory_keeps_limits_over_sigkill() {
    let data = directory("client-limits-kept");
    let mut server = serve(&data);
    let answer =
        set(&server, "a%20vip*", json!(["100/h fixed", "200 refill 10 every 100ms reserve 50 refill 5/s"]));
    assert_eq!(
        (answer.status, answer.json()),
        (200, json!({ "reach": "this server, also after a restart" }))
    );
    assert_eq!(set(&server, "other", json!("50/h fixed")).status, 200);
    server.process.kill().unwrap();
    server.exit_code();

    let mut server = serve(&data);
    assert_eq!((remaining(&server, "a%20vip*"), remaining(&server, "other")), (json!(100), json!(50)));
    assert_eq!(remaining(&server, "a%20vip*2"), 10, "the name is no pattern");
    assert_eq!(server.admin("DELETE", "/v1/clients/other/limits?rule=per-client", None).status, 200);
    server.process.kill().unwrap();
    server.exit_code();

    let server = serve(&data);
    assert_eq!((remaining(&server, "a%20vip*"), remaining(&server, "other")), (json!(100), json!(10)));
    let mode = fs::metadata(data.join("client-limits.json")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "it has names");
}

#[test]
fn a_limit_that_cannot_be_written_is_not_in_effect() {
    let data = directory("client-limits-failed");
    let server = serve(&data);
    assert_eq!(set(&server, "vip", json!("100/h fixed")).status, 200);
    // A directory cannot be opened as a file, even by root.
    fs::create_dir(data.join("client-limits.json.new")).unwrap();
    let refused = set(&server, "vip", json!("500/h fixed"));
    assert_eq!((refused.status, &refused.json()["code"]), (503, &json!("store_unavailable")));
    assert_eq!(remaining(&server, "vip"), 100);
    assert_eq!(server.admin("DELETE", "/v1/clients/vip/limits", None).status, 503);
    assert_eq!(remaining(&server, "vip"), 100);
    fs::remove_dir(data.join("client-limits.json.new")).unwrap();
    assert_eq!(set(&server, "vip", json!("500/h fixed")).status, 200);
    assert_eq!(remaining(&server, "vip"), 500);
}

#[test]
fn a_damaged_file_is_refused_with_a_fix() {
    let data = directory("client-limits-damaged");
    let entry =
        |limits: Value| json!([{ "client": "a", "rule": "per-client", "limits": limits }]).to_string();
    let damaged = [
        ("[{".to_owned(), "EOF"),
        (entry(json!(["10/minuet"])), "did you mean"),
        (entry(json!(["1000000/s log"])), "log"),
        (entry(json!([])), "no limits"),
    ];
    for (text, reason) in damaged {
        fs::write(data.join("client-limits.json"), &text).unwrap();
        let refused = tollgate(&["serve", "--http", "127.0.0.1:0", "--data", data.to_str().unwrap()]);
        let message = String::from_utf8_lossy(&refused.stderr).lines().last().unwrap().to_owned();
        assert_eq!(refused.status.code(), Some(2), "{message}");
        assert!(message.contains("client-limits.json") && message.contains("move it away"), "{message}");
        assert!(message.contains(reason), "{message}");
    }
    fs::write(data.join("client-limits.json"), entry(json!(["100/h fixed"])).replace("per-client", "gone"))
        .unwrap();
    assert_eq!(remaining(&serve(&data), "a"), 10, "a rule that is gone");
}
