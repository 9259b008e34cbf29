//! Conditions on attributes, of rules and overrides.

use smallvec::SmallVec;

use super::path::{PATH, Paths};
use crate::Request;

/// A condition: an attribute and the values of which it must have one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Condition {
    pub(super) attribute: String,
    pub(super) values: SmallVec<[Value; 1]>,
}

/// A value that an attribute must have, or begin with.
#[derive(Clone, Debug)]
pub(super) struct Value {
    /// The text as it was given, for another setting of [`Paths`].
    given: String,
    pub(super) text: String,
    pub(super) prefix: bool,
    /// Whether `text` without the slash at its end matches too: the directory of a pattern such as
    /// `/api/*`, whose slash is dropped from requests.
    has_directory: bool,
}

/// Values are equal if they match the same texts.
impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        let Self { given: _, text, prefix, has_directory } = self;
        *text == other.text && *prefix == other.prefix && *has_directory == other.has_directory
    }
}

/// One value or several: `"POST".into()`, `["POST", "PUT"].into()`. A `*` at the end of a value
/// stands for any text.
#[derive(Clone, Debug)]
pub struct Values(SmallVec<[Value; 1]>);

impl From<&str> for Values {
    fn from(value: &str) -> Self {
        Self::from([value])
    }
}

impl<const N: usize> From<[&str; N]> for Values {
    fn from(values: [&str; N]) -> Self {
        Self(values.into_iter().map(Value::new).collect())
    }
}

impl From<&[String]> for Values {
    fn from(values: &[String]) -> Self {
        Self(values.iter().map(|value| Value::new(value)).collect())
    }
}

impl Value {
    fn new(written: &str) -> Self {
        let (text, prefix) = written.strip_suffix('*').map_or((written, false), |stem| (stem, true));
        Self { given: text.into(), text: text.into(), prefix, has_directory: false }
    }

    /// Sets how the value of a path is seen.
    fn see(&mut self, paths: Paths) {
        self.text = match self.prefix {
            true => paths.normalize_stem(&self.given),
            false => paths.normalize(&self.given).into_owned(),
        };
        let is_directory = self.text.len() > 1 && self.text.starts_with('/') && self.text.ends_with('/');
        self.has_directory = self.prefix && is_directory && paths != Paths::Raw;
    }

    fn matches(&self, value: &str) -> bool {
        if !self.prefix {
            return value == self.text;
        }
        value.starts_with(&self.text) || self.has_directory && self.text.strip_suffix('/') == Some(value)
    }
}

impl Condition {
    pub(super) fn new(attribute: &str, values: impl Into<Values>) -> Self {
        Self { attribute: attribute.into(), values: values.into().0 }
    }

    /// The condition that an attribute has exactly this value, even if that ends in `*`.
    pub(super) fn exactly(attribute: &str, value: &str) -> Self {
        let value = Value { given: value.into(), text: value.into(), prefix: false, has_directory: false };
        Self { attribute: attribute.into(), values: SmallVec::from([value]) }
    }

    /// Sets how paths are seen.
    pub(super) fn see(&mut self, paths: Paths) {
        if self.attribute == PATH {
            self.values.iter_mut().for_each(|value| value.see(paths));
        }
    }

    /// The attribute, and the values in the notation of rules.
    pub(super) fn written(&self) -> (&str, Vec<String>) {
        let written = |value: &Value| format!("{}{}", value.text, if value.prefix { "*" } else { "" });
        (&self.attribute, self.values.iter().map(written).collect())
    }

    pub(super) fn matches(&self, request: &Request<'_>) -> bool {
        let value = request.get(&self.attribute);
        value.is_some_and(|value| self.values.iter().any(|allowed| allowed.matches(value)))
    }
}

pub(super) fn all_match(conditions: &[Condition], request: &Request<'_>) -> bool {
    conditions.iter().all(|condition| condition.matches(request))
}

pub(super) fn check_matches(conditions: &[Condition]) -> Result<(), String> {
    for condition in conditions {
        if condition.attribute.is_empty() {
            return Err(format!("the attribute that must be {:?} has no name", condition.written().1));
        }
        if condition.values.is_empty() {
            return Err(format!("{:?} lists no value, so nothing matches; list one", condition.attribute));
        }
    }
    Ok(())
}
