//! Reads settings from a section of the file, or from the environment, which takes precedence.
//!
//! An error is recorded and reading goes on, so that all errors are reported at once. A setting
//! that is never read is unknown: [`Section::finish`] reports it, with the most similar known name.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ops::Range;
use std::time::Duration;

use tollgate::{Error, Limit, parse_duration};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, ConfigErrors, nearest};

/// The prefix of all variables.
pub(super) const PREFIX: &str = "TOLLGATE_";

/// The sources, and the errors found in them.
#[derive(Debug)]
pub(super) struct Source<'a> {
    /// The file's text.
    pub(super) text: &'a str,
    /// The environment's variables that begin with [`PREFIX`].
    pub(super) environment: &'a HashMap<String, String>,
    pub(super) errors: RefCell<Vec<ConfigError>>,
    /// The errors of other files.
    pub(super) elsewhere: RefCell<Vec<ConfigErrors>>,
    /// The names of all variables that were read.
    pub(super) read_variables: RefCell<Vec<String>>,
}

impl Source<'_> {
    pub(super) fn report(&self, error: ConfigError) {
        self.errors.borrow_mut().push(error);
    }
}

/// A value and its span in the file; `None` if it came from the environment.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) span: Option<Range<usize>>,
}

/// Positions an error at a value.
pub(super) fn at_value<T>(error: ConfigError, value: &At<T>) -> ConfigError {
    match &value.span {
        Some(span) => error.at(span.clone(), "here"),
        None => error,
    }
}

/// Why a value is invalid, and what to write instead. `column` is a position in the text, counted
/// in characters from 1.
#[derive(Debug)]
pub(super) struct ParseError {
    reason: String,
    help: String,
    column: Option<usize>,
}

impl ParseError {
    pub(super) fn new(reason: impl Into<String>, help: impl Into<String>) -> Self {
        Self { reason: reason.into(), help: help.into(), column: None }
    }

    /// The error of a flag's value.
    pub(super) fn of_flag(self, flag: &str, text: &str) -> ConfigError {
        ConfigError::new(format!("--{flag} {text}: {}", self.reason), self.help)
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
pub(super) trait Setting: Sized {
    /// The expected syntax, in a few words.
    const EXPECTED: &'static str;

    fn from_text(text: &str) -> Result<Self, ParseError>;

    /// Parses a value that is not a string: only integers, floats and booleans.
    fn from_other(_: &DeValue<'_>) -> Option<Self> {
        None
    }
}

impl Setting for String {
    const EXPECTED: &'static str = "a text in quotes";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        if text.is_empty() {
            Err(ParseError::new("it is empty", "write something, or leave it out"))
        } else {
            Ok(text.into())
        }
    }
}

impl Setting for u64 {
    const EXPECTED: &'static str = "a whole number";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        let digits = text.replace('_', "");
        digits
            .parse()
            .map_err(|_| ParseError::new("this is not a whole number", "write digits, such as 1000"))
    }

    fn from_other(value: &DeValue<'_>) -> Option<Self> {
        let integer = value.as_integer()?;
        Self::from_str_radix(&integer.as_str().replace('_', ""), integer.radix()).ok()
    }
}

impl Setting for f64 {
    const EXPECTED: &'static str = "a number";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        text.parse().map_err(|_| ParseError::new("this is not a number", "write one such as 0.25"))
    }

    fn from_other(value: &DeValue<'_>) -> Option<Self> {
        let text =
            value.as_float().map(|float| float.as_str()).or(value.as_integer().map(|whole| whole.as_str()));
        text?.replace('_', "").parse().ok()
    }
}

impl Setting for bool {
    const EXPECTED: &'static str = "true or false";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        text.parse().map_err(|_| ParseError::new("this is neither true nor false", "write true or false"))
    }

    fn from_other(value: &DeValue<'_>) -> Option<Self> {
        value.as_bool()
    }
}

impl Setting for Duration {
    const EXPECTED: &'static str = "a duration in quotes, such as \"100ms\"";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        Ok(parse_duration(text)?)
    }
}

