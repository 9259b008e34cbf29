//! Any bytes of a protocol as an attribute value.
//!
//! An attribute value is a text of 1 to 1024 bytes. Redis keys and Envoy's descriptors may be
//! empty, longer, or not UTF-8. Rejecting those would let a client evade its limit behind a proxy
//! that fails open, so each maps to a distinct value that no ordinary one can equal. The value
//! keeps the text's beginning, so prefix matches still apply.

use std::borrow::Cow;

use percent_encoding::{CONTROLS, percent_encode};
use sha2::{Digest as _, Sha256};
use tollgate::{MAX_VALUE_BYTES, Paths};

use crate::secret::hex;

/// The separator between the beginning and the hash.
const MARK: &str = "\0#";

/// The longest beginning that is kept: the hash is 64 bytes.
const HEAD_BYTES_MAX: usize = MAX_VALUE_BYTES - MARK.len() - 64;

/// The attribute value of `bytes`: nearly always the bytes themselves. Different bytes have
/// different values, short of a SHA-256 collision.
pub(crate) fn value_of(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if (1..=MAX_VALUE_BYTES).contains(&bytes.len()) && !bytes.contains(&0) => {
            Cow::Borrowed(text)
        }
        _ => Cow::Owned(format!("{}{MARK}{}", head(bytes), hex(&Sha256::digest(bytes)))),
    }
}

/// The value of an attribute. A path is normalised before it is shortened: otherwise a long
/// spelling of a short path would be another path. (One that is neither too long nor binary is left
/// to the rules, which know how they see paths.)
pub(crate) fn attribute_value<'a>(name: &str, bytes: &'a [u8]) -> Cow<'a, str> {
    let value = value_of(bytes);
    if name != "path" || matches!(value, Cow::Borrowed(_)) || !bytes.starts_with(b"/") {
        return value;
    }
    // All that is not ASCII is encoded, and what is UTF-8 of it decoded again.
    let path: Cow<'_, str> = percent_encode(bytes, CONTROLS).into();
    let mut path = Paths::Normalized.normalize(&path).into_owned();
    path.truncate(path.floor_char_boundary(MAX_VALUE_BYTES));
    Cow::Owned(path)
}

/// The valid UTF-8 that `bytes` begin with, up to a bound.
fn head(bytes: &[u8]) -> &str {
    let bytes = bytes.get(..HEAD_BYTES_MAX).unwrap_or(bytes);
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b5_different_bytes_have_different_values() {
        let long = "x".repeat(MAX_VALUE_BYTES + 1);
        let longer = "x".repeat(MAX_VALUE_BYTES + 2);
        let named = value_of(b"a\0").into_owned();
        let odd: [&[u8]; 14] = [
            b"alice",
            b"",
            b"\0",
            b"\0\0",
            b"\0#",
            b"a",
            b"a\0",
            // The value of other bytes.
            named.as_bytes(),
            b"a\xff",
            b"\xff\xfe",
            b"\xff",
            long.as_bytes(),
            longer.as_bytes(),
            &[0xff; 600],
        ];
        let values = odd.map(value_of);
        for (index, value) in values.iter().enumerate() {
            assert!((1..=MAX_VALUE_BYTES).contains(&value.len()));
            assert!(values[index + 1..].iter().all(|other| other != value), "{value:?}");
        }
        assert_eq!(values[0], "alice");
    }

    #[test]
    fn f5_a_path_that_is_too_long_or_binary_is_normalised_before_it_is_shortened() {
        let spelled = format!("{}/%6Cogin;x", "/.".repeat(MAX_VALUE_BYTES));
        assert_eq!(attribute_value("path", spelled.as_bytes()), "/login");
        assert_ne!(attribute_value("other", spelled.as_bytes()), "/login");
        assert_eq!(attribute_value("path", b"//caf\xc3\xa9/\xff/"), "/café/%FF");
        assert_eq!(attribute_value("path", b"//login"), "//login", "the rules see to it");
        let long = format!("/{}", "ü".repeat(MAX_VALUE_BYTES));
        assert_eq!(attribute_value("path", long.as_bytes()).len(), MAX_VALUE_BYTES - 1);
        assert_eq!(attribute_value("path", b""), value_of(b""));
    }

    #[test]
    fn a_long_or_binary_value_keeps_its_beginning() {
        let long = format!("/login?{}", "ü".repeat(MAX_VALUE_BYTES));
        for bytes in [long.as_bytes(), b"/login\xff", b"/login\0"] {
            assert!(value_of(bytes).starts_with("/login"), "{bytes:?}");
        }
        assert_eq!(value_of(long.as_bytes()).len(), MAX_VALUE_BYTES - 1, "no partial character is kept");
    }
}
