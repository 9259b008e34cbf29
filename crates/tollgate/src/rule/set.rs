//! Rules that work together, and the overrides that change their limits.

use std::collections::BTreeSet;

use smallvec::SmallVec;

use super::overrides::Overrides;
use super::{Limits, Override, Rule};
use crate::key::Budget;
use crate::{Error, Limit, Request};

/// Rules that work together: all that cover a request have to admit it.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// Those that cover requests unasked first.
    rules: Vec<Rule>,
    /// How many those are.
    unasked: usize,
    /// Where each name is, sorted by name.
    by_name: Vec<(&'static str, usize)>,
    /// Each rule's, in the order of the rules.
    overrides: Vec<Overrides>,
    /// Whether there is one rule that covers requests unasked, which enforces and covers everyone
    /// alike: worth knowing without looking closer.
    plain: bool,
    /// The names of all attributes that any of it looks at, sorted.
    attributes: Vec<String>,
}

/// A rule that covers a request, and which of its limits apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Covered {
    /// The rule's index in the set.
    pub(crate) rule: usize,
    /// The index of the override among the rule's, if one applies.
    pub(crate) replacement: Option<usize>,
}

impl RuleSet {
    /// Checks the rules and puts them together. With none, everything is admitted.
    ///
    /// # Errors
    /// [`Error::InvalidRule`] names the rule and the field.
    pub fn new(rules: impl IntoIterator<Item = Rule>) -> Result<Self, Error> {
        let mut rules: Vec<Rule> = rules.into_iter().collect();
        rules.sort_by_key(Rule::is_on_demand);
        let mut names = BTreeSet::new();
        for rule in &rules {
            rule.check()?;
            if !names.insert(rule.name) {
                let reason = "another rule has the same name; names tell their counts apart".into();
                return Err(Error::InvalidRule { rule: rule.name.to_string(), field: "name", reason });
            }
        }
        Ok(Self::plain_or_not(rules))
    }

    /// One rule, `per-client`, with this limit for each client.
    #[must_use]
    pub fn per_client(limit: Limit) -> Self {
        let rules = vec![Rule::new("per-client", limit).key([crate::request::CLIENT])];
        Self::plain_or_not(rules)
    }

    fn plain_or_not(rules: Vec<Rule>) -> Self {
        let unasked = rules.partition_point(|rule| !rule.on_demand);
        let plain = unasked == 1 && rules.first().is_some_and(|rule| !rule.shadow && rule.matches.is_empty());
        let mut by_name: Vec<_> = rules.iter().map(|rule| rule.name.as_str()).zip(0..).collect();
        by_name.sort_unstable();
        let overrides = vec![Overrides::default(); rules.len()];
        let mut set = Self { rules, unasked, by_name, overrides, plain, attributes: Vec::new() };
        set.collect_attributes();
        set
    }

    fn collect_attributes(&mut self) {
        let rules = self.rules.get(..self.unasked).unwrap_or_default();
        let overrides = rules.iter().zip(&self.overrides).flat_map(|(_, overrides)| &overrides.all);
        let matched = rules.iter().flat_map(|rule| &rule.matches).map(|wanted| &wanted.attribute);
        let matched = matched.chain(overrides.flat_map(|(other, _)| other.attributes()));
        let names: BTreeSet<&String> = rules.iter().flat_map(|rule| &rule.key).chain(matched).collect();
        self.attributes = names.into_iter().cloned().collect();
    }

    /// Adds overrides. Where several match a request, the first counts.
    ///
    /// # Errors
    /// [`Error::InvalidRule`] or [`Error::UnknownRule`] says which override cannot work.
    pub fn with_overrides(mut self, overrides: impl IntoIterator<Item = Override>) -> Result<Self, Error> {
        for replacement in overrides {
            replacement.check()?;
            let index = self.index(&replacement.rule()).unwrap_or(self.rules.len());
            let (Some(rule), Some(overrides)) = (self.rules.get(index), self.overrides.get_mut(index)) else {
                return Err(Error::UnknownRule { rule: replacement.rule().to_string() });
            };
            overrides.push(replacement, &rule.key);
            self.plain = false;
        }
        self.collect_attributes();
        Ok(self)
    }

    /// The rules, in order; those on demand after the others.
    #[must_use]
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// The overrides, rule by rule.
    pub fn overrides(&self) -> impl Iterator<Item = &Override> {
        self.overrides.iter().flat_map(|overrides| &overrides.all).map(|(other, _)| other)
    }

    /// The names of all attributes that a rule counts by or matches on, or an override matches on,
    /// each once, sorted: what a request has to tell. (Whoever names a rule on demand knows what it
    /// counts by.)
    #[must_use]
    pub fn attributes(&self) -> &[String] {
        &self.attributes
    }

    /// The budgets that a rule has and their limits: its own, and its overrides' in their order.
    pub(crate) fn limited(&self, rule: &Rule) -> impl Iterator<Item = (Budget, Limits)> {
        let overrides = self.index(&rule.name).and_then(|index| self.overrides.get(index));
        let overrides = overrides.map(|overrides| overrides.all.as_slice()).unwrap_or_default().iter();
        let own = if rule.inline { Budget::InlineTime } else { Budget::Rule };
        std::iter::once((own, rule.limits)).chain(overrides.map(|(other, budget)| (*budget, other.limits())))
    }

