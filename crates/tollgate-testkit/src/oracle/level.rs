//! Buckets as levels that rise with time, in exact fractions.

use num_rational::Ratio;
use tollgate::{Algorithm, Bucket, Limit};

use super::naive::{Fraction, Naive, nanos, with_used};

/// A bucket as a level that rises with time, from below zero if units are owed.
#[derive(Clone)]
pub(super) struct Level {
    bucket: Bucket,
    debt: u64,
    level: Fraction,
    as_of: u64,
}

impl Level {
    pub(super) fn full(bucket: Bucket, debt: u64) -> Self {
        Self { bucket, debt, level: Fraction::from(i128::from(bucket.capacity)), as_of: 0 }
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

    /// The whole units of the level, which may be negative.
    fn whole(&self, now: u64) -> i128 {
        self.at(now).floor().to_integer()
    }

    fn change(&mut self, now: u64, units: i128) {
        let capacity = Fraction::from(i128::from(self.bucket.capacity));
        self.level = (self.at(now) + Fraction::from(units)).min(capacity);
        self.as_of = now;
    }

    /// The units lacking, under a bucket that replaces this one: at most the new capacity, and what
    /// was owed before. The refilled fraction of a token is kept, in the new rate's fractions of a
    /// nanosecond.
    fn replaced(&self, bucket: Bucket, debt: u64, now: u64) -> Self {
        let whole = Fraction::from(i128::from(self.bucket.capacity));
        let capacity = Fraction::from(i128::from(bucket.capacity));
        let (amount, interval) = (bucket.amount, nanos(bucket.interval));
        let token = i128::from(*Ratio::new(amount, interval).denom());
        let rounded = |units: Fraction| match self.bucket.stepped || bucket.stepped {
            true => units.ceil(),
            false => (units * token).ceil() / token,
        };
        let lacking = whole - self.at(now);
        let owed = rounded((lacking - whole).max(Fraction::from(0))).min(Fraction::from(i128::from(debt)));
        Self { bucket, debt, level: capacity - rounded(lacking).min(capacity + owed), as_of: now }
    }
}

/// A number of units, at least 0.
fn units(number: i128) -> u64 {
    u64::try_from(number.max(0)).expect("a count fits")
}

impl Naive for Level {
    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }

    fn lacking(&self, now: u64) -> Fraction {
        Fraction::from(i128::from(self.bucket.capacity)) - self.at(now)
    }

    /// Of what was lacking then, no more than is lacking still if nothing else was drawn.
    fn give_own(&mut self, now: u64, units: u64, _drawn_at: u64, then: &dyn Naive) {
        let given = then.lacking(now).min(Fraction::from(i128::from(units)));
        let capacity = Fraction::from(i128::from(self.bucket.capacity));
        self.level = (self.at(now) + given).min(capacity);
        self.as_of = now;
    }

    fn available(&self, now: u64) -> u64 {
        units(self.whole(now))
    }

    fn in_use(&self, now: u64) -> u64 {
        units(i128::from(self.bucket.capacity) - self.whole(now))
    }

    fn owed(&self, now: u64) -> u64 {
        units(-self.whole(now))
    }

    fn recordable(&self, now: u64) -> u64 {
        units(self.whole(now) + i128::from(self.debt))
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        match limit.algorithm() {
            Algorithm::TokenBucket(bucket) => Box::new(self.replaced(bucket, limit.max_debt(), now)),
            _ => with_used(limit, now, self.in_use(now), self.owed(now)),
        }
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.change(now, -i128::from(cost));
    }

    fn give(&mut self, now: u64, units: u64) {
        self.change(now, i128::from(units));
    }
}

/// The sustained bucket, which may owe units, and the reserve.
#[derive(Clone)]
pub(super) struct TwoLevels(pub(super) Level, pub(super) Level);

impl TwoLevels {
    fn whole(&self, now: u64) -> i128 {
        self.0.whole(now) + self.1.whole(now)
    }
}

impl Naive for TwoLevels {
    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }

    fn available(&self, now: u64) -> u64 {
        units(self.whole(now))
    }

    fn in_use(&self, now: u64) -> u64 {
        self.0.in_use(now) + self.1.in_use(now)
    }

    fn owed(&self, now: u64) -> u64 {
        units(-self.whole(now))
    }

    fn recordable(&self, now: u64) -> u64 {
        units(self.whole(now) + i128::from(self.0.debt))
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        let (used, owed) = (self.in_use(now), self.owed(now));
        if let Algorithm::Reserve { sustained, reserve } = limit.algorithm() {
            // Bucket by bucket, unless one is now too small for its units in use.
            let debt = limit.max_debt();
            let both = Self(self.0.replaced(sustained, debt, now), self.1.replaced(reserve, 0, now));
            if both.in_use(now) == used.min(limit.capacity() + owed.min(debt)) {
                return Box::new(both);
            }
        }
        with_used(limit, now, used, owed)
    }

    fn take(&mut self, now: u64, cost: u64) {
        let beyond = cost.saturating_sub(self.0.available(now));
        let reserve = beyond.min(self.1.available(now));
        self.0.take(now, cost - reserve);
        self.1.take(now, reserve);
    }

    /// Unit by unit. What is owed was drawn last. A bucket with units left was drawn on after the
    /// other was empty.
    fn give(&mut self, now: u64, units: u64) {
        for _ in 0..units.min(self.in_use(now)) {
            let is_sustained_last = self.0.owed(now) > 0 || self.0.available(now) > 0;
            let is_sustained_next =
                if is_sustained_last { self.0.in_use(now) > 0 } else { self.1.in_use(now) == 0 };
            if is_sustained_next { self.0.give(now, 1) } else { self.1.give(now, 1) }
        }
    }
}
