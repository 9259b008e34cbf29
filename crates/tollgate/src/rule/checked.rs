//! Checking a rule: every error names the field and says what to write.

use super::{MAX_KEY_ATTRIBUTES, Rule, check_matches};
use crate::{Error, Limit, MAX_COUNT};

/// The longest rule name.
const MAX_NAME_BYTES: usize = 128;

/// The most limits of a rule or an override.
const MAX_LIMITS: usize = 64;

impl Rule {
    pub(super) fn check(&self) -> Result<(), Error> {
        let invalid =
            |field, reason: String| Err(Error::InvalidRule { rule: self.name.to_string(), field, reason });
        let printable = self.name.bytes().all(|byte| (b' '..=b'~').contains(&byte));
        if self.name.is_empty() || self.name.len() > MAX_NAME_BYTES || !printable {
            return invalid("name", format!("write 1 to {MAX_NAME_BYTES} printable ASCII characters"));
        }
        if !(1..=MAX_COUNT).contains(&self.cost) {
            return invalid(
                "cost",
                format!("{} is out of range; write a whole number from 1 to {MAX_COUNT}", self.cost),
            );
        }
        if let Some(percent) = self.warn_at.filter(|percent| !(1..=100).contains(percent)) {
            let reason = format!("{percent} % is out of range; write a percentage from 1 to 100");
            return invalid("warn", reason);
        }
        if let Some(twice) =
            self.key.iter().enumerate().find(|(i, name)| self.key.iter().take(*i).any(|n| n == *name))
        {
            return invalid("key", format!("attribute {:?} is listed twice; name it once", twice.1));
        }
        if self.key.len() > MAX_KEY_ATTRIBUTES {
            let many = self.key.len();
            return invalid("key", format!("it has {many} attributes; the maximum is {MAX_KEY_ATTRIBUTES}"));
        }
        if self.key.iter().any(String::is_empty) {
            return invalid("key", "an attribute has no name; name it or leave it out".into());
        }
        if !self.inline {
            check_limits(&self.limits).or_else(|reason| invalid("limit", reason))?;
        }
        check_matches(&self.matches).or_else(|reason| invalid("match", reason))
    }
}

/// Checks the number of limits.
pub(super) fn check_limits(limits: &[Limit]) -> Result<(), String> {
    match limits.len() {
        0 => Err("it has no limit; give it one".into()),
        1..=MAX_LIMITS => Ok(()),
        many => Err(format!("it has {many} limits; the maximum is {MAX_LIMITS}")),
    }
}
