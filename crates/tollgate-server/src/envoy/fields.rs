//! Reads settings from a mapping.
//!
//! An error is recorded and reading goes on, so that all errors are reported at once. A null,
//! `name:` or `name: ~`, counts as absent, as in the reference.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use super::yaml::{Node, Value};
use crate::config::{ConfigError, nearest};

/// Where each setting belongs, for errors about misplaced ones.
const SECTIONS: [(&[&str], &str); 3] = [
    (&["domain"], "at the top of the file"),
    (
        &["value", "rate_limit", "shadow_mode", "quota_mode", "detailed_metric", "share_threshold"],
        "in a descriptor, beside its `key`",
    ),
    (
        &["unit", "requests_per_unit", "unit_multiplier", "unlimited", "algorithm", "replaces"],
        "in a descriptor's `rate_limit`",
    ),
];

/// The most settings of a mapping. There are fewer known ones, so an unknown one is reported.
const FIELDS_MAX: usize = 64;

/// The most errors to report.
const ERRORS_MAX: usize = 1_000;

/// The errors of a file.
#[derive(Debug, Default)]
pub(super) struct ErrorList {
    pub(super) errors: RefCell<Vec<ConfigError>>,
}

impl ErrorList {
    /// Adds an error. An error that aliases repeat is reported once.
    pub(super) fn report(&self, error: ConfigError) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() < ERRORS_MAX && !errors.contains(&error) {
            errors.push(error);
        }
    }
}

/// A value and its span.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
}

/// The settings of a mapping.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    errors: &'a ErrorList,
    /// The span of its first key.
    pub(super) span: Range<usize>,
    fields: Vec<Field<'a>>,
    known: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug)]
struct Field<'a> {
    name: &'a str,
    key: &'a Node,
    value: &'a Node,
}

impl Field<'_> {
    /// The span of the value, or of the key if the value is null or nested.
    fn span(&self) -> Range<usize> {
        match &self.value.value {
            Value::Scalar { .. } if !self.value.is_null() => self.value.span.clone(),
            _ => self.key.span.clone(),
        }
    }
}

impl<'a> Fields<'a> {
    /// The settings of a node. If it is not a mapping, the error names `what` it is and an
    /// `example`.
    pub(super) fn of(errors: &'a ErrorList, node: &'a Node, what: &str, example: &str) -> Option<Self> {
        let Value::Map(pairs) = &node.value else {
            let error = ConfigError::new(format!("{what} is a mapping"), format!("write {example}"));
            errors.report(error.at(node.span.clone(), format!("this is {}", node.kind())));
            return None;
        };
        let span = pairs.first().map_or(&node.span, |(key, _)| &key.span).clone();
        let mut fields = Self { errors, span, fields: Vec::new(), known: Vec::new() };
        fields.add(pairs, false);
        Some(fields)
    }

    /// Adds settings; those of a merged mapping, `<<: *other`, have lower precedence.
    fn add(&mut self, pairs: &'a [(Rc<Node>, Rc<Node>)], merged: bool) {
        let mut merges = Vec::new();
        for (key, value) in pairs {
            let Value::Scalar { text: name, plain } = &key.value else {
                let error =
                    ConfigError::new("the name of a setting is a plain word", "write it like `key: …`");
                self.errors.report(error.at(key.span.clone(), format!("this is {}", key.kind())));
                continue;
            };
            if *plain && name == "<<" {
                merges.push(&**value);
            } else if let Some(first) = self.fields.iter().find(|field| field.name == name) {
                if !merged {
                    let error = ConfigError::new(format!("`{name}` occurs twice"), "remove one");
                    let error = error.at(key.span.clone(), "again");
                    self.errors.report(error.beside(first.key.span.clone(), "first here"));
                }
            } else if self.fields.len() < FIELDS_MAX {
                self.fields.push(Field { name, key, value });
            }
        }
        for other in merges {
            let others = match &other.value {
                Value::List(others) => others.iter().map(|other| &**other).collect(),
                _ => vec![other],
            };
            for other in others {
                match &other.value {
                    Value::Map(pairs) => self.add(pairs, true),
                    _ => {
                        let error = ConfigError::new("only a mapping can be merged in", "write `<<: *name`");
                        self.errors.report(error.at(other.span.clone(), format!("this is {}", other.kind())));
                    }
                }
            }
        }
    }

