//! A client of the HTTP API, for the commands that ask a running server.
//!
//! The address and the token come from flags, or else from the environment, or else from a file.
//! What others chose, such as the names of clients, is printed with its control characters escaped.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, PercentEncode, utf8_percent_encode};
use serde::de::DeserializeOwned;
use serde_json::Value;
use ureq::http::{Request, Response};
use ureq::tls::{PemItem, RootCerts, TlsConfig, parse_pem};
use ureq::{Body, Timeout};

use crate::printable::printable;
use crate::secret::Secret;

pub(crate) mod check;
pub(crate) mod clients;
pub(crate) mod explain;
mod target;
pub(crate) mod top;

pub(crate) use target::Target;

/// The timeout of connecting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The timeout of a request that may take long.
const LONG_TIMEOUT: Duration = Duration::from_secs(60);

/// The largest response that is read.
const BODY_BYTES_MAX: u64 = 64 << 20;

/// A server, and the token to show it.
pub(crate) struct Remote {
    server: String,
    token: Option<Secret>,
    agent: ureq::Agent,
}

/// A response with a JSON body.
pub(crate) struct Reply {
    status: u16,
    body: String,
}

impl Remote {
    /// A client of `server`. Over HTTPS the server's certificate must be issued by a public CA, or
    /// by one in the file `authorities`.
    ///
    /// # Errors
    /// A sentence that says what to do.
    pub(crate) fn new(
        server: &str,
        token: Option<Secret>,
        authorities: Option<&Path>,
    ) -> Result<Self, String> {
        if !server.contains("://") {
            return Err(format!("--server {server} has no scheme; write http://{server}"));
        }
        let tls = match authorities {
            None => TlsConfig::default(),
            Some(file) => TlsConfig::builder().root_certs(read_authorities(file)?).build(),
        };
        let config = ureq::Agent::config_builder().http_status_as_error(false).tls_config(tls).build();
        let server = server.trim_end_matches('/').to_owned();
        Ok(Self { server, token, agent: ureq::Agent::new_with_config(config) })
    }

    /// Sends a request and reads the response.
    ///
    /// # Errors
    /// A sentence, if there is no response.
    pub(crate) fn send(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Reply, String> {
        self.send_within(TIMEOUT, method, path, body)
    }

    /// As [`send`](Self::send), for what may take a server long.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub(crate) fn send_long(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Reply, String> {
        self.send_within(LONG_TIMEOUT, method, path, body)
    }

    fn send_within(
        &self,
        timeout: Duration,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Reply, String> {
        let request = self.agent.configure_request(self.request(method, path, body)?);
        let request = request.timeout_connect(Some(CONNECT_TIMEOUT)).timeout_global(Some(timeout)).build();
        let mut response = self.agent.run(request).map_err(|error| self.unreachable(&error))?;
        let text = response.body_mut().with_config().limit(BODY_BYTES_MAX).read_to_string();
        Ok(Reply {
            status: response.status().as_u16(),
            body: text.map_err(|error| self.unreachable(&error))?,
        })
    }

    /// Begins to read a response that may never end.
    fn open(&self, path: &str) -> Result<Response<Body>, String> {
        let request = self.agent.configure_request(self.request("GET", path, None)?);
        let request =
            request.timeout_connect(Some(CONNECT_TIMEOUT)).timeout_recv_response(Some(TIMEOUT)).build();
        self.agent.run(request).map_err(|error| self.unreachable(&error))
    }

    fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Request<String>, String> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.server));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {}", token.reveal()));
        }
        if body.is_some() {
            request = request.header("content-type", "application/json");
        }
        let body = body.map(Value::to_string).unwrap_or_default();
        let help = "check --server, a URL such as http://127.0.0.1:8080";
        request.body(body).map_err(|error| format!("--server {}: {error}; {help}", self.server))
    }

    fn unreachable(&self, error: &ureq::Error) -> String {
        let server = &self.server;
        let help = if is_too_slow(error) {
            return format!(
                "{server} accepted the connection and did not answer in time; it or its store is busy: see \
                 its log, and try again"
            );
        } else if is_unreachable(error) {
            "is a server running there? Start one with `tollgate serve`"
        } else if server.starts_with("https:") {
            "check --server and --cacert"
        } else {
            "check --server"
        };
        format!("cannot reach {server}: {error}; {help}")
    }

    /// The body of a response with one of the statuses `expected`.
    ///
    /// # Errors
    /// A sentence: the server's own, if it has one.
    pub(crate) fn expect<T: DeserializeOwned>(&self, reply: &Reply, expected: &[u16]) -> Result<T, String> {
        let server = &self.server;
        if expected.contains(&reply.status) {
            return serde_json::from_str(&reply.body)
                .map_err(|error| format!("{server} is not a tollgate server ({error}); check --server"));
        }
        Err(self.refused(reply.status, &reply.body))
    }

    /// The sentence for a response that is not the expected one.
    pub(crate) fn refused(&self, status: u16, body: &str) -> String {
        let server = &self.server;
        match serde_json::from_str::<Value>(body) {
            Ok(_) if status == 401 && self.token.is_some() => {
                format!("{server} refused the admin token; {}", target::TOKEN_HELP)
            }
            Ok(_) if status == 401 => format!("{server} needs the admin token; {}", target::TOKEN_HELP),
            Ok(problem) => {
                let detail = problem["detail"].as_str().unwrap_or(body);
                format!("{server} answered {status}: {}", printable(detail))
            }
            Err(_) => format!("{server} answered {status} and is not a tollgate server; check --server"),
        }
    }
}

/// A part of a path.
pub(crate) fn encoded(part: &str) -> PercentEncode<'_> {
    utf8_percent_encode(part, NON_ALPHANUMERIC)
}

/// Whether a connected server did not answer in time.
fn is_too_slow(error: &ureq::Error) -> bool {
    let is_connecting = |timeout: &Timeout| matches!(timeout, Timeout::Connect | Timeout::Resolve);
    matches!(error, ureq::Error::Timeout(timeout) if !is_connecting(timeout))
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

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// Whether a server is running is known: it accepted the connection, or nobody did.
    #[test]
    fn a_server_that_is_slow_is_not_called_unreachable() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let remote = Remote::new(&format!("http://{}", listener.local_addr().unwrap()), None, None).unwrap();
        let ask = |remote: &Remote| {
            let asked = remote.send_within(Duration::from_millis(50), "GET", "/v1/blocks", None);
            asked.err().expect("nobody answers")
        };
        let slow = ask(&remote);
        assert!(slow.contains("did not answer") && !slow.contains("tollgate serve"), "{slow}");
        drop(listener);
        let gone = ask(&remote);
        assert!(gone.contains("is a server running there? Start one with `tollgate serve`"), "{gone}");
    }
}
