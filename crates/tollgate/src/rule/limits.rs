//! A list of limits as one value that is cheap to copy and to compare.

use std::collections::HashMap;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::{Limit, Meter};

/// One limit or several: `limit.into()`, `[one, another].into()`.
///
/// Lists are interned for the life of the process. They come from configuration, never from
/// clients.
#[derive(Clone, Copy)]
pub struct Limits(&'static List);

struct List {
    limits: Box<[Limit]>,
    words: Option<usize>,
}

impl Limits {
    /// Words of the packed states of all limits, if all of them pack.
    #[inline]
    pub(crate) fn words(self) -> Option<usize> {
        self.0.words
    }

    /// The limits.
    #[must_use]
    #[inline]
    pub fn as_slice(self) -> &'static [Limit] {
        &self.0.limits
    }
}

impl From<Vec<Limit>> for Limits {
    fn from(limits: Vec<Limit>) -> Self {
        static LISTS: LazyLock<Mutex<HashMap<&'static [Limit], Limits>>> = LazyLock::new(Mutex::default);
        let mut lists = LISTS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = lists.get(limits.as_slice()) {
            return *known;
        }
        let words = limits.iter().map(Meter::words).try_fold(0, |sum: usize, words| sum.checked_add(words?));
        let interned = Self(Box::leak(Box::new(List { limits: limits.into(), words })));
        lists.insert(interned.as_slice(), interned);
        interned
    }
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        vec![limit].into()
    }
}

impl<const N: usize> From<[Limit; N]> for Limits {
    fn from(limits: [Limit; N]) -> Self {
        limits.to_vec().into()
    }
}

impl Deref for Limits {
    type Target = [Limit];

    fn deref(&self) -> &[Limit] {
        self.as_slice()
    }
}

impl IntoIterator for Limits {
    type Item = &'static Limit;
    type IntoIter = std::slice::Iter<'static, Limit>;

    fn into_iter(self) -> Self::IntoIter {
        self.as_slice().iter()
    }
}

impl PartialEq for Limits {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.0, other.0)
    }
}

impl Eq for Limits {}

impl Hash for Limits {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::ptr::hash(self.0, state);
    }
}

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(ToString::to_string)).finish()
    }
}
