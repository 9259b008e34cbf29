//! A cache of denials, so that a client that hammers costs Redis nothing.
//!
//! An entry is the whole answer to a request, found by its keys, limits and costs. It expires when
//! the first of the limits that denied has more to give, and at the latest after the configured
//! maximum age, because another process may reset the client or give units back. An operation of
//! this process on a budget that denied invalidates the entry at once. The numbers of the limits
//! that did not deny are those of the time when Redis decided. Limits that count denied attempts
//! and rules that record denied costs are never cached.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;
use smallvec::SmallVec;
use tollgate::{Answer, Applied, Charge, Part, Timestamp, Verdict};

/// Maximum number of cached denials: some 200 bytes each.
const CACHE_CAPACITY: usize = 131_072;
/// Number of change counters. Budgets that share one invalidate each other's entries; the cost is
/// one more request to Redis.
const CHANGE_COUNTERS: usize = 65_536;

/// Multiplier of the hash mixer: odd, and with its bits well spread.
const MIXER: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// The cache.
#[derive(Debug)]
pub(crate) struct Denials {
    /// Entries by a keyed hash of the request, so that long names take no more room than short
    /// ones.
    cache: Cache<u128, Arc<Denial>>,
    /// Operations on the budgets of each counter.
    change_counters: Box<[AtomicU64]>,
    hashers: [RandomState; 2],
    max_age: Duration,
    hits: AtomicU64,
}

/// A cached denial.
#[derive(Debug)]
struct Denial {
    /// When the request was made, by the caller's clock.
    requested_at: Timestamp,
    /// When the entry expires, by the caller's clock.
    expires_at: Timestamp,
    /// When Redis decided, by its own clock.
    decided_at: Timestamp,
    charges: Box<[CachedAnswer]>,
}

/// The answer to one charge.
#[derive(Debug)]
struct CachedAnswer {
    /// The change counter of the budget, if it denied.
    changes: Option<u64>,
    answer: Answer,
}

/// A request's cache key, and the change counters of its budgets before it was sent.
pub(crate) struct Fingerprint {
    hash: u128,
    changes: SmallVec<[u64; 4]>,
}

