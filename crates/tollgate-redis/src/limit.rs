//! How a limit is written for the script, and which limits can be.
//!
//! The text is what the script reads the numbers from, and also the tag beside every stored state that says which limit
//! wrote it: equal texts, and no others, mean the same arithmetic.

use std::fmt::{self, Write as _};
use std::time::Duration;

use tollgate::{Algorithm, Bucket, Error, Limit};

/// The largest divisor the script can divide by exactly.
const LARGEST: u64 = 1 << 52;

/// A limit in the script's words.
pub(crate) struct Text<'a>(pub(crate) &'a Limit);

impl fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.algorithm(), self.0.inline_longest()) {
            (Algorithm::FixedWindow { limit, period, .. }, Some(_)) => {
                return write!(f, "w {limit} {}", period.as_micros());
            }
            (Algorithm::TokenBucket(bucket), Some(longest)) => {
                let Tokens { capacity, token, parts, .. } = Tokens::of(bucket);
                return write!(f, "t {capacity} {token} {parts} {}", longest.as_micros());
            }
            _ => {}
        }
        match self.0.algorithm() {
            Algorithm::FixedWindow { limit, period, aligned, count_denied } => {
                let (aligned, counts) = (u8::from(aligned), u8::from(count_denied));
                write!(f, "f {limit} {} {aligned} {counts}", period.as_micros())
            }
            Algorithm::SlidingWindow { limit, period, count_denied } => {
                write!(f, "s {limit} {} {}", period.as_micros(), u8::from(count_denied))
            }
            Algorithm::SlidingLog { limit, period } => write!(f, "l {limit} {}", period.as_micros()),
            Algorithm::TokenBucket(bucket) => write!(f, "b {}", Tokens::of(bucket)),
            Algorithm::Reserve { sustained, reserve } => {
                write!(f, "r {} {}", Tokens::of(sustained), Tokens::of(reserve))
            }
            // `accepts` has refused what is not known here.
            _ => f.write_char('?'),
        }
    }
}

/// A bucket: a token lasts `token / parts` microseconds.
struct Tokens {
    capacity: u64,
    token: u64,
    parts: u64,
    /// Microseconds between two refills, 0 if it is smooth.
    step: u128,
}

impl Tokens {
    /// Nanoseconds and their fractions as the core counts them, so that the two agree to the last part; microseconds
    /// only where a token lasts too long for that.
    fn of(bucket: Bucket) -> Self {
        let Bucket { capacity, amount, interval, stepped } = bucket;
        let interval_nanos = u64::try_from(interval.as_nanos()).unwrap_or(u64::MAX);
        let shared = greatest_common_divisor(interval_nanos, amount).max(1);
        let (mut token, mut parts) = (interval_nanos / shared, (amount / shared).saturating_mul(1_000));
        if token > LARGEST {
            let shared = greatest_common_divisor(token, parts).max(1);
            (token, parts) = (token / shared, parts / shared);
        }
        let step = if stepped { interval.as_micros() } else { 0 };
        Self { capacity, token, parts, step }
    }

    const fn is_exact(&self) -> bool {
        self.token <= LARGEST && self.parts <= LARGEST
    }
}

impl fmt::Display for Tokens {
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

/// Whether the script can keep such a limit exactly.
pub(crate) fn check(limit: &Limit, log_ceiling: u64) -> Result<(), Error> {
    let whole = |field, span: Duration| match span.subsec_nanos() % 1_000 {
        0 => Ok(()),
        _ => {
            refuse(field, format!("{span:?}"), "a whole number of microseconds: Redis knows no shorter time")
        }
    };
    let bucket = |bucket: Bucket| match Tokens::of(bucket).is_exact() {
        true if bucket.stepped => whole("interval", bucket.interval),
        true => Ok(()),
        false => {
            let rate = format!("{} per {:?}", bucket.amount, bucket.interval);
            refuse("amount", rate, "a rate that the script can divide exactly; a rounder one will do")
        }
    };
    match limit.algorithm() {
        Algorithm::FixedWindow { period, .. } | Algorithm::SlidingWindow { period, .. } => {
            whole("period", period)
        }
        Algorithm::SlidingLog { limit, .. } if limit > log_ceiling => {
            let reason = "at most the log ceiling; a sliding log keeps every request";
            refuse("limit", limit.to_string(), reason)
        }
        Algorithm::SlidingLog { period, .. } => whole("period", period),
        Algorithm::TokenBucket(only) => bucket(only),
        Algorithm::Reserve { sustained, reserve } => bucket(sustained).and_then(|()| bucket(reserve)),
        _ => refuse("limit", limit.to_string(), "an algorithm that this version knows"),
    }
}

fn refuse(field: &'static str, value: String, reason: &'static str) -> Result<(), Error> {
    Err(Error::InvalidLimit { field, value, reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(notation: &str) -> String {
        Text(&notation.parse().unwrap()).to_string()
    }

    #[test]
    fn a_limit_is_written_with_everything_that_makes_it_that_limit() {
        assert_eq!(text("10/60s fixed"), "f 10 60000000 0 0");
        assert_eq!(text("10/60s fixed aligned"), "f 10 60000000 1 0");
        assert_eq!(text("10/60s fixed counting denied"), "f 10 60000000 0 1");
        assert_eq!(text("50/hour sliding"), "s 50 3600000000 0");
        assert_eq!(text("100/min log"), "l 100 60000000");
        assert_eq!(text("10/minute"), "b 10 6000000000 1000 0");
        assert_eq!(text("3/s"), "b 3 1000000000 3000 0");
        assert_eq!(text("100 refill 10 every 100ms"), "b 100 10000000 1000 100000");
        assert_eq!(
            text("100 refill 100/s reserve 50 refill 5/s"),
            "r 100 10000000 1000 0 50 200000000 1000 0"
        );
    }

    #[test]
    fn a_token_that_lasts_too_long_to_count_in_nanoseconds_is_counted_in_microseconds() {
        assert_eq!(text("1/365d"), "b 1 31536000000000 1 0");
    }

    #[test]
    fn d3_what_redis_cannot_keep_exactly_is_refused_when_it_is_built() {
        let refused = |limit: Limit| check(&limit, 10_000).unwrap_err().to_string();
        assert!(check(&"1234567/d".parse().unwrap(), 10_000).is_ok());
        assert!(check(&"1/36500d".parse().unwrap(), 10_000).is_ok());
        assert!(check(&Limit::per(700_000_000, tollgate::SECOND), 10_000).is_ok());
        assert!(refused(Limit::fixed_window(1, Duration::from_nanos(1_500))).contains("microseconds"));
        assert!(refused(Limit::sliding_log(10_001, tollgate::MINUTE)).contains("ceiling"));
        assert!(
            refused(Limit::per(999_999_999_999_989, Duration::from_nanos(999_999_937))).contains("rounder")
        );
    }
}
