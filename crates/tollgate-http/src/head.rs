//! The head of a request: all but its body.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use http::{Extensions, HeaderMap, Method, Request, Uri};

/// The head of a request: all but its body.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// The method.
    pub method: &'a Method,
    /// The target that the client asked for. Of a request inside of axum's `nest`, that is the
    /// whole path (feature `axum`).
    pub uri: &'a Uri,
    /// The header fields, which the client wrote.
    pub headers: &'a HeaderMap,
    /// The extensions, which the server and earlier layers wrote, never the client.
    pub extensions: &'a Extensions,
}

impl<'a, B> From<&'a Request<B>> for Head<'a> {
    fn from(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: original_uri(request.extensions()).unwrap_or(request.uri()),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

/// The target before a router stripped a prefix from its path.
#[cfg(feature = "axum")]
fn original_uri(extensions: &Extensions) -> Option<&Uri> {
    extensions.get::<axum::extract::OriginalUri>().map(|original| &original.0)
}

#[cfg(not(feature = "axum"))]
const fn original_uri(_: &Extensions) -> Option<&Uri> {
    None
}

/// The address of the peer, as a request extension: for servers other than axum's and tonic's,
/// which have extensions of their own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

impl<'a> Head<'a> {
    /// The address of the peer, if an extension has it.
    #[must_use]
    #[inline]
    pub fn peer(&self) -> Option<IpAddr> {
        if let Some(PeerAddr(peer)) = self.extensions.get() {
            return Some(peer.ip());
        }
        #[cfg(feature = "axum")]
        if let Some(axum::extract::ConnectInfo::<SocketAddr>(peer)) = self.extensions.get() {
            return Some(peer.ip());
        }
        #[cfg(feature = "grpc")]
        if let Some(info) = self.extensions.get::<tonic::transport::server::TcpConnectInfo>() {
            return info.remote_addr().map(|peer| peer.ip());
        }
        None
    }

    /// The normalised host: in lower case, without port and final dot. `Host` takes precedence over
    /// the authority of the target, as it does for virtual hosts; HTTP/2 usually sends only the
    /// authority.
    #[must_use]
    pub fn host(&self) -> Option<Cow<'a, str>> {
        let host = match self.headers.get(http::header::HOST) {
            Some(host) => host.to_str().ok()?,
            None => self.uri.host()?,
        };
        let name = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
            _ => host,
        };
        let name = name.strip_suffix('.').unwrap_or(name);
        let is_lower = !name.bytes().any(|byte| byte.is_ascii_uppercase());
        Some(if is_lower { Cow::Borrowed(name) } else { Cow::Owned(name.to_ascii_lowercase()) })
            .filter(|name| !name.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c2_a_host_is_the_same_host_however_it_is_spelled() {
        let host = |uri: &str, header: Option<&str>| {
            let request = Request::builder().uri(uri);
            let request = header.into_iter().fold(request, |request, host| request.header("host", host));
            Head::from(&request.body(()).unwrap()).host().map(Cow::into_owned)
        };
        for spelled in ["api.example.com", "API.example.com", "api.example.com:8080", "api.example.com.:443"]
        {
            assert_eq!(host("/", Some(spelled)).unwrap(), "api.example.com");
        }
        assert_eq!(host("http://API.example.com:80/", None).unwrap(), "api.example.com");
        assert_eq!(host("http://other/", Some("api.example.com")).unwrap(), "api.example.com");
        assert_eq!(host("/", Some("[2001:db8::1]:80")).unwrap(), "[2001:db8::1]");
        assert_eq!(host("/", None), None);
    }
}
