//! Programs that a benchmark starts, killed when dropped.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::{fs, io};

use crate::{cargo, in_workspace};

/// The secret of the administrators of a node.
pub(crate) const ADMIN_TOKEN: &str = "the-token-of-a-benchmark";

/// A running server with one worker thread.
pub(crate) struct Node {
    process: Child,
    pub(crate) http: String,
    pub(crate) resp: String,
}

/// A running Redis.
pub(crate) struct Redis {
    process: Child,
    pub(crate) url: String,
}

/// Builds the server as it is released.
pub(crate) fn build() -> Result<(), String> {
    cargo("the server", &["build", "--profile", "dist", "--package", "tollgate-server", "--bin", "tollgate"])
}

impl Node {
    pub(crate) fn start(arguments: &[&str]) -> Result<Self, String> {
        let mut command = in_workspace("target/dist/tollgate");
        command.args(["serve", "--workers", "1", "--grpc", "off"]).args(arguments);
        command.args(["--http", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
        command.env("TOLLGATE_ADMIN_TOKEN", ADMIN_TOKEN);
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|error| format!("the server does not start: {error}"))?;
        let mut ready = String::new();
        let stdout = process.stdout.as_mut().ok_or("no ready line")?;
        BufReader::new(stdout).read_line(&mut ready).map_err(|error| error.to_string())?;
        let address = |name: &str| {
            let mut words = ready.split_whitespace();
            words.find_map(|word| word.strip_prefix(name)?.strip_prefix('=').map(ToOwned::to_owned))
        };
        let (http, resp) = (address("http"), address("resp"));
        Ok(Self { process, http: http.ok_or("no HTTP")?, resp: resp.ok_or("no RESP")? })
    }

    pub(crate) fn processor_seconds(&self) -> f64 {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id())).unwrap_or_default();
        let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks =
            |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
        (ticks(11) + ticks(12)) / 100.0
    }
}

impl Redis {
    pub(crate) fn start() -> Result<Self, String> {
        let port = || -> io::Result<u16> { Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port()) };
        let port = port().map_err(|error| format!("no free port: {error}"))?;
        let mut command = Command::new("redis-server");
        command.args([
            "--bind",
            "127.0.0.1",
            "--port",
            &port.to_string(),
            "--save",
            "",
            "--appendonly",
            "no",
        ]);
        let mut process =
            command.stdout(Stdio::piped()).spawn().map_err(|error| format!("no redis-server: {error}"))?;
        let log = BufReader::new(process.stdout.take().ok_or("no log")?);
        if !log.lines().map_while(Result::ok).any(|line| line.contains("Ready to accept")) {
            return Err("redis-server did not start".into());
        }
        Ok(Self { process, url: format!("redis://127.0.0.1:{port}") })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
