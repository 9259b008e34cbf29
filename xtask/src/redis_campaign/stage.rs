//! What a case needs: Redis, perhaps a network in front of it, and two servers.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::proxy::Proxy;
use super::servers::{Cluster, Redis, Sentinels, directory};
use crate::node::ADMIN_TOKEN;

/// The Redis of a case.
pub(super) enum Store {
    Single(Redis),
    Sentinel(Sentinels),
    Cluster(Cluster),
}

/// Two servers on one Redis.
pub(super) struct Stage {
    pub(super) store: Store,
    pub(super) proxy: Option<Proxy>,
    pub(super) servers: Vec<Server>,
}

/// Which Redis a case has.
#[derive(Clone, Copy)]
pub(super) enum Topology {
    Single,
    /// A single server with an append-only file.
    Durable,
    /// A single server behind a [`Proxy`], so many milliseconds of a round trip away.
    Proxied(u64),
    Sentinel,
    Cluster,
}

impl Topology {
    /// How long the clients go on after a trouble is over, and how long one is looked at that
    /// lasts.
    pub(super) const fn afterwards(self) -> Duration {
        match self {
            // A demoted master is told so by its Sentinels some ten seconds later.
            Self::Sentinel | Self::Cluster => Duration::from_secs(20),
            Self::Single | Self::Durable | Self::Proxied(_) => Duration::from_secs(8),
        }
    }
}

/// A running `tollgate serve`.
pub(super) struct Server {
    process: Child,
    pub(super) http: String,
    log: PathBuf,
}

impl Stage {
    pub(super) fn start(binary: &str, topology: Topology, deadline: Duration) -> Result<Self, String> {
        let mut proxy = None;
        let (store, url) = match topology {
            Topology::Single | Topology::Durable => {
                let is_durable = matches!(topology, Topology::Durable);
                let redis = Redis::start(&["--appendonly", if is_durable { "yes" } else { "no" }])?;
                let url = redis.url();
                (Store::Single(redis), url)
            }
            Topology::Proxied(millis) => {
                let redis = Redis::start(&[])?;
                let started = Proxy::start(redis.port)?;
                started.set_round_trip(Duration::from_millis(millis));
                let url = started.url();
                proxy = Some(started);
                (Store::Single(redis), url)
            }
            Topology::Sentinel => {
                let sentinels = Sentinels::start()?;
                let url = sentinels.url();
                (Store::Sentinel(sentinels), url)
            }
            Topology::Cluster => {
                let cluster = Cluster::start()?;
                let url = cluster.url();
                (Store::Cluster(cluster), url)
            }
        };
        let servers = (0..2).map(|_| Server::start(binary, &url, deadline)).collect::<Result<_, String>>()?;
        Ok(Self { store, proxy, servers })
    }

    /// The single Redis.
    pub(super) fn redis(&mut self) -> Result<&mut Redis, String> {
        match &mut self.store {
            Store::Single(redis) => Ok(redis),
            _ => Err("the case has several servers".into()),
        }
    }

    pub(super) fn proxy(&self) -> Result<&Proxy, String> {
        self.proxy.as_ref().ok_or_else(|| "the case has no proxy".into())
    }

    /// How often the servers said that Redis is away, and that it is back.
    pub(super) fn transitions(&self) -> [usize; 2] {
        let mut count = [0; 2];
        for server in &self.servers {
            let log = fs::read_to_string(&server.log).unwrap_or_default();
            for (count, words) in count.iter_mut().zip(["Redis is away", "Redis is back"]) {
                *count += log.lines().filter(|line| line.contains(words)).count();
            }
        }
        count
    }
}

impl Server {
    fn start(binary: &str, url: &str, deadline: Duration) -> Result<Self, String> {
        let directory = directory()?;
        let (file, log) = (directory.join("tollgate.toml"), directory.join("log"));
        let rule = |name: &str, kind: &str| {
            format!(
                "[[rule]]\nname = \"{name}\"\nmatch = {{ path = \"/{name}\" }}\nkey = [\"client\"]\n\
                 limit = \"{}/{}s {kind}\"\n",
                super::load::LIMIT,
                super::load::PERIOD.as_secs()
            )
        };
        let text = format!(
            "[store]\nkind = \"redis\"\nurl = \"{url}\"\ndeadline = \"{}ms\"\nremember_denials = \"0s\"\n\
             {}{}[[rule]]\nname = \"blocked\"\nkey = [\"client\"]\nlimit = \"1000000/s\"\n\
             match = {{ path = \"/blocked\" }}\n",
            deadline.as_millis(),
            rule("window", "fixed"),
            rule("log", "log"),
        );
        fs::write(&file, text).map_err(|error| error.to_string())?;
        let mut command = Command::new(binary);
        command.args(["serve", "--workers", "1", "--grpc", "off", "--resp", "off", "--http", "127.0.0.1:0"]);
        command.arg("--config").arg(&file).env("TOLLGATE_ADMIN_TOKEN", ADMIN_TOKEN);
        command.stderr(File::create(&log).map_err(|error| error.to_string())?).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(|error| format!("{binary} does not start: {error}"))?;
        let mut ready = String::new();
        let stdout = process.stdout.as_mut().ok_or("no ready line")?;
        BufReader::new(stdout).read_line(&mut ready).map_err(|error| error.to_string())?;
        let http = ready.split_whitespace().find_map(|word| word.strip_prefix("http="));
        let http = http.ok_or_else(|| fs::read_to_string(&log).unwrap_or_default())?.to_owned();
        Ok(Self { process, http, log })
    }

    /// Sends an administrator's request, and returns its status and its body.
    pub(super) fn admin(&self, method: &str, path: &str, body: &str) -> Result<(u16, String), String> {
        let head = format!(
            "host: campaign\r\nauthorization: Bearer {ADMIN_TOKEN}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {}",
            body.len()
        );
        let mut answer = String::new();
        let mut ask = || -> std::io::Result<usize> {
            let mut stream = TcpStream::connect(&self.http)?;
            write!(stream, "{method} {path} HTTP/1.1\r\n{head}\r\n\r\n{body}")?;
            stream.read_to_string(&mut answer)
        };
        ask().map_err(|error| format!("{method} {path}: {error}"))?;
        let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        Ok((status, answer))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        if let Some(directory) = self.log.parent() {
            let _ = fs::remove_dir_all(directory);
        }
    }
}
