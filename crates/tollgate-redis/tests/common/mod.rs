//! Real Redis servers on free ports: a single server, a Cluster, Sentinels.
#![allow(dead_code, reason = "each test file uses a part of this module")]

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tollgate_redis::{RedisStore, RedisStoreBuilder};

pub(crate) mod proxy;

/// A running `redis-server`, killed when dropped.
#[derive(Debug)]
pub(crate) struct Redis {
    process: Option<Process>,
    pub(crate) port: u16,
    pub(crate) directory: PathBuf,
    pub(crate) arguments: Vec<String>,
}

/// A name that is unique among all tests of all processes.
pub(crate) fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

/// A free port whose Cluster bus port is free too.
fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        if port < 55_000 && TcpListener::bind(("127.0.0.1", port + 10_000)).is_ok() {
            return port;
        }
    }
}

impl Redis {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let directory = std::env::temp_dir().join(format!("tollgate-redis-{}", unique()));
        std::fs::create_dir_all(&directory).unwrap();
        loop {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            let mut redis =
                Self { process: None, port: free_port(), directory: directory.clone(), arguments };
            if redis.run() {
                return redis;
            }
        }
    }

    /// Starts or restarts the server, and waits until it logs that it is ready. Returns false if
    /// another process took its port.
    pub(crate) fn run(&mut self) -> bool {
        let mut arguments =
            ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no"].map(str::to_owned).to_vec();
        arguments.extend(["--repl-diskless-sync-delay", "0"].map(str::to_owned));
        if !self.arguments.iter().any(|argument| argument == "--tls-port") {
            arguments.extend(["--port".to_owned(), self.port.to_string()]);
        }
        arguments
            .extend(self.arguments.iter().map(|argument| argument.replace("PORT", &self.port.to_string())));
        self.process = Process::start(&arguments, &self.directory);
        self.process.is_some()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A store on this server: see [`direct`].
    pub(crate) fn store(&self) -> RedisStore {
        direct(&self.url()).build().unwrap()
    }

    /// Runs `redis-cli` against the server.
    pub(crate) fn cli(&self, arguments: &[&str]) -> String {
        cli(self.port, arguments)
    }

    pub(crate) fn signal(&self, signal: &str) {
        self.process.as_ref().unwrap().signal(signal);
    }

    pub(crate) fn kill(&mut self) {
        self.process = None;
    }
}

/// A server process that ends when this is dropped, and also when the test is killed: its parent, a
/// shell, waits for the end of a pipe that only the test holds open.
#[derive(Debug)]
struct Process {
    shell: Child,
    id: String,
}

/// The id is said before the server can log.
const SUPERVISOR: &str =
    r#"sh -c 'echo $$; exec redis-server "$@"' sh "$@" & read forever; kill -9 $!; wait"#;

impl Process {
    /// Starts a server and waits until it logs that it is ready. `None` if it exits instead.
    fn start(arguments: &[String], directory: &Path) -> Option<Self> {
        let mut command = Command::new("sh");
        command.args(["-c", SUPERVISOR, "sh"]).args(arguments).arg("--dir").arg(directory);
        let mut shell = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut log = BufReader::new(shell.stdout.take().unwrap()).lines().map_while(Result::ok);
        let id = log.next().unwrap();
        let is_final = |line: &String| {
            ["Ready to accept", "Loading RDB", "+monitor", "Failed", "FATAL"]
                .iter()
                .any(|word| line.contains(word))
        };
        let last = log.find(is_final).expect("redis-server is installed, and logs its start");
        let process = Self { shell, id };
        (!last.contains("Failed") && !last.contains("FATAL")).then_some(process)
    }

