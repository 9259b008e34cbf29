//! Reads settings from a section of a file, or from the environment, which takes precedence.
//!
//! An error is recorded and reading goes on, so that all errors are reported at once. A setting
//! that is never read is unknown: [`Section::finish`] reports it, with the most similar known name.
//! A null of YAML, `name:` or `name: ~`, counts as absent, as in Envoy's reference service.

use std::ops::Range;
use std::rc::Rc;

use super::error::{ConfigError, nearest};
use super::setting::{ParseError, Setting};
use super::source::{Format, PREFIX, Source};
use super::tree::{Node, Scalar, ScalarKind, Value};

/// The most settings of a mapping in YAML. There are fewer known ones, so an unknown one is
/// reported.
const FIELDS_MAX: usize = 64;

/// A value and its span in the file; `None` if it came from the environment.
#[derive(Clone, Debug)]
pub(crate) struct At<T> {
    pub(crate) value: T,
    pub(crate) span: Option<Range<usize>>,
}

/// A mapping of the file, and its variables.
#[derive(Debug)]
pub(crate) struct Section<'a> {
    source: &'a Source<'a>,
    /// The prefix of its variables; `None` if it has none.
    variables: Option<String>,
    /// The span of its first key; `None` if the file does not have the section.
    pub(crate) span: Option<Range<usize>>,
    fields: Vec<Field<'a>>,
    known: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug)]
struct Field<'a> {
    name: &'a str,
    key: &'a Node,
    value: &'a Node,
}

impl<'a> Section<'a> {
    pub(super) fn root(source: &'a Source<'a>, root: &'a Node) -> Self {
        let section = Self::of(source, root, "the file", "settings, such as [server]");
        Self { variables: Some(PREFIX.into()), ..section.unwrap_or_else(|| Self::empty(source)) }
    }

    const fn empty(source: &'a Source<'a>) -> Self {
        Self { source, variables: None, span: None, fields: Vec::new(), known: Vec::new() }
    }

    /// The settings of a node. If it is not a mapping, the error names `what` it is and an
    /// `example`.
    pub(crate) fn of(source: &'a Source<'a>, node: &'a Node, what: &str, example: &str) -> Option<Self> {
        let Value::Map(pairs) = &node.value else {
            let mapping = if matches!(source.format, Format::Toml) { "table" } else { "mapping" };
            let error = ConfigError::new(format!("{what} is a {mapping}"), format!("write {example}"));
            source.report(error.at(node.span.clone(), format!("this is {}", source.describe(node))));
            return None;
        };
        let span = pairs.first().map_or(&node.span, |(key, _)| &key.span).clone();
        let mut section = Self { span: Some(span), ..Self::empty(source) };
        section.add(pairs, false);
        Some(section)
    }

    /// Adds settings; those of a merged mapping of YAML, `<<: *other`, have lower precedence.
    fn add(&mut self, pairs: &'a [(Rc<Node>, Rc<Node>)], merged: bool) {
        let mut merges = Vec::new();
        for (key, value) in pairs {
            let Value::Scalar(Scalar { text: name, kind }) = &key.value else {
                let error =
                    ConfigError::new("the name of a setting is a plain word", "write it like `key: …`");
                let found = format!("this is {}", self.source.describe(key));
                self.report(error.at(key.span.clone(), found));
                continue;
            };
            let field = Field { name, key, value };
            if matches!(self.source.format, Format::Toml) {
                self.fields.push(field);
            } else if *kind == ScalarKind::Plain && name == "<<" {
                merges.push(&**value);
            } else if let Some(first) = self.fields.iter().find(|field| field.name == name) {
                if !merged {
                    let error = ConfigError::new(format!("`{name}` occurs twice"), "remove one");
                    let error = error.at(key.span.clone(), "again");
                    self.report(error.beside(first.key.span.clone(), "first here"));
                }
            } else if self.fields.len() < FIELDS_MAX {
                self.fields.push(field);
            }
        }
        for other in merges {
            let others = match &other.value {
                Value::List(others) => others.iter().map(|other| &**other).collect(),
                _ => vec![other],
            };
            for other in others {
                if let Value::Map(pairs) = &other.value {
                    self.add(pairs, true);
                } else {
                    let error = ConfigError::new("only a mapping can be merged in", "write `<<: *name`");
                    let found = format!("this is {}", self.source.describe(other));
                    self.report(error.at(other.span.clone(), found));
                }
            }
        }
    }

