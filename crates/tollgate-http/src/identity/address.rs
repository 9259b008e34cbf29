//! The address of a client: the peer's, or the one that trusted proxies forward for.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::header::{FORWARDED, HeaderName};
use ipnet::IpNet;

use super::forwarded::{self, Hops};
use crate::Head;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");

/// The trusted proxies, and the header that they write.
#[derive(Clone, Debug)]
pub struct Proxies {
    trust: Trust,
    by: ForwardedBy,
}

#[derive(Clone, Debug)]
enum Trust {
    Nobody,
    Networks(Vec<IpNet>),
    Hops(usize),
}

/// The header that the proxies write. They pass on the other two as the client sent them, so the
/// right one must be named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ForwardedBy {
    /// `X-Forwarded-For`, to which each proxy appends the address of its peer.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239), to which each proxy appends an element.
    Forwarded,
    /// `X-Real-IP`, which the nearest proxy sets.
    XRealIp,
}

impl Proxies {
    /// Trusts proxies in these networks. The client is the first address from the right that is not
    /// in them.
    #[must_use]
    pub fn networks(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self { trust: Trust::Networks(networks.into_iter().collect()), by: ForwardedBy::default() }
    }

    /// Trusts the last `count` proxies, whatever their addresses: for clouds whose load balancers
    /// have many. No client may be able to connect around them.
    #[must_use]
    pub fn hops(count: usize) -> Self {
        Self { trust: Trust::Hops(count), by: ForwardedBy::default() }
    }

    /// Sets the header that the proxies write.
    #[must_use]
    pub const fn by(mut self, header: ForwardedBy) -> Self {
        self.by = header;
        self
    }
}

/// Derives a client's name from its address.
#[derive(Clone, Debug)]
pub(super) struct ClientAddress {
    pub(super) proxies: Proxies,
    pub(super) ipv6_prefix: u8,
}

impl Default for ClientAddress {
    fn default() -> Self {
        Self { proxies: Proxies { trust: Trust::Nobody, by: ForwardedBy::default() }, ipv6_prefix: 64 }
    }
}

impl ClientAddress {
    /// Calls `f` with the client's address, as text. Most clients have IPv4, whose text is not
    /// allocated.
    pub(super) fn with_name<R>(&self, head: &Head<'_>, f: impl FnOnce(&str) -> R) -> Option<R> {
        let peer = match head.peer()? {
            IpAddr::V4(address) if matches!(self.proxies.trust, Trust::Nobody) => {
                return Some(with_text(address, f));
            }
            peer => peer.to_canonical(),
        };
        let client = match &self.proxies.trust {
            Trust::Nobody => peer,
            Trust::Networks(networks) => self.behind_networks(*head, peer, networks),
            Trust::Hops(count) => self.behind_hops(*head, peer, *count),
        };
        Some(match client {
            IpAddr::V4(address) => with_text(address, f),
            IpAddr::V6(_) => f(&self.name(client)),
        })
    }

    /// The name of a peer that is not a trusted proxy. With trusted hops, every peer is one.
    pub(super) fn bounded_peer(&self, peer: IpAddr) -> Option<String> {
        let trusted = match &self.proxies.trust {
            Trust::Nobody => false,
            Trust::Networks(networks) => networks.iter().any(|network| network.contains(&peer)),
            Trust::Hops(count) => *count > 0,
        };
        (!trusted).then(|| self.name(peer))
    }

