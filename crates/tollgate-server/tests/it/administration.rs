//! Administration from a terminal: `tollgate client` and `tollgate blocks`.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::{Server, TOKEN, TOLLGATE, directory};
use serde_json::{Value, json};

/// A terminal: the token and the address are in the environment.
struct Terminal<'a>(&'a Server);

impl Terminal<'_> {
    fn run(&self, arguments: &[&str]) -> (Option<i32>, String) {
        let mut command = bare(arguments);
        command.env("TOLLGATE_ADDRESS", format!("http://{}", self.0.address));
        said(&command.env("TOLLGATE_ADMIN_TOKEN", TOKEN).output().unwrap())
    }
}

/// A command without an address or a token.
fn bare(arguments: &[&str]) -> Command {
    let mut command = Command::new(TOLLGATE);
    command.args(arguments).env("HOME", "/nonexistent");
    for name in ["TOLLGATE_ADDRESS", "TOLLGATE_ADMIN_TOKEN", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    command
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text).into_owned());
    (output.status.code(), text.concat())
}

/// Three in the morning: a client is looked at, blocked, let through, and given a limit of its own.
#[test]
fn a_client_is_shown_blocked_unblocked_reset_and_limited() {
    let server = Server::start(&["--limit", "3/hour fixed"]);
    let (terminal, check) = (Terminal(&server), || server.get("/check/alice").status);
    assert_eq!([check(), check(), check(), check()], [200, 200, 200, 429]);
    let (code, shown) = terminal.run(&["client", "show", "alice"]);
    assert_eq!(code, Some(1), "her next request is denied: {shown}");
    assert!(
        shown.starts_with("alice\n  per-client  denies  3/hour fixed: 0 of 3 left, admits in "),
        "{shown}"
    );
    assert!(shown.contains("  denied 1 times by per-client within two hours, last "), "{shown}");

    let (code, limited) =
        terminal.run(&["client", "limit", "alice", "--rule", "per-client", "100/hour fixed"]);
    assert_eq!(
        (code, limited.as_str()),
        (Some(0), "alice has 100/hour fixed under per-client: on this server, until it stops\n")
    );
    assert_eq!(server.get("/check/alice").json()["remaining"], 96);
    let (code, shown) = terminal.run(&["client", "show", "alice"]);
    assert!(
        code == Some(0) && shown.contains("an administrator set 100/hour fixed for per-client"),
        "{shown}"
    );
    assert_eq!(terminal.run(&["client", "limit", "alice", "--clear"]).0, Some(0));
    assert_eq!(check(), 429);

    assert_eq!(terminal.run(&["client", "reset", "alice"]), (Some(0), "alice is reset\n".into()));
    assert_eq!(check(), 200);
    let (code, blocked) = terminal.run(&["client", "block", "alice", "--for", "10m"]);
    assert!(code == Some(0) && blocked.starts_with("alice is blocked until 2"), "{blocked}");
    assert_eq!(check(), 429);
    let (_, listed) = terminal.run(&["blocks"]);
    assert!(listed.starts_with("alice  by per-client until 2"), "{listed}");
    assert_eq!(terminal.run(&["client", "unblock", "alice"]).0, Some(0));
    assert_eq!(terminal.run(&["blocks"]), (Some(0), "no client is blocked\n".into()));
    assert_eq!(check(), 200);
}

#[test]
fn json_is_the_servers_answer() {
    let server = Server::start(&[]);
    let terminal = Terminal(&server);
    let parsed = |arguments: &[&str]| serde_json::from_str::<Value>(&terminal.run(arguments).1).unwrap();
    assert_eq!(parsed(&["client", "show", "bob", "--json"])["limits"][0]["remaining"], 10);
    assert!(parsed(&["client", "block", "bob", "--json"])["until"].is_u64());
    assert_eq!(parsed(&["client", "reset", "bob", "--json"]), json!({}));
    assert_eq!(parsed(&["blocks", "--json"]), json!({"blocks": [], "more": false, "complete": true}));
}

#[test]
fn the_token_comes_from_a_flag_the_environment_or_a_profile() {
    let server = Server::start(&[]);
    let (folder, address) = (directory("administration-profile"), format!("http://{}", server.address));
    let file = |name: &str, text: &str| {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let token = file("token", &format!("{TOKEN}\n"));
    let code = |command: &mut Command| said(&command.output().unwrap());
    let profile = file("profile.toml", &format!("server = {address:?}\ntoken_file = \"token\"\n"));
    let inline = file("inline.toml", &format!("server = {address:?}\ntoken = {TOKEN:?}\n"));
    for flags in [
        vec!["--server", &address, "--token-file", &token],
        vec!["--profile", &profile],
        vec!["--profile", &inline],
    ] {
        let (code, text) = code(bare(&["blocks"]).args(&flags));
        assert_eq!(code, Some(0), "{flags:?}: {text}");
    }
    // The usual place of a profile.
    let config = folder.join("config/tollgate");
    fs::create_dir_all(&config).unwrap();
    fs::copy(Path::new(&inline), config.join("client.toml")).unwrap();
    assert_eq!(code(bare(&["blocks"]).env("XDG_CONFIG_HOME", folder.join("config"))).0, Some(0));

    let wrong = file("wrong.toml", "sever = \"x\"\n");
    for (arguments, error) in [
        (vec!["blocks", "--server", &address], "needs the admin token; give it with --token-file"),
        (vec!["blocks", "--server", &address, "--token-file", "/nonexistent"], "cannot read /nonexistent"),
        (vec!["blocks", "--profile", &wrong], "`sever` is unknown; the settings are server, token"),
        (vec!["blocks", "--profile", "/nonexistent"], "check --profile"),
        (vec!["blocks", "--server", "localhost"], "has no scheme; write http://localhost"),
        (vec!["client", "block", "a", "--for", "soon"], "soon"),
        (vec!["client", "limit", "a", "--rule", "r", "10/minuet"], "did you mean \"minute\"?"),
    ] {
        let (code, text) = code(&mut bare(&arguments));
        assert!(code == Some(2) && text.contains(error), "{arguments:?}: {text}");
    }
    let mut refused = bare(&["blocks", "--server", &address]);
    let (code, text) = code(refused.env("TOLLGATE_ADMIN_TOKEN", "not-the-right-token"));
    assert!(code == Some(2) && text.contains("refused the admin token"), "{text}");
}

#[test]
fn a_hostile_name_is_text_in_a_terminal_and_in_the_log() {
    let mut server =
        Server::logging(Command::new(TOLLGATE).arg("serve").env("TOLLGATE_SERVER_LOG_FORMAT", "pretty"));
    let hostile = "\u{1b}]0;x\u{7}<img src=x>\r\nok \u{202e}";
    let terminal = Terminal(&server);
    for arguments in [
        &["client", "block", hostile][..],
        &["blocks"],
        &["client", "show", hostile],
        &["explain", &format!("client={hostile}")],
    ] {
        let (_, text) = terminal.run(arguments);
        assert!(!text.contains(['\u{1b}', '\u{7}', '\r', '\u{202e}']), "{text:?}");
    }
    assert!(terminal.run(&["blocks"]).1.contains("\\u{1b}]0;x\\u{7}<img src=x>\\r\\nok \\u{202e}"));
    let line = server.log_line("a client was blocked");
    assert!(line.contains("<img src=x>") && line.contains("ok"), "one line: {line:?}");
    assert!(!line.contains(['\u{7}', '\r', '\u{202e}']), "{line:?}");
}