    /// A subtable of TOML: empty if the file has none.
    pub(super) fn section(&mut self, key: &'static str) -> Self {
        let section = self.find(key).and_then(|field| self.table_of(key, field.value));
        let variables = self.variables.as_ref().map(|prefix| format!("{prefix}{}_", key.to_uppercase()));
        Self { variables, ..section.unwrap_or_else(|| Self::empty(self.source)) }
    }

    /// The settings of a nested mapping of YAML, and the span of its key.
    pub(crate) fn nested(&mut self, key: &'static str, example: &str) -> Option<(Self, Range<usize>)> {
        let field = self.find(key)?;
        let section = Self::of(self.source, field.value, &format!("`{key}`"), example)?;
        Some((section, field.key.span.clone()))
    }

    /// All tables of an array of TOML, `[[key]]`, each with the span of its heading.
    pub(super) fn sections(&mut self, key: &'static str) -> Vec<(Self, Range<usize>)> {
        let Some(field) = self.find(key) else { return Vec::new() };
        let Value::List(items) = &field.value.value else {
            let help = format!("write [[{key}]], with two brackets on each side");
            let single = ConfigError::new(format!("`{key}` is a list of tables"), help);
            self.report(single.at(field.value.span.clone(), "this is not one"));
            return Vec::new();
        };
        items.iter().filter_map(|item| Some((self.table_of(key, item)?, item.span.clone()))).collect()
    }

    /// The items of a list of YAML; empty if absent.
    pub(crate) fn items(&mut self, key: &'static str) -> &'a [Rc<Node>] {
        let Some(field) = self.find(key) else { return &[] };
        let Value::List(items) = &field.value.value else {
            let expected = "a list, with a dash before each item";
            let error = ConfigError::new(format!("`{key}` is {expected}"), format!("write {expected}"));
            let found = format!("this is {}", self.source.describe(field.value));
            self.report(error.at(field.span(self.source.format), found));
            return &[];
        };
        items
    }

    /// The pairs of an inline table of strings and lists of strings.
    pub(super) fn pairs(&mut self, key: &'static str) -> Vec<(&'a str, Vec<String>)> {
        let section = self.find(key).and_then(|field| self.table_of(key, field.value));
        let pair = |Field { name, value, .. }: Field<'a>| {
            let values = self.read_list::<String>(name, value)?;
            Some((name, values.into_iter().map(|at| at.value).collect()))
        };
        section.into_iter().flat_map(|section| section.fields).filter_map(pair).collect()
    }

    /// A setting, if it is set and valid.
    pub(crate) fn get<T: Setting>(&mut self, key: &'static str) -> Option<At<T>> {
        let found = self.find(key);
        if let Some((variable, text)) = self.variable(key) {
            let value = T::from_text(&text).map_err(|error| self.report(error.of_variable(&variable, &text)));
            return Some(At { value: value.ok()?, span: None });
        }
        let found = found?;
        self.read(key, found.value, found.span(self.source.format))
    }

    /// A setting, or its default.
    pub(crate) fn get_or<T: Setting>(&mut self, key: &'static str, default: T) -> T {
        self.get(key).map_or(default, |found| found.value)
    }

    /// One value or a list of them, if all are valid.
    pub(super) fn list<T: Setting>(&mut self, key: &'static str) -> Option<Vec<At<T>>> {
        let found = self.find(key);
        if let Some((variable, text)) = self.variable(key) {
            let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
            let value = |text| {
                let read = T::from_text(text);
                let value = read.map_err(|error| self.report(error.of_variable(&variable, text))).ok()?;
                Some(At { value, span: None })
            };
            return texts.map(value).collect();
        }
        self.read_list(key, found?.value)
    }

    /// A setting with a fixed set of values.
    pub(super) fn choice<T: Copy>(&mut self, key: &'static str, choices: &[(&str, T)]) -> Option<At<T>> {
        let At { value, span } = self.get::<String>(key)?;
        if let Some((_, chosen)) = choices.iter().find(|(name, _)| *name == value) {
            return Some(At { value: *chosen, span });
        }
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let help = match nearest(&value, names.iter().copied()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => format!("write one of {}", names.join(", ")),
        };
        let error = ConfigError::new(format!("`{key}` cannot be {value:?}"), help);
        self.report(error.at(span, format!("expected one of {}", names.join(", "))));
        None
    }

    /// The span of a setting, if it is present.
    pub(crate) fn span_of(&self, key: &str) -> Option<Range<usize>> {
        self.fields.iter().find(|field| field.name == key).map(|field| field.span(self.source.format))
    }

