//! Checking the numbers of a limit, in one function that a `const` can call.

use std::time::Duration;

use super::{Algorithm, Bucket, Kind, Limit, MAX_COUNT, MAX_SPAN};
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

impl Limit {
    pub(super) const fn checked(algorithm: Algorithm) -> Result<Self, InvalidNumber> {
        Ok(Self(match algorithm {
            Algorithm::FixedWindow { limit, period, aligned, count_denied } => {
                match (checked_count("limit", limit), checked_span("period", period)) {
                    (Ok(limit), Ok(period)) => {
                        Kind::FixedWindow(FixedWindow { limit, period, aligned, count_denied })
                    }
                    (Err(invalid), _) | (_, Err(invalid)) => return Err(invalid),
                }
            }
            Algorithm::SlidingWindow { limit, period, count_denied } => {
                match (checked_count("limit", limit), checked_span("period", period)) {
                    (Ok(limit), Ok(period)) => {
                        Kind::SlidingWindow(SlidingWindow { limit, period, count_denied })
                    }
                    (Err(invalid), _) | (_, Err(invalid)) => return Err(invalid),
                }
            }
            Algorithm::SlidingLog { limit, period } => {
                match (checked_count("limit", limit), checked_span("period", period)) {
                    (Ok(limit), Ok(period)) => Kind::SlidingLog(SlidingLog { limit, period }),
                    (Err(invalid), _) | (_, Err(invalid)) => return Err(invalid),
                }
            }
            Algorithm::TokenBucket(bucket) => match checked_bucket(bucket) {
                Ok(bucket) => Kind::of_bucket(bucket),
                Err(invalid) => return Err(invalid),
            },
            Algorithm::Reserve { sustained, reserve } => {
                let total = sustained.capacity.saturating_add(reserve.capacity);
                match (checked_bucket(sustained), checked_bucket(reserve), checked_count("capacity", total)) {
                    (Ok(sustained), Ok(reserve), Ok(_)) => Kind::Reserve(Reserve { sustained, reserve }),
                    (Err(invalid), ..) | (_, Err(invalid), _) | (.., Err(invalid)) => return Err(invalid),
                }
            }
        }))
    }
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
