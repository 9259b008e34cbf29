//! `tollgate serve`: listens, says so, answers, and stops when it is told to.

use std::future::{Future, IntoFuture as _};
use std::io::{self, Write as _};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tollgate::{CLIENT, Clock as _, Limit, Limiter, Rule, RuleSet, TokioClock};

use crate::http;

/// How long a connection may go on after the server was told to stop.
const GRACE: Duration = Duration::from_secs(5);

/// Serves HTTP on `listener` until `stop` completes. What is in flight then is finished, if it does
/// not take longer than five seconds: someone who never finishes sending must not hold the server
/// up.
///
/// # Errors
/// What the listener fails with.
pub async fn serve(
    listener: TcpListener,
    limiter: Limiter,
    stop: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let (stopping, stopped) = tokio::sync::oneshot::channel();
    let stop = async {
        stop.await;
        let _ = stopping.send(());
    };
    let serving = axum::serve(listener, http::router(limiter)).with_graceful_shutdown(stop).into_future();
    let out_of_patience = async {
        // If nobody sends, the server has ended, and this is not waited for any more.
        if stopped.await.is_ok() {
            TokioClock.sleep_until(TokioClock.now().saturating_add(GRACE)).await;
        }
    };
    tokio::select! {
        served = serving => served,
        () = out_of_patience => Ok(()),
    }
}

/// Listens on `http` and serves `limit` for each client until SIGTERM or SIGINT.
///
/// # Errors
/// A sentence that says what to do.
pub fn serve_until_signal(http: &str, limit: Limit) -> Result<(), String> {
    let rules =
        RuleSet::new([Rule::new("per-client", limit).key([CLIENT])]).map_err(|error| error.to_string())?;
    let limiter = Limiter::builder(rules).build().map_err(|error| error.to_string())?;
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
        serve(listener, limiter, stop).await.map_err(cannot)
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
