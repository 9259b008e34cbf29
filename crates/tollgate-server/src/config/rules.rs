//! Reads rules and overrides.

use std::ops::Range;

use tollgate::{CLIENT, Error, FailurePolicy, Limit, MINUTE, Override, Rule, RuleSet, Store as _};

use super::reader::{At, Section};
use super::source::Source;
use super::store::{Store, share};
use super::tree::{Node, Value};
use super::values::Percentage;
use super::{ConfigError, POLICIES, nearest};
use crate::backend::Backend;
use crate::envoy::Domains;
use crate::inline;

mod overflow;

/// The limit per client of a server without rules.
const DEFAULT: Limit = Limit::fixed_window(10, MINUTE);

/// The extent of a file. A truncated or half-written file has less than before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Extent {
    /// An empty file.
    Empty,
    /// Settings without rules.
    Settings,
    /// At least one rule.
    Rules,
}

impl Extent {
    pub(super) fn of(root: &Node) -> Self {
        let Value::Map(pairs) = &root.value else { return Self::Empty };
        let is_rule = |key: &Node| matches!(&key.value, Value::Scalar(key) if key.text == "rule");
        let has_items = |node: &Node| matches!(&node.value, Value::List(items) if !items.is_empty());
        if pairs.iter().any(|(key, value)| is_rule(key) && has_items(value)) {
            Self::Rules
        } else if pairs.is_empty() {
            Self::Empty
        } else {
            Self::Settings
        }
    }
}

/// The settings that rules depend on.
pub(super) struct Context<'a> {
    pub(super) store: &'a Backend,
    /// The settings of `store`.
    pub(super) settings: &'a Store,
    pub(super) domains: &'a Domains,
    /// The failure policy of rules that set none.
    pub(super) policy: FailurePolicy,
}

/// Reads all rules and overrides, and reports their errors.
pub(super) fn read(
    source: &Source<'_>,
    root: &mut Section<'_>,
    limit: Option<Limit>,
    context: &Context<'_>,
) -> RuleSet {
    let store = context.store;
    let sections = root.sections("rule");
    if let (Some(_), Some((_, heading))) = (limit, sections.first()) {
        let help = "remove --limit, or put the limit into the file";
        let error = ConfigError::new("--limit is for a server without rules, but the file has rules", help);
        source.report(error.at(heading.clone(), "the first rule"));
    }
    let is_default = sections.is_empty();
    let mut named: Vec<(String, Range<usize>)> = Vec::new();
    let (mut rules, mut overflows) = (Vec::new(), Vec::new());
    for (mut section, heading) in sections {
        let name = section.get::<String>("name");
        if let (Some(rule), Some(into)) = (&name, section.get::<String>("overflow")) {
            overflows.push((rule.value.clone(), into.value, into.span.unwrap_or(heading.clone())));
        }
        let mut rule = rule(source, &mut section, &heading, context, name.as_ref());
        if let Some(At { value: name, span }) = name {
            let span = span.unwrap_or(heading);
            if inline::RULES.contains(&name.as_str()) {
                let error =
                    ConfigError::new(format!("the rule name {name:?} is reserved"), "choose another name");
                source.report(error.at(span.clone(), "here"));
                rule = None;
            }
            if let Some((_, first)) = named.iter().find(|(known, _)| *known == name) {
                let help = "a name identifies the rule's counts; rename one";
                let error = ConfigError::new(format!("two rules are called {name:?}"), help);
                source.report(error.at(span.clone(), "again").beside(first.clone(), "first here"));
                rule = None;
            }
            named.push((name, span));
        }
        section.finish();
        rules.extend(rule);
    }
    if is_default {
        let limit = limit.unwrap_or(DEFAULT);
        if let Err(error) = store.accepts(&limit) {
            source.report(ConfigError::new(format!("the store cannot keep {limit}"), error.to_string()));
        }
        rules.push(Rule::new("per-client", limit).key([CLIENT]).on_store_error(context.policy));
        named.push(("per-client".into(), 0..0));
    }
    overflow::read(source, &mut rules, overflows, &named, store);
    let overrides = root.sections("override").into_iter().filter_map(|(mut section, heading)| {
        let replacement = replacement(source, &mut section, &heading, (&named, &rules), store);
        section.finish();
        replacement
    });
    let overrides: Vec<Override> = overrides.collect();
    rules.extend(domain_rules(source, &rules, context));
    // Each rule and override has been validated by itself.
    let rules = RuleSet::new(rules).unwrap_or_default();
    rules.clone().with_overrides(overrides).unwrap_or(rules)
}