    fn hops<'a>(&self, head: Head<'a>) -> Hops<'a> {
        match self.proxies.by {
            ForwardedBy::XForwardedFor => forwarded::x_forwarded_for(head.headers.get_all(X_FORWARDED_FOR)),
            ForwardedBy::Forwarded => forwarded::forwarded(head.headers.get_all(FORWARDED)),
            ForwardedBy::XRealIp => forwarded::x_real_ip(head.headers.get_all(X_REAL_IP)),
        }
    }

    /// Walks from the nearest hop to the farthest, while the proxy that reported the hop is
    /// trusted. At a hop that cannot be parsed, the proxy that reported it is the client.
    fn behind_networks(&self, head: Head<'_>, peer: IpAddr, networks: &[IpNet]) -> IpAddr {
        let mut known = peer;
        for hop in self.hops(head) {
            if !networks.iter().any(|network| network.contains(&known)) {
                break;
            }
            let Some(hop) = hop else { break };
            known = hop;
        }
        known
    }

    /// Walks `count` hops, or as many as there are.
    fn behind_hops(&self, head: Head<'_>, peer: IpAddr, count: usize) -> IpAddr {
        self.hops(head).take(count).map_while(|hop| hop).last().unwrap_or(peer)
    }

    /// The name of an address: IPv4 in full, IPv6 by its prefix.
    fn name(&self, address: IpAddr) -> String {
        match address {
            IpAddr::V6(address) if self.ipv6_prefix < 128 => {
                let host_bits = 128 - u32::from(self.ipv6_prefix);
                let network = u128::MAX.checked_shl(host_bits).unwrap_or(0) & u128::from(address);
                format!("{}/{}", Ipv6Addr::from(network), self.ipv6_prefix)
            }
            IpAddr::V6(address) => address.to_string(),
            IpAddr::V4(address) => with_text(address, str::to_owned),
        }
    }
}

/// Calls `f` with the text of an address. Formats as `to_string` does, without an allocation, and
/// without branches and short stores, which stall a processor.
fn with_text<R>(address: Ipv4Addr, f: impl FnOnce(&str) -> R) -> R {
    let (mut text, mut length) = (0_u128, 0);
    for octet in address.octets() {
        let (digits, digits_length) = OCTETS[usize::from(octet)];
        text |= u128::from(digits) << (8 * length);
        length += digits_length;
    }
    let text = text.to_le_bytes();
    f(std::str::from_utf8(&text[..length - 1]).unwrap_or_default())
}

