//! Authentication of administrators.

use std::net::IpAddr;
use std::sync::atomic::Ordering;

use tollgate::Clock as _;
use tracing::warn;

use super::{App, STOPWATCH};

impl App {
    /// The generated admin token, if none is configured. It is logged once.
    pub(crate) fn generated_token(&self) -> Option<&str> {
        self.snapshot().settings.admin_token.is_none().then(|| self.generated_token.reveal())
    }

    /// Whether `token` is the admin token.
    pub(crate) fn is_admin_token(&self, token: &[u8]) -> bool {
        self.snapshot().settings.admin_token.as_ref().unwrap_or(&self.generated_token).is(token)
    }

    /// Counts a wrong token, logs at most one a second, and returns after the configured delay,
    /// which bounds how fast a connection can guess. No thread is blocked.
    pub(crate) async fn wrong_token(&self, peer: Option<IpAddr>, protocol: &'static str) {
        self.metrics.failed_authentications.fetch_add(1, Ordering::Relaxed);
        if let Some(attempts) = self.wrong_tokens.count(STOPWATCH.now()) {
            let peer = peer.map(|peer| self.logged(&peer.to_string()));
            warn!(peer, protocol, attempts, "a wrong admin token was shown");
        }
        let delay = self.snapshot().settings.failed_auth_delay;
        self.clock.sleep_until(self.clock.now().saturating_add(delay)).await;
    }
}
