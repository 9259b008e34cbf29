//! Starts the real binary on a free port, sends requests over real sockets, and stops it.
#![allow(dead_code, reason = "each test program uses a part of this module")]

use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use serde_json::Value;

pub(crate) const TOLLGATE: &str = env!("CARGO_BIN_EXE_tollgate");

/// HTTP on a free port, and no other listener.
pub(crate) const HTTP_ONLY: [&str; 6] = ["--http", "127.0.0.1:0", "--grpc", "off", "--resp", "off"];

/// The admin token of the servers.
pub(crate) const TOKEN: &str = "a-token-for-tests-only";

/// The variable of the delay after a wrong token: zero unless a test sets it.
const DELAY: &str = "TOLLGATE_SERVER_FAILED_AUTH_DELAY";

/// A running server, killed when dropped.
pub(crate) struct Server {
    pub(crate) process: Child,
    /// The HTTP address.
    pub(crate) address: String,
    /// The ready line.
    ready: String,
    log: Option<BufReader<File>>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The head, in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let name = format!("{name}: ");
        self.head.lines().find_map(|line| line.strip_prefix(&name))
    }
}

impl Server {
    /// Starts a server that logs to the test's standard error.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::spawn(Command::new(TOLLGATE).arg("serve").args(HTTP_ONLY).args(arguments))
    }

    /// Starts a server with a configuration file.
    pub(crate) fn with_config(config: &Path) -> Self {
        Self::start(&["--config", config.to_str().unwrap()])
    }

    /// Starts a server and keeps its log for [`log_line`](Self::log_line).
    pub(crate) fn logging(command: &mut Command) -> Self {
        Self::with_log(command.args(HTTP_ONLY))
    }

    /// As [`logging`](Self::logging), with a command that sets the addresses.
    pub(crate) fn with_log(command: &mut Command) -> Self {
        Self::spawn(command.stderr(Stdio::piped()))
    }

    /// As [`logging`](Self::logging), without an admin token.
    pub(crate) fn logging_without_token(command: &mut Command) -> Self {
        Self::run(command.args(HTTP_ONLY).env_remove("TOLLGATE_ADMIN_TOKEN").stderr(Stdio::piped()))
    }

    /// Starts a server without an admin token whose standard error is a terminal.
    pub(crate) fn on_terminal(command: &mut Command) -> Self {
        let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&terminal).unwrap();
        unlockpt(&terminal).unwrap();
        let path = ptsname(&terminal, Vec::new()).unwrap();
        let path = OsStr::from_bytes(path.as_bytes());
        let programs_end = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let mut server = Self::run(command.env_remove("TOLLGATE_ADMIN_TOKEN").stderr(programs_end));
        server.log = Some(BufReader::new(File::from(terminal)));
        server
    }

    /// Starts a server with every listener on a free port.
    pub(crate) fn everywhere(arguments: &[&str]) -> Self {
        let free = ["--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0"];
        Self::spawn(Command::new(TOLLGATE).arg("serve").args(free).args(arguments))
    }

    /// The address of a protocol.
    pub(crate) fn listens(&self, protocol: &str) -> &str {
        let mut addresses = self.ready.split_whitespace().filter_map(|word| word.split_once('='));
        let found = addresses.find(|(name, _)| *name == protocol);
        found.unwrap_or_else(|| panic!("no {protocol} in {:?}", self.ready)).1
    }

    fn spawn(command: &mut Command) -> Self {
        Self::run(command.env("TOLLGATE_ADMIN_TOKEN", TOKEN))
    }

    fn run(command: &mut Command) -> Self {
        if !command.get_envs().any(|(name, _)| name == DELAY) {
            command.env(DELAY, "0s");
        }
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("tollgate ready "), "{line:?}");
        let log = process.stderr.take().map(|log| BufReader::new(File::from(OwnedFd::from(log))));
        let mut server = Self { address: String::new(), ready: line, process, log };
        server.address = server.listens("http").to_owned();
        server
    }

    /// The next line of the log that contains `text`. Waits for it.
    pub(crate) fn log_line(&mut self, text: &str) -> String {
        let log = self.log.as_mut().expect("started with its log kept");
        loop {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the log ended before {text:?}");
            if line.contains(text) {
                return line;
            }
        }
    }

    /// The rest of the log. Waits for the server to end.
    pub(crate) fn rest_of_log(&mut self) -> String {
        let mut text = String::new();
        self.log.as_mut().expect("started with its log kept").read_to_string(&mut text).unwrap();
        text
    }

    /// Sends a request on a new connection. A body is JSON unless a header says otherwise.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        send(&self.address, method, path, headers, body)
    }

    /// Sends raw bytes, and reads until the server closes.
    pub(crate) fn raw(&self, request: &str) -> Answer {
        raw(&self.address, request)
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "")
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        self.send("POST", path, &[], &body.to_string())
    }

    /// Sends a request with the admin token.
    pub(crate) fn admin(&self, method: &str, path: &str, body: Option<&Value>) -> Answer {
        let token = format!("Bearer {TOKEN}");
        let body = body.map(Value::to_string).unwrap_or_default();
        self.send(method, path, &[("authorization", &token)], &body)
    }

    /// The value of a metric, by its exact name and labels.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.get("/metrics").body;
        let value = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        value.unwrap_or_else(|| panic!("no {name} in {page}")).parse().unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        let sent =
            Command::new("kill").args([format!("-{name}"), self.process.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    /// Its peak memory in bytes.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() * 1024
    }

    /// Waits for its exit code.
    pub(crate) fn exit_code(&mut self) -> Option<i32> {
        self.process.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a request to `address` on a new connection.
pub(crate) fn send(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Answer {
    let mut request = format!("{method} {path} HTTP/1.1\r\nhost: tollgate\r\nconnection: close\r\n");
    for (name, value) in headers {
        request += &format!("{name}: {value}\r\n");
    }
    if !body.is_empty() {
        request += &format!("content-length: {}\r\n", body.len());
    }
    if matches!(method, "POST" | "PUT") && !headers.iter().any(|(name, _)| *name == "content-type") {
        request += "content-type: application/json\r\n";
    }
    raw(address, &format!("{request}\r\n{body}"))
}

/// Sends raw bytes to `address`, and reads until the server closes.
fn raw(address: &str, request: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    // The server may close before all bytes are sent.
    let _ = stream.write_all(request.as_bytes());
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response);
    parse(&String::from_utf8_lossy(&response))
}

pub(crate) fn parse(response: &str) -> Answer {
    let (head, body) = response.split_once("\r\n\r\n").unwrap_or((response, ""));
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    let mut answer = Answer { status, head: head.to_lowercase(), body: body.to_owned() };
    if answer.header("transfer-encoding") == Some("chunked") {
        answer.body = joined(body);
    }
    answer
}

/// The chunks of a body, joined, as far as they are complete.
fn joined(mut chunks: &str) -> String {
    let mut body = String::new();
    while let Some((length, rest)) = chunks.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        let Some((chunk, rest)) = rest.split_at_checked(length) else { break };
        body += chunk;
        chunks = rest.strip_prefix("\r\n").unwrap_or_default();
    }
    body
}

/// Runs the binary to completion.
pub(crate) fn tollgate(arguments: &[&str]) -> Output {
    Command::new(TOLLGATE).args(arguments).output().unwrap()
}

/// An empty directory for the test.
pub(crate) fn directory(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

/// Polls until `holds` returns true, for at least a minute: for the actions of other processes.
#[expect(clippy::disallowed_methods, reason = "the state of another process can only be polled")]
pub(crate) fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    for attempt in 0..70_000 {
        if holds() {
            return;
        }
        if attempt < 10_000 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    panic!("this never happened: {what}");
}