/// The rules of the rate limit service's YAML, which only descriptors select.
fn domain_rules(source: &Source<'_>, others: &[Rule], context: &Context<'_>) -> Vec<Rule> {
    for rule in context.domains.rules().filter(|rule| {
        others.iter().any(|other| other.name() == rule.name())
            || inline::RULES.contains(&rule.name().as_str())
    }) {
        let error = format!("a rule and a descriptor are both called {:?}", rule.name());
        source.report(ConfigError::new(error, "rename the rule, or the domain"));
    }
    // The rate limit service compares all values as they are.
    let of_domain = |rule: Rule| rule.on_demand().raw_path().on_store_error(context.policy);
    context.domains.rules().cloned().map(of_domain).collect()
}

fn rule(
    source: &Source<'_>,
    section: &mut Section<'_>,
    heading: &Range<usize>,
    context: &Context<'_>,
    name: Option<&At<String>>,
) -> Option<Rule> {
    let limits = limits(section, heading, context.store);
    let matches = section.pairs("match");
    let key = section.list::<String>("key").unwrap_or_default();
    let cost = section.get_or("cost", 1);
    let shadow = section.get_or("shadow", false);
    let record_denied = section.get_or("record_denied", false);
    let warn = section.get::<Percentage>("warn");
    let share = share(section, "share").filter(|share| *share < 1.0);
    let policy = section.choice("on_store_error", &POLICIES).map_or(context.policy, |at| at.value);
    if name.is_none() && section.span_of("name").is_none() {
        let error = ConfigError::new(
            "a rule has no name",
            "add `name = \"…\"`, which identifies its counts and metrics",
        );
        source.report(error.at(heading.clone(), "this one"));
    }
    let mut rule = Rule::new(&name?.value, limits?)
        .key(key.into_iter().map(|at| at.value))
        .cost(cost)
        .on_store_error(policy);
    for (attribute, values) in matches {
        rule = rule.matching(attribute, values.as_slice());
    }
    if shadow {
        rule = rule.shadow();
    }
    if record_denied {
        rule = rule.record_denied();
    }
    if let Some(At { value: Percentage(percent), .. }) = warn {
        rule = rule.warn_at(percent);
    }
    if let Some(share) = share {
        rule = rule.max_keys(context.settings.keys(share));
    }
    checked(source, section, heading, || RuleSet::new([rule.clone()]).map(|_| rule))
}

fn replacement(
    source: &Source<'_>,
    section: &mut Section<'_>,
    heading: &Range<usize>,
    (named, rules): (&[(String, Range<usize>)], &[Rule]),
    store: &Backend,
) -> Option<Override> {
    let rule = section.get::<String>("rule");
    let limits = match section.is_table("limit") {
        true => {
            let named =
                rules.iter().find(|known| rule.as_ref().is_some_and(|rule| *known.name() == *rule.value));
            replaced_limits(section, heading, named, store)
        }
        false => limits(section, heading, store),
    };
    let matches = section.pairs("match");
    let Some(At { value: rule, span }) = rule else {
        if section.span_of("rule").is_none() {
            let error = ConfigError::new(
                "an override names no rule",
                "add `rule = \"…\"`: the rule whose limit it replaces",
            );
            source.report(error.at(heading.clone(), "this one"));
        }
        return None;
    };
    if !named.iter().any(|(name, _)| *name == rule) {
        let help = match nearest(&rule, named.iter().map(|(name, _)| name.as_str())) {
            Some(near) => format!("did you mean {near:?}?"),
            None => "name one of the rules in this file".into(),
        };
        let error = ConfigError::new(format!("there is no rule {rule:?} to override"), help);
        source.report(error.at(span.unwrap_or(heading.clone()), "unknown"));
        return None;
    }
    let mut replacement = Override::new(&rule, limits?);
    for (attribute, values) in matches {
        replacement = replacement.matching(attribute, values.as_slice());
    }
    checked(source, section, heading, || {
        let rules = RuleSet::new([Rule::new(&rule, DEFAULT)])?;
        rules.with_overrides([replacement.clone()]).map(|_| replacement)
    })
}

