//! The dashboard in a real browser: Debian's chromium, headless, driven by `tools/dashboard.mjs`.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{Server, TOKEN, TOLLGATE, directory};
use crate::node::node_tools;
use crate::rls::{Envoy, descriptor};
use crate::wire::Wire;
use percent_encoding::percent_decode_str;
use serde_json::json;

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
    limit = "1/hour fixed"
    shadow = true
"#;

/// A server that can be stopped and started again at the same address.
struct Stage {
    config: String,
    server: Option<Server>,
    address: String,
    /// Whether the server has a terminal and no configured token.
    on_terminal: bool,
}

impl Stage {
    fn new(scenario: &str) -> Self {
        let file = directory(&format!("dashboard-{scenario}")).join("tollgate.toml");
        fs::write(&file, RULES).unwrap();
        let mut stage = Self {
            config: file.to_str().unwrap().to_owned(),
            server: None,
            address: "127.0.0.1:0".into(),
            on_terminal: scenario == "session",
        };
        stage.start();
        stage
    }

    fn start(&mut self) {
        let mut command = Command::new(TOLLGATE);
        command.args(["serve", "--config", &self.config, "--http", &self.address]);
        command.args(["--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
        let server = match self.on_terminal {
            true => Server::on_terminal(&mut command),
            false => Server::with_log(&mut command),
        };
        self.address.clone_from(&server.address);
        self.server = Some(server);
    }

    /// The one-time code on the terminal.
    fn code(&mut self) -> String {
        let line = self.server.as_mut().expect("the server runs").log_line("/#/code/");
        line.split_once("/#/code/").unwrap().1.split(' ').next().unwrap().to_owned()
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("the server runs")
    }

    /// Does what a line of the browser's script asks for, and returns its answer.
    fn perform(&mut self, line: &str) -> String {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("traffic", _) => self.traffic(),
            ("check", client) => return self.server().get(&format!("/check/{client}")).status.to_string(),
            ("hostile", name) => {
                let name = percent_decode_str(name).decode_utf8().unwrap();
                let body = json!({"attributes": {"client": name}});
                (0..12).for_each(|_| drop(self.server().post("/v1/check", &body)));
            }
            ("stop", _) => self.server = None,
            ("start", _) => self.start(),
            ("snapshot", _) => return self.snapshot(),
            ("code", _) => return self.code(),
            _ => panic!("the script asked for {line:?}"),
        }
        "done".into()
    }

    /// Twelve requests of a client over each protocol: ten are admitted. One of them, over HTTP,
    /// would be denied by the shadow.
    fn traffic(&self) {
        let login = json!({"attributes": {"client": "alice", "path": "/login"}});
        (0..2).for_each(|_| drop(self.server().post("/v1/check", &login)));
        (0..10).for_each(|_| drop(self.server().get("/check/alice")));
        let mut redis = Wire::connect(self.server());
        redis.send("TOLL.CHECK client bob\r\n".repeat(12) + "QUIT\r\n");
        assert!(redis.rest().ends_with("+OK\r\n"));
        let envoy = Envoy::of(self.server());
        (0..12).for_each(|_| drop(envoy.status("edge", &descriptor(&[("client", "carol")]))));
    }

    /// The first snapshot of the event stream.
    fn snapshot(&self) -> String {
        let stream = std::net::TcpStream::connect(&self.address).unwrap();
        let request = format!("GET /v1/live HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {TOKEN}\r\n\r\n");
        (&stream).write_all(request.as_bytes()).unwrap();
        let mut lines = BufReader::new(&stream).lines().map(Result::unwrap);
        lines.find_map(|line| line.strip_prefix("data: ").map(ToOwned::to_owned)).unwrap()
    }
}

/// Runs a scenario of the script to its end.
fn play(scenario: &str) {
    let (tools, mut stage) = (node_tools(), Stage::new(scenario));
    let screenshots = Path::new(env!("CARGO_TARGET_TMPDIR")).join("screenshots");
    fs::create_dir_all(&screenshots).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools/dashboard.mjs");
    let mut node = Command::new("node")
        .arg(script)
        .arg(scenario)
        .env("ADDRESS", &stage.address)
        .env("TOKEN", TOKEN)
        .env("TOOLS", tools)
        .env("SCREENSHOTS", screenshots)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut answers = node.stdin.take().unwrap();
    let mut has_passed = false;
    for line in BufReader::new(node.stdout.take().unwrap()).lines() {
        match line.unwrap().as_str() {
            "passed" => has_passed = true,
            line => writeln!(answers, "{}", stage.perform(line)).unwrap(),
        }
    }
    assert!(node.wait().unwrap().success() && has_passed, "{scenario}");
}

#[test]
fn a_user_who_declines_to_enter_a_token_is_not_asked_again() {
    play("declined");
}

#[test]
fn numbers_follow_traffic_over_all_three_protocols_in_both_themes() {
    play("numbers");
}

#[test]
fn the_next_request_sees_a_block_a_reset_and_a_limit() {
    play("administration");
}

#[test]
fn a_hostile_name_is_text_on_every_page() {
    play("hostile");
}

#[test]
fn the_event_stream_comes_back_after_a_restart() {
    play("restart");
}

/// The address that a server prints on its terminal opens the dashboard once.
#[test]
fn the_address_with_a_one_time_code_opens_a_page_that_may_read() {
    play("session");
}

#[test]
fn an_hour_of_events_leaves_no_memory_behind() {
    play("memory");
}

/// Nothing from elsewhere, no inline script, no frame.
#[test]
fn the_pages_have_a_strict_policy_and_need_no_token() {
    let server = Server::start(&[]);
    for path in ["/", "/dashboard/main.js", "/dashboard/style.css", "/dashboard/icon.svg"] {
        let page = server.get(path);
        assert_eq!(page.status, 200, "{path}");
        let policy = page.header("content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'none'; script-src 'self'; style-src 'self';"), "{policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{policy}");
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        assert!(!page.body.contains("://") || page.body.contains("http://www.w3.org/2000/svg"), "{path}");
    }
    assert_eq!(server.get("/v1/live").status, 401);
    assert_eq!(server.get("/dashboard/none.js").status, 404);
}
