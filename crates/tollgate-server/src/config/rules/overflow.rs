//! Reads the overflows of rules: each names another rule, so that all rules are read first.

use std::ops::Range;

use tollgate::{Error, Rule, RuleSet, Store as _};

use super::super::source::Source;
use super::super::{ConfigError, nearest};
use crate::backend::Backend;

/// A rule's name, the rule that it overflows into, and where that is written.
type Overflow = (String, String, Range<usize>);

/// Sets the overflows of rules, and reports those that are invalid.
pub(super) fn read(
    source: &Source<'_>,
    rules: &mut [Rule],
    mut overflows: Vec<Overflow>,
    named: &[(String, Range<usize>)],
    store: &Backend,
) {
    overflows.retain(|(_, into, span)| {
        let is_known = named.iter().any(|(name, _)| name == into);
        if !is_known {
            let help = match nearest(into, named.iter().map(|(name, _)| name.as_str())) {
                Some(near) => format!("did you mean {near:?}?"),
                None => "name one of the rules in this file".into(),
            };
            let error = ConfigError::new(format!("there is no rule {into:?} to overflow into"), help);
            source.report(error.at(span.clone(), "unknown"));
        }
        // A rule that could not be read has been reported.
        is_known && rules.iter().any(|rule| rule.name().as_str() == into)
    });
    while let Err((rule, reason)) = check(rules, &overflows, store) {
        let Some(index) = overflows.iter().position(|(name, ..)| *name == rule) else { return };
        let (_, _, span) = overflows.remove(index);
        source.report(ConfigError::new("this overflow is invalid", reason).at(span, "here"));
    }
    for rule in rules {
        *rule = with_overflow(rule, &overflows);
    }
}

/// Checks all overflows together. The first that is invalid is returned, with the reason.
fn check(rules: &[Rule], overflows: &[Overflow], store: &Backend) -> Result<(), (String, String)> {
    let invalid = |error| match error {
        Error::InvalidRule { rule, field: "overflow", reason } => Err((rule, reason)),
        // Reported where the rules are read.
        _ => Ok(()),
    };
    let with_overflows: Vec<Rule> = rules.iter().map(|rule| with_overflow(rule, overflows)).collect();
    let accepted = with_overflows.iter().try_for_each(|rule| {
        let into = with_overflows.iter().find(|other| Some(other.name()) == rule.overflow_rule());
        into.map_or(Ok(()), |into| store.accepts_overflow(rule, into))
    });
    RuleSet::new(with_overflows).map(|_| ()).and(accepted).or_else(invalid)
}

fn with_overflow(rule: &Rule, overflows: &[Overflow]) -> Rule {
    match overflows.iter().find(|(name, ..)| *name == *rule.name()) {
        Some((_, into, _)) => rule.clone().overflow(into),
        None => rule.clone(),
    }
}
