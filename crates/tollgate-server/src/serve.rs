//! `tollgate serve`: listens, says so, answers, reads its configuration again when it changes, and
//! stops when it is told to.

use std::future::Future;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;
use tollgate::{Clock, CoarseClock, SECOND, TokioClock};
use tracing::{info, warn};

use crate::app::{App, STOPWATCH};
use crate::config::{Fixed, Origin};
use crate::connection::{Course, Phase, Server};
use crate::{log, reload, upkeep};

/// How long connections that wait for a request have, once the server stops, to send one.
const DRAIN: Duration = SECOND;

/// How long a request may go on after that.
const GRACE: Duration = Duration::from_secs(5);

/// Serves HTTP on `listener` until `stop` completes. What is in flight then is finished, if that
/// does not take longer than a few seconds: someone who never finishes sending must not hold the
/// server up. No request is lost to the stop: connections end with an answer that says so, and only
/// those that have been waiting for a request for a second are closed without one.
pub async fn serve(listener: TcpListener, app: Arc<App>, stop: impl Future<Output = ()>) {
    let (course, told) = watch::channel(Course { phase: Phase::Open, tick: 0 });
    let patience = app.fixed().timeout;
    let server = Server::new(app, told);
    let ticking = tokio::spawn({
        let course = course.clone();
        async move {
            loop {
                STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(patience)).await;
                course.send_modify(|course| course.tick += 1);
            }
        }
    });
    let accepting = tokio::spawn({
        let server = server.clone();
        async move { server.accept(listener).await }
    });
    stop.await;
    course.send_modify(|course| course.phase = Phase::Draining);
    let _ = accepting.await;
    if timeout(DRAIN, server.all_closed()).await.is_err() {
        course.send_modify(|course| course.phase = Phase::Closing);
        let _ = timeout(GRACE, server.all_closed()).await;
    }
    ticking.abort();
}

/// Serves what is configured until SIGTERM or SIGINT.
///
/// # Errors
/// A sentence that says what to do, or what is wrong with the configuration.
pub fn serve_until_signal(origin: Origin, colour: bool) -> Result<(), String> {
    let config = origin.load().map_err(|faults| faults.render(colour))?;
    let warnings = config.warnings.clone();
    let Fixed { http, workers, log, log_format, store, .. } = config.fixed.clone();
    log::start(&log, log_format);
    let clock: Arc<dyn Clock> = if store.coarse_clock { Arc::new(CoarseClock) } else { Arc::new(TokioClock) };
    let app = Arc::new(App::new(origin.clone(), config, clock)?);
    let mut runtime = match workers {
        // One thread needs none of what several need to share their work.
        Some(1) => runtime::Builder::new_current_thread(),
        _ => runtime::Builder::new_multi_thread(),
    };
    workers.map(|workers| runtime.worker_threads(workers));
    let runtime = runtime.enable_all().build().map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let cannot = |error| format!("cannot listen on {http}: {error}; choose another address with --http");
        let listener = TcpListener::bind(&http).await.map_err(cannot)?;
        let address = listener.local_addr().map_err(cannot)?;
        let mut stopping = Stopping::new().map_err(|error| format!("cannot wait for signals: {error}"))?;
        reload::start(&app, origin.file).map_err(|error| format!("cannot wait for signals: {error}"))?;
        upkeep::start(&app);
        announce(&format!("tollgate ready http={address}\n"));
        warnings.iter().for_each(|warning| warn!("{warning}"));
        if let Some(token) = app.made_up_token() {
            info!(token, "no admin token is configured; this one is good until the server stops");
        }
        info!(%address, version = env!("CARGO_PKG_VERSION"), "ready");
        let told = Arc::clone(&app);
        serve(listener, Arc::clone(&app), async move {
            stopping.wait().await;
            told.no_longer_ready();
            let _ = sd_notify::notify(&[NotifyState::Stopping]);
            let delay = told.fixed().stop_delay;
            info!(?delay, "stopping");
            // Another signal means: now.
            let _ = timeout(delay, stopping.wait()).await;
        })
        .await;
        app.limiter
            .store()
            .close()
            .await
            .map_err(|error| format!("{error}; what changed since the last write is lost"))?;
        info!("stopped");
        Ok(())
    })
}

/// The one line on standard output, and systemd's notice. Whoever started the server waits for
/// them; nobody does if the pipe is closed.
fn announce(line: &str) {
    let mut stdout = io::stdout();
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

/// SIGTERM and SIGINT. The handlers are installed when this is made, so that none is missed.
struct Stopping {
    terminate: Signal,
    interrupt: Signal,
}

impl Stopping {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
