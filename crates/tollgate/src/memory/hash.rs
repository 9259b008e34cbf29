//! Key identities: 96 bits that an attacker cannot aim at.
//!
//! Multilinear hashing, twice: each 64-bit word of the key is multiplied by two secret 128-bit
//! numbers, and the upper 64 bits of each of the two sums modulo 2^128 are kept. Over the choice of
//! the secrets each half is strongly universal: two different keys share an identity (64 bits of
//! one sum and 32 of the other) with a probability of 2^-96, however an attacker chose them (Lemire
//! and Kaser, "Strongly universal string hashing is fast"). Among ten million keys any collision
//! has a probability below 2^-49. The cost is four multiplications per eight bytes. SipHash costs
//! several times that on short keys, and fast hashes without such a bound can be attacked.
//!
//! The words of a key are its budget's digest and, for each value, its length and its bytes. A
//! canonical decimal number is instead a marker, which is no valid length, and the number: `42` and
//! `"42"` are one client, and no digits have to be formatted. A sum is linear, so a budget's part
//! of it is computed once ([`Prefix`]).
//!
//! Linear sums leak structure, so a key's home (its position in the tables) is not read off the
//! identity but mixed from it with two more secrets: an attacker that learns by timing that two
//! keys are neighbours learns nothing about a third.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::key::{Budget, Key, MAX_VALUE_BYTES};
use crate::request::Client;
use crate::rule::MAX_KEY_ATTRIBUTES;
use crate::time::nanos_of;

/// Words of the longest subject: for each value its length and its bytes.
const WORDS: usize = MAX_KEY_ATTRIBUTES * (1 + MAX_VALUE_BYTES.div_ceil(8));

/// Marker in place of a length: the value is a number.
const NUMBER_MARKER: u64 = u64::MAX;

/// The subject of a pool, the budget that new keys share when the store is full. No encoded subject
/// is equal to it.
pub(super) const POOLED: &[u8] = &[0xff, 0xff];

/// The identity of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    pub(super) high: u64,
    pub(super) low: u32,
}

/// The multipliers of one word, one for each sum.
type Secret = [u128; 2];

/// The hash secrets of one store. As secret as the keys: they let an attacker construct collisions.
pub(super) struct Secrets {
    seed: [u64; 2],
    for_budget: Secret,
    for_period: Secret,
    mix: [u64; 2],
    for_words: Box<[Secret]>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

/// A budget's part of the sums.
#[derive(Clone, Copy)]
pub(crate) struct Prefix {
    sums: Secret,
    /// The sums with the number marker added.
    numbered: Secret,
    /// The multipliers of the number itself, beside the sums that they are added to.
    number: Secret,
}

impl fmt::Debug for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Prefix")
    }
}

impl Secrets {
    /// Random secrets, from the hash keys that the standard library gives its maps.
    pub(super) fn random() -> Self {
        Self::from_seed([RandomState::new().hash_one(0), RandomState::new().hash_one(1)])
    }

    /// The secrets of a seed: SipHash of 0, 1, 2, … under it.
    pub(super) fn from_seed(seed: [u64; 2]) -> Self {
        let mut counter = 0_u64;
        let mut word = || {
            counter = counter.wrapping_add(1);
            keyed_hash(seed, counter)
        };
        let mut wide = || u128::from(word()) << 64 | u128::from(word());
        let mut secret = || [wide(), wide()];
        let for_budget = secret();
        let for_words = (0..WORDS).map(|_| secret()).collect();
        let mix = [word() | 1, word() | 1];
        let mut wide = || u128::from(word()) << 64 | u128::from(word());
        Self { seed, for_budget, mix, for_words, for_period: [wide(), wide()] }
    }

    pub(super) const fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// The sums of a budget with this [digest](Budget::digest).
    pub(super) fn prefix(&self, digest: u64) -> Prefix {
        let mut sums = Sums { sums: [0; 2], secrets: self.for_words.iter() };
        sums.add(digest, &self.for_budget);
        let before = sums.sums;
        sums.add_next(NUMBER_MARKER);
        let number = sums.secrets.next().copied().unwrap_or_default();
        Prefix { sums: before, numbered: sums.sums, number }
    }

    /// The identity of a client under a budget.
    #[inline(always)]
    pub(super) fn identify_client(&self, prefix: &Prefix, client: Client<'_>) -> Id {
        match client {
            Client::Numbered(number) => {
                let mut sums = Sums { sums: prefix.numbered, secrets: [].iter() };
                sums.add(number, &prefix.number);
                sums.finish()
            }
            Client::Named(name) => {
                let mut sums = Sums { sums: prefix.sums, secrets: self.for_words.iter() };
                sums.add_value(name.as_bytes());
                sums.finish()
            }
        }
    }

    /// The identity of values under a budget.
    pub(super) fn identify_values(&self, prefix: &Prefix, values: &[&str]) -> Id {
        let mut sums = Sums { sums: prefix.sums, secrets: self.for_words.iter() };
        for value in values {
            sums.add_value(value.as_bytes());
        }
        sums.finish()
    }

