//! Whatever bytes a protocol has, as a value that can be counted by.
//!
//! A limiter counts by texts of 1 to 1024 bytes. Redis keys and Envoy's descriptors may be empty,
//! longer, or no text at all. Refusing those would be an open door where a proxy lets pass what
//! cannot be decided, so each has a name of its own, which no ordinary value can spell: it begins
//! with a zero byte.

use std::borrow::Cow;

use sha2::{Digest as _, Sha256};
use tollgate::MAX_VALUE_BYTES;

use crate::secret::hex;

/// The value that `bytes` are counted as: themselves, nearly always. Different bytes have different
/// values (unless someone finds a collision of SHA-256).
pub(crate) fn value_of(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) if (1..=MAX_VALUE_BYTES).contains(&text.len()) && !text.starts_with('\0') => {
            Cow::Borrowed(text)
        }
        _ if bytes.len() < MAX_VALUE_BYTES / 2 => Cow::Owned(format!("\0={}", hex(bytes))),
        _ => Cow::Owned(format!("\0#{}", hex(&Sha256::digest(bytes)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn b5_whatever_the_bytes_are_they_are_a_value_of_their_own() {
        let long = "x".repeat(MAX_VALUE_BYTES + 1);
        let longer = "x".repeat(MAX_VALUE_BYTES + 2);
        let odd: [&[u8]; 11] = [
            b"alice",
            b"",
            b"\0",
            b"\0\0",
            b"\0=",
            b"\0=00",
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
}
