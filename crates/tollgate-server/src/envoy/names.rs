//! Names of rules and attributes.

use std::borrow::Cow;
use std::collections::HashMap;

use sha2::{Digest as _, Sha256};

/// The longest rule name.
const NAME_BYTES_MAX: usize = 128;

/// The digits of the hash at the end of a name.
const HASH_DIGITS: usize = 16;

/// The attribute names of a descriptor's entries: the key, and for repeated keys `key.2`, `key.3`
/// …, because a descriptor may have two `generic_key`.
///
/// All names differ, and none depends on later entries.
pub(crate) fn attribute_names<'a>(keys: impl Iterator<Item = &'a str>) -> Vec<Cow<'a, str>> {
    let (mut seen, mut names): (Vec<&'a str>, Vec<Cow<'a, str>>) = (Vec::new(), Vec::new());
    for key in keys {
        let earlier = seen.iter().filter(|seen| **seen == key).count();
        let numbered = (earlier.saturating_add(1)..).map(|number| match number {
            1 => Cow::Borrowed(key),
            number => Cow::Owned(format!("{key}.{number}")),
        });
        names.extend({ numbered }.find(|name| !names.contains(name)));
        seen.push(key);
    }
    names
}

/// A domain, and the keys and values that lead to a limit.
#[derive(Clone, Debug)]
pub(super) struct Path<'a> {
    pub(super) domain: &'a str,
    pub(super) steps: Vec<(&'a str, Option<&'a str>)>,
}

impl Path<'_> {
    /// The reference's name: `domain.key_value.key`.
    pub(super) fn full_key(&self) -> String {
        let mut full = self.domain.to_owned();
        for (key, value) in &self.steps {
            full.push('.');
            full.push_str(key);
            if let Some(value) = value {
                full.push('_');
                full.push_str(value);
            }
        }
        full
    }

    /// A hash of the path. Length prefixes keep different paths apart.
    fn hash(&self) -> String {
        let mut hasher = Sha256::new();
        let mut part = |text: &str| {
            let length = u64::try_from(text.len()).unwrap_or(u64::MAX);
            hasher.update(length.to_le_bytes());
            hasher.update(text);
        };
        part(self.domain);
        for (key, value) in &self.steps {
            part(key);
            part(if value.is_some() { "=" } else { "" });
            part(value.unwrap_or_default());
        }
        let digest = hasher.finalize();
        digest.iter().take(HASH_DIGITS / 2).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Names for the rules of all domains.
#[derive(Debug, Default)]
pub(super) struct Names {
    /// How many paths have the same full key.
    full_keys: HashMap<String, usize>,
}

impl Names {
    /// Records a path that will need a name.
    pub(super) fn note(&mut self, path: &Path<'_>) {
        let times = self.full_keys.entry(path.full_key()).or_default();
        *times = times.saturating_add(1);
    }

    /// The full key, if it is a valid rule name and unique; otherwise a readable stem and a hash. A
    /// full key that looks hashed is hashed too, so that no path can take another's name.
    pub(super) fn name(&self, path: &Path<'_>) -> String {
        let full = path.full_key();
        let fits = full.len() <= NAME_BYTES_MAX && full.chars().all(printable);
        if fits && !looks_hashed(&full) && self.full_keys.get(&full).is_none_or(|times| *times <= 1) {
            return full;
        }
        let stem = NAME_BYTES_MAX - HASH_DIGITS - 1;
        let stem: String = full.chars().map(|c| if printable(c) { c } else { '?' }).take(stem).collect();
        format!("{stem}~{}", path.hash())
    }
}

const fn printable(c: char) -> bool {
    matches!(c, ' '..='~')
}

fn looks_hashed(name: &str) -> bool {
    name.rsplit_once('~').is_some_and(|(_, hash)| {
        hash.len() == HASH_DIGITS && hash.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}