    /// Whether the value of a key is a table.
    pub(super) fn is_table(&self, key: &str) -> bool {
        let is_map = |field: &Field<'_>| matches!(field.value.value, Value::Map(_));
        self.fields.iter().any(|field| field.name == key && is_map(field))
    }

    /// Whether the table is in the file and empty.
    pub(super) const fn is_bare(&self) -> bool {
        self.span.is_some() && self.fields.is_empty()
    }

    pub(crate) fn report(&self, error: ConfigError) {
        self.source.report(error);
    }

    /// Accepts a setting without using it.
    pub(crate) fn ignore(&mut self, key: &'static str) {
        self.known.push(key);
    }

    /// Reports settings that were not read.
    pub(crate) fn finish(self) {
        let places = if let Format::Yaml(places) = self.source.format { places } else { &[] };
        for Field { name, key, .. } in self.fields.iter().filter(|field| !self.known.contains(&field.name)) {
            let place = places.iter().find(|(names, _)| names.contains(name));
            let help = match (place, nearest(name, self.known.iter().copied())) {
                (Some((_, place)), _) => format!("it belongs {place}"),
                (None, Some(near)) => format!("did you mean `{near}`?"),
                (None, None) => format!("known settings: {}", self.known.join(", ")),
            };
            let error = ConfigError::new(format!("there is no setting `{name}` here"), help);
            self.source.report(error.at(key.span.clone(), "unknown"));
        }
    }

    fn find(&mut self, key: &'static str) -> Option<Field<'a>> {
        self.known.push(key);
        let found = self.fields.iter().find(|field| field.name == key)?;
        (!found.value.is_null()).then_some(*found)
    }

    fn table_of(&self, key: &str, value: &'a Node) -> Option<Self> {
        Self::of(self.source, value, &format!("`{key}`"), &format!("[{key}], or {key} = {{ … }}"))
    }

    /// The variable that sets `key`, and its text; `None` if it is unset.
    pub(super) fn variable(&self, key: &str) -> Option<(String, String)> {
        let name = format!("{}{}", self.variables.as_ref()?, key.to_uppercase());
        self.source.read_variables.borrow_mut().push(name.clone());
        let text = self.source.environment.get(&name)?.clone();
        Some((name, text))
    }

    fn read_list<T: Setting>(&self, key: &str, node: &Node) -> Option<Vec<At<T>>> {
        match &node.value {
            // All values are read, so that all errors are reported.
            Value::List(items) => items
                .iter()
                .map(|item| self.read(key, item, item.span.clone()))
                .collect::<Vec<_>>()
                .into_iter()
                .collect(),
            _ => self.read(key, node, node.span.clone()).map(|only| vec![only]),
        }
    }

    fn read<T: Setting>(&self, key: &str, node: &Node, span: Range<usize>) -> Option<At<T>> {
        let other_type = || {
            let found = self.source.describe(node);
            ParseError::new(format!("this is {found}"), format!("write {}", T::EXPECTED))
        };
        let read = match &node.value {
            Value::Scalar(Scalar { text, kind: ScalarKind::String | ScalarKind::Plain }) => {
                T::from_text(text)
            }
            Value::Scalar(scalar) => T::from_other(scalar).ok_or_else(other_type),
            Value::List(_) | Value::Map(_) => Err(other_type()),
        };
        match read {
            Ok(value) => Some(At { value, span: Some(span) }),
            Err(error) => {
                self.report(error.of_setting(key, self.source.text, span));
                None
            }
        }
    }
}

impl Field<'_> {
    /// The span of the value; in YAML of the key if the value is null or nested, whose own span is
    /// only its beginning.
    fn span(&self, format: Format) -> Range<usize> {
        let is_whole = matches!(self.value.value, Value::Scalar(_)) && !self.value.is_null();
        let at = if is_whole || matches!(format, Format::Toml) { self.value } else { self.key };
        at.span.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Merging and the bound on settings are YAML's.
    #[test]
    fn a_table_of_toml_has_any_number_of_pairs_and_merges_none() {
        let pairs: String = (0..FIELDS_MAX).map(|number| format!("k{number} = \"v\"\n")).collect();
        let text = format!("[match]\n{pairs}\"<<\" = \"w\"\n");
        let table = toml::de::DeTable::parse(&text).unwrap();
        let (root, environment) = (Node::of_toml(table.get_ref()), std::collections::HashMap::new());
        let source = Source::new(Format::Toml, &text, &environment);
        let read = Section::root(&source, &root).pairs("match");
        assert_eq!(read.len(), FIELDS_MAX + 1);
        assert!(read.contains(&("<<", vec!["w".into()])) && source.errors.take().is_empty());
    }
}
