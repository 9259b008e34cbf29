//! `tollgate check`: a client of the HTTP API.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use tollgate::{Clock as _, SystemClock, Timestamp};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};

use crate::moment::Moment;

/// The timeout of the request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The server's decision.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct CheckResult {
    /// Whether the request is admitted.
    pub(crate) allowed: bool,
    remaining: Option<u64>,
    retry_after_ms: Option<u64>,
    #[serde(default)]
    reset_at: u64,
    /// Whether the decision was made without the store.
    #[serde(default)]
    degraded: bool,
}

impl fmt::Display for CheckResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.allowed, self.retry_after_ms) {
            (true, _) => match self.remaining {
                Some(left) => write!(f, "allowed, {left} left"),
                None if self.degraded => f.write_str("allowed"),
                None => f.write_str("allowed, no rule covers it"),
            },
            (false, Some(wait)) => write!(f, "denied, try again in {:?}", Duration::from_millis(wait)),
            (false, None) if self.degraded => f.write_str("denied"),
            (false, None) if self.remaining.is_none() => f.write_str("denied, no rule covers it"),
            (false, None) => f.write_str("denied, the cost is more than the whole limit"),
        }?;
        let (reset, now) = (Timestamp::from_millis(self.reset_at), SystemClock.now());
        if reset > now && self.remaining.is_some() {
            write!(f, "; the limit is whole again at {}", Moment::new(reset, now))?;
        }
        if self.degraded { f.write_str(", without the store: it does not answer") } else { Ok(()) }
    }
}

/// Checks `cost` units of `client` at `server`. Over HTTPS the server's certificate must be issued
/// by a public CA, or by one in the file `authorities`.
///
/// # Errors
/// A sentence that says why there is no decision and what to do.
pub(crate) fn check(
    server: &str,
    client: &str,
    cost: u64,
    authorities: Option<&Path>,
) -> Result<CheckResult, String> {
    if !server.contains("://") {
        return Err(format!("--server {server} has no scheme; write http://{server}"));
    }
    let client = utf8_percent_encode(client, NON_ALPHANUMERIC);
    let url = format!("{}/check/{client}?cost={cost}", server.trim_end_matches('/'));
    let tls = match authorities {
        None => TlsConfig::default(),
        Some(file) => TlsConfig::builder().root_certs(read_authorities(file)?).build(),
    };
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(TIMEOUT))
        .http_status_as_error(false)
        .tls_config(tls)
        .build();
    let unreachable = |error: ureq::Error| {
        let help = if is_unreachable(&error) {
            "is a server running there? Start one with `tollgate serve`"
        } else if server.starts_with("https:") {
            "check --server and --cacert"
        } else {
            "check --server"
        };
        format!("cannot reach {server}: {error}; {help}")
    };
    let mut response = ureq::Agent::new_with_config(config).get(&url).call().map_err(unreachable)?;
    let body = response.body_mut().read_to_string().map_err(unreachable)?;
    match response.status().as_u16() {
        200 | 429 | 503 => serde_json::from_str(&body)
            .map_err(|error| format!("{server} is not a tollgate server ({error}); check --server")),
        status => Err(match serde_json::from_str::<serde_json::Value>(&body) {
            Ok(problem) => {
                format!("{server} answered {status}: {}", problem["detail"].as_str().unwrap_or(&body))
            }
            Err(_) => format!("{server} answered {status} and is not a tollgate server; check --server"),
        }),
    }
}

/// Whether there was no response at all.
fn is_unreachable(error: &ureq::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    match error {
        ureq::Error::ConnectionFailed | ureq::Error::Timeout(_) => true,
        ureq::Error::Io(error) => {
            matches!(error.kind(), ConnectionRefused | HostUnreachable | NetworkUnreachable | TimedOut)
        }
        _ => false,
    }
}

fn read_authorities(file: &Path) -> Result<RootCerts, String> {
    let cannot =
        |error: &dyn fmt::Display| format!("cannot read certificates from {}: {error}", file.display());
    let pem = fs::read(file).map_err(|error| cannot(&error))?;
    let items = parse_pem(&pem).collect::<Result<Vec<_>, _>>().map_err(|error| cannot(&error))?;
    let certificates = items.into_iter().filter_map(|item| match item {
        PemItem::Certificate(certificate) => Some(certificate),
        _ => None,
    });
    Ok(RootCerts::Specific(Arc::new(certificates.collect())))
}
