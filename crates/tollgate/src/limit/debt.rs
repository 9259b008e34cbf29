//! The debt of a limit: how many units can be owed.

use super::{Algorithm, Kind, Limit};
use crate::Error;

impl Limit {
    /// This limit with at most `units` owed. What was used beyond the limit is owed
    /// ([`Limiter::record`](crate::Limiter::record)), and nothing is admitted until it is paid off
    /// at the limit's own rate. By default one whole limit; with 0 nothing is ever owed.
    ///
    /// ```
    /// use tollgate::Limit;
    ///
    /// assert_eq!(Limit::per_hour(1000).max_debt(), 1000);
    /// assert_eq!(Limit::per_hour(1000).debt(500), "1000/hour debt 500".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the number is too large. [`with_debt`](Self::with_debt) returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn debt(self, units: u64) -> Self {
        match self.checked_debt(units) {
            Ok(limit) => limit,
            Err(invalid) => panic!("{}", invalid.summary),
        }
    }

    /// [`debt`](Self::debt) with an unchecked number.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] if the number is out of range.
    pub fn with_debt(self, units: u64) -> Result<Self, Error> {
        self.checked_debt(units).map_err(Error::from)
    }

    /// The most units that can be owed; see [`debt`](Self::debt).
    #[must_use]
    pub const fn max_debt(&self) -> u64 {
        match &self.0 {
            Kind::FixedWindow(window) => window.max_debt,
            Kind::CalendarWindow(window) => window.max_debt,
            Kind::SlidingWindow(window) => window.max_debt,
            Kind::SlidingLog(log) => log.max_debt,
            Kind::TokenBucket(bucket) => bucket.max_debt,
            Kind::FractionalBucket(bucket) => bucket.max_debt,
            Kind::Reserve(both) => both.sustained.max_debt,
            Kind::Concurrent(_) | Kind::InlineBucket(_) | Kind::InlineWindow(_) => 0,
        }
    }

    /// The most units that a sliding log can keep: the limit and its debt.
    #[must_use]
    pub const fn longest_log(&self) -> u64 {
        self.capacity().saturating_add(self.max_debt())
    }

    /// Whether the debt is the default: one whole limit.
    #[must_use]
    pub const fn has_default_debt(&self) -> bool {
        match Self::checked(self.algorithm()) {
            Ok(default) => default.max_debt() == self.max_debt() || self.inline_longest().is_some(),
            Err(_) => false,
        }
    }

    /// The limit with this algorithm, and with the debt of this limit if that is not the default.
    #[track_caller]
    pub(super) const fn rebuilt(self, algorithm: Algorithm) -> Self {
        let rebuilt = Self::expect(algorithm);
        if self.has_default_debt() { rebuilt } else { rebuilt.debt(self.max_debt()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{MAX_COUNT, MAX_SPAN, MINUTE};

    #[test]
    fn c7_the_default_debt_is_one_whole_limit_and_follows_the_capacity() {
        assert_eq!(Limit::per_minute(10).burst(30).max_debt(), 30);
        assert_eq!(Limit::per_minute(10).debt(4).burst(30).max_debt(), 4, "a debt that was set stays");
        assert_eq!(Limit::per_minute(10).reserve(50, 1, MINUTE).max_debt(), 60, "of both buckets");
        assert_eq!(Limit::fixed_window(10, MINUTE).debt(0).aligned().max_debt(), 0);
    }

    #[test]
    fn c7_a_debt_that_the_refill_cannot_pay_off_is_rejected() {
        let slow = Limit::per(1, MAX_SPAN);
        assert_eq!(slow.max_debt(), 1);
        let error = slow.with_debt(2).unwrap_err().to_string();
        assert_eq!(error, "debt is 2; it must be small enough for the refill to pay it off within 100 years");
        assert!(Limit::per_second(1).with_debt(MAX_COUNT + 1).unwrap_err().to_string().contains("debt is"));
    }
}
