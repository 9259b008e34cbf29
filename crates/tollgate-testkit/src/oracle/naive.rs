//! One limit and its whole history.

use std::time::Duration;

use num_rational::Ratio;
use tollgate::{Algorithm, Bucket, Limit};

type Fraction = Ratio<i128>;

/// A limit and its history, for one key.
pub trait Naive: Send {
    /// Units that may be taken at `now`.
    fn available(&self, now: u64) -> u64;
    /// Units in use, possibly more than the limit.
    fn in_use(&self, now: u64) -> u64;
    /// This history under a limit that replaces its own: as many units in use.
    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        with_used(limit, now, self.in_use(now))
    }
    /// Takes `cost` units, available or not.
    fn take(&mut self, now: u64, cost: u64);
    /// Gives back the most recently drawn units.
    fn give(&mut self, now: u64, units: u64);
}

/// The oracle for `limit`.
#[must_use]
pub fn naive(limit: &Limit) -> Box<dyn Naive> {
    match limit.algorithm() {
        Algorithm::FixedWindow { limit, period, aligned, .. } => {
            Box::new(Window { limit, period: nanos(period), aligned, taken: Vec::new() })
        }
        Algorithm::SlidingWindow { limit, period, .. } => {
            Box::new(Estimate { limit, period: nanos(period), taken: Vec::new() })
        }
        Algorithm::SlidingLog { limit, period } => {
            Box::new(Log { limit, period: nanos(period), taken: Vec::new() })
        }
        Algorithm::TokenBucket(bucket) => Box::new(Level::full(bucket)),
        Algorithm::Reserve { sustained, reserve } => {
            Box::new(TwoLevels(Level::full(sustained), Level::full(reserve)))
        }
        other => unreachable!("an algorithm without an oracle: {other:?}"),
    }
}

/// The history of a client that just took `used` units: all of them from a window or a log, at most
/// the capacity from a bucket.
fn with_used(limit: &Limit, now: u64, used: u64) -> Box<dyn Naive> {
    let mut cell = naive(limit);
    let used = match limit.algorithm() {
        Algorithm::TokenBucket(_) | Algorithm::Reserve { .. } => used.min(limit.capacity()),
        _ => used,
    };
    if used > 0 {
        cell.take(now, used);
    }
    cell
}

/// The history: (time, units), oldest first.
type Taken = Vec<(u64, u64)>;

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).expect("a limit's span fits")
}

/// Removes up to `units` from the end of a history, from entries not older than `since`.
fn untake(taken: &mut Taken, since: u64, mut units: u64) {
    while let Some((at, cost)) = taken.last_mut().filter(|(at, _)| *at >= since) {
        let _ = at;
        let back = units.min(*cost);
        *cost -= back;
        units -= back;
        if *cost > 0 {
            return;
        }
        taken.pop();
    }
}

struct Window {
    limit: u64,
    period: u64,
    aligned: bool,
    taken: Taken,
}

impl Window {
    /// The start of the window that contains `now` and the units used in it, by replaying the whole
    /// history.
    fn current(&self, now: u64) -> (u64, u64) {
        let mut window: Option<(u64, u64)> = None;
        for (at, cost) in &self.taken {
            let start = if self.aligned { at - at % self.period } else { *at };
            window = match window {
                Some((open, used)) if at - open < self.period => Some((open, used + cost)),
                _ => Some((start, *cost)),
            };
        }
        window.filter(|(open, _)| now - open < self.period).unwrap_or((now, 0))
    }
}

impl Naive for Window {
    fn available(&self, now: u64) -> u64 {
        self.limit.saturating_sub(self.current(now).1)
    }

    fn in_use(&self, now: u64) -> u64 {
        self.current(now).1
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        let (open, used) = self.current(now);
        match limit.algorithm() {
            // The window keeps its start, if the new period has not ended it.
            Algorithm::FixedWindow { period, aligned: false, .. } if now - open < nanos(period) => {
                with_used(limit, open, used)
            }
            _ => with_used(limit, now, used),
        }
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.taken.push((now, cost));
    }

    fn give(&mut self, now: u64, units: u64) {
        let (open, used) = self.current(now);
        untake(&mut self.taken, open, units.min(used));
    }
}

struct Estimate {
    limit: u64,
    period: u64,
    taken: Taken,
}

impl Estimate {
    fn count(&self, from: u64) -> u64 {
        self.taken
            .iter()
            .filter(|(at, _)| from <= *at && *at < from + self.period)
            .map(|(_, cost)| cost)
            .sum()
    }
}

impl Naive for Estimate {
    fn available(&self, now: u64) -> u64 {
        self.limit.saturating_sub(self.in_use(now))
    }

    fn in_use(&self, now: u64) -> u64 {
        let start = now - now % self.period;
        let current = self.count(start);
        let previous = if start >= self.period { self.count(start - self.period) } else { 0 };
        let share = Fraction::new(i128::from(self.period - (now - start)), i128::from(self.period));
        let estimate = Fraction::from(i128::from(current)) + share * i128::from(previous);
        u64::try_from(estimate.floor().to_integer()).expect("a count fits")
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        match limit.algorithm() {
            Algorithm::SlidingWindow { limit, period, .. } if nanos(period) == self.period => {
                Box::new(Self { limit, taken: self.taken.clone(), period: self.period })
            }
            _ => with_used(limit, now, self.in_use(now)),
        }
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.taken.push((now, cost));
    }

