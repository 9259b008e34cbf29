//! Real Redis processes on free ports: a single server, a Sentinel's servers, a Cluster. All are
//! killed when dropped.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a state of a server may take to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// A `redis-server`.
pub(super) struct Redis {
    process: Option<Child>,
    pub(super) port: u16,
    directory: PathBuf,
    arguments: Vec<String>,
}

impl Redis {
    pub(super) fn start(arguments: &[&str]) -> Result<Self, String> {
        let directory = directory()?;
        for _ in 0..20 {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            let mut redis =
                Self { process: None, port: free_port()?, directory: directory.clone(), arguments };
            if redis.run()? {
                return Ok(redis);
            }
        }
        Err("redis-server does not start on 20 ports".into())
    }

    /// Starts the process, and waits until it logs that it is ready. Returns false if it ends.
    pub(super) fn run(&mut self) -> Result<bool, String> {
        let mut command = Command::new("redis-server");
        let is_sentinel = self.arguments.iter().any(|argument| argument == "--sentinel");
        command.args(&self.arguments).args(["--bind", "127.0.0.1", "--port", &self.port.to_string()]);
        if !is_sentinel {
            command.args(["--save", "", "--repl-diskless-sync-delay", "0"]);
        }
        command.arg("--dir").arg(&self.directory).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("no redis-server: {error}"))?;
        let log = BufReader::new(process.stdout.take().ok_or("no log")?);
        let mut lines = log.lines().map_while(Result::ok);
        let ready = lines.any(|line| line.contains("Ready to accept") || line.contains("+monitor"));
        // What it logs from now on is read, so that it never waits for a reader.
        thread::spawn(move || lines.for_each(drop));
        if ready {
            self.process = Some(process);
        } else {
            let _ = process.wait();
        }
        Ok(ready)
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// What `redis-cli` says.
    pub(super) fn cli(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args(["-p", &self.port.to_string()]).args(arguments);
        let output = command.output().map(|output| output.stdout).unwrap_or_default();
        String::from_utf8_lossy(&output).trim().to_owned()
    }

    pub(super) fn signal(&self, signal: &str) {
        if let Some(process) = &self.process {
            let _ = Command::new("kill").args([signal, &process.id().to_string()]).status();
        }
    }

    /// Kills the process and takes no leave.
    pub(super) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Ends the process as an operator does, and starts it again.
    pub(super) fn restart(&mut self) -> Result<(), String> {
        self.signal("-TERM");
        if let Some(mut process) = self.process.take() {
            process.wait().map_err(|error| error.to_string())?;
        }
        if self.run()? { Ok(()) } else { Err("redis-server does not start again".into()) }
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// A master, a replica, and three Sentinels that monitor them as the service `main`.
pub(super) struct Sentinels {
    pub(super) servers: [Redis; 2],
    pub(super) sentinels: Vec<Redis>,
}

impl Sentinels {
    pub(super) fn start() -> Result<Self, String> {
        let master = Redis::start(&[])?;
        let replica = Redis::start(&["--replicaof", &format!("127.0.0.1 {}", master.port)])?;
        until("the replica is in sync", || {
            replica.cli(&["info", "replication"]).contains("master_link_status:up")
        })?;
        let sentinels: Vec<Redis> =
            (0..3).map(|_| start_sentinel(master.port)).collect::<Result<_, String>>()?;
        let started = Self { servers: [master, replica], sentinels };
        until("the sentinels know each other and the replica", || {
            started.sentinels.iter().all(|sentinel| {
                let known = sentinel.cli(&["sentinel", "master", "main"]);
                let value =
                    |name: &str| known.lines().skip_while(|line| *line != name).nth(1).map(ToOwned::to_owned);
                value("num-slaves").as_deref() == Some("1")
                    && value("num-other-sentinels").as_deref() == Some("2")
            })
        })?;
        Ok(started)
    }

    pub(super) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port)).collect();
        format!("redis+sentinel://{}/main", hosts.join(","))
    }

    /// The port of the master that the Sentinels announce.
    pub(super) fn master(&self) -> String {
        let address = self.sentinels[0].cli(&["sentinel", "get-master-addr-by-name", "main"]);
        address.lines().nth(1).unwrap_or_default().to_owned()
    }
}

fn start_sentinel(master: u16) -> Result<Redis, String> {
    let file = directory()?.join("sentinel.conf");
    let settings = format!(
        "sentinel monitor main 127.0.0.1 {master} 2\nsentinel down-after-milliseconds main 500\n\
         sentinel failover-timeout main 1000\nsentinel parallel-syncs main 1\n"
    );
    fs::write(&file, settings).map_err(|error| error.to_string())?;
    Redis::start(&[&file.display().to_string(), "--sentinel"])
}

/// A Cluster of three masters with a replica each.
pub(super) struct Cluster {
    pub(super) nodes: Vec<Redis>,
}

impl Cluster {
    pub(super) fn start() -> Result<Self, String> {
        let settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"];
        let nodes: Vec<Redis> = (0..6).map(|_| Redis::start(&settings)).collect::<Result<_, String>>()?;
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]);
        create.args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let output = create.output().map_err(|error| error.to_string())?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let cluster = Self { nodes };
        until("every node knows the whole cluster", || {
            cluster.nodes.iter().all(|node| {
                let known = node.cli(&["cluster", "nodes"]);
                node.cli(&["cluster", "info"]).contains("cluster_state:ok")
                    && known.lines().filter(|line| line.contains("slave")).count() == 3
            })
        })?;
        until("every replica has its master's data", || {
            cluster.nodes.iter().all(|node| {
                let info = node.cli(&["info", "replication"]);
                info.contains("role:master") || info.contains("master_link_status:up")
            })
        })?;
        Ok(cluster)
    }

    pub(super) fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }
}

/// Waits for the state of another process.
#[expect(clippy::disallowed_methods, reason = "the state of another process can only be polled")]
pub(super) fn until(what: &str, mut holds: impl FnMut() -> bool) -> Result<(), String> {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > PATIENCE {
            return Err(format!("not true within {PATIENCE:?}: {what}"));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// A new directory.
pub(super) fn directory() -> Result<PathBuf, String> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let name = format!("tollgate-campaign-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let directory = std::env::temp_dir().join(name);
    fs::create_dir_all(&directory).map_err(|error| error.to_string())?;
    Ok(directory)
}

/// A free port whose Cluster bus port is free too.
fn free_port() -> Result<u16, String> {
    loop {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        if port < 55_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return Ok(port);
        }
    }
}
