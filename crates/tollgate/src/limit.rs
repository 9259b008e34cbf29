//! Limits: a number of units per period, and an algorithm. A limit cannot hold invalid numbers.

use std::time::Duration;

use crate::algorithm::Arithmetic as _;
use crate::algorithm::calendar_window::CalendarWindow;
use crate::algorithm::concurrent::Concurrent;
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::inline::{InlineBucket, InlineWindow};
use crate::algorithm::reserve::Reserve;
use crate::algorithm::sliding_log::SlidingLog;
use crate::algorithm::sliding_window::SlidingWindow;
use crate::algorithm::token_bucket::{Parts, TokenBucket, Whole};
use crate::time::{DAY, HOUR, MINUTE, SECOND};
use crate::{Error, Timestamp};

mod algorithm;
#[cfg(feature = "calendar")]
mod calendar;
mod checked;
mod debt;
mod inline;

pub use algorithm::{Algorithm, Bucket};

/// The largest count, capacity or cost: one below 10^15.
pub const MAX_COUNT: u64 = 999_999_999_999_999;

/// The most slots of one limit.
pub const MAX_SLOTS: u64 = 8_192;

/// The longest period, and the longest full refill: a hundred years.
pub const MAX_SPAN: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);

/// A limit: a number of units per period, and the algorithm that counts them.
///
/// The constructors are for numbers in source code: a number out of range, such as
/// `Limit::per_second(0)`, panics, at compile time in a `const`. Numbers from outside go through
/// [`Limit::new`] or the [notation](Limit#notation), which return an error.
///
/// ```
/// use tollgate::{HOUR, Limit, MINUTE};
///
/// let smooth = Limit::per_second(100).burst(200);
/// let window = Limit::fixed_window(10, MINUTE);
/// const ESTIMATE: Limit = Limit::sliding_window(50, HOUR);
/// assert_eq!(smooth, "100/s burst 200".parse()?);
/// assert_eq!(window, "10/60s fixed".parse()?);
/// assert_eq!(ESTIMATE.to_string(), "50/hour sliding");
/// # Ok::<(), tollgate::Error>(())
/// ```
///
/// # Notation
///
/// ```text
/// 10/minute                     token bucket, 10 per minute, burst 10
/// 100/s burst 200               capacity 200, smooth refill 100 per second
/// 60 refill 1/s                 capacity 60, smooth refill 1 per second
/// 100 refill 10 every 100ms     stepped refill
/// 100 refill 10 every 100ms reserve 50 refill 5/s
/// 10/60s fixed                  window opens at the first request
/// 10/60s fixed aligned          windows start at multiples of the period
/// 1000/month                    calendar window: a month or a year, in UTC
/// 10/day at Europe/Berlin       calendar window: an hour, day, week, month or year of a zone
/// 50/hour sliding               two-period weighted estimate
/// 100/min log                   exact
/// 10/60s fixed counting denied  attempts count (fixed, calendar and sliding windows)
/// 5 concurrent                  at most 5 under way at once
/// 1000/hour debt 500            at most 500 owed; one whole limit unless said otherwise
/// api | login | websocket | background                presets
/// ```
///
/// Units are `ns us ms s m h d w` and their words, in any case. `10r/m` and `10 requests/Minute`
/// are `10/minute` too, and `1h30m` is a period.
///
/// `month` and `year` are the calendar's, in UTC without `at`. `hour`, `day` and `week` are spans
/// of time without `at`, and the calendar's with it: `10/day` is a token bucket, `10/day at UTC` is
/// at most 10 from midnight to midnight. Weeks begin on Monday. Calendar windows need the feature
/// `calendar`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit(pub(crate) Kind);

/// The algorithm of a limit with checked numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    FixedWindow(FixedWindow),
    CalendarWindow(CalendarWindow),
    SlidingWindow(SlidingWindow),
    SlidingLog(SlidingLog),
    TokenBucket(TokenBucket<Whole>),
    /// A token bucket whose token is not a whole number of nanoseconds.
    FractionalBucket(TokenBucket<Parts>),
    Reserve(Reserve),
    Concurrent(Concurrent),
    InlineBucket(InlineBucket),
    InlineWindow(InlineWindow),
}

impl Kind {
    /// A token bucket in the form that has the smaller state.
    const fn of_bucket(bucket: TokenBucket<Parts>) -> Self {
        match bucket.whole() {
            Some(whole) => Self::TokenBucket(whole),
            None => Self::FractionalBucket(bucket),
        }
    }
}