impl Setting for Limit {
    const EXPECTED: &'static str = "a limit in quotes, such as \"100/s burst 200\"";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        Ok(text.parse()?)
    }
}

/// A table of the file, and its variables.
#[derive(Debug)]
pub(super) struct Section<'a> {
    source: &'a Source<'a>,
    /// The prefix of its variables; `None` if it has none.
    variables: Option<String>,
    table: Option<&'a DeTable<'a>>,
    known: Vec<&'static str>,
}

impl<'a> Section<'a> {
    pub(super) fn root(source: &'a Source<'a>, table: &'a DeTable<'a>) -> Self {
        Self { source, variables: Some(PREFIX.into()), table: Some(table), known: Vec::new() }
    }

    /// A subtable: empty if the file has none.
    pub(super) fn section(&mut self, key: &'static str) -> Self {
        let table = self.find(key).and_then(|value| self.table_of(key, value));
        let variables = self.variables.as_ref().map(|prefix| format!("{prefix}{}_", key.to_uppercase()));
        Self { source: self.source, variables, table, known: Vec::new() }
    }

    /// All tables of an array, `[[key]]`, each with the span of its heading.
    pub(super) fn sections(&mut self, key: &'static str) -> Vec<(Self, Range<usize>)> {
        let Some(value) = self.find(key) else { return Vec::new() };
        let Some(array) = value.get_ref().as_array() else {
            let help = format!("write [[{key}]], with two brackets on each side");
            let single = ConfigError::new(format!("`{key}` is a list of tables"), help);
            self.source.report(single.at(value.span(), "this is not one"));
            return Vec::new();
        };
        let section = |value: &'a Spanned<DeValue<'a>>| {
            let table = Some(self.table_of(key, value)?);
            let section = Self { source: self.source, variables: None, table, known: Vec::new() };
            Some((section, value.span()))
        };
        array.iter().filter_map(section).collect()
    }

    /// The pairs of an inline table of strings and lists of strings.
    pub(super) fn pairs(&mut self, key: &'static str) -> Vec<(&'a str, Vec<String>)> {
        let Some(table) = self.find(key).and_then(|value| self.table_of(key, value)) else {
            return Vec::new();
        };
        let pair = |(name, value): (&'a Spanned<_>, &'a Spanned<DeValue<'a>>)| {
            let name: &std::borrow::Cow<'a, str> = name.get_ref();
            let values = self.read_list::<String>(name, value)?;
            Some((&**name, values.into_iter().map(|at| at.value).collect()))
        };
        table.iter().filter_map(pair).collect()
    }

    /// A setting, if it is set and valid.
    pub(super) fn get<T: Setting>(&mut self, key: &'static str) -> Option<At<T>> {
        let found = self.find(key);
        if let Some((variable, text)) = self.variable(key) {
            let value = T::from_text(&text)
                .map_err(|error| self.source.report(in_environment(&variable, &text, error)));
            return Some(At { value: value.ok()?, span: None });
        }
        self.read(key, found?)
    }

    /// A setting, or its default.
    pub(super) fn get_or<T: Setting>(&mut self, key: &'static str, default: T) -> T {
        self.get(key).map_or(default, |found| found.value)
    }

    /// One value or a list of them, if all are valid.
    pub(super) fn list<T: Setting>(&mut self, key: &'static str) -> Option<Vec<At<T>>> {
        let found = self.find(key);
        if let Some((variable, text)) = self.variable(key) {
            let texts = text.split(',').map(str::trim).filter(|text| !text.is_empty());
            let value = |text| {
                let read = T::from_text(text);
                let value =
                    read.map_err(|error| self.source.report(in_environment(&variable, text, error))).ok()?;
                Some(At { value, span: None })
            };
            return texts.map(value).collect();
        }
        self.read_list(key, found?)
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
        self.source.report(match span {
            Some(span) => error.at(span, format!("expected one of {}", names.join(", "))),
            None => error,
        });
        None
    }

