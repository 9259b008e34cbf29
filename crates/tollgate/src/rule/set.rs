//! Rule sets, with the overrides of their limits.

use std::collections::BTreeSet;

use super::overrides::Overrides;
use super::path::PATH;
use super::{Limits, Override, Paths, Rule, overflow};
use crate::key::Budget;
use crate::{Error, Limit, Request};

/// A set of rules. All rules that cover a request have to admit it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuleSet {
    /// The rules, those on demand last.
    pub(super) rules: Vec<Rule>,
    /// The number of rules that are not on demand.
    automatic: usize,
    /// The index of each rule, sorted by the length of its name and by its name: most names differ
    /// in length, which is cheaper to compare.
    by_name: Vec<(&'static str, usize)>,
    /// The overrides of each rule, in the order of the rules.
    pub(super) overrides: Vec<Overrides>,
    /// The names of all attributes that the rules and overrides read, sorted.
    attributes: Vec<String>,
    /// Whether a request that no rule covers is denied.
    denies_uncovered: bool,
    pub(super) paths: Paths,
    /// Whether any rule, on demand or not, reads the path.
    pub(super) reads_path: bool,
}

/// A rule that covers a request, and the limits that apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Covered {
    /// The rule's index in the set.
    pub(crate) rule: usize,
    /// The index of the rule's override, if one applies.
    pub(crate) replacement: Option<usize>,
}