    /// The one rule of the set, if it covers every request that asks for nothing in particular, and
    /// has no overrides: then there is nothing to look for.
    #[inline]
    pub(crate) fn plain(&self) -> Option<&Rule> {
        if self.plain { self.rules.first() } else { None }
    }

    /// The rules that cover a request, each with the limits that apply.
    pub(crate) fn cover(&self, request: &Request<'_>, covered: &mut SmallVec<[Covered; 4]>) {
        let looked_at = match request.only_rule() {
            Some(only) => self.index(only).map_or(0..0, |index| index..index.saturating_add(1)),
            None => 0..self.unasked,
        };
        for index in looked_at {
            let (Some(rule), Some(overrides)) = (self.rules.get(index), self.overrides.get(index)) else {
                continue;
            };
            if !rule.covers(request) {
                continue;
            }
            if !request.is_own() {
                covered.push(Covered { rule: index, replacement: overrides.find(request) });
                continue;
            }
            // All budgets of the client, of which the rule's own has the limits of one override at most.
            let found = overrides.all_of(request, &rule.key);
            let replaces =
                |at: &usize| overrides.all.get(*at).is_some_and(|(_, budget)| *budget == Budget::Rule);
            let replacement = found.iter().copied().find(replaces);
            covered.push(Covered { rule: index, replacement });
            let others = found.into_iter().filter(|at| !replaces(at));
            covered.extend(others.map(|at| Covered { rule: index, replacement: Some(at) }));
        }
    }

    /// Where the rule of a name is.
    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        let place = self.by_name.binary_search_by_key(&name, |(known, _)| known).ok()?;
        self.by_name.get(place).map(|(_, index)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SECOND;

    const LIMIT: Limit = Limit::per_second(1);

    fn covered(rules: &RuleSet, attributes: &[(&str, &str)]) -> Vec<(String, u64)> {
        covering(rules, Request::new(attributes))
    }

    fn covering(rules: &RuleSet, request: Request<'_>) -> Vec<(String, u64)> {
        let mut covered = SmallVec::new();
        rules.cover(&request, &mut covered);
        let limits = |covered: &Covered| {
            let rule = &rules.rules[covered.rule];
            let place = covered.replacement.map_or(0, |index| index + 1);
            let (budget, limits) = rules.limited(rule).nth(place).unwrap();
            (format!("{}{budget}", rule.name), limits[0].capacity())
        };
        covered.iter().map(limits).collect()
    }

    #[test]
    fn c2_the_attributes_of_a_set_are_all_that_anything_in_it_looks_at() {
        let rules = RuleSet::new([
            Rule::new("global", LIMIT),
            Rule::new("login", LIMIT).matching("path", "/login").key(["client"]),
            Rule::new("tenant", LIMIT).key(["tenant", "client"]),
        ])
        .unwrap();
        assert_eq!(rules.attributes(), ["client", "path", "tenant"]);
        let rules = rules.with_overrides([Override::new("login", LIMIT).matching("plan", "gold")]).unwrap();
        assert_eq!(rules.attributes(), ["client", "path", "plan", "tenant"]);
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
    fn c2_a_client_s_own_budgets_are_those_that_count_by_nothing_else() {
        let rules = RuleSet::new([
            Rule::new("global", LIMIT),
            Rule::new("per-client", LIMIT).key(["client"]),
            Rule::new("login", LIMIT).matching("path", "/login").key(["client"]),
            Rule::new("route", LIMIT).key(["client", "path"]),
        ])
        .unwrap();
        let names = |request: Request<'_>| {
            covering(&rules, request).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(names(Request::client("a")), ["global", "per-client"]);
        assert_eq!(names(Request::client("a").own()), ["per-client", "login"]);
    }

    #[test]
    fn b12_a_client_s_own_budgets_are_all_that_an_override_may_give_it() {
        let rules = RuleSet::new([Rule::new("r", LIMIT).key(["client"])]).unwrap();
        let limit = |capacity| Limit::per(capacity, SECOND);
        let rules = rules
            .with_overrides([
                Override::new("r", limit(2)).matching("path", "/x"),
                Override::new("r", limit(3)).matching("client", "a").matching("path", "/y"),
                Override::new("r", limit(4)).matching("client", "b").matching("path", "/y"),
                Override::new("r", limit(5)).matching("client", "a*"),
                Override::new("r", limit(6)).matching("path", "/z"),
            ])
            .unwrap();
        let own = covering(&rules, Request::client("a").own());
        let expected = [("r", 5), ("rpath=/x", 2), ("rclient=a,path=/y", 3)];
        assert_eq!(own, expected.map(|(name, capacity)| (name.to_owned(), capacity)));
    }

    #[test]
    fn c4_an_override_for_exactly_one_value_takes_an_asterisk_for_what_it_is() {
        let rules = RuleSet::new([Rule::new("r", LIMIT).key(["client"])]).unwrap();
        let rules =
            rules.with_overrides([Override::new("r", Limit::per_second(9)).exactly("client", "a*")]).unwrap();
        assert_eq!(covered(&rules, &[("client", "a*")])[0].1, 9);
        assert_eq!(covered(&rules, &[("client", "ab")])[0].1, 1);
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
