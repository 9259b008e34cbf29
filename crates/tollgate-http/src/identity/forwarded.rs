//! The forwarding headers, parsed from the right: the nearest hop comes first, because only entries
//! that trusted proxies appended can be trusted.
//!
//! An entry that cannot be parsed is `None`, never an error: clients write these headers too.

use std::net::{IpAddr, SocketAddr};

use http::HeaderValue;
use http::header::GetAll;

/// Addresses, the nearest first.
pub(super) type Hops<'a> = Box<dyn Iterator<Item = Option<IpAddr>> + 'a>;

type Values<'a> = GetAll<'a, HeaderValue>;

/// `X-Forwarded-For: client, proxy`
pub(super) fn x_forwarded_for(values: Values<'_>) -> Hops<'_> {
    Box::new(elements(values, |text| text.rsplit(',').collect()).map(|element| address(element?)))
}

/// `Forwarded: for=client;proto=https, for="[2001:db8::1]:443"`
pub(super) fn forwarded(values: Values<'_>) -> Hops<'_> {
    Box::new(elements(values, split_quoted).map(|element| address(&node(element?)?)))
}

/// `X-Real-IP: client`; of several lines the last.
pub(super) fn x_real_ip(values: Values<'_>) -> Hops<'_> {
    let last = values.iter().next_back().map(|value| address(value.to_str().ok()?));
    Box::new(last.into_iter())
}

/// The elements of a list, which may span several lines, the last first.
fn elements<'a>(
    values: Values<'a>,
    split: impl Fn(&'a str) -> Vec<&'a str> + 'a,
) -> impl Iterator<Item = Option<&'a str>> {
    values.into_iter().rev().flat_map(move |value| match value.to_str() {
        Ok(text) => split(text).into_iter().map(|element| Some(element.trim())).collect(),
        Err(_) => vec![None],
    })
}

/// The elements of a list whose elements may have quoted commas, the last first. An unclosed quote
/// may be the client's, to hide the entry that the proxy appended: then the whole line cannot be
/// parsed.
fn split_quoted(text: &str) -> Vec<&str> {
    let mut quotes = Quotes::default();
    text.chars().for_each(|character| {
        quotes.is_inside(character);
    });
    if quotes.open {
        return vec![""];
    }
    let mut elements: Vec<&str> = split_outside_quotes(text, ',').collect();
    elements.reverse();
    elements
}

fn split_outside_quotes(text: &str, separator: char) -> impl Iterator<Item = &str> {
    let mut quotes = Quotes::default();
    text.split(move |character| !quotes.is_inside(character) && character == separator)
}

/// Tracks quoted strings, character by character.
#[derive(Default)]
struct Quotes {
    open: bool,
    escaped: bool,
}

impl Quotes {
    /// Advances by a character. Returns whether it is inside quotes.
    fn is_inside(&mut self, character: char) -> bool {
        let inside = self.open;
        match character {
            _ if self.escaped => self.escaped = false,
            '\\' if inside => self.escaped = true,
            '"' => self.open = !inside,
            _ => {}
        }
        inside
    }
}

/// The value of an element's `for` parameter.
fn node(element: &str) -> Option<String> {
    let mut nodes = split_outside_quotes(element, ';').filter_map(|pair| {
        let (name, value) = pair.split_once('=')?;
        name.trim().eq_ignore_ascii_case("for").then(|| value.trim())
    });
    let node = nodes.next()?;
    if nodes.next().is_some() {
        return None;
    }
    match node.strip_prefix('"') {
        Some(quoted) => Some(quoted.strip_suffix('"')?.replace('\\', "")),
        None => Some(node.to_owned()),
    }
}

/// Parses an address, with or without a port, IPv6 with or without brackets. An IPv4-mapped IPv6
/// address becomes IPv4.
fn address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let address = bare.parse().ok().or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()));
    address.map(|address: IpAddr| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderMap;
    use http::header::FORWARDED;

    fn read(lines: &[&str]) -> Vec<Option<String>> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(FORWARDED, line.parse().unwrap());
        }
        forwarded(headers.get_all(FORWARDED)).map(|hop| hop.map(|address| address.to_string())).collect()
    }

    fn some(addresses: &[&str]) -> Vec<Option<String>> {
        addresses.iter().map(|address| Some((*address).to_owned())).collect()
    }

    #[test]
    fn f3_the_examples_of_rfc_7239() {
        assert_eq!(read(&["for=192.0.2.60;proto=http;by=203.0.113.43"]), some(&["192.0.2.60"]));
        assert_eq!(read(&["for=192.0.2.43, for=198.51.100.17"]), some(&["198.51.100.17", "192.0.2.43"]));
        assert_eq!(read(&[r#"For="[2001:db8:cafe::17]:4711""#]), some(&["2001:db8:cafe::17"]));
        assert_eq!(
            read(&[r#"for=192.0.2.43, for="[2001:db8:cafe::17]""#]),
            some(&["2001:db8:cafe::17", "192.0.2.43"])
        );
        assert_eq!(
            read(&["for=unknown", "for=_hidden, for=1.2.3.4"]),
            [some(&["1.2.3.4"]), vec![None, None]].concat()
        );
    }

    #[test]
    fn f3_a_comma_in_quotes_does_not_make_a_hop() {
        assert_eq!(
            read(&[r#"for="1.1.1.1, for=2.2.2.2";by=x, for=3.3.3.3"#]),
            [some(&["3.3.3.3"]), vec![None]].concat()
        );
        assert_eq!(read(&[r#"by="\",";for=4.4.4.4"#]), some(&["4.4.4.4"]));
        assert_eq!(read(&["for=1.1.1.1;for=2.2.2.2"]), [None], "which of them?");
        assert_eq!(read(&["", "for", "=", ";;", "for=\"1.1.1.1"]), [None, None, None, None, None]);
    }

    #[test]
    fn f3_a_quote_that_a_client_leaves_open_swallows_nothing() {
        for proxy in ["for=203.0.113.9", "for=\"[2001:db8::9]:80\";proto=https"] {
            for client in
                [r#"for=6.6.6.6;x=""#, r#"for=6.6.6.6;x="\"#, r#"for="6.6.6.6"#, r#"for=6.6.6.6;x="a";y=""#]
            {
                let hops = read(&[&format!("{client}, {proxy}")]);
                assert_eq!(hops, [None], "{client}");
            }
        }
    }

    #[test]
    fn f3_addresses_come_in_many_clothes() {
        for (text, expected) in [
            (" 192.0.2.1 ", Some("192.0.2.1")),
            ("192.0.2.1:80", Some("192.0.2.1")),
            ("2001:db8::1", Some("2001:db8::1")),
            ("[2001:db8::1]", Some("2001:db8::1")),
            ("[2001:db8::1]:80", Some("2001:db8::1")),
            ("::ffff:192.0.2.1", Some("192.0.2.1")),
            ("192.0.2", None),
            ("localhost", None),
            ("", None),
        ] {
            assert_eq!(address(text).map(|address| address.to_string()).as_deref(), expected, "{text:?}");
        }
    }
}
