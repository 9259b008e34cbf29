//! Likely mistakes in rules: valid settings that cover nothing, or not what was meant.

use std::collections::BTreeSet;

use tollgate::{CLIENT, Limit, Override, Rule, RuleSet};

use super::nearest;

/// The attributes of requests to `/check` and `/auth`. Headers are `header:NAME`.
pub(crate) const BUILT_IN: [&str; 4] = [CLIENT, "method", "host", "path"];

/// The attributes of Envoy's descriptors that have no name of their own.
const OF_DESCRIPTORS: [&str; 8] = [
    "domain",
    "remote_address",
    "masked_remote_address",
    "generic_key",
    "header_match",
    "query_match",
    "source_cluster",
    "destination_cluster",
];

/// Names that other limiters and servers use.
const OTHER_NAMES: [(&str, &str); 8] = [
    ("ip", CLIENT),
    ("address", CLIENT),
    ("user", CLIENT),
    ("uri", "path"),
    ("url", "path"),
    ("route", "path"),
    ("verb", "method"),
    ("hostname", "host"),
];

/// The overrides of a rule that are compared with each other: a rule may have one per customer.
const COMPARED_MAX: usize = 1_000;

/// The warnings about rules. `declared` lists the attributes that callers send; `grpc` says whether
/// Envoy's descriptors may supply some.
pub(super) fn of(rules: &RuleSet, declared: &[String], grpc: bool) -> Vec<String> {
    let listed = || rules.rules().iter().filter(|rule| !rule.is_on_demand() || rule.is_overflow());
    let mut warnings = Vec::new();
    let mut known: BTreeSet<&str> = BUILT_IN.into_iter().chain(declared.iter().map(String::as_str)).collect();
    if grpc {
        known.extend(OF_DESCRIPTORS);
    }
    for rule in listed() {
        let name = rule.name();
        let overrides = || rules.overrides().filter(|other| other.rule() == name);
        let conditions = || rule.matches().chain(overrides().flat_map(Override::matches));
        let counted = rule.key_attributes().iter().map(String::as_str);
        for attribute in counted.chain(conditions().map(|(attribute, _)| attribute)) {
            // Each attribute is reported once.
            if !is_header(attribute) && known.insert(attribute) {
                warnings.push(unsupplied(&name, attribute));
            }
        }
        for (attribute, value) in
            conditions().flat_map(|(name, values)| values.into_iter().map(move |v| (name, v)))
        {
            if value.strip_suffix('*').unwrap_or(&value).contains('*') {
                warnings.push(format!(
                    "rule {:?}: {attribute} = {value:?} takes a * literally unless it is the last character; \
                     match a beginning instead",
                    name.as_str()
                ));
            }
        }
        warnings.extend(of_overrides(rule, &overrides().collect::<Vec<_>>()));
        let mut limits = std::iter::once(rule.limits()).chain(overrides().map(Override::limits));
        let has_slots = limits.any(|limits| limits.iter().any(Limit::is_concurrent));
        if has_slots && rule.matches().next().is_none() {
            warnings.push(format!(
                "rule {:?} limits how many requests are under way: POST /v1/acquire and TOLL.ACQUIRE take its \
                 slots, and every other check that it covers is refused; match on an attribute that only \
                 callers of those send",
                name.as_str()
            ));
        }
    }
    warnings
}

fn is_header(attribute: &str) -> bool {
    attribute.strip_prefix("header:").is_some_and(|name| !name.is_empty())
}

/// The attribute that was probably meant.
pub(crate) fn meant(attribute: &str) -> Option<&'static str> {
    let other = OTHER_NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(attribute));
    other.map(|(_, meant)| *meant).or_else(|| nearest(attribute, BUILT_IN))
}

fn unsupplied(rule: &str, attribute: &str) -> String {
    let meant = match meant(attribute) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None if attribute.contains('-') => format!("did you mean \"header:{attribute}\"?"),
        None => "check its spelling.".into(),
    };
    format!(
        "rule {rule:?}: no request to /check or /auth has the attribute {attribute:?}; {meant} If your callers \
         send it, list it in `attributes` under [server]"
    )
}

/// The warnings about the overrides of a rule, in order.
fn of_overrides(rule: &Rule, overrides: &[&Override]) -> Vec<String> {
    let mut warnings = Vec::new();
    let name = rule.name();
    let matched: Vec<Condition<'_>> = rule.matches().collect();
    let overrides = overrides.iter().take(COMPARED_MAX);
    let conditions_of: Vec<Vec<Condition<'_>>> =
        overrides.clone().map(|other| other.matches().collect()).collect();
    for (index, (other, conditions)) in overrides.zip(&conditions_of).enumerate() {
        let written = super::summary::conditions(other.matches());
        let excluded = conditions.iter().find(|one| matched.iter().any(|of_rule| are_disjoint(one, of_rule)));
        if let Some((attribute, _)) = excluded {
            warnings.push(format!(
                "rule {:?}: the override where {written} never applies, because the rule covers no such \
                 {attribute}; change one of them",
                name.as_str()
            ));
        }
        let (before, after) = (rule.limits().len(), other.limits().len());
        if after < before {
            warnings.push(format!(
                "rule {:?}: the override where {written} replaces all {before} limits of the rule by {after}; to \
                 replace one and keep the others, write limit = {{ \"{}\" = \"…\" }}",
                name.as_str(),
                rule.limits().first().map(ToString::to_string).unwrap_or_default()
            ));
        }
        if conditions_of.iter().take(index).any(|earlier| follows(earlier, conditions)) {
            warnings.push(format!(
                "rule {:?}: the override where {written} never applies, because an earlier one matches the same \
                 requests; put it first",
                name.as_str()
            ));
        }
    }
    warnings
}

type Condition<'a> = (&'a str, Vec<String>);

/// Whether no request meets both conditions.
fn are_disjoint(one: &Condition<'_>, other: &Condition<'_>) -> bool {
    let overlap = |a: &str, b: &str| implies(a, b) || implies(b, a);
    one.0 == other.0 && !one.1.iter().any(|a| other.1.iter().any(|b| overlap(a, b)))
}

/// Whether every request that meets `later` meets `earlier` too.
fn follows(earlier: &[Condition<'_>], later: &[Condition<'_>]) -> bool {
    earlier.iter().all(|(attribute, values)| {
        let narrower = later.iter().filter(|(name, _)| name == attribute);
        narrower.into_iter().any(|(_, listed)| listed.iter().all(|b| values.iter().any(|a| implies(b, a))))
    })
}

/// Whether every value that `narrow` matches is one that `wide` matches.
fn implies(narrow: &str, wide: &str) -> bool {
    match wide.strip_suffix('*') {
        Some(stem) => narrow.strip_suffix('*').unwrap_or(narrow).starts_with(stem),
        None => narrow == wide,
    }
}
