//! A limit spelled out.

use std::time::Duration;

use super::{Kind, Limit};
use crate::algorithm::calendar_window::CalendarWindow;
use crate::algorithm::concurrent::Concurrent;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::inline::InlineWindow;
use crate::algorithm::reserve::Reserve;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::TokenBucket;
use crate::{CalendarUnit, Zone};

/// The algorithm of a limit and its numbers: input of [`Limit::new`], output of
/// [`Limit::algorithm`]. The debt is apart: [`Limit::debt`], [`Limit::max_debt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// At most `limit` per `period`, counted from the first request, or from multiples of the
    /// period if `aligned`.
    FixedWindow {
        /// Units per period.
        limit: u64,
        /// The period.
        period: Duration,
        /// Whether windows start at multiples of the period.
        aligned: bool,
        /// Whether attempts count even when they are denied.
        count_denied: bool,
    },
    /// At most `limit` per unit of the calendar.
    CalendarWindow {
        /// Units per unit of the calendar.
        limit: u64,
        /// The unit of the calendar.
        unit: CalendarUnit,
        /// The time zone of the calendar.
        zone: Zone,
        /// Whether attempts count even when they are denied.
        count_denied: bool,
    },
    /// A weighted estimate over two aligned periods.
    SlidingWindow {
        /// Units per period.
        limit: u64,
        /// The period.
        period: Duration,
        /// Whether attempts count even when they are denied.
        count_denied: bool,
    },
    /// A log of every admitted request of the last period: exact.
    SlidingLog {
        /// Units per period.
        limit: u64,
        /// The period.
        period: Duration,
    },
    /// Bursts up to the capacity, refilled at a steady rate.
    TokenBucket(Bucket),
    /// A sustained bucket, and a reserve for costs beyond it.
    Reserve {
        /// The bucket that is drawn on first.
        sustained: Bucket,
        /// The bucket for units that `sustained` lacks.
        reserve: Bucket,
    },
    /// At most `limit` requests under way at once.
    Concurrent {
        /// Slots.
        limit: u64,
    },
}

/// The numbers of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Bucket {
    /// The largest burst.
    pub capacity: u64,
    /// Tokens that come back per interval.
    pub amount: u64,
    /// The refill interval.
    pub interval: Duration,
    /// Whether tokens come back all at once at multiples of the interval, rather than one by one.
    pub stepped: bool,
}

impl Bucket {
    const fn of<F: Copy>(bucket: &TokenBucket<F>) -> Self {
        let TokenBucket { capacity, amount, interval, stepped, .. } = *bucket;
        Self { capacity, amount, interval: Duration::from_nanos(interval), stepped }
    }
}

impl Limit {
    /// The algorithm and its numbers.
    #[must_use]
    pub const fn algorithm(&self) -> Algorithm {
        match self.0 {
            Kind::FixedWindow(FixedWindow { limit, period, aligned, count_denied, .. }) => {
                Algorithm::FixedWindow { limit, period: Duration::from_nanos(period), aligned, count_denied }
            }
            Kind::CalendarWindow(CalendarWindow { limit, unit, zone, count_denied, .. }) => {
                Algorithm::CalendarWindow { limit, unit, zone, count_denied }
            }
            Kind::SlidingWindow(SlidingWindow { limit, period, count_denied, .. }) => {
                Algorithm::SlidingWindow { limit, period: Duration::from_nanos(period), count_denied }
            }
            Kind::SlidingLog(SlidingLog { limit, period, .. }) => {
                Algorithm::SlidingLog { limit, period: Duration::from_nanos(period) }
            }
            Kind::TokenBucket(bucket) => Algorithm::TokenBucket(Bucket::of(&bucket)),
            Kind::FractionalBucket(bucket) => Algorithm::TokenBucket(Bucket::of(&bucket)),
            Kind::Reserve(Reserve { sustained, reserve }) => {
                Algorithm::Reserve { sustained: Bucket::of(&sustained), reserve: Bucket::of(&reserve) }
            }
            Kind::Concurrent(Concurrent { limit }) => Algorithm::Concurrent { limit },
            Kind::InlineBucket(inline) => Algorithm::TokenBucket(Bucket::of(&inline.bucket)),
            Kind::InlineWindow(InlineWindow { limit, period }) => {
                let period = Duration::from_nanos(period);
                Algorithm::FixedWindow { limit, period, aligned: false, count_denied: false }
            }
        }
    }
}
