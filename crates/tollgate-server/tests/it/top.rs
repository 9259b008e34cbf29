//! `tollgate top` under a pseudo-terminal of 80 columns and 24 lines.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::{Server, TOKEN, TOLLGATE, directory};
use crate::python::python_with;
use serde_json::{Value, json};

const RULES: &str = r#"
    [[rule]]
    name = "global"
    limit = "5000/s"
    [[rule]]
    name = "per-client"
    key = ["client"]
    limit = "10/60s fixed"
    [[rule]]
    name = "login"
    match = { path = "/login" }
    key = ["client"]
    limit = "login"
    shadow = true
"#;

fn server(name: &str) -> Server {
    let file = directory(&format!("top-{name}")).join("tollgate.toml");
    fs::write(&file, RULES).unwrap();
    Server::with_config(&file)
}

/// Plays steps on `tollgate top`, and returns how it ended.
fn play(server: &Server, token: &str, steps: &Value) -> Result<Value, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/common/terminal.py");
    let played = Command::new(python_with("pyte==0.8.2").join("python"))
        .arg(script)
        .arg(steps.to_string())
        .args([TOLLGATE, "top", "--server", &format!("http://{}", server.address)])
        .env("TOLLGATE_ADMIN_TOKEN", token)
        .env("HOME", "/nonexistent")
        .output()
        .unwrap();
    match played.status.success() {
        true => Ok(serde_json::from_slice(&played.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&played.stderr).into_owned()),
    }
}

#[test]
fn the_screen_follows_traffic_sorts_filters_and_leaves_the_terminal_as_it_was() {
    let server = server("screen");
    let hostile = "\u{1b}[2J\u{7}evil";
    for client in ["alice", "bob", hostile] {
        let body = json!({"attributes": {"client": client}});
        (0..12).for_each(|_| drop(server.post("/v1/check", &body)));
    }
    let screenshots = Path::new(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
    fs::create_dir_all(&screenshots).unwrap();
    let ended = play(
        &server,
        TOKEN,
        &json!([
            ["see", "RULE"],
            ["see", "login (shadow)"],
            ["see", "MOST DENIED"],
            // An escape sequence in a client's name is text.
            ["see", "\\u{1b}[2J\\u{7}evil"],
            ["see", "alice"],
            ["see", "live"],
            ["see", "s sort: configured"],
            ["miss", "admitted/s -"],
            ["draw", screenshots.join("top.svg")],
            ["type", "s"],
            ["see", "s sort: denied"],
            ["type", "/alice"],
            ["miss", "bob"],
            ["type", "\r"],
            ["see", "/ filter: alice"],
            ["type", "q"],
        ]),
    );
    let ended = ended.unwrap();
    assert_eq!(
        (&ended["code"], &ended["restored"], &ended["bell"]),
        (&json!(0), &json!(true), &json!(false)),
        "{ended}"
    );
}

#[test]
fn a_wrong_token_is_an_error_and_no_empty_screen() {
    let server = server("token");
    let refused = play(&server, "not-the-right-token", &json!([["see", "refused the admin token"]])).unwrap();
    assert_eq!(refused["code"], 2);
    let control_c = play(&server, TOKEN, &json!([["see", "RULE"], ["type", "\u{3}"]])).unwrap();
    assert_eq!((&control_c["code"], &control_c["restored"]), (&json!(0), &json!(true)));
}

#[test]
fn without_a_terminal_it_says_what_to_do() {
    let output = crate::common::tollgate(&["top"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("this needs a terminal; `GET /v1/live`"));
}
