//! Who a key is: 96 bits that nobody outside the process can aim at.
//!
//! Multilinear hashing, twice: each 64-bit word of the key is multiplied by two secret 128-bit
//! numbers of its own, and of each of the two sums modulo 2^128 the upper 64 bits count. Over the
//! choice of the secrets each half is strongly universal: two different keys have the same identity
//! (64 bits of one sum and 32 of the other) with a probability of 2^-96, whoever chose them and
//! however (Lemire and Kaser, "Strongly universal string hashing is fast"). Ten million keys
//! collide anywhere with a probability below 2^-49. It costs four multiplications for each eight
//! bytes. SipHash costs several times that on short keys, and fast hashes without such a bound can
//! be aimed at.
//!
//! A sum is linear, so where a key lives is not read off the identity but mixed from it with two
//! more secrets: who finds out, by timing, that two keys are neighbours learns nothing about a
//! third.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::key::MAX_VALUE_BYTES;
use crate::rule::MAX_KEY_ATTRIBUTES;

/// Words of the longest subject there can be: for each value its length and its bytes.
const WORDS: usize = MAX_KEY_ATTRIBUTES * (1 + MAX_VALUE_BYTES.div_ceil(8));

/// The identity of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    pub(super) high: u64,
    pub(super) low: u32,
}

/// What one word is multiplied by, for each of the sums.
type Secret = [u128; 2];

/// The secrets of one store. As secret as the keys: whoever has them can aim.
pub(super) struct Secrets {
    seed: [u64; 2],
    for_rule: Secret,
    mix: [u64; 2],
    for_words: Box<[Secret]>,
}

impl fmt::Debug for Secrets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secrets")
    }
}

impl Secrets {
    /// Secrets that nobody knows, out of the random keys that the standard library gives its maps.
    pub(super) fn random() -> Self {
        Self::from_seed([RandomState::new().hash_one(0), RandomState::new().hash_one(1)])
    }

    /// The secrets that belong to a seed: SipHash of 0, 1, 2, … under it.
    pub(super) fn from_seed(seed: [u64; 2]) -> Self {
        let mut counter = 0_u64;
        let mut word = || {
            counter = counter.wrapping_add(1);
            keyed_hash(seed, counter)
        };
        let mut wide = || u128::from(word()) << 64 | u128::from(word());
        let mut secret = || [wide(), wide()];
        let for_rule = secret();
        let for_words = (0..WORDS).map(|_| secret()).collect();
        Self { seed, for_rule, mix: [word() | 1, word() | 1], for_words }
    }

    pub(super) const fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// The identity of a subject, encoded, under the rule with this digest.
    pub(super) fn identify(&self, digest: u64, subject: &[u8]) -> Id {
        let mut sums = Sums::new(self, digest);
        let mut rest = subject;
        while let Some((length, tail)) = rest.split_first_chunk::<2>() {
            let length = u16::from_le_bytes(*length);
            // What is not a value is a mark, and no value is as long as a mark says.
            let (value, tail) = tail.split_at_checked(usize::from(length)).unwrap_or((&[], &[]));
            sums.add_value(u64::from(length), value);
            rest = tail;
        }
        sums.finish()
    }

    /// The identity of the subject that consists of this one value, without encoding it first.
    #[inline]
    pub(super) fn identify_value(&self, digest: u64, value: &[u8]) -> Id {
        let mut sums = Sums::new(self, digest);
        sums.add_value(u64::try_from(value.len()).unwrap_or(0), value);
        sums.finish()
    }

    /// Where an identity lives: all bits of this depend on all bits of that and on the secrets.
    #[inline]
    pub(super) fn home(&self, id: Id) -> u64 {
        let [one, other] = self.mix;
        let spread = u64::from(id.low).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ other;
        let product = u128::from(id.high ^ one).wrapping_mul(u128::from(spread));
        truncated(product) ^ truncated(product >> 64)
    }
}