/// The limits of a rule or an override, each accepted by the store.
fn limits(section: &mut Section<'_>, heading: &Range<usize>, store: &Backend) -> Option<Vec<Limit>> {
    let limits = section.list::<Limit>("limit");
    if section.span_of("limit").is_none() {
        let error = ConfigError::new("there is no limit", "add a limit, such as `limit = \"100/s\"`");
        section.report(error.at(heading.clone(), "here"));
    }
    for limit in limits.iter().flatten() {
        if let Err(error) = store.accepts(&limit.value) {
            section.report(
                ConfigError::new(format!("the store cannot keep {}", limit.value), error.to_string())
                    .at(limit.span.clone(), "here"),
            );
        }
    }
    Some(limits?.into_iter().map(|limit| limit.value).collect())
}

/// The limits of a rule, of which a table replaces some: `{ "100/day" = "1000/day" }`.
fn replaced_limits(
    section: &mut Section<'_>,
    heading: &Range<usize>,
    rule: Option<&Rule>,
    store: &Backend,
) -> Option<Vec<Limit>> {
    let pairs = section.pairs("limit");
    let rule = rule?;
    let span = section.span_of("limit").unwrap_or(heading.clone());
    let invalid = |message: String, help: String| {
        section.report(ConfigError::new(message, help).at(span.clone(), "here"));
    };
    let of_rule = rule.limits();
    let (mut limits, mut valid) = (of_rule.as_slice().to_vec(), true);
    for (before, after) in pairs {
        let read = (before.parse::<Limit>(), after.join(" ").parse::<Limit>());
        let index = read.0.as_ref().ok().and_then(|before| of_rule.iter().position(|limit| limit == before));
        match (index.and_then(|index| limits.get_mut(index)), read) {
            (_, (Err(error), _) | (_, Err(error))) => invalid("a limit is invalid".into(), error.to_string()),
            (None, (Ok(before), _)) => {
                let has: Vec<String> = of_rule.iter().map(|limit| format!("\"{limit}\"")).collect();
                let help = format!("it has {}", has.join(" and "));
                invalid(
                    format!("the rule {:?} has no limit \"{before}\" to replace", rule.name().as_str()),
                    help,
                );
            }
            (Some(limit), (_, Ok(after))) => match store.accepts(&after) {
                Ok(()) => {
                    *limit = after;
                    continue;
                }
                Err(error) => invalid(format!("the store cannot keep {after}"), error.to_string()),
            },
        }
        valid = false;
    }
    valid.then_some(limits)
}

/// The result of `build`; its error is reported at the field it names.
fn checked<T>(
    source: &Source<'_>,
    section: &Section<'_>,
    heading: &Range<usize>,
    build: impl FnOnce() -> Result<T, Error>,
) -> Option<T> {
    build()
        .map_err(|error| {
            let (field, reason) = match &error {
                Error::InvalidRule { field, reason, .. } => (*field, reason.clone()),
                other => ("limit", other.to_string()),
            };
            let field = if field == "override" { "match" } else { field };
            let span = section.span_of(field).unwrap_or(heading.clone());
            let error = ConfigError::new(format!("this {field} is invalid"), reason);
            source.report(if span.is_empty() { error } else { error.at(span, "here") });
        })
        .ok()
}
