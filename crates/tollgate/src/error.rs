//! What can go wrong, and what to do about it.
//!
//! A denial is not here: it is a normal value, [`Decision`](crate::Decision).

use std::fmt;

/// Everything this crate can fail with. Each has a stable [`code`](Error::code) for programs and a
/// sentence for people.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// A limit's numbers are out of range.
    InvalidLimit {
        /// Which number.
        field: &'static str,
        /// What it was.
        value: String,
        /// What it may be.
        reason: &'static str,
    },
    /// A limit's notation does not parse.
    InvalidNotation {
        /// The whole text.
        text: String,
        /// Where the trouble starts, counted in characters from 1.
        column: usize,
        /// What is wrong there.
        reason: String,
        /// What to write instead.
        hint: String,
    },
    /// A rule or an override cannot work.
    InvalidRule {
        /// The rule's name.
        rule: String,
        /// Which of its fields.
        field: &'static str,
        /// What is wrong with it and what to write instead.
        reason: String,
    },
    /// A value that would be (part of) a key is empty or too long.
    InvalidKey {
        /// Which attribute it came from.
        attribute: String,
        /// How many bytes it has.
        length: usize,
    },
    /// A cost is out of range.
    InvalidCost {
        /// What it was.
        value: u64,
    },
    /// A setting of the limiter itself is out of range.
    InvalidConfig {
        /// Which setting.
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
    /// No rule covers what this was to be done to, so nothing was done.
    NotCovered,
    /// The store failed or did not answer in time. Checks never end like this: they follow the
    /// rule's policy.
    StoreUnavailable,
    /// The store has no room for one more key that is in use.
    StoreFull,
    /// The store cannot do this at all.
    Unsupported {
        /// What it was asked to do.
        verb: &'static str,
    },
    /// A dump cannot be restored.
    InvalidDump {
        /// Which of its lines, counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// What was kept elsewhere cannot be taken for state.
    InvalidPage {
        /// What is wrong with it.
        reason: &'static str,
    },
    /// Nothing is held under a reservation: it was settled or cancelled already, it has expired, or it was never made.
    NotReserved,
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
            Self::StoreUnavailable => "store_unavailable",
            Self::StoreFull => "store_full",
            Self::Unsupported { .. } => "unsupported",
            Self::InvalidDump { .. } => "invalid_dump",
            Self::InvalidPage { .. } => "invalid_page",
            Self::NotReserved => "not_reserved",
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidLimit { field, value, reason } | Self::InvalidConfig { field, value, reason } => {
                write!(f, "{field} is {value}; it must be {reason}")
            }
            Self::InvalidNotation { text, column, reason, hint } => {
                write!(f, "limit {text:?}: {reason} at column {column}; {hint}")
            }
            Self::InvalidRule { rule, field, reason } => write!(f, "rule {rule:?}: {field}: {reason}"),
            Self::InvalidKey { attribute, length } => write!(
                f,
                "attribute {attribute:?} has {length} bytes; to count by it, it must have 1 to {}",
                crate::key::MAX_VALUE_BYTES
            ),
            Self::InvalidCost { value } => {
                write!(f, "cost is {value}; it must be a whole number from 0 to {}", crate::MAX_COUNT)
            }
            Self::UnknownRule { rule } => {
                write!(f, "there is no rule {rule:?}; see the rule set for the names it has")
            }
            Self::NotCovered => f.write_str(
                "no rule has a budget of its own for that; name every attribute that a rule counts by",
            ),
            Self::StoreUnavailable => {
                f.write_str("the store did not answer; the reason was handed to the observer")
            }
            Self::StoreFull => f.write_str("the store is full of keys in use; raise max_keys"),
            Self::Unsupported { verb } => {
                write!(f, "this store cannot {verb}; use one that implements Store itself")
            }
            Self::InvalidDump { line, reason } => write!(f, "line {line} of the dump is {reason}"),
            Self::InvalidPage { reason } => write!(f, "a page of the stored state is {reason}"),
            Self::NotReserved => {
                f.write_str("nothing is held under that reservation: it was settled or cancelled before, has expired, or was never made")
            }
        }
    }
}

impl std::error::Error for Error {}
