//! What a limiter is asked about: attributes and a cost.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use smallvec::SmallVec;

use crate::{Error, Limits, MAX_COUNT};

/// The attribute that a bare key, such as `limiter.check("alice")`, sets.
pub const CLIENT: &str = "client";

/// A request, as far as a rate limiter needs to know it.
///
/// ```
/// use tollgate::Request;
///
/// let upload = Request::client("alice").cost(4096);
/// let login = Request::new(&[("client", "alice"), ("path", "/login")]);
/// assert_eq!(login.get("path"), Some("/login"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    attributes: Attributes<'a>,
    cost: u64,
    scope: Scope<'a>,
}

/// Which rules are looked at. One value, so that it takes one comparison to know that it is all of
/// them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope<'a> {
    All,
    Only(&'a str),
    Own,
    OwnOnly(&'a str),
    Under(&'a str, Limits),
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
        Self { attributes: Attributes::Listed(attributes), cost: 1, scope: Scope::All }
    }

    /// A request of `client`: the attribute [`CLIENT`] and no other.
    #[must_use]
    pub const fn client(client: &'a str) -> Self {
        Self { attributes: Attributes::Client(client), cost: 1, scope: Scope::All }
    }

    /// What it costs instead of 1. A cost of 0 asks without taking.
    #[must_use]
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// What it costs.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.cost
    }

    /// Looks at no rule but the one of this name.
    #[must_use]
    pub const fn only(mut self, rule: &'a str) -> Self {
        self.scope = if self.is_own() { Scope::OwnOnly(rule) } else { Scope::Only(rule) };
        self
    }

    /// Looks at no rule but the one of this name, and holds the request to these limits instead of
    /// the rule's: for limits that come with a request, from a plan in a database, say. When they
    /// change for a key, what is in use stays in use, as when a rule's limits change.
    ///
    /// Every different list of limits is kept for as long as the process lives: there should be
    /// hundreds of them, not one for each client.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Request, Rule, RuleSet};
    ///
    /// let by_plan = Rule::new("by-plan", Limit::per_minute(10)).key(["client"]).on_demand();
    /// let limiter = Limiter::builder(RuleSet::new([by_plan])?).build()?;
    /// let gold = Limit::per_minute(600).into();
    /// assert_eq!(limiter.check(Request::client("alice").under("by-plan", gold))?.remaining(), 599);
    /// assert_eq!(limiter.check(Request::client("alice"))?.limits(), [], "nobody named the rule");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub const fn under(mut self, rule: &'a str, limits: Limits) -> Self {
        self.scope = Scope::Under(rule, limits);
        self
    }

    /// Looks at every budget that belongs to these attributes and nobody else, and at no other:
    /// at rules that count by some of them, whatever else the rules match on. For looking after a
    /// client: its budget for `/login` is its own on every path.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Request, Rule, RuleSet, block_on};
    ///
    /// let limiter = Limiter::builder(RuleSet::new([
    ///     Rule::new("global", Limit::per_second(5_000)),
    ///     Rule::new("login", Limit::LOGIN).matching("path", "/login").key(["client"]),
    /// ])?)
    /// .build()?;
    /// let alice = block_on(limiter.peek(Request::client("alice").own()))?;
    /// assert_eq!(alice.limits().len(), 1);
    /// assert_eq!(alice.rule().unwrap().as_str(), "login");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub const fn own(mut self) -> Self {
        self.scope = match self.scope {
            Scope::All | Scope::Own => Scope::Own,
            Scope::Only(rule) | Scope::OwnOnly(rule) | Scope::Under(rule, _) => Scope::OwnOnly(rule),
        };
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

    /// The client, if nothing else is known.
    #[inline]
    pub(crate) const fn only_client(&self) -> Option<&'a str> {
        match self.attributes {
            Attributes::Client(client) => Some(client),
            Attributes::Listed(_) => None,
        }
    }

    pub(crate) fn checked_cost(&self) -> Result<u64, Error> {
        if self.cost > MAX_COUNT { Err(Error::InvalidCost { value: self.cost }) } else { Ok(self.cost) }
    }

    pub(crate) const fn is_own(&self) -> bool {
        matches!(self.scope, Scope::Own | Scope::OwnOnly(_))
    }

    /// Whether all rules are looked at.
    #[inline]
    pub(crate) const fn is_unscoped(&self) -> bool {
        matches!(self.scope, Scope::All)
    }

    pub(crate) const fn only_rule(&self) -> Option<&'a str> {
        match self.scope {
            Scope::Only(rule) | Scope::OwnOnly(rule) | Scope::Under(rule, _) => Some(rule),
            Scope::All | Scope::Own => None,
        }
    }

    /// The limits that it brought along.
    pub(crate) const fn own_limits(&self) -> Option<Limits> {
        match self.scope {
            Scope::Under(_, limits) => Some(limits),
            Scope::All | Scope::Only(_) | Scope::Own | Scope::OwnOnly(_) => None,
        }
    }
}

