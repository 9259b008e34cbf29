//! Authentication of administrators.
//!
//! While no admin token is configured, a generated one is in force. It is written to a file that
//! only its user can read, and to no log. On a terminal, the address of the dashboard comes with a
//! one-time code, which opens a session that may read.

use std::io::{self, IsTerminal as _, Write as _};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering;
use std::sync::{Mutex, OnceLock, PoisonError};

use tollgate::{Clock as _, SECOND};
use tracing::{info, warn};

use super::sessions::Sessions;
use super::{App, LogThrottle, STOPWATCH};
use crate::config::LogFormat;
use crate::secret::Secret;
use crate::token_file::{TokenFile, reachable};

/// What administrators are recognised by.
#[derive(Debug)]
pub(crate) struct Authentication {
    /// The admin token while none is configured.
    generated: Secret,
    /// The file that has it.
    file: Mutex<Option<TokenFile>>,
    /// The address of administration. Unset in tests that start no process.
    listener: OnceLock<Access>,
    pub(crate) sessions: Sessions,
    /// Throttles the log of wrong admin tokens.
    wrong_tokens: LogThrottle,
}

/// A listener that takes the admin token.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access {
    pub(crate) address: SocketAddr,
    /// Whether it serves the dashboard.
    pub(crate) is_http: bool,
}

impl Authentication {
    /// # Errors
    /// If the operating system has no randomness.
    pub(super) fn new() -> Result<Self, String> {
        Ok(Self {
            generated: Secret::random()?,
            file: Mutex::default(),
            listener: OnceLock::new(),
            sessions: Sessions::default(),
            wrong_tokens: LogThrottle::new(SECOND),
        })
    }

    /// Removes the file of the generated token, if there is one.
    pub(crate) fn remove_file(&self) {
        self.replace_file(None);
    }

    fn replace_file(&self, file: Option<TokenFile>) {
        *self.file.lock().unwrap_or_else(PoisonError::into_inner) = file;
    }
}

impl App {
    /// Tells administrators of this machine how to authenticate at `listener`.
    pub(crate) fn announce_access(&self, listener: Access) {
        let listener = *self.authentication.listener.get_or_init(|| listener);
        if !self.has_configured_token() {
            self.announce_generated_token(listener);
        }
    }

    /// As [`announce_access`](Self::announce_access), after a reload that configured or removed the
    /// admin token.
    pub(super) fn renew_access(&self, had_token: bool) {
        let has_token = self.has_configured_token();
        if has_token {
            self.authentication.sessions.end_all();
            self.authentication.remove_file();
        } else if had_token && let Some(listener) = self.authentication.listener.get() {
            self.announce_generated_token(*listener);
        }
    }

    fn announce_generated_token(&self, listener: Access) {
        let token = &self.authentication.generated;
        match TokenFile::create(listener.address, self.fixed.store.data_directory(), token) {
            Ok(file) => {
                let path = file.path().display();
                info!(file = %path, "no admin token is configured; the file has a generated one until the server stops");
                self.authentication.replace_file(Some(file));
            }
            Err(reason) => warn!(
                "no admin token is configured, and the generated one has no file ({reason}); set \
                 TOLLGATE_ADMIN_TOKEN or XDG_RUNTIME_DIR to administer this server"
            ),
        }
        // A terminal is read by the person who started the server. JSON is read by programs.
        if io::stderr().is_terminal() && self.fixed.log_format != LogFormat::Json {
            let dashboard = listener.is_http.then(|| self.dashboard_address(listener.address)).flatten();
            let dashboard = dashboard.map(|url| format!("Dashboard: {url} (once, within ten minutes)\n"));
            let token = format!("Admin token: {} (until the server stops)\n", token.reveal());
            let _ = io::stderr().write_all((dashboard.unwrap_or_default() + &token).as_bytes());
        }
    }

    /// The dashboard's URL with a new one-time code. Browsers do not send a fragment, so no log has
    /// the code.
    fn dashboard_address(&self, listener: SocketAddr) -> Option<String> {
        let scheme = if self.snapshot().settings.tls.is_some() { "https" } else { "http" };
        let code = self.issue_dashboard_code()?;
        Some(format!("{scheme}://{}/#/code/{code}", reachable(listener)))
    }

    /// A one-time code that the dashboard exchanges for a session. `None` if an admin token is
    /// configured, or the operating system has no randomness.
    pub fn issue_dashboard_code(&self) -> Option<String> {
        if self.has_configured_token() {
            return None;
        }
        let code = self.authentication.sessions.issue_code(self.clock.now());
        code.inspect_err(|error| warn!("the dashboard has no one-time code: {error}")).ok()
    }

    fn has_configured_token(&self) -> bool {
        self.snapshot().settings.admin_token.is_some()
    }

    /// Whether `token` is the admin token.
    pub(crate) fn is_admin_token(&self, token: &[u8]) -> bool {
        self.snapshot().settings.admin_token.as_ref().unwrap_or(&self.authentication.generated).is(token)
    }

    /// Counts a wrong token or code, logs at most one a second, and returns after the configured
    /// delay, which bounds how fast a connection can guess. No thread is blocked.
    pub(crate) async fn wrong_token(&self, peer: Option<IpAddr>, protocol: &'static str) {
        self.metrics.failed_authentications.fetch_add(1, Ordering::Relaxed);
        if let Some(attempts) = self.authentication.wrong_tokens.count(STOPWATCH.now()) {
            let peer = peer.map(|peer| self.logged(&peer.to_string()));
            warn!(peer, protocol, attempts, "a wrong admin token or dashboard code was shown");
        }
        let delay = self.snapshot().settings.failed_auth_delay;
        self.clock.sleep_until(self.clock.now().saturating_add(delay)).await;
    }
}
