//! Checking the numbers of a limit, in one function that a `const` can call.

use std::time::Duration;

use super::{Algorithm, Bucket, Kind, Limit, MAX_COUNT, MAX_SLOTS, MAX_SPAN};
use crate::Error;
use crate::algorithm::calendar_window::CalendarWindow;
use crate::algorithm::concurrent::Concurrent;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::reserve::Reserve;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::{Parts, TokenBucket};

/// A number out of range: [`Error::InvalidLimit`](crate::Error::InvalidLimit) for a `const`, which
/// cannot build strings.
#[derive(Clone, Copy)]
pub(super) struct InvalidNumber {
    pub(super) field: &'static str,
    pub(super) value: u128,
    pub(super) reason: &'static str,
    pub(super) summary: &'static str,
}

impl From<InvalidNumber> for Error {
    fn from(InvalidNumber { field, value, reason, .. }: InvalidNumber) -> Self {
        Self::InvalidLimit { field, value: value.to_string(), reason }
    }
}

impl Limit {
    pub(super) const fn checked(algorithm: Algorithm) -> Result<Self, InvalidNumber> {
        Ok(Self(match algorithm {
            Algorithm::FixedWindow { limit, period, aligned, count_denied } => {
                match (checked_count("limit", limit), checked_span("period", period)) {
                    (Ok(limit), Ok(period)) => Kind::FixedWindow(FixedWindow {
                        limit,
                        period,
                        aligned,
                        count_denied,
                        max_debt: limit,
                    }),
                    (Err(invalid), _) | (_, Err(invalid)) => return Err(invalid),
                }
            }
            Algorithm::CalendarWindow { limit, unit, zone, count_denied } => {
                match checked_count("limit", limit) {
                    Ok(limit) => Kind::CalendarWindow(CalendarWindow {
                        limit,
                        unit,
                        zone,
                        count_denied,
                        max_debt: limit,
                    }),
                    Err(invalid) => return Err(invalid),
                }
            }
            Algorithm::SlidingWindow { limit, period, count_denied } => {
                match (checked_count("limit", limit), checked_span("period", period)) {
                    (Ok(limit), Ok(period)) => {
                        Kind::SlidingWindow(SlidingWindow { limit, period, count_denied, max_debt: limit })
                    }
                    (Err(invalid), _) | (_, Err(invalid)) => return Err(invalid),
                }
            }
            Algorithm::SlidingLog { limit, period } => {
                match (checked_count("limit", limit), checked_span("period", period)) {
                    (Ok(limit), Ok(period)) => {
                        Kind::SlidingLog(SlidingLog { limit, period, max_debt: limit })
                    }
                    (Err(invalid), _) | (_, Err(invalid)) => return Err(invalid),
                }
            }
            Algorithm::TokenBucket(bucket) => match checked_bucket(bucket) {
                Ok(bucket) => Kind::of_bucket(with_default_debt(bucket, bucket.capacity)),
                Err(invalid) => return Err(invalid),
            },
            Algorithm::Reserve { sustained, reserve } => {
                let total = sustained.capacity.saturating_add(reserve.capacity);
                match (checked_bucket(sustained), checked_bucket(reserve), checked_count("capacity", total)) {
                    (Ok(sustained), Ok(reserve), Ok(total)) => {
                        let sustained = with_default_debt(sustained, total);
                        Kind::Reserve(Reserve { sustained, reserve })
                    }
                    (Err(invalid), ..) | (_, Err(invalid), _) | (.., Err(invalid)) => return Err(invalid),
                }
            }
            Algorithm::Concurrent { limit } => match checked_slots(limit) {
                Ok(limit) => Kind::Concurrent(Concurrent { limit }),
                Err(invalid) => return Err(invalid),
            },
        }))
    }

