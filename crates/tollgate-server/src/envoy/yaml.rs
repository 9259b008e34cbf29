//! Parses YAML into nodes with spans.
//!
//! The nodes' meaning is not known here. An alias is a reference to its node, not a copy, so a
//! small file cannot expand in memory. The expanded size is bounded, because readers walk all of
//! it.

use std::collections::HashMap;
use std::ops::Range;
use std::rc::Rc;

use saphyr_parser::{Event, Parser, ScalarStyle, ScanError, Span};

use crate::config::{ConfigError, Node, Scalar, ScalarKind, Value};

/// The deepest nesting, aliases expanded.
const DEPTH_MAX: usize = 100;

/// The most nodes of a file, aliases expanded.
const NODES_MAX: usize = 1_000_000;

/// Parses the single document of a file; `None` if it is empty.
pub(super) fn parse(text: &str) -> Result<Option<Rc<Node>>, Box<ConfigError>> {
    let mut builder = Builder::new(text);
    let mut events = Parser::new_from_str(text);
    while let Some(event) = events.next_event() {
        let (event, span) = event.map_err(|error| Box::new(builder.offsets.error(&error)))?;
        builder.take(event, span)?;
    }
    let documents = builder.documents.into_iter().map(|document| document.node);
    let mut documents = documents.filter(|document| !document.is_null());
    let first = documents.next();
    match documents.next() {
        Some(second) => {
            let help = "a file has one domain; move the other to its own file";
            let error = ConfigError::new("there is more than one document", help);
            Err(Box::new(error.at(second.span.clone(), "another one")))
        }
        None => Ok(first),
    }
}

/// Builds nodes from events.
struct Builder<'t> {
    offsets: Offsets<'t>,
    /// The lists and mappings that are not closed yet.
    open: Vec<Open>,
    anchors: HashMap<usize, Measured>,
    documents: Vec<Measured>,
    /// The number of nodes so far, aliases expanded.
    size: usize,
}

struct Open {
    span: Range<usize>,
    anchor: usize,
    children: Vec<Measured>,
}

/// A node, with the number of its nodes and its nesting depth, aliases expanded.
#[derive(Clone)]
struct Measured {
    node: Rc<Node>,
    size: usize,
    depth: usize,
}

impl<'t> Builder<'t> {
    fn new(text: &'t str) -> Self {
        Self {
            offsets: Offsets::new(text),
            open: Vec::new(),
            anchors: HashMap::new(),
            documents: Vec::new(),
            size: 0,
        }
    }

    fn take(&mut self, event: Event<'_>, span: Span) -> Result<(), Box<ConfigError>> {
        let span = self.offsets.range(span);
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_plain = style == ScalarStyle::Plain && tag.is_none();
                let kind = if is_plain { ScalarKind::Plain } else { ScalarKind::String };
                let value = Value::Scalar(Scalar { text: text.into_owned(), kind });
                self.put(Measured { node: Rc::new(Node { span, value }), size: 1, depth: 1 }, anchor)
            }
            Event::SequenceStart(anchor, _) | Event::MappingStart(anchor, _) => {
                if self.open.len() >= DEPTH_MAX {
                    return Err(Box::new(too_deep(span)));
                }
                self.open.push(Open { span, anchor, children: Vec::new() });
                Ok(())
            }
            Event::SequenceEnd => self.close(Value::List),
            Event::MappingEnd => self.close(|children| Value::Map(pairs(children))),
            Event::Alias(anchor) => match self.anchors.get(&anchor).cloned() {
                Some(node) if self.open.len().saturating_add(node.depth) > DEPTH_MAX => {
                    Err(Box::new(too_deep(span)))
                }
                Some(node) => self
                    .put(node, 0)
                    .map_err(|error| Box::new(error.at(span, "this alias makes it too large"))),
                None => {
                    let help = "write the value instead";
                    let error = ConfigError::new("this alias is inside its own anchor", help);
                    Err(Box::new(error.at(span, "here")))
                }
            },
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn close(&mut self, value: impl FnOnce(Vec<Rc<Node>>) -> Value) -> Result<(), Box<ConfigError>> {
        let Some(Open { span, anchor, children }) = self.open.pop() else { return Ok(()) };
        let size = children.iter().fold(1_usize, |size, child| size.saturating_add(child.size));
        let depth = children.iter().map(|child| child.depth).max().unwrap_or(0).saturating_add(1);
        // The children have been counted.
        self.size = self.size.saturating_sub(size.saturating_sub(1));
        let value = value(children.into_iter().map(|child| child.node).collect());
        self.put(Measured { node: Rc::new(Node { span, value }), size, depth }, anchor)
    }

