//! Keys: the identity of one limit of one budget.
//!
//! A key is a rule's name, one of the rule's budgets, the index of a limit in that budget's list,
//! and the values of the attributes that the rule counts by. Its encoding is injective: each part
//! is preceded by its length, so `a` + `bc` and `ab` + `c` are different keys, and no value can
//! imitate another rule. The limit's numbers are not part of it, so a limit can be replaced and
//! keep its history.

use std::fmt;
use std::time::Duration;

use smallvec::SmallVec;

use crate::{Error, RuleName, format_duration, parse_duration};

/// The longest attribute value that can be part of a key.
pub const MAX_VALUE_BYTES: usize = 1024;

/// The identity of one limit of one budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    rule: RuleName,
    budget: Budget,
    index: u16,
    subject: &'a [u8],
}

impl<'a> Key<'a> {
    pub(crate) const fn new(rule: RuleName, budget: Budget, index: u16, subject: &'a [u8]) -> Self {
        Self { rule, budget, index, subject }
    }

    /// The rule of the budget.
    #[must_use]
    pub const fn rule(&self) -> RuleName {
        self.rule
    }

    /// The budget, among those the rule has for these values.
    #[must_use]
    pub const fn budget(&self) -> Budget {
        self.budget
    }

    /// The index of the limit in the budget's list.
    #[must_use]
    pub const fn index(&self) -> u16 {
        self.index
    }

    /// The encoded values.
    pub(crate) const fn subject(&self) -> &'a [u8] {
        self.subject
    }

    /// Whether both keys belong to the same budget.
    #[must_use]
    pub fn same_budget(&self, other: &Self) -> bool {
        self.rule == other.rule && self.budget == other.budget && self.subject == other.subject
    }

    /// The attribute values, in the order of the rule's key; none for a global budget.
    pub fn values(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.subject;
        std::iter::from_fn(move || {
            let (length, tail) = rest.split_first_chunk::<2>()?;
            let (value, tail) = tail.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            rest = tail;
            Some(value)
        })
    }

    /// Appends the encoding. Different keys have different encodings. Among keys with the same
    /// rule, budget, index and number of values, none is a prefix of another.
    pub fn encode(&self, out: &mut impl Extend<u8>) {
        let mut part = |bytes: &[u8]| {
            // Rule names are at most 128 bytes long, and an override's name is a few conditions.
            out.extend(u16::try_from(bytes.len()).unwrap_or(u16::MAX).to_le_bytes());
            out.extend(bytes.iter().copied());
        };
        part(self.rule.as_str().as_bytes());
        match self.budget {
            Budget::Rule => part(&[]),
            Budget::Override(name) => part(name.as_bytes()),
            inline => part(inline.to_string().as_bytes()),
        }
        out.extend(self.index.to_le_bytes());
        out.extend(self.subject.iter().copied());
    }
}

/// One of the budgets that a rule has for the same attribute values. Budgets are independent: units
/// drawn on one are not drawn on another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Budget {
    /// The budget of the rule's limits, and of overrides that match only on the rule's key: those
    /// replace its limits.
    Rule,
    /// The budget of an override that matches on other attributes. Its name lists the conditions:
    /// `method=POST,path=/login`. It is separate because the next request may match differently.
    Override(&'static str),
    /// The time that all inline token buckets share.
    InlineTime,
    /// The count that all inline windows of this period share.
    InlineCount(Duration),
    /// The slots that all inline limits on concurrency share.
    InlineSlots,
}

impl Budget {
    /// Parses the text that [`Display`](fmt::Display) wrote.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        match text {
            "" => Some(Self::Rule),
            INLINE_TIME => Some(Self::InlineTime),
            INLINE_SLOTS => Some(Self::InlineSlots),
            INLINE_COUNT => Some(Self::InlineCount(Duration::ZERO)),
            _ if text.contains('=') => Some(Self::Override(RuleName::intern(text).as_str())),
            _ => parse_duration(text.strip_prefix("inline ")?).ok().map(Self::InlineCount),
        }
    }

    /// The budget's digest, for hashing: the same in every process. The period of an inline count
    /// is not part of it.
    pub(crate) fn digest(&self, rule: RuleName) -> u64 {
        let name = match self {
            Self::Rule => return rule.digest(),
            Self::Override(name) => name,
            Self::InlineTime => INLINE_TIME,
            Self::InlineCount(_) => INLINE_COUNT,
            Self::InlineSlots => INLINE_SLOTS,
        };
        digest(rule.bytes().chain([0]).chain(name.bytes()))
    }
}

