//! What a file says, before any of it is put to use: a domain and its descriptors.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::rc::Rc;

use super::amount::{self, Amount};
use super::fields::{At, ErrorList, Fields};
use super::yaml::Node;
use crate::backend::Backend;
use crate::config::ConfigError;

/// The most attributes that a rule can count by.
const VARYING_MAX: usize = 8;

/// One file.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) domain: At<String>,
    pub(super) descriptors: Vec<Descriptor>,
}

/// A key, a value if it is about one or a few, and what holds for it.
#[derive(Debug)]
pub(super) struct Descriptor {
    pub(super) key: String,
    /// One value, or a pattern with `*` in it; `None` for all values.
    pub(super) value: Option<String>,
    /// Whether all values of a pattern share a budget.
    shared: bool,
    pub(super) limited: Option<RateLimit>,
    pub(super) children: Vec<Self>,
}

/// A `rate_limit`, and the settings beside it.
#[derive(Debug)]
pub(super) struct RateLimit {
    pub(super) amount: Amount,
    pub(super) name: String,
    pub(super) replaces: Vec<String>,
    pub(super) detailed: bool,
    pub(super) shadow: bool,
}

impl Descriptor {
    /// Whether each value that it is for has a budget of its own.
    pub(super) fn varies(&self) -> bool {
        !self.shared && self.value.as_ref().is_none_or(|value| value.contains('*'))
    }
}

/// Reads a file. What is wrong with it is noted on the page; then the draft is of no use but for
/// its domain.
pub(super) fn read(errors: &ErrorList, root: &Node, store: &Backend) -> Option<Draft> {
    let mut fields = Fields::of(errors, root, "a file", "`domain: …` and `descriptors:` below it")?;
    let domain = fields.text("domain").filter(|domain| !domain.value.is_empty());
    if domain.is_none() {
        let place = fields.span_of("domain").unwrap_or(fields.span.clone());
        let error =
            ConfigError::new("this file has no domain", "write `domain: …`, as Envoy's filter calls it");
        errors.report(error.at(place, "here"));
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
    /// Descriptors that stand beside one another, below `varying` that vary.
    fn level(&self, items: &'a [Rc<Node>], varying: usize) -> Vec<Descriptor> {
        let mut places: HashMap<(String, Option<String>), Range<usize>> = HashMap::new();
        let mut level = Vec::new();
        for (descriptor, span) in items.iter().filter_map(|item| self.descriptor(item, varying)) {
            match places.entry((descriptor.key.clone(), descriptor.value.clone())) {
                Entry::Vacant(free) => {
                    free.insert(span);
                    level.push(descriptor);
                }
                Entry::Occupied(first) => {
                    let of = descriptor
                        .value
                        .map(|value| format!(" with the value {value:?}"))
                        .unwrap_or_default();
                    let message =
                        format!("the key {:?}{of} is there twice at the same level", descriptor.key);
                    let error = ConfigError::new(message, "put what belongs to both under one of them");
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
        // Names of metrics, and what Envoy is to be told besides: neither changes a decision.
        fields.ignore("value_to_metric");
        fields.ignore("metadata");
        fields.finish();
        let span = value.map_or_else(|| key.as_ref().map(|key| key.span.clone()), |value| Some(value.span));
        Some((descriptor, span.filter(|_| key.is_some())?))
    }

    fn check(&self, fields: &Fields<'_>, key: Option<&At<&str>>, value: Option<&At<&str>>, shared: bool) {
        match key {
            None => {
                let place = fields.span_of("key").unwrap_or(fields.span.clone());
                let error = ConfigError::new("a descriptor has no key", "write `- key: …`");
                self.errors.report(error.at(place, "here"));
            }
            Some(key) if key.value.contains('*') => {
                let help = "write the pattern into `value`, and the whole key here";
                let error = ConfigError::new("only a value can be a pattern", help);
                self.errors.report(error.at(key.span.clone(), "this is a key"));
            }
            Some(_) => {}
        }
        if shared && !value.is_some_and(|value| value.value.contains('*')) {
            let help = "write a `*` into `value`, or leave `share_threshold` out";
            let error = ConfigError::new("only the values of a pattern can share a limit", help);
            let place = fields.span_of("share_threshold").unwrap_or(fields.span.clone());
            self.errors.report(error.at(place, "there is no pattern"));
        }
    }

    fn limited(&self, fields: &mut Fields<'a>, varying: usize) -> Option<RateLimit> {
        let detailed = fields.flag("detailed_metric");
        // What a quota is for, choosing among backends, is not decided here: it counts, and never denies.
        let shadow = fields.flag("shadow_mode") | fields.flag("quota_mode");
        let (mut limit, heading) =
            fields.fields("rate_limit", "`unit: …` and `requests_per_unit: …` below it")?;
        let name = limit.text("name").map_or("", |name| name.value);
        let replaces = self.replaces(&mut limit, name);
        let amount = amount::read(&mut limit, &heading, self.store);
        limit.finish();
        if varying > VARYING_MAX {
            let help = format!("give some of them a value; {VARYING_MAX} without one are the most");
            let error = ConfigError::new(format!("this limit would count by {varying} values at once"), help);
            self.errors.report(error.at(heading, "this one"));
        }
        Some(RateLimit { amount: amount?, name: name.into(), replaces, detailed, shadow })
    }

    fn replaces(&self, limit: &mut Fields<'a>, own: &str) -> Vec<String> {
        let name = |item: &'a Rc<Node>| {
            let mut fields = Fields::of(self.errors, item, "what is replaced", "`- name: …`")?;
            let name = fields.text("name").filter(|name| !name.value.is_empty());
            let place = fields.span_of("name").unwrap_or(fields.span.clone());
            fields.finish();
            let told = |error: ConfigError| self.errors.report(error.at(place, "here"));
            match name {
                None => told(ConfigError::new(
                    "nothing is named to replace",
                    "write `- name: …`, or leave it out",
                )),
                Some(name) if name.value == own => {
                    told(ConfigError::new("a limit cannot replace itself", "name another one"));
                }
                Some(name) => return Some(name.value.into()),
            }
            None
        };
        limit.list("replaces").iter().filter_map(name).collect()
    }
}
