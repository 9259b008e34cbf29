//! The counter interface: a store from any atomic counter.
//!
//! Any service that can add to a named number and let it expire (Redis `INCRBY` and `EXPIRE`, a
//! key-value service, a database row) supports aligned fixed windows and sliding windows. A counter
//! has limitations. It is added to before it is read, so denied attempts count. Several limits are
//! not all or nothing. There is no peek, refund, block or reservation. A limit with a changed
//! period starts without history.

use std::future::Future;
use std::time::Duration;

use smallvec::SmallVec;

use crate::algorithm::aligned_start;
use crate::store::{Answer, Applied, Cause, Charge, Effect, Op, Overflow, Store, StoreError};
use crate::time::nanos_of;
use crate::{Algorithm, Error, Key, Limit, Meter, Outcome, Rule, Timestamp};

/// An atomic counter.
pub trait Counter: Send + Sync + 'static {
    /// Atomically adds `n` to the number called `name` and returns the sum. A number starts at 0
    /// and may be forgotten `ttl` after the last addition. With `n` = 0 it only reads.
    fn add(&self, name: &[u8], n: u64, ttl: Duration)
    -> impl Future<Output = Result<u64, StoreError>> + Send;
}

impl<C: Counter> Counter for std::sync::Arc<C> {
    fn add(
        &self,
        name: &[u8],
        n: u64,
        ttl: Duration,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        (**self).add(name, n, ttl)
    }
}

/// A [`Store`] on a [`Counter`].
///
/// It keeps the laws that a counter can keep: never too many, keys are islands, forgetting is
/// invisible, strongly consistent per key.
#[derive(Clone, Copy, Debug)]
pub struct CounterStore<C>(pub C);

impl<C: Counter> Store for CounterStore<C> {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        if op != Op::Take {
            return Err(StoreError::Unsupported { verb: op.verb() });
        }
        let mut answers = SmallVec::new();
        for charge in charges {
            let outcome = self.count(charge, now).await?;
            let (effect, cause, overflow) = (Effect::None, Cause::Limit, Overflow::None);
            answers.push(Answer { outcome, effect, cause, overflow });
        }
        Ok(Applied { now, answers, changed: true, converted: 0 })
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        match window(limit) {
            Some(_) => Ok(()),
            None => Err(Error::InvalidLimit {
                field: "algorithm",
                value: limit.to_string(),
                reason: "\"fixed aligned counting denied\" or \"sliding counting denied\" on a plain counter",
            }),
        }
    }

    fn accepts_overflow(&self, rule: &Rule, _into: &Rule) -> Result<(), Error> {
        let reason = "a plain counter cannot draw on two budgets in one step; use another store".into();
        Err(Error::InvalidRule { rule: rule.name().to_string(), field: "overflow", reason })
    }
}

impl<C: Counter> CounterStore<C> {
    async fn count(&self, charge: &Charge<'_>, now: Timestamp) -> Result<Outcome, StoreError> {
        let Some((period, sliding)) = window(charge.limit) else {
            return Err(StoreError::Unsupported { verb: "keep this limit" });
        };
        let fits_at_all = charge.cost <= charge.limit.capacity();
        let start = aligned_start(now.as_nanos(), period);
        let ttl = Duration::from_nanos(period.saturating_mul(2));
        let added = if fits_at_all { charge.cost } else { 0 };
        let current = self.0.add(&name(charge.key, start), added, ttl).await?;
        let previous = match start.checked_sub(period).filter(|_| sliding) {
            Some(before) => self.0.add(&name(charge.key, before), 0, ttl).await?,
            None => 0,
        };
        let state = [start, current, previous];
        let meter = Meter::load(*charge.limit, if sliding { &state } else { &state[..2] });
        // The cost is already included in the count.
        let allowed = charge.cost == 0 || fits_at_all && meter.used(now) <= charge.limit.capacity();
        Ok(meter.outcome(now, charge.cost, allowed))
    }
}

/// The period of a limit that a counter supports, and whether the window slides.
fn window(limit: &Limit) -> Option<(u64, bool)> {
    match limit.algorithm() {
        Algorithm::FixedWindow { period, aligned: true, count_denied: true, .. } => {
            Some((nanos_of(period), false))
        }
        Algorithm::SlidingWindow { period, count_denied: true, .. } => Some((nanos_of(period), true)),
        _ => None,
    }
}

/// The name of the number of a key and a window.
fn name(key: Key<'_>, start: u64) -> SmallVec<[u8; 64]> {
    let mut name = SmallVec::new();
    name.extend(start.to_be_bytes());
    key.encode(&mut name);
    name
}
