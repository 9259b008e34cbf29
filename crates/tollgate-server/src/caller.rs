//! Who sends a request: the caller among whom the store's queue and the places of holds are shared.
//!
//! | protocol | the caller |
//! |---|---|
//! | HTTP | the peer; behind a trusted proxy, the client that it forwards for |
//! | gRPC | the peer, which asks for many: it has `grpc_share` shares |
//! | Redis protocol | the peer |
//!
//! An IPv6 peer is its /64, as in the identification of clients. A name that a client writes into
//! a request is never the caller.

use std::net::IpAddr;
use std::sync::Arc;

use tollgate::Caller;
use tollgate_http::{Head, Identity};

/// The sender of a request.
#[derive(Clone, Debug)]
pub(crate) struct Sender {
    pub(crate) caller: Caller,
    /// For the log.
    pub(crate) name: Arc<str>,
}

impl Sender {
    /// The peer of a connection.
    pub(crate) fn peer(identity: &Identity, address: IpAddr) -> Self {
        Self::named(&peer_name(identity, address))
    }

    /// The peer of a gRPC connection. Its identity differs from that of the same peer over other
    /// protocols, which have one share.
    pub(crate) fn grpc_peer(identity: &Identity, address: IpAddr, share: u32) -> Self {
        let name = peer_name(identity, address);
        Self { caller: Caller::new(("grpc", &*name)).with_share(share), name: name.into() }
    }

    /// The client of a request that a trusted proxy forwards.
    pub(crate) fn forwarded(identity: &Identity, head: Head<'_>) -> Option<Self> {
        identity.identify(head).map(|name| Self::named(&name))
    }

    fn named(name: &str) -> Self {
        Self { caller: Caller::new(name), name: name.into() }
    }
}

/// The name of a peer. A trusted proxy is its whole address.
fn peer_name(identity: &Identity, address: IpAddr) -> String {
    identity.bounded_peer(address).unwrap_or_else(|| address.to_canonical().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::http::Request;
    use tollgate_http::{PeerAddr, Proxies};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn peer(text: &str) -> Caller {
        Sender::peer(&Identity::peer(), address(text)).caller
    }

    #[test]
    fn c5_a_caller_is_the_address_of_the_peer_and_of_ipv6_its_prefix() {
        assert_eq!(peer("192.0.2.1"), peer("::ffff:192.0.2.1"));
        assert_ne!(peer("192.0.2.1"), peer("192.0.2.2"));
        assert_eq!(peer("2001:db8:1:2::1"), peer("2001:db8:1:2:ffff::9"));
        assert_ne!(peer("2001:db8:1:2::1"), peer("2001:db8:1:3::1"));
    }

    #[test]
    fn c5_behind_a_trusted_proxy_the_caller_is_the_client_that_it_forwards_for() {
        let identity = Identity::peer().behind(Proxies::networks(["10.0.0.0/8".parse().unwrap()]));
        let forwarded = |from: &str, client: &str| {
            let request = Request::builder().uri("/").header("x-forwarded-for", client);
            let request = request.extension(PeerAddr((address(from), 1).into())).body(()).unwrap();
            Sender::forwarded(&identity, Head::from(&request)).unwrap().caller
        };
        assert_eq!(forwarded("10.0.0.1", "192.0.2.1"), peer("192.0.2.1"));
        assert_eq!(forwarded("10.0.0.1", "192.0.2.1"), forwarded("10.0.0.2", "192.0.2.1"));
        assert_ne!(forwarded("10.0.0.1", "192.0.2.1"), forwarded("10.0.0.1", "192.0.2.2"));
        assert_eq!(forwarded("198.51.100.7", "192.0.2.1"), peer("198.51.100.7"), "not trusted");
        let proxy = |text| Sender::peer(&identity, address(text)).caller;
        assert_ne!(proxy("10.0.0.1"), proxy("10.0.0.2"));
    }

    #[test]
    fn c5_a_grpc_peer_is_one_caller_with_more_shares_and_takes_none_from_other_protocols() {
        let grpc = |text, share| Sender::grpc_peer(&Identity::peer(), address(text), share).caller;
        assert_eq!(grpc("192.0.2.1", 16), grpc("192.0.2.1", 16));
        assert_ne!(grpc("192.0.2.1", 16), grpc("192.0.2.1", 1));
        assert_ne!(grpc("192.0.2.1", 1), peer("192.0.2.1"));
    }
}
