//! The head of a request as attributes for a limiter.
//!
//! No value that a client sends evades a rule that counts it. Values that are too long, empty or
//! sent twice share a budget with others of their kind.

use std::borrow::Cow;

use http::header::{GetAll, HOST, HeaderValue};
use tollgate::{CLIENT, MAX_VALUE_BYTES, RequestBuf, RuleSet};

use crate::Head;

/// The value of a header that cannot be read. Not ASCII, so no header can spell it.
const UNREADABLE: &str = "›unreadable";

impl<'a> Head<'a> {
    /// The request of `client` with the attributes that `rules` use: `client`, `method`, `path`
    /// without the query, `host`, and `header:NAME`.
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
                    None => attribute(self, name),
                },
            };
            if let Some(value) = value {
                request.push(name.clone(), within_a_key(value));
            }
        }
        request
    }
}

fn attribute<'a>(head: Head<'a>, name: &str) -> Option<Cow<'a, str>> {
    match name {
        "method" => Some(Cow::Borrowed(head.method.as_str())),
        // CONNECT has no path.
        "path" => Some(Cow::Borrowed(if head.uri.path().is_empty() { "/" } else { head.uri.path() })),
        "host" if head.headers.contains_key(HOST) => {
            let told = head.host().filter(|_| only(head.headers.get_all(HOST)).is_some());
            Some(told.unwrap_or(Cow::Borrowed(UNREADABLE)))
        }
        "host" => head.host(),
        _ => {
            let values = head.headers.get_all(name.strip_prefix("header:")?);
            values.iter().next()?;
            Some(Cow::Borrowed(only(values).unwrap_or(UNREADABLE)))
        }
    }
}

/// The value of a header that is sent once and is not empty.
fn only(values: GetAll<'_, HeaderValue>) -> Option<&str> {
    let mut values = values.iter();
    let first = values.next()?.to_str().ok()?;
    (values.next().is_none() && !first.is_empty()).then_some(first)
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
}
