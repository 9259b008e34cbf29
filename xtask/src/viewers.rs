//! `cargo xtask bench --viewers`: what viewers of the live stream cost a server, hot and idle.
//!
//! Rounds without and with viewers alternate on one server, so that both see the same machine. The
//! ratio is that of the medians.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::node::{self, ADMIN_TOKEN, Node};
use crate::{in_workspace, install_unless};

/// The viewers of a watched round.
const VIEWERS: usize = 50;

const ROUNDS: usize = 9;

/// The least that the rate with viewers may be of the rate without.
const RATIO_MIN: f64 = 0.98;

/// How long an idle server is looked at.
const IDLE: Duration = Duration::from_secs(5);

/// The most of a processor that an idle server may use without viewers.
const IDLE_MAX: f64 = 0.002;

/// The requests of a round of the Redis protocol.
const REQUESTS: u32 = 2_000_000;

/// What a load generator saw.
struct Load {
    requests: f64,
    rate: f64,
}

/// A round, or the medians of several.
struct Round {
    rate: f64,
    /// Processor time of the server for each request, which other programs disturb less.
    cpu_us: f64,
}

/// Open streams, each read by a thread until they are dropped.
struct Viewers(Vec<(TcpStream, JoinHandle<()>)>);

pub(crate) fn bench() -> Result<(), String> {
    install_unless(&["which", "wrk"], "wrk")?;
    // Its load generator comes with it.
    install_unless(&["redis-server", "--version"], "redis-server")?;
    node::build()?;
    let server = Node::start(&["--limit", "1000000000/s"])?;
    let idle = [0, VIEWERS].map(|viewers| server.idle(viewers));
    let hot =
        [compare("HTTP, wrk", &server, Node::wrk)?, compare("RESP, -P 16", &server, Node::redis_benchmark)?];
    eprintln!("\n| load | viewers | requests a second | processor time a request, µs |\n|---|---|---|---|");
    for (name, rounds) in &hot {
        for (viewers, Round { rate, cpu_us }) in [0, VIEWERS].into_iter().zip(rounds) {
            eprintln!("| {name} | {viewers} | {rate:.0} | {cpu_us:.2} |");
        }
        let [without, with] = rounds;
        let ratios = (with.rate / without.rate, without.cpu_us / with.cpu_us);
        eprintln!("| {name} | ratio | {:.3} | {:.3} |", ratios.0, ratios.1);
    }
    let [alone, watched] = idle.map(|used| used.map(|used| used * 100.0));
    let (alone, watched) = (alone?, watched?);
    eprintln!("\nIdle: {alone:.2} % of a processor without viewers, {watched:.2} % with {VIEWERS}.");
    if alone > IDLE_MAX * 100.0 {
        return Err(format!("an idle server uses {alone:.2} % of a processor"));
    }
    let slow = hot.iter().find(|(_, [without, with])| with.rate / without.rate < RATIO_MIN);
    slow.map_or(Ok(()), |(name, _)| Err(format!("{name}: viewers cost more than 2 % of the rate")))
}

/// The medians of rounds without and with viewers.
fn compare(
    name: &'static str,
    server: &Node,
    load: fn(&Node) -> Result<Load, String>,
) -> Result<(&'static str, [Round; 2]), String> {
    let mut rounds = [Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        for (rounds, viewers) in rounds.iter_mut().zip([0, VIEWERS]) {
            let watching = Viewers::open(server, viewers)?;
            let before = server.processor_seconds();
            let Load { requests, rate } = load(server)?;
            let cpu_us = (server.processor_seconds() - before) * 1e6 / requests;
            drop(watching);
            // The first round warms up.
            if round > 0 {
                eprintln!(
                    "{round}/{ROUNDS} {name}, {viewers} viewers: {rate:.0} a second, {cpu_us:.2} µs each"
                );
                rounds.push(Round { rate, cpu_us });
            }
        }
    }
    let median = |rounds: &[Round], of: fn(&Round) -> f64| {
        let mut all: Vec<f64> = rounds.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[ROUNDS / 2]
    };
    let medians = |rounds: Vec<Round>| Round {
        rate: median(&rounds, |round| round.rate),
        cpu_us: median(&rounds, |round| round.cpu_us),
    };
    Ok((name, rounds.map(medians)))
}

impl Node {
    /// The share of a processor that the server uses without requests.
    #[expect(clippy::disallowed_methods, reason = "the time is what is measured")]
    fn idle(&self, viewers: usize) -> Result<f64, String> {
        let watching = Viewers::open(self, viewers)?;
        let before = self.processor_seconds();
        thread::sleep(IDLE);
        let used = self.processor_seconds() - before;
        drop(watching);
        Ok(used / IDLE.as_secs_f64())
    }

    fn wrk(&self) -> Result<Load, String> {
        let url = format!("http://{}/check/alice", self.http);
        let said = said_by(in_workspace("wrk").args(["-t1", "-c50", "-d3s", &url]))?;
        let rate = said.lines().find_map(|line| line.strip_prefix("Requests/sec:")?.trim().parse().ok());
        let requests = said.lines().find_map(|line| line.trim().split_once(" requests in ")?.0.parse().ok());
        let load = rate.zip(requests).map(|(rate, requests)| Load { requests, rate });
        load.ok_or_else(|| format!("wrk says no rate: {said}"))
    }

    fn redis_benchmark(&self) -> Result<Load, String> {
        let (host, port) = self.resp.split_once(':').ok_or("no port")?;
        let requests = REQUESTS.to_string();
        let load = ["-c", "50", "-P", "16", "-r", "100000", "-n", &requests, "-q"];
        let check = ["CL.THROTTLE", "key:__rand_int__", "1000000", "1000000", "60"];
        let said =
            said_by(in_workspace("redis-benchmark").args(["-h", host, "-p", port]).args(load).args(check))?;
        // The line is rewritten as the run goes on.
        let rate = said.rsplit("key:__rand_int__ 1000000 1000000 60: ").next();
        let rate = rate.and_then(|rest| rest.split(' ').next()?.parse().ok());
        let rate = rate.ok_or_else(|| format!("redis-benchmark says no rate: {said}"))?;
        Ok(Load { requests: f64::from(REQUESTS), rate })
    }
}

impl Viewers {
    /// Opens streams and waits for the first bytes of each.
    fn open(server: &Node, viewers: usize) -> Result<Self, String> {
        let viewer = |_| {
            let mut stream = TcpStream::connect(&server.http)?;
            let head = format!("host: {}\r\nauthorization: Bearer {ADMIN_TOKEN}", server.http);
            write!(stream, "GET /v1/live HTTP/1.1\r\n{head}\r\n\r\n")?;
            let mut reader = stream.try_clone()?;
            let mut buffer = vec![0; 64 << 10];
            let read = reader.read(&mut buffer)?;
            let head = String::from_utf8_lossy(&buffer[..read]).into_owned();
            if !head.starts_with("HTTP/1.1 200") {
                return Err(std::io::Error::other(head));
            }
            let reading = thread::spawn(move || while matches!(reader.read(&mut buffer), Ok(1..)) {});
            Ok((stream, reading))
        };
        let viewers = (0..viewers).map(viewer).collect::<std::io::Result<_>>();
        viewers.map(Self).map_err(|error| format!("a viewer cannot watch: {error}"))
    }
}

impl Drop for Viewers {
    fn drop(&mut self) {
        for (stream, reading) in self.0.drain(..) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
            let _ = reading.join();
        }
    }
}

fn said_by(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr)));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
