//! A file and the environment, and the errors found in them.

use std::cell::RefCell;
use std::collections::HashMap;

use super::error::{ConfigError, ConfigErrors};
use super::tree::{Node, ScalarKind, Value};

/// The prefix of our own variables.
pub(super) const PREFIX: &str = "TOLLGATE_";

/// The most errors to report.
const ERRORS_MAX: usize = 1_000;

/// The format of a file, for the words of errors.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Format {
    Toml,
    /// With the names of settings and where they belong, for errors about misplaced ones.
    Yaml(&'static [(&'static [&'static str], &'static str)]),
}

/// The sources, and the errors found in them.
#[derive(Debug)]
pub(crate) struct Source<'a> {
    pub(super) format: Format,
    /// The file's text.
    pub(super) text: &'a str,
    /// The environment's variables that begin with [`PREFIX`], and the standard ones of telemetry.
    pub(super) environment: &'a HashMap<String, String>,
    pub(crate) errors: RefCell<Vec<ConfigError>>,
    /// The errors of other files.
    pub(super) elsewhere: RefCell<Vec<ConfigErrors>>,
    /// The names of all variables that were read.
    pub(super) read_variables: RefCell<Vec<String>>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(format: Format, text: &'a str, environment: &'a HashMap<String, String>) -> Self {
        let (errors, elsewhere, read_variables) = Default::default();
        Self { format, text, environment, errors, elsewhere, read_variables }
    }

    /// Adds an error. An error that aliases repeat is reported once.
    pub(crate) fn report(&self, error: ConfigError) {
        let mut errors = self.errors.borrow_mut();
        if errors.len() < ERRORS_MAX && !errors.contains(&error) {
            errors.push(error);
        }
    }

    /// The type of a node, in words.
    pub(super) fn describe(&self, node: &Node) -> &'static str {
        match (&node.value, self.format) {
            (Value::Scalar(scalar), Format::Toml) => match scalar.kind {
                ScalarKind::String | ScalarKind::Plain => "a string",
                ScalarKind::Integer { .. } => "an integer",
                ScalarKind::Float => "a float",
                ScalarKind::Boolean => "a boolean",
                ScalarKind::Datetime => "a datetime",
            },
            (Value::Scalar(_), Format::Yaml(_)) => "a plain value",
            (Value::List(_), Format::Toml) => "an array",
            (Value::List(_), Format::Yaml(_)) => "a list",
            (Value::Map(_), Format::Toml) => "a table",
            (Value::Map(_), Format::Yaml(_)) => "a mapping",
        }
    }
}
