//! The YAML configuration of Envoy's reference rate limit service.
//!
//! A domain is a tree of descriptors. A request's descriptor walks down from the root, one entry
//! per level: to the child with the same key and value, else to one whose value is a matching
//! pattern, else to the child with the key alone. The node where it ends has its limit; a
//! descriptor that ends early or would have to go on has none. Each limit is a [`Rule`] keyed by
//! the values that vary along its path, so the same limiter decides it.
//!
//! Two differences from the reference. Where several patterns match, the one with the longest
//! literal prefix wins, whatever the order of the file. And keys and values are separate: the
//! reference joins them with `_`, so there the key `a_b` equals the key `a` with the value `b`.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use tollgate::{Rule, RuleName};

use crate::backend::Backend;
use crate::config::{ConfigError, ConfigErrors, Source};

mod amount;
mod descriptors;
mod files;
mod names;
#[cfg(test)]
mod tests;
mod tree;
mod values;
mod yaml;

use descriptors::Draft;
pub(crate) use files::files;
use names::Names;
pub(crate) use names::attribute_names;
use tree::{Compiled, Level};

/// The domains that YAML files define.
#[derive(Clone, Debug, Default)]
pub(crate) struct Domains {
    domains: HashMap<String, Domain>,
    compiled: Compiled,
}

/// The descriptors of one domain.
#[derive(Clone, Debug)]
pub(crate) struct Domain {
    root: Level,
}

/// The limit of a descriptor.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Matched {
    pub(crate) verdict: Verdict,
    /// The name by which others replace it; may be empty.
    pub(crate) name: String,
    /// The names of the limits that it replaces within a request.
    pub(crate) replaces: Vec<String>,
    /// Whether its metrics list every value.
    pub(crate) detailed: bool,
    /// Whether it is a shadow. Its rule is one too.
    pub(crate) shadow: bool,
}

/// The decision for a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Never limited.
    Unlimited,
    /// Always denied: `requests_per_unit: 0` of this unit, which the reference accepts.
    DenyAll(Duration),
    /// Decided by this rule.
    Rule(RuleName),
}

impl Domains {
    /// Reads a file, or every `*.yaml` and `*.yml` of a directory or of its subdirectory `config`.
    ///
    /// # Errors
    /// All errors, file by file.
    pub(crate) fn read(path: &Path, store: &Backend) -> Result<Self, Vec<ConfigErrors>> {
        let sources = files::sources(path).map_err(|errors| vec![errors])?;
        let mut invalid = Vec::new();
        let mut drafts: Vec<(String, Draft)> = Vec::new();
        for (file, text) in sources {
            let text = match text {
                Ok(text) => text,
                Err(reason) => {
                    invalid.push(ConfigErrors::sentence(file, reason));
                    continue;
                }
            };
            // No variable overrides a setting of these files.
            let environment = HashMap::new();
            let source = Source::new(values::FORMAT, &text, &environment);
            let draft = draft(&source, &file, &text, store);
            if let Some(draft) = &draft
                && let Some((other, _)) =
                    drafts.iter().find(|(_, known)| known.domain.value == draft.domain.value)
            {
                let help = format!("merge them into one file; the other is {other}");
                let error =
                    ConfigError::new(format!("another file has the domain {:?}", draft.domain.value), help);
                source.report(error.at(draft.domain.span.clone(), "again"));
            }
            drafts.extend(draft.map(|draft| (file.clone(), draft)));
            let errors = source.errors.take();
            if !errors.is_empty() {
                invalid.push(ConfigErrors { file, text, errors, elsewhere: Vec::new() }.sorted());
            }
        }
        if invalid.is_empty() {
            Ok(Self::compile(drafts.iter().map(|(_, draft)| draft)))
        } else {
            Err(invalid)
        }
    }

    /// The text of all files, to detect changes.
    pub(crate) fn text(path: &Path) -> String {
        let render =
            |(file, text): files::Source| format!("# {file}\n{}\n", text.unwrap_or_else(|reason| reason));
        match files::sources(path) {
            Ok(sources) => sources.into_iter().map(render).collect(),
            Err(errors) => errors.to_string(),
        }
    }

    /// All rules, for a [`RuleSet`](tollgate::RuleSet).
    pub(crate) fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.compiled.rules.iter()
    }

    /// The names of descriptors that need no rule: always denied, or never limited.
    pub(crate) fn without_rule(&self) -> impl Iterator<Item = &(String, Verdict)> {
        self.compiled.without_rule.iter()
    }

    pub(crate) fn get(&self, domain: &str) -> Option<&Domain> {
        self.domains.get(domain)
    }

    /// A domain that had limits in `before` and now has none.
    pub(crate) fn emptied_since<'a>(&self, before: &'a Self) -> Option<&'a str> {
        let emptied = |name: &str| self.get(name).is_some_and(|domain| !domain.root.limits());
        let limited = before.domains.iter().filter(|(_, domain)| domain.root.limits());
        limited.map(|(name, _)| name.as_str()).find(|name| emptied(name))
    }

    fn compile<'a>(drafts: impl Iterator<Item = &'a Draft> + Clone) -> Self {
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
    /// The limit of a descriptor with these entries.
    pub(crate) fn find<'a>(&self, entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<&Matched> {
        self.root.find(entries)
    }
}

/// Parses a file, and reports its errors.
fn draft(source: &Source<'_>, file: &str, text: &str, store: &Backend) -> Option<Draft> {
    match yaml::parse(text) {
        Ok(Some(root)) => descriptors::read(source, &root, store),
        Ok(None) => {
            source
                .report(ConfigError::new(format!("{file} is empty"), "write `domain: …` and `descriptors:`"));
            None
        }
        Err(error) => {
            source.report(*error);
            None
        }
    }
}
