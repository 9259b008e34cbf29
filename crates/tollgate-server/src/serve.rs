//! `tollgate serve`: binds the listeners, announces them, reloads its configuration, and stops on a
//! signal.

use std::future::Future;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use sd_notify::NotifyState;
use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::timeout;
use tollgate::{Clock, CoarseClock, SECOND, TokioClock};
use tracing::{info, warn};

use crate::app::{Access, App, STOPWATCH};
use crate::config::{Addresses, Fixed, OFF, Origin};
use crate::connection::{Acceptor, Lifecycle, Phase, Protocol};
use crate::grpc::Grpc;
use crate::http::Http;
use crate::{descriptors, log, reload, telemetry, upkeep};

/// How long idle connections stay open once the server stops, in case a request is on its way.
const DRAIN: Duration = SECOND;

/// How long requests in flight may take after [`DRAIN`].
const GRACE: Duration = Duration::from_secs(5);

/// The listeners of a server, each optional.
#[derive(Debug, Default)]
pub struct Listeners {
    /// For HTTP.
    pub http: Option<TcpListener>,
    /// For gRPC.
    pub grpc: Option<TcpListener>,
    /// For the Redis protocol.
    pub resp: Option<TcpListener>,
}

impl Listeners {
    async fn bind(addresses: &Addresses) -> Result<Self, String> {
        let bound = [
            bind("http", &addresses.http).await,
            bind("grpc", &addresses.grpc).await,
            bind("resp", &addresses.resp).await,
        ];
        let failed: Vec<&(String, &str)> = bound.iter().filter_map(|bound| bound.as_ref().err()).collect();
        if !failed.is_empty() {
            let errors: Vec<&str> = failed.iter().map(|(error, _)| error.as_str()).collect();
            let flags: String = failed.iter().map(|(_, name)| format!(" --{name} 127.0.0.1:0")).collect();
            return Err(format!(
                "cannot listen on {}; choose other addresses, or free ports with{flags}, or turn a listener \
                 off",
                errors.join(", ")
            ));
        }
        let [http, grpc, resp] = bound.map(|bound| bound.ok().flatten());
        Ok(Self { http, grpc, resp })
    }

    /// The listener that administrators use.
    fn administration(&self) -> Option<Access> {
        let listener = self.http.as_ref().or(self.resp.as_ref())?;
        Some(Access { address: listener.local_addr().ok()?, is_http: self.http.is_some() })
    }

    /// The ready line: the address of each listener.
    fn ready(&self) -> String {
        let listeners = [("http", &self.http), ("grpc", &self.grpc), ("resp", &self.resp)];
        let address = |(name, listener): (&str, &Option<TcpListener>)| {
            Some(format!(" {name}={}", listener.as_ref()?.local_addr().ok()?))
        };
        let addresses: String = listeners.into_iter().filter_map(address).collect();
        format!("tollgate ready{addresses}")
    }
}

/// Binds a listener. The error has the address and the reason, and the listener's name.
async fn bind<'a>(name: &'a str, address: &str) -> Result<Option<TcpListener>, (String, &'a str)> {
    if address == OFF {
        return Ok(None);
    }
    TcpListener::bind(address).await.map(Some).map_err(|error| (format!("{address}: {error}"), name))
}

