//! Rules: which requests are covered, whose budget they draw on, and how much that is.
//!
//! Attributes go in, charges come out. A rule covers a request when every attribute that it matches
//! on has the value it asks for and every attribute of its key is present. All rules that cover a
//! request have to admit it: layers (a global cap and a per-client cap) are just two rules.

use smallvec::SmallVec;

use crate::key::push_value;
use crate::{CLIENT, Error, Limit, MAX_COUNT, Request};

mod limits;
mod name;
mod set;

pub use limits::Limits;
pub use name::RuleName;
pub use set::RuleSet;

/// The most attributes that a rule can count by.
pub(crate) const MAX_KEY_ATTRIBUTES: usize = 8;

/// The longest rule name.
const MAX_NAME_BYTES: usize = 128;

/// What to do with a request when the store fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailurePolicy {
    /// Admit it, flagged degraded.
    #[default]
    Open,
    /// Deny it, flagged degraded.
    Closed,
    /// Let a local memory store decide, with a share of the limit, flagged degraded.
    Local,
}

/// A rule. It becomes effective, and is checked, as part of a [`RuleSet`].
///
/// ```
/// use tollgate::{Limit, MINUTE, Rule, RuleSet, SECOND};
///
/// let rules = RuleSet::new([
///     Rule::new("global", Limit::per_second(5_000)),
///     Rule::new("per-client", [Limit::per_second(10), Limit::fixed_window(100, MINUTE)]).key(["client"]),
///     Rule::new("login", Limit::LOGIN).matching("path", "/login*").key(["client"]).shadow(),
/// ])?;
/// assert_eq!(rules.rules().len(), 3);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    name: RuleName,
    matches: Vec<Match>,
    key: Vec<String>,
    /// Whether the key is the client and nothing else: worth knowing without comparing names.
    by_client: bool,
    limits: Limits,
    cost: u64,
    shadow: bool,
    on_demand: bool,
    on_store_error: FailurePolicy,
}

impl Rule {
    /// A rule that covers every request, with one global budget for each of its limits.
    #[must_use]
    pub fn new(name: &str, limits: impl Into<Limits>) -> Self {
        Self {
            name: RuleName::intern(name),
            matches: Vec::new(),
            key: Vec::new(),
            by_client: false,
            limits: limits.into(),
            cost: 1,
            shadow: false,
            on_demand: false,
            on_store_error: FailurePolicy::default(),
        }
    }

    /// Gives each combination of values of these attributes a budget of its own.
    #[must_use]
    pub fn key<A: Into<String>>(mut self, attributes: impl IntoIterator<Item = A>) -> Self {
        self.key = attributes.into_iter().map(Into::into).collect();
        self.by_client = matches!(self.key.as_slice(), [only] if only == CLIENT);
        self
    }

    /// Covers only requests whose `attribute` is `value`, or begins with it if `value` ends in `*`.
    #[must_use]
    pub fn matching(mut self, attribute: &str, value: &str) -> Self {
        self.matches.push(Match::new(attribute, value));
        self
    }

    /// Charges `cost` for each unit of a request's cost.
    #[must_use]
    pub const fn cost(mut self, cost: u64) -> Self {
        self.cost = cost;
        self
    }

    /// Only watches: charged as if it enforced, reported, never denies.
    #[must_use]
    pub const fn shadow(mut self) -> Self {
        self.shadow = true;
        self
    }

    /// Covers no request but those that name it, with [`Request::only`] or [`Request::under`].
    #[must_use]
    pub const fn on_demand(mut self) -> Self {
        self.on_demand = true;
        self
    }

    /// What to do when the store fails.
    #[must_use]
    pub const fn on_store_error(mut self, policy: FailurePolicy) -> Self {
        self.on_store_error = policy;
        self
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> RuleName {
        self.name
    }

    /// The attributes that it counts by.
    #[must_use]
    pub fn key_attributes(&self) -> &[String] {
        &self.key
    }

    /// What it matches on: attributes, and the values they must have, or begin with if there is a
    /// `*` at the end.
    pub fn matches(&self) -> impl Iterator<Item = (&str, String)> {
        self.matches.iter().map(Match::written)
    }

    /// Its limits, unless an override says otherwise.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// What it charges for each unit of a request's cost.
    #[must_use]
    pub const fn unit_cost(&self) -> u64 {
        self.cost
    }

    /// Whether it only watches.
    #[must_use]
    pub const fn is_shadow(&self) -> bool {
        self.shadow
    }

    /// Whether it covers only requests that name it.
    #[must_use]
    pub const fn is_on_demand(&self) -> bool {
        self.on_demand
    }

    /// What it does when the store fails.
    #[must_use]
    pub const fn failure_policy(&self) -> FailurePolicy {
        self.on_store_error
    }

    /// The value that it counts by, if that is the client of a request that says nothing else.
    #[inline]
    pub(crate) fn only_value<'a>(&self, request: &Request<'a>) -> Option<&'a str> {
        if self.by_client { request.only_client() } else { None }
    }

    /// Appends the encoded values that it counts by.
    pub(crate) fn encode_key(
        &self,
        request: &Request<'_>,
        subject: &mut SmallVec<[u8; 64]>,
    ) -> Result<(), Error> {
        let mut attributes = self.key.iter();
        attributes.try_for_each(|name| push_value(subject, name, request.get(name).unwrap_or_default()))
    }

    fn covers(&self, request: &Request<'_>) -> bool {
        let wanted = if request.is_own() { !self.key.is_empty() } else { all_match(&self.matches, request) };
        wanted && self.key.iter().all(|attribute| request.get(attribute).is_some())
    }

    fn check(&self) -> Result<(), Error> {
        let invalid =
            |field, reason: String| Err(Error::InvalidRule { rule: self.name.to_string(), field, reason });
        let printable = self.name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if self.name.is_empty() || self.name.len() > MAX_NAME_BYTES || !printable {
            return invalid("name", format!("write 1 to {MAX_NAME_BYTES} printable ASCII characters"));
        }
        if !(1..=MAX_COUNT).contains(&self.cost) {
            return invalid(
                "cost",
                format!("{} is out of range; write a whole number from 1 to {MAX_COUNT}", self.cost),
            );
        }
        if let Some(twice) =
            self.key.iter().enumerate().find(|(i, name)| self.key.iter().take(*i).any(|n| n == *name))
        {
            return invalid("key", format!("attribute {:?} is there twice; name it once", twice.1));
        }
        if self.key.len() > MAX_KEY_ATTRIBUTES {
            let many = self.key.len();
            return invalid("key", format!("it has {many} attributes; {MAX_KEY_ATTRIBUTES} are the most"));
        }
        if self.key.iter().any(String::is_empty) {
            return invalid("key", "an attribute has no name; name it or leave it out".into());
        }
        check_limits(&self.limits).or_else(|reason| invalid("limit", reason))?;
        check_matches(&self.matches).or_else(|reason| invalid("match", reason))
    }
}

