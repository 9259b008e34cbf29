//! Configuration errors, rendered as a compiler's: file, line, column, excerpt, and what to write
//! instead.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// One error in a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConfigError {
    message: String,
    /// The span in the file, in bytes, and its label. `None` for an error outside the file.
    at: Option<(Range<usize>, String)>,
    /// A second span that the error refers to, and its label.
    beside: Option<(Range<usize>, String)>,
    help: String,
}

impl ConfigError {
    pub(crate) fn new(message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { message: message.into(), at: None, beside: None, help: help.into() }
    }

    pub(crate) fn help(mut self, help: impl Into<String>) -> Self {
        self.help = help.into();
        self
    }

    /// Positions the error, if its span is in the file.
    pub(crate) fn at(mut self, span: impl Into<Option<Range<usize>>>, label: impl Into<String>) -> Self {
        self.at = span.into().map(|span| (span, label.into()));
        self
    }

    pub(crate) fn beside(mut self, span: impl Into<Option<Range<usize>>>, label: impl Into<String>) -> Self {
        self.beside = span.into().map(|span| (span, label.into()));
        self
    }
}

/// All errors of one configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The name of the file.
    pub(crate) file: String,
    /// The text of the file.
    pub(crate) text: String,
    /// The errors in the file.
    pub(crate) errors: Vec<ConfigError>,
    /// The errors in other files that belong to the configuration.
    pub(crate) elsewhere: Vec<Self>,
}

impl ConfigErrors {
    /// One error without a position.
    pub(crate) fn sentence(file: String, sentence: String) -> Self {
        Self {
            file,
            text: String::new(),
            errors: vec![ConfigError::new(sentence, "")],
            elsewhere: Vec::new(),
        }
    }

    /// Renders the errors for a terminal.
    pub(crate) fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut rendered: Vec<String> =
            self.errors.iter().map(|error| self.render_one(error, &renderer)).collect();
        if let count @ 2.. = self.errors.len() {
            rendered.push(format!("{}: {count} errors", self.file));
        }
        rendered.extend(self.elsewhere.iter().map(|other| other.render(colour)));
        rendered.join("\n\n")
    }

    /// Sorts errors by position; those outside the file come first.
    pub(crate) fn sorted(mut self) -> Self {
        self.errors.sort_by_key(|error| error.at.as_ref().map(|(span, _)| span.start));
        self
    }

    fn render_one(&self, error: &ConfigError, renderer: &Renderer) -> String {
        let Some((span, label)) = &error.at else {
            let and = if error.help.is_empty() { "" } else { "; " };
            return format!("{}{and}{}", error.message, error.help);
        };
        let primary = AnnotationKind::Primary.span(span.clone()).label(label.as_str());
        let beside = error
            .beside
            .as_ref()
            .map(|(span, label)| AnnotationKind::Context.span(span.clone()).label(label.as_str()));
        let annotations = [primary].into_iter().chain(beside);
        let snippet = Snippet::source(self.text.as_str()).path(self.file.as_str()).annotations(annotations);
        let mut report = Level::ERROR.primary_title(error.message.as_str()).element(snippet);
        if !error.help.is_empty() {
            report = report.element(Level::HELP.message(error.help.as_str()));
        }
        renderer.render(&[report])
    }
}

impl fmt::Display for ConfigErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(false))
    }
}

/// The name of `known` that is most similar to `written`, if one is similar enough.
pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let similarity = |name: &str| strsim::jaro_winkler(&written.to_lowercase(), &name.to_lowercase());
    let near =
        known.into_iter().map(|name| (similarity(name), name)).filter(|(similarity, _)| *similarity > 0.75);
    near.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, name)| name)
}
