//! Who may read and who may change, while no admin token is configured.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use crate::common::{Answer, HTTP_ONLY, Server, TOLLGATE, directory, send};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::{self, Runtime};
use tollgate::{HOUR, MINUTE, ManualClock, SECOND, Timestamp};
use tollgate_server::config::Origin;
use tollgate_server::{App, Listeners};

/// The paths that a session may read.
const READS: [&str; 6] =
    ["/v1/stats", "/v1/top", "/v1/rules", "/v1/blocks", "/v1/clients/alice", "/v1/clients/bob"];

/// What changes something.
const CHANGES: [(&str, &str, &str); 7] = [
    ("DELETE", "/v1/clients/alice", ""),
    ("PUT", "/v1/clients/alice/block", r#"{"for":"10m"}"#),
    ("PUT", "/v1/clients/alice/limits", r#"{"rule":"per-client","limit":"100/s"}"#),
    ("POST", "/v1/clients/alice/penalise", r#"{"cost":5}"#),
    ("POST", "/v1/clients/alice/refund", r#"{"cost":5}"#),
    ("DELETE", "/v1/rules/per-client/state", ""),
    ("POST", "/v1/backup", ""),
];

/// nginx with a plain `proxy_pass` sets `Host` to a loopback address and adds no field.
#[test]
fn a_request_from_and_for_this_host_reads_nothing_without_the_token() {
    let mut command = Command::new(TOLLGATE);
    let server = Server::logging(command.arg("serve").env("TOLLGATE_SERVER_LOOPBACK_READS", "true"));
    for path in READS {
        let head = format!("GET {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n", server.address);
        assert_eq!(server.raw(&head).status, 401, "{path}");
    }
}

fn exchange(server: &Server, code: &str, headers: &[(&str, &str)]) -> Answer {
    server.send("POST", "/dashboard/session", headers, &json!({"code": code}).to_string())
}

/// The cookie of an answer, as a browser sends it.
fn cookie(answer: &Answer) -> String {
    answer.header("set-cookie").expect("a cookie").split(';').next().unwrap().to_owned()
}

/// The one-time code in the address on the server's terminal.
fn code(server: &mut Server) -> String {
    let line = server.log_line("/#/code/");
    assert!(line.contains(&format!("http://{}/#/code/", server.address)), "{line}");
    line.split_once("/#/code/").unwrap().1.split(' ').next().unwrap().to_owned()
}

#[test]
fn a_code_on_the_terminal_opens_one_session_that_may_only_read() {
    let runtime = directory("access-terminal");
    let mut command = Command::new(TOLLGATE);
    command.arg("serve").args(HTTP_ONLY).env("XDG_RUNTIME_DIR", &runtime);
    let mut server = Server::on_terminal(&mut command);
    let code = code(&mut server);
    for path in ["/", "/dashboard/session", "/?code", &format!("/#/code/{code}")] {
        server.get(path);
        server.send("HEAD", path, &[], "");
    }
    let mark = ("sec-fetch-site", "cross-site");
    assert_eq!(exchange(&server, &code, &[mark]).status, 403);
    assert_eq!(exchange(&server, &code, &[("content-type", "text/plain")]).status, 415);
    assert_eq!(exchange(&server, "wrong", &[]).status, 401);

    let opened = exchange(&server, &code, &[]);
    assert_eq!(opened.status, 204, "looking at the address does not spend it: {opened:?}");
    let set = opened.header("set-cookie").unwrap();
    for attribute in ["path=/", "httponly", "samesite=strict", "max-age=43200"] {
        assert!(set.split("; ").any(|part| part == attribute), "{attribute}: {set}");
    }
    assert_eq!(opened.header("cache-control"), Some("no-store"));
    let again = exchange(&server, &code, &[]);
    assert_eq!((again.status, again.header("set-cookie")), (401, None), "{again:?}");

    let cookie = cookie(&opened);
    let shown = ("cookie", cookie.as_str());
    for path in READS {
        assert_eq!(server.send("GET", path, &[shown], "").status, 200, "{path}");
        assert_eq!(server.send("GET", path, &[shown, mark], "").status, 403, "{path}");
        assert_eq!(server.send("GET", path, &[("cookie", "tollgate-session=x")], "").status, 401, "{path}");
        let wrong = ("authorization", "Bearer not-the-right-token");
        assert_eq!(server.send("GET", path, &[shown, wrong], "").status, 401, "a wrong token is told");
    }
    for (method, path, body) in CHANGES {
        assert_eq!(server.send(method, path, &[shown], body).status, 401, "{method} {path}");
    }
}

/// A server in this process.
fn serve(clock: &ManualClock) -> (Runtime, Arc<App>, String) {
    let environment = [("TOLLGATE_SERVER_FAILED_AUTH_DELAY", "0s")];
    let environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let origin = Origin { environment, ..Origin::default() };
    let app = App::new(origin.clone(), origin.load().unwrap(), Arc::new(clock.clone())).unwrap();
    let app = Arc::new(app);
    let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let listeners = Listeners { http: Some(listener), ..Listeners::default() };
    runtime.spawn(tollgate_server::serve(listeners, Arc::clone(&app), std::future::pending()));
    (runtime, app, address)
}

#[test]
fn a_code_is_valid_for_ten_minutes_and_a_session_for_twelve_hours() {
    let start = Timestamp::from_secs(1_800_000_000);
    let clock = ManualClock::at(start);
    let (_runtime, app, address) = serve(&clock);
    let open = || {
        let code = app.issue_dashboard_code().expect("no token is configured");
        move |address: &str| {
            send(address, "POST", "/dashboard/session", &[], &json!({"code": code}).to_string())
        }
    };
    let late = open();
    clock.set(start.saturating_add(10 * MINUTE));
    assert_eq!(late(&address).status, 401, "ten minutes have passed");

    let in_time = open();
    clock.set(start.saturating_add(20 * MINUTE - SECOND));
    let opened = in_time(&address);
    assert_eq!(opened.status, 204, "{opened:?}");
    let cookie = cookie(&opened);
    let read = || send(&address, "GET", "/v1/stats", &[("cookie", &cookie)], "").status;
    clock.set(start.saturating_add(20 * MINUTE - SECOND + 12 * HOUR - SECOND));
    assert_eq!(read(), 200);
    clock.set(start.saturating_add(20 * MINUTE - SECOND + 12 * HOUR));
    assert_eq!(read(), 401, "twelve hours have passed");
}

/// A command as the user who started the server types it.
fn command(runtime: &Path, server: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(TOLLGATE);
    command.args(arguments).args(["--server", server]).env("HOME", "/nonexistent");
    for name in ["TOLLGATE_ADDRESS", "TOLLGATE_ADMIN_TOKEN", "XDG_CONFIG_HOME"] {
        command.env_remove(name);
    }
    command.env("XDG_RUNTIME_DIR", runtime);
    command
}

/// The exit code, standard output and standard error.
fn ended(command: &mut Command) -> (Option<i32>, String, String) {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (status.code(), text(stdout), text(stderr))
}

fn without_token(runtime: &Path) -> Server {
    Server::logging_without_token(Command::new(TOLLGATE).arg("serve").env("XDG_RUNTIME_DIR", runtime))
}

fn token_file(runtime: &Path, server: &Server) -> PathBuf {
    runtime.join("tollgate").join(format!("{}.token", server.address))
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn commands_find_the_token_of_a_running_server_in_a_file_that_only_its_user_reads() {
    let runtime = directory("access-file");
    let mut server = without_token(&runtime);
    let line: Value = serde_json::from_str(&server.log_line("no admin token is configured")).unwrap();
    let file = token_file(&runtime, &server);
    assert_eq!(line["file"].as_str(), file.to_str());
    assert_eq!((mode(&file), mode(file.parent().unwrap())), (0o600, 0o700));
    let token = fs::read_to_string(&file).unwrap().trim().to_owned();
    assert!(token.len() >= 32, "{token}");

    let address = format!("http://{}", server.address);
    let localhost = address.replace("127.0.0.1", "localhost");
    for server in [&address, &localhost] {
        for arguments in [&["blocks"][..], &["client", "show", "a"], &["explain", "client=a"]] {
            let (code, out, said) = ended(&mut command(&runtime, server, arguments));
            assert_eq!(code, Some(0), "{server} {arguments:?}: {said}");
            let tells = format!("uses the token of the running server, in {}", file.display());
            assert!(said.contains(&tells) && !(out + &said).contains(&token), "{said}");
        }
    }
    let mut block = command(&runtime, &address, &["client", "block", "a"]);
    assert_eq!(ended(&mut block).0, Some(0), "the file has the token, which may change");
    let mut wins = command(&runtime, &address, &["blocks"]);
    let (code, _, said) = ended(wins.env("TOLLGATE_ADMIN_TOKEN", "not-the-right-token"));
    assert!(code == Some(2) && said.contains("refused the admin token") && !said.contains("uses"), "{said}");
    let (_, _, said) = ended(&mut command(&runtime, &address, &["check", "a"]));
    assert!(!said.contains("uses"), "a check needs no token: {said}");

    server.signal("TERM");
    assert!(!server.rest_of_log().contains(&token), "no log has the token");
    assert!(!file.exists(), "a server that stops removes its file");
}

#[test]
fn a_file_that_is_stale_or_that_others_can_read_is_refused() {
    let runtime = directory("access-refused");
    let server = without_token(&runtime);
    let (file, address) = (token_file(&runtime, &server), format!("http://{}", server.address));
    let refused = |reason: &str| {
        let (code, _, said) = ended(&mut command(&runtime, &address, &["blocks"]));
        assert!(code == Some(2) && said.contains(reason) && !said.contains("uses"), "{said}");
    };
    for others in [0o640, 0o604, 0o620] {
        fs::set_permissions(&file, Permissions::from_mode(others)).unwrap();
        refused("other users may read or write it");
    }
    fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
    assert_eq!(ended(&mut command(&runtime, &address, &["blocks"])).0, Some(0));
    let moved = runtime.join("moved");
    fs::rename(&file, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, &file).unwrap();
    refused("it cannot be opened");
    fs::remove_file(&file).unwrap();
    fs::copy(&moved, &file).unwrap();
    refused("the server that wrote it no longer runs");
    fs::rename(&moved, &file).unwrap();
    // Killed: the file stays behind.
    drop(server);
    refused("the server that wrote it no longer runs");
}

#[test]
fn a_server_without_a_runtime_directory_uses_its_data_directory_or_says_that_there_is_none() {
    let data = directory("access-data").join("data");
    let mut in_data = Command::new(TOLLGATE);
    in_data.args(["serve", "--data", data.to_str().unwrap()]).env_remove("XDG_RUNTIME_DIR");
    let mut server = Server::logging_without_token(&mut in_data);
    let line: Value = serde_json::from_str(&server.log_line("no admin token is configured")).unwrap();
    let file = data.join(format!("{}.token", server.address));
    assert_eq!((line["file"].as_str(), mode(&file)), (file.to_str(), 0o600));
    let mut blocks = command(Path::new(""), &format!("http://{}", server.address), &["blocks"]);
    assert_eq!(ended(blocks.env("TOLLGATE_STORE_DATA", &data)).0, Some(0));

    let mut nowhere = Command::new(TOLLGATE);
    let mut server = Server::logging_without_token(nowhere.arg("serve").env_remove("XDG_RUNTIME_DIR"));
    let line = server.log_line("no admin token is configured");
    assert!(line.contains("WARN") && line.contains("set TOLLGATE_ADMIN_TOKEN"), "{line}");

    // Others could replace a file in a directory that they can write into.
    let open = directory("access-open");
    fs::create_dir(open.join("tollgate")).unwrap();
    fs::set_permissions(open.join("tollgate"), Permissions::from_mode(0o777)).unwrap();
    let line = without_token(&open).log_line("no admin token is configured");
    assert!(line.contains("other users can write into it"), "{line}");
}