/// Serves on `listeners` until `stop` completes, then drains.
///
/// Requests in flight are finished if they take no longer than a few seconds, so a peer that never
/// finishes sending cannot hold the server up. No request is lost: an HTTP connection ends with a
/// response that says so, and only connections that have been idle for a second are closed without
/// one.
pub async fn serve(listeners: Listeners, app: Arc<App>, stop: impl Future<Output = ()>) {
    let (lifecycle, receiver) = watch::channel(Lifecycle { phase: Phase::Open, tick: 0 });
    let request_timeout = app.fixed().timeout;
    let ticking = tokio::spawn({
        let lifecycle = lifecycle.clone();
        async move {
            loop {
                STOPWATCH.sleep_until(STOPWATCH.now().saturating_add(request_timeout)).await;
                lifecycle.send_modify(|lifecycle| lifecycle.tick += 1);
            }
        }
    });
    let Listeners { http, grpc, resp } = listeners;
    let http = http.map(|listener| (listener, Protocol::Http(Http::new(Arc::clone(&app)))));
    let grpc = grpc.map(|listener| (listener, Protocol::Grpc(Grpc::new(&app))));
    let resp = resp.map(|listener| (listener, Protocol::Resp));
    let listeners: Vec<_> = [http, grpc, resp].into_iter().flatten().collect();
    let max_connections = descriptors::share(listeners.len(), app.fixed().max_connections);
    let (mut acceptors, mut accepting) = (Vec::new(), Vec::new());
    for (listener, protocol) in listeners {
        let acceptor = Acceptor::new(Arc::clone(&app), protocol, receiver.clone(), max_connections);
        acceptors.push(acceptor.clone());
        accepting.push(tokio::spawn(async move { acceptor.accept(listener).await }));
    }
    stop.await;
    lifecycle.send_modify(|lifecycle| lifecycle.phase = Phase::Draining);
    join_all(accepting).await;
    let all_closed = || join_all(acceptors.iter().map(Acceptor::all_closed));
    if timeout(DRAIN, all_closed()).await.is_err() {
        lifecycle.send_modify(|lifecycle| lifecycle.phase = Phase::Closing);
        let _ = timeout(GRACE, all_closed()).await;
    }
    ticking.abort();
}

/// Serves the configuration of `origin` until SIGTERM or SIGINT.
///
/// # Errors
/// A sentence that says what to do, or the rendered configuration errors.
pub(crate) fn serve_until_signal(origin: Origin, colour: bool) -> Result<(), String> {
    let config = origin.load().map_err(|errors| errors.render(colour))?;
    let warnings = config.warnings.clone();
    let Fixed { addresses, workers, log, log_format, store, .. } = config.fixed.clone();
    log::start(log, log_format);
    descriptors::raise();
    let clock: Arc<dyn Clock> = if store.coarse_clock { Arc::new(CoarseClock) } else { Arc::new(TokioClock) };
    let app = Arc::new(App::new(origin, config, clock)?);
    let mut runtime = match workers {
        // A single thread needs no work stealing.
        Some(1) => runtime::Builder::new_current_thread(),
        _ => runtime::Builder::new_multi_thread(),
    };
    workers.map(|workers| runtime.worker_threads(workers));
    let runtime = runtime.enable_all().build().map_err(|error| format!("cannot start: {error}"))?;
    runtime.block_on(async {
        let listeners = Listeners::bind(&addresses).await?;
        let mut stopping = Stopping::new().map_err(|error| format!("cannot wait for signals: {error}"))?;
        reload::start(&app).map_err(|error| format!("cannot wait for signals: {error}"))?;
        upkeep::start(&app);
        telemetry::start(&app)?;
        // Before the ready line: a program that waits for it finds the token's file.
        if let Some(listener) = listeners.administration() {
            app.announce_access(listener);
        }
        let ready = listeners.ready();
        announce(&format!("{ready}\n"));
        warnings.iter().for_each(|warning| warn!("{warning}"));
        info!(version = env!("CARGO_PKG_VERSION"), "{ready}");
        // An unreachable store is logged now, not at the first request.
        let probe = Arc::clone(&app);
        tokio::spawn(async move { probe.not_ready_reason().await });
        let stopped = Arc::clone(&app);
        serve(listeners, Arc::clone(&app), async move {
            stopping.wait().await;
            stopped.set_not_ready();
            let _ = sd_notify::notify(&[NotifyState::Stopping]);
            let delay = stopped.fixed().stop_delay;
            info!(?delay, "stopping");
            // A second signal skips the delay.
            let _ = timeout(delay, stopping.wait()).await;
            // While the address is still this server's: another may write its own file next.
            stopped.authentication.remove_file();
        })
        .await;
        telemetry::stop(&app).await;
        app.limiter
            .store()
            .close()
            .await
            .map_err(|error| format!("{error}; changes since the last write are lost"))?;
        info!("stopped");
        Ok(())
    })
}

/// Writes the ready line to standard output and notifies systemd. A closed pipe means that no
/// process waits for the line.
fn announce(line: &str) {
    let mut stdout = io::stdout();
    let _ = stdout.write_all(line.as_bytes()).and_then(|()| stdout.flush());
    let _ = sd_notify::notify(&[NotifyState::Ready]);
}

/// SIGTERM and SIGINT. The handlers are installed on construction, so no signal is missed.
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
