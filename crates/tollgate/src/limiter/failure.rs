//! Decisions without the store, by the rules' failure policies.

use std::time::Duration;

use smallvec::SmallVec;

use super::Shared;
use super::plan::Plan;
use crate::decision::Degraded;
use crate::rule::{FailurePolicy, Tag};
use crate::store::{Answer, Cause, Charge, Effect, Op, Overflow, Part};
use crate::{Algorithm, Bucket, Decision, Limit, MAX_SPAN, Outcome, SECOND, Timestamp, Verdict};

/// A share of a limit, in millionths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share(pub(crate) u64);

impl Share {
    pub(crate) const WHOLE: u64 = 1_000_000;

    /// A fraction between 0 and 1, to the nearest millionth.
    #[expect(
        clippy::as_conversions,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a setting, between 0 and 1"
    )]
    pub(crate) fn from_fraction(fraction: f64) -> Self {
        Self(((fraction * 1e6).round() as u64).clamp(1, Self::WHOLE))
    }

    /// The limit with this share of its count, at least 1, and of its rate.
    pub(crate) fn of(self, limit: &Limit) -> Limit {
        if let Some(longest) = limit.inline_longest() {
            return self.of(&limit.plain()).inline(longest).unwrap_or(*limit);
        }
        let share = match limit.algorithm() {
            Algorithm::FixedWindow { limit, period, aligned, count_denied } => {
                Algorithm::FixedWindow { limit: self.count(limit), period, aligned, count_denied }
            }
            Algorithm::CalendarWindow { limit, unit, zone, count_denied } => {
                Algorithm::CalendarWindow { limit: self.count(limit), unit, zone, count_denied }
            }
            Algorithm::SlidingWindow { limit, period, count_denied } => {
                Algorithm::SlidingWindow { limit: self.count(limit), period, count_denied }
            }
            Algorithm::SlidingLog { limit, period } => {
                Algorithm::SlidingLog { limit: self.count(limit), period }
            }
            Algorithm::TokenBucket(bucket) => Algorithm::TokenBucket(self.bucket(bucket)),
            Algorithm::Reserve { sustained, reserve } => {
                Algorithm::Reserve { sustained: self.bucket(sustained), reserve: self.bucket(reserve) }
            }
            Algorithm::Concurrent { limit } => Algorithm::Concurrent { limit: self.count(limit) },
        };
        let share = Limit::new(share).unwrap_or(*limit);
        if limit.has_default_debt() {
            return share;
        }
        share.with_debt(self.units(limit.max_debt())).unwrap_or(share)
    }

    fn count(self, whole: u64) -> u64 {
        self.units(whole).max(1)
    }

    /// This share of a number, rounded down.
    pub(crate) fn units(self, whole: u64) -> u64 {
        let share = u128::from(whole).saturating_mul(self.0.into()).checked_div(Self::WHOLE.into());
        share.and_then(|share| u64::try_from(share).ok()).unwrap_or(whole)
    }

    /// Scales the interval, not the amount: a low rate is not rounded to zero.
    fn bucket(self, bucket: Bucket) -> Bucket {
        let nanos =
            bucket.interval.as_nanos().saturating_mul(Self::WHOLE.into()).div_ceil(u128::from(self.0.max(1)));
        let interval = u64::try_from(nanos).map_or(MAX_SPAN, Duration::from_nanos).min(MAX_SPAN);
        Bucket { capacity: self.count(bucket.capacity), interval, ..bucket }
    }
}

impl<S> Shared<S> {
    /// The degraded decision: each rule's charges by that rule's policy, all or nothing.
    pub(crate) fn decide_without_store(&self, op: Op, plan: &Plan, cost: u64, now: Timestamp) -> Decision {
        let closed =
            plan.planned().iter().any(|charge| charge.policy == FailurePolicy::Closed && !charge.shadow);
        let charges = plan.charges(cost);
        let local: SmallVec<[(Limit, Tag); 4]> = charges
            .iter()
            .map(|charge| (self.local_share.of(charge.limit), self.local_tag(charge)))
            .collect();
        let local = plan
            .distinct()
            .zip(&charges)
            .zip(&local)
            .filter(|((charge, _), _)| charge.policy == FailurePolicy::Local);
        let charges: SmallVec<[Charge<'_>; 4]> = local
            .map(|((_, charge), (limit, tag))| Charge { limit, tag: *tag, record_denied: false, ..*charge })
            .collect();
        let op = match op {
            _ if closed => Op::Peek,
            // A local reservation would never be settled: an admitted cost is taken.
            Op::Reserve { hold, ttl, .. } => Op::Acquire { hold, ttl },
            op => op,
        };
        let answered = self.local.apply_now(op, &charges, now);
        let mut local_answers = answered.map(|applied| applied.answers).unwrap_or_default().into_iter();
        let answers: SmallVec<[Answer; 4]> = plan
            .distinct()
            .map(|charge| match charge.policy {
                FailurePolicy::Open => {
                    let capacity = plan.charge(charge, 0).limit.capacity();
                    assumed(charge.part, Verdict::Allowed, capacity, now)
                }
                FailurePolicy::Closed => {
                    assumed(charge.part, Verdict::Denied { retry_after: SECOND }, 0, now)
                }
                FailurePolicy::Local => {
                    local_answers.next().unwrap_or_else(|| assumed(charge.part, Verdict::Allowed, 0, now))
                }
            })
            .collect();
        plan.decision(now, if closed { Degraded::Closed } else { Degraded::Yes }, &answers)
    }

    /// The tag of a budget with a share of its limits.
    fn local_tag(&self, charge: &Charge<'_>) -> Tag {
        if charge.tag.is_inline() {
            return charge.tag;
        }
        let limits: Vec<Limit> = charge.tag.limits.iter().map(|limit| self.local_share.of(limit)).collect();
        charge.tag.under(limits.into())
    }
}

/// An answer without a count behind it.
pub(super) fn assumed(part: Part, verdict: Verdict, remaining: u64, now: Timestamp) -> Answer {
    let at = match verdict {
        Verdict::Denied { retry_after } => now.saturating_add(retry_after),
        Verdict::Allowed | Verdict::Never => now,
    };
    let outcome = Outcome { now, verdict, remaining, owed: 0, reset_at: at, grows_at: at };
    let overflow = match part {
        Part::Whole => Overflow::None,
        Part::First(_) => Overflow::From { drawn: 0, lent: 0 },
        Part::Rest(_) => Overflow::Into { drawn: 0 },
    };
    Answer { outcome, effect: Effect::None, cause: Cause::Limit, overflow }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MINUTE;

    #[test]
    fn e4_a_share_of_a_limit_scales_its_count_and_its_rate() {
        let quarter = |limit: Limit| Share(250_000).of(&limit);
        assert_eq!(quarter(Limit::fixed_window(10, MINUTE)), Limit::fixed_window(2, MINUTE));
        assert_eq!(quarter(Limit::sliding_log(3, MINUTE)), Limit::sliding_log(1, MINUTE));
        assert_eq!(quarter(Limit::per_minute(100)), Limit::token_bucket(25, 100, 4 * MINUTE));
        assert_eq!(Share(Share::WHOLE).of(&Limit::API), Limit::API);
        assert_eq!(quarter(Limit::sliding_log(8, MINUTE).debt(3)), Limit::sliding_log(2, MINUTE).debt(0));
    }
}
