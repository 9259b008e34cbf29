//! Requests that keep their attributes.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::{AsRequest, CLIENT, Caller, InlineLimit, Request};

/// A request that keeps its attributes, each owned or borrowed: for servers, which parse a request
/// before they check it. Check it by reference.
///
/// * Of an attribute pushed twice, the first value counts, as in a [`Request`]. A protocol that
///   refuses repeated attributes asks [`get`](Self::get) before it pushes.
/// * The client as the only attribute equals [`Request::client`], and is not allocated.
/// * A value is passed on as it is. The limiter refuses values that are empty or too long.
///
/// ```
/// use tollgate::{Limit, Limiter, RequestBuf};
///
/// let limiter = Limiter::new(Limit::per_minute(10));
/// let mut request = RequestBuf::default().cost(3);
/// request.push("client", format!("user-{}", 7));
/// request.push("path", "/login");
/// assert_eq!(limiter.check(&request)?.remaining(), 7);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestBuf<'a> {
    attributes: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 1]>,
    cost: u64,
    scope: Scope<'a>,
    caller: Option<Caller>,
}

/// The rules to apply.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Scope<'a> {
    All,
    Costs(Vec<(Cow<'a, str>, u64)>),
    Only(Cow<'a, str>),
    Under(Cow<'a, str>, InlineLimit),
}

/// The attributes that a request with more than one has room for at first.
const USUAL: usize = 4;

impl Default for RequestBuf<'_> {
    /// A request without attributes, of cost 1, to which all rules apply.
    fn default() -> Self {
        Self { attributes: SmallVec::new(), cost: 1, scope: Scope::All, caller: None }
    }
}

impl<'a> RequestBuf<'a> {
    /// Appends an attribute.
    pub fn push(&mut self, name: impl Into<Cow<'a, str>>, value: impl Into<Cow<'a, str>>) {
        if self.attributes.len() == self.attributes.inline_size() {
            self.attributes.reserve(USUAL.saturating_sub(self.attributes.len()));
        }
        self.attributes.push((name.into(), value.into()));
    }

    /// Whether it has no attributes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.attributes.is_empty()
    }

    /// The value of an attribute.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.attributes.iter().find(|(known, _)| known == name).map(|(_, value)| &**value)
    }

    /// Sets the cost, as [`Request::cost`].
    #[must_use]
    pub fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// The cost.
    #[must_use]
    pub const fn units(&self) -> u64 {
        self.cost
    }

    /// Sets who sends the request, as [`Request::caller`].
    #[must_use]
    pub const fn caller(mut self, caller: Caller) -> Self {
        self.caller = Some(caller);
        self
    }

    /// Sets the costs of rules by name, as [`Request::costs`].
    #[must_use]
    pub fn costs<R: Into<Cow<'a, str>>>(mut self, costs: impl IntoIterator<Item = (R, u64)>) -> Self {
        self.scope = Scope::Costs(costs.into_iter().map(|(rule, cost)| (rule.into(), cost)).collect());
        self
    }

    /// Applies only the rule with this name, as [`Request::only`].
    #[must_use]
    pub fn only(mut self, rule: impl Into<Cow<'a, str>>) -> Self {
        self.scope = Scope::Only(rule.into());
        self
    }

    /// Applies only this inline rule, with this limit, as [`Request::under`].
    #[must_use]
    pub fn under(mut self, rule: impl Into<Cow<'a, str>>, limit: InlineLimit) -> Self {
        self.scope = Scope::Under(rule.into(), limit);
        self
    }

    /// This request without borrowed parts.
    #[must_use]
    pub fn into_owned(self) -> RequestBuf<'static> {
        let owned = |text: Cow<'_, str>| Cow::Owned(text.into_owned());
        RequestBuf {
            attributes: { self.attributes }
                .into_iter()
                .map(|(name, value)| (owned(name), owned(value)))
                .collect(),
            cost: self.cost,
            caller: self.caller,
            scope: match self.scope {
                Scope::All => Scope::All,
                Scope::Costs(costs) => {
                    Scope::Costs(costs.into_iter().map(|(rule, cost)| (owned(rule), cost)).collect())
                }
                Scope::Only(rule) => Scope::Only(owned(rule)),
                Scope::Under(rule, limit) => Scope::Under(owned(rule), limit),
            },
        }
    }
}

