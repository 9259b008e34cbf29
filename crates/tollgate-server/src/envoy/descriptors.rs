//! Reads a file into a draft: its domain and descriptors.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::rc::Rc;

use super::amount::{self, Amount};
use super::fields::{At, ErrorList, Fields};
use super::yaml::Node;
use crate::backend::Backend;
use crate::config::ConfigError;

/// The most key attributes of a rule.
const VARYING_MAX: usize = 8;

/// A parsed file.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) domain: At<String>,
    pub(super) descriptors: Vec<Descriptor>,
}

/// A key, an optional value or pattern, its limit and its children.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) key: String,
    /// A value, or a pattern with `*`; `None` for all values.
    pub(super) value: Option<String>,
    /// Whether all values of the pattern share a budget.
    shared: bool,
    pub(super) limited: Option<RateLimit>,
    pub(super) children: Vec<Self>,
}

/// A `rate_limit` and the settings beside it.
#[derive(Debug)]
pub(super) struct RateLimit {
    pub(super) amount: Amount,
    pub(super) name: String,
    pub(super) replaces: Vec<String>,
    pub(super) detailed: bool,
    pub(super) shadow: bool,
}

impl Descriptor {
    /// Whether each value has its own budget.
    pub(super) fn varies(&self) -> bool {
        !self.shared && self.value.as_ref().is_none_or(|value| value.contains('*'))
    }
}

/// Reads a file. After an error only the draft's domain is usable.
pub(super) fn read(errors: &ErrorList, root: &Node, store: &Backend) -> Option<Draft> {
    let mut fields = Fields::of(errors, root, "a file", "`domain: …` and `descriptors:` below it")?;
    let domain = fields.text("domain").filter(|domain| !domain.value.is_empty());
    if domain.is_none() {
        let span = fields.span_of("domain").unwrap_or(fields.span.clone());
        let error =
            ConfigError::new("this file has no domain", "write `domain: …`, as Envoy's filter calls it");
        errors.report(error.at(span, "here"));
    }
    let reader = Reader { errors, store };
    let descriptors = reader.level(fields.list("descriptors"), 0);
    fields.finish();
    let At { value, span } = domain?;
    Some(Draft { domain: At { value: value.into(), span }, descriptors })
}

struct Reader<'a> {
    errors: &'a ErrorList,
    store: &'a Backend,
}

impl<'a> Reader<'a> {
    /// Reads siblings with `varying` varying ancestors.
    fn level(&self, items: &'a [Rc<Node>], varying: usize) -> Vec<Descriptor> {
        let mut spans: HashMap<(String, Option<String>), Range<usize>> = HashMap::new();
        let mut level = Vec::new();
        for (descriptor, span) in items.iter().filter_map(|item| self.descriptor(item, varying)) {
            match spans.entry((descriptor.key.clone(), descriptor.value.clone())) {
                Entry::Vacant(free) => {
                    free.insert(span);
                    level.push(descriptor);
                }
                Entry::Occupied(first) => {
                    let of = descriptor
                        .value
                        .map(|value| format!(" with the value {value:?}"))
                        .unwrap_or_default();
                    let message = format!("the key {:?}{of} occurs twice at the same level", descriptor.key);
                    let error = ConfigError::new(message, "merge the two");
                    self.errors.report(error.at(span, "again").beside(first.get().clone(), "first here"));
                }
            }
        }
        level
    }

    fn descriptor(&self, item: &'a Node, varying: usize) -> Option<(Descriptor, Range<usize>)> {
        let mut fields = Fields::of(self.errors, item, "a descriptor", "`- key: …`")?;
        let key = fields.text("key").filter(|key| !key.value.is_empty());
        let value = fields.text("value").filter(|value| !value.value.is_empty());
        let shared = fields.flag("share_threshold");
        self.check(&fields, key.as_ref(), value.as_ref(), shared);
        let mut descriptor = Descriptor {
            key: key.as_ref().map_or("", |key| key.value).into(),
            value: value.as_ref().map(|value| value.value.into()),
            shared,
            limited: None,
            children: Vec::new(),
        };
        let varying = varying.saturating_add(usize::from(descriptor.varies()));
        descriptor.limited = self.limited(&mut fields, varying);
        descriptor.children = self.level(fields.list("descriptors"), varying);
        // Settings for metrics and Envoy, which change no decision.
        fields.ignore("value_to_metric");
        fields.ignore("metadata");
        fields.finish();
        let span = value.map_or_else(|| key.as_ref().map(|key| key.span.clone()), |value| Some(value.span));
        Some((descriptor, span.filter(|_| key.is_some())?))
    }

    fn check(&self, fields: &Fields<'_>, key: Option<&At<&str>>, value: Option<&At<&str>>, shared: bool) {
        match key {
            None => {
                let span = fields.span_of("key").unwrap_or(fields.span.clone());
                let error = ConfigError::new("a descriptor has no key", "write `- key: …`");
                self.errors.report(error.at(span, "here"));
            }
            Some(key) if key.value.contains('*') => {
                let help = "write the pattern into `value`, and the complete key here";
                let error = ConfigError::new("only a value can be a pattern", help);
                self.errors.report(error.at(key.span.clone(), "this is a key"));
            }
            Some(_) => {}
        }
        if shared && !value.is_some_and(|value| value.value.contains('*')) {
            let help = "write a `*` into `value`, or remove `share_threshold`";
            let error = ConfigError::new("only the values of a pattern can share a limit", help);
            let span = fields.span_of("share_threshold").unwrap_or(fields.span.clone());
            self.errors.report(error.at(span, "there is no pattern"));
        }
    }

    fn limited(&self, fields: &mut Fields<'a>, varying: usize) -> Option<RateLimit> {
        let detailed = fields.flag("detailed_metric");
        // A quota selects among Envoy's backends, which is not supported: it counts, and never
        // denies.
        let shadow = fields.flag("shadow_mode") | fields.flag("quota_mode");
        let (mut limit, heading) =
            fields.fields("rate_limit", "`unit: …` and `requests_per_unit: …` below it")?;
        let name = limit.text("name").map_or("", |name| name.value);
        let replaces = self.replaces(&mut limit, name);
        let amount = amount::read(&mut limit, &heading, self.store);
        limit.finish();
        if varying > VARYING_MAX {
            let help = format!("give some of them a value; at most {VARYING_MAX} may vary");
            let error = ConfigError::new(format!("this limit is keyed by {varying} varying values"), help);
            self.errors.report(error.at(heading, "this one"));
        }
        Some(RateLimit { amount: amount?, name: name.into(), replaces, detailed, shadow })
    }

    fn replaces(&self, limit: &mut Fields<'a>, own_name: &str) -> Vec<String> {
        let name = |item: &'a Rc<Node>| {
            let mut fields = Fields::of(self.errors, item, "an item of `replaces`", "`- name: …`")?;
            let name = fields.text("name").filter(|name| !name.value.is_empty());
            let span = fields.span_of("name").unwrap_or(fields.span.clone());
            fields.finish();
            let report = |error: ConfigError| self.errors.report(error.at(span, "here"));
            match name {
                None => report(ConfigError::new(
                    "an item of `replaces` has no name",
                    "write `- name: …`, or remove it",
                )),
                Some(name) if name.value == own_name => {
                    report(ConfigError::new("a limit cannot replace itself", "name another one"));
                }
                Some(name) => return Some(name.value.into()),
            }
            None
        };
        limit.list("replaces").iter().filter_map(name).collect()
    }
}
