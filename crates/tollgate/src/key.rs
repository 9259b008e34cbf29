//! The identity of one counted thing.
//!
//! A key is a rule's name, the place of a limit in that rule's list, and the values of the
//! attributes that the rule counts by. Its encoding is injective: each part is preceded by its
//! length, so `a` + `bc` and `ab` + `c` are different keys, and no value can imitate another rule.
//! It says nothing about the limit's numbers, so a limit can change and keep its history.

use smallvec::SmallVec;

use crate::{Error, RuleName};

/// The longest attribute value that can be part of a key.
pub const MAX_VALUE_BYTES: usize = 1024;

/// Which budget is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key<'a> {
    rule: RuleName,
    place: u16,
    subject: &'a [u8],
}

impl<'a> Key<'a> {
    pub(crate) const fn new(rule: RuleName, place: u16, subject: &'a [u8]) -> Self {
        Self { rule, place, subject }
    }

    /// The rule whose budget it is.
    #[must_use]
    pub const fn rule(&self) -> RuleName {
        self.rule
    }

    /// Which of the rule's limits, counted from 0.
    #[must_use]
    pub const fn place(&self) -> u16 {
        self.place
    }

    /// The encoded values.
    pub(crate) const fn subject(&self) -> &'a [u8] {
        self.subject
    }

    /// The attribute values that it is the budget of, in the order of the rule's key; none for a
    /// global budget.
    pub fn values(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut rest = self.subject;
        std::iter::from_fn(move || {
            let (length, tail) = rest.split_first_chunk::<2>()?;
            let (value, tail) = tail.split_at_checked(usize::from(u16::from_le_bytes(*length)))?;
            rest = tail;
            Some(value)
        })
    }

    /// Appends the encoding. Different keys have different encodings, and none is the beginning of
    /// another's of the same rule and place with as many values.
    pub fn encode(&self, out: &mut impl Extend<u8>) {
        let name = self.rule.as_str().as_bytes();
        // Rule names are at most 128 bytes long.
        out.extend(u16::try_from(name.len()).unwrap_or(u16::MAX).to_le_bytes());
        out.extend(name.iter().copied());
        out.extend(self.place.to_le_bytes());
        out.extend(self.subject.iter().copied());
    }
}

/// Appends one value to a subject.
pub(crate) fn push_value(
    subject: &mut SmallVec<[u8; 64]>,
    attribute: &str,
    value: &str,
) -> Result<(), Error> {
    let value = checked_value(attribute, value)?;
    // What is checked fits.
    let length = u16::try_from(value.len()).unwrap_or(u16::MAX);
    subject.extend_from_slice(&length.to_le_bytes());
    subject.extend_from_slice(value.as_bytes());
    Ok(())
}

/// A value that can be part of a key.
#[inline]
pub(crate) fn checked_value<'a>(attribute: &str, value: &'a str) -> Result<&'a str, Error> {
    if (1..=MAX_VALUE_BYTES).contains(&value.len()) {
        return Ok(value);
    }
    Err(Error::InvalidKey { attribute: attribute.into(), length: value.len() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(rule: &str, place: u16, values: &[&str]) -> Vec<u8> {
        let mut subject = SmallVec::new();
        for value in values {
            push_value(&mut subject, "client", value).unwrap();
        }
        let key = Key::new(RuleName::intern(rule), place, &subject);
        assert_eq!(key.values().collect::<Vec<_>>(), values.iter().map(|v| v.as_bytes()).collect::<Vec<_>>());
        let mut out = Vec::new();
        key.encode(&mut out);
        out
    }

    #[test]
    fn b5_keys_that_look_alike_are_different_keys() {
        let alike = [
            encoded("r", 0, &["a", "bc"]),
            encoded("r", 0, &["ab", "c"]),
            encoded("r", 0, &["abc"]),
            encoded("r", 1, &["abc"]),
            encoded("ra", 0, &["bc"]),
            encoded("r", 0, &["\u{1}\0a", "b"]),
            encoded("r", 0, &["\u{1}", "\0ab"]),
            encoded("r", 0, &[]),
        ];
        for (i, one) in alike.iter().enumerate() {
            for other in &alike[i + 1..] {
                assert_ne!(one, other);
            }
        }
    }

    #[test]
    fn d3_an_empty_or_too_long_value_is_no_key() {
        for value in [String::new(), "x".repeat(MAX_VALUE_BYTES + 1), "x".repeat(70_000)] {
            let error = push_value(&mut SmallVec::new(), "client", &value).unwrap_err();
            assert_eq!(error.code(), "invalid_key");
            assert!(error.to_string().contains("\"client\""));
        }
    }
}
