//! Reads a file into a draft: its domain and descriptors.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::rc::Rc;

use super::amount::{self, Amount};
use super::values::{Flag, Text};
use crate::backend::Backend;
use crate::config::{At, ConfigError, Node, Section, Source};

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
    pub(super) records_over_limit: bool,
}

impl Descriptor {
    /// Whether each value has its own budget.
    pub(super) fn varies(&self) -> bool {
        !self.shared && self.value.as_ref().is_none_or(|value| value.contains('*'))
    }
}

/// Reads a file. After an error only the draft's domain is usable.
pub(super) fn read<'a>(source: &'a Source<'a>, root: &'a Node, store: &'a Backend) -> Option<Draft> {
    let mut fields = Section::of(source, root, "a file", "`domain: …` and `descriptors:` below it")?;
    let domain = text(&mut fields, "domain");
    if domain.is_none() {
        let span = fields.span_of("domain").or(fields.span.clone());
        let error =
            ConfigError::new("this file has no domain", "write `domain: …`, as Envoy's filter calls it");
        source.report(error.at(span, "here"));
    }
    let reader = Reader { source, store };
    let descriptors = reader.level(fields.items("descriptors"), 0);
    fields.finish();
    Some(Draft { domain: domain?, descriptors })
}

/// A string that is not empty.
fn text(fields: &mut Section<'_>, name: &'static str) -> Option<At<String>> {
    let At { value: Text(value), span } = fields.get(name)?;
    (!value.is_empty()).then_some(At { value, span })
}

fn flag(fields: &mut Section<'_>, name: &'static str) -> bool {
    fields.get_or(name, Flag(false)).0
}

struct Reader<'a> {
    source: &'a Source<'a>,
    store: &'a Backend,
}

impl<'a> Reader<'a> {
    /// Reads siblings with `varying` varying ancestors.
    fn level(&self, items: &'a [Rc<Node>], varying: usize) -> Vec<Descriptor> {
        let mut spans: HashMap<(String, Option<String>), Option<Range<usize>>> = HashMap::new();
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
                    self.source.report(error.at(span, "again").beside(first.get().clone(), "first here"));
                }
            }
        }
        level
    }

    fn descriptor(&self, item: &'a Node, varying: usize) -> Option<(Descriptor, Option<Range<usize>>)> {
        let mut fields = Section::of(self.source, item, "a descriptor", "`- key: …`")?;
        let key = text(&mut fields, "key");
        let value = text(&mut fields, "value");
        let shared = flag(&mut fields, "share_threshold");
        self.check(&fields, key.as_ref(), value.as_ref(), shared);
        let mut descriptor = Descriptor {
            key: key.as_ref().map(|key| key.value.clone()).unwrap_or_default(),
            value: value.as_ref().map(|value| value.value.clone()),
            shared,
            limited: None,
            children: Vec::new(),
        };
        let varying = varying.saturating_add(usize::from(descriptor.varies()));
        descriptor.limited = self.limited(&mut fields, varying);
        descriptor.children = self.level(fields.items("descriptors"), varying);
        // Settings for metrics and Envoy, which change no decision.
        fields.ignore("value_to_metric");
        fields.ignore("metadata");
        fields.finish();
        let span = value.map_or_else(|| key.as_ref().and_then(|key| key.span.clone()), |value| value.span);
        key.map(|_| (descriptor, span))
    }

    fn check(
        &self,
        fields: &Section<'_>,
        key: Option<&At<String>>,
        value: Option<&At<String>>,
        shared: bool,
    ) {
        match key {
            None => {
                let span = fields.span_of("key").or(fields.span.clone());
                let error = ConfigError::new("a descriptor has no key", "write `- key: …`");
                self.source.report(error.at(span, "here"));
            }
            Some(key) if key.value.contains('*') => {
                let help = "write the pattern into `value`, and the complete key here";
                let error = ConfigError::new("only a value can be a pattern", help);
                self.source.report(error.at(key.span.clone(), "this is a key"));
            }
            Some(_) => {}
        }
        if shared && !value.is_some_and(|value| value.value.contains('*')) {
            let help = "write a `*` into `value`, or remove `share_threshold`";
            let error = ConfigError::new("only the values of a pattern can share a limit", help);
            let span = fields.span_of("share_threshold").or(fields.span.clone());
            self.source.report(error.at(span, "there is no pattern"));
        }
    }

    fn limited(&self, fields: &mut Section<'a>, varying: usize) -> Option<RateLimit> {
        let detailed = flag(fields, "detailed_metric");
        // A quota selects among Envoy's backends, which is not supported: it counts, and never
        // denies.
        let shadow = flag(fields, "shadow_mode") | flag(fields, "quota_mode");
        let (mut limit, heading) =
            fields.nested("rate_limit", "`unit: …` and `requests_per_unit: …` below it")?;
        let name = text(&mut limit, "name").map(|name| name.value).unwrap_or_default();
        let replaces = self.replaces(&mut limit, &name);
        let amount = amount::read(&mut limit, &heading, self.store);
        // A setting that the reference does not have: it always records.
        let records_over_limit = limit.get_or("record_over_limit", Flag(true)).0;
        limit.finish();
        if varying > VARYING_MAX {
            let help = format!("give some of them a value; at most {VARYING_MAX} may vary");
            let error = ConfigError::new(format!("this limit is keyed by {varying} varying values"), help);
            self.source.report(error.at(heading, "this one"));
        }
        Some(RateLimit { amount: amount?, name, replaces, detailed, shadow, records_over_limit })
    }

    fn replaces(&self, limit: &mut Section<'a>, own_name: &str) -> Vec<String> {
        let name = |item: &'a Rc<Node>| {
            let mut fields = Section::of(self.source, item, "an item of `replaces`", "`- name: …`")?;
            let name = text(&mut fields, "name");
            let span = fields.span_of("name").or(fields.span.clone());
            fields.finish();
            let report = |error: ConfigError| self.source.report(error.at(span, "here"));
            match name {
                None => report(ConfigError::new(
                    "an item of `replaces` has no name",
                    "write `- name: …`, or remove it",
                )),
                Some(name) if name.value == own_name => {
                    report(ConfigError::new("a limit cannot replace itself", "name another one"));
                }
                Some(name) => return Some(name.value),
            }
            None
        };
        limit.items("replaces").iter().filter_map(name).collect()
    }
}