    /// The span of a setting, if it is present.
    pub(super) fn span_of(&self, name: &str) -> Option<Range<usize>> {
        self.fields.iter().find(|field| field.name == name).map(Field::span)
    }

    pub(super) fn report(&self, error: ConfigError) {
        self.errors.report(error);
    }

    /// A string as written: `0123` and `true` are valid strings.
    pub(super) fn text(&mut self, name: &'static str) -> Option<At<&'a str>> {
        let field = self.find(name)?;
        match &field.value.value {
            Value::Scalar { text, .. } => Some(At { value: text, span: field.span() }),
            _ => self.wrong_type(field, "a string"),
        }
    }

    /// A boolean, false if absent, in any spelling of YAML 1.1.
    pub(super) fn flag(&mut self, name: &'static str) -> bool {
        let Some(At { value, span }) = self.text(name) else { return false };
        match value.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => true,
            "false" | "no" | "off" | "n" => false,
            _ => {
                let error = ConfigError::new(format!("`{name}` is a boolean"), "write true or false");
                self.report(error.at(span, "this is neither"));
                false
            }
        }
    }

    /// A non-negative integer.
    pub(super) fn count(&mut self, name: &'static str) -> Option<At<u64>> {
        let At { value, span } = self.text(name)?;
        let Some(value) = whole(value) else {
            let error = ConfigError::new(format!("`{name}` is a whole number"), "write digits, such as 100");
            self.report(error.at(span, "this is not one"));
            return None;
        };
        Some(At { value, span })
    }

    /// The items of a list; empty if absent.
    pub(super) fn list(&mut self, name: &'static str) -> &'a [Rc<Node>] {
        let Some(field) = self.find(name) else { return &[] };
        match &field.value.value {
            Value::List(items) => items,
            _ => self.wrong_type(field, "a list, with a dash before each item").unwrap_or(&[]),
        }
    }

    /// The settings of a nested mapping, and the span of its key.
    pub(super) fn fields(&mut self, name: &'static str, example: &str) -> Option<(Self, Range<usize>)> {
        let field = self.find(name)?;
        Some((Self::of(self.errors, field.value, &format!("`{name}`"), example)?, field.key.span.clone()))
    }

    /// Accepts a setting without using it.
    pub(super) fn ignore(&mut self, name: &'static str) {
        self.known.push(name);
    }

    /// Reports settings that were not read.
    pub(super) fn finish(self) {
        for Field { name, key, .. } in self.fields.iter().filter(|field| !self.known.contains(&field.name)) {
            let section = SECTIONS.iter().find(|(names, _)| names.contains(name));
            let help = match (section, nearest(name, self.known.iter().copied())) {
                (Some((_, section)), _) => format!("it belongs {section}"),
                (None, Some(near)) => format!("did you mean `{near}`?"),
                (None, None) => format!("known settings: {}", self.known.join(", ")),
            };
            let error = ConfigError::new(format!("there is no setting `{name}` here"), help);
            self.errors.report(error.at(key.span.clone(), "unknown"));
        }
    }

    fn find(&mut self, name: &'static str) -> Option<Field<'a>> {
        self.known.push(name);
        let found = self.fields.iter().find(|field| field.name == name)?;
        (!found.value.is_null()).then_some(*found)
    }

    fn wrong_type<T>(&self, field: Field<'_>, expected: &str) -> Option<T> {
        let error = ConfigError::new(format!("`{}` is {expected}", field.name), format!("write {expected}"));
        self.report(error.at(field.span(), format!("this is {}", field.value.kind())));
        None
    }
}

/// An integer as YAML 1.1 and the reference read it: `010` is eight.
fn whole(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    let digits = digits.strip_prefix('+').unwrap_or(&digits);
    let other = |radix, digits: &str| {
        digits
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric())
            .then(|| u64::from_str_radix(digits, radix).ok())
    };
    let prefixed = [("0x", 16), ("0X", 16), ("0o", 8), ("0b", 2), ("0", 8)];
    let found = prefixed.into_iter().find_map(|(prefix, radix)| {
        let digits = digits.strip_prefix(prefix).filter(|digits| !digits.is_empty())?;
        Some(other(radix, digits).flatten())
    });
    found.unwrap_or_else(|| other(10, digits).flatten())
}
