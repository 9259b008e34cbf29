//! Two stores that must agree, and how far their outcomes may differ.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tollgate::{
    Algorithm, Answer, Applied, Bucket, Cause, Charge, Error, Limit, MemoryStore, Op, Outcome, Store,
    StoreError, Timestamp, Verdict,
};
use tollgate_redis::RedisStore;

/// Number of answers compared.
pub(super) static COMPARED: AtomicU64 = AtomicU64::new(0);

/// A store on Redis and one in memory. Their answers must be equal.
pub(super) struct Twin {
    pub(super) redis: RedisStore,
    pub(super) memory: MemoryStore,
    /// Whether the clock has gone back. A state is then changed at the time when it was written,
    /// which may lie between two microseconds.
    pub(super) went_back: Arc<AtomicBool>,
}

/// Whether the times in a limit's states are whole microseconds. Other times lie between two
/// microseconds, which shows when the clock goes back.
pub(super) fn has_whole_micros(limit: &Limit) -> bool {
    let whole = |bucket: Bucket| bucket.interval.as_nanos().is_multiple_of(1_000 * u128::from(bucket.amount));
    match limit.algorithm() {
        Algorithm::TokenBucket(bucket) => whole(bucket),
        Algorithm::Reserve { sustained, reserve } => whole(sustained) && whole(reserve),
        _ => true,
    }
}

/// Whether two outcomes are equal but for a microsecond.
pub(super) fn is_near(got: &Outcome, expected: &Outcome) -> bool {
    let moments = |outcome: &Outcome| {
        let Outcome { now, verdict, reset_at, grows_at, .. } = *outcome;
        [now.saturating_add(verdict.retry_after().unwrap_or_default()), reset_at, grows_at]
    };
    let mut both = moments(got).into_iter().zip(moments(expected));
    let near = |(one, other): (Timestamp, Timestamp)| one.as_nanos().abs_diff(other.as_nanos()) <= 1_000;
    both.all(near) && (got.allowed(), got.remaining) == (expected.allowed(), expected.remaining)
}

impl Store for Twin {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let got = self.redis.apply(op, charges, now).await?;
        let expected = self.memory.apply(op, charges, now).await?;
        if std::thread::panicking() {
            return Ok(got);
        }
        let call = || format!("{op:?} of {charges:?} at {now:?}");
        assert_eq!(got.now, rounded_up(expected.now), "{}", call());
        for (got, expected) in got.answers.iter().zip(&expected.answers) {
            COMPARED.fetch_add(1, Ordering::Relaxed);
            let cause = match expected.cause {
                Cause::Block { until } => Cause::Block { until: rounded_up(until) },
                cause => cause,
            };
            let expected = Answer { outcome: rounded_outcome(expected.outcome), cause, ..*expected };
            let near = self.went_back.load(Ordering::Relaxed) && is_near(&got.outcome, &expected.outcome);
            let same = *got == if near { Answer { outcome: got.outcome, ..expected } } else { expected };
            assert!(same, "{}: {got:?}, expected {expected:?}", call());
        }
        let rest = |applied: &Applied| (applied.converted, applied.changed);
        assert_eq!(rest(&got), rest(&expected), "{}: {:?}", call(), got.answers);
        Ok(got)
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        self.redis.accepts(limit)
    }
}

/// A time, rounded up to microseconds.
fn rounded_up(at: Timestamp) -> Timestamp {
    Timestamp::from_nanos(at.as_nanos().div_ceil(1_000) * 1_000)
}

/// An outcome with its times rounded up to microseconds: no promised time is early.
pub(super) fn rounded_outcome(outcome: Outcome) -> Outcome {
    let now = rounded_up(outcome.now);
    let verdict = match outcome.verdict {
        Verdict::Denied { retry_after } => {
            let at = rounded_up(outcome.now.saturating_add(retry_after));
            Verdict::Denied { retry_after: at.since(now).max(Duration::from_micros(1)) }
        }
        verdict => verdict,
    };
    Outcome {
        now,
        verdict,
        reset_at: rounded_up(outcome.reset_at),
        grows_at: rounded_up(outcome.grows_at),
        ..outcome
    }
}
