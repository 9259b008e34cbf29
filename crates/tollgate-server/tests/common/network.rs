//! A slow network between the server and its Redis, and clients with addresses of their own.
#![allow(dead_code, reason = "each test program uses a part of this module")]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use socket2::{Domain, Socket, Type};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream as AsyncTcpStream};
use tokio::runtime::{self, Runtime};
use tokio::sync::{mpsc, watch};
use tollgate::{Clock as _, Timestamp, TokioClock};

/// The address of those who do harm. Everybody else is at 127.0.0.1.
pub(crate) const ATTACKER: [u8; 4] = [127, 0, 0, 2];

/// A proxy of a port that delays every byte by the same span, each way.
pub(crate) struct Network {
    pub(crate) port: u16,
    /// The pieces that Redis has answered.
    answered: Arc<AtomicU64>,
    /// Whether answers wait.
    paused: watch::Sender<bool>,
    /// Ends the tasks when it is dropped.
    _runtime: Runtime,
}

impl Network {
    pub(crate) fn to(port: u16, delay: Duration) -> Self {
        let runtime = runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
        let own_port = listener.local_addr().unwrap().port();
        let answered = Arc::new(AtomicU64::new(0));
        let paused = watch::Sender::new(false);
        let (counter, gate) = (Arc::clone(&answered), paused.clone());
        runtime.spawn(async move {
            while let Ok((server, _)) = listener.accept().await {
                let Ok(redis) = AsyncTcpStream::connect(("127.0.0.1", port)).await else { continue };
                let (from_server, to_server) = server.into_split();
                let (from_redis, to_redis) = redis.into_split();
                let counter = Arc::clone(&counter);
                let count = move || {
                    counter.fetch_add(1, Ordering::Relaxed);
                };
                tokio::spawn(delayed(from_server, to_redis, delay, watch::Sender::new(false), || {}));
                tokio::spawn(delayed(from_redis, to_server, delay, gate.clone(), count));
            }
        });
        Self { port: own_port, answered, paused, _runtime: runtime }
    }

    /// The answers of Redis so far. The last ones may still be on their way to the server.
    pub(crate) fn answered(&self) -> u64 {
        self.answered.load(Ordering::Relaxed)
    }

    /// Holds back the answers of Redis.
    pub(crate) fn pause(&self) {
        self.paused.send_replace(true);
    }

    pub(crate) fn resume(&self) {
        self.paused.send_replace(false);
    }
}

/// Copies bytes, each `delay` later and while it is not paused.
async fn delayed(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    delay: Duration,
    paused: watch::Sender<bool>,
    count: impl Fn(),
) {
    let (sender, mut pieces) = mpsc::unbounded_channel::<(Timestamp, Vec<u8>)>();
    let reading = async move {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes).await {
            count();
            let due = TokioClock.now().saturating_add(delay);
            let _ = sender.send((due, bytes[..read].to_vec()));
        }
    };
    let writing = async move {
        let mut paused = paused.subscribe();
        while let Some((due, piece)) = pieces.recv().await {
            TokioClock.sleep_until(due).await;
            let _ = paused.wait_for(|paused| !paused).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        let _ = to.shutdown().await;
    };
    tokio::join!(reading, writing);
}

/// A connection from an address in 127.0.0.0/8.
pub(crate) fn connect_from(from: [u8; 4], to: &str) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect(&to.parse::<SocketAddr>().unwrap().into())?;
    Ok(TcpStream::from(socket))
}
