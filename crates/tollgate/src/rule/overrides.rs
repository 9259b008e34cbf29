//! Other limits for some of the requests that a rule covers, and the budgets that they draw on.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::{Limits, Match, RuleName, all_match, check_limits, check_matches};
use crate::key::Budget;
use crate::{Error, Request};

/// Other limits for some of the requests that a rule covers: a plan, a tier, a partner.
///
/// An override that matches only on attributes of its rule's key replaces the limits of that key:
/// what is in use stays in use. One that matches on anything else (a path, a plan that comes with
/// the request) is a budget of its own, because the next request may match differently.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    rule: RuleName,
    matches: Vec<Match>,
    limits: Limits,
}

impl Override {
    /// Other limits for the rule of this name.
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

    /// What it matches on, as of a [`Rule`](crate::Rule).
    pub fn matches(&self) -> impl Iterator<Item = (&str, String)> {
        self.matches.iter().map(Match::written)
    }

    /// The limits that apply instead.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    pub(super) fn attributes(&self) -> impl Iterator<Item = &String> {
        self.matches.iter().map(|wanted| &wanted.attribute)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
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

    /// The budget that it is: the rule's own, or one that is named by what it matches.
    fn budget(&self, key: &[String]) -> Budget {
        if self.attributes().all(|attribute| key.contains(attribute)) {
            return Budget::Rule;
        }
        let mut conditions: Vec<String> = self.matches.iter().map(condition).collect();
        conditions.sort_unstable();
        conditions.dedup();
        Budget::Override(RuleName::intern(&conditions.join(",")).as_str())
    }
}

/// A condition as text: different ones have different texts, whatever is in them.
fn condition(wanted: &Match) -> String {
    let mut text = String::new();
    for (part, end) in [(&wanted.attribute, "="), (&wanted.value, if wanted.prefix { "*" } else { "" })] {
        for byte in part.bytes() {
            match byte {
                b'%' | b',' | b'=' | b'*' | b'[' | b']' => {
                    let _ = write!(text, "%{byte:02X}");
                }
                0x21..=0x7e => text.push(char::from(byte)),
                _ => {
                    let _ = write!(text, "%{byte:02X}");
                }
            }
        }
        text.push_str(end);
    }
    text
}

/// A rule's overrides in their order. Those for one exact value, of which there may be one for each
/// customer, are found by hash.
#[derive(Clone, Debug, Default)]
pub(super) struct Overrides {
    pub(super) all: Vec<(Override, Budget)>,
    exact: HashMap<String, HashMap<String, usize>>,
    patterns: Vec<usize>,
}

impl Overrides {
    /// Adds an override of a rule with this key.
    pub(super) fn push(&mut self, replacement: Override, key: &[String]) {
        let index = self.all.len();
        match replacement.matches.as_slice() {
            [Match { attribute, value, prefix: false }] => {
                self.exact.entry(attribute.clone()).or_default().entry(value.clone()).or_insert(index);
            }
            _ => self.patterns.push(index),
        }
        let budget = replacement.budget(key);
        self.all.push((replacement, budget));
    }

    /// The first that matches a request.
    pub(super) fn find(&self, request: &Request<'_>) -> Option<usize> {
        if self.all.is_empty() {
            return None;
        }
        let exact =
            self.exact.iter().filter_map(|(attribute, values)| values.get(request.get(attribute)?)).min();
        let before = exact.map_or(usize::MAX, |index| *index);
        let mut earlier = self.patterns.iter().take_while(|index| **index < before);
        let pattern = earlier.find(|index| {
            self.all.get(**index).is_some_and(|(candidate, _)| all_match(&candidate.matches, request))
        });
        pattern.or(exact).copied()
    }

    /// All that may apply to a request of which only these attributes are known, in order: those with
    /// budgets of their own, and the first that replaces the rule's.
    pub(super) fn all_of(&self, request: &Request<'_>, key: &[String]) -> Vec<usize> {
        let mut found = Vec::new();
        for (index, (candidate, budget)) in self.all.iter().enumerate() {
            let known = candidate.matches.iter().filter(|wanted| key.contains(&wanted.attribute));
            if known.into_iter().all(|wanted| wanted.matches(request)) {
                found.push(index);
                if *budget == Budget::Rule {
                    break;
                }
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Limit;

    fn budget(replacement: Override) -> String {
        replacement.budget(&["client".into()]).to_string()
    }

    #[test]
    fn b12_an_override_on_the_key_replaces_and_any_other_is_named_by_what_it_matches() {
        let new = || Override::new("r", Limit::per_second(1));
        assert_eq!(budget(new().matching("client", "gold-*")), "");
        assert_eq!(budget(new().matching("path", "/login")), "path=/login");
        let one = new().matching("path", "/a*").matching("client", "x").matching("method", "POST");
        let other = new().matching("method", "POST").matching("path", "/a*").matching("client", "x");
        assert_eq!(budget(one), "client=x,method=POST,path=/a*");
        assert_eq!(budget(other), "client=x,method=POST,path=/a*", "in whatever order");
        // What looks alike is told apart.
        let alike = [
            new().matching("path", "/a").matching("b", "c"),
            new().matching("path", "/a,b=c"),
            new().matching("path", "/a*"),
            new().exactly("path", "/a*"),
            new().exactly("path", "/a%2A"),
        ];
        let names: std::collections::HashSet<String> = alike.into_iter().map(budget).collect();
        assert_eq!(names.len(), 5);
    }
}
