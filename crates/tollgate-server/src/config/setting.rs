//! A type of setting, and why a text is not a value of it.

use std::ops::Range;

use tollgate::Error;

use super::error::ConfigError;
use super::tree::Scalar;

/// Why a value is invalid, and what to write instead. `column` is a position in the text, counted
/// in characters from 1.
#[derive(Debug)]
pub(crate) struct ParseError {
    reason: String,
    help: String,
    column: Option<usize>,
}

impl ParseError {
    pub(crate) fn new(reason: impl Into<String>, help: impl Into<String>) -> Self {
        Self { reason: reason.into(), help: help.into(), column: None }
    }

    /// The error of a flag's value.
    pub(super) fn of_flag(self, flag: &str, text: &str) -> ConfigError {
        ConfigError::new(format!("--{flag} {text}: {}", self.reason), self.help)
    }

    /// The error of a variable's value.
    pub(super) fn of_variable(self, variable: &str, text: &str) -> ConfigError {
        let position = self.column.map_or_else(String::new, |column| format!(" at column {column}"));
        ConfigError::new(format!("{variable}={text}: {}{position}", self.reason), self.help)
    }

    /// The error of a setting whose value is at `span` of a file: it points at the word, if it can.
    pub(super) fn of_setting(self, key: &str, file: &str, span: Range<usize>) -> ConfigError {
        let quoted = file.get(span.clone()).unwrap_or_default();
        let word = self.column.and_then(|column| word_span(quoted, column));
        let at = word.map_or(span.clone(), |word| {
            span.start.saturating_add(word.start)..span.start.saturating_add(word.end)
        });
        ConfigError::new(format!("`{key}` does not work as it is written"), self.help).at(at, self.reason)
    }
}

impl From<Error> for ParseError {
    fn from(error: Error) -> Self {
        match error {
            Error::InvalidNotation { column, reason, hint, .. } => {
                Self { reason, help: hint, column: Some(column) }
            }
            Error::InvalidLimit { field, value, reason } => {
                Self::new(format!("the {field} is {value}"), format!("it must be {reason}"))
            }
            other => Self::new(other.to_string(), ""),
        }
    }
}

/// A type of setting.
pub(crate) trait Setting: Sized {
    /// The expected syntax, in a few words.
    const EXPECTED: &'static str;

    fn from_text(text: &str) -> Result<Self, ParseError>;

    /// Parses a value that is not a string: only integers, floats and booleans.
    fn from_other(_: &Scalar) -> Option<Self> {
        None
    }
}

/// The span of the word at a column of a quoted string, if nothing in it is escaped.
fn word_span(quoted: &str, column: usize) -> Option<Range<usize>> {
    let text = quoted.get(1..quoted.len().checked_sub(1)?)?;
    if text.contains(['\\', '\n', '"', '\'']) {
        return None;
    }
    let (start, first) = text.char_indices().nth(column.checked_sub(1)?)?;
    let word = text.get(start..)?.find(|c: char| !c.is_alphanumeric()).filter(|length| *length > 0);
    let length = if first.is_alphanumeric() {
        word.unwrap_or(text.len().saturating_sub(start))
    } else {
        first.len_utf8()
    };
    Some(start.saturating_add(1)..start.saturating_add(1).saturating_add(length))
}