impl Limit {
    /// Preset for an API: 60 at once, 1 per second.
    pub const API: Self = Self::token_bucket(60, 1, SECOND);
    /// Preset for a login form: 5 at once, 1 per 10 seconds.
    pub const LOGIN: Self = Self::token_bucket(5, 1, Duration::from_secs(10));
    /// Preset for messages on a websocket: 100 at once, 20 per 100 milliseconds.
    pub const WEBSOCKET: Self = Self::token_bucket(100, 20, Duration::from_millis(100));
    /// Preset for background work: 10 at once, 10 per second.
    pub const BACKGROUND: Self = Self::token_bucket(10, 10, SECOND);

    /// The presets by their names in the notation.
    pub const PRESETS: [(&'static str, Self); 4] = [
        ("api", Self::API),
        ("login", Self::LOGIN),
        ("websocket", Self::WEBSOCKET),
        ("background", Self::BACKGROUND),
    ];

    /// Builds a limit from unchecked numbers.
    ///
    /// ```
    /// use tollgate::{Algorithm, Limit, MINUTE};
    ///
    /// let zero = Algorithm::SlidingLog { limit: 0, period: MINUTE };
    /// let error = Limit::new(zero).unwrap_err();
    /// assert_eq!(error.code(), "invalid_limit");
    /// assert_eq!(error.to_string(), "limit is 0; it must be a whole number from 1 to 999999999999999");
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] names the number that is out of range.
    pub fn new(algorithm: Algorithm) -> Result<Self, Error> {
        Self::checked(algorithm).map_err(Error::from)
    }

