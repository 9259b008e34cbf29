//! Connections are bounded per listener and per peer, and no peer starves the others.

use std::fs;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use crate::common::{Server, TOLLGATE, directory, eventually};

/// A read that takes this long never succeeds.
const NEVER: Duration = Duration::from_secs(20);

/// HTTP/2's preface, empty settings, and a ping.
const HELLO: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\x08\x06\0\0\0\0\0are you?";

/// The acknowledgement of that ping, with the same eight bytes.
const PONG: &[u8] = b"\0\0\x08\x06\x01\0\0\0\0are you?";

/// A protocol, as raw bytes.
#[derive(Clone, Copy, Debug)]
struct Protocol {
    name: &'static str,
    /// The first and the next request, and the end of each response.
    first: &'static [u8],
    next: &'static [u8],
    answer: &'static [u8],
    /// The beginning of a request, which keeps a connection busy.
    unfinished: &'static [u8],
}

const PROTOCOLS: [Protocol; 3] = [
    Protocol {
        name: "http",
        first: b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
        next: b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
        answer: b"}",
        unfinished: b"POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n",
    },
    Protocol {
        name: "grpc",
        first: HELLO,
        next: HELLO.split_at(HELLO.len() - 17).1,
        answer: PONG,
        // The headers of a call: POST, http, and its path; the message is still to come.
        unfinished: b"\0\0\x40\x01\x04\0\0\0\x01\x83\x86\x04\x3c/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit",
    },
    Protocol { name: "resp", first: b"PING\r\n", next: b"PING\r\n", answer: b"+PONG\r\n", unfinished: b"" },
];

/// A connection of a protocol.
struct Peer {
    stream: TcpStream,
    protocol: Protocol,
}

impl Peer {
    /// Connects and sends a request.
    fn asks(server: &Server, protocol: Protocol) -> Self {
        let mut stream = TcpStream::connect(server.listens(protocol.name)).unwrap();
        stream.set_read_timeout(Some(NEVER)).unwrap();
        let _ = stream.write_all(protocol.first);
        Self { stream, protocol }
    }

    /// Whether the response comes; false if the connection ends.
    fn is_answered(&mut self) -> bool {
        let (mut heard, mut byte) = (Vec::new(), [0]);
        while !heard.ends_with(self.protocol.answer) {
            match self.stream.read(&mut byte) {
                Ok(0) => return false,
                Ok(_) => heard.push(byte[0]),
                Err(error) if error.kind() == ErrorKind::ConnectionReset => return false,
                Err(error) => panic!("{:?}: {error} after {heard:?}", self.protocol),
            }
        }
        true
    }

    /// Sends another request.
    fn is_answered_again(&mut self) -> bool {
        self.stream.write_all(self.protocol.next).is_ok() && self.is_answered()
    }

    /// Whether the server closes the connection.
    fn is_closed(&mut self) -> bool {
        let end = self.stream.read_to_end(&mut Vec::new());
        end.map_or_else(|error| error.kind() == ErrorKind::ConnectionReset, |_| true)
    }

    /// Keeps the connection busy, and waits until it is.
    fn never_finishes(&mut self, server: &Server) {
        self.stream.write_all(self.protocol.unfinished).unwrap();
        match self.protocol.name {
            // `100 Continue`: the server waits for the body.
            "http" => assert!(self.stream.read(&mut [0; 64]).unwrap() > 0),
            // Frames before a ping have been read once it is acknowledged.
            "grpc" => assert!(self.is_answered_again() && self.is_answered_again()),
            _ => self.takes_no_replies(server),
        }
    }

    /// Sends commands until the server stops reading, while it serves others.
    fn takes_no_replies(&mut self, server: &Server) {
        self.stream.set_nonblocking(true).unwrap();
        let many = "COMMAND\r\n".repeat(10_000);
        let mut refused = 0;
        while refused < 100 {
            refused = if self.stream.write(many.as_bytes()).is_ok() { 0 } else { refused + 1 };
            assert_eq!(server.get("/healthz").status, 200);
        }
    }
}

/// A server with every listener and these settings.
fn server(name: &str, settings: &str) -> Server {
    let file = directory(&format!("connections-{name}")).join("tollgate.toml");
    fs::write(&file, format!("[server]\n{settings}\n")).unwrap();
    Server::everywhere(&["--config", file.to_str().unwrap()])
}

/// A metric of a listener.
fn count(server: &Server, name: &str, protocol: Protocol, more: &str) -> f64 {
    server.metric(&format!("tollgate_connections{name}{{listener=\"{}\"{more}}}", protocol.name))
}

#[test]
fn a_full_listener_evicts_the_longest_idle_connection() {
    for protocol in PROTOCOLS {
        let server = server(&format!("idle-{}", protocol.name), "max_connections = 3");
        // In order, so that the longest idle one is known.
        let [mut first, mut second, mut third] = [(); 3].map(|()| {
            let mut peer = Peer::asks(&server, protocol);
            assert!(peer.is_answered(), "{protocol:?}");
            peer
        });
        // HTTP's listener is itself full while it serves the metrics.
        if protocol.name != "http" {
            assert_eq!(count(&server, "", protocol, ""), 3.0);
        }
        // The first is now the least idle. (A ping is not a call, so gRPC's order stays.)
        if protocol.name != "grpc" {
            assert!(first.is_answered_again());
            std::mem::swap(&mut first, &mut second);
        }
        assert!(Peer::asks(&server, protocol).is_answered(), "{protocol:?}");
        assert!(first.is_closed(), "{protocol:?}");
        assert!(third.is_answered_again() && second.is_answered_again(), "{protocol:?}");
        assert!(count(&server, "_evicted_total", protocol, "") >= 1.0);
    }
}

