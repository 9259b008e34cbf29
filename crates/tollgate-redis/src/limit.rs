//! The text form of a limit for the script, and which limits the script can keep exactly.
//!
//! The script parses its numbers from the text, and stores the text beside every state as the tag
//! of the limit that wrote it. Two limits have equal texts if and only if their arithmetic is the
//! same.

use std::fmt::{self, Write as _};
use std::time::Duration;

use tollgate::{Algorithm, Bucket, Error, Limit};

/// The largest divisor that the script can divide by exactly.
const DIVISOR_MAX: u64 = 1 << 52;

/// The most slots of one limit. A replaced limit and a clock that went back far rewrite them all.
const SLOTS_MAX: u64 = 1_024;

/// The longest refill of a limit and its debt: added to the latest time, it is still exact in a
/// double.
const REFILL_MAX_MICROS: u128 = 1 << 52;

/// Displays a limit as the script parses it.
pub(crate) struct LimitText<'a>(pub(crate) &'a Limit);

impl fmt::Display for LimitText<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.algorithm(), self.0.inline_longest()) {
            (Algorithm::FixedWindow { limit, period, .. }, Some(_)) => {
                return write!(f, "w {limit} {}", period.as_micros());
            }
            (Algorithm::TokenBucket(bucket), Some(longest)) => {
                let ScriptBucket { capacity, token, parts, .. } = ScriptBucket::of(bucket);
                return write!(f, "t {capacity} {token} {parts} {}", longest.as_micros());
            }
            _ => {}
        }
        self.fmt_algorithm(f)?;
        // A default debt is not written: the texts are those of versions without debt.
        if self.0.has_default_debt() { Ok(()) } else { write!(f, " d{}", self.0.max_debt()) }
    }
}

impl LimitText<'_> {
    fn fmt_algorithm(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.algorithm() {
            Algorithm::FixedWindow { limit, period, aligned, count_denied } => {
                let (aligned, counts) = (u8::from(aligned), u8::from(count_denied));
                write!(f, "f {limit} {} {aligned} {counts}", period.as_micros())
            }
            Algorithm::CalendarWindow { limit, unit, zone, count_denied } => {
                write!(f, "m {limit} {unit} {zone} {}", u8::from(count_denied))
            }
            Algorithm::SlidingWindow { limit, period, count_denied } => {
                write!(f, "s {limit} {} {}", period.as_micros(), u8::from(count_denied))
            }
            Algorithm::SlidingLog { limit, period } => write!(f, "l {limit} {}", period.as_micros()),
            Algorithm::TokenBucket(bucket) => write!(f, "b {}", ScriptBucket::of(bucket)),
            Algorithm::Reserve { sustained, reserve } => {
                write!(f, "r {} {}", ScriptBucket::of(sustained), ScriptBucket::of(reserve))
            }
            Algorithm::Concurrent { limit } => write!(f, "n {limit}"),
            // `accepts` has refused an unknown algorithm.
            _ => f.write_char('?'),
        }
    }
}

/// A token bucket in the script's units: a token takes `token / parts` microseconds to refill.
struct ScriptBucket {
    capacity: u64,
    token: u64,
    parts: u64,
    /// Microseconds between two refills; 0 for smooth refill.
    step: u128,
}

impl ScriptBucket {
    /// Counts in the core's fractions of a nanosecond, so that the two agree exactly. A token that
    /// lasts too long for that is counted in fractions of a microsecond.
    fn of(bucket: Bucket) -> Self {
        let Bucket { capacity, amount, interval, stepped } = bucket;
        let interval_nanos = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let divisor = greatest_common_divisor(interval_nanos, amount).max(1);
        let (mut token, mut parts) = (interval_nanos / divisor, (amount / divisor).saturating_mul(1_000));
        if token > DIVISOR_MAX {
            let divisor = greatest_common_divisor(token, parts).max(1);
            (token, parts) = (token / divisor, parts / divisor);
        }
        let step = if stepped { interval.as_micros() } else { 0 };
        Self { capacity, token, parts, step }
    }

    const fn is_exact(&self) -> bool {
        self.token <= DIVISOR_MAX && self.parts <= DIVISOR_MAX
    }

    /// Microseconds in which `units` are refilled.
    fn refill_micros(&self, units: u64) -> u128 {
        (u128::from(units) * u128::from(self.token)).div_ceil(u128::from(self.parts.max(1)))
    }
}

impl fmt::Display for ScriptBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { capacity, token, parts, step } = self;
        write!(f, "{capacity} {token} {parts} {step}")
    }
}

const fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Checks that the script can keep a limit exactly.
pub(crate) fn check(limit: &Limit, log_ceiling: u64) -> Result<(), Error> {
    let whole_micros = |field, span: Duration| match span.subsec_nanos() % 1_000 {
        0 => Ok(()),
        _ => {
            let reason = "a whole number of microseconds, the resolution of Redis's clock";
            refuse(field, format!("{span:?}"), reason)
        }
    };
    let payable = |bucket: Bucket| {
        let units = bucket.capacity.saturating_add(limit.max_debt());
        match ScriptBucket::of(bucket).refill_micros(units) <= REFILL_MAX_MICROS {
            true => Ok(()),
            false => {
                refuse("debt", limit.max_debt().to_string(), "paid off within 140 years, with the limit")
            }
        }
    };
    let bucket = |bucket: Bucket| match ScriptBucket::of(bucket).is_exact() {
        true if bucket.stepped => whole_micros("interval", bucket.interval),
        true => Ok(()),
        false => {
            let rate = format!("{} per {:?}", bucket.amount, bucket.interval);
            refuse("amount", rate, "a rounder rate, one that the script can divide exactly")
        }
    };
    match limit.algorithm() {
        Algorithm::FixedWindow { period, .. } | Algorithm::SlidingWindow { period, .. } => {
            whole_micros("period", period)
        }
        Algorithm::CalendarWindow { .. } => Ok(()),
        Algorithm::SlidingLog { limit: count, .. } if limit.longest_log() > log_ceiling => {
            let units = format!("{count} with a debt of {}", limit.max_debt());
            let reason = "at most the store's log_ceiling in all; raise that, write a smaller debt, or choose a sliding window";
            refuse("limit", units, reason)
        }
        Algorithm::SlidingLog { period, .. } => whole_micros("period", period),
        Algorithm::TokenBucket(only) => bucket(only).and_then(|()| payable(only)),
        Algorithm::Reserve { sustained, reserve } => {
            bucket(sustained).and_then(|()| bucket(reserve)).and_then(|()| payable(sustained))
        }
        Algorithm::Concurrent { limit } if limit > SLOTS_MAX => refuse(
            "limit",
            limit.to_string(),
            "at most 1024 slots, which a replaced limit rewrites in one call",
        ),
        Algorithm::Concurrent { .. } => Ok(()),
        _ => refuse("limit", limit.to_string(), "an algorithm that this version of the script supports"),
    }
}

fn refuse(field: &'static str, value: String, reason: &'static str) -> Result<(), Error> {
    Err(Error::InvalidLimit { field, value, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(notation: &str) -> String {
        LimitText(&notation.parse().unwrap()).to_string()
    }

    #[test]
    fn the_text_of_a_limit_has_every_number_of_it() {
        assert_eq!(text("10/60s fixed"), "f 10 60000000 0 0");
        assert_eq!(text("10/60s fixed aligned"), "f 10 60000000 1 0");
        assert_eq!(text("10/60s fixed counting denied"), "f 10 60000000 0 1");
        assert_eq!(text("10/day at Europe/Berlin debt 3"), "m 10 day Europe/Berlin 0 d3");
        assert_eq!(text("50/hour sliding"), "s 50 3600000000 0");
        assert_eq!(text("100/min log"), "l 100 60000000");
        assert_eq!(text("5 concurrent"), "n 5");
        assert_eq!(text("10/minute"), "b 10 6000000000 1000 0");
        assert_eq!(text("3/s"), "b 3 1000000000 3000 0");
        assert_eq!(text("3/s debt 3"), "b 3 1000000000 3000 0", "the default");
        assert_eq!(text("3/s debt 0"), "b 3 1000000000 3000 0 d0");
        assert_eq!(text("100 refill 10 every 100ms"), "b 100 10000000 1000 100000");
        assert_eq!(
            text("100 refill 100/s reserve 50 refill 5/s"),
            "r 100 10000000 1000 0 50 200000000 1000 0"
        );
    }

    #[test]
    fn a_token_too_long_for_nanoseconds_is_counted_in_microseconds() {
        assert_eq!(text("1/365d"), "b 1 31536000000000 1 0");
    }

    #[test]
    fn d3_a_limit_that_redis_cannot_keep_exactly_is_refused() {
        let refused = |limit: Limit| check(&limit, 10_000).unwrap_err().to_string();
        assert!(check(&"1234567/d".parse().unwrap(), 10_000).is_ok());
        assert!(check(&"1/36500d debt 0".parse().unwrap(), 10_000).is_ok());
        assert!(check(&"1/25000d".parse().unwrap(), 10_000).is_ok());
        assert!(refused("1/36500d".parse().unwrap()).contains("debt is 1; it must be paid off"));
        assert!(check(&Limit::per(700_000_000, tollgate::SECOND), 10_000).is_ok());
        assert!(refused(Limit::fixed_window(1, Duration::from_nanos(1_500))).contains("microseconds"));
        assert!(check(&Limit::concurrent(1_024), 10_000).is_ok());
        assert!(refused(Limit::concurrent(1_025)).contains("at most 1024 slots"));
        assert!(refused(Limit::sliding_log(10_001, tollgate::MINUTE)).contains("ceiling"));
        assert!(
            refused(Limit::per(999_999_999_999_989, Duration::from_nanos(999_999_937))).contains("rounder")
        );
    }
}
