//! Rules: which requests are covered, whose budget they draw on, and how much that is.
//!
//! Attributes go in, charges come out. A rule covers a request when every attribute that it matches
//! on has the value it asks for and every attribute of its key is present. All rules that cover a
//! request have to admit it: layers (a global cap and a per-client cap) are just two rules.

use std::borrow::Borrow;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use smallvec::SmallVec;

use crate::{Error, Limit, MAX_COUNT, Request};

/// The longest rule name.
const MAX_NAME_BYTES: usize = 128;

/// The name of a rule, cheap to copy: decisions carry it without counting references.
///
/// Names are kept for the life of the process, each distinct one once. They come from
/// configuration, never from clients.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName(&'static str);

impl RuleName {
    pub(crate) fn intern(name: &str) -> Self {
        static NAMES: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return Self(known);
        }
        let kept: &'static str = Box::leak(name.into());
        names.insert(kept);
        Self(kept)
    }

    /// The name.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        self.0
    }
}

impl Deref for RuleName {
    type Target = str;

    fn deref(&self) -> &str {
        self.0
    }
}

impl Borrow<str> for RuleName {
    fn borrow(&self) -> &str {
        self.0
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0)
    }
}

impl fmt::Debug for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.0, f)
    }
}

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

/// One limit or several: `limit.into()`, `[one, another].into()`.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits(SmallVec<[Limit; 1]>);

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        Self(SmallVec::from([limit]))
    }
}

impl<const N: usize> From<[Limit; N]> for Limits {
    fn from(limits: [Limit; N]) -> Self {
        Self(limits.into_iter().collect())
    }
}

impl From<Vec<Limit>> for Limits {
    fn from(limits: Vec<Limit>) -> Self {
        Self(limits.into())
    }
}

impl Deref for Limits {
    type Target = [Limit];

