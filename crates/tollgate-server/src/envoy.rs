//! The configuration of Envoy's reference rate limit service, read as that service reads it.
//!
//! A domain is a tree of descriptors. A request's descriptor walks down from its root, one entry a
//! level: to the child of the same key and value, or to one whose value is a pattern that fits, or
//! to the one of the key alone. Where it ends is what it is limited by; if it ends too early or
//! would have to go on, it is not limited. Each limit is a [`Rule`] that counts by the values that
//! vary along its path, so that all of it can be decided by the same limiter as everything else.
//!
//! Two things are not as in the reference. Where several patterns fit, the one with the longest
//! beginning counts, whatever the order of the file. And a key is a key and a value is a value: the
//! reference joins them with `_`, so that there a key `a_b` is also the key `a` with the value `b`.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use tollgate::{Rule, RuleName};

use crate::backend::Backend;
use crate::config::{ConfigError, ConfigErrors};

mod amount;
mod descriptors;
mod fields;
mod files;
mod names;
#[cfg(test)]
mod tests;
mod tree;
mod yaml;

use descriptors::Draft;
use fields::ErrorList;
pub(crate) use files::files;
use names::Names;
pub(crate) use names::attribute_names;
use tree::{Compiled, Level};

/// The domains that YAML files of the reference service define.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domains {
    domains: HashMap<String, Domain>,
    compiled: Compiled,
}

/// One domain's descriptors.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    root: Level,
}

/// What a descriptor is limited by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matched {
    pub(crate) verdict: Verdict,
    /// What others replace it by; may be empty.
    pub(crate) name: String,
    /// The names of those that do not count in a request where this one does.
    pub(crate) replaces: Vec<String>,
    /// Whether its metrics are to tell all values.
    pub(crate) detailed: bool,
    /// Whether it only watches. The rule then does as well.
    pub(crate) shadow: bool,
}

/// How much a descriptor may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// As much as it likes.
    Unlimited,
    /// `requests_per_unit: 0` of this unit, which the reference takes and which denies everything.
    DenyAll(Duration),
    /// As much as this rule says.
    Rule(RuleName),
}

impl Domains {
    /// Reads a file, or every `*.yaml` and `*.yml` of a directory or of its directory `config`.
    ///
    /// # Errors
    /// Everything that is wrong, file by file.
    pub(crate) fn read(path: &Path, store: &Backend) -> Result<Self, Vec<ConfigErrors>> {
        let sources = files::sources(path).map_err(|errors| vec![errors])?;
        let mut wrong = Vec::new();
        let mut drafts: Vec<(String, Draft)> = Vec::new();
        for (file, text) in sources {
            let text = match text {
                Ok(text) => text,
                Err(reason) => {
                    wrong.push(ConfigErrors::sentence(file, reason));
                    continue;
                }
            };
            let errors = ErrorList::default();
            let draft = draft(&errors, &file, &text, store);
            if let Some(draft) = &draft
                && let Some((other, _)) =
                    drafts.iter().find(|(_, known)| known.domain.value == draft.domain.value)
            {
                let help = format!("put all of it into one file: the other is {other}");
                let error =
                    ConfigError::new(format!("another file has the domain {:?}", draft.domain.value), help);
                errors.report(error.at(draft.domain.span.clone(), "again"));
            }
            drafts.extend(draft.map(|draft| (file.clone(), draft)));
            let errors = errors.errors.take();
            if !errors.is_empty() {
                wrong.push(ConfigErrors { file, text, errors, elsewhere: Vec::new() }.sorted());
            }
        }
        if wrong.is_empty() { Ok(Self::of(drafts.iter().map(|(_, draft)| draft))) } else { Err(wrong) }
    }

    /// The texts that would be read, one after the other: to see whether anything changed.
    pub(crate) fn text(path: &Path) -> String {
        let told =
            |(file, text): files::Source| format!("# {file}\n{}\n", text.unwrap_or_else(|reason| reason));
        match files::sources(path) {
            Ok(sources) => sources.into_iter().map(told).collect(),
            Err(errors) => errors.to_string(),
        }
    }

    /// All rules, for a [`RuleSet`](tollgate::RuleSet).
    pub(crate) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.compiled.rules.iter()
    }

    /// The names of descriptors that need no rule: all of it is denied, or nothing.
    pub(crate) fn without_rule(&self) -> impl Iterator<Item = &(String, Verdict)> {
        self.compiled.without_rule.iter()
    }

    pub(crate) fn get(&self, domain: &str) -> Option<&Domain> {
        self.domains.get(domain)
    }

    /// A domain that had limits in `before` and is still there, without any.
    pub(crate) fn emptied_since<'a>(&self, before: &'a Self) -> Option<&'a str> {
        let emptied = |name: &str| self.get(name).is_some_and(|domain| !domain.root.limits());
        let limited = before.domains.iter().filter(|(_, domain)| domain.root.limits());
        limited.map(|(name, _)| name.as_str()).find(|name| emptied(name))
    }

    fn of<'a>(drafts: impl Iterator<Item = &'a Draft> + Clone) -> Self {
        let mut names = Names::default();
        for draft in drafts.clone() {
            let mut path = names::Path { domain: &draft.domain.value, steps: Vec::new() };
            tree::note(&draft.descriptors, &mut path, &mut names);
        }
        let mut compiled = Compiled::default();
        let domain = |draft: &'a Draft| {
            let name = &draft.domain.value;
            let root = Level::compile(&draft.descriptors, &mut Vec::new(), name, &names, &mut compiled);
            (name.clone(), Domain { root })
        };
        Self { domains: drafts.map(domain).collect(), compiled }
    }
}

impl Domain {
    /// What the service would limit a descriptor of these entries by.
    pub(crate) fn find<'a>(&self, entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<&Matched> {
        self.root.find(entries)
    }
}

/// What a file says, as far as it can be told.
fn draft(errors: &ErrorList, file: &str, text: &str, store: &Backend) -> Option<Draft> {
    match yaml::parse(text) {
        Ok(Some(root)) => descriptors::read(errors, &root, store),
        Ok(None) => {
            errors
                .report(ConfigError::new(format!("{file} is empty"), "write `domain: …` and `descriptors:`"));
            None
        }
        Err(error) => {
            errors.report(*error);
            None
        }
    }
}
