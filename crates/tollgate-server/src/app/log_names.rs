//! Names of clients in log lines: masked or shortened, and without hidden characters.

use std::sync::atomic::{AtomicBool, Ordering};

use super::LOGGED_BYTES_MAX;
use crate::printable::without_hidden;
use crate::secret::Secret;

#[derive(Debug)]
pub(crate) struct LogNames {
    /// The key of the hash that masks names.
    mask: Secret,
    masked: AtomicBool,
}

impl LogNames {
    /// # Errors
    /// If there is no randomness for the key.
    pub(super) fn new(masked: bool) -> Result<Self, String> {
        Ok(Self { mask: Secret::random()?, masked: AtomicBool::new(masked) })
    }

    /// Sets whether names are masked.
    pub(super) fn set_masked(&self, masked: bool) {
        self.masked.store(masked, Ordering::Relaxed);
    }

    /// A name for a log line.
    pub(crate) fn logged(&self, name: &str) -> String {
        if self.masked.load(Ordering::Relaxed) {
            return self.mask.mask(name);
        }
        // `floor_char_boundary` is a boundary within the text.
        match name.len() {
            ..=LOGGED_BYTES_MAX => without_hidden(name),
            _ => without_hidden(&name[..name.floor_char_boundary(LOGGED_BYTES_MAX)]) + "…",
        }
    }
}
