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
use tollgate::{Answer, Applied, Charge, Limits, Timestamp, Verdict};

use crate::limit::counts_denied;

/// How many denials are remembered.
const MOST: usize = 65_536;
/// Among how many counters the changes to clients are divided. Two that share one only ask Redis once more.
const COUNTERS: usize = 4_096;

/// The denials that a store remembers.
#[derive(Debug)]
pub(crate) struct Denials {
    kept: Cache<Box<[u8]>, Arc<Denial>>,
    /// How often something was done to the clients of each counter.
    changes: Box<[AtomicU64]>,
    hasher: RandomState,
    longest: Duration,
    served: AtomicU64,
}

#[derive(Debug)]
struct Denial {
    /// By the caller's clock: when it was asked, and until when the answer holds.
    asked: Timestamp,
    until: Timestamp,
    /// The counters of the budgets that denied.
    changes: SmallVec<[Option<u64>; 4]>,
    limits: SmallVec<[Limits; 4]>,
    applied: Applied,
}

/// What identifies a request here.
pub(crate) type Identity = SmallVec<[u8; 128]>;

/// A request as it was before it was sent: what a denial of it is remembered under.
pub(crate) struct Asked {
    identity: Identity,
    changes: SmallVec<[u64; 4]>,
}

impl Denials {
    pub(crate) fn new(longest: Duration) -> Self {
        Self {
            kept: Cache::new(MOST),
            changes: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            longest,
            served: AtomicU64::new(0),
        }
    }

    /// How often Redis was not asked.
    pub(crate) fn served(&self) -> u64 {
        self.served.load(Ordering::Relaxed)
    }

    /// What identifies a request, and what has been done to its budgets so far.
    pub(crate) fn identify(&self, charges: &[Charge<'_>]) -> Asked {
        let mut identity = Identity::new();
        for charge in charges {
            charge.key.encode(&mut identity);
            identity.extend_from_slice(&charge.cost.to_le_bytes());
            identity.push(u8::from(charge.shadow));
        }
        let changes = charges.iter().map(|charge| self.counter(charge).load(Ordering::Acquire)).collect();
        Asked { identity, changes }
    }

    /// The answer to a request, if it is known to be denied still.
    pub(crate) fn find(&self, asked: &Asked, charges: &[Charge<'_>], now: Timestamp) -> Option<Applied> {
        let denial = self.kept.get(asked.identity.as_slice())?;
        let counted = denial.changes.iter().zip(&asked.changes);
        let unchanged = counted.into_iter().all(|(then, now)| then.is_none_or(|then| then == *now));
        let same_limits = charges.iter().map(|charge| charge.limits).eq(denial.limits.iter().copied());
        if !unchanged || !same_limits || now < denial.asked || now >= denial.until {
            return None;
        }
        self.served.fetch_add(1, Ordering::Relaxed);
        Some(denial.after(now.since(denial.asked)))
    }

    /// Remembers what was `applied` to a request that was asked at `asked_at`, if it is a denial.
    pub(crate) fn keep(&self, asked: Asked, charges: &[Charge<'_>], applied: &Applied, asked_at: Timestamp) {
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
        let Some(holds_for) = denials.map(|(_, answer)| changes_in(answer)).min() else { return };
        if holds_for.is_zero() || charges.iter().any(|charge| counts_denied(charge.limit())) {
            return;
        }
        let counted = |((charge, answer), changes): ((&Charge<'_>, &Answer), &u64)| {
            denies(charge, answer).then_some(*changes)
        };
        let denial = Denial {
            asked: asked_at,
            until: asked_at.saturating_add(holds_for.min(self.longest)),
            changes: both().zip(&asked.changes).map(counted).collect(),
            limits: charges.iter().map(|charge| charge.limits).collect(),
            applied: applied.clone(),
        };
        self.kept.insert(asked.identity.into_boxed_slice(), Arc::new(denial));
    }

    /// These budgets have changed: no denial of theirs holds any more.
    pub(crate) fn forget(&self, charges: &[Charge<'_>]) {
        for charge in charges {
            self.counter(charge).fetch_add(1, Ordering::AcqRel);
        }
    }

    fn counter(&self, charge: &Charge<'_>) -> &AtomicU64 {
        let mut encoded = Identity::new();
        charge.key.encode(&mut encoded);
        let hash = self.hasher.hash_one(encoded.as_slice());
        let index = usize::try_from(hash).unwrap_or(usize::MAX) % COUNTERS;
        &self.changes[index]
    }
}

impl Denial {
    /// The answer, so long after it was asked for.
    fn after(&self, passed: Duration) -> Applied {
        let now = self.applied.now.saturating_add(passed);
        let later = |answer: &Answer| {
            let mut answer = *answer;
            if let Verdict::Denied { retry_after } = &mut answer.outcome.verdict {
                *retry_after = retry_after.saturating_sub(passed);
            }
            // What is whole already is so at any later time too.
            answer.outcome.reset_at = answer.outcome.reset_at.max(now);
            answer.outcome.grows_at = answer.outcome.grows_at.max(now);
            answer
        };
        Applied { now, answers: self.applied.answers.iter().map(later).collect() }
    }
}
