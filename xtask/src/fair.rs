//! `cargo xtask bench --fair`: a polite client of a server on Redis beside one that floods it.
//!
//! The two have addresses of their own. Rounds alone and beside the flood alternate, so that both
//! see the same machine.

use std::io::{BufReader, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

use crate::install_unless;
use crate::node::{self, Node, Redis};

const ROUNDS: usize = 5;

/// The requests of the polite client in a round, and how far they are apart.
const REQUESTS: u32 = 1_000;
const PAUSE: Duration = Duration::from_millis(2);

/// The connections that flood, and the checks in one batch or pipeline of theirs.
const FLOODING: usize = 16;
const CHECKS: usize = 512;

/// The most that the polite client's p99 may be of its p99 alone.
const RATIO_MAX: f64 = 3.0;

const POLITE: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
const FLOOD: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 3));

/// How a client asks.
struct Protocol {
    name: &'static str,
    address: fn(&Node) -> &str,
    check: fn() -> Vec<u8>,
    batch: fn() -> Vec<u8>,
    /// Reads the answer to a check, or to a batch.
    read: fn(&mut BufReader<TcpStream>, usize) -> std::io::Result<()>,
}

const PROTOCOLS: [Protocol; 2] = [
    Protocol {
        name: "HTTP",
        address: |node| &node.http,
        check: || b"GET /check/polite HTTP/1.1\r\nhost: bench\r\n\r\n".to_vec(),
        batch: || {
            let check = r#"{"attributes":{"client":"flood"}}"#;
            let body = format!(r#"{{"checks":[{}]}}"#, vec![check; CHECKS].join(","));
            let head = "POST /v1/check/batch HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json";
            format!("{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len()).into_bytes()
        },
        read: |reader, _| read_http(reader),
    },
    Protocol {
        name: "RESP",
        address: |node| &node.resp,
        check: || throttle("polite"),
        batch: || throttle("flood").repeat(CHECKS),
        read: |reader, checks| (0..checks).try_for_each(|_| read_throttle(reader)),
    },
];

pub(crate) fn bench() -> Result<(), String> {
    install_unless(&["redis-server", "--version"], "redis-server")?;
    node::build()?;
    let redis = Redis::start()?;
    let node = Node::start(&["--redis", &redis.url, "--limit", "1000000000/s"])?;
    eprintln!(
        "| protocol | p50 alone, ms | p99 alone | p50 beside a flood | p99 beside | p99 ratio | flood, checks/s |"
    );
    eprintln!("|---|---|---|---|---|---|---|");
    let mut unfair = Vec::new();
    for protocol in &PROTOCOLS {
        let failed = |error| format!("{}: {error}", protocol.name);
        let (mut alone, mut beside, mut flooded) = (Vec::new(), Vec::new(), 0.0);
        polite(protocol, &node).map_err(failed)?;
        for _ in 0..ROUNDS {
            alone.extend(polite(protocol, &node).map_err(failed)?);
            let flood = Flood::start(protocol, &node).map_err(failed)?;
            beside.extend(polite(protocol, &node).map_err(failed)?);
            flooded += flood.end();
        }
        let [alone, beside] = [alone, beside].map(|mut all: Vec<f64>| {
            all.sort_by(f64::total_cmp);
            [all[all.len() / 2], all[all.len() * 99 / 100]]
        });
        let ratio = beside[1] / alone[1];
        let rate = flooded / f64::from(u32::try_from(ROUNDS).unwrap_or(1));
        eprintln!(
            "| {} | {:.2} | {:.2} | {:.2} | {:.2} | {ratio:.2} | {rate:.0} |",
            protocol.name, alone[0], alone[1], beside[0], beside[1]
        );
        if ratio > RATIO_MAX {
            unfair.push(protocol.name);
        }
    }
    if unfair.is_empty() { Ok(()) } else { Err(format!("unfair over {}", unfair.join(" and "))) }
}

/// A connection from an address of its own.
fn connect(address: &str, from: IpAddr) -> std::io::Result<TcpStream> {
    let address: SocketAddr = address.parse().map_err(std::io::Error::other)?;
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect(&address.into())?;
    socket.set_tcp_nodelay(true)?;
    Ok(socket.into())
}

/// The milliseconds that each request of a polite client took.
#[expect(clippy::disallowed_methods, reason = "the time is what is measured")]
fn polite(protocol: &Protocol, node: &Node) -> std::io::Result<Vec<f64>> {
    let mut connection = connect((protocol.address)(node), POLITE)?;
    let mut reader = BufReader::new(connection.try_clone()?);
    let check = (protocol.check)();
    let mut took = Vec::new();
    for _ in 0..REQUESTS {
        thread::sleep(PAUSE);
        let asked = Instant::now();
        connection.write_all(&check)?;
        (protocol.read)(&mut reader, 1)?;
        took.push(asked.elapsed().as_secs_f64() * 1e3);
    }
    Ok(took)
}

/// Connections that send one batch after the other.
struct Flood {
    stop: Arc<AtomicBool>,
    checks: Arc<AtomicU64>,
    connections: Vec<TcpStream>,
    since: Instant,
}

impl Flood {
    #[expect(clippy::disallowed_methods, reason = "the time is what is measured")]
    fn start(protocol: &Protocol, node: &Node) -> std::io::Result<Self> {
        let (stop, checks) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let connections = (0..FLOODING).map(|_| connect((protocol.address)(node), FLOOD));
        let connections = connections.collect::<std::io::Result<Vec<_>>>()?;
        for connection in &connections {
            let (mut connection, batch, read) = (connection.try_clone()?, (protocol.batch)(), protocol.read);
            let (stop, checks) = (Arc::clone(&stop), Arc::clone(&checks));
            thread::spawn(move || {
                let mut reader = BufReader::new(connection.try_clone()?);
                while !stop.load(Ordering::Relaxed) {
                    connection.write_all(&batch)?;
                    read(&mut reader, CHECKS)?;
                    checks.fetch_add(u64::try_from(CHECKS).unwrap_or(0), Ordering::Relaxed);
                }
                std::io::Result::Ok(())
            });
        }
        Ok(Self { stop, checks, connections, since: Instant::now() })
    }

    /// Ends it, and returns the checks a second.
    #[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "a figure to read")]
    fn end(self) -> f64 {
        let rate = self.checks.load(Ordering::Relaxed) as f64 / self.since.elapsed().as_secs_f64();
        self.stop.store(true, Ordering::Relaxed);
        for connection in &self.connections {
            let _ = connection.shutdown(std::net::Shutdown::Both);
        }
        rate
    }
}

fn throttle(client: &str) -> Vec<u8> {
    let words = ["CL.THROTTLE", client, "999999999", "1000000000", "1"];
    let words = words.map(|word| format!("${}\r\n{word}\r\n", word.len()));
    format!("*{}\r\n{}", words.len(), words.concat()).into_bytes()
}

fn read_line(reader: &mut BufReader<TcpStream>) -> std::io::Result<String> {
    let mut line = String::new();
    match std::io::BufRead::read_line(reader, &mut line)? {
        0 => Err(std::io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(line.trim_end().to_owned()),
    }
}

/// Five integers, or an error such as `-BUSY`.
fn read_throttle(reader: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    match read_line(reader)?.as_str() {
        "*5" => (0..5).try_for_each(|_| read_line(reader).map(drop)),
        error if error.starts_with('-') => Ok(()),
        other => Err(std::io::Error::other(other.to_owned())),
    }
}

/// An answer with a length or in chunks.
fn read_http(reader: &mut BufReader<TcpStream>) -> std::io::Result<()> {
    let status = read_line(reader)?;
    if ![" 200 ", " 503 "].iter().any(|known| status.contains(known)) {
        return Err(std::io::Error::other(status));
    }
    let (mut length, mut chunked) = (0, false);
    loop {
        let line = read_line(reader)?.to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        }
        chunked |= line.starts_with("transfer-encoding:");
    }
    if !chunked {
        return skip(reader, length);
    }
    loop {
        let length = u64::from_str_radix(&read_line(reader)?, 16).map_err(std::io::Error::other)?;
        skip(reader, length)?;
        read_line(reader)?;
        if length == 0 {
            return Ok(());
        }
    }
}

fn skip(reader: &mut BufReader<TcpStream>, bytes: u64) -> std::io::Result<()> {
    std::io::copy(&mut reader.take(bytes), &mut std::io::sink()).map(drop)
}
