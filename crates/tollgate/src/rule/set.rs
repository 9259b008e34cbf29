//! Rules that work together, and the overrides that change their limits.

use std::collections::{BTreeSet, HashMap};

use super::{Limits, Match, Override, Rule, RuleName, all_match};
use crate::{Error, Limit, Request};

/// Rules that work together: all that cover a request have to admit it.
#[derive(Clone, Debug, Default)]
pub struct RuleSet {
    /// Those that cover requests unasked first.
    rules: Vec<Rule>,
    /// How many those are.
    unasked: usize,
    by_name: HashMap<&'static str, usize>,
    overrides: HashMap<RuleName, Overrides>,
    /// Whether there is one rule that covers requests unasked, which enforces and covers everyone
    /// alike: worth knowing without looking closer.
    plain: bool,
    /// The names of all attributes that any of it looks at, sorted.
    attributes: Vec<String>,
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
        let by_name = rules.iter().zip(0..).map(|(rule, index)| (rule.name.as_str(), index)).collect();
        let mut set =
            Self { rules, unasked, by_name, overrides: HashMap::new(), plain, attributes: Vec::new() };
        set.collect_attributes();
        set
    }

    fn collect_attributes(&mut self) {
        let rules = self.rules.get(..self.unasked).unwrap_or_default();
        let overrides = rules.iter().filter_map(|rule| self.overrides.get(&rule.name));
        let overrides = overrides.flat_map(|overrides| &overrides.all);
        let matches = rules.iter().map(|rule| &rule.matches).chain(overrides.map(|other| &other.matches));
        let matched = matches.flatten().map(|wanted| &wanted.attribute);
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
            if self.index(&replacement.rule).is_none() {
                return Err(Error::UnknownRule { rule: replacement.rule.to_string() });
            }
            self.overrides.entry(replacement.rule).or_default().push(replacement);
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
        self.rules
            .iter()
            .filter_map(|rule| self.overrides.get(&rule.name))
            .flat_map(|overrides| &overrides.all)
    }

    /// The names of all attributes that a rule counts by or matches on, or an override matches on,
    /// each once, sorted: what a request has to tell. (Whoever names a rule on demand knows what it
    /// counts by.)
    #[must_use]
    pub fn attributes(&self) -> &[String] {
        &self.attributes
    }

    /// Every limit that could ever be charged.
    pub(crate) fn all_limits(&self) -> impl Iterator<Item = (RuleName, Limit)> {
        let own = self.rules.iter().map(|rule| (rule.name, rule.limits));
        let other = self.overrides.values().flat_map(|overrides| &overrides.all);
        let all = own.chain(other.map(|other| (other.rule, other.limits)));
        all.flat_map(|(rule, limits)| limits.as_slice().iter().map(move |limit| (rule, *limit)))
    }

    /// The rule that covers a request, if one does and no other, and it enforces.
    #[inline]
    pub(crate) fn only_one_covering<'a>(
        &'a self,
        request: &Request<'_>,
    ) -> Option<(usize, &'a Rule, Limits)> {
        if let (true, Some(rule), true) = (self.plain, self.rules.first(), request.is_unscoped())
            && (rule.key.is_empty() || (rule.by_client && request.only_client().is_some()))
        {
            return Some((0, rule, rule.limits));
        }
        self.look_for_one_covering(request)
    }

    #[inline(never)]
    fn look_for_one_covering<'a>(&'a self, request: &Request<'_>) -> Option<(usize, &'a Rule, Limits)> {
        let mut covering = self.covering(request);
        let found = covering.next().filter(|(_, rule, _)| !rule.shadow)?;
        covering.next().is_none().then_some(found)
    }

    /// The rules that cover a request, each with its place in the set and the limits that apply.
    pub(crate) fn covering<'a>(
        &'a self,
        request: &Request<'_>,
    ) -> impl Iterator<Item = (usize, &'a Rule, Limits)> {
        let looked_at = match request.only_rule() {
            Some(only) => self.index(only).map_or(0..0, |index| index..index.saturating_add(1)),
            None => 0..self.unasked,
        };
        let first = looked_at.start;
        let rules = self.rules.get(looked_at).unwrap_or_default().iter().zip(first..);
        rules.filter(|(rule, _)| rule.covers(request)).map(move |(rule, index)| {
            let limits = request.own_limits().unwrap_or_else(|| {
                let replacement =
                    self.overrides.get(&rule.name).and_then(|overrides| overrides.find(request));
                replacement.map_or(rule.limits, |replacement| replacement.limits)
            });
            (index, rule, limits)
        })
    }

    /// Where the rule of a name is.
    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.by_name.get(name).copied()
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
            rules.covering(&request).map(|(_, rule, _)| rule.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(names(Request::client("a")), ["global", "per-client"]);
        assert_eq!(names(Request::client("a").own()), ["per-client", "login"]);
        let plain = RuleSet::new([Rule::new("global", LIMIT)]).unwrap();
        assert!(
            plain.only_one_covering(&Request::client("a").own()).is_none(),
            "not on the short way either"
        );
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