    /// A token bucket: `count` per second, `count` at once.
    ///
    /// # Panics
    /// If a number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn per_second(count: u64) -> Self {
        Self::per(count, SECOND)
    }

    /// A token bucket: `count` per minute, `count` at once.
    ///
    /// # Panics
    /// If a number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn per_minute(count: u64) -> Self {
        Self::per(count, MINUTE)
    }

    /// A token bucket: `count` per hour, `count` at once.
    ///
    /// # Panics
    /// If a number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn per_hour(count: u64) -> Self {
        Self::per(count, HOUR)
    }

    /// A token bucket: `count` per day, `count` at once.
    ///
    /// # Panics
    /// If a number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn per_day(count: u64) -> Self {
        Self::per(count, DAY)
    }

    /// A token bucket: `count` per `period`, `count` at once.
    ///
    /// # Panics
    /// If a number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn per(count: u64, period: Duration) -> Self {
        Self::token_bucket(count, count, period)
    }

    /// A token bucket: `capacity` at once, refilled evenly by `amount` per `interval`.
    ///
    /// # Panics
    /// If a number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn token_bucket(capacity: u64, amount: u64, interval: Duration) -> Self {
        Self::expect(Algorithm::TokenBucket(Bucket { capacity, amount, interval, stepped: false }))
    }

    /// At most `limit` per `period`, counted from the first request.
    ///
    /// # Panics
    /// If a number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn fixed_window(limit: u64, period: Duration) -> Self {
        Self::expect(Algorithm::FixedWindow { limit, period, aligned: false, count_denied: false })
    }

    /// At most `limit` per `period` by the weighted estimate over two aligned periods.
    ///
    /// # Panics
    /// If a number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn sliding_window(limit: u64, period: Duration) -> Self {
        Self::expect(Algorithm::SlidingWindow { limit, period, count_denied: false })
    }

    /// At most `limit` in any span of one `period`, exactly.
    ///
    /// # Panics
    /// If a number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn sliding_log(limit: u64, period: Duration) -> Self {
        Self::expect(Algorithm::SlidingLog { limit, period })
    }

    /// At most `limit` requests under way at once. Each takes one slot, whatever its cost
    /// ([`Limiter::acquire`](crate::Limiter::acquire)).
    ///
    /// ```
    /// use tollgate::Limit;
    ///
    /// assert_eq!(Limit::concurrent(5), "5 concurrent".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Panics
    /// If a number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn concurrent(limit: u64) -> Self {
        Self::expect(Algorithm::Concurrent { limit })
    }

    /// This token bucket with another capacity.
    ///
    /// # Panics
    /// If this is no token bucket, or the capacity is 0 or too large. [`Limit::new`] returns an
    /// error instead.
    #[must_use]
    #[track_caller]
    pub const fn burst(self, capacity: u64) -> Self {
        let Algorithm::TokenBucket(bucket) = self.algorithm() else {
            panic!("burst is for token buckets");
        };
        self.rebuilt(Algorithm::TokenBucket(Bucket { capacity, ..bucket }))
    }

    /// This token bucket, refilled all at once at multiples of its interval.
    ///
    /// # Panics
    /// If this is no token bucket. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn stepped(self) -> Self {
        let Algorithm::TokenBucket(bucket) = self.algorithm() else {
            panic!("stepped is for token buckets");
        };
        self.rebuilt(Algorithm::TokenBucket(Bucket { stepped: true, ..bucket }))
    }

    /// This token bucket with a reserve of `capacity`, refilled by `amount` per `interval`, for
    /// costs beyond the bucket.
    ///
    /// # Panics
    /// If this is no token bucket, or a number is 0 or too large. [`Limit::new`] returns an error
    /// instead.
    #[must_use]
    #[track_caller]
    pub const fn reserve(self, capacity: u64, amount: u64, interval: Duration) -> Self {
        let Algorithm::TokenBucket(sustained) = self.algorithm() else {
            panic!("a reserve is for token buckets");
        };
        let reserve = Bucket { capacity, amount, interval, stepped: false };
        self.rebuilt(Algorithm::Reserve { sustained, reserve })
    }

    /// This fixed window, starting at multiples of its period.
    ///
    /// # Panics
    /// If this is no fixed window. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn aligned(self) -> Self {
        let Algorithm::FixedWindow { limit, period, count_denied, .. } = self.algorithm() else {
            panic!("aligned is for fixed windows");
        };
        self.rebuilt(Algorithm::FixedWindow { limit, period, aligned: true, count_denied })
    }

    /// This window, counting attempts even when they are denied: a client that keeps hammering
    /// stays denied.
    ///
    /// # Panics
    /// If this is no window. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn counting_denied(self) -> Self {
        self.rebuilt(match self.algorithm() {
            Algorithm::FixedWindow { limit, period, aligned, .. } => {
                Algorithm::FixedWindow { limit, period, aligned, count_denied: true }
            }
            Algorithm::CalendarWindow { limit, unit, zone, .. } => {
                Algorithm::CalendarWindow { limit, unit, zone, count_denied: true }
            }
            Algorithm::SlidingWindow { limit, period, .. } => {
                Algorithm::SlidingWindow { limit, period, count_denied: true }
            }
            _ => panic!("counting denied is for fixed, calendar and sliding windows"),
        })
    }

    /// The time until a wholly spent limit is whole again: a window's period, a bucket's full
    /// refill. Of a calendar window, the longest: see [`period_at`](Self::period_at). Zero
    /// for slots, which come back when they are released.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_nanos(match &self.0 {
            Kind::FixedWindow(window) => window.period(),
            Kind::CalendarWindow(window) => window.period(),
            Kind::SlidingWindow(window) => window.period(),
            Kind::SlidingLog(log) => log.period(),
            Kind::TokenBucket(bucket) => bucket.period(),
            Kind::FractionalBucket(bucket) => bucket.period(),
            Kind::Reserve(both) => both.period(),
            Kind::Concurrent(slots) => slots.period(),
            Kind::InlineBucket(inline) => inline.bucket.period(),
            Kind::InlineWindow(window) => window.period(),
        })
    }

    /// The [`period`](Self::period) at a moment: of a calendar window, the length of the window
    /// that contains it.
    #[must_use]
    pub fn period_at(&self, now: Timestamp) -> Duration {
        let Kind::CalendarWindow(window) = &self.0 else { return self.period() };
        let (start, end) = window.edges(now.as_nanos());
        Duration::from_nanos(end.saturating_sub(start))
    }

    /// The units of the whole limit: a window's limit, a bucket's capacity, the sum of a bucket and
    /// its reserve, the number of slots.
    #[must_use]
    pub const fn capacity(&self) -> u64 {
        match &self.0 {
            Kind::FixedWindow(window) => window.limit,
            Kind::CalendarWindow(window) => window.limit,
            Kind::SlidingWindow(window) => window.limit,
            Kind::SlidingLog(log) => log.limit,
            Kind::TokenBucket(bucket) => bucket.capacity,
            Kind::FractionalBucket(bucket) => bucket.capacity,
            Kind::Reserve(both) => both.sustained.capacity.saturating_add(both.reserve.capacity),
            Kind::Concurrent(slots) => slots.limit,
            Kind::InlineBucket(inline) => inline.bucket.capacity,
            Kind::InlineWindow(window) => window.limit,
        }
    }

    /// Whether it limits how many requests are under way at once; see
    /// [`concurrent`](Self::concurrent).
    #[must_use]
    pub const fn is_concurrent(&self) -> bool {
        matches!(self.0, Kind::Concurrent(_))
    }

    /// Whether denied attempts count; see [`counting_denied`](Self::counting_denied).
    #[must_use]
    pub const fn counts_denied(&self) -> bool {
        match &self.0 {
            Kind::FixedWindow(window) => window.count_denied,
            Kind::CalendarWindow(window) => window.count_denied,
            Kind::SlidingWindow(window) => window.count_denied,
            _ => false,
        }
    }

    #[track_caller]
    const fn expect(algorithm: Algorithm) -> Self {
        match Self::checked(algorithm) {
            Ok(limit) => limit,
            Err(invalid) => panic!("{}", invalid.summary),
        }
    }
}

#[cfg(test)]
mod tests;