/// The two sums on their way.
struct Sums<'a> {
    sums: [u128; 2],
    secrets: std::slice::Iter<'a, Secret>,
}

impl<'a> Sums<'a> {
    #[inline]
    fn new(secrets: &'a Secrets, digest: u64) -> Self {
        let mut sums = Self { sums: [0; 2], secrets: secrets.for_words.iter() };
        sums.add(digest, &secrets.for_rule);
        sums
    }

    /// Adds a value: its length, and its bytes with zeroes up to a whole word.
    #[inline]
    fn add_value(&mut self, length: u64, value: &[u8]) {
        self.add_next(length);
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
    #[expect(clippy::as_conversions, reason = "32 bits are left of it")]
    fn finish(&self) -> Id {
        let [one, other] = self.sums;
        Id { high: truncated(one >> 64), low: (other >> 96) as u32 }
    }
}

/// One to seven bytes as a word, in two reads instead of one for each byte.
#[inline]
fn part_of_word(bytes: &[u8]) -> u64 {
    let length = bytes.len();
    if let (Some(start), Some(end)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two overlap where there are fewer than eight.
        let shift = length.saturating_sub(4).saturating_mul(8);
        return u64::from(u32::from_le_bytes(*start)) | (u64::from(u32::from_le_bytes(*end)) << shift);
    }
    bytes.iter().rev().fold(0, |word, byte| (word << 8) | u64::from(*byte))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::as_conversions,
    reason = "the lower half is what is wanted"
)]
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
        let values = [&b"a"[..], b"a\0", b"a\0\0\0", b"a\0\0\0\0", b"\0", b"abcd", b"abcde", b"abcdefghi"];
        let encode = |value: &[u8]| [&u16::try_from(value.len()).unwrap().to_le_bytes()[..], value].concat();
        let mut subjects: Vec<Vec<u8>> = values.iter().map(|value| encode(value)).collect();
        let pairs = values.iter().flat_map(|one| values.map(|other| [encode(one), encode(other)].concat()));
        subjects.extend(pairs.collect::<Vec<_>>());
        // Nothing, and the mark of a pool.
        subjects.extend([vec![], vec![0xff, 0xff]]);
        let ids: HashSet<Id> = subjects
            .iter()
            .flat_map(|subject| [0, 1, 1 << 32].map(|digest| secrets.identify(digest, subject)))
            .collect();
        assert_eq!(ids.len(), subjects.len() * 3);
    }

    #[test]
    fn the_bytes_of_a_word_are_its_bytes_however_few() {
        let bytes = [1_u8, 2, 3, 4, 5, 6, 7];
        for length in 1..=7 {
            let expected = (0..length).fold(0, |word, place| word | (u64::from(bytes[place]) << (8 * place)));
            assert_eq!(part_of_word(&bytes[..length]), expected, "{length}");
        }
    }

    #[test]
    fn a_value_by_itself_has_the_identity_of_its_encoding() {
        let secrets = Secrets::random();
        for length in 0..40_u16 {
            let value: Vec<u8> = (0..length).map(|byte| byte.to_le_bytes()[0].wrapping_mul(37)).collect();
            let encoded = [&length.to_le_bytes()[..], &value].concat();
            assert_eq!(secrets.identify_value(7, &value), secrets.identify(7, &encoded));
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_identities_and_another_does_not() {
        let id = |seed| Secrets::from_seed(seed).identify(7, b"alice");
        assert_eq!(id([1, 2]), id([1, 2]));
        assert_ne!(id([1, 2]), id([1, 3]));
    }

    #[test]
    fn homes_of_consecutive_numbers_spread_evenly_over_the_shards() {
        let secrets = Secrets::random();
        let mut counts = [0_u32; 256];
        for number in 0..256_000_u64 {
            let home = secrets.home(secrets.identify_value(7, number.to_string().as_bytes()));
            counts[usize::try_from(home >> 56).unwrap()] += 1;
        }
        // A thousand each, give or take six standard deviations.
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
