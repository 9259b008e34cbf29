//! Reads settings out of a mapping.
//!
//! Whatever is wrong is noted and reading goes on, so that all of it is told at once. What is
//! written as nothing, `name:` or `name: ~`, counts as not written, as it does in the reference.

use std::cell::RefCell;
use std::ops::Range;
use std::rc::Rc;

use super::yaml::{Node, Value};
use crate::config::{ConfigError, nearest};

/// Where each setting stands: to say so if it stands elsewhere.
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

/// More settings than this are not looked at: a few of them will be unknown, and are told.
const FIELDS_MAX: usize = 64;

/// More than this nobody reads.
const ERRORS_MAX: usize = 1_000;

/// What was found wrong with a file.
#[derive(Debug, Default)]
pub(super) struct ErrorList {
    pub(super) errors: RefCell<Vec<ConfigError>>,
}

impl ErrorList {
    /// Takes note of one. What is wrong with something that aliases repeat is told once.
    pub(super) fn report(&self, error: ConfigError) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() < ERRORS_MAX && !errors.contains(&error) {
            errors.push(error);
        }
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) span: Range<usize>,
}

/// The settings of a mapping.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    errors: &'a ErrorList,
    /// Where it begins.
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
    /// Where to point: at what is written, or at its name if nothing is.
    fn span(&self) -> Range<usize> {
        match &self.value.value {
            Value::Scalar { .. } if !self.value.is_null() => self.value.span.clone(),
            _ => self.key.span.clone(),
        }
    }
}

impl<'a> Fields<'a> {
    /// The settings of a node, if it is a mapping; `what` it is and an `example` say so if not.
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

    /// Takes in settings; those of a mapping that is merged in, `<<: *other`, count less.
    fn add(&mut self, pairs: &'a [(Rc<Node>, Rc<Node>)], merged: bool) {
        let mut merges = Vec::new();
        for (key, value) in pairs {
            let Value::Scalar { text: name, plain } = &key.value else {
                let error = ConfigError::new("the name of a setting is a word", "write `key: …`, or alike");
                self.errors.report(error.at(key.span.clone(), format!("this is {}", key.kind())));
                continue;
            };
            if *plain && name == "<<" {
                merges.push(&**value);
            } else if let Some(first) = self.fields.iter().find(|field| field.name == name) {
                if !merged {
                    let error = ConfigError::new(format!("`{name}` is there twice"), "leave one out");
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

    /// Where a setting stands, if it is there.
    pub(super) fn span_of(&self, name: &str) -> Option<Range<usize>> {
        self.fields.iter().find(|field| field.name == name).map(Field::span)
    }

    pub(super) fn report(&self, error: ConfigError) {
        self.errors.report(error);
    }

    /// A text as it is written: `0123` and `true` are texts too where one is wanted.
    pub(super) fn text(&mut self, name: &'static str) -> Option<At<&'a str>> {
        let field = self.find(name)?;
        match &field.value.value {
            Value::Scalar { text, .. } => Some(At { value: text, span: field.span() }),
            _ => self.wrong_type(field, "a text"),
        }
    }

    /// Yes or no, and no if it is not there. What YAML 1.1 takes for either is taken.
    pub(super) fn flag(&mut self, name: &'static str) -> bool {
        let Some(At { value, span }) = self.text(name) else { return false };
        match value.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => true,
            "false" | "no" | "off" | "n" => false,
            _ => {
                let error = ConfigError::new(format!("`{name}` is yes or no"), "write true or false");
                self.report(error.at(span, "this is neither"));
                false
            }
        }
    }

    /// A whole number.
    pub(super) fn count(&mut self, name: &'static str) -> Option<At<u64>> {
        let At { value, span } = self.text(name)?;
        let Some(value) = whole(value) else {
            let error = ConfigError::new(format!("`{name}` is a whole number"), "write digits, such as 100");
            self.report(error.at(span, "this is not one"));
            return None;
        };
        Some(At { value, span })
    }

    /// The items of a list; none if it is not there.
    pub(super) fn list(&mut self, name: &'static str) -> &'a [Rc<Node>] {
        let Some(field) = self.find(name) else { return &[] };
        match &field.value.value {
            Value::List(items) => items,
            _ => self.wrong_type(field, "a list, each item after a dash").unwrap_or(&[]),
        }
    }

    /// The settings of a mapping, and where its name stands.
    pub(super) fn fields(&mut self, name: &'static str, example: &str) -> Option<(Self, Range<usize>)> {
        let field = self.find(name)?;
        Some((Self::of(self.errors, field.value, &format!("`{name}`"), example)?, field.key.span.clone()))
    }

    /// Lets a setting stand that means nothing here.
    pub(super) fn ignore(&mut self, name: &'static str) {
        self.known.push(name);
    }

    /// Complains about whatever was not asked for.
    pub(super) fn finish(self) {
        for Field { name, key, .. } in self.fields.iter().filter(|field| !self.known.contains(&field.name)) {
            let home = SECTIONS.iter().find(|(names, _)| names.contains(name));
            let help = match (home, nearest(name, self.known.iter().copied())) {
                (Some((_, home)), _) => format!("it stands {home}"),
                (None, Some(near)) => format!("did you mean `{near}`?"),
                (None, None) => format!("what can stand here: {}", self.known.join(", ")),
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

    fn wrong_type<T>(&self, field: Field<'_>, wanted: &str) -> Option<T> {
        let error = ConfigError::new(format!("`{}` is {wanted}", field.name), format!("write {wanted}"));
        self.report(error.at(field.span(), format!("this is {}", field.value.kind())));
        None
    }
}

/// A whole number as YAML 1.1 writes it, which is what the reference reads: `010` is eight.
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
