//! Why a rule covers a request, or does not: for people who ask.
//!
//! Deciding takes [`RuleSet::matching`], which stops at the first obstacle and copies nothing.

use super::overrides::Overrides;
use super::{Override, Rule, RuleSet};
use crate::Request;

/// Whether a rule covers a request, and what keeps it from doing so.
#[derive(Clone, Debug, PartialEq)]
pub struct Coverage<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Everything that keeps the rule from covering the request. Empty if it covers the request.
    pub obstacles: Vec<Obstacle<'a>>,
    /// The override whose limits apply, if the rule covers the request and an override matches.
    pub replacement: Option<&'a Override>,
}

/// One reason why a rule does not cover a request.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle<'a> {
    /// The rule covers only requests that name it.
    OnDemand,
    /// The request's attribute has none of the required values, or is absent.
    Mismatch {
        /// The attribute that the rule matches on.
        attribute: &'a str,
        /// The values, as [`Rule::matches`] has them.
        required: Vec<String>,
    },
    /// The request lacks an attribute of the rule's key.
    MissingKey {
        /// The attribute that the rule counts by.
        attribute: &'a str,
    },
}

impl<'a> Coverage<'a> {
    fn of(rule: &'a Rule, overrides: &'a Overrides, request: &Request<'_>) -> Self {
        let obstacles = rule.obstacles(request);
        let replacement = if obstacles.is_empty() { overrides.find(request) } else { None };
        let replacement = replacement.and_then(|index| overrides.all.get(index));
        Self { rule, obstacles, replacement: replacement.map(|(replacement, _)| replacement) }
    }

    /// Whether the rule covers the request.
    #[must_use]
    pub const fn covers(&self) -> bool {
        self.obstacles.is_empty()
    }
}

impl RuleSet {
    /// Why each rule covers a request or does not, in the order of the rules. A rule that the
    /// request selects ([`Request::only`]) is explained as any other.
    ///
    /// ```
    /// use tollgate::{Limit, Obstacle, Request, Rule, RuleSet};
    ///
    /// let rules = RuleSet::new([
    ///     Rule::new("login", Limit::LOGIN).matching("path", "/login*").key(["client"]),
    /// ])?;
    /// let request = [("client", "alice"), ("path", "/search")];
    /// let login = rules.explain(&Request::new(&request)).next().unwrap();
    /// let required = vec!["/login*".to_owned()];
    /// assert_eq!(login.obstacles, [Obstacle::Mismatch { attribute: "path", required }]);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    pub fn explain<'a>(&'a self, request: &Request<'_>) -> impl Iterator<Item = Coverage<'a>> {
        let explained: Vec<Coverage<'a>> = self.seeing(request, |request| {
            let all = self.rules.iter().zip(&self.overrides);
            all.map(|(rule, overrides)| Coverage::of(rule, overrides, request)).collect()
        });
        explained.into_iter()
    }
}

impl Rule {
    fn obstacles(&self, request: &Request<'_>) -> Vec<Obstacle<'_>> {
        let mismatched = self.matches.iter().filter(|condition| !condition.matches(request));
        let mismatched = mismatched.map(|condition| {
            let (attribute, required) = condition.written();
            Obstacle::Mismatch { attribute, required }
        });
        let missing = self.key.iter().filter(|attribute| !request.has(attribute));
        let missing = missing.map(|attribute| Obstacle::MissingKey { attribute });
        self.on_demand.then_some(Obstacle::OnDemand).into_iter().chain(mismatched).chain(missing).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limit, SECOND};

    /// Every combination of attributes that the rules read, present or not.
    fn requests() -> Vec<Vec<(&'static str, &'static str)>> {
        let choices: [&[Option<(&str, &str)>]; 3] = [
            &[None, Some(("client", "gold-1")), Some(("client", "x"))],
            &[None, Some(("path", "/login")), Some(("path", "/search"))],
            &[None, Some(("plan", "free"))],
        ];
        choices.iter().fold(vec![Vec::new()], |requests, choice| {
            let with = |request: &Vec<_>| {
                let request = request.clone();
                choice.iter().map(move |one| request.iter().copied().chain(*one).collect())
            };
            requests.iter().flat_map(with).collect()
        })
    }

    /// What is explained is what is charged: the same rules, with the same overrides.
    #[test]
    fn c2_a_rule_without_an_obstacle_is_a_rule_that_covers() {
        let limit = |capacity| Limit::per(capacity, SECOND);
        let rules = RuleSet::new([
            Rule::new("global", limit(1)),
            Rule::new("login", limit(1)).matching("path", "/log*").key(["client"]),
            Rule::new("tenant", limit(1)).key(["client", "plan"]),
            Rule::new("named", limit(1)).on_demand(),
        ]);
        let rules = rules.unwrap().with_overrides([
            Override::new("login", limit(2)).matching("client", "gold-*"),
            Override::new("global", limit(3)).matching("plan", "free"),
        ]);
        let rules = rules.unwrap();
        for attributes in requests() {
            let request = Request::new(&attributes);
            let mut charged = Vec::new();
            let found = |covered: super::super::Covered| -> Result<(), ()> {
                charged.push((covered.rule, covered.replacement.is_some()));
                Ok(())
            };
            rules.cover(&request, found).unwrap();
            let explained = rules.explain(&request).enumerate();
            let explained: Vec<(usize, bool)> = explained
                .filter(|(_, coverage)| coverage.covers())
                .map(|(index, coverage)| (index, coverage.replacement.is_some()))
                .collect();
            assert_eq!(explained, charged, "{attributes:?}");
        }
    }

    #[test]
    fn every_obstacle_is_named() {
        let rules = RuleSet::new([
            Rule::new("login", Limit::LOGIN).matching("path", ["/login", "/in*"]).key(["client", "host"]),
            Rule::new("named", Limit::LOGIN).on_demand(),
        ]);
        let rules = rules.unwrap();
        let request = [("host", "h"), ("path", "/out")];
        let obstacles: Vec<Vec<Obstacle<'_>>> =
            rules.explain(&Request::new(&request)).map(|coverage| coverage.obstacles).collect();
        let required = vec!["/login".to_owned(), "/in*".to_owned()];
        let login = vec![
            Obstacle::Mismatch { attribute: "path", required },
            Obstacle::MissingKey { attribute: "client" },
        ];
        assert_eq!(obstacles, [login, vec![Obstacle::OnDemand]]);
    }
}