    /// The span of a key's value.
    pub(super) fn span(&self, key: &str) -> Option<Range<usize>> {
        self.table?.get(key).map(Spanned::span)
    }

    /// Whether the value of a key is a table.
    pub(super) fn is_table(&self, key: &str) -> bool {
        self.table.and_then(|table| table.get(key)).is_some_and(|value| value.get_ref().is_table())
    }

    /// Whether the table is in the file and empty.
    pub(super) fn is_bare(&self) -> bool {
        self.table.is_some_and(DeTable::is_empty)
    }

    pub(super) fn report(&self, error: ConfigError) {
        self.source.report(error);
    }

    /// Reports settings that were not read.
    pub(super) fn finish(self) {
        let Some(table) = self.table else { return };
        for (name, _) in table.iter().filter(|(name, _)| !self.known.contains(&name.get_ref().as_ref())) {
            let written: &str = name.get_ref();
            let help = match nearest(written, self.known.iter().copied()) {
                Some(near) => format!("did you mean `{near}`?"),
                None => format!("known settings: {}", self.known.join(", ")),
            };
            let error = ConfigError::new(format!("there is no setting `{written}` here"), help);
            self.source.report(error.at(name.span(), "unknown"));
        }
    }

    fn find(&mut self, key: &'static str) -> Option<&'a Spanned<DeValue<'a>>> {
        self.known.push(key);
        self.table?.get(key)
    }

    fn table_of(&self, key: &str, value: &'a Spanned<DeValue<'a>>) -> Option<&'a DeTable<'a>> {
        let table = value.get_ref().as_table();
        if table.is_none() {
            let found = format!("this is {}", with_article(value.get_ref().type_str()));
            let error =
                ConfigError::new(format!("`{key}` is a table"), format!("write [{key}], or {key} = {{ … }}"));
            self.source.report(error.at(value.span(), found));
        }
        table
    }

    /// The variable that sets `key`, and its text; `None` if it is unset.
    pub(super) fn variable(&self, key: &str) -> Option<(String, String)> {
        let name = format!("{}{}", self.variables.as_ref()?, key.to_uppercase());
        self.source.read_variables.borrow_mut().push(name.clone());
        let text = self.source.environment.get(&name)?.clone();
        Some((name, text))
    }

    fn read_list<T: Setting>(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Option<Vec<At<T>>> {
        match value.get_ref().as_array() {
            None => self.read(key, value).map(|only| vec![only]),
            // All values are read, so that all errors are reported.
            Some(array) => {
                array.iter().map(|value| self.read(key, value)).collect::<Vec<_>>().into_iter().collect()
            }
        }
    }

    fn read<T: Setting>(&self, key: &str, value: &Spanned<DeValue<'_>>) -> Option<At<T>> {
        let span = value.span();
        let read = match value.get_ref() {
            DeValue::String(text) => T::from_text(text),
            other => T::from_other(other).ok_or_else(|| {
                let found = with_article(other.type_str());
                ParseError::new(format!("this is {found}"), format!("write {}", T::EXPECTED))
            }),
        };
        match read {
            Ok(value) => Some(At { value, span: Some(span) }),
            Err(error) => {
                let quoted = self.source.text.get(span.clone()).unwrap_or_default();
                let at = error
                    .column
                    .and_then(|column| word_span(quoted, column))
                    .map_or(span.clone(), |inside| {
                        span.start.saturating_add(inside.start)..span.start.saturating_add(inside.end)
                    });
                let message = format!("`{key}` does not work as it is written");
                self.source.report(ConfigError::new(message, error.help).at(at, error.reason));
                None
            }
        }
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

fn in_environment(variable: &str, text: &str, error: ParseError) -> ConfigError {
    let position = error.column.map_or_else(String::new, |column| format!(" at column {column}"));
    ConfigError::new(format!("{variable}={text}: {}{position}", error.reason), error.help)
}

fn with_article(kind: &str) -> String {
    let article = if kind.starts_with(['a', 'e', 'i', 'o', 'u']) { "an" } else { "a" };
    format!("{article} {kind}")
}