impl RuleSet {
    /// Checks the rules and builds a set. An empty set admits everything.
    ///
    /// # Errors
    /// [`Error::InvalidRule`] names the invalid rule and field.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, Error> {
        let mut rules: Vec<Rule> = rules.into_iter().collect();
        let mut names = BTreeSet::new();
        for rule in &rules {
            rule.check()?;
            if !names.insert(rule.name) {
                let reason = "another rule has the same name; give each rule a unique one".into();
                return Err(Error::InvalidRule { rule: rule.name.to_string(), field: "name", reason });
            }
        }
        overflow::resolve(&mut rules)?;
        rules.sort_by_key(Rule::is_on_demand);
        Ok(Self::from_checked(rules))
    }

    /// One rule, `per-client`, with this limit for each client.
    #[must_use]
    pub fn per_client(limit: Limit) -> Self {
        let rules = vec![Rule::new("per-client", limit).key([crate::request::CLIENT])];
        Self::from_checked(rules)
    }

    fn from_checked(rules: Vec<Rule>) -> Self {
        let automatic = rules.partition_point(|rule| !rule.on_demand);
        let mut by_name: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).zip(0..).collect();
        by_name.sort_unstable_by_key(|(name, _)| (name.len(), *name));
        let overrides = vec![Overrides::default(); rules.len()];
        let mut set = Self { rules, automatic, by_name, overrides, ..Self::default() };
        set.collect_attributes();
        set.with_paths(Paths::default())
    }

    fn collect_attributes(&mut self) {
        let rules = self.rules.get(..self.automatic).unwrap_or_default();
        let overflows = rules.iter().filter_map(|rule| self.index(&rule.overflow?));
        let overflows =
            overflows.filter_map(|index| Some((self.rules.get(index)?, self.overrides.get(index)?)));
        let rules = || rules.iter().zip(&self.overrides).chain(overflows.clone());
        let overrides = rules().flat_map(|(_, overrides)| &overrides.all);
        let matched = rules().flat_map(|(rule, _)| &rule.matches).map(|condition| &condition.attribute);
        let matched = matched.chain(overrides.flat_map(|(other, _)| other.attributes()));
        let names: BTreeSet<&String> = rules().flat_map(|(rule, _)| &rule.key).chain(matched).collect();
        self.attributes = names.into_iter().cloned().collect();
        self.reads_path = self.reads(PATH);
    }

    /// Adds overrides. Of several that match a request, the first applies.
    ///
    /// # Errors
    /// [`Error::InvalidRule`] or [`Error::UnknownRule`] names the invalid override's rule.
    pub fn with_overrides(mut self, overrides: impl IntoIterator<Item = Override>) -> Result<Self, Error> {
        for mut replacement in overrides {
            replacement.check()?;
            replacement.see(self.paths);
            let index = self.index(&replacement.rule()).unwrap_or(self.rules.len());
            let (Some(rule), Some(overrides)) = (self.rules.get(index), self.overrides.get_mut(index)) else {
                return Err(Error::UnknownRule { rule: replacement.rule().to_string() });
            };
            overrides.push(replacement, &rule.key);
        }
        self.collect_attributes();
        Ok(self)
    }

    /// Denies requests that no rule covers. By default they are admitted.
    ///
    /// ```
    /// use tollgate::{Cause, Limit, Limiter, Request, Rule, RuleSet};
    ///
    /// let rules = RuleSet::new([Rule::new("per-client", Limit::per_second(10)).key(["client"])])?;
    /// let limiter = Limiter::builder(rules.deny_uncovered()).build()?;
    /// assert_eq!(limiter.check(Request::new(&[("clinet", "alice")]))?.cause(), Cause::Uncovered);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    #[must_use]
    pub const fn deny_uncovered(mut self) -> Self {
        self.denies_uncovered = true;
        self
    }

    pub(crate) const fn denies_uncovered(&self) -> bool {
        self.denies_uncovered
    }

    /// The rules, in order; those on demand last.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The overrides, rule by rule.
    pub fn overrides(&self) -> impl Iterator<Item = &Override> {
        self.overrides.iter().flat_map(|overrides| &overrides.all).map(|(other, _)| other)
    }

    /// The names of all attributes that a rule counts by or matches on, or an override matches on,
    /// each once, sorted: the attributes a request should have. (Rules on demand are left out: a
    /// caller that names one knows its key.)
    #[must_use]
    pub fn attributes(&self) -> &[String] {
        &self.attributes
    }

    /// The budgets of a rule and their limits: the rule's first, then its overrides' in order.
    pub(crate) fn budgets(&self, rule: &Rule) -> impl Iterator<Item = (Budget, Limits)> {
        let overrides = self.index(&rule.name).and_then(|index| self.overrides.get(index));
        let overrides = overrides.map(|overrides| overrides.all.as_slice()).unwrap_or_default().iter();
        let first = if rule.inline { Budget::InlineTime } else { Budget::Rule };
        std::iter::once((first, rule.limits))
            .chain(overrides.map(|(other, budget)| (*budget, other.limits())))
    }

    /// The rules that are not on demand, if they apply to every client's requests alike: enforced,
    /// global or by client, without conditions and overrides.
    pub(crate) fn plain(&self) -> Option<&[Rule]> {
        let rules = self.rules.get(..self.automatic)?;
        let is_plain = |(rule, overrides): (&Rule, &Overrides)| {
            let is_counted_alike = rule.key.is_empty() || rule.by_client;
            is_counted_alike && rule.matches.is_empty() && !rule.needs_reports() && overrides.all.is_empty()
        };
        rules.iter().zip(&self.overrides).all(is_plain).then_some(rules)
    }

    /// The rules whose conditions a request meets. One of them covers the request if the request
    /// also has its key.
    #[inline(always)]
    pub(crate) fn matching<'a>(
        &'a self,
        request: &'a Request<'_>,
    ) -> impl Iterator<Item = (usize, &'a Rule)> {
        let candidates = match request.only_rule() {
            Some(only) => self.index(only).map_or(0..0, |index| index..index.saturating_add(1)),
            None => 0..self.automatic,
        };
        let candidates = candidates.filter_map(|index| Some((index, self.rules.get(index)?)));
        candidates.filter(|(_, rule)| rule.is_met_by(request))
    }

    /// The rules that cover a request.
    fn covering<'a>(&'a self, request: &'a Request<'_>) -> impl Iterator<Item = (usize, &'a Rule)> {
        self.matching(request).filter(|(_, rule)| rule.key.iter().all(|attribute| request.has(attribute)))
    }

    /// A rule that covers a request which is not about a client's own budgets, and the limits that
    /// apply.
    #[inline]
    pub(crate) fn covered(&self, rule: usize, request: &Request<'_>) -> Covered {
        Covered { rule, replacement: self.overrides.get(rule).and_then(|overrides| overrides.find(request)) }
    }

    /// Calls `found` with each rule that covers a request and the limits that apply, up to the
    /// first error.
    pub(crate) fn cover<E>(
        &self,
        request: &Request<'_>,
        mut found: impl FnMut(Covered) -> Result<(), E>,
    ) -> Result<(), E> {
        if !request.is_own() {
            return self.covering(request).try_for_each(|(index, _)| found(self.covered(index, request)));
        }
        for (index, rule) in self.covering(request) {
            let Some(overrides) = self.overrides.get(index) else { continue };
            // All budgets of the client. The rule's budget has the limits of one override at most.
            let all = overrides.all_of(request, &rule.key);
            let replaces =
                |at: &usize| overrides.all.get(*at).is_some_and(|(_, budget)| *budget == Budget::Rule);
            found(Covered { rule: index, replacement: all.iter().copied().find(replaces) })?;
            for at in all.into_iter().filter(|at| !replaces(at)) {
                found(Covered { rule: index, replacement: Some(at) })?;
            }
        }
        Ok(())
    }

    /// The index of the override that replaces the limits of a rule's own budget for a client,
    /// given by the values of the rule's key.
    pub(crate) fn replacement<'a>(&self, rule: usize, key: impl Iterator<Item = &'a str>) -> Option<usize> {
        let names = &self.rules.get(rule)?.key;
        let overrides = self.overrides.get(rule)?;
        let attributes: Vec<(&str, &str)> = names.iter().map(String::as_str).zip(key).collect();
        let all = overrides.all_of(&Request::new(&attributes), names);
        all.into_iter().find(|at| overrides.all.get(*at).is_some_and(|(_, budget)| *budget == Budget::Rule))
    }

    /// The rule that covers what this one lacks, and the limits that apply to the request there.
    pub(crate) fn overflow(&self, covered: Covered, request: &Request<'_>) -> Option<Covered> {
        let index = self.index(&self.rules.get(covered.rule)?.overflow?)?;
        Some(self.covered(index, request))
    }

    /// The index of the rule with this name.
    #[inline]
    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        let position =
            self.by_name.binary_search_by_key(&(name.len(), name), |(known, _)| (known.len(), known)).ok()?;
        self.by_name.get(position).map(|(_, index)| *index)
    }
}

#[cfg(test)]
mod tests;