    /// The identity of a subject, encoded, under a budget.
    pub(super) fn identify(&self, prefix: &Prefix, subject: &[u8]) -> Id {
        let mut sums = Sums { sums: prefix.sums, secrets: self.for_words.iter() };
        let mut rest = subject;
        while let Some((length, tail)) = rest.split_first_chunk::<2>() {
            let length = usize::from(u16::from_le_bytes(*length));
            match tail.split_at_checked(length) {
                Some((value, tail)) => {
                    sums.add_value(value);
                    rest = tail;
                }
                // Not a value but the marker of a pool: it claims a length that no value has.
                None => {
                    sums.add_next(u64::try_from(length).unwrap_or(0));
                    rest = &[];
                }
            }
        }
        sums.finish()
    }

    /// The identity of a key's budget.
    pub(super) fn identify_key(&self, key: &Key<'_>) -> Id {
        let mut prefix = self.prefix(key.budget().digest(key.rule()));
        if let Budget::InlineCount(period) = key.budget() {
            prefix = self.with_period(&prefix, nanos_of(period));
        }
        self.identify(&prefix, key.subject())
    }

    /// The version 1 identity of a subject, which hashed a number as its digits.
    pub(super) fn identify_v1(&self, digest: u64, subject: &[u8]) -> Id {
        let mut sums = Sums { sums: self.prefix(digest).sums, secrets: self.for_words.iter() };
        let mut rest = subject;
        while let Some((length, tail)) = rest.split_first_chunk::<2>() {
            let (value, tail) =
                tail.split_at_checked(usize::from(u16::from_le_bytes(*length))).unwrap_or((&[], &[]));
            sums.add_text(value);
            rest = tail;
        }
        sums.finish()
    }

    /// The sums of a budget whose period is part of its identity.
    #[inline]
    pub(super) fn with_period(&self, prefix: &Prefix, period: u64) -> Prefix {
        let add = |[one, other]: Secret| {
            let [first, second] = self.for_period;
            let period = u128::from(period);
            [one.wrapping_add(period.wrapping_mul(first)), other.wrapping_add(period.wrapping_mul(second))]
        };
        Prefix { sums: add(prefix.sums), numbered: add(prefix.numbered), number: prefix.number }
    }

    /// The home of an identity. Each of its bits depends on all bits of the identity and on the
    /// secrets.
    #[inline]
    pub(super) fn home(&self, id: Id) -> u64 {
        let [one, other] = self.mix;
        let spread = u64::from(id.low).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ other;
        let product = u128::from(id.high ^ one).wrapping_mul(u128::from(spread));
        truncated(product) ^ truncated(product >> 64)
    }
}

/// The two running sums.
struct Sums<'a> {
    sums: Secret,
    secrets: std::slice::Iter<'a, Secret>,
}

impl Sums<'_> {
    /// Adds a value: its number, or its length and its bytes, zero-padded to a whole word.
    #[inline]
    fn add_value(&mut self, value: &[u8]) {
        if let Some(number) = canonical_number(value) {
            self.add_next(NUMBER_MARKER);
            return self.add_next(number);
        }
        self.add_text(value);
    }

    #[inline]
    fn add_text(&mut self, value: &[u8]) {
        self.add_next(u64::try_from(value.len()).unwrap_or(0));
        let (words, rest) = value.as_chunks::<8>();
        for word in words {
            self.add_next(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            self.add_next(part_of_word(rest));
        }
    }

    #[inline]
    fn add_next(&mut self, word: u64) {
        if let Some(secret) = self.secrets.next() {
            self.add(word, secret);
        }
    }

    #[inline]
    fn add(&mut self, word: u64, secret: &Secret) {
        let [one, other] = &mut self.sums;
        *one = one.wrapping_add(u128::from(word).wrapping_mul(secret[0]));
        *other = other.wrapping_add(u128::from(word).wrapping_mul(secret[1]));
    }

    #[inline]
    #[expect(clippy::as_conversions, reason = "the shift leaves 32 bits")]
    fn finish(&self) -> Id {
        let [one, other] = self.sums;
        Id { high: truncated(one >> 64), low: (other >> 96) as u32 }
    }
}

/// The number with these decimal digits, if it has no other spelling and fits 64 bits.
#[inline]
fn canonical_number(text: &[u8]) -> Option<u64> {
    match text {
        [b'1'..=b'9', ..] => text.iter().try_fold(0_u64, |number, byte| {
            let digit = u64::from(byte.wrapping_sub(b'0'));
            number.checked_mul(10)?.checked_add(digit).filter(|_| digit < 10)
        }),
        b"0" => Some(0),
        _ => None,
    }
}

