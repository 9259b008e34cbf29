//! `tollgate serve`: listens, says so, answers, and stops when it is told to.

use std::future::Future;
use std::io::{self, Write as _};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::{Limit, Limiter};

use crate::http;

/// Serves HTTP on `listener` until `stop` completes; what is in flight then is finished.
///
/// # Errors
/// What the listener fails with.
pub async fn serve(
    listener: TcpListener,
    limiter: Limiter,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    axum::serve(listener, http::router(limiter)).with_graceful_shutdown(stop).await
}

/// Listens on `http` and serves `limit` for each client until SIGTERM or SIGINT.
///
/// # Errors
/// A sentence that says what to do.
pub fn serve_until_signal(http: &str, limit: Limit) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let cannot = |error| format!("cannot listen on {http}: {error}; choose another address with --http");
        let listener = TcpListener::bind(http).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let stop = stop_signal().map_err(|error| format!("cannot wait for signals: {error}"))?;
        announce(&format!("tollgate ready http={address}\n"));
        serve(listener, Limiter::new(limit), stop).await.map_err(cannot)
    })
}

/// The one line on standard output. Whoever started the server waits for it; nobody does if the
/// pipe is closed.
fn announce(line: &str) {
    let mut stdout = io::stdout();
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
}

/// Completes at the first SIGTERM or SIGINT. The handlers are installed now, so that none is
/// missed.
fn stop_signal() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        std::future::poll_fn(|context| match terminate.poll_recv(context) {
            std::task::Poll::Pending => interrupt.poll_recv(context),
            ready => ready,
        })
        .await;
    })
}
