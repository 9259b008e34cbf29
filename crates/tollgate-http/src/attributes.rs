//! The head of a request as attributes for a limiter.
//!
//! No value that a client sends evades a rule that counts it. Values that are too long or empty
//! share a budget with others of their kind.

use std::borrow::Cow;

use http::header::{COOKIE, GetAll, HOST, HeaderValue};
use tollgate::{CLIENT, MAX_VALUE_BYTES, Paths, RequestBuf, RuleSet};

use crate::Head;

/// The value of a header that cannot be read. Not ASCII, so no header can spell it.
const UNREADABLE: &str = "›unreadable";

impl<'a> Head<'a> {
    /// The request of `client` with the attributes that `rules` use: `client`, `method`, `path`
    /// (without the query, and [as the rules see it](RuleSet::with_paths)), `host`, and
    /// `header:NAME`. A header that occurs twice is its values joined with `, `, as RFC 9110
    /// combines them.
    ///
    /// ```
    /// use http::Request;
    /// use tollgate::{Limit, Limiter, Rule, RuleSet};
    /// use tollgate_http::Head;
    ///
    /// let logins = Rule::new("login", Limit::per_minute(1));
    /// let logins = logins.matching("path", "/login").key(["client"]);
    /// let limiter = Limiter::builder(RuleSet::new([logins])?).build()?;
    /// let request = Request::builder().uri("/login?from=home").body(())?;
    /// let request = limiter.with_rules(|rules| Head::from(&request).request("alice".into(), rules));
    /// assert!(limiter.check(&request)?.allowed());
    /// assert!(!limiter.check(&request)?.allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn request(self, client: Cow<'a, str>, rules: &RuleSet) -> RequestBuf<'a> {
        self.request_with(client, rules, |_| None)
    }

    /// As [`request`](Self::request), with custom attributes: `custom` returns `Some` for a custom
    /// attribute, with its value if the request has one.
    pub(crate) fn request_with(
        self,
        client: Cow<'a, str>,
        rules: &RuleSet,
        custom: impl Fn(&str) -> Option<Option<Cow<'a, str>>>,
    ) -> RequestBuf<'a> {
        let names = rules.attributes();
        let mut request = RequestBuf::default();
        if names.iter().all(|name| name == CLIENT) {
            request.push(CLIENT, client);
            return request;
        }
        for name in names {
            let value = match name.as_str() {
                CLIENT => Some(client.clone()),
                name => match custom(name) {
                    Some(value) => value.filter(|value| !value.is_empty()),
                    None => attribute(self, name, rules.paths()),
                },
            };
            if let Some(value) = value {
                request.push(name.clone(), within_a_key(value));
            }
        }
        request
    }
}

fn attribute<'a>(head: Head<'a>, name: &str, paths: Paths) -> Option<Cow<'a, str>> {
    match name {
        "method" => Some(Cow::Borrowed(head.method.as_str())),
        // CONNECT has no path. Normalised here, since a path may be too long for a key before that.
        "path" if head.uri.path().is_empty() => Some(Cow::Borrowed("/")),
        "path" => Some(paths.normalize(head.uri.path())),
        // A request may have one host: what two of them mean, each server says differently.
        "host" if head.headers.contains_key(HOST) => {
            let is_one = head.headers.get_all(HOST).iter().nth(1).is_none();
            Some(head.host().filter(|_| is_one).unwrap_or(Cow::Borrowed(UNREADABLE)))
        }
        "host" => head.host(),
        _ => {
            let name = name.strip_prefix("header:")?;
            let separator = if name.eq_ignore_ascii_case(COOKIE.as_str()) { "; " } else { ", " };
            joined(head.headers.get_all(name), separator)
        }
    }
}

