//! Who a key is: 96 bits that nobody outside the process can aim at.
//!
//! Multilinear hashing: each 32-bit piece of the key is multiplied by a secret 128-bit number of
//! its own; of the sum modulo 2^128 the upper 96 bits are the identity. Over the choice of the
//! secrets this is strongly universal: two different keys have the same identity with a probability
//! of 2^-96, whoever chose them and however (Lemire and Kaser, "Strongly universal string hashing
//! is fast"). Ten million keys collide anywhere with a probability below 2^-49. It costs two
//! multiplications for each four bytes. SipHash costs several times that on short keys, and fast
//! hashes without such a bound can be aimed at.
//!
//! A sum is linear, so where a key lives is not read off the identity but mixed from it with two
//! more secrets: who finds out, by timing, that two keys are neighbours learns nothing about a
//! third.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};

use crate::key::MAX_VALUE_BYTES;
use crate::rule::MAX_KEY_ATTRIBUTES;

/// Pieces of the longest subject there can be.
const PIECES: usize = (MAX_KEY_ATTRIBUTES * (MAX_VALUE_BYTES + 2)).div_ceil(4);

/// The identity of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    pub(super) high: u64,
    pub(super) low: u32,
}

/// The secrets of one store. As secret as the keys: whoever has them can aim.
pub(super) struct Secrets {
    seed: [u64; 2],
    /// For the length, and for the halves of the rule's digest.
    fixed: [u128; 3],
    mix: [u64; 2],
    pieces: Box<[u128]>,
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
        let fixed = [wide(), wide(), wide()];
        let pieces = (0..PIECES).map(|_| wide()).collect();
        Self { seed, fixed, mix: [word() | 1, word() | 1], pieces }
    }

    pub(super) const fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// The identity of a subject under the rule with this digest.
    #[inline]
    pub(super) fn identify(&self, digest: u64, subject: &[u8]) -> Id {
        let sum = self.begin(digest, subject.len());
        finish(add_pieces(sum, subject, &self.pieces))
    }

    /// The identity of the subject that consists of this one value, without encoding it first.
    #[inline]
    pub(super) fn identify_value(&self, digest: u64, value: &[u8]) -> Id {
        let sum = self.begin(digest, value.len().wrapping_add(2));
        let [low, high, ..] = value.len().to_le_bytes();
        let (start, rest) = value.split_at(value.len().min(2));
        let first = u32::from_le_bytes([
            low,
            high,
            start.first().copied().unwrap_or(0),
            start.get(1).copied().unwrap_or(0),
        ]);
        let Some((secret, secrets)) = self.pieces.split_first() else { return finish(sum) };
        let sum = sum.wrapping_add(u128::from(first).wrapping_mul(*secret));
        finish(add_pieces(sum, rest, secrets))
    }

    fn begin(&self, digest: u64, length: usize) -> u128 {
        let [for_length, for_low, for_high] = self.fixed;
        let sum = u128::try_from(length).unwrap_or(0).wrapping_mul(for_length);
        let sum = sum.wrapping_add(u128::from(digest & 0xffff_ffff).wrapping_mul(for_low));
        sum.wrapping_add(u128::from(digest >> 32).wrapping_mul(for_high))
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

#[inline]
fn add_pieces(mut sum: u128, bytes: &[u8], secrets: &[u128]) -> u128 {
    let (whole, rest) = bytes.as_chunks::<4>();
    let mut secrets = secrets.iter();
    for (piece, secret) in whole.iter().zip(&mut secrets) {
        sum = sum.wrapping_add(u128::from(u32::from_le_bytes(*piece)).wrapping_mul(*secret));
    }
    if let (false, Some(secret)) = (rest.is_empty(), secrets.next()) {
        let last = rest.iter().rev().fold(0_u32, |piece, byte| (piece << 8) | u32::from(*byte));
        sum = sum.wrapping_add(u128::from(last).wrapping_mul(*secret));
    }
    sum
}

/// The upper 96 bits.
#[expect(clippy::as_conversions, reason = "32 bits are left of it")]
const fn finish(sum: u128) -> Id {
    Id { high: truncated(sum >> 64), low: (truncated(sum) >> 32) as u32 }
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
        let subjects = [&b"a"[..], b"a\0", b"a\0\0\0", b"a\0\0\0\0", b"", b"\0", b"abcd", b"abcde", b"abcdf"];
        let ids: HashSet<Id> = subjects
            .iter()
            .flat_map(|subject| [0, 1, 1 << 32].map(|digest| secrets.identify(digest, subject)))
            .collect();
        assert_eq!(ids.len(), subjects.len() * 3);
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
            let home = secrets.home(secrets.identify(7, number.to_string().as_bytes()));
            counts[usize::try_from(home >> 56).unwrap()] += 1;
        }
        // A thousand each, give or take six standard deviations.
        assert!(counts.iter().all(|count| (800..1200).contains(count)), "{counts:?}");
    }
}