const INLINE_TIME: &str = "inline";
/// Inline windows of any period.
const INLINE_COUNT: &str = "inline count";
const INLINE_SLOTS: &str = "inline slots";

/// The budget's name within its rule: empty for [`Budget::Rule`].
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rule => Ok(()),
            Self::Override(name) => f.write_str(name),
            Self::InlineTime => f.write_str(INLINE_TIME),
            Self::InlineSlots => f.write_str(INLINE_SLOTS),
            Self::InlineCount(Duration::ZERO) => f.write_str(INLINE_COUNT),
            Self::InlineCount(period) => write!(f, "inline {}", format_duration(*period)),
        }
    }
}

/// Appends one value to a subject.
pub(crate) fn push_value(
    subject: &mut SmallVec<[u8; 64]>,
    attribute: &str,
    value: &str,
) -> Result<(), Error> {
    if !is_valid(value) {
        return Err(Error::InvalidKey { attribute: attribute.into(), length: value.len() });
    }
    // A valid value's length fits.
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    subject.extend_from_slice(&length.to_le_bytes());
    subject.extend_from_slice(value.as_bytes());
    Ok(())
}

/// The values that [`push_value`] appended to a subject.
pub(crate) fn values(mut subject: &[u8]) -> impl Iterator<Item = &str> {
    std::iter::from_fn(move || {
        let (length, rest) = subject.split_first_chunk()?;
        let (value, rest) = rest.split_at(usize::from(u16::from_le_bytes(*length)));
        subject = rest;
        Some(std::str::from_utf8(value).expect("a value was a string"))
    })
}

/// Whether a value can be part of a key.
#[inline]
pub(crate) fn is_valid(value: &str) -> bool {
    (1..=MAX_VALUE_BYTES).contains(&value.len())
}

/// FNV-1a, 64 bits: the same in every process. An attacker gains nothing from collisions where it
/// is used.
pub(crate) fn digest(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::HOUR;

    fn encoded(rule: &str, budget: Budget, index: u16, values: &[&str]) -> Vec<u8> {
        let mut subject = SmallVec::new();
        for value in values {
            push_value(&mut subject, "client", value).unwrap();
        }
        let key = Key::new(RuleName::intern(rule), budget, index, &subject);
        assert_eq!(key.values().collect::<Vec<_>>(), values.iter().map(|v| v.as_bytes()).collect::<Vec<_>>());
        let mut out = Vec::new();
        key.encode(&mut out);
        out
    }

    #[test]
    fn b5_keys_that_look_alike_are_different_keys() {
        let alike = [
            encoded("r", Budget::Rule, 0, &["a", "bc"]),
            encoded("r", Budget::Rule, 0, &["ab", "c"]),
            encoded("r", Budget::Rule, 0, &["abc"]),
            encoded("r", Budget::Rule, 1, &["abc"]),
            encoded("ra", Budget::Rule, 0, &["bc"]),
            encoded("r", Budget::Rule, 0, &["\u{1}\0a", "b"]),
            encoded("r", Budget::Rule, 0, &["\u{1}", "\0ab"]),
            encoded("r", Budget::Rule, 0, &[]),
            encoded("r", Budget::Override("path=/x"), 0, &["abc"]),
            encoded("r", Budget::InlineTime, 0, &["abc"]),
            encoded("r", Budget::InlineCount(HOUR), 0, &["abc"]),
            encoded("r", Budget::InlineSlots, 0, &["abc"]),
        ];
        for (i, one) in alike.iter().enumerate() {
            for other in &alike[i + 1..] {
                assert_ne!(one, other);
            }
        }
    }

    #[test]
    fn a_budget_is_parsed_from_its_name() {
        let budgets = [
            Budget::Rule,
            Budget::Override("path=/x"),
            Budget::InlineTime,
            Budget::InlineSlots,
            Budget::InlineCount(HOUR),
        ];
        for budget in budgets {
            assert_eq!(Budget::parse(&budget.to_string()), Some(budget));
        }
        assert_eq!(Budget::parse("nonsense"), None);
    }

    #[test]
    fn d3_an_empty_or_too_long_value_is_refused_as_a_key() {
        for value in [String::new(), "x".repeat(MAX_VALUE_BYTES + 1), "x".repeat(70_000)] {
            let error = push_value(&mut SmallVec::new(), "client", &value).unwrap_err();
            assert_eq!(error.code(), "invalid_key");
            assert!(error.to_string().contains("\"client\""));
        }
    }
}
