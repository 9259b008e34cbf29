//! The tree of descriptors, and the lookup in it.

use std::collections::HashMap;

use tollgate::Rule;

use super::amount::Amount;
use super::descriptors::{Descriptor, RateLimit};
use super::names::{Names, Path, attribute_names};
use super::{Matched, Verdict};

/// The result of compiling descriptors of all levels.
#[derive(Clone, Debug, Default)]
pub(super) struct Compiled {
    pub(super) rules: Vec<Rule>,
    /// The descriptors that need no rule, by name.
    pub(super) without_rule: Vec<(String, Verdict)>,
}

/// Sibling descriptors.
#[derive(Clone, Debug, Default)]
pub(super) struct Level {
    keys: HashMap<String, Values>,
}

/// The children of a key, by value.
#[derive(Clone, Debug, Default)]
struct Values {
    exact: HashMap<String, Branch>,
    /// The patterns, most specific first.
    patterns: Vec<(Pattern, Branch)>,
    any: Option<Box<Branch>>,
}

#[derive(Clone, Debug)]
struct Branch {
    matched: Option<Matched>,
    children: Level,
}

impl Level {
    /// Whether this level or a descendant has a limit.
    pub(super) fn limits(&self) -> bool {
        let branches = |values: &Values| {
            let patterns = values.patterns.iter().map(|(_, branch)| branch);
            let mut all = values.exact.values().chain(patterns).chain(values.any.as_deref());
            all.any(|branch| branch.matched.is_some() || branch.children.limits())
        };
        self.keys.values().any(branches)
    }

    /// Compiles descriptors; `above` are their ancestors.
    pub(super) fn compile<'a>(
        descriptors: &'a [Descriptor],
        above: &mut Vec<&'a Descriptor>,
        domain: &'a str,
        names: &Names,
        compiled: &mut Compiled,
    ) -> Self {
        let mut level = Self::default();
        for descriptor in descriptors {
            above.push(descriptor);
            let matched = descriptor.limited.as_ref().map(|limited| {
                let rule = rule(limited, above, domain, names);
                let verdict = match (limited.amount, &rule) {
                    (_, Some(rule)) => Verdict::Rule(rule.name()),
                    (Amount::DenyAll(period), _) => Verdict::DenyAll(period),
                    _ => Verdict::Unlimited,
                };
                if rule.is_none() {
                    compiled.without_rule.push((path(domain, above).full_key(), verdict));
                }
                compiled.rules.extend(rule);
                limited.matched(verdict)
            });
            let children = Self::compile(&descriptor.children, above, domain, names, compiled);
            above.pop();
            level.insert(descriptor, Branch { matched, children });
        }
        level.keys.values_mut().for_each(Values::sort);
        level
    }

    fn insert(&mut self, descriptor: &Descriptor, branch: Branch) {
        let values = self.keys.entry(descriptor.key.clone()).or_default();
        match &descriptor.value {
            None => values.any = Some(Box::new(branch)),
            Some(value) if value.contains('*') => values.patterns.push((Pattern::new(value), branch)),
            Some(value) => _ = values.exact.insert(value.clone(), branch),
        }
    }

    /// The limit of exactly these entries.
    pub(super) fn find<'a>(&self, entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<&Matched> {
        let mut level = self;
        let mut matched = None;
        for (key, value) in entries {
            let branch = level.keys.get(key)?.find(value)?;
            (level, matched) = (&branch.children, branch.matched.as_ref());
        }
        matched
    }
}

impl Values {
    fn find(&self, value: &str) -> Option<&Branch> {
        let pattern = || self.patterns.iter().find(|(pattern, _)| pattern.matches(value));
        self.exact.get(value).or_else(|| pattern().map(|(_, branch)| branch)).or(self.any.as_deref())
    }

    fn sort(&mut self) {
        self.patterns.sort_by_key(|(pattern, _)| std::cmp::Reverse(pattern.specificity()));
    }
}

impl RateLimit {
    fn matched(&self, verdict: Verdict) -> Matched {
        Matched {
            verdict,
            name: self.name.clone(),
            replaces: self.replaces.clone(),
            detailed: self.detailed,
            shadow: self.shadow,
        }
    }
}

/// Records all paths that lead to a rule.
pub(super) fn note<'a>(descriptors: &'a [Descriptor], path: &mut Path<'a>, names: &mut Names) {
    for descriptor in descriptors {
        path.steps.push((&descriptor.key, descriptor.value.as_deref()));
        if descriptor.limited.as_ref().is_some_and(|limited| matches!(limited.amount, Amount::Limit(_))) {
            names.note(path);
        }
        note(&descriptor.children, path, names);
        path.steps.pop();
    }
}

/// The rule of the last descriptor of `steps`, if it needs one.
fn rule(limited: &RateLimit, steps: &[&Descriptor], domain: &str, names: &Names) -> Option<Rule> {
    let Amount::Limit(limit) = limited.amount else { return None };
    let attributes = attribute_names(steps.iter().map(|step| step.key.as_str()));
    let varying = attributes.into_iter().zip(steps).filter(|(_, step)| step.varies());
    let rule = Rule::new(&names.name(&path(domain, steps)), limit).key(varying.map(|(name, _)| name));
    // A hit beyond the limit is recorded, as the reference service does.
    let rule = if limited.records_over_limit { rule.record_denied() } else { rule };
    Some(if limited.shadow { rule.shadow() } else { rule })
}

fn path<'a>(domain: &'a str, steps: &[&'a Descriptor]) -> Path<'a> {
    let steps = steps.iter().map(|step| (step.key.as_str(), step.value.as_deref())).collect();
    Path { domain, steps }
}

/// A value with `*`. A star matches any number of characters.
#[derive(Clone, Debug)]
struct Pattern {
    /// The literal parts before, between and after the stars.
    parts: Vec<String>,
}

impl Pattern {
    fn new(value: &str) -> Self {
        Self { parts: value.split('*').map(Into::into).collect() }
    }

    /// The sort key: the length of the literal prefix, then of all literals.
    fn specificity(&self) -> (usize, usize) {
        (self.parts.first().map_or(0, String::len), self.parts.iter().map(String::len).sum())
    }

    fn matches(&self, value: &str) -> bool {
        let [first, between @ .., last] = self.parts.as_slice() else { return false };
        let inside = value.strip_prefix(first.as_str()).and_then(|rest| rest.strip_suffix(last.as_str()));
        let rest = inside.and_then(|inside| {
            // The first match leaves the most for the parts that follow.
            between.iter().try_fold(inside, |rest, part| Some(rest.split_once(part.as_str())?.1))
        });
        rest.is_some()
    }
}
