//! The Redis protocol, versions 2 and 3: bytes into frames, frames into commands, decisions into
//! replies.
//!
//! What came in one read is answered in one write, its checks decided as one batch. While a client
//! does not take its replies nothing more is read from it, so nobody costs more than two bounded
//! buffers. A connection may be silent between commands for as long as it likes, as clients that
//! keep a pool of them expect; half a command, half a transaction, or never anything whole, is dropped
//! after the time-out.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::app::App;
use crate::connection::{Lifecycle, Phase, Slot};

mod command;
pub mod frame;
mod handshake;
mod reply;
mod session;
mod throttle;
mod transaction;

use session::Session;

/// How much is read at first, and what a connection that waits holds on to at most.
const READ_BYTES: usize = 4 << 10;

/// How much is read at once at most.
const READ_BYTES_MAX: usize = 64 << 10;

/// How long, and how much, a client whose connection is over may go on sending, so that it gets to
/// see the reply that says why.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: usize = 1 << 20;

/// Answers a connection until it ends.
pub(crate) async fn serve_connection(
    app: &Arc<App>,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    peer: SocketAddr,
    slot: &Arc<Slot>,
    lifecycle: watch::Receiver<Lifecycle>,
) -> io::Result<()> {
    let request_timeout = app.fixed().timeout;
    let mut session = Session::new(Arc::clone(app), peer.ip());
    let mut bytes: Vec<u8> = Vec::new();
    let (mut tick, mut stuck_at) = (lifecycle.borrow().tick, None);
    let mut told = pin!(next(lifecycle));
    loop {
        if bytes.len() == bytes.capacity() {
            bytes.reserve(bytes.len().clamp(READ_BYTES, READ_BYTES_MAX));
        }
        tokio::select! {
            biased;
            // First, so that who never stops sending hears it too.
            (lifecycle, gone) = told.as_mut() => {
                let now = *lifecycle.borrow();
                if gone || now.phase == Phase::Closing {
                    return linger(stream).await;
                }
                if std::mem::replace(&mut tick, now.tick) != now.tick {
                    let is_stuck = !bytes.is_empty() || session.commands == 0 || session.queue.is_some();
                    let stuck_now = is_stuck.then_some(session.commands);
                    if stuck_now.is_some() && stuck_now == stuck_at {
                        return Err(io::ErrorKind::TimedOut.into());
                    }
                    stuck_at = stuck_now;
                }
                told.set(next(lifecycle));
            }
            read = stream.read_buf(&mut bytes) => {
                if read? == 0 {
                    return Ok(());
                }
            }
        }
        let busy = slot.busy();
        // As much as there is room to answer, again and again.
        loop {
            let taken = session.answer(&bytes).await;
            bytes.drain(..taken);
            let replies = &mut session.replies.bytes;
            if !replies.is_empty() {
                timeout(request_timeout, send(&mut stream, replies))
                    .await
                    .map_err(|_| io::ErrorKind::TimedOut)??;
                replies.clear();
                replies.shrink_to(READ_BYTES);
            }
            if session.closing {
                return linger(stream).await;
            }
            if taken == 0 || bytes.is_empty() {
                break;
            }
        }
        drop(busy);
        if bytes.is_empty() {
            bytes.shrink_to(READ_BYTES);
        }
    }
}

/// Sends all of it: what is encrypted may have been taken and not be on its way yet.
async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// The next change of lifecycle, and whether nobody tells any more.
async fn next(mut lifecycle: watch::Receiver<Lifecycle>) -> (watch::Receiver<Lifecycle>, bool) {
    let gone = lifecycle.changed().await.is_err();
    (lifecycle, gone)
}

