//! Validates the `Host` field (RFC 9112, section 3.2): exactly one in an HTTP/1.1 request, and a
//! valid host.

use std::net::Ipv6Addr;
use std::str;

use axum::http::header::HOST;
use axum::http::{HeaderMap, Version};

use super::problem::ApiError;

/// Rejects a request whose host is ambiguous: an attacker could exploit servers and proxies that
/// choose differently between two hosts.
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

/// Whether a value is `uri-host [":" port]` of RFC 3986. An empty host is valid: it means that the
/// target has no authority.
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

/// Whether `name` is a `reg-name`, which includes IPv4 addresses.
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