    fn put(&mut self, measured: Measured, anchor: usize) -> Result<(), Box<ConfigError>> {
        self.size = self.size.saturating_add(measured.size);
        if self.size > NODES_MAX {
            let help = format!("at most {NODES_MAX} values are allowed, aliases expanded");
            let error = ConfigError::new("this file is too large", help);
            return Err(Box::new(error.at(measured.node.span.clone(), "up to here")));
        }
        if anchor > 0 {
            self.anchors.insert(anchor, measured.clone());
        }
        match self.open.last_mut() {
            Some(open) => open.children.push(measured),
            None => self.documents.push(measured),
        }
        Ok(())
    }
}

fn too_deep(span: Range<usize>) -> ConfigError {
    let help = format!("at most {DEPTH_MAX} nested lists and mappings are allowed");
    ConfigError::new("this is nested too deeply", help).at(span, "here")
}

/// Pairs up alternating keys and values.
fn pairs(children: Vec<Rc<Node>>) -> Vec<(Rc<Node>, Rc<Node>)> {
    let mut children = children.into_iter();
    std::iter::from_fn(|| children.next().zip(children.next())).collect()
}

/// Converts the parser's character positions to byte offsets.
struct Offsets<'t> {
    text: &'t str,
    /// The byte offset of each character; `None` if the text is ASCII.
    starts: Option<Vec<usize>>,
}

impl<'t> Offsets<'t> {
    fn new(text: &'t str) -> Self {
        let starts = (!text.is_ascii()).then(|| text.char_indices().map(|(start, _)| start).collect());
        Self { text, starts }
    }

    fn byte(&self, character: usize) -> usize {
        let end = self.text.len();
        match &self.starts {
            Some(starts) => starts.get(character).copied().unwrap_or(end),
            None => character.min(end),
        }
    }

    fn error(&self, error: &ScanError) -> ConfigError {
        let at = self.byte(error.marker().index());
        if !error.info().contains("tab") {
            return ConfigError::new("this is not YAML", "").at(at..at, error.info());
        }
        // The parser reports the text around a tab, which may begin a line earlier, or its end.
        let (before, after) = self.text.split_at_checked(at).unwrap_or((self.text, ""));
        let line = before.rfind('\n').map_or(0, |end| end.saturating_add(1));
        let here = before.get(line..).and_then(|line| line.find('\t')).map(|tab| line.saturating_add(tab));
        let tab = here.or_else(|| Some(at.saturating_add(after.find('\t')?))).unwrap_or(at);
        ConfigError::new("this is not YAML", "indent with spaces").at(tab..tab, error.info())
    }

    /// The byte range of a span, without trailing space, and at least one character if the line has
    /// one there.
    fn range(&self, span: Span) -> Range<usize> {
        let (start, end) = (self.byte(span.start.index()), self.byte(span.end.index()));
        let written = self.text.get(start..end).unwrap_or_default().trim_end();
        let next = || self.text.get(start..).and_then(|rest| rest.chars().next());
        let length = match written.len() {
            0 => next().filter(|next| !next.is_whitespace()).map_or(0, char::len_utf8),
            length => length,
        };
        start..start.saturating_add(length)
    }
}
