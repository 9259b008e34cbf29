//! Whatever bytes a protocol has, as a value that can be counted by.
//!
//! A limiter counts by texts of 1 to 1024 bytes. Redis keys and Envoy's descriptors may be empty,
//! longer, or no text at all. Refusing those would be an open door where a proxy lets pass what
//! cannot be decided, so each has a name of its own, which no ordinary value can spell. It begins as
//! the value does, as far as that is text, so that a rule for what begins like this still matches.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};
use tollgate::MAX_VALUE_BYTES;

use crate::secret::hex;

/// What stands between the beginning and the hash.
const MARK: &str = "\0#";

/// How much of a value its name begins with: the hash is 64 bytes.
const HEAD_BYTES_MAX: usize = MAX_VALUE_BYTES - MARK.len() - 64;

/// The value that `bytes` are counted as: themselves, nearly always. Different bytes have different
/// values (unless someone finds a collision of SHA-256).
pub(crate) fn value_of(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if (1..=MAX_VALUE_BYTES).contains(&bytes.len()) && !bytes.contains(&0) => {
            Cow::Borrowed(text)
        }
        _ => Cow::Owned(format!("{}{MARK}{}", head(bytes), hex(&Sha256::digest(bytes)))),
    }
}

/// The text that `bytes` begin with, up to a bound.
fn head(bytes: &[u8]) -> &str {
    let bytes = bytes.get(..HEAD_BYTES_MAX).unwrap_or(bytes);
    bytes.utf8_chunks().next().map_or("", |chunk| chunk.valid())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b5_whatever_the_bytes_are_they_are_a_value_of_their_own() {
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
            // One that looks like another's name.
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
    fn a_value_that_is_too_long_or_no_text_still_begins_as_it_does() {
        let long = format!("/login?{}", "ü".repeat(MAX_VALUE_BYTES));
        for bytes in [long.as_bytes(), b"/login\xff", b"/login\0"] {
            assert!(value_of(bytes).starts_with("/login"), "{bytes:?}");
        }
        assert_eq!(value_of(long.as_bytes()).len(), MAX_VALUE_BYTES - 1, "half a letter is none");
    }
}
