//! A proxy in front of a Redis: it adds a delay each way, and counts bytes.

use std::hash::{BuildHasher as _, RandomState};
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use tollgate::{Clock as _, SystemClock, Timestamp};

/// Runs until the test ends.
#[derive(Clone, Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    /// In nanoseconds: the shortest delay, and by how much each message may take longer.
    delay: AtomicU64,
    jitter: AtomicU64,
    /// Sent to Redis.
    bytes: AtomicU64,
}

impl Proxy {
    /// In front of a server on this port of the machine.
    pub(crate) fn start(upstream: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = Self { port, shared: Arc::default() };
        let shared = Arc::clone(&proxy.shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(("127.0.0.1", upstream)) else { continue };
                let (to_server, to_client) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                forward(client, to_server, Arc::clone(&shared), true);
                forward(server, to_client, Arc::clone(&shared), false);
            }
        });
        proxy
    }

    /// Each way takes `delay`, and up to `jitter` longer.
    pub(crate) fn set_delay(&self, delay: Duration, jitter: Duration) {
        let nanos = |span: Duration| u64::try_from(span.as_nanos()).unwrap();
        self.shared.delay.store(nanos(delay), Ordering::Relaxed);
        self.shared.jitter.store(nanos(jitter), Ordering::Relaxed);
    }

    /// Bytes that were sent to Redis.
    pub(crate) fn bytes(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Shared {
    /// The delay of a message.
    fn next_delay(&self) -> Duration {
        let share = u64::from(RandomState::new().hash_one(0).to_le_bytes()[0]);
        let jitter = self.jitter.load(Ordering::Relaxed) * share / 255;
        Duration::from_nanos(self.delay.load(Ordering::Relaxed) + jitter)
    }
}

/// Forwards one direction. What was read later is not written earlier.
#[expect(clippy::disallowed_methods, reason = "a proxy of threads waits in a thread")]
fn forward(mut from: TcpStream, mut to: TcpStream, shared: Arc<Shared>, is_request: bool) {
    let (sender, receiver) = channel::<(Timestamp, Vec<u8>)>();
    let _ = to.set_nodelay(true);
    thread::spawn(move || {
        while let Ok((at, bytes)) = receiver.recv() {
            thread::sleep(at.since(SystemClock.now()));
            if to.write_all(&bytes).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    });
    thread::spawn(move || {
        let mut buffer = [0; 65_536];
        while let Ok(read @ 1..) = from.read(&mut buffer) {
            if is_request {
                shared.bytes.fetch_add(read as u64, Ordering::Relaxed);
            }
            let at = SystemClock.now().saturating_add(shared.next_delay());
            if sender.send((at, buffer[..read].to_vec())).is_err() {
                return;
            }
        }
    });
}
