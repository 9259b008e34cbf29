//! Servers as processes: started, waited for, asked what they have used of the processors, and
//! stopped.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

/// A server that listens, until it is dropped.
pub struct Process {
    pub address: String,
    child: Child,
}

impl Process {
    /// Starts a server and waits until it answers.
    pub fn start(address: String, command: &mut Command) -> Self {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let child = child.unwrap_or_else(|error| panic!("{error}: {command:?}"));
        let mut process = Self { address, child };
        for _ in 0..500 {
            if TcpStream::connect(&process.address).is_ok() {
                return process;
            }
            if let Ok(Some(status)) = process.child.try_wait() {
                panic!("ended at once ({status}): {command:?}");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("does not listen on {}: {command:?}", process.address);
    }

    /// A tollgate with one worker that listens for one protocol, with a limit that nobody reaches.
    pub fn tollgate(root: &Path, protocol: &str) -> Self {
        let address = free_address();
        let mut command = Command::new(root.join("target/dist/tollgate"));
        command.args(["serve", "--workers", "1", "--limit", "1000000000/s"]);
        for listener in ["http", "grpc", "resp"] {
            command.arg(format!("--{listener}")).arg(if listener == protocol { &address } else { "off" });
        }
        Self::start(address, &mut command)
    }

    /// throttlecrab's server with one worker that listens for one protocol.
    pub fn throttlecrab(root: &Path, protocol: &str) -> Self {
        let address = free_address();
        let (host, port) = address.split_once(':').expect("an address");
        let mut command = Command::new(root.join("bench/target/rivals/bin/throttlecrab-server"));
        command.arg(format!("--{protocol}"));
        command.args([
            format!("--{protocol}-host"),
            host.to_owned(),
            format!("--{protocol}-port"),
            port.to_owned(),
        ]);
        command.args(["--log-level", "error"]).env("TOKIO_WORKER_THREADS", "1");
        Self::start(address, &mut command)
    }

    /// This program, serving what `command` says.
    pub fn own(command: &str) -> Self {
        let address = free_address();
        let mut own = Command::new(std::env::current_exe().expect("a program"));
        own.args([command, &address]);
        Self::start(address, &mut own)
    }

    /// What it and its children have used of the processors, nginx's worker being a child.
    pub fn processor_seconds(&self) -> f64 {
        let process = self.child.id();
        let children =
            fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
        let all = children.split_whitespace().filter_map(|child| child.parse().ok()).chain([process]);
        let ticks = |process: u32| {
            let stat = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
            let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
            let field =
                |index: usize| fields.get(index).and_then(|field| field.parse::<f64>().ok()).unwrap_or(0.0);
            field(11) + field(12)
        };
        all.map(ticks).sum::<f64>() / 100.0
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What answers in the servers that this program is.
pub fn one_worker() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

pub fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0")
        .and_then(|listener| listener.local_addr())
        .expect("a free port")
        .to_string()
}