/// Says that nothing more will come, and listens on for a moment: a connection that is closed with
/// bytes unread takes its last reply with it.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let rest = async {
        if stream.shutdown().await.is_err() {
            return;
        }
        let (mut unheard, mut sum) = (vec![0; READ_BYTES], 0_usize);
        while let Ok(read @ 1..) = stream.read(&mut unheard).await {
            sum = sum.saturating_add(read);
            if sum > LINGER_BYTES_MAX {
                break;
            }
        }
    };
    let _ = timeout(LINGER, rest).await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Origin;
    use std::net::{IpAddr, Ipv4Addr};
    use tokio::io::{BufWriter, DuplexStream, duplex};
    use tokio::net::{TcpListener, TcpStream};
    use tollgate::{Clock, HOUR, ManualClock, SECOND, SystemClock};

    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    const PONG: &[u8] = b"+PONG\r\n";
    const PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

    fn app() -> (Arc<App>, watch::Sender<Lifecycle>, watch::Receiver<Lifecycle>) {
        app_with(Arc::new(SystemClock))
    }

    fn app_with(clock: Arc<dyn Clock>) -> (Arc<App>, watch::Sender<Lifecycle>, watch::Receiver<Lifecycle>) {
        let origin = Origin::default();
        let config = origin.load().unwrap();
        let (tell, told) = watch::channel(Lifecycle { phase: Phase::Open, tick: 0 });
        (Arc::new(App::new(origin, config, clock).unwrap()), tell, told)
    }

    /// A client, and a server that has `capacity` bytes of its replies on the way at most. It ends when
    /// the sender is dropped.
    fn conversation(
        capacity: usize,
    ) -> (DuplexStream, watch::Sender<Lifecycle>, impl Future<Output = io::Result<()>>) {
        let (app, tell, told) = app();
        let (client, server) = duplex(capacity);
        // As encryption does, this keeps what is written until it is told to let it go.
        (client, tell, async move {
            serve_connection(&app, BufWriter::new(server), PEER, &Slot::alone(), told).await
        })
    }

    #[tokio::test(start_paused = true)]
    async fn replies_are_on_their_way_before_more_is_waited_for() {
        let (mut client, _tell, server) = conversation(1 << 10);
        let server = tokio::spawn(server);
        client.write_all(PING).await.unwrap();
        let mut reply = [0; PONG.len()];
        timeout(SECOND, client.read_exact(&mut reply)).await.expect("a reply").unwrap();
        assert_eq!(reply, PONG);
        drop(client);
        server.await.unwrap().unwrap();
    }

    /// Whoever guesses the token waits for each answer, and nobody else does.
    #[tokio::test(start_paused = true)]
    async fn a_wrong_token_is_answered_late_and_all_else_at_once() {
        let clock = ManualClock::default();
        let (app, _tell, told) = app_with(Arc::new(clock.clone()));
        let (mut client, server) = duplex(1 << 10);
        tokio::spawn(async move { serve_connection(&app, server, PEER, &Slot::alone(), told).await });
        for (command, late) in
            [("AUTH wrong", true), ("PING", false), ("HELLO 2 AUTH me wrong", true), ("HELLO x", false)]
        {
            client.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
            let mut reply = [0; 256];
            for span in [0, 499, 1].map(Duration::from_millis).into_iter().filter(|_| late) {
                // Time passes for the timeout when nobody has anything left to do.
                assert!(timeout(HOUR, client.read(&mut reply)).await.is_err(), "{command}");
                clock.advance(span);
            }
            let read = timeout(HOUR, client.read(&mut reply)).await;
            assert_ne!(read.unwrap_or_else(|_| panic!("no answer to {command}")).unwrap(), 0);
        }
    }

    /// A connection that is closed with bytes unread takes with it what has been answered.
    #[tokio::test]
    async fn who_sends_on_while_the_server_stops_is_not_reset() {
        let (app, tell, told) = app();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(&PING.repeat(100)).await.unwrap();
        tell.send_modify(|lifecycle| lifecycle.phase = Phase::Closing);
        let server =
            tokio::spawn(async move { serve_connection(&app, server, PEER, &Slot::alone(), told).await });
        assert_eq!(client.read(&mut [0; 64]).await.unwrap(), 0, "the end, and no reset");
        drop(client);
        server.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn who_does_not_take_replies_is_not_waited_for() {
        let (mut client, _tell, server) = conversation(64);
        let server = tokio::spawn(server);
        // It asks until it is hung up on.
        let asking = async { while client.write_all(PING).await.is_ok() {} };
        timeout(HOUR, asking).await.expect("an end");
        let ended = server.await.unwrap();
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