/// Each octet as text with a dot, in little-endian bytes, and the length of that.
static OCTETS: [(u32, usize); 256] = {
    let (mut octets, mut octet) = ([(0, 0); 256], 0_u8);
    loop {
        let (hundreds, tens, ones) = (b'0' + octet / 100, b'0' + octet / 10 % 10, b'0' + octet % 10);
        octets[octet as usize] = match octet {
            100.. => (u32::from_le_bytes([hundreds, tens, ones, b'.']), 4),
            10.. => (u32::from_le_bytes([tens, ones, b'.', 0]), 3),
            _ => (u32::from_le_bytes([ones, b'.', 0, 0]), 2),
        };
        match octet.checked_add(1) {
            Some(next) => octet = next,
            None => break octets,
        }
    }
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Identity, PeerAddr};
    use http::Request;

    #[test]
    fn an_address_is_formatted_as_the_standard_library_does() {
        for octet in 0..=u8::MAX {
            let address = Ipv4Addr::new(octet, u8::MAX - octet, 10, octet);
            with_text(address, |text| assert_eq!(text, address.to_string()));
        }
    }

    fn client(identity: &Identity, peer: &str, headers: &[(&str, &str)]) -> String {
        let mut request = Request::builder().uri("/");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let peer = PeerAddr((peer.parse::<IpAddr>().unwrap(), 1234).into());
        let request = request.extension(peer).body(()).unwrap();
        identity.identify(Head::from(&request)).unwrap().into_owned()
    }

    fn networks() -> Proxies {
        Proxies::networks(["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()])
    }

    #[test]
    fn f3_ipv6_is_counted_by_its_prefix_and_mapped_ipv4_is_ipv4() {
        let identity = Identity::peer();
        assert_eq!(client(&identity, "2001:db8:1:2:3:4:5:6", &[]), "2001:db8:1:2::/64");
        assert_eq!(client(&identity, "::ffff:192.0.2.1", &[]), "192.0.2.1");
        assert_eq!(client(&identity, "0.255.10.1", &[]), "0.255.10.1");
        assert_eq!(
            client(&identity.clone().ipv6_prefix(56), "2001:db8:1:2ff::1", &[]),
            "2001:db8:1:200::/56"
        );
        assert_eq!(client(&identity.clone().ipv6_prefix(128), "2001:db8::1", &[]), "2001:db8::1");
        assert_eq!(client(&identity.ipv6_prefix(0), "2001:db8::1", &[]), "::/0");
    }

    #[test]
    fn a_peer_is_its_own_address_and_a_trusted_proxy_is_none() {
        let name = |identity: &Identity, peer: &str| identity.bounded_peer(peer.parse().unwrap());
        let behind = Identity::peer().behind(networks());
        assert_eq!(name(&behind, "192.0.2.1").as_deref(), Some("192.0.2.1"));
        assert_eq!(name(&behind, "2001:db8:1:2:3::4").as_deref(), Some("2001:db8:1:2::/64"));
        for proxy in ["10.0.0.1", "::ffff:10.0.0.1", "fd00::1"] {
            assert_eq!(name(&behind, proxy), None, "{proxy}");
            assert!(name(&Identity::peer(), proxy).is_some(), "{proxy}");
        }
        let hops = |count| Identity::peer().behind(Proxies::hops(count));
        assert_eq!((name(&hops(1), "192.0.2.1"), name(&hops(0), "192.0.2.1").is_some()), (None, true));
    }

    #[test]
    fn f3_the_first_address_from_the_right_that_is_no_proxys_is_the_client() {
        let identity = Identity::peer().behind(networks());
        let through = |peer, header| client(&identity, peer, &[("x-forwarded-for", header)]);
        assert_eq!(through("10.0.0.1", "198.51.100.9"), "198.51.100.9");
        assert_eq!(
            through("10.0.0.1", "1.1.1.1, 198.51.100.9, 10.0.0.2"),
            "198.51.100.9",
            "the client wrote 1.1.1.1"
        );
        assert_eq!(through("198.51.100.9", "1.1.1.1"), "198.51.100.9", "not from a proxy");
        assert_eq!(through("10.0.0.1", "10.0.0.3, 10.0.0.2"), "10.0.0.3", "someone inside");
        assert_eq!(
            through("10.0.0.1", "1.1.1.1, nonsense"),
            "10.0.0.1",
            "what the proxy says cannot be read"
        );
        assert_eq!(through("10.0.0.1", ""), "10.0.0.1");
        assert_eq!(through("::ffff:10.0.0.1", "[2001:db8::7]:443"), "2001:db8::/64");
        let twice = [("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "198.51.100.9")];
        assert_eq!(client(&identity, "10.0.0.1", &twice), "198.51.100.9", "several lines are one list");
    }

    #[test]
    fn f3_so_many_hops_are_believed_and_no_more() {
        let identity = |count| Identity::peer().behind(Proxies::hops(count));
        let through = |count, header| client(&identity(count), "192.0.2.1", &[("x-forwarded-for", header)]);
        assert_eq!(through(0, "198.51.100.9"), "192.0.2.1");
        assert_eq!(through(1, "1.1.1.1, 198.51.100.9"), "198.51.100.9");
        assert_eq!(through(2, "1.1.1.1, 198.51.100.9, 203.0.113.5"), "198.51.100.9");
        assert_eq!(through(3, "198.51.100.9"), "198.51.100.9", "came in past the outer ones");
        assert_eq!(through(2, "unknown, 203.0.113.5"), "203.0.113.5");
    }

    #[test]
    fn f3_only_the_header_that_the_proxies_write_is_read() {
        let all = [
            ("forwarded", "for=198.51.100.1;proto=https"),
            ("x-forwarded-for", "198.51.100.2"),
            ("x-real-ip", "198.51.100.3"),
        ];
        for (by, expected) in [
            (ForwardedBy::Forwarded, "198.51.100.1"),
            (ForwardedBy::XForwardedFor, "198.51.100.2"),
            (ForwardedBy::XRealIp, "198.51.100.3"),
        ] {
            let identity = Identity::peer().behind(networks().by(by));
            assert_eq!(client(&identity, "10.0.0.1", &all), expected);
            assert_eq!(client(&identity, "192.0.2.1", &all), "192.0.2.1", "not from a proxy");
        }
    }
}
