//! Requests: attributes and a cost.

use std::sync::OnceLock;

use crate::{Error, Limit, MAX_COUNT};

mod buf;
mod caller;
mod key_part;

pub use buf::RequestBuf;
pub use caller::Caller;
pub use key_part::KeyPart;

/// The attribute that a bare key, such as `limiter.check("alice")`, sets.
pub const CLIENT: &str = "client";

/// A request as a rate limiter sees it.
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
    caller: Option<Caller>,
}

/// The rules to apply. One enum, so that the common case, all rules, takes one comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope<'a> {
    All,
    /// All rules, some with costs of their own.
    Costs(&'a [(&'a str, u64)]),
    Only(&'a str),
    Own,
    OwnOnly(&'a str),
    Under(&'a str, &'a InlineLimit),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Attributes<'a> {
    Client(&'a str),
    Number(&'a Digits),
    Listed(&'a [(&'a str, &'a str)]),
}

/// The client of a request that has no other attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client<'a> {
    Named(&'a str),
    Numbered(u64),
}

impl<'a> Request<'a> {
    /// A request with these attributes. Of an attribute listed twice, the first value counts.
    #[must_use]
    pub const fn new(attributes: &'a [(&'a str, &'a str)]) -> Self {
        Self { attributes: Attributes::Listed(attributes), cost: 1, scope: Scope::All, caller: None }
    }

    /// A request of `client`: the attribute [`CLIENT`] and no other.
    #[must_use]
    pub const fn client(client: &'a str) -> Self {
        Self { attributes: Attributes::Client(client), cost: 1, scope: Scope::All, caller: None }
    }

    /// Sets the cost, which is 1 by default. A cost of 0 takes nothing.
    #[must_use]
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// The cost.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.cost
    }

    /// Sets who sends the request. Without a caller it is the program itself: it takes its turn at
    /// a store as one caller does, and its holds are bounded only in all.
    #[must_use]
    pub const fn caller(mut self, caller: Caller) -> Self {
        self.caller = Some(caller);
        self
    }

    /// Who sends the request.
    pub(crate) const fn sender(&self) -> Option<Caller> {
        self.caller
    }

    /// Sets the costs of rules by name; every other rule charges [`cost`](Self::cost). All rules
    /// apply. Of a rule listed twice, the first cost counts.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Request, Rule, RuleSet};
    ///
    /// let limiter = Limiter::builder(RuleSet::new([
    ///     Rule::new("requests", Limit::per_minute(10)).key(["client"]),
    ///     Rule::new("tokens", Limit::per_minute(4_000)).key(["client"]),
    /// ])?)
    /// .build()?;
    /// let decision = limiter.check(Request::client("alice").costs(&[("tokens", 1_500)]))?;
    /// let left: Vec<u64> = decision.limits().iter().map(|limit| limit.outcome.remaining).collect();
    /// assert_eq!(left, [9, 2_500]);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub const fn costs(mut self, costs: &'a [(&'a str, u64)]) -> Self {
        self.scope = if costs.is_empty() { Scope::All } else { Scope::Costs(costs) };
        self
    }

    /// Applies only the rule with this name.
    #[must_use]
    pub const fn only(mut self, rule: &'a str) -> Self {
        self.scope = if self.is_own() { Scope::OwnOnly(rule) } else { Scope::Only(rule) };
        self
    }

    /// Applies only this [inline](crate::Rule::inline) rule, with this limit: for limits that come
    /// with a request, from a plan in a database, say. The limit is a token bucket that refills
    /// evenly, or a window that opens at the first request.
    ///
    /// The next request of the same client may have another limit, which neither gives back nor
    /// speeds up units in use. All buckets share one time: one unit at 1 a day uses up more time
    /// than 1000 a second has. All windows of one period share a count.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Request, Rule, RuleSet};
    ///
    /// let limiter = Limiter::builder(RuleSet::new([Rule::inline("by-plan").key(["client"])])?).build()?;
    /// let gold = limiter.inline(Limit::per_minute(600))?;
    /// assert_eq!(limiter.check(Request::client("alice").under("by-plan", &gold))?.remaining(), 599);
    /// assert_eq!(limiter.check(Request::client("alice"))?.limits().len(), 0, "the rule was not named");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub const fn under(mut self, rule: &'a str, limit: &'a InlineLimit) -> Self {
        self.scope = Scope::Under(rule, limit);
        self
    }

    /// Applies every rule that counts by some of these attributes and no others, even if its other
    /// conditions do not match. For administering a client: its budget for `/login` belongs to it
    /// on every path.
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
            Scope::All | Scope::Costs(_) | Scope::Own => Scope::Own,
            Scope::Only(rule) | Scope::OwnOnly(rule) | Scope::Under(rule, _) => Scope::OwnOnly(rule),
        };
        self
    }

    /// The value of an attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&'a str> {
        match self.attributes {
            Attributes::Client(client) => (name == CLIENT).then_some(client),
            Attributes::Number(digits) => (name == CLIENT).then(|| digits.as_str()),
            Attributes::Listed(list) => {
                list.iter().find(|(listed, _)| *listed == name).map(|(_, value)| *value)
            }
        }
    }

    /// The names of its attributes.
    pub fn names(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let (client, listed) = match self.attributes {
            Attributes::Client(_) | Attributes::Number(_) => (Some(CLIENT), Default::default()),
            Attributes::Listed(list) => (None, list),
        };
        client.into_iter().chain(listed.iter().map(|(name, _)| *name))
    }

    /// The same request with other attributes.
    pub(crate) const fn with_attributes<'b>(self, attributes: &'b [(&'b str, &'b str)]) -> Request<'b>
    where
        'a: 'b,
    {
        Request { attributes: Attributes::Listed(attributes), ..self }
    }

    /// Its attributes, with this value of one that it has.
    pub(crate) fn with_value<'b>(&self, name: &str, value: &'b str) -> Vec<(&'b str, &'b str)>
    where
        'a: 'b,
    {
        let replaced = |attribute: &'b str, old| (attribute, if attribute == name { value } else { old });
        self.names().map(|attribute| replaced(attribute, self.get(attribute).unwrap_or_default())).collect()
    }

    /// Whether it has an attribute.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self.attributes {
            Attributes::Client(_) | Attributes::Number(_) => name == CLIENT,
            Attributes::Listed(_) => self.get(name).is_some(),
        }
    }

    /// The client, if the request has no other attribute.
    #[inline]
    pub(crate) const fn only_client(&self) -> Option<Client<'a>> {
        match self.attributes {
            Attributes::Client(client) => Some(Client::Named(client)),
            Attributes::Number(digits) => Some(Client::Numbered(digits.number)),
            Attributes::Listed(_) => None,
        }
    }

    /// The cost, if it is in range.
    #[inline]
    pub(crate) const fn valid_cost(&self) -> Option<u64> {
        if self.cost > MAX_COUNT { None } else { Some(self.cost) }
    }

    pub(crate) fn checked_cost(&self) -> Result<u64, Error> {
        self.valid_cost().ok_or(Error::InvalidCost { value: self.cost })
    }

    pub(crate) const fn is_own(&self) -> bool {
        matches!(self.scope, Scope::Own | Scope::OwnOnly(_))
    }

    /// Whether all rules apply, with one cost.
    #[inline]
    pub(crate) const fn is_unscoped(&self) -> bool {
        matches!(self.scope, Scope::All)
    }

    pub(crate) const fn only_rule(&self) -> Option<&'a str> {
        match self.scope {
            Scope::Only(rule) | Scope::OwnOnly(rule) | Scope::Under(rule, _) => Some(rule),
            Scope::All | Scope::Costs(_) | Scope::Own => None,
        }
    }

    /// The costs of rules by name.
    pub(crate) const fn rule_costs(&self) -> &'a [(&'a str, u64)] {
        match self.scope {
            Scope::Costs(costs) => costs,
            Scope::All | Scope::Only(_) | Scope::Own | Scope::OwnOnly(_) | Scope::Under(..) => &[],
        }
    }

    /// The inline limit.
    #[inline]
    pub(crate) const fn inline_limit(&self) -> Option<&'a Limit> {
        match self.scope {
            Scope::Under(_, limit) => Some(&limit.0),
            Scope::All | Scope::Costs(_) | Scope::Only(_) | Scope::Own | Scope::OwnOnly(_) => None,
        }
    }
}

/// An inline limit: one that comes with a request. Made by
/// [`Limiter::inline`](crate::Limiter::inline).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InlineLimit(pub(crate) Limit);

/// A number, and its digits once they are needed.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Digits {
    number: u64,
    text: OnceLock<String>,
}

impl Digits {
    fn as_str(&self) -> &str {
        self.text.get_or_init(|| self.number.to_string())
    }
}

/// Anything that can be checked: a client's name, number or address, a tuple of them, attributes,
/// or a whole [`Request`].
///
/// A number is equivalent to its decimal digits, and an address to its usual text, so every program
/// and protocol names the same client.
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
    /// Calls `f` with the request.
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
        match self.number() {
            Some(number) => {
                let digits = Digits { number, text: OnceLock::new() };
                f(Request {
                    attributes: Attributes::Number(&digits),
                    cost: 1,
                    scope: Scope::All,
                    caller: None,
                })
            }
            None => self.with_text(|text| f(Request::client(text))),
        }
    }
}