#[test]
fn a_new_connection_waits_while_all_are_busy_and_other_listeners_answer() {
    for protocol in PROTOCOLS {
        let server = server(&format!("busy-{}", protocol.name), "max_connections = 2");
        let mut busy = [(); 2].map(|()| Peer::asks(&server, protocol));
        assert!(busy.iter_mut().all(Peer::is_answered), "{protocol:?}");
        busy.iter_mut().for_each(|peer| peer.never_finishes(&server));
        let mut waiting = Peer::asks(&server, protocol);
        for other in PROTOCOLS.iter().filter(|other| other.name != protocol.name) {
            assert!(Peer::asks(&server, *other).is_answered(), "{other:?} beside {protocol:?}");
        }
        if protocol.name != "http" {
            eventually("it is kept waiting", || count(&server, "_delayed_total", protocol, "") == 1.0);
            assert_eq!(count(&server, "", protocol, ""), 2.0);
            assert_eq!(count(&server, "_evicted_total", protocol, ""), 0.0);
        }
        waiting.stream.set_nonblocking(true).unwrap();
        assert_eq!(waiting.stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock, "{protocol:?}");
        waiting.stream.set_nonblocking(false).unwrap();
        let [one, _two] = busy;
        drop(one);
        assert!(waiting.is_answered(), "{protocol:?}");
    }
}

#[test]
fn a_peer_is_bounded_and_a_trusted_proxy_is_not() {
    for protocol in PROTOCOLS {
        let open = |server: &Server| {
            let mut peers: Vec<Peer> = (0..5).map(|_| Peer::asks(server, protocol)).collect();
            peers.iter_mut().map(Peer::is_answered).filter(|answered| *answered).count()
        };
        let bound = "max_connections_per_peer = 3";
        let bounded = server(&format!("peer-{}", protocol.name), bound);
        assert_eq!(open(&bounded), 3, "{protocol:?}");
        eventually("those are gone", || Peer::asks(&bounded, protocol).is_answered());
        assert!(count(&bounded, "_refused_total", protocol, ",reason=\"per_peer\"") >= 2.0);
        let behind = server(
            &format!("proxy-{}", protocol.name),
            &format!("{bound}\ntrusted_proxies = [\"127.0.0.0/8\"]"),
        );
        assert_eq!(open(&behind), 5, "{protocol:?}");
    }
}

/// A server with these limits on open files, and every listener.
fn with_descriptors(soft: u32, hard: u32, config: &str) -> Server {
    let script = format!("ulimit -Sn {soft} && ulimit -Hn {hard} && exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, TOLLGATE, "serve", "--grpc", "127.0.0.1:0", "--resp", "127.0.0.1:0"]);
    Server::with_log(command.args(["--http", "127.0.0.1:0", "--config", config]))
}

#[test]
fn few_descriptors_are_shared_and_starve_neither_listeners_nor_reloads() {
    let file = directory("connections-descriptors").join("tollgate.toml");
    let rule = |limit: &str| format!("[[rule]]\nname = \"r\"\nkey = [\"client\"]\nlimit = \"{limit}\"\n");
    for protocol in PROTOCOLS {
        fs::write(&file, rule("10/hour")).unwrap();
        let mut server = with_descriptors(40, 80, file.to_str().unwrap());
        let warning = server.log_line("too few file descriptors");
        assert!(warning.contains("raise the limit on open files to 30128"), "{warning}");
        assert!(warning.contains("each listener accepts 13"), "{warning}");
        // More connections than descriptors.
        let mut peers: Vec<Peer> = (0..100).map(|_| Peer::asks(&server, protocol)).collect();
        assert!(peers.iter_mut().all(Peer::is_answered), "{protocol:?}");
        for other in PROTOCOLS.iter().filter(|other| other.name != protocol.name) {
            assert!(Peer::asks(&server, *other).is_answered(), "{other:?} beside {protocol:?}");
        }
        fs::write(&file, rule("20/hour")).unwrap();
        let reloaded = server.log_line("in effect");
        assert!(reloaded.contains("is in effect"), "{reloaded}");
        assert_eq!(count(&server, "_refused_total", protocol, ",reason=\"failed\""), 0.0);
    }
}

#[test]
fn the_limit_on_open_files_is_raised_at_the_start() {
    let file = directory("connections-raised").join("tollgate.toml");
    fs::write(&file, "[server]\nmax_connections = 20").unwrap();
    let server = with_descriptors(100, 1_000, file.to_str().unwrap());
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.process.id())).unwrap();
    let files = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().collect::<Vec<_>>(), ["1000", "1000", "files"]);
}
