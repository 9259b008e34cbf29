//! The head of a request as attributes for a limiter.
//!
//! No value that a client sends evades a rule that counts it. Values that are too long, empty or
//! sent twice share a budget with others of their kind.

use std::borrow::Cow;

use http::header::{GetAll, HOST, HeaderValue};
use tollgate::{AsRequest, CLIENT, MAX_VALUE_BYTES, Request, RuleSet};

use crate::Head;

/// The value of a header that cannot be read. Not ASCII, so no header can spell it.
const UNREADABLE: &str = "›unreadable";

/// The attributes of a request that a limiter's rules use.
///
/// ```
/// use http::Request;
/// use tollgate::{Limit, Limiter, Rule, RuleSet};
/// use tollgate_http::{Asked, Head};
///
/// let logins = Rule::new("login", Limit::per_minute(1));
/// let logins = logins.matching("path", "/login").key(["client"]);
/// let limiter = Limiter::builder(RuleSet::new([logins])?).build()?;
/// let request = Request::builder().uri("/login?from=home").body(())?;
/// let asked = limiter.with_rules(|rules| Asked::new(Head::from(&request), "alice".into(), rules));
/// assert!(limiter.check(&asked)?.allowed());
/// assert!(!limiter.check(&asked)?.allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Asked<'a> {
    client: Cow<'a, str>,
    /// All attributes; `None` if the rules use only the client.
    attributes: Option<Vec<(String, Cow<'a, str>)>>,
    pub(crate) cost: u64,
}

impl<'a> Asked<'a> {
    /// The attributes that `rules` use in a request of `client`: `client`, `method`, `path` without
    /// the query, `host`, and `header:NAME`.
    #[must_use]
    pub fn new(head: Head<'a>, client: Cow<'a, str>, rules: &RuleSet) -> Self {
        Self::with_own(head, client, rules, |_| None)
    }

    /// As [`new`](Self::new), with custom attributes: `own` returns `Some` for a custom attribute,
    /// with its value if the request has one.
    pub(crate) fn with_own(
        head: Head<'a>,
        client: Cow<'a, str>,
        rules: &RuleSet,
        own: impl Fn(&str) -> Option<Option<Cow<'a, str>>>,
    ) -> Self {
        let names = rules.attributes();
        if names.iter().all(|name| name == CLIENT) {
            return Self { client, attributes: None, cost: 1 };
        }
        let value = |name: &String| match name.as_str() {
            CLIENT => Some(client.clone()),
            name => match own(name) {
                Some(value) => value.filter(|value| !value.is_empty()),
                None => attribute(head, name),
            },
        };
        let attributes = names.iter().filter_map(|name| Some((name.clone(), value(name)?))).collect();
        Self { client, attributes: Some(attributes), cost: 1 }
    }

    /// Sets the cost, which is 1 otherwise.
    pub(crate) const fn costing(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    pub(crate) fn into_owned(self) -> Asked<'static> {
        let own = |(name, value): (String, Cow<'_, str>)| (name, Cow::Owned(value.into_owned()));
        Asked {
            client: Cow::Owned(self.client.into_owned()),
            attributes: self.attributes.map(|attributes| attributes.into_iter().map(own).collect()),
            cost: self.cost,
        }
    }
}

impl AsRequest for &Asked<'_> {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        match &self.attributes {
            None => f(Request::client(&self.client).cost(self.cost)),
            Some(attributes) => {
                let pairs: Vec<(&str, &str)> =
                    attributes.iter().map(|(name, value)| (name.as_str(), within_a_key(value))).collect();
                f(Request::new(&pairs).cost(self.cost))
            }
        }
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
fn within_a_key(value: &str) -> &str {
    let end = (0..=value.len().min(MAX_VALUE_BYTES)).rev().find(|end| value.is_char_boundary(*end));
    value.get(..end.unwrap_or(0)).unwrap_or_default()
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
            let asked = Asked::new(Head::from(&request), "a".into(), &rules);
            (&asked).with_request(|request| request.get("host").map(str::to_owned))
        };
        assert_eq!(host(&[b"API.example.com:80"]).as_deref(), Some("api.example.com"));
        for odd in [&[b"".as_slice()] as &[&[u8]], &[b"\xff"], &[b":80"], &[b"a", b"b"]] {
            assert_eq!(host(odd).as_deref(), Some(UNREADABLE), "{odd:?}");
        }
        assert_eq!(host(&[]), None);
    }
}
