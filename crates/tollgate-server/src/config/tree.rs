//! A configuration file as a tree with spans, TOML or YAML. What the nodes mean is not known here.

use std::ops::Range;
use std::rc::Rc;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

/// A node of a file.
#[derive(Debug)]
pub(crate) struct Node {
    /// The span in bytes; for a list or a mapping of YAML, of its beginning.
    pub(crate) span: Range<usize>,
    pub(crate) value: Value,
}

/// The content of a node.
#[derive(Debug)]
pub(crate) enum Value {
    Scalar(Scalar),
    List(Vec<Rc<Node>>),
    Map(Vec<(Rc<Node>, Rc<Node>)>),
}

/// A value without parts, as written.
#[derive(Debug)]
pub(crate) struct Scalar {
    pub(crate) text: String,
    pub(crate) kind: ScalarKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScalarKind {
    String,
    /// A word of YAML without quotes, whose type its reader chooses. Only such a word can be null.
    Plain,
    Integer {
        radix: u32,
    },
    Float,
    Boolean,
    Datetime,
}

impl Node {
    /// The root of a TOML file.
    pub(super) fn of_toml(table: &DeTable<'_>) -> Self {
        Self { span: 0..0, value: map(table) }
    }

    /// Whether the node is null.
    pub(crate) fn is_null(&self) -> bool {
        match &self.value {
            Value::Scalar(Scalar { text, kind: ScalarKind::Plain }) => {
                matches!(text.as_str(), "" | "~" | "null" | "Null" | "NULL")
            }
            Value::Scalar(_) | Value::List(_) | Value::Map(_) => false,
        }
    }
}

fn map(table: &DeTable<'_>) -> Value {
    let key = |key: &Spanned<_>| {
        let text: &std::borrow::Cow<'_, str> = key.get_ref();
        let value = Value::Scalar(Scalar { text: text.to_string(), kind: ScalarKind::String });
        Rc::new(Node { span: key.span(), value })
    };
    Value::Map(table.iter().map(|(name, value)| (key(name), node(value))).collect())
}

fn node(value: &Spanned<DeValue<'_>>) -> Rc<Node> {
    let scalar = |text: &str, kind| Value::Scalar(Scalar { text: text.into(), kind });
    let span = value.span();
    let value = match value.get_ref() {
        DeValue::String(text) => scalar(text, ScalarKind::String),
        DeValue::Integer(integer) => scalar(integer.as_str(), ScalarKind::Integer { radix: integer.radix() }),
        DeValue::Float(float) => scalar(float.as_str(), ScalarKind::Float),
        DeValue::Boolean(boolean) => scalar(&boolean.to_string(), ScalarKind::Boolean),
        DeValue::Datetime(datetime) => scalar(&datetime.to_string(), ScalarKind::Datetime),
        DeValue::Array(array) => Value::List(array.iter().map(node).collect()),
        DeValue::Table(table) => map(table),
    };
    Rc::new(Node { span, value })
}