/// One to seven bytes as a word, in two reads instead of one per byte.
#[inline]
fn part_of_word(bytes: &[u8]) -> u64 {
    let length = bytes.len();
    if let (Some(start), Some(end)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two reads overlap, since there are fewer than eight bytes.
        let shift = length.saturating_sub(4).saturating_mul(8);
        return u64::from(u32::from_le_bytes(*start)) | (u64::from(u32::from_le_bytes(*end)) << shift);
    }
    bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte))
}

#[expect(clippy::cast_possible_truncation, clippy::as_conversions, reason = "the lower half is wanted")]
const fn truncated(wide: u128) -> u64 {
    wide as u64
}

#[expect(deprecated, reason = "the only keyed SipHash in the standard library, and a sound one")]
fn keyed_hash([one, other]: [u64; 2], number: u64) -> u64 {
    let mut hasher = std::hash::SipHasher::new_with_keys(one, other);
    hasher.write_u64(number);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn b5_similar_subjects_have_different_identities() {
        let secrets = Secrets::random();
        let values = [
            &b"a"[..],
            b"a\0",
            b"a\0\0\0",
            b"a\0\0\0\0",
            b"\0",
            b"abcd",
            b"abcde",
            b"abcdefghi",
            b"7",
            b"07",
            b"70",
        ];
        let encode = |value: &[u8]| [&u16::try_from(value.len()).unwrap().to_le_bytes()[..], value].concat();
        let mut subjects: Vec<Vec<u8>> = values.iter().map(|value| encode(value)).collect();
        let pairs = values.iter().flat_map(|one| values.map(|other| [encode(one), encode(other)].concat()));
        subjects.extend(pairs.collect::<Vec<_>>());
        // The empty subject, and the marker of a pool.
        subjects.extend([vec![], vec![0xff, 0xff]]);
        let ids: HashSet<Id> = subjects
            .iter()
            .flat_map(|subject| {
                [0, 1, 1 << 32].map(|digest| secrets.identify(&secrets.prefix(digest), subject))
            })
            .collect();
        assert_eq!(ids.len(), subjects.len() * 3);
    }

    #[test]
    fn a_partial_word_has_the_same_bytes_as_its_input() {
        let bytes = [1_u8, 2, 3, 4, 5, 6, 7];
        for length in 1..=7 {
            let expected = (0..length).fold(0, |word, index| word | (u64::from(bytes[index]) << (8 * index)));
            assert_eq!(part_of_word(&bytes[..length]), expected, "{length}");
        }
    }

    #[test]
    fn clients_and_values_have_the_identities_of_their_encodings() {
        let secrets = Secrets::random();
        let prefix = secrets.prefix(7);
        let encode = |value: &str| {
            let length = u16::try_from(value.len()).unwrap().to_le_bytes();
            [&length[..], value.as_bytes()].concat()
        };
        let encoded = |value: &str| secrets.identify(&prefix, &encode(value));
        for values in [&["a", "bc"][..], &["ab", "c"], &["7", "/api/items", "7"], &["a"], &[]] {
            let subject: Vec<u8> = values.iter().flat_map(|value| encode(value)).collect();
            let id = secrets.identify_values(&prefix, values);
            assert_eq!(id, secrets.identify(&prefix, &subject), "{values:?}");
        }
        for length in 0..40 {
            let value = "a1b2c3".repeat(7)[..length].to_owned();
            assert_eq!(secrets.identify_client(&prefix, Client::Named(&value)), encoded(&value));
        }
        for number in [0, 7, 10, 42, u64::MAX] {
            let id = secrets.identify_client(&prefix, Client::Numbered(number));
            assert_eq!(id, encoded(&number.to_string()), "{number}");
            assert_eq!(id, secrets.identify_client(&prefix, Client::Named(&number.to_string())), "{number}");
        }
    }

    #[test]
    fn a_number_is_canonical_if_it_has_no_other_spelling() {
        for number in [0, 1, 9, 10, 18_446_744_073_709_551_615] {
            assert_eq!(canonical_number(number.to_string().as_bytes()), Some(number));
        }
        for text in ["", "00", "01", "-1", "+1", "1 ", "1a", "18446744073709551616", "99999999999999999999"] {
            assert_eq!(canonical_number(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_identities_and_another_does_not() {
        let id = |seed| {
            let secrets = Secrets::from_seed(seed);
            secrets.identify(&secrets.prefix(7), b"alice")
        };
        assert_eq!(id([1, 2]), id([1, 2]));
        assert_ne!(id([1, 2]), id([1, 3]));
    }

    #[test]
    fn homes_of_consecutive_numbers_spread_evenly_over_the_shards() {
        let secrets = Secrets::random();
        let mut counts = [0_u32; 256];
        for number in 0..256_000_u64 {
            let id = secrets.identify_client(&secrets.prefix(7), Client::Numbered(number));
            let home = secrets.home(id);
            counts[usize::try_from(home >> 56).unwrap()] += 1;
        }
        // A thousand each, give or take six standard deviations.
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
