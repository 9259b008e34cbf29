//! The `Host` field, as RFC 9112, section 3.2, has it: once in every HTTP/1.1 request, and a host.

use std::net::Ipv6Addr;
use std::str;

use axum::http::header::HOST;
use axum::http::{HeaderMap, Version};

use super::problem::ApiError;

/// Refuses a request whose host cannot be told for certain: servers and proxies that choose
/// differently between two hosts can be played off against each other.
pub(super) fn check(version: Version, headers: &HeaderMap) -> Result<(), ApiError> {
    let mut hosts = headers.get_all(HOST).iter();
    let detail = match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => "there is more than one Host field; send one",
        (Some(host), None) if !is_host(host.as_bytes()) => {
            "the Host field is not a host with or without a port; send one such as example.org:8080"
        }
        (None, _) if version == Version::HTTP_11 => "there is no Host field; HTTP/1.1 requires one",
        _ => return Ok(()),
    };
    Err(ApiError::bad("invalid_host", "host", detail))
}

/// Whether a value is `uri-host [":" port]` of RFC 3986. An empty name is one: so a request is
/// written whose target has no authority.
fn is_host(value: &[u8]) -> bool {
    let (host, port) = match value {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|byte| *byte == b']') else { return false };
            let (address, port) = rest.split_at(end);
            let is_address = str::from_utf8(address).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok());
            (is_address, port.get(1..).unwrap_or_default())
        }
        _ => {
            let end = value.iter().position(|byte| *byte == b':').unwrap_or(value.len());
            let (name, port) = value.split_at(end);
            (is_name(name), port)
        }
    };
    host && matches!(port, [] | [b':', ..]) && port.iter().skip(1).all(u8::is_ascii_digit)
}

/// Whether this is a `reg-name`; an IPv4 address is one too.
fn is_name(name: &[u8]) -> bool {
    let mut bytes = name.iter();
    while let Some(byte) = bytes.next() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(byte);
        let mut hex = || bytes.next().is_some_and(u8::is_ascii_hexdigit);
        if !(plain || *byte == b'%' && hex() && hex()) {
            return false;
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_name_or_an_address_with_or_without_a_port() {
        for host in [
            "",
            "x",
            "example.org",
            "example.org:8080",
            "example.org:",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:80",
            "[2001:db8::7]:",
            "a_b",
            "xn--bcher-kva.example",
            "%41.example",
            ":80",
        ] {
            assert!(is_host(host.as_bytes()), "{host}");
        }
        for other in [
            "a b", "a,b c", "a/b", "http://a", "user@a", "a:80:80", "a:x", "[::1", "::1", "[::1]80", "[a]",
            "[]", "%4", "%zz", "a?b", "a#b", "<a>", "a\\b", "a\"b", "bücher",
        ] {
            assert!(!is_host(other.as_bytes()), "{other}");
        }
    }
}
