//! A word that must not be seen: not in a log, not in an error, not in how long it takes to compare.

use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A token.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// This one.
    #[must_use]
    pub const fn new(token: String) -> Self {
        Self(token)
    }

    /// One that nobody knows yet: 128 bits from the operating system.
    ///
    /// # Errors
    /// If it has none to give.
    pub fn random() -> Result<Self, String> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| format!("cannot make a random token: {error}"))?;
        Ok(Self(hex(&bytes)))
    }

    /// The token itself: for the one who may see it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether this is it, in a time that does not tell how much of it is right, nor how long it
    /// is.
    #[must_use]
    pub fn is(&self, guess: &[u8]) -> bool {
        Sha256::digest(self.0.as_bytes()).as_slice().ct_eq(Sha256::digest(guess).as_slice()).into()
    }

    /// A name for `text` that does not tell it, the same for the same text and secret.
    #[must_use]
    pub fn mask(&self, text: &str) -> String {
        let hash =
            Sha256::new().chain_update(self.0.as_bytes()).chain_update([0]).chain_update(text).finalize();
        // A SHA-256 has 32 bytes.
        hex(&hash[..8])
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret")
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| text + &format!("{byte:02x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_known_by_all_of_it_and_seen_nowhere() {
        let secret = Secret::new("open sesame".into());
        assert!(secret.is(b"open sesame"));
        assert!(!secret.is(b"open sesam") && !secret.is(b"open sesame ") && !secret.is(b""));
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_ne!(Secret::random().unwrap(), Secret::random().unwrap());
    }

    #[test]
    fn a_masked_name_is_the_same_for_the_same_text_and_secret_only() {
        let (one, other) = (Secret::new("1".into()), Secret::new("2".into()));
        assert_eq!(one.mask("alice"), one.mask("alice"));
        assert_ne!(one.mask("alice"), one.mask("alicf"));
        assert_ne!(
            one.mask("alice"),
            other.mask("alice"),
            "nobody can make a table of all addresses beforehand"
        );
        assert_eq!(one.mask("alice").len(), 16);
    }
}