impl Denials {
    pub(crate) fn new(max_age: Duration) -> Self {
        Self {
            cache: Cache::new(CACHE_CAPACITY),
            change_counters: (0..CHANGE_COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            hashers: [RandomState::new(), RandomState::new()],
            max_age,
            hits: AtomicU64::new(0),
        }
    }

    /// Requests answered from the cache.
    pub(crate) fn hits(&self) -> u64 {
        self.hits.load(Ordering::Relaxed)
    }

    /// Invalidates every cached denial.
    pub(crate) fn invalidate_all(&self) {
        self.change_counters.iter().for_each(|counter| {
            counter.fetch_add(1, Ordering::Release);
        });
    }

    /// The fingerprint of a request, as of now.
    pub(crate) fn fingerprint(&self, charges: &[Charge<'_>]) -> Fingerprint {
        let mut hash = 0_u128;
        let mut changes = SmallVec::new();
        for charge in charges {
            let key = self.key_hash(charge);
            changes.push(self.change_counter(key).load(Ordering::Acquire));
            // Keys and limits are hashed under a secret, so that no client can aim for a collision;
            // combining the hashes needs no secret.
            let limit = u128::from(self.hashers[0].hash_one(charge.limit));
            let part = match charge.part {
                Part::Whole => 0,
                Part::First(number) => u128::from(number) << 1,
                Part::Rest(number) => u128::from(number) << 1 | 1,
            };
            let cost = part << 65 | u128::from(charge.cost) << 1 | u128::from(charge.shadow);
            hash = (hash ^ key ^ limit).wrapping_mul(MIXER).rotate_left(61) ^ cost;
        }
        Fingerprint { hash, changes }
    }

    /// The cached denial of a request, if it is still valid.
    pub(crate) fn find(&self, request: &Fingerprint, now: Timestamp) -> Option<Applied> {
        let denial = self.cache.get(&request.hash)?;
        let unchanged =
            |(charge, changes): (&CachedAnswer, &u64)| charge.changes.is_none_or(|cached| cached == *changes);
        let mut charges = denial.charges.iter().zip(&request.changes);
        if now < denial.requested_at || now >= denial.expires_at || !charges.all(unchanged) {
            return None;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(denial.aged(now.since(denial.requested_at)))
    }

    /// Caches the answer to a request that was made at `requested_at`, if it is a denial that
    /// changed nothing. Returns whether it was cached.
    pub(crate) fn insert(
        &self,
        request: Fingerprint,
        charges: &[Charge<'_>],
        applied: &Applied,
        requested_at: Timestamp,
    ) -> bool {
        let denies = |charge: &Charge<'_>, answer: &Answer| !charge.shadow && !answer.outcome.allowed();
        let answered = || charges.iter().zip(&applied.answers);
        // An overflow that lends too little denies with its rule.
        let took_part = |charge: &Charge<'_>, answer: &Answer| {
            denies(charge, answer) || matches!(charge.part, Part::Rest(_))
        };
        let changes_in = |answer: &Answer| match answer.outcome.verdict {
            // A cost above the limit never fits; only the remaining units can change.
            Verdict::Never | Verdict::Allowed if answer.outcome.grows_at <= applied.now => self.max_age,
            Verdict::Never | Verdict::Allowed => answer.outcome.grows_at.since(applied.now),
            Verdict::Denied { retry_after } => {
                // An overflow may admit the request before its rule has more.
                let grows_in = answer.outcome.grows_at.since(applied.now);
                retry_after.min(if grows_in.is_zero() { retry_after } else { grows_in })
            }
        };
        if !answered().any(|(charge, answer)| denies(charge, answer)) {
            return false;
        }
        let denials = answered().filter(|(charge, answer)| took_part(charge, answer));
        let Some(valid_for) = denials.map(|(_, answer)| changes_in(answer)).min() else { return false };
        if valid_for.is_zero() || charges.iter().any(|charge| charge.limit.counts_denied()) {
            return false;
        }
        let cached = |((charge, answer), changes): ((&Charge<'_>, &Answer), &u64)| CachedAnswer {
            changes: took_part(charge, answer).then_some(*changes),
            answer: *answer,
        };
        let denial = Denial {
            requested_at,
            expires_at: requested_at.saturating_add(valid_for.min(self.max_age)),
            decided_at: applied.now,
            charges: answered().zip(&request.changes).map(cached).collect(),
        };
        self.cache.insert(request.hash, Arc::new(denial));
        true
    }

    /// A guard that, when it is dropped, invalidates every cached denial of these budgets.
    pub(crate) const fn invalidate_on_drop<'a>(&'a self, charges: &'a [Charge<'a>]) -> Invalidation<'a> {
        Invalidation { denials: self, charges }
    }

    /// The keyed hash of a charge's key.
    fn key_hash(&self, charge: &Charge<'_>) -> u128 {
        let mut encoded = SmallVec::<[u8; 128]>::new();
        charge.key.encode(&mut encoded);
        let [one, other] = self.hashers.each_ref().map(|hasher| hasher.hash_one(encoded.as_slice()));
        u128::from(one) << 64 | u128::from(other)
    }

    /// The index is in range: it is a remainder by [`CHANGE_COUNTERS`], the number of counters.
    fn change_counter(&self, key: u128) -> &AtomicU64 {
        let index = usize::try_from(key % CHANGE_COUNTERS as u128).unwrap_or(0);
        &self.change_counters[index]
    }
}

/// Invalidates the cached denials of its charges when it is dropped.
pub(crate) struct Invalidation<'a> {
    denials: &'a Denials,
    charges: &'a [Charge<'a>],
}

impl Invalidation<'_> {
    /// Keeps the cached denials: the budgets did not change.
    pub(crate) const fn cancel(&mut self) {
        self.charges = &[];
    }
}

impl Drop for Invalidation<'_> {
    fn drop(&mut self) {
        for charge in self.charges {
            self.denials.change_counter(self.denials.key_hash(charge)).fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Denial {
    /// The answer, `passed` after the request.
    fn aged(&self, passed: Duration) -> Applied {
        let now = self.decided_at.saturating_add(passed);
        let aged = |charge: &CachedAnswer| {
            let mut answer = charge.answer;
            if let Verdict::Denied { retry_after } = &mut answer.outcome.verdict {
                *retry_after = retry_after.saturating_sub(passed);
            }
            // A time of reset or growth that has passed reads as now.
            answer.outcome.now = now;
            answer.outcome.reset_at = answer.outcome.reset_at.max(now);
            answer.outcome.grows_at = answer.outcome.grows_at.max(now);
            answer
        };
        Applied { now, answers: self.charges.iter().map(aged).collect(), changed: false, converted: 0 }
    }
}
