//! The Redis protocol, RESP2 and RESP3: bytes into frames, frames into commands, decisions into
//! replies.
//!
//! The commands of one read are answered in one write, their checks decided as one batch. Nothing
//! more is read from a client that does not read its replies, so a connection costs at most two
//! bounded buffers, and large ones are bounded together, for each peer and in all. A connection may
//! be idle between commands indefinitely, as connection pools expect. An unfinished command or
//! transaction, or a connection without any command, is closed after the timeout.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::time::timeout;

use crate::app::App;
use crate::connection::{Connection, Ending, Phase};

mod answer;
mod command;
mod frame;
mod handshake;
mod reply;
mod request;
mod session;
mod slot;
mod throttle;
mod transaction;

use session::Session;

/// Connection pools keep idle connections.
const ENDING: Ending = Ending { phase: Phase::Closing, may_idle: true };

/// The initial read size, and the most an idle connection keeps.
const READ_BYTES: usize = 4 << 10;

/// The largest read.
const READ_BYTES_MAX: usize = 64 << 10;

/// The bytes of both buffers that are not counted as held for the peer.
const UNCOUNTED_BYTES_MAX: usize = 32 << 10;

/// How long, and how many bytes, to drain before closing, so that the client sees the reply that
/// says why.
const LINGER: Duration = Duration::from_millis(500);
const LINGER_BYTES_MAX: usize = 1 << 20;

/// Serves a connection until it ends.
pub(crate) async fn serve_connection(
    app: &Arc<App>,
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    connection: &Connection,
) -> io::Result<()> {
    let request_timeout = app.fixed().timeout;
    let mut session = Session::new(Arc::clone(app), connection);
    let mut held = connection.buffers.hold();
    let mut bytes: Vec<u8> = Vec::new();
    let mut ended = pin!(connection.ended(ENDING));
    loop {
        if bytes.len() == bytes.capacity() {
            bytes.reserve(bytes.len().clamp(READ_BYTES, READ_BYTES_MAX));
        }
        tokio::select! {
            biased;
            // First, so that a client that never stops sending is stopped too.
            ended = ended.as_mut() => {
                ended?;
                return linger(stream).await;
            }
            read = stream.read_buf(&mut bytes) => {
                if read? == 0 {
                    return Ok(());
                }
            }
        }
        let busy = connection.busy();
        // Answers as many commands as the reply buffer has room for, repeatedly.
        loop {
            let taken = session.answer(&bytes).await;
            bytes.drain(..taken);
            let buffered = bytes.capacity().saturating_add(session.replies.bytes.capacity());
            if !held.resize(buffered.saturating_sub(UNCOUNTED_BYTES_MAX)) {
                session.refuse_for_room();
            }
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
        connection.progress(session.commands, !bytes.is_empty() || session.queue.is_some());
        if bytes.is_empty() {
            bytes.shrink_to(READ_BYTES);
        }
    }
}

/// Writes and flushes: a TLS stream may buffer the bytes.
async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    stream.write_all(bytes).await?;
    stream.flush().await
}

/// Shuts the stream down and drains it for a moment: closing a socket with unread bytes resets it,
/// and the last reply is lost.
async fn linger(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
    let rest = async {
        if stream.shutdown().await.is_err() {
            return;
        }
        let (mut discarded, mut sum) = (vec![0; READ_BYTES], 0_usize);
        while let Ok(read @ 1..) = stream.read(&mut discarded).await {
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
    use crate::connection::Lifecycle;
    use tokio::io::{BufWriter, DuplexStream, duplex};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;
    use tollgate::{Clock, HOUR, ManualClock, SECOND, SystemClock};

    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    const PONG: &[u8] = b"+PONG\r\n";

    fn app() -> (Arc<App>, watch::Sender<Lifecycle>, watch::Receiver<Lifecycle>) {
        app_with(Arc::new(SystemClock))
    }

    fn app_with(clock: Arc<dyn Clock>) -> (Arc<App>, watch::Sender<Lifecycle>, watch::Receiver<Lifecycle>) {
        let origin = Origin::default();
        let config = origin.load().unwrap();
        let (sender, receiver) = watch::channel(Lifecycle { phase: Phase::Open, tick: 0 });
        (Arc::new(App::new(origin, config, clock).unwrap()), sender, receiver)
    }

    /// A client, and a server whose replies are buffered up to `capacity` bytes. The server ends
    /// when the sender is dropped.
    fn conversation(
        capacity: usize,
    ) -> (DuplexStream, watch::Sender<Lifecycle>, impl Future<Output = io::Result<()>>) {
        let (app, sender, receiver) = app();
        let (client, server) = duplex(capacity);
        // Buffers writes until a flush, as TLS does.
        (client, sender, async move {
            serve_connection(&app, BufWriter::new(server), &Connection::alone(receiver)).await
        })
    }

    #[tokio::test(start_paused = true)]
    async fn replies_are_flushed_before_the_next_read() {
        let (mut client, _sender, server) = conversation(1 << 10);
        let server = tokio::spawn(server);
        client.write_all(PING).await.unwrap();
        let mut reply = [0; PONG.len()];
        timeout(SECOND, client.read_exact(&mut reply)).await.expect("a reply").unwrap();
        assert_eq!(reply, PONG);
        drop(client);
        server.await.unwrap().unwrap();
    }

    /// A wrong token delays its own reply and no other.
    #[tokio::test(start_paused = true)]
    async fn a_wrong_token_is_answered_late_and_other_commands_at_once() {
        let clock = ManualClock::default();
        let (app, _sender, receiver) = app_with(Arc::new(clock.clone()));
        let (mut client, server) = duplex(1 << 10);
        tokio::spawn(async move { serve_connection(&app, server, &Connection::alone(receiver)).await });
        for (command, late) in
            [("AUTH wrong", true), ("PING", false), ("HELLO 2 AUTH me wrong", true), ("HELLO x", false)]
        {
            client.write_all(format!("{command}\r\n").as_bytes()).await.unwrap();
            let mut reply = [0; 256];
            for span in [0, 499, 1].map(Duration::from_millis).into_iter().filter(|_| late) {
                // Paused time advances once every task is idle.
                assert!(timeout(HOUR, client.read(&mut reply)).await.is_err(), "{command}");
                clock.advance(span);
            }
            let read = timeout(HOUR, client.read(&mut reply)).await;
            assert_ne!(read.unwrap_or_else(|_| panic!("no answer to {command}")).unwrap(), 0);
        }
    }

    /// Closing a socket with unread bytes would reset it and lose replies.
    #[tokio::test]
    async fn a_client_that_sends_during_a_stop_is_not_reset() {
        let (app, sender, receiver) = app();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        client.write_all(&PING.repeat(100)).await.unwrap();
        sender.send_modify(|lifecycle| lifecycle.phase = Phase::Closing);
        let server =
            tokio::spawn(async move { serve_connection(&app, server, &Connection::alone(receiver)).await });
        assert_eq!(client.read(&mut [0; 64]).await.unwrap(), 0, "the end, and no reset");
        drop(client);
        server.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_replies_is_dropped() {
        let (mut client, _sender, server) = conversation(64);
        let server = tokio::spawn(server);
        // The client sends until the server closes the connection.
        let sending = async { while client.write_all(PING).await.is_ok() {} };
        timeout(HOUR, sending).await.expect("an end");
        let ended = server.await.unwrap();
        assert_eq!(ended.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