    fn give(&mut self, now: u64, units: u64) {
        let start = now - now % self.period;
        untake(&mut self.taken, start.saturating_sub(self.period), units);
    }
}

struct Log {
    limit: u64,
    period: u64,
    taken: Taken,
}

impl Naive for Log {
    fn available(&self, now: u64) -> u64 {
        self.limit.saturating_sub(self.in_use(now))
    }

    fn in_use(&self, now: u64) -> u64 {
        let counts = |(at, _): &&(u64, u64)| now - at < self.period;
        self.taken.iter().filter(counts).map(|(_, cost)| cost).sum()
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        match limit.algorithm() {
            // The entries keep their times. Lapsed entries do not come back.
            Algorithm::SlidingLog { limit, period } => {
                let period = nanos(period);
                let counts = |(at, _): &&(u64, u64)| now - at < self.period.min(period);
                let taken = self.taken.iter().filter(counts).copied().collect();
                Box::new(Self { limit, period, taken })
            }
            _ => with_used(limit, now, self.in_use(now)),
        }
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.taken.push((now, cost));
    }

    fn give(&mut self, now: u64, units: u64) {
        untake(&mut self.taken, (now + 1).saturating_sub(self.period), units);
    }
}

/// A bucket as a level that rises with time.
struct Level {
    bucket: Bucket,
    level: Fraction,
    as_of: u64,
}

impl Level {
    fn full(bucket: Bucket) -> Self {
        Self { bucket, level: Fraction::from(i128::from(bucket.capacity)), as_of: 0 }
    }

    fn at(&self, now: u64) -> Fraction {
        let interval = nanos(self.bucket.interval);
        let amount = i128::from(self.bucket.amount);
        let refill = if self.bucket.stepped {
            Fraction::from(i128::from(now / interval - self.as_of / interval) * amount)
        } else {
            Fraction::new(i128::from(now - self.as_of) * amount, i128::from(interval))
        };
        (self.level + refill).min(Fraction::from(i128::from(self.bucket.capacity)))
    }

    fn change(&mut self, now: u64, units: i128) {
        let capacity = Fraction::from(i128::from(self.bucket.capacity));
        self.level = (self.at(now) + Fraction::from(units)).min(capacity);
        self.as_of = now;
    }
}

impl Level {
    /// This debt under a bucket that replaces this one, at most the new capacity. The refilled
    /// fraction of a token is kept, in the new rate's fractions of a nanosecond.
    fn replaced(&self, bucket: Bucket, now: u64) -> Self {
        let debt = Fraction::from(i128::from(self.bucket.capacity)) - self.at(now);
        let capacity = Fraction::from(i128::from(bucket.capacity));
        let (amount, interval) = (bucket.amount, nanos(bucket.interval));
        let token = i128::from(*Ratio::new(amount, interval).denom());
        let debt = match self.bucket.stepped || bucket.stepped {
            true => debt.ceil(),
            false => (debt * token).ceil() / token,
        };
        Self { bucket, level: capacity - debt.min(capacity), as_of: now }
    }
}

impl Naive for Level {
    fn available(&self, now: u64) -> u64 {
        u64::try_from(self.at(now).floor().to_integer()).expect("a level is never negative")
    }

    fn in_use(&self, now: u64) -> u64 {
        self.bucket.capacity - self.available(now)
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        match limit.algorithm() {
            Algorithm::TokenBucket(bucket) => Box::new(self.replaced(bucket, now)),
            _ => with_used(limit, now, self.in_use(now)),
        }
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.change(now, -i128::from(cost));
    }

    fn give(&mut self, now: u64, units: u64) {
        self.change(now, i128::from(units));
    }
}

/// The sustained bucket and the reserve.
struct TwoLevels(Level, Level);

impl Naive for TwoLevels {
    fn available(&self, now: u64) -> u64 {
        self.0.available(now) + self.1.available(now)
    }

    fn in_use(&self, now: u64) -> u64 {
        self.0.in_use(now) + self.1.in_use(now)
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        let used = self.in_use(now);
        if let Algorithm::Reserve { sustained, reserve } = limit.algorithm() {
            // Bucket by bucket, unless one is now too small for its units in use.
            let both = Self(self.0.replaced(sustained, now), self.1.replaced(reserve, now));
            if both.in_use(now) == used.min(limit.capacity()) {
                return Box::new(both);
            }
        }
        with_used(limit, now, used)
    }

    fn take(&mut self, now: u64, cost: u64) {
        let sustained = cost.min(self.0.available(now));
        self.0.take(now, sustained);
        self.1.take(now, cost - sustained);
    }

    fn give(&mut self, now: u64, units: u64) {
        let debt = self.1.bucket.capacity - self.1.available(now);
        self.1.give(now, units.min(debt));
        self.0.give(now, units - units.min(debt));
    }
}
