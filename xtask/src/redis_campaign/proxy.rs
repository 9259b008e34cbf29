//! A network in front of a Redis: far away, narrow, broken, or silent.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// How a network is.
#[derive(Default)]
struct State {
    /// The delay of each way.
    delay_micros: AtomicU64,
    /// The bytes a second of each way; 0 for no limit.
    rate: AtomicU64,
    /// Whether connections are closed as soon as they are accepted.
    is_down: AtomicBool,
    connections: Mutex<Vec<Forwarded>>,
}

/// A connection that is forwarded.
struct Forwarded {
    ends: [TcpStream; 2],
    /// Whether what it carries is lost, and it stays open.
    is_silent: Arc<AtomicBool>,
}

/// A proxy in front of a port of this machine.
pub(super) struct Proxy {
    port: u16,
    state: Arc<State>,
}

impl Proxy {
    pub(super) fn start(upstream: u16) -> Result<Self, String> {
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let port = listener.local_addr().map_err(|error| error.to_string())?.port();
        let state = Arc::<State>::default();
        let accepted = Arc::clone(&state);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if !accepted.is_down.load(Ordering::Relaxed) {
                    let _ = accepted.forward(client, upstream);
                }
            }
        });
        Ok(Self { port, state })
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Delays everything, half of the round trip each way.
    pub(super) fn set_round_trip(&self, round_trip: Duration) {
        let micros = u64::try_from(round_trip.as_micros() / 2).unwrap_or(u64::MAX);
        self.state.delay_micros.store(micros, Ordering::Relaxed);
    }

    /// Limits the bytes a second, each way.
    pub(super) fn set_rate(&self, rate: u64) {
        self.state.rate.store(rate, Ordering::Relaxed);
    }

    /// Closes every connection, and accepts none until [`mend`](Self::mend).
    pub(super) fn break_down(&self) {
        self.state.is_down.store(true, Ordering::Relaxed);
        for forwarded in self.state.connections().drain(..) {
            let [client, server] = &forwarded.ends;
            let _ = client.shutdown(Shutdown::Both);
            let _ = server.shutdown(Shutdown::Both);
        }
    }

    pub(super) fn mend(&self) {
        self.state.is_down.store(false, Ordering::Relaxed);
    }

    /// Loses what the connections of now carry, from now on. New ones work.
    pub(super) fn silence(&self) {
        for forwarded in &*self.state.connections() {
            forwarded.is_silent.store(true, Ordering::Relaxed);
        }
    }
}

impl State {
    fn connections(&self) -> MutexGuard<'_, Vec<Forwarded>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forward(self: &Arc<Self>, client: TcpStream, upstream: u16) -> std::io::Result<()> {
        let server = TcpStream::connect(("127.0.0.1", upstream))?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let is_silent = Arc::<AtomicBool>::default();
        for (from, to) in [(&client, &server), (&server, &client)] {
            let way = Way { state: Arc::clone(self), is_silent: Arc::clone(&is_silent) };
            way.start(from.try_clone()?, to.try_clone()?);
        }
        self.connections().push(Forwarded { ends: [client, server], is_silent });
        Ok(())
    }
}

/// One way of a connection.
struct Way {
    state: Arc<State>,
    is_silent: Arc<AtomicBool>,
}

impl Way {
    #[expect(clippy::disallowed_methods, reason = "a delay is what it makes")]
    fn start(self, mut from: TcpStream, mut to: TcpStream) {
        let (sender, chunks) = mpsc::channel::<(Instant, Vec<u8>)>();
        let state = Arc::clone(&self.state);
        thread::spawn(move || {
            for (at, chunk) in chunks {
                thread::sleep(at.saturating_duration_since(Instant::now()));
                match state.rate.load(Ordering::Relaxed) {
                    0 => {}
                    rate => thread::sleep(Duration::from_micros(
                        u64::try_from(chunk.len()).unwrap_or(0).saturating_mul(1_000_000) / rate,
                    )),
                }
                if to.write_all(&chunk).is_err() {
                    return;
                }
            }
            let _ = to.shutdown(Shutdown::Write);
        });
        thread::spawn(move || {
            // Small, so that a narrow network forwards a long answer bit by bit.
            let mut buffer = vec![0; 4096];
            while let Ok(read @ 1..) = from.read(&mut buffer) {
                let delay = Duration::from_micros(self.state.delay_micros.load(Ordering::Relaxed));
                let is_lost = self.is_silent.load(Ordering::Relaxed);
                if !is_lost && sender.send((Instant::now() + delay, buffer[..read].to_vec())).is_err() {
                    return;
                }
            }
        });
    }
}
