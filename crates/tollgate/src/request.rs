//! What a limiter is asked about: attributes and a cost.

use crate::{Error, MAX_COUNT};

/// The attribute that a bare key, such as `limiter.check("alice")`, sets.
pub const CLIENT: &str = "client";

/// A request, as far as a rate limiter needs to know it.
///
/// ```
/// use tollgate::Request;
///
/// let simple: Request<'_> = "alice".into();
/// let upload = Request::client("alice").cost(4096);
/// let login = Request::new(&[("client", "alice"), ("path", "/login")]);
/// assert_eq!(login.get("path"), Some("/login"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    attributes: Attributes<'a>,
    cost: u64,
    only: Option<&'a str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attributes<'a> {
    Client(&'a str),
    Listed(&'a [(&'a str, &'a str)]),
}

impl<'a> Request<'a> {
    /// A request with these attributes. Of one that is listed twice, the first counts.
    #[must_use]
    pub const fn new(attributes: &'a [(&'a str, &'a str)]) -> Self {
        Self { attributes: Attributes::Listed(attributes), cost: 1, only: None }
    }

    /// A request of `client`: the attribute [`CLIENT`] and no other.
    #[must_use]
    pub const fn client(client: &'a str) -> Self {
        Self { attributes: Attributes::Client(client), cost: 1, only: None }
    }

    /// What it costs instead of 1. A cost of 0 asks without taking.
    #[must_use]
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Looks at no rule but the one of this name.
    #[must_use]
    pub const fn only(mut self, rule: &'a str) -> Self {
        self.only = Some(rule);
        self
    }

    /// The value of an attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        match self.attributes {
            Attributes::Client(client) => (name == CLIENT).then_some(client),
            Attributes::Listed(list) => {
                list.iter().find(|(listed, _)| *listed == name).map(|(_, value)| *value)
            }
        }
    }

    pub(crate) fn checked_cost(&self) -> Result<u64, Error> {
        if self.cost > MAX_COUNT { Err(Error::InvalidCost { value: self.cost }) } else { Ok(self.cost) }
    }

    pub(crate) const fn only_rule(&self) -> Option<&'a str> {
        self.only
    }
}

impl<'a> From<&'a str> for Request<'a> {
    fn from(client: &'a str) -> Self {
        Self::client(client)
    }
}

impl<'a> From<&'a String> for Request<'a> {
    fn from(client: &'a String) -> Self {
        Self::client(client)
    }
}

impl<'a> From<&'a [(&'a str, &'a str)]> for Request<'a> {
    fn from(attributes: &'a [(&'a str, &'a str)]) -> Self {
        Self::new(attributes)
    }
}

impl<'a, const N: usize> From<&'a [(&'a str, &'a str); N]> for Request<'a> {
    fn from(attributes: &'a [(&'a str, &'a str); N]) -> Self {
        Self::new(attributes)
    }
}
