//! Overrides: other limits for some of the requests that a rule covers.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::condition::{Condition, Value, Values, all_match, check_matches};
use super::{Limits, Paths, RuleName, check_limits};
use crate::key::Budget;
use crate::{Error, Request};

/// Other limits for some of the requests that a rule covers: for a plan, a tier, a partner.
///
/// An override that matches only on attributes of its rule's key replaces the limits of that key:
/// units in use stay in use. An override that matches on another attribute (a path, a plan that
/// comes with the request) has a separate budget, because the next request may match differently.
#[derive(Clone, Debug, PartialEq)]
pub struct Override {
    rule: RuleName,
    matches: Vec<Condition>,
    limits: Limits,
}

impl Override {
    /// Other limits for the rule with this name.
    #[must_use]
    pub fn new(rule: &str, limits: impl Into<Limits>) -> Self {
        Self { rule: RuleName::intern(rule), matches: Vec::new(), limits: limits.into() }
    }

    /// Applies only to requests whose `attribute` is one of `values`, or begins with one that ends
    /// in `*`.
    #[must_use]
    pub fn matching(mut self, attribute: &str, values: impl Into<Values>) -> Self {
        self.matches.push(Condition::new(attribute, values));
        self
    }

    /// Applies only to requests whose `attribute` is exactly `value`, even if that ends in `*`.
    #[must_use]
    pub fn exactly(mut self, attribute: &str, value: &str) -> Self {
        self.matches.push(Condition::exactly(attribute, value));
        self
    }

    /// The name of the rule.
    #[must_use]
    pub const fn rule(&self) -> RuleName {
        self.rule
    }

    /// The conditions, as of [`Rule::matches`](crate::Rule::matches).
    pub fn matches(&self) -> impl Iterator<Item = (&str, Vec<String>)> {
        self.matches.iter().map(Condition::written)
    }

    /// The limits that apply instead of the rule's.
    #[must_use]
    pub const fn limits(&self) -> Limits {
        self.limits
    }

    /// Sets how paths are seen.
    pub(super) fn see(&mut self, paths: Paths) {
        self.matches.iter_mut().for_each(|condition| condition.see(paths));
    }

    pub(super) fn attributes(&self) -> impl Iterator<Item = &String> {
        self.matches.iter().map(|condition| &condition.attribute)
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid = |field, reason| Err(Error::InvalidRule { rule: self.rule.to_string(), field, reason });
        if self.matches.is_empty() {
            return invalid(
                "override",
                "it matches every request; say which requests, or change the rule itself".into(),
            );
        }
        check_limits(&self.limits).or_else(|reason| invalid("override", reason))?;
        check_matches(&self.matches).or_else(|reason| invalid("override", reason))
    }

    /// The budget of the override: the rule's, or one named by the conditions.
    fn budget(&self, key: &[String]) -> Budget {
        if self.attributes().all(|attribute| key.contains(attribute)) {
            return Budget::Rule;
        }
        let mut conditions: Vec<String> = self.matches.iter().map(condition_text).collect();
        conditions.sort_unstable();
        conditions.dedup();
        Budget::Override(RuleName::intern(&conditions.join(",")).as_str())
    }
}

/// A condition as text. Different conditions have different texts.
fn condition_text(condition: &Condition) -> String {
    let mut values: Vec<String> = condition.values.iter().map(value_text).collect();
    values.sort_unstable();
    values.dedup();
    format!("{}={}", escaped(&condition.attribute), values.join("|"))
}

fn value_text(value: &Value) -> String {
    format!("{}{}", escaped(&value.text), if value.prefix { "*" } else { "" })
}

/// A text in which the characters of [`condition_text`] are escaped.
fn escaped(part: &str) -> String {
    let mut text = String::new();
    for byte in part.bytes() {
        match byte {
            b'%' | b',' | b'=' | b'*' | b'|' | b'[' | b']' | ..=b' ' | 0x7f.. => {
                let _ = write!(text, "%{byte:02X}");
            }
            _ => text.push(char::from(byte)),
        }
    }
    text
}

/// The overrides of a rule, in order. Those for one exact value, possibly one per customer, are
/// found by hash.
#[derive(Clone, Debug, Default, PartialEq)]
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
            [Condition { attribute, values }] if values.iter().all(|value| !value.prefix) => {
                let exact = self.exact.entry(attribute.clone()).or_default();
                for value in values {
                    exact.entry(value.text.clone()).or_insert(index);
                }
            }
            _ => self.patterns.push(index),
        }
        let budget = replacement.budget(key);
        self.all.push((replacement, budget));
    }

    /// The index of the first override that matches a request.
    #[inline]
    pub(super) fn find(&self, request: &Request<'_>) -> Option<usize> {
        if self.all.is_empty() { None } else { self.search(request) }
    }

    fn search(&self, request: &Request<'_>) -> Option<usize> {
        let exact =
            self.exact.iter().filter_map(|(attribute, values)| values.get(request.get(attribute)?)).min();
        let before = exact.map_or(usize::MAX, |index| *index);
        let mut earlier = self.patterns.iter().take_while(|index| **index < before);
        let pattern = earlier.find(|index| {
            self.all.get(**index).is_some_and(|(candidate, _)| all_match(&candidate.matches, request))
        });
        pattern.or(exact).copied()
    }

    /// The indexes of all overrides that may apply to a request with only the key's attributes
    /// known, in order: those with a separate budget, and the first that replaces the rule's
    /// limits.
    pub(super) fn all_of(&self, request: &Request<'_>, key: &[String]) -> Vec<usize> {
        let mut found = Vec::new();
        for (index, (candidate, budget)) in self.all.iter().enumerate() {
            let known = candidate.matches.iter().filter(|condition| key.contains(&condition.attribute));
            if known.into_iter().all(|condition| condition.matches(request)) {
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
    fn b12_an_override_on_the_key_replaces_the_limits_and_any_other_is_named_by_its_conditions() {
        let new = || Override::new("r", Limit::per_second(1));
        assert_eq!(budget(new().matching("client", "gold-*")), "");
        assert_eq!(budget(new().matching("path", "/login")), "path=/login");
        let one = new().matching("path", "/a*").matching("client", "x").matching("method", "POST");
        let other = new().matching("method", "POST").matching("path", "/a*").matching("client", "x");
        assert_eq!(budget(one), "client=x,method=POST,path=/a*");
        assert_eq!(budget(other), "client=x,method=POST,path=/a*", "in any order");
        let listed = new().matching("method", ["PUT", "POST", "PUT"]);
        assert_eq!(budget(listed), "method=POST|PUT", "in any order, and each once");
        // Similar conditions have different names.
        let alike = [
            new().matching("path", ["/a", "/b"]),
            new().matching("path", "/a|/b"),
            new().matching("path", ["/a", "/b*"]),
            new().matching("path", "/a").matching("b", "c"),
            new().matching("path", "/a,b=c"),
            new().matching("path", "/a*"),
            new().exactly("path", "/a*"),
            new().exactly("path", "/a%2A"),
        ];
        let names: std::collections::HashSet<String> = alike.into_iter().map(budget).collect();
        assert_eq!(names.len(), 8);
    }
}
