//! The name of a rule.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{Mutex, PoisonError};

use crate::key::digest;

/// The name of a rule, cheap to copy.
///
/// Names are interned for the life of the process. They come from configuration, never from
/// clients.
#[derive(Clone, Copy)]
pub struct RuleName(&'static Interned);

struct Interned {
    name: String,
    digest: u64,
}

impl RuleName {
    pub(crate) fn intern(name: &str) -> Self {
        static NAMES: Mutex<BTreeMap<&'static str, RuleName>> = Mutex::new(BTreeMap::new());
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = names.get(name) {
            return *known;
        }
        let interned =
            Self(Box::leak(Box::new(Interned { name: name.into(), digest: digest(name.bytes()) })));
        names.insert(interned.as_str(), interned);
        interned
    }

    /// The digest of the name: the same in every process.
    pub(crate) const fn digest(&self) -> u64 {
        self.0.digest
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &'static str {
        &self.0.name
    }
}

impl Deref for RuleName {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Borrow<str> for RuleName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl fmt::Display for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for RuleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl PartialEq for RuleName {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for RuleName {}

impl Hash for RuleName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl PartialOrd for RuleName {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for RuleName {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}
