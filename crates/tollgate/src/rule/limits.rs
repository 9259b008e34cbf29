//! A rule's limits, as one value that is cheap to copy and to compare.

use std::collections::HashMap;
use std::fmt;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::{Limit, Meter};

/// One limit or several: `limit.into()`, `[one, another].into()`.
///
/// Lists are kept for the life of the process, each distinct one once, under a number: stored state
/// says by that number which limits wrote it. They come from configuration, or from programs that
/// bound how many there are; never one for each client.
#[derive(Clone, Copy)]
pub struct Limits(&'static List);

struct List {
    limits: Box<[Limit]>,
    number: u32,
    words: Option<usize>,
}

impl Limits {
    /// The list as a number, never 0: equal lists, and no others, have the same.
    pub(crate) fn number(self) -> u32 {
        self.0.number
    }

    /// The list of a number, if there is one.
    pub(crate) fn of_number(number: u32) -> Option<Self> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        registry().lists.get(index).copied()
    }

    /// How many words the states of all the limits pack into, if all do.
    pub(crate) fn words(self) -> Option<usize> {
        self.0.words
    }

    /// The limits, for as long as the process lives.
    #[must_use]
    pub fn as_slice(self) -> &'static [Limit] {
        &self.0.limits
    }
}

#[derive(Default)]
struct Registry {
    lists: Vec<Limits>,
    by_content: HashMap<&'static [Limit], Limits>,
}

fn registry() -> MutexGuard<'static, Registry> {
    static REGISTRY: OnceLock<Mutex<Registry>> = OnceLock::new();
    REGISTRY.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl From<Vec<Limit>> for Limits {
    fn from(limits: Vec<Limit>) -> Self {
        let mut registry = registry();
        if let Some(known) = registry.by_content.get(limits.as_slice()) {
            return *known;
        }
        let words = limits.iter().map(Meter::words).try_fold(0, |sum: usize, words| sum.checked_add(words?));
        let number = u32::try_from(registry.lists.len()).unwrap_or(u32::MAX).saturating_add(1);
        let kept = Self(Box::leak(Box::new(List { limits: limits.into(), number, words })));
        registry.lists.push(kept);
        registry.by_content.insert(kept.as_slice(), kept);
        kept
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

impl fmt::Debug for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(ToString::to_string)).finish()
    }
}
