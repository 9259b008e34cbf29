//! Clients with small limits, who count every answer.

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Half of them under a fixed window, half under a sliding log.
const CLIENTS: usize = 24;

/// The limit of a client.
pub(super) const LIMIT: usize = 20;
pub(super) const PERIOD: Duration = Duration::from_secs(5);

/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(20);

/// How long a client waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    Admitted,
    Denied,
    /// Decided without Redis.
    Degraded,
    /// No answer, or none to a check.
    None,
}

/// A request and its answer.
#[derive(Clone, Copy)]
pub(super) struct Seen {
    pub(super) sent: Instant,
    pub(super) received: Instant,
    pub(super) answer: Answer,
}

/// How a client is limited.
#[derive(Clone, Copy)]
enum Limited {
    ByWindow,
    ByLog,
}

/// What a client saw.
pub(super) struct Client {
    limited: Limited,
    pub(super) seen: Vec<Seen>,
}

/// Clients at work.
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<JoinHandle<Client>>,
}

impl Load {
    /// Each client asks the servers in turn.
    pub(super) fn start(servers: &[String]) -> Self {
        let stop = Arc::<AtomicBool>::default();
        let client = |number: usize| {
            let stop = Arc::clone(&stop);
            let servers = servers.to_vec();
            thread::spawn(move || work(number, &servers, &stop))
        };
        Self { clients: (0..CLIENTS).map(client).collect(), stop }
    }

    pub(super) fn end(self) -> Result<Vec<Client>, String> {
        self.stop.store(true, Ordering::Relaxed);
        self.clients.into_iter().map(|client| client.join().map_err(|_| "a client panicked".into())).collect()
    }
}

#[expect(clippy::disallowed_methods, reason = "the time is what is measured")]
fn work(number: usize, servers: &[String], stop: &AtomicBool) -> Client {
    let (path, limited) =
        if number.is_multiple_of(2) { ("/window", Limited::ByWindow) } else { ("/log", Limited::ByLog) };
    let body = format!(r#"{{"attributes":{{"client":"client-{number}","path":"{path}"}}}}"#);
    let mut connections: Vec<Option<BufReader<TcpStream>>> = servers.iter().map(|_| None).collect();
    let mut seen = Vec::new();
    // Their periods begin one after the other, so that some of them are admitted at any time.
    thread::sleep(PERIOD * u32::try_from(number).unwrap_or(0) / u32::try_from(CLIENTS).unwrap_or(1));
    for server in (0..servers.len()).cycle() {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let sent = Instant::now();
        let answer = ask(&mut connections[server], &servers[server], &body);
        if answer.is_err() {
            connections[server] = None;
        }
        seen.push(Seen { sent, received: Instant::now(), answer: answer.unwrap_or(Answer::None) });
        thread::sleep(PAUSE);
    }
    Client { limited, seen }
}

fn ask(connection: &mut Option<BufReader<TcpStream>>, address: &str, body: &str) -> std::io::Result<Answer> {
    let reader = match connection {
        Some(reader) => reader,
        None => {
            let stream = TcpStream::connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            connection.insert(BufReader::new(stream))
        }
    };
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: campaign\r\ncontent-type: application/json\r\ncontent-length: {}",
        body.len()
    );
    reader.get_mut().write_all(format!("{head}\r\n\r\n{body}").as_bytes())?;
    let (status, body) = read_answer(reader)?;
    Ok(match (status, body.contains(r#""degraded":true"#)) {
        (_, true) => Answer::Degraded,
        (200, false) => Answer::Admitted,
        (429, false) => Answer::Denied,
        _ => Answer::None,
    })
}

/// Reads an answer whose head says how long it is.
fn read_answer(reader: &mut BufReader<TcpStream>) -> std::io::Result<(u16, String)> {
    let mut status = 0;
    let mut length = 0;
    for number in 0.. {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end().to_ascii_lowercase();
        if number == 0 {
            status = line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        } else if let Some(value) = line.strip_prefix("content-length:") {
            length = value.trim().parse().map_err(std::io::Error::other)?;
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

impl Client {
    /// How many admissions by Redis were beyond the limit for certain: however its clock fell
    /// between request and answer.
    pub(super) fn admitted_beyond(&self) -> usize {
        let is_counted = |seen: &&Seen| matches!(seen.answer, Answer::Admitted | Answer::Degraded);
        let counted = self.seen.iter().filter(is_counted);
        match self.limited {
            Limited::ByLog => beyond_log(counted.filter(|seen| seen.answer == Answer::Admitted)),
            Limited::ByWindow => beyond_window(counted),
        }
    }
}

fn beyond_log<'a>(admitted: impl Iterator<Item = &'a Seen>) -> usize {
    let mut counted = VecDeque::new();
    let mut beyond = 0;
    for seen in admitted {
        while counted.front().is_some_and(|sent: &Instant| seen.received - *sent >= PERIOD) {
            counted.pop_front();
        }
        if counted.len() < LIMIT {
            counted.push_back(seen.sent);
        } else {
            beyond += 1;
        }
    }
    beyond
}

/// A request whose answer is degraded may have opened a window: Redis may have decided it too late.
fn beyond_window<'a>(seen: impl Iterator<Item = &'a Seen>) -> usize {
    let mut opened = None;
    let mut used = 0;
    let mut beyond = 0;
    for seen in seen {
        if opened.is_none_or(|opened: Instant| seen.received - opened >= PERIOD) {
            opened = Some(seen.sent);
            used = 0;
        }
        if seen.answer == Answer::Degraded {
            // It is admitted by the policy, and no admission by Redis.
        } else if used < LIMIT {
            used += 1;
        } else {
            beyond += 1;
        }
    }
    beyond
}