    /// This limit with another bound on the units that can be owed.
    pub(super) const fn checked_debt(self, debt: u64) -> Result<Self, InvalidNumber> {
        if debt > MAX_COUNT {
            return Err(invalid_debt(debt, "a whole number from 0 to 999999999999999"));
        }
        let (mut kind, mut payable) = (self.0, u64::MAX);
        match &mut kind {
            Kind::FixedWindow(window) => window.max_debt = debt,
            Kind::CalendarWindow(window) => window.max_debt = debt,
            Kind::SlidingWindow(window) => window.max_debt = debt,
            Kind::SlidingLog(log) => log.max_debt = debt,
            Kind::TokenBucket(bucket) => {
                payable = payable_debt(bucket.amount, bucket.interval);
                bucket.max_debt = debt;
            }
            Kind::FractionalBucket(bucket) => {
                payable = payable_debt(bucket.amount, bucket.interval);
                bucket.max_debt = debt;
            }
            Kind::Reserve(both) => {
                payable = payable_debt(both.sustained.amount, both.sustained.interval);
                both.sustained.max_debt = debt;
            }
            Kind::InlineBucket(_) | Kind::InlineWindow(_) | Kind::Concurrent(_) if debt == 0 => {}
            Kind::Concurrent(_) => return Err(invalid_debt(debt, "0 for slots, which are never owed")),
            Kind::InlineBucket(_) | Kind::InlineWindow(_) => {
                return Err(invalid_debt(debt, "0 for a limit that comes with a request"));
            }
        }
        if debt > payable {
            return Err(invalid_debt(debt, "small enough for the refill to pay it off within 100 years"));
        }
        Ok(Self(kind))
    }
}

#[expect(clippy::as_conversions, reason = "widening, in a const")]
const fn invalid_debt(debt: u64, reason: &'static str) -> InvalidNumber {
    let summary = "a limit's debt must be a whole number below 10^15, paid off within 100 years";
    InvalidNumber { field: "debt", value: debt as u128, reason, summary }
}

/// The most units that a refill pays off within 100 years.
#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "checked, in a const")]
const fn payable_debt(amount: u64, interval: u64) -> u64 {
    match MAX_SPAN.as_nanos().saturating_mul(amount as u128).checked_div(interval as u128) {
        Some(units) if units < MAX_COUNT as u128 => units as u64,
        _ => MAX_COUNT,
    }
}

/// This bucket, which can owe one whole limit, as far as its refill pays that off.
const fn with_default_debt(mut bucket: TokenBucket<Parts>, whole: u64) -> TokenBucket<Parts> {
    let payable = payable_debt(bucket.amount, bucket.interval);
    bucket.max_debt = if whole < payable { whole } else { payable };
    bucket
}

#[expect(clippy::as_conversions, reason = "widening, in a const")]
const fn checked_count(field: &'static str, count: u64) -> Result<u64, InvalidNumber> {
    if 0 < count && count <= MAX_COUNT {
        return Ok(count);
    }
    Err(InvalidNumber {
        field,
        value: count as u128,
        reason: "a whole number from 1 to 999999999999999",
        summary: "a limit's count must be a whole number from 1 to 999999999999999",
    })
}

#[expect(clippy::as_conversions, reason = "widening, in a const")]
const fn checked_slots(limit: u64) -> Result<u64, InvalidNumber> {
    if 0 < limit && limit <= MAX_SLOTS {
        return Ok(limit);
    }
    Err(InvalidNumber {
        field: "limit",
        value: limit as u128,
        reason: "a whole number from 1 to 8192",
        summary: "a limit on concurrency must be a whole number from 1 to 8192",
    })
}

#[expect(clippy::as_conversions, clippy::cast_possible_truncation, reason = "checked, in a const")]
const fn checked_span(field: &'static str, span: Duration) -> Result<u64, InvalidNumber> {
    let nanos = span.as_nanos();
    if 0 < nanos && nanos <= MAX_SPAN.as_nanos() {
        return Ok(nanos as u64);
    }
    Err(InvalidNumber {
        field,
        value: nanos,
        reason: "from 1 nanosecond to 100 years (in nanoseconds)",
        summary: "a limit's period must be from 1 nanosecond to 100 years",
    })
}

#[expect(clippy::as_conversions, reason = "widening, in a const")]
const fn checked_bucket(bucket: Bucket) -> Result<TokenBucket<Parts>, InvalidNumber> {
    let Bucket { capacity, amount, interval, stepped } = bucket;
    let (capacity, amount, interval) = match (
        checked_count("capacity", capacity),
        checked_count("amount", amount),
        checked_span("interval", interval),
    ) {
        (Ok(capacity), Ok(amount), Ok(interval)) => (capacity, amount, interval),
        (Err(invalid), ..) | (_, Err(invalid), _) | (.., Err(invalid)) => return Err(invalid),
    };
    let refill = (capacity as u128).saturating_mul(interval as u128);
    let longest = MAX_SPAN.as_nanos().saturating_mul(amount as u128);
    if refill > longest {
        return Err(InvalidNumber {
            field: "capacity",
            value: capacity as u128,
            reason: "small enough for the refill to fill it within 100 years",
            summary: "a bucket's refill must fill it within 100 years",
        });
    }
    Ok(TokenBucket::new(capacity, amount, interval, stepped))
}
