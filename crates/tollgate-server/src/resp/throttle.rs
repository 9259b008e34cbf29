//! `CL.THROTTLE`, compatible with redis-cell: every call carries its limit.

use std::borrow::Cow;
use std::time::Duration;

use tollgate::{Algorithm, Bucket, Decision, InlineLimit, Limit, MAX_COUNT, Request, Summary};

use super::reply::Replies;
use crate::inline::THROTTLE;
use crate::value::value_of;

/// `max_burst`, `count` and `period`, as sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LimitArguments([i64; 3]);

/// A parsed `CL.THROTTLE`.
#[derive(Debug)]
pub(super) struct Throttle<'a> {
    key: Cow<'a, str>,
    pub(super) limit: LimitArguments,
    quantity: u64,
}

impl<'a> Throttle<'a> {
    /// Parses the arguments: `key max_burst count period [quantity]`.
    ///
    /// # Errors
    /// A sentence for the error reply.
    pub(super) fn parse(mut arguments: impl ExactSizeIterator<Item = &'a [u8]>) -> Result<Self, String> {
        if !(4..=5).contains(&arguments.len()) {
            return Err(format!(
                "wrong number of arguments for '{THROTTLE}' command; send key max_burst count period [quantity]"
            ));
        }
        let key = value_of(arguments.next().unwrap_or_default());
        let mut number = || integer(arguments.next().unwrap_or(b"1"));
        let limit = LimitArguments([number()?, number()?, number()?]);
        let quantity = u64::try_from(number()?).ok().filter(|quantity| *quantity <= MAX_COUNT);
        let quantity = quantity.ok_or_else(|| format!("quantity is from 0 to {MAX_COUNT}"))?;
        Ok(Self { key, limit, quantity })
    }

    /// Whether the call changes nothing: with a quantity of 0, not even a changed limit converts
    /// the state.
    pub(super) const fn is_peek(&self) -> bool {
        self.quantity == 0
    }

    /// The request to the limiter, under the limit that the arguments resolve to.
    pub(super) fn request<'r>(&'r self, limit: &'r InlineLimit) -> Request<'r> {
        Request::client(&self.key).cost(self.quantity).under(THROTTLE, limit)
    }
}

impl LimitArguments {
    /// The limit: a bucket of `max_burst + 1` that `count` tokens refill every `period` seconds.
    ///
    /// # Errors
    /// A sentence for the error reply.
    pub(super) fn limit(self) -> Result<Limit, String> {
        let range = "max_burst is at least 0, count and period at least 1";
        let [burst, count, period] = self.0.map(u64::try_from);
        let (Ok(burst), Ok(count @ 1..), Ok(period @ 1..)) = (burst, count, period) else {
            return Err(range.into());
        };
        let interval = Duration::from_secs(period);
        let bucket = Bucket { capacity: burst.saturating_add(1), amount: count, interval, stepped: false };
        Limit::new(Algorithm::TokenBucket(bucket)).map_err(|error| error.to_string())
    }
}

/// The reply: five integers. Whether the call is limited, the limit, the remaining units, the
/// seconds until a retry can succeed (-1 if allowed, or if none can), and the seconds until the
/// limit is whole.
pub(super) fn reply(replies: &mut Replies, decision: &Decision) {
    let Summary { verdict, remaining, deciding } = decision.summary();
    let retry = verdict.retry_after().filter(|_| !decision.allowed());
    let (limit, reset_at) = deciding
        .map_or((u64::MAX, decision.now()), |report| (report.limit.capacity(), report.outcome.reset_at));
    replies.array(5);
    replies.integer((!decision.allowed()).into());
    replies.count(limit);
    replies.count(remaining);
    replies.integer(retry.map_or(-1, seconds));
    replies.integer(seconds(reset_at.since(decision.now())));
}

/// Whole seconds, rounded up, so that a client that waits that long is not early.
fn seconds(span: Duration) -> i64 {
    let seconds = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    i64::try_from(seconds).unwrap_or(i64::MAX)
}

/// A decimal integer as redis-cell parses it: `+5` and `05` are 5.
pub(super) fn integer(text: &[u8]) -> Result<i64, String> {
    // Nearly all are a few digits, which cannot overflow.
    if (1..=18).contains(&text.len()) {
        let digits = text.iter().try_fold(0_i64, |number, byte| {
            let digit = i64::from(byte.wrapping_sub(b'0'));
            (digit < 10).then(|| number.wrapping_mul(10).wrapping_add(digit))
        });
        if let Some(number) = digits {
            return Ok(number);
        }
    }
    let number = std::str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| "value is not an integer or out of range".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_parsed_as_redis_cell_parses_them() {
        for number in [0, 1, -1, 42, 10_i64.pow(18) - 1, 10_i64.pow(18), i64::MAX, i64::MIN] {
            assert_eq!(integer(number.to_string().as_bytes()), Ok(number));
        }
        for (text, number) in [("+5", 5), ("05", 5), ("-0", 0), ("+007", 7), ("0000000000000000000001", 1)] {
            assert_eq!(integer(text.as_bytes()), Ok(number), "{text:?}");
        }
        for invalid in
            ["", "-", "+", "--1", "1 ", " 1", "1.0", "1e3", "9223372036854775808", "-9223372036854775809"]
        {
            assert!(integer(invalid.as_bytes()).is_err(), "{invalid:?}");
        }
    }
}
