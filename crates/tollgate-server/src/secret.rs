//! A secret, which neither a log, an error nor the time of a comparison reveals.

use std::fmt;

use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// A token or a password.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Wraps a secret.
    pub(crate) const fn new(token: String) -> Self {
        Self(token)
    }

    /// A random secret: 128 bits from the operating system.
    ///
    /// # Errors
    /// If the operating system has no randomness.
    pub(crate) fn random() -> Result<Self, String> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| format!("cannot make a random token: {error}"))?;
        Ok(Self(hex(&bytes)))
    }

    /// The secret itself.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// Compares in a time that reveals neither the length nor a matching prefix.
    #[must_use]
    pub fn is(&self, guess: &[u8]) -> bool {
        Sha256::digest(self.0.as_bytes()).as_slice().ct_eq(Sha256::digest(guess).as_slice()).into()
    }

    /// A keyed hash of `text`: equal for equal texts, and not reversible without the secret.
    pub(crate) fn mask(&self, text: &str) -> String {
        let hash =
            Sha256::new().chain_update(self.0.as_bytes()).chain_update([0]).chain_update(text).finalize();
        // SHA-256 has 32 bytes.
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
    fn only_the_whole_secret_matches_and_debug_hides_it() {
        let secret = Secret::new("open sesame".into());
        assert!(secret.is(b"open sesame"));
        assert!(!secret.is(b"open sesam") && !secret.is(b"open sesame ") && !secret.is(b""));
        assert_eq!(format!("{secret:?}"), "Secret");
        assert_ne!(Secret::random().unwrap(), Secret::random().unwrap());
    }

    #[test]
    fn a_mask_depends_on_the_text_and_the_secret() {
        let (one, other) = (Secret::new("1".into()), Secret::new("2".into()));
        assert_eq!(one.mask("alice"), one.mask("alice"));
        assert_ne!(one.mask("alice"), one.mask("alicf"));
        assert_ne!(one.mask("alice"), other.mask("alice"), "a table of all addresses cannot be precomputed");
        assert_eq!(one.mask("alice").len(), 16);
    }
}
