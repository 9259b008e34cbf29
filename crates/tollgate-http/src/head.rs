//! What is known of a request before its body is read.

use std::net::{IpAddr, SocketAddr};

use http::{Extensions, HeaderMap, Method, Request, Uri};

/// What is known of a request before its body is read.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Its method.
    pub method: &'a Method,
    /// Where it goes.
    pub uri: &'a Uri,
    /// Its header fields. The client wrote them.
    pub headers: &'a HeaderMap,
    /// What the server and the layers before this one noted. The client did not write them.
    pub extensions: &'a Extensions,
}

impl<'a, B> From<&'a Request<B>> for Head<'a> {
    fn from(request: &'a Request<B>) -> Self {
        Self {
            method: request.method(),
            uri: request.uri(),
            headers: request.headers(),
            extensions: request.extensions(),
        }
    }
}

/// Where a connection comes from, for servers that know it another way than axum and tonic do:
/// insert it into the request's extensions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

impl<'a> Head<'a> {
    /// Where the connection comes from, if the server noted it.
    #[must_use]
    pub fn peer(&self) -> Option<IpAddr> {
        let noted = self.extensions.get::<PeerAddr>().map(|peer| peer.0);
        #[cfg(feature = "axum")]
        let noted = noted.or_else(|| {
            let info = self.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>();
            info.map(|info| info.0)
        });
        #[cfg(feature = "grpc")]
        let noted = noted.or_else(|| {
            let info = self.extensions.get::<tonic::transport::server::TcpConnectInfo>();
            info.and_then(|info| info.remote_addr())
        });
        noted.map(|peer| peer.ip())
    }

    /// The host it asks for.
    #[must_use]
    pub fn host(&self) -> Option<&'a str> {
        self.uri.host().or_else(|| self.headers.get(http::header::HOST)?.to_str().ok())
    }
}
