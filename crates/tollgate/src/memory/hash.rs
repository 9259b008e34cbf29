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

use std::cell::Cell;
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

/// Marker in place of a length: the budget is a pool, which has no values.
const POOL_MARKER: u64 = 0xffff;

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

    /// The secrets of a seed: SipHash of 1, 2, 3, … under it.
    pub(super) fn from_seed(seed: [u64; 2]) -> Self {
        let counter = Cell::new(0_u64);
        let word = || {
            counter.update(|counter| counter.wrapping_add(1));
            keyed_hash(seed, counter.get())
        };
        let wide = || u128::from(word()) << 64 | u128::from(word());
        let secret = || [wide(), wide()];
        let (for_budget, for_words) = (secret(), (0..WORDS).map(|_| secret()).collect());
        let mix = [word() | 1, word() | 1];
        Self { seed, for_budget, for_words, mix, for_period: secret() }
    }

    pub(super) const fn seed(&self) -> [u64; 2] {
        self.seed
    }

    /// The sums of a budget with this [digest](Budget::digest).
    pub(super) fn prefix(&self, digest: u64) -> Prefix {
        let mut before = [0; 2];
        add(&mut before, digest, &self.for_budget);
        let mut sums = Sums { sums: before, secrets: self.for_words.iter() };
        sums.add_next(NUMBER_MARKER);
        let number = sums.secrets.next().copied().unwrap_or_default();
        Prefix { sums: before, numbered: sums.sums, number }
    }

    /// The identity of a client under a budget.
    #[inline(always)]
    pub(super) fn identify_client(&self, prefix: &Prefix, client: Client<'_>) -> Id {
        match client {
            Client::Numbered(number) => {
                let mut sums = prefix.numbered;
                add(&mut sums, number, &prefix.number);
                identity(sums)
            }
            Client::Named(name) => self.identify(prefix, [name.as_bytes()]),
        }
    }

    /// The identity of these values under a budget.
    #[inline(always)]
    pub(super) fn identify<'a>(&self, prefix: &Prefix, values: impl IntoIterator<Item = &'a [u8]>) -> Id {
        let mut sums = self.sums(prefix);
        values.into_iter().for_each(|value| sums.add_value(value));
        identity(sums.sums)
    }

    /// The identity of a key's budget.
    pub(super) fn identify_key(&self, key: &Key<'_>) -> Id {
        let mut prefix = self.prefix(key.budget().digest(key.rule()));
        if let Budget::InlineCount(period) = key.budget() {
            prefix = self.with_period(&prefix, nanos_of(period));
        }
        self.identify(&prefix, key.values())
    }

    /// The identity of a pool, the budget that new keys share when the store is full.
    pub(super) fn identify_pool(&self, digest: u64) -> Id {
        let mut sums = self.sums(&self.prefix(digest));
        sums.add_next(POOL_MARKER);
        identity(sums.sums)
    }

    fn sums(&self, prefix: &Prefix) -> Sums<'_> {
        Sums { sums: prefix.sums, secrets: self.for_words.iter() }
    }

    /// The sums of a budget whose period is part of its identity.
    #[inline]
    pub(super) fn with_period(&self, prefix: &Prefix, period: u64) -> Prefix {
        let mut prefix = *prefix;
        add(&mut prefix.sums, period, &self.for_period);
        add(&mut prefix.numbered, period, &self.for_period);
        prefix
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
            add(&mut self.sums, word, secret);
        }
    }
}

/// Adds a word to the sums.
#[inline]
fn add([one, other]: &mut Secret, word: u64, secret: &Secret) {
    *one = one.wrapping_add(u128::from(word).wrapping_mul(secret[0]));
    *other = other.wrapping_add(u128::from(word).wrapping_mul(secret[1]));
}

/// The identity with these sums.
#[inline]
#[expect(clippy::as_conversions, reason = "the shift leaves 32 bits")]
fn identity([one, other]: Secret) -> Id {
    Id { high: truncated(one >> 64), low: (other >> 96) as u32 }
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
        let mut subjects: Vec<Vec<&[u8]>> = values.iter().map(|value| vec![*value]).collect();
        subjects.extend(values.iter().flat_map(|one| values.map(|other| vec![*one, other])));
        subjects.push(vec![]);
        let mut ids = HashSet::new();
        for digest in [0, 1, 1 << 32] {
            let identify =
                |subject: &Vec<&[u8]>| secrets.identify(&secrets.prefix(digest), subject.iter().copied());
            ids.extend(subjects.iter().map(identify));
            ids.insert(secrets.identify_pool(digest));
        }
        assert_eq!(ids.len(), (subjects.len() + 1) * 3);
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
    fn a_number_has_the_identity_of_its_digits() {
        let secrets = Secrets::random();
        let prefix = secrets.prefix(7);
        for number in [0, 7, 10, 42, u64::MAX] {
            let id = secrets.identify_client(&prefix, Client::Numbered(number));
            assert_eq!(id, secrets.identify_client(&prefix, Client::Named(&number.to_string())), "{number}");
        }
    }

    /// Files and dumps have identities: another hash would need another version of their formats.
    #[test]
    fn identities_stay_as_they_were_written() {
        let secrets = Secrets::from_seed([1, 2]);
        let prefix = secrets.prefix(7);
        let hourly = secrets.with_period(&prefix, 3_600_000_000_000);
        let ids = [
            secrets.identify_client(&prefix, Client::Numbered(42)),
            secrets.identify_client(&prefix, Client::Named("alice")),
            secrets.identify(&prefix, [&b"alice"[..], b"/api/items", b"7"]),
            secrets.identify(&prefix, []),
            secrets.identify_client(&hourly, Client::Named("alice")),
            secrets.identify_pool(7),
        ];
        let written = [
            (18_002_920_273_893_448_086, 1_902_285_279),
            (2_521_383_600_156_340_618, 1_482_506_713),
            (16_406_764_956_022_277_777, 2_036_209_145),
            (4_714_189_952_897_595_453, 3_465_760_923),
            (12_343_262_209_849_042_732, 1_120_671_845),
            (3_034_246_977_301_263_437, 1_011_612_670),
        ];
        assert_eq!(ids.map(|Id { high, low }| (high, low)), written);
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
            secrets.identify_client(&secrets.prefix(7), Client::Named("alice"))
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