/// Other limits for some of the requests that a rule covers: a plan, a tier, a partner.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    rule: RuleName,
    matches: Vec<Match>,
    limits: Limits,
}

impl Override {
    /// Other limits for the rule of this name. They take the places of the rule's own, one by one,
    /// so what is in use stays in use.
    #[must_use]
    pub fn new(rule: &str, limits: impl Into<Limits>) -> Self {
        Self { rule: RuleName::intern(rule), matches: Vec::new(), limits: limits.into() }
    }

    /// Applies only to requests whose `attribute` is `value`, or begins with it if `value` ends in
    /// `*`.
    ///
    /// Match on what stays the same for a client: its name, its plan. On what changes from one
    /// request to the next, such as a path, one budget would have two limits in turn, and what
    /// is in use beyond the smaller is forgotten whenever a request is decided under it: write
    /// a second rule for that.
    #[must_use]
    pub fn matching(mut self, attribute: &str, value: &str) -> Self {
        self.matches.push(Match::new(attribute, value));
        self
    }

    /// Applies only to requests whose `attribute` is exactly `value`, even if that ends in `*`.
    #[must_use]
    pub fn exactly(mut self, attribute: &str, value: &str) -> Self {
        self.matches.push(Match { attribute: attribute.into(), value: value.into(), prefix: false });
        self
    }

    /// The rule whose limits it replaces.
    #[must_use]
    pub const fn rule(&self) -> RuleName {
        self.rule
    }

    /// What it matches on, as of a [`Rule`].
    pub fn matches(&self) -> impl Iterator<Item = (&str, String)> {
        self.matches.iter().map(Match::written)
    }

    /// The limits that apply instead.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    fn check(&self) -> Result<(), Error> {
        let invalid = |field, reason| Err(Error::InvalidRule { rule: self.rule.to_string(), field, reason });
        if self.matches.is_empty() {
            return invalid(
                "override",
                "it matches everything; say which requests, or change the rule itself".into(),
            );
        }
        check_limits(&self.limits).or_else(|reason| invalid("override", reason))?;
        check_matches(&self.matches).or_else(|reason| invalid("override", reason))
    }
}

/// An attribute and the value it must have, or begin with.
#[derive(Clone, Debug, PartialEq)]
struct Match {
    attribute: String,
    value: String,
    prefix: bool,
}

impl Match {
    fn new(attribute: &str, value: &str) -> Self {
        let (value, prefix) = value.strip_suffix('*').map_or((value, false), |stem| (stem, true));
        Self { attribute: attribute.into(), value: value.into(), prefix }
    }

    /// The attribute, and the value as it was written.
    fn written(&self) -> (&str, String) {
        (&self.attribute, format!("{}{}", self.value, if self.prefix { "*" } else { "" }))
    }

    fn matches(&self, request: &Request<'_>) -> bool {
        request.get(&self.attribute).is_some_and(|value| match self.prefix {
            true => value.starts_with(&self.value),
            false => value == self.value,
        })
    }
}

fn all_match(matches: &[Match], request: &Request<'_>) -> bool {
    matches.iter().all(|wanted| wanted.matches(request))
}

pub(crate) fn check_limits(limits: &[Limit]) -> Result<(), String> {
    match limits.len() {
        0 => Err("it has no limit; give it one".into()),
        1..=64 => Ok(()),
        many => Err(format!("it has {many} limits; 64 are the most")),
    }
}

fn check_matches(matches: &[Match]) -> Result<(), String> {
    match matches.iter().find(|wanted| wanted.attribute.is_empty()) {
        Some(nameless) => Err(format!("the attribute that must be {:?} has no name", nameless.value)),
        None => Ok(()),
    }
}
