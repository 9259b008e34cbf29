//! A cache of denials, so that a client that hammers costs Redis nothing.
//!
//! An entry is the whole answer to a request, found by its keys, limits and costs. It expires when
//! the first of the limits that denied has more to give, and at the latest after the configured
//! maximum age, because another process may reset the client or give units back. An operation of
//! this process on a budget that denied invalidates the entry at once.
//!
//! The limits that did not deny are often those of budgets that others draw on. So an entry has no
//! numbers of them: they are those of the latest answer about that limit, until it has more to
//! give. Without such an answer Redis is asked.
//!
//! Limits that count denied attempts, rules that record denied costs and clients in debt, whose
//! debt is paid off all the time, are never cached.

use std::hash::{BuildHasher as _, Hash as _, Hasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;
use smallvec::SmallVec;
use tollgate::{Answer, Applied, Charge, Outcome, Part, Timestamp, Verdict};

/// Maximum number of cached denials, some 200 bytes each, and of numbers of limits, some 100.
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
    /// The latest numbers of limits, by a keyed hash of the key and the limit.
    numbers: Cache<u128, Numbers>,
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
enum CachedAnswer {
    /// It did not admit, and nothing has changed while the change counter of the budget is this.
    Kept { changes: u64, answer: Answer },
    /// It admitted so many units. Its numbers are the latest.
    Admitted { cost: u64, answer: Answer },
}

/// The numbers of a limit, as an answer had them.
#[derive(Clone, Copy, Debug)]
struct Numbers {
    /// The change counter of the budget.
    changes: u64,
    /// When they were asked for, and when they change if nobody draws, by the caller's clock.
    requested_at: Timestamp,
    expires_at: Timestamp,
    outcome: Outcome,
}

/// The cache keys of a request and of its limits, and the change counters of its budgets before it
/// was sent.
pub(crate) struct Fingerprint {
    hash: u128,
    limits: SmallVec<[Touched; 4]>,
}

/// One limit of a request.
struct Touched {
    budget: u128,
    limit: u128,
    changes: u64,
}

impl Denials {
    pub(crate) fn new(max_age: Duration) -> Self {
        Self {
            cache: Cache::new(CACHE_CAPACITY),
            numbers: Cache::new(CACHE_CAPACITY),
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
        let mut limits = SmallVec::new();
        for charge in charges {
            let budget = self.budget_hash(charge);
            // Keys and limits are hashed under a secret, so that no client can aim for a collision;
            // combining the hashes needs no secret.
            let index = u128::from(charge.key.index());
            let limit = u128::from(self.hashers[0].hash_one(charge.limit));
            let limit = (budget ^ limit).wrapping_mul(MIXER).rotate_left(61) ^ index;
            let changes = self.change_counter(budget).load(Ordering::Acquire);
            limits.push(Touched { budget, limit, changes });
            let part = match charge.part {
                Part::Whole => 0,
                Part::First(number) => u128::from(number) << 1,
                Part::Rest(number) => u128::from(number) << 1 | 1,
            };
            let cost = part << 65 | u128::from(charge.cost) << 1 | u128::from(charge.shadow);
            hash = (hash ^ limit).wrapping_mul(MIXER).rotate_left(61) ^ cost;
        }
        Fingerprint { hash, limits }
    }

    /// The cached denial of a request, if it is still valid.
    pub(crate) fn find(&self, request: &Fingerprint, now: Timestamp) -> Option<Applied> {
        let denial = self.cache.get(&request.hash)?;
        if now < denial.requested_at || now >= denial.expires_at {
            return None;
        }
        let decided_at = denial.decided_at.saturating_add(now.since(denial.requested_at));
        let answers = denial.charges.iter().zip(&request.limits).map(|(cached, touched)| match cached {
            CachedAnswer::Kept { changes, answer } => {
                let aged = aged(answer.outcome, now.since(denial.requested_at), decided_at);
                (*changes == touched.changes).then_some(Answer { outcome: aged, ..*answer })
            }
            CachedAnswer::Admitted { cost, answer } => {
                let latest = self.numbers.get(&touched.limit)?;
                let is_valid = latest.changes == touched.changes
                    && (latest.requested_at..latest.expires_at).contains(&now)
                    && latest.outcome.remaining >= (*cost).max(1);
                let outcome = Outcome { verdict: Verdict::Allowed, ..latest.outcome };
                let aged = aged(outcome, now.since(latest.requested_at), decided_at);
                is_valid.then_some(Answer { outcome: aged, ..*answer })
            }
        });
        let answers = answers.collect::<Option<_>>()?;
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(Applied { now: decided_at, answers, changed: false, converted: 0 })
    }

    /// Caches the answer to a request that was made at `requested_at`, if it is a denial that
    /// changed nothing. Returns whether it was cached.
    pub(crate) fn insert(
        &self,
        request: &Fingerprint,
        charges: &[Charge<'_>],
        applied: &Applied,
        requested_at: Timestamp,
    ) -> bool {
        let answered = || charges.iter().zip(&applied.answers);
        // An overflow that lends too little denies with its rule.
        let is_kept =
            |charge: &Charge<'_>, answer: &Answer| charge.part != Part::Whole || !answer.outcome.allowed();
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
        let is_denied = answered().any(|(charge, answer)| !charge.shadow && !answer.outcome.allowed());
        let is_cacheable = |(charge, answer): (&Charge<'_>, &Answer)| {
            !charge.limit.counts_denied() && answer.outcome.owed == 0
        };
        if !is_denied || !answered().all(is_cacheable) {
            return false;
        }
        let kept = answered().filter(|(charge, answer)| is_kept(charge, answer));
        let Some(valid_for) = kept.map(|(_, answer)| changes_in(answer)).min() else { return false };
        if valid_for.is_zero() {
            return false;
        }
        let cached =
            |((charge, answer), touched): ((&Charge<'_>, &Answer), &Touched)| match is_kept(charge, answer) {
                true => CachedAnswer::Kept { changes: touched.changes, answer: *answer },
                false => CachedAnswer::Admitted { cost: charge.cost, answer: *answer },
            };
        let denial = Denial {
            requested_at,
            expires_at: requested_at.saturating_add(valid_for.min(self.max_age)),
            decided_at: applied.now,
            charges: answered().zip(&request.limits).map(cached).collect(),
        };
        self.cache.insert(request.hash, Arc::new(denial));
        true
    }

    /// Remembers the numbers of the limits that an answer reports.
    pub(crate) fn note(&self, request: &Fingerprint, applied: &Applied, requested_at: Timestamp) {
        for (touched, answer) in request.limits.iter().zip(&applied.answers) {
            let outcome = answer.outcome;
            let changes = self.change_counter(touched.budget).load(Ordering::Acquire);
            let is_older = |known: Numbers| known.changes == changes && known.outcome.now > outcome.now;
            if self.numbers.get(&touched.limit).is_some_and(is_older) {
                continue;
            }
            let grows_in = outcome.grows_at.since(outcome.now);
            let valid_for = if grows_in.is_zero() { self.max_age } else { grows_in.min(self.max_age) };
            let expires_at = requested_at.saturating_add(valid_for);
            self.numbers.insert(touched.limit, Numbers { changes, requested_at, expires_at, outcome });
        }
    }

    /// A guard that, when it is dropped, invalidates what is cached of the request's budgets.
    pub(crate) fn invalidate_on_drop(&self, request: &Fingerprint) -> Invalidation<'_> {
        Invalidation { denials: self, budgets: request.limits.iter().map(|touched| touched.budget).collect() }
    }

    /// The keyed hash of a charge's budget. All its limits share it: a reset reaches limits that
    /// are no longer in force.
    fn budget_hash(&self, charge: &Charge<'_>) -> u128 {
        let key = &charge.key;
        let [one, other] = self.hashers.each_ref().map(|hasher| {
            let mut hasher = hasher.build_hasher();
            (key.rule(), key.budget()).hash(&mut hasher);
            key.values().for_each(|value| value.hash(&mut hasher));
            hasher.finish()
        });
        u128::from(one) << 64 | u128::from(other)
    }

    /// The index is in range: it is a remainder by [`CHANGE_COUNTERS`], the number of counters.
    fn change_counter(&self, budget: u128) -> &AtomicU64 {
        let index = usize::try_from(budget % CHANGE_COUNTERS as u128).unwrap_or(0);
        &self.change_counters[index]
    }
}

/// Invalidates what is cached of some budgets when it is dropped.
pub(crate) struct Invalidation<'a> {
    denials: &'a Denials,
    budgets: SmallVec<[u128; 4]>,
}

impl Invalidation<'_> {
    /// Keeps the cached denials: the budgets did not change.
    pub(crate) fn cancel(&mut self) {
        self.budgets.clear();
    }
}

impl Drop for Invalidation<'_> {
    fn drop(&mut self) {
        for budget in &self.budgets {
            self.denials.change_counter(*budget).fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// An outcome, `passed` after its request. A time of reset or growth that has passed reads as now.
fn aged(outcome: Outcome, passed: Duration, now: Timestamp) -> Outcome {
    let verdict = match outcome.verdict {
        Verdict::Denied { retry_after } => {
            Verdict::Denied { retry_after: retry_after.saturating_sub(passed) }
        }
        verdict => verdict,
    };
    let [reset_at, grows_at] = [outcome.reset_at, outcome.grows_at].map(|at| at.max(now));
    Outcome { now, verdict, reset_at, grows_at, ..outcome }
}