/// The values of a header, if it occurs. HTTP/2 splits cookies at their own separator.
fn joined<'a>(values: GetAll<'a, HeaderValue>, separator: &str) -> Option<Cow<'a, str>> {
    let mut texts = values.iter().map(|value| value.to_str().ok());
    let first = texts.next()?.map(Cow::Borrowed);
    let all = texts.fold(first, |all, text| Some(Cow::Owned([&*all?, separator, text?].concat())));
    Some(all.filter(|all| !all.is_empty()).unwrap_or(Cow::Borrowed(UNREADABLE)))
}

/// A value, truncated to the length of a key. Values with a common start then share a budget, which
/// never gives them more than one each.
fn within_a_key(value: Cow<'_, str>) -> Cow<'_, str> {
    let end = value.floor_char_boundary(MAX_VALUE_BYTES);
    match value {
        Cow::Borrowed(value) => Cow::Borrowed(value.get(..end).unwrap_or_default()),
        Cow::Owned(mut value) => {
            value.truncate(end);
            Cow::Owned(value)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::{Limit, Rule};

    #[test]
    fn c2_a_host_that_says_nothing_or_two_things_is_counted_all_the_same() {
        let rules = RuleSet::new([Rule::new("by-host", Limit::per_minute(1)).key(["host"])]).unwrap();
        let host = |hosts: &[&[u8]]| {
            let mut request = http::Request::builder().uri("/");
            for host in hosts {
                request = request.header(HOST, HeaderValue::from_bytes(host).unwrap());
            }
            let request = request.body(()).unwrap();
            Head::from(&request).request("a".into(), &rules).get("host").map(str::to_owned)
        };
        assert_eq!(host(&[b"API.example.com:80"]).as_deref(), Some("api.example.com"));
        for odd in [&[b"".as_slice()] as &[&[u8]], &[b"\xff"], &[b":80"], &[b"a", b"b"]] {
            assert_eq!(host(odd).as_deref(), Some(UNREADABLE), "{odd:?}");
        }
        assert_eq!(host(&[]), None);
    }

    #[test]
    fn f5_a_header_that_occurs_twice_is_its_values_joined() {
        let rules = ["header:x-key", "header:cookie"].map(|name| Rule::new(name, Limit::API).key([name]));
        let rules = RuleSet::new(rules).unwrap();
        let seen = |name: &str, values: &[&[u8]]| {
            let mut request = http::Request::builder().uri("/");
            for value in values {
                request = request.header(name, HeaderValue::from_bytes(value).unwrap());
            }
            let request = request.body(()).unwrap();
            let request = Head::from(&request).request("a".into(), &rules);
            request.get(&format!("header:{name}")).map(str::to_owned)
        };
        for (values, expected) in [
            (&[b"a".as_slice()] as &[&[u8]], "a"),
            (&[b"a", b"b, c", b"a"], "a, b, c, a"),
            (&[b"a", b""], "a, "),
            (&[b""], UNREADABLE),
            (&[b"a", b"\xff"], UNREADABLE),
            (&[b"\xff", b"a"], UNREADABLE),
        ] {
            assert_eq!(seen("x-key", values).as_deref(), Some(expected));
        }
        assert_eq!(seen("cookie", &[b"a=1", b"b=2"]).as_deref(), Some("a=1; b=2"));
        assert_eq!(seen("x-key", &[]), None);
    }

    #[test]
    fn f5_a_path_is_normalised_before_it_is_cut_to_the_length_of_a_key() {
        let rules = RuleSet::new([Rule::new("login", Limit::API).matching("path", "/login")]).unwrap();
        let seen = |rules: &RuleSet, uri: &str| {
            let request = http::Request::builder().uri(uri).body(()).unwrap();
            Head::from(&request).request("a".into(), rules).get("path").map(str::to_owned)
        };
        for spelled in ["/%6Cogin/?x", &format!("{}login", "/.".repeat(1_000) + "/")] {
            assert_eq!(seen(&rules, spelled).as_deref(), Some("/login"));
        }
        assert_eq!(seen(&rules.with_paths(Paths::Raw), "/%6Cogin/?x").as_deref(), Some("/%6Cogin/"));
    }
}