/// A request with these attributes.
impl<'a, N: Into<Cow<'a, str>>, V: Into<Cow<'a, str>>> FromIterator<(N, V)> for RequestBuf<'a> {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(attributes: I) -> Self {
        let attributes = attributes.into_iter().map(|(name, value)| (name.into(), value.into()));
        Self { attributes: attributes.collect(), ..Self::default() }
    }
}

impl AsRequest for &RequestBuf<'_> {
    fn with_request<R>(&self, f: impl FnOnce(Request<'_>) -> R) -> R {
        let pairs: SmallVec<[(&str, &str); USUAL]>;
        let costs: SmallVec<[(&str, u64); USUAL]>;
        let request = match self.attributes.as_slice() {
            [(name, client)] if name == CLIENT => Request::client(client),
            attributes => {
                pairs = attributes.iter().map(|(name, value)| (&**name, &**value)).collect();
                Request::new(&pairs)
            }
        };
        let request = Request { caller: self.caller, ..request.cost(self.cost) };
        f(match &self.scope {
            Scope::All => request,
            Scope::Costs(listed) => {
                costs = listed.iter().map(|(rule, cost)| (&**rule, *cost)).collect();
                request.costs(&costs)
            }
            Scope::Only(rule) => request.only(rule),
            Scope::Under(rule, limit) => request.under(rule, limit),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limit;

    #[test]
    fn of_an_attribute_pushed_twice_the_first_value_counts() {
        let mut twice = RequestBuf::default();
        assert!(twice.is_empty());
        for value in ["a", "b"] {
            twice.push("path", value);
        }
        assert_eq!((twice.get("path"), twice.get("client")), (Some("a"), None));
        (&twice).with_request(|request| assert_eq!(request.get("path"), Some("a")));
    }

    #[test]
    fn the_client_as_the_only_attribute_equals_a_request_of_the_client() {
        let client: RequestBuf<'_> = [(CLIENT, "a")].into_iter().collect();
        (&client.cost(0)).with_request(|request| assert_eq!(request, Request::client("a").cost(0)));
        let path: RequestBuf<'_> = [("path", "a")].into_iter().collect();
        (&path).with_request(|request| assert_eq!(request, Request::new(&[("path", "a")])));
    }

    #[test]
    fn an_owned_request_equals_the_borrowed_one() {
        let limit = InlineLimit(Limit::per_second(1));
        let all: RequestBuf<'_> = [("path", "/"), (CLIENT, "a"), ("path", "")].into_iter().collect();
        let all = all.cost(7);
        let costs = || all.clone().costs([("rule", 2), ("other", 0)]);
        let called = all.clone().caller(Caller::new(1));
        (&called).with_request(|request| assert_eq!(request.sender(), Some(Caller::new(1))));
        let scoped = [all.clone().only("rule"), all.clone().under("rule", limit)];
        for request in scoped.into_iter().chain([all.clone(), costs(), called]) {
            assert_eq!(request.clone().into_owned(), request);
        }
        (&costs()).with_request(|request| assert_eq!(request.rule_costs(), [("rule", 2), ("other", 0)]));
        let attributes = [("path", "/"), (CLIENT, "a"), ("path", "")];
        let plain = Request::new(&attributes).cost(7);
        (&all).with_request(|request| assert_eq!(request, plain));
        (&all.clone().only("r")).with_request(|request| assert_eq!(request, plain.only("r")));
        (&all.under("r", limit)).with_request(|request| assert_eq!(request, plain.under("r", &limit)));
    }
}
