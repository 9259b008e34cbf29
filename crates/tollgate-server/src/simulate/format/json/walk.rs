//! Reads a few fields of a JSON object, and skips the rest without building it.

use std::borrow::Cow;
use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use smallvec::SmallVec;

use super::Path;

/// The values found so far, with the ranks of their places.
pub(super) struct Found<'de>(SmallVec<[Option<Ranked<'de>>; 8]>);

/// The rank of a place, and the value there.
type Ranked<'de> = (usize, Cow<'de, str>);

impl<'de> Found<'de> {
    pub(super) fn new(width: usize) -> Self {
        Self(std::iter::repeat_with(|| None).take(width).collect())
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = Option<Cow<'de, str>>> {
        self.0.into_iter().map(|found| found.map(|(_, value)| value))
    }
}

/// A value at a place that some paths lead to or through.
pub(super) struct Walk<'w, 'de> {
    paths: &'w [Path],
    /// The paths that lead here, and how many of their keys are used up. `None` for the root.
    here: Option<SmallVec<[(usize, usize); 8]>>,
    found: &'w mut Found<'de>,
}

impl<'w, 'de> Walk<'w, 'de> {
    pub(super) const fn new(paths: &'w [Path], found: &'w mut Found<'de>) -> Self {
        Self { paths, here: None, found }
    }

    /// The paths that go on with `key`.
    fn below(&self, key: &str) -> SmallVec<[(usize, usize); 8]> {
        let matches = |wanted: &str| wanted.eq_ignore_ascii_case(key);
        match &self.here {
            None => {
                let paths = self.paths.iter().enumerate();
                let used = |path: &Path| match path.keys.first() {
                    // A key may itself contain dots.
                    _ if matches(&path.whole) => Some(path.keys.len()),
                    Some(first) if matches(first) => Some(1),
                    _ => None,
                };
                paths.filter_map(|(index, path)| Some((index, used(path)?))).collect()
            }
            Some(here) => here
                .iter()
                .filter(|(index, used)| {
                    self.paths
                        .get(*index)
                        .and_then(|path| path.keys.get(*used))
                        .is_some_and(|key| matches(key))
                })
                .map(|(index, used)| (*index, used + 1))
                .collect(),
        }
    }

    /// Stores a value for the paths that end here.
    fn store(self, value: Cow<'de, str>) {
        for (index, used) in self.here.into_iter().flatten() {
            let Some(path) = self.paths.get(index).filter(|path| path.keys.len() == used) else { continue };
            let Some(slot) = self.found.0.get_mut(path.slot) else { continue };
            if slot.as_ref().is_none_or(|(rank, _)| path.rank < *rank) {
                *slot = Some((path.rank, value.clone()));
            }
        }
    }
}

impl<'de> DeserializeSeed<'de> for Walk<'_, 'de> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        if self.here.is_none() {
            deserializer.deserialize_map(self)
        } else {
            deserializer.deserialize_any(self)
        }
    }
}

impl<'de> Visitor<'de> for Walk<'_, 'de> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        while let Some(Key(key)) = map.next_key()? {
            let below = self.below(&key);
            if below.is_empty() {
                map.next_value::<IgnoredAny>()?;
            } else {
                map.next_value_seed(Walk { paths: self.paths, here: Some(below), found: &mut *self.found })?;
            }
        }
        Ok(())
    }

    /// Of a list, such as the values of a header, the first is read.
    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<(), S::Error> {
        list.next_element_seed(self)?;
        while list.next_element::<IgnoredAny>()?.is_some() {}
        Ok(())
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<(), E> {
        self.store(Cow::Borrowed(text));
        Ok(())
    }

    fn visit_str<E>(self, text: &str) -> Result<(), E> {
        self.store(Cow::Owned(text.to_owned()));
        Ok(())
    }

    fn visit_u64<E>(self, number: u64) -> Result<(), E> {
        self.store(Cow::Owned(itoa::Buffer::new().format(number).to_owned()));
        Ok(())
    }

    fn visit_i64<E>(self, number: i64) -> Result<(), E> {
        self.store(Cow::Owned(number.to_string()));
        Ok(())
    }

    fn visit_f64<E>(self, number: f64) -> Result<(), E> {
        self.store(Cow::Owned(number.to_string()));
        Ok(())
    }

    fn visit_bool<E>(self, value: bool) -> Result<(), E> {
        self.store(Cow::Borrowed(if value { "true" } else { "false" }));
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }
}

/// A key, borrowed where it has no escapes.
#[derive(serde::Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);