    fn deref(&self) -> &[Limit] {
        &self.0
    }
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
    limits: Limits,
    cost: u64,
    shadow: bool,
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
            limits: limits.into(),
            cost: 1,
            shadow: false,
            on_store_error: FailurePolicy::default(),
        }
    }

    /// Gives each combination of values of these attributes a budget of its own.
    #[must_use]
    pub fn key<A: Into<String>>(mut self, attributes: impl IntoIterator<Item = A>) -> Self {
        self.key = attributes.into_iter().map(Into::into).collect();
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

    /// Its limits, unless an override says otherwise.
    #[must_use]
    pub fn limits(&self) -> &[Limit] {
        &self.limits
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

    /// What it does when the store fails.
    #[must_use]
    pub const fn failure_policy(&self) -> FailurePolicy {
        self.on_store_error
    }

    fn covers(&self, request: &Request<'_>) -> bool {
        all_match(&self.matches, request) && self.key.iter().all(|attribute| request.get(attribute).is_some())
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
    #[must_use]
    pub fn matching(mut self, attribute: &str, value: &str) -> Self {
        self.matches.push(Match::new(attribute, value));
        self
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

fn check_limits(limits: &[Limit]) -> Result<(), String> {
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

/// Rules that work together: all that cover a request have to admit it.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    rules: Vec<Rule>,
    overrides: HashMap<RuleName, Overrides>,
}

/// A rule's overrides in their order. Those for one exact value, of which there may be one for each
/// customer, are found by hash.
#[derive(Clone, Debug, Default)]
struct Overrides {
    all: Vec<Override>,
    exact: HashMap<String, HashMap<String, usize>>,
    patterns: Vec<usize>,
}

impl RuleSet {
    /// Checks the rules and puts them together. With none, everything is admitted.
    ///
    /// # Errors
    /// [`Error::InvalidRule`] names the rule and the field.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, Error> {
        let rules: Vec<Rule> = rules.into_iter().collect();
        let mut names = BTreeSet::new();
        for rule in &rules {
            rule.check()?;
            if !names.insert(rule.name) {
                let reason = "another rule has the same name; names tell their counts apart".into();
                return Err(Error::InvalidRule { rule: rule.name.to_string(), field: "name", reason });
            }
        }
        Ok(Self { rules, overrides: HashMap::new() })
    }

    /// One rule, `per-client`, with this limit for each client.
    pub(crate) fn per_client(limit: Limit) -> Self {
        let rules = vec![Rule::new("per-client", limit).key([crate::request::CLIENT])];
        Self { rules, overrides: HashMap::new() }
    }

    /// Adds overrides. Where several match a request, the first counts.
    ///
    /// # Errors
    /// [`Error::InvalidRule`] or [`Error::UnknownRule`] says which override cannot work.
    pub fn with_overrides(mut self, overrides: impl IntoIterator<Item = Override>) -> Result<Self, Error> {
        for replacement in overrides {
            replacement.check()?;
            if !self.rules.iter().any(|rule| rule.name == replacement.rule) {
                return Err(Error::UnknownRule { rule: replacement.rule.to_string() });
            }
            self.overrides.entry(replacement.rule).or_default().push(replacement);
        }
        Ok(self)
    }

    /// The rules, in order.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Every limit that could ever be charged.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = (RuleName, &Limit)> {
        let own = self.rules.iter().flat_map(|rule| rule.limits.iter().map(|limit| (rule.name, limit)));
        let other = self.overrides.values().flat_map(|overrides| &overrides.all);
        own.chain(other.flat_map(|other| other.limits.iter().map(|limit| (other.rule, limit))))
    }

    /// The rules that cover a request, each with its place in the set and the limits that apply.
    pub(crate) fn covering<'a>(
        &'a self,
        request: &'a Request<'_>,
    ) -> impl Iterator<Item = (usize, &'a Rule, &'a [Limit])> {
        let wanted = |rule: &Rule| request.only_rule().is_none_or(|only| only == rule.name.as_str());
        self.rules.iter().enumerate().filter(move |(_, rule)| wanted(rule) && rule.covers(request)).map(
            move |(index, rule)| {
                let replacement =
                    self.overrides.get(&rule.name).and_then(|overrides| overrides.find(request));
                (index, rule, replacement.map_or(&*rule.limits, |replacement| &*replacement.limits))
            },
        )
    }
}

impl Overrides {
    fn push(&mut self, replacement: Override) {
        let index = self.all.len();
        match replacement.matches.as_slice() {
            [Match { attribute, value, prefix: false }] => {
                self.exact.entry(attribute.clone()).or_default().entry(value.clone()).or_insert(index);
            }
            _ => self.patterns.push(index),
        }
        self.all.push(replacement);
    }

    fn find(&self, request: &Request<'_>) -> Option<&Override> {
        let exact =
            self.exact.iter().filter_map(|(attribute, values)| values.get(request.get(attribute)?)).min();
        let before = exact.map_or(usize::MAX, |index| *index);
        let mut earlier = self.patterns.iter().take_while(|index| **index < before);
        let pattern = earlier.find(|index| {
            self.all.get(**index).is_some_and(|candidate| all_match(&candidate.matches, request))
        });
        self.all.get(*pattern.or(exact)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    const LIMIT: Limit = Limit::per_second(1);

    fn covered(rules: &RuleSet, attributes: &[(&str, &str)]) -> Vec<(String, u64)> {
        let request = Request::new(attributes);
        rules
            .covering(&request)
            .map(|(_, rule, limits)| (rule.name.to_string(), limits[0].capacity()))
            .collect()
    }

    #[test]
    fn c2_a_rule_covers_what_it_matches_if_every_attribute_of_its_key_is_there() {
        let rules = RuleSet::new([
            Rule::new("global", LIMIT),
            Rule::new("login", LIMIT).matching("path", "/login").key(["client"]),
            Rule::new("api", LIMIT).matching("path", "/api/*").key(["client", "tenant"]),
        ])
        .unwrap();
        let names = |attributes: &[(&str, &str)]| {
            covered(&rules, attributes).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["global"]);
        assert_eq!(names(&[("client", "a"), ("path", "/login")]), ["global", "login"]);
        assert_eq!(names(&[("client", "a"), ("path", "/login/x")]), ["global"]);
        assert_eq!(names(&[("path", "/login")]), ["global"], "whose budget?");
        assert_eq!(names(&[("client", "a"), ("tenant", "t"), ("path", "/api/x")]), ["global", "api"]);
    }

    #[test]
    fn c4_the_first_override_that_matches_counts() {
        let rules = RuleSet::new([Rule::new("r", LIMIT).key(["client"])]).unwrap();
        let limit = |capacity| Limit::per(capacity, SECOND);
        let rules = rules
            .with_overrides([
                Override::new("r", limit(2)).matching("client", "gold-*").matching("path", "/x"),
                Override::new("r", limit(3)).matching("client", "gold-1"),
                Override::new("r", limit(4)).matching("client", "gold-*"),
                Override::new("r", limit(5)).matching("client", "gold-2"),
            ])
            .unwrap();
        let capacity = |attributes: &[(&str, &str)]| covered(&rules, attributes)[0].1;
        assert_eq!(capacity(&[("client", "gold-1"), ("path", "/x")]), 2);
        assert_eq!(capacity(&[("client", "gold-1")]), 3);
        assert_eq!(capacity(&[("client", "gold-2")]), 4, "the pattern comes first");
        assert_eq!(capacity(&[("client", "iron")]), 1);
    }

    #[test]
    fn d3_a_rule_that_cannot_work_is_rejected_with_its_field() {
        let error = |rule: Rule| RuleSet::new([rule]).unwrap_err().to_string();
        assert!(error(Rule::new("", LIMIT)).contains("name: write 1 to 128 printable"));
        assert!(error(Rule::new("naïve", LIMIT)).contains("name: "));
        assert!(error(Rule::new("r", LIMIT).cost(0)).contains("cost: 0 is out of range"));
        assert!(error(Rule::new("r", Vec::new())).contains("limit: it has no limit"));
        assert!(error(Rule::new("r", LIMIT).key([""])).contains("key: an attribute has no name"));
        assert!(error(Rule::new("r", LIMIT).key(["a", "a"])).contains("key: attribute \"a\" is there twice"));
        assert!(error(Rule::new("r", LIMIT).matching("", "x")).contains("match: "));
        let twins = RuleSet::new([Rule::new("r", LIMIT), Rule::new("r", LIMIT)]).unwrap_err();
        assert_eq!(twins.code(), "invalid_rule");
        let lost = RuleSet::default().with_overrides([Override::new("r", LIMIT).matching("client", "x")]);
        assert_eq!(lost.unwrap_err().code(), "unknown_rule");
    }
}
