//! Deserializers of JSON members that serde would read too loosely or too strictly.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use tollgate::MAX_COUNT;

/// Deserializes an object of strings. A duplicate name is an error.
pub(super) fn texts<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<String, String>, D::Error> {
    deserializer.deserialize_map(Entries { expected: "an object of strings", value: PhantomData })
}

/// Deserializes an object of integers, each as [`whole`] does. A duplicate name is an error.
pub(super) fn wholes<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BTreeMap<String, u64>, D::Error> {
    let entries = Entries { expected: "an object of whole numbers", value: PhantomData::<Whole> };
    let entries = deserializer.deserialize_map(entries)?;
    Ok(entries.into_iter().map(|(name, Whole(value))| (name, value)).collect())
}

/// Deserializes an integer, also if it is written as `5.0`: to JSON they are equal, and some
/// languages write all numbers so.
pub(super) fn whole<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Whole::deserialize(deserializer).map(|Whole(value)| value)
}

/// Visits an object. A duplicate name is an error: a proxy may read the other one.
struct Entries<V> {
    expected: &'static str,
    value: PhantomData<V>,
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for Entries<V> {
    type Value = BTreeMap<String, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut entries = BTreeMap::new();
        while let Some((name, value)) = map.next_entry::<String, V>()? {
            match entries.entry(name) {
                Entry::Vacant(vacant) => vacant.insert(value),
                Entry::Occupied(known) => {
                    return Err(de::Error::custom(format_args!("duplicate name {:?}", known.key())));
                }
            };
        }
        Ok(entries)
    }
}

struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Number;

        impl Visitor<'_> for Number {
            type Value = Whole;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {MAX_COUNT}")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Whole, E> {
                Ok(Whole(value))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Whole, E> {
                // A double represents integers up to 9e15 exactly.
                let whole = value.fract() == 0.0 && (0.0..=9e15).contains(&value);
                let digits = if whole { format!("{value:.0}").parse().ok() } else { None };
                digits.map(Whole).ok_or_else(|| E::invalid_value(de::Unexpected::Float(value), &self))
            }
        }

        deserializer.deserialize_any(Number)
    }
}
