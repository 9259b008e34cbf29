//! The key of a client: one part of a log line, or several together.

use std::borrow::Cow;
use std::net::IpAddr;
use std::str::FromStr;

use tollgate::{MAX_VALUE_BYTES, Paths};
use tollgate_http::Identity;

use super::field::{Field, Values};

/// Separates the parts of a key. No part contains it.
pub(super) const SEPARATOR: char = '\u{1f}';

/// One part of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeyPart {
    /// The value of a field; an address of IPv6 by its /64, a path normalised.
    Field(Field),
    /// The segments of the path that a pattern keeps.
    Pattern(Pattern),
}

/// A pattern of paths. A path matches if it begins with the pattern's segments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(Vec<Segment>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Literal(String),
    /// `*`: any segment.
    Any,
    /// `{}`: any segment, which is a part of the key.
    Kept,
}

impl KeyPart {
    /// The field that it is read from.
    pub(super) fn field(&self) -> Field {
        match self {
            Self::Field(field) => field.clone(),
            Self::Pattern(_) => Field::Path,
        }
    }

    fn append(&self, value: &str, key: &mut String) -> Option<()> {
        match self {
            Self::Field(Field::Address) => append_address(value, key),
            Self::Field(Field::Path) => key.push_str(&Paths::Normalized.normalize(without_query(value))),
            Self::Field(_) if value.contains(SEPARATOR) => {
                key.push_str(&value.replace(SEPARATOR, "\u{fffd}"));
            }
            Self::Field(_) => key.push_str(value),
            Self::Pattern(pattern) => {
                pattern.append(&Paths::Normalized.normalize(without_query(value)), key)?;
            }
        }
        Some(())
    }
}

/// Appends the key of a line to `key`. `None`, and an undefined rest, if the line lacks a part:
/// the line has no key then.
pub(super) fn append_key(
    parts: &[KeyPart],
    values: &Values<'_>,
    slots: &[usize],
    key: &mut String,
) -> Option<()> {
    let start = key.len();
    for (index, (part, slot)) in parts.iter().zip(slots).enumerate() {
        if index > 0 {
            key.push(SEPARATOR);
        }
        let value = values.get(*slot)?.as_deref().filter(|value| !value.is_empty())?;
        part.append(value, key)?;
    }
    // Longer keys share the budget of their beginning.
    if key.len() - start > MAX_VALUE_BYTES {
        key.truncate(key.floor_char_boundary(start + MAX_VALUE_BYTES));
    }
    Some(())
}

/// Appends an address as the server names it: IPv4 in full, IPv6 by its /64. Text that is no
/// address is taken as it is, because some logs have host names.
fn append_address(value: &str, key: &mut String) {
    // Dotted digits are the common case, and need no rewriting.
    if !value.contains(':') {
        key.push_str(value);
        return;
    }
    let host = value.strip_prefix('[').and_then(|rest| rest.split_once(']')).map_or(value, |(host, _)| host);
    let with_port = || value.parse::<std::net::SocketAddr>().ok().map(|address| address.ip());
    match host.parse::<IpAddr>().ok().or_else(with_port) {
        Some(address) => {
            key.push_str(&Identity::peer().bounded_peer(address.to_canonical()).unwrap_or_default());
        }
        None => key.push_str(value),
    }
}

pub(super) fn without_query(path: &str) -> &str {
    path.split(['?', '#']).next().unwrap_or(path)
}

/// The name of a client for people: its parts, without control characters.
pub(super) fn readable(key: &str) -> Cow<'_, str> {
    if !key.contains(char::is_control) {
        return Cow::Borrowed(key);
    }
    let part = |part: &str| part.replace(char::is_control, "\u{fffd}");
    Cow::Owned(key.split(SEPARATOR).map(part).collect::<Vec<_>>().join(" + "))
}

impl FromStr for KeyPart {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("path:") {
            Some(pattern) if pattern.starts_with('/') => Ok(Self::Pattern(Pattern::parse(pattern))),
            Some(pattern) => {
                Err(format!("the pattern {pattern:?} must begin with /, such as path:/users/{{}}"))
            }
            None if text.is_empty() => {
                Err("a key has a name; write address, user or a field of the log".into())
            }
            None => {
                let Ok(field) = text.parse();
                Ok(Self::Field(field))
            }
        }
    }
}

impl Pattern {
    fn parse(text: &str) -> Self {
        let segment = |segment: &str| match segment {
            "*" => Segment::Any,
            "{}" => Segment::Kept,
            literal => Segment::Literal(literal.into()),
        };
        Self(text.split('/').skip(1).filter(|segment| !segment.is_empty()).map(segment).collect())
    }

    fn append(&self, path: &str, key: &mut String) -> Option<()> {
        let mut segments = path.split('/').skip(1);
        for wanted in &self.0 {
            let segment = segments.next().filter(|segment| !segment.is_empty())?;
            key.push('/');
            match wanted {
                Segment::Literal(literal) if literal != segment => return None,
                Segment::Literal(_) | Segment::Kept => key.push_str(segment),
                Segment::Any => key.push('*'),
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(parts: &[&str], values: &[Option<&str>]) -> Option<String> {
        let parts: Vec<KeyPart> = parts.iter().map(|part| part.parse().unwrap()).collect();
        let slots: Vec<usize> = (0..parts.len()).collect();
        let mut key = String::new();
        let values = values.iter().map(|value| value.map(Cow::Borrowed)).collect();
        append_key(&parts, &values, &slots, &mut key).map(|()| key)
    }

    #[test]
    fn an_address_is_named_as_the_server_names_it() {
        for (address, name) in [
            ("192.0.2.1", "192.0.2.1"),
            ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
            ("[2001:db8:1:2::9]:443", "2001:db8:1:2::/64"),
            ("::ffff:192.0.2.1", "192.0.2.1"),
            ("192.0.2.1:2817", "192.0.2.1"),
            ("host.example", "host.example"),
        ] {
            assert_eq!(key(&["address"], &[Some(address)]).as_deref(), Some(name));
        }
    }

    #[test]
    fn a_pattern_keeps_the_segments_in_braces_and_other_paths_have_no_key() {
        let of = |path| key(&["path:/tenants/{}/*/x"], &[Some(path)]);
        assert_eq!(of("/tenants/7/items/x?page=2").as_deref(), Some("/tenants/7/*/x"));
        assert_eq!(of("/tenants/7/items/x/more").as_deref(), Some("/tenants/7/*/x"));
        assert_eq!(of("//tenants/%37/items/./x/").as_deref(), Some("/tenants/7/*/x"));
        assert_eq!((of("/tenants/7/items/y"), of("/tenants//items/x"), of("/tenants")), (None, None, None));
    }

    #[test]
    fn parts_do_not_run_together_and_a_missing_part_is_no_key() {
        let both = |a, b| key(&["user", "team"], &[Some(a), Some(b)]);
        assert_ne!(both("a\u{1f}b", "c"), both("a", "b\u{1f}c"));
        assert_eq!(readable(&both("a", "b").unwrap()), "a + b");
        assert_eq!(key(&["user", "team"], &[Some("a"), None]), None);
        assert_eq!(key(&["user"], &[Some("")]), None);
        assert_eq!(key(&["user"], &[Some(&"é".repeat(1_000))]).unwrap().len(), MAX_VALUE_BYTES);
        assert_eq!(readable("a\u{1b}[31m"), "a\u{fffd}[31m");
    }
}
