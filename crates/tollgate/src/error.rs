//! Errors, and what to do about them.
//!
//! A denial is not an error: it is a [`Decision`](crate::Decision).

use std::fmt;
use std::time::Duration;

/// The error of this crate. Each variant has a stable [`code`](Error::code) for programs and a
/// message for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A limit's numbers are out of range.
    InvalidLimit {
        /// The name of the number.
        field: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        reason: &'static str,
    },
    /// The notation of a limit or a duration does not parse.
    InvalidNotation {
        /// What the text should have been: `limit` or `duration`.
        what: &'static str,
        /// The whole text.
        text: String,
        /// Where the error starts, counted in characters from 1.
        column: usize,
        /// The error at that column.
        reason: String,
        /// What to write instead.
        hint: String,
    },
    /// A rule or an override is invalid.
    InvalidRule {
        /// The rule's name.
        rule: String,
        /// The invalid field.
        field: &'static str,
        /// The error, and what to write instead.
        reason: String,
    },
    /// An attribute value that is part of a key is empty or too long.
    InvalidKey {
        /// The attribute.
        attribute: String,
        /// The value's length in bytes.
        length: usize,
    },
    /// A cost is out of range.
    InvalidCost {
        /// What it was.
        value: u64,
    },
    /// A setting of the limiter itself is out of range.
    InvalidConfig {
        /// The setting.
        field: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        reason: &'static str,
    },
    /// No rule has that name.
    UnknownRule {
        /// The name.
        rule: String,
    },
    /// No rule covers the client, so the operation did nothing.
    NotCovered,
    /// The store failed or did not answer in time. A check never fails like this: it follows the
    /// rule's failure policy.
    StoreUnavailable {
        /// The store's own sentence. It may name hosts and users: show it to administrators, not to
        /// clients.
        reason: String,
    },
    /// The callers of this process ask for more than the store can do, and the caller of this
    /// request asks for the most. The request did not reach the store: nothing was decided, and
    /// nothing was taken, whatever the rule's failure policy.
    Overloaded {
        /// When to try again.
        retry_after: Duration,
    },
    /// The store has no room for one more busy key.
    StoreFull,
    /// The store does not support the operation.
    Unsupported {
        /// The operation's name.
        verb: &'static str,
    },
    /// A dump cannot be restored.
    InvalidDump {
        /// The line number, counted from 1.
        line: u64,
        /// The error.
        reason: &'static str,
    },
    /// A page of a durable store cannot be loaded.
    InvalidPage {
        /// The error.
        reason: &'static str,
    },
    /// The reservation or the slot does not exist: it was settled, cancelled or released already,
    /// has expired, or was never made.
    NotReserved,
    /// A rule limits how many requests are under way at once, and the operation cannot return the
    /// name of a slot.
    SlotNeeded {
        /// The rule's name.
        rule: String,
    },
}

impl Error {
    /// A stable name for programs to match on.
    #[must_use]
    pub const fn code(&self) -> &'static str {
        match self {
            Self::InvalidLimit { .. } | Self::InvalidNotation { .. } => "invalid_limit",
            Self::InvalidRule { .. } => "invalid_rule",
            Self::InvalidKey { .. } => "invalid_key",
            Self::InvalidCost { .. } => "invalid_cost",
            Self::InvalidConfig { .. } => "invalid_config",
            Self::UnknownRule { .. } => "unknown_rule",
            Self::NotCovered => "not_covered",
            Self::StoreUnavailable { .. } => "store_unavailable",
            Self::Overloaded { .. } => "overloaded",
            Self::StoreFull => "store_full",
            Self::Unsupported { .. } => "unsupported",
            Self::InvalidDump { .. } => "invalid_dump",
            Self::InvalidPage { .. } => "invalid_page",
            Self::NotReserved => "not_reserved",
            Self::SlotNeeded { .. } => "slot_needed",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidLimit { field, value, reason } | Self::InvalidConfig { field, value, reason } => {
                write!(f, "{field} is {value}; it must be {reason}")
            }
            Self::InvalidNotation { what, text, column, reason, hint } => {
                write!(f, "{what} {text:?}: {reason} at column {column}; {hint}")
            }
            Self::InvalidRule { rule, field, reason } => write!(f, "rule {rule:?}: {field}: {reason}"),
            Self::InvalidKey { attribute, length } => write!(
                f,
                "attribute {attribute:?} has {length} bytes; an attribute of a key must have 1 to {}",
                crate::key::MAX_VALUE_BYTES
            ),
            Self::InvalidCost { value } => {
                write!(f, "cost is {value}; it must be a whole number from 0 to {}", crate::MAX_COUNT)
            }
            Self::UnknownRule { rule } => {
                write!(f, "there is no rule {rule:?}; use a name from the rule set")
            }
            Self::NotCovered => f.write_str(
                "no rule counts by these attributes; name every attribute of a rule's key",
            ),
            Self::StoreUnavailable { .. } => f.write_str("the store did not answer"),
            Self::Overloaded { retry_after } => write!(
                f,
                "more is asked than the store can do, and this caller asks for the most; try again in {}",
                crate::format_duration(*retry_after)
            ),
            Self::StoreFull => f.write_str("the store is full of keys in use; raise max_keys"),
            Self::Unsupported { verb } => {
                write!(f, "this store cannot {verb}; use one that implements Store itself")
            }
            Self::InvalidDump { line, reason } => write!(f, "line {line} of the dump is {reason}"),
            Self::InvalidPage { reason } => write!(f, "a page of the stored state is {reason}"),
            Self::NotReserved => {
                f.write_str("the reservation or slot does not exist: it was settled, cancelled or released before, has expired, or was never made")
            }
            Self::SlotNeeded { rule } => write!(
                f,
                "rule {rule:?} limits how many requests are under way at once; acquire a slot and release it, instead of checking"
            ),
        }
    }
}

impl std::error::Error for Error {}