/// Whatever a limiter can be asked about: a client's name, number or address, several of them
/// together, attributes, or a whole [`Request`].
///
/// A number is its decimal digits and an address its usual form, so a client is the same client
/// however a program or a protocol holds its name.
///
/// ```
/// use std::net::Ipv4Addr;
/// use tollgate::{Limit, Limiter};
///
/// let limiter = Limiter::new(Limit::per_minute(1));
/// assert!(limiter.check("alice")?.allowed());
/// assert!(limiter.check(42_u64)?.allowed());
/// assert!(!limiter.check("42")?.allowed());
/// assert!(limiter.check(Ipv4Addr::LOCALHOST)?.allowed());
/// assert!(limiter.check(("tenant-7", 42))?.allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
pub trait AsRequest {
    /// Hands `f` the request.
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R;
}

impl AsRequest for Request<'_> {
    #[inline]
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        f(*self)
    }
}

impl AsRequest for &[(&str, &str)] {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        f(Request::new(self))
    }
}

impl<const N: usize> AsRequest for &[(&str, &str); N] {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        f(Request::new(*self))
    }
}

impl<P: KeyPart> AsRequest for P {
    #[inline]
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        self.with_text(|text| f(Request::client(text)))
    }
}

/// A client's name, or a part of it.
pub trait KeyPart {
    /// Hands `f` the text. Different values of one type have different texts.
    fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R;
}

impl KeyPart for &str {
    #[inline]
    fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R {
        f(self)
    }
}

impl KeyPart for &String {
    #[inline]
    fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R {
        f(self)
    }
}

macro_rules! digits {
    ($($number:ty),*) => {$(
        impl KeyPart for $number {
            #[inline]
            fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R {
                f(itoa::Buffer::new().format(*self))
            }
        }
    )*};
}

digits!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);

macro_rules! displayed {
    ($($value:ty),*) => {$(
        impl KeyPart for $value {
            fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R {
                let mut text = Text::new();
                // Writing to memory does not fail.
                let _ = write!(text, "{self}");
                f(text.as_str())
            }
        }
    )*};
}

displayed!(IpAddr, Ipv4Addr, Ipv6Addr);

macro_rules! together {
    ($($part:ident),*) => {
        impl<$($part: KeyPart),*> KeyPart for ($($part,)*) {
            fn with_text<R>(&self, f: impl FnOnce(&str) -> R) -> R {
                #[expect(non_snake_case, reason = "named after their types")]
                let ($($part,)*) = self;
                let mut text = Text::new();
                $($part.with_text(|part| text.push_part(part));)*
                f(text.as_str())
            }
        }
    };
}

together!(A, B);
together!(A, B, C);
together!(A, B, C, D);

/// A short text, on the stack while it is short.
struct Text(SmallVec<[u8; 64]>);

impl Text {
    fn new() -> Self {
        Self(SmallVec::new())
    }

    /// Appends a part behind a colon. A colon or a backslash inside it is escaped, so that
    /// different parts never look the same together.
    fn push_part(&mut self, part: &str) {
        if !self.0.is_empty() {
            self.0.push(b':');
        }
        if part.is_empty() {
            self.0.extend_from_slice(b"\\0");
        }
        for byte in part.bytes() {
            if matches!(byte, b':' | b'\\') {
                self.0.push(b'\\');
            }
            self.0.push(byte);
        }
    }

    fn as_str(&self) -> &str {
        // Whole texts went in, and bytes were added only at their boundaries.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.extend_from_slice(text.as_bytes());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(part: impl KeyPart) -> String {
        part.with_text(str::to_owned)
    }

    #[test]
    fn b5_parts_that_look_alike_together_are_different() {
        let alike =
            [("a", "b:c"), ("a:b", "c"), ("a\\", ":b"), ("a", "\\:b"), ("", "a"), ("a", ""), ("\\0", "a")]
                .map(text);
        for (i, one) in alike.iter().enumerate() {
            assert!(alike[i + 1..].iter().all(|other| other != one), "{alike:?}");
        }
    }

    #[test]
    fn a_number_is_its_digits_and_an_address_its_usual_form() {
        assert_eq!(text(u64::MAX), "18446744073709551615");
        assert_eq!(text(-7_i32), "-7");
        assert_eq!(text(Ipv6Addr::LOCALHOST), "::1");
        assert_eq!(text((1, "a", Ipv4Addr::LOCALHOST)), "1:a:127.0.0.1");
    }
}
