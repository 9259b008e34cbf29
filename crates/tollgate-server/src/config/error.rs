//! What is wrong with a configuration, shown as a compiler would: the file, the line, the column,
//! the text at error, and what to write instead.

use std::fmt;
use std::ops::Range;

use annotate_snippets::{AnnotationKind, Level, Renderer, Snippet};

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    message: String,
    /// Where in the file, in bytes, and what to say there. Nowhere, if it came from elsewhere.
    at: Option<(Range<usize>, String)>,
    /// Another place that has to do with it.
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

    pub(crate) fn at(mut self, span: Range<usize>, label: impl Into<String>) -> Self {
        self.at = Some((span, label.into()));
        self
    }

    pub(crate) fn beside(mut self, span: Range<usize>, label: impl Into<String>) -> Self {
        self.beside = Some((span, label.into()));
        self
    }
}

/// Everything that is wrong with one configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigErrors {
    /// The file's name.
    pub file: String,
    /// What stands in it.
    pub text: String,
    /// What is wrong.
    pub errors: Vec<ConfigError>,
    /// What is wrong with other files that belong to it.
    pub elsewhere: Vec<Self>,
}

impl ConfigErrors {
    /// One sentence, about no place in particular.
    pub(crate) fn sentence(file: String, sentence: String) -> Self {
        Self {
            file,
            text: String::new(),
            errors: vec![ConfigError::new(sentence, "")],
            elsewhere: Vec::new(),
        }
    }

    /// For people, in colour if they can see it.
    #[must_use]
    pub fn render(&self, colour: bool) -> String {
        let renderer = if colour { Renderer::styled() } else { Renderer::plain() };
        let mut rendered: Vec<String> = self.errors.iter().map(|error| self.one(error, &renderer)).collect();
        if let many @ 2.. = self.errors.len() {
            rendered.push(format!("{}: {many} mistakes", self.file));
        }
        rendered.extend(self.elsewhere.iter().map(|other| other.render(colour)));
        rendered.join("\n\n")
    }

    /// In the order of the file; what is not in it comes first.
    pub(crate) fn sorted(mut self) -> Self {
        self.errors.sort_by_key(|error| error.at.as_ref().map(|(span, _)| span.start));
        self
    }

    fn one(&self, error: &ConfigError, renderer: &Renderer) -> String {
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

/// The one of `known` that looks most like `written`, if any does.
pub(crate) fn nearest<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let likeness = |name: &str| strsim::jaro_winkler(&written.to_lowercase(), &name.to_lowercase());
    let near = known.into_iter().map(|name| (likeness(name), name)).filter(|(like, _)| *like > 0.75);
    near.max_by(|one, other| one.0.total_cmp(&other.0)).map(|(_, name)| name)
}
