//! Without a trusted proxy, forwarding headers do not change a client's identity.

use proptest::prelude::*;
use tollgate_http::{ForwardedBy, Head, Identity, PeerAddr, Proxies};

const NAMES: [&str; 5] = ["x-forwarded-for", "forwarded", "x-real-ip", "x-client-ip", "via"];

/// Addresses, malformed addresses and noise, as a client might send them.
fn value() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        any::<std::net::Ipv4Addr>().prop_map(|address| address.to_string()),
        any::<std::net::Ipv6Addr>().prop_map(|address| format!("[{address}]:80")),
        any::<std::net::Ipv6Addr>().prop_map(|address| format!("for=\"[{address}]\"")),
        Just("for=10.0.0.1".to_owned()),
        Just("10.0.0.1".to_owned()),
        Just("unknown".to_owned()),
        "[ -~]{0,12}",
    ];
    let list =
        prop::collection::vec((piece, prop_oneof![Just(","), Just(";"), Just(", "), Just("\"")]), 0..6);
    let text =
        list.prop_map(|pieces| pieces.iter().map(|(piece, end)| format!("{piece}{end}")).collect::<String>());
    prop_oneof![
        text.prop_map(String::into_bytes),
        prop::collection::vec(prop_oneof![0x20..0x7f_u8, 0x80..=0xff_u8], 0..40)
    ]
}

fn client(identity: &Identity, peer: &str, headers: &[(usize, Vec<u8>)]) -> String {
    let mut request = http::Request::new(());
    for (name, value) in headers {
        request.headers_mut().append(NAMES[*name], http::HeaderValue::from_bytes(value).unwrap());
    }
    request.extensions_mut().insert(PeerAddr(peer.parse().unwrap()));
    identity.identify(Head::from(&request)).unwrap().into_owned()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn f3_without_a_trusted_proxy_no_header_changes_the_bucket(
        headers in prop::collection::vec((0..NAMES.len(), value()), 0..6),
        by in prop_oneof![Just(ForwardedBy::XForwardedFor), Just(ForwardedBy::Forwarded), Just(ForwardedBy::XRealIp)],
    ) {
        let proxies = Proxies::networks(["10.0.0.0/8".parse().unwrap()]).by(by);
        for identity in [Identity::peer(), Identity::peer().behind(proxies), Identity::peer().behind(Proxies::hops(0))] {
            prop_assert_eq!(client(&identity, "203.0.113.9:999", &headers), "203.0.113.9");
            prop_assert_eq!(client(&identity, "[2001:db8::9]:999", &headers), "2001:db8::/64");
        }
    }

    /// Behind one trusted proxy only the last entry, the proxy's, counts.
    #[test]
    fn f3_behind_a_trusted_proxy_what_the_client_wrote_does_not_count(
        written in prop::collection::vec(value(), 0..4),
        client_address in any::<std::net::Ipv4Addr>().prop_filter("not a proxy", |address| address.octets()[0] != 10),
    ) {
        let mut headers: Vec<(usize, Vec<u8>)> = written.into_iter().map(|value| (0, value)).collect();
        headers.push((0, client_address.to_string().into_bytes()));
        for proxies in [Proxies::networks(["10.0.0.0/8".parse().unwrap()]), Proxies::hops(1)] {
            let identity = Identity::peer().behind(proxies);
            prop_assert_eq!(client(&identity, "10.1.2.3:4", &headers), client_address.to_string());
        }
    }
}