    fn signal(&self, signal: &str) {
        assert!(Command::new("kill").args([signal, &self.id]).status().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _ = self.shell.wait();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

pub(crate) fn cli(port: u16, arguments: &[&str]) -> String {
    let output = Command::new("redis-cli").args(["-p", &port.to_string()]).args(arguments).output().unwrap();
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A store that asks Redis every time, by the caller's clock, under a prefix of its own.
pub(crate) fn direct(url: &str) -> RedisStoreBuilder {
    RedisStore::builder(url)
        .unwrap()
        .prefix(&format!("test-{}", unique()))
        .callers_clock()
        .remember_denials(Duration::ZERO)
}

/// Polls until `holds`, for at most 30 seconds.
#[expect(clippy::disallowed_methods, reason = "the state of another process can only be polled")]
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    for _ in 0..3_000 {
        if holds() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not true within 30 seconds: {what}");
}

/// A Cluster of three masters with a replica each.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Redis>,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        let settings = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            "1000",
            "--cluster-config-file",
            "nodes-PORT.conf",
        ];
        let nodes: Vec<Redis> = (0..6).map(|_| Redis::start(&settings)).collect();
        let addresses: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(&addresses).args([
            "--cluster-replicas",
            "1",
            "--cluster-yes",
        ]);
        let output = create.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
        let cluster = Self { nodes };
        until("every node knows the whole cluster", || {
            cluster.nodes.iter().all(|node| {
                let known = node.cli(&["cluster", "nodes"]);
                node.cli(&["cluster", "info"]).contains("cluster_state:ok")
                    && known.lines().filter(|line| line.contains("slave")).count() == 3
                    && known.lines().filter(|line| line.contains("master") && line.contains('-')).count() == 3
            })
        });
        until("every replica has its master's data", || {
            cluster.nodes.iter().all(|node| {
                let info = node.cli(&["info", "replication"]);
                info.contains("role:master") || info.contains("master_link_status:up")
            })
        });
        cluster
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    pub(crate) fn store(&self) -> RedisStore {
        direct(&self.url()).build().unwrap()
    }

    /// The index of the node that is master of a key's slot.
    pub(crate) fn master_of(&self, key: &str) -> usize {
        let slot: u16 = self.nodes[0].cli(&["cluster", "keyslot", key]).parse().unwrap();
        let alive = self.nodes.iter().find(|node| node.process.is_some()).unwrap();
        let owns = |line: &&str| {
            line.contains("master")
                && !line.contains("fail")
                && line.split(' ').skip(8).any(|range| {
                    let (from, to) = range.split_once('-').unwrap_or((range, range));
                    from.parse().is_ok_and(|from: u16| from <= slot)
                        && to.parse().is_ok_and(|to: u16| slot <= to)
                })
        };
        let nodes = alive.cli(&["cluster", "nodes"]);
        let line = nodes.lines().find(owns).unwrap_or_else(|| panic!("slot {slot} has no master: {nodes}"));
        self.nodes.iter().position(|node| line.contains(&format!(":{}@", node.port))).unwrap()
    }
}

/// A master, a replica, and three Sentinels that monitor them as the service `main`.
pub(crate) struct Sentinels {
    pub(crate) servers: Vec<Redis>,
    pub(crate) sentinels: Vec<Redis>,
}

impl Sentinels {
    pub(crate) fn start() -> Self {
        let master = Redis::start(&[]);
        let replica = Redis::start(&["--replicaof", &format!("127.0.0.1 {}", master.port)]);
        until("the replica is in sync", || {
            replica.cli(&["info", "replication"]).contains("master_link_status:up")
        });
        let sentinels: Vec<Redis> = (0..3).map(|_| start_sentinel(master.port)).collect();
        until("the sentinels know each other and the replica", || {
            sentinels.iter().all(|sentinel| {
                let known = sentinel.cli(&["sentinel", "master", "main"]);
                let value =
                    |name: &str| known.lines().skip_while(|line| *line != name).nth(1).map(str::to_owned);
                value("num-slaves").as_deref() == Some("1")
                    && value("num-other-sentinels").as_deref() == Some("2")
            })
        });
        Self { servers: vec![master, replica], sentinels }
    }

    /// Has the Sentinels move the master: again if they give up, as they do on a busy machine.
    pub(crate) fn fail_over(&self) {
        let named = || self.sentinels[0].cli(&["sentinel", "get-master-addr-by-name", "main"]);
        let old = named();
        until("the sentinels name another master", || {
            if named() != old {
                return true;
            }
            // An error while a failover is under way.
            let _ = self.sentinels[0].cli(&["sentinel", "failover", "main"]);
            false
        });
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+sentinel://{}/main", hosts.join(","))
    }
}

fn start_sentinel(master: u16) -> Redis {
    let directory = std::env::temp_dir().join(format!("tollgate-sentinel-{}", unique()));
    std::fs::create_dir_all(&directory).unwrap();
    let file = directory.join("sentinel.conf");
    let settings = format!(
        "sentinel monitor main 127.0.0.1 {master} 2\nsentinel down-after-milliseconds main 500\n\
         sentinel failover-timeout main 1000\nsentinel parallel-syncs main 1\n"
    );
    loop {
        std::fs::write(&file, &settings).unwrap();
        let port = free_port();
        let mut arguments = vec![file.to_str().unwrap().to_owned(), "--sentinel".to_owned()];
        arguments.extend(["--bind", "127.0.0.1", "--port", &port.to_string()].map(str::to_owned));
        if let Some(process) = Process::start(&arguments, &directory) {
            return Redis { process: Some(process), port, directory, arguments: Vec::new() };
        }
    }
}
