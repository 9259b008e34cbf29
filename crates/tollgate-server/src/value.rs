//! Any bytes of a protocol as an attribute value.
//!
//! An attribute value is a text of 1 to 1024 bytes. Redis keys and Envoy's descriptors may be
//! empty, longer, or not UTF-8. Rejecting those would let a client evade its limit behind a proxy
//! that fails open, so each maps to a distinct value that no ordinary one can equal. The value
//! keeps the text's beginning, so prefix matches still apply.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};
use tollgate::MAX_VALUE_BYTES;

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
    fn a_long_or_binary_value_keeps_its_beginning() {
        let long = format!("/login?{}", "ü".repeat(MAX_VALUE_BYTES));
        for bytes in [long.as_bytes(), b"/login\xff", b"/login\0"] {
            assert!(value_of(bytes).starts_with("/login"), "{bytes:?}");
        }
        assert_eq!(value_of(long.as_bytes()).len(), MAX_VALUE_BYTES - 1, "no partial character is kept");
    }
}
