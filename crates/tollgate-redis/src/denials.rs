//! Denials, remembered until they could change, so that a client who hammers costs Redis nothing.
//!
//! What is remembered is the whole answer to a request: the same keys, limits and costs. It holds until the first
//! moment at which a limit that denied has more to give, and at most for the time the store was told: another process
//! may meanwhile have reset the client, or given something back. What this process draws on, gives back to or does to
//! the budgets that denied is known here, and ends it at once. The numbers of the other limits are those of when Redis
//! was asked. Limits that count denied attempts are never remembered.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;
use smallvec::SmallVec;
use tollgate::{Answer, Applied, Charge, Timestamp, Verdict};

/// How many denials are remembered: some 200 bytes each.
const MOST: usize = 131_072;
/// Among how many counters the changes of budgets are divided. Where two share one, a change of either ends what is
/// remembered of both, and Redis is asked once more.
const COUNTERS: usize = 65_536;

/// Odd, and with its bits well spread.
const MIXER: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

/// The denials that a store remembers.
#[derive(Debug)]
pub(crate) struct Denials {
    /// By a keyed hash of the request, so that long names take no more room than short ones.
    kept: Cache<u128, Arc<Denial>>,
    /// How often something was done to the clients of each counter.
    changes: Box<[AtomicU64]>,
    hashers: [RandomState; 2],
    longest: Duration,
    served: AtomicU64,
}

#[derive(Debug)]
struct Denial {
    /// By the caller's clock: when it was asked, and until when the answer holds.
    asked: Timestamp,
    until: Timestamp,
    /// By the store's clock: when it was answered.
    answered: Timestamp,
    lines: Box<[Line]>,
}

/// What is remembered of one charge.
#[derive(Debug)]
struct Line {
    /// The counter of a budget that denied.
    changes: Option<u64>,
    answer: Answer,
}

/// A request as it was before it was sent: what a denial of it is remembered under.
pub(crate) struct Asked {
    identity: u128,
    changes: SmallVec<[u64; 4]>,
}

impl Denials {
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            kept: Cache::new(MOST),
            changes: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            hashers: [RandomState::new(), RandomState::new()],
            longest,
            served: AtomicU64::new(0),
        }
    }

    /// How often Redis was not asked.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// Everything may have changed.
    pub(crate) fn forget_all(&self) {
        self.changes.iter().for_each(|counter| {
            counter.fetch_add(1, Ordering::Release);
        });
    }

    /// What identifies a request, and what has been done to its budgets so far.
    pub(crate) fn identify(&self, charges: &[Charge<'_>]) -> Asked {
        let mut identity = 0_u128;
        let mut changes = SmallVec::new();
        for charge in charges {
            let key = self.hashed(charge);
            changes.push(self.counter(key).load(Ordering::Acquire));
            // Keys and limits are hashed under a secret, so that nobody can aim; how they are put
            // together need not be secret too.
            let limit = u128::from(self.hashers[0].hash_one(charge.limit));
            let cost = u128::from(charge.cost) << 1 | u128::from(charge.shadow);
            identity = (identity ^ key ^ limit).wrapping_mul(MIXER).rotate_left(61) ^ cost;
        }
        Asked { identity, changes }
    }

    /// The answer to a request, if it is known to be denied still.
    pub(crate) fn find(&self, asked: &Asked, now: Timestamp) -> Option<Applied> {
        let denial = self.kept.get(&asked.identity)?;
        let holds = |(line, changes): (&Line, &u64)| line.changes.is_none_or(|then| then == *changes);
        let mut lines = denial.lines.iter().zip(&asked.changes);
        if now < denial.asked || now >= denial.until || !lines.all(holds) {
            return None;
        }
        self.served.fetch_add(1, Ordering::Relaxed);
        Some(denial.after(now.since(denial.asked)))
    }

    /// Remembers what was `applied` to a request that was asked at `asked_at`, if it is a denial
    /// that changed nothing, and says whether it does.
    pub(crate) fn keep(
        &self,
        asked: Asked,
        charges: &[Charge<'_>],
        applied: &Applied,
        asked_at: Timestamp,
    ) -> bool {
        let denies = |charge: &Charge<'_>, answer: &Answer| !charge.shadow && !answer.outcome.allowed();
        let both = || charges.iter().zip(&applied.answers);
        let changes_in = |answer: &Answer| match answer.outcome.verdict {
            // What can never fit stays so; only what is left of the limit can change.
            Verdict::Never if answer.outcome.grows_at <= applied.now => self.longest,
            Verdict::Never => answer.outcome.grows_at.since(applied.now),
            verdict => {
                verdict.retry_after().unwrap_or_default().min(answer.outcome.grows_at.since(applied.now))
            }
        };
        let denials = both().filter(|(charge, answer)| denies(charge, answer));
        let Some(holds_for) = denials.map(|(_, answer)| changes_in(answer)).min() else { return false };
        if holds_for.is_zero() || charges.iter().any(|charge| charge.limit.counts_denied()) {
            return false;
        }
        let line = |((charge, answer), changes): ((&Charge<'_>, &Answer), &u64)| Line {
            changes: denies(charge, answer).then_some(*changes),
            answer: *answer,
        };
        let denial = Denial {
            asked: asked_at,
            until: asked_at.saturating_add(holds_for.min(self.longest)),
            answered: applied.now,
            lines: both().zip(&asked.changes).map(line).collect(),
        };
        self.kept.insert(asked.identity, Arc::new(denial));
        true
    }

    /// These budgets are about to change: when what this returns is dropped, no denial of theirs holds any more.
    pub(crate) const fn forget_when_dropped<'a>(&'a self, charges: &'a [Charge<'a>]) -> Changed<'a> {
        Changed { denials: self, charges }
    }

    /// A key's 128 bits.
    fn hashed(&self, charge: &Charge<'_>) -> u128 {
        let mut encoded = SmallVec::<[u8; 128]>::new();
        charge.key.encode(&mut encoded);
        let [one, other] = self.hashers.each_ref().map(|hasher| hasher.hash_one(encoded.as_slice()));
        u128::from(one) << 64 | u128::from(other)
    }

    /// The index is in range: there are [`COUNTERS`] counters, and it is a remainder by that.
    fn counter(&self, key: u128) -> &AtomicU64 {
        let index = usize::try_from(key % COUNTERS as u128).unwrap_or(0);
        &self.changes[index]
    }
}

/// Budgets that change.
pub(crate) struct Changed<'a> {
    denials: &'a Denials,
    charges: &'a [Charge<'a>],
}

impl Changed<'_> {
    /// They did not.
    pub(crate) const fn nothing(&mut self) {
        self.charges = &[];
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        for charge in self.charges {
            self.denials.counter(self.denials.hashed(charge)).fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Denial {
    /// The answer, so long after it was asked for.
    fn after(&self, passed: Duration) -> Applied {
        let now = self.answered.saturating_add(passed);
        let later = |line: &Line| {
            let mut answer = line.answer;
            if let Verdict::Denied { retry_after } = &mut answer.outcome.verdict {
                *retry_after = retry_after.saturating_sub(passed);
            }
            // What is whole already is so at any later time too.
            answer.outcome.now = now;
            answer.outcome.reset_at = answer.outcome.reset_at.max(now);
            answer.outcome.grows_at = answer.outcome.grows_at.max(now);
            answer
        };
        Applied { now, answers: self.lines.iter().map(later).collect(), changed: false, converted: 0 }
    }
}
