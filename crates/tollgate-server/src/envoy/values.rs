//! The types of settings, as the reference reads them from YAML.

use crate::config::{Format, ParseError, Setting};

/// The format of the files: where each setting belongs.
pub(super) const FORMAT: Format = Format::Yaml(&[
    (&["domain"], "at the top of the file"),
    (
        &["value", "rate_limit", "shadow_mode", "quota_mode", "detailed_metric", "share_threshold"],
        "in a descriptor, beside its `key`",
    ),
    (
        &["unit", "requests_per_unit", "unit_multiplier", "unlimited", "algorithm", "replaces"],
        "in a descriptor's `rate_limit`",
    ),
]);

/// A string as written: `0123` and `true` are valid strings.
pub(super) struct Text(pub(super) String);

impl Setting for Text {
    const EXPECTED: &'static str = "a string";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        Ok(Self(text.into()))
    }
}

/// A boolean in any spelling of YAML 1.1.
pub(super) struct Flag(pub(super) bool);

impl Setting for Flag {
    const EXPECTED: &'static str = "true or false";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        match text.to_ascii_lowercase().as_str() {
            "true" | "yes" | "on" | "y" => Ok(Self(true)),
            "false" | "no" | "off" | "n" => Ok(Self(false)),
            _ => Err(ParseError::new("this is neither true nor false", "write true or false")),
        }
    }
}

/// A non-negative integer.
pub(super) struct Count(pub(super) u64);

impl Setting for Count {
    const EXPECTED: &'static str = "a whole number";

    fn from_text(text: &str) -> Result<Self, ParseError> {
        let help = "write digits, such as 100";
        whole(text).map(Self).ok_or_else(|| ParseError::new("this is not a whole number", help))
    }
}

/// An integer as YAML 1.1 and the reference read it: `010` is eight.
fn whole(text: &str) -> Option<u64> {
    let digits = text.replace('_', "");
    let digits = digits.strip_prefix('+').unwrap_or(&digits);
    let other = |radix, digits: &str| {
        digits
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric())
            .then(|| u64::from_str_radix(digits, radix).ok())
    };
    let prefixed = [("0x", 16), ("0X", 16), ("0o", 8), ("0b", 2), ("0", 8)];
    let found = prefixed.into_iter().find_map(|(prefix, radix)| {
        let digits = digits.strip_prefix(prefix).filter(|digits| !digits.is_empty())?;
        Some(other(radix, digits).flatten())
    });
    found.unwrap_or_else(|| other(10, digits).flatten())
}
