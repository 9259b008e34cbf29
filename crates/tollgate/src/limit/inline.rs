//! Inline limits: limits that come with a request.

use std::time::Duration;

use super::{Kind, Limit};
use crate::algorithm::fixed_window::FixedWindow;
use crate::algorithm::inline::{InlineBucket, InlineWindow};
use crate::algorithm::token_bucket::{Parts, TokenBucket};

impl Limit {
    /// This limit as an inline limit, whose state does not depend on it: a token bucket that
    /// refills evenly, or a window that opens at the first request. `longest` is the longest full
    /// refill of any inline limit.
    pub(crate) fn inline(self, longest: Duration) -> Option<Self> {
        let longest = crate::time::nanos_of(longest);
        // In lowest terms, as a decision carries it: 3 a minute is 1 every 20 seconds.
        let reduced = |bucket: TokenBucket<Parts>| {
            let (token, parts) = bucket.token();
            let bucket = TokenBucket::reduced(bucket.capacity, token, parts);
            Kind::InlineBucket(InlineBucket { bucket, longest })
        };
        Some(Self(match self.0 {
            Kind::TokenBucket(bucket) if !bucket.stepped => reduced(bucket.in_parts()),
            Kind::FractionalBucket(bucket) if !bucket.stepped => reduced(bucket),
            Kind::FixedWindow(FixedWindow { limit, period, aligned: false, count_denied: false, .. }) => {
                Kind::InlineWindow(InlineWindow { limit, period })
            }
            Kind::InlineBucket(InlineBucket { bucket, .. }) => {
                Kind::InlineBucket(InlineBucket { bucket, longest })
            }
            Kind::InlineWindow(_) => self.0,
            _ => return None,
        }))
    }

    /// For an inline limit, the longest full refill of any inline limit. The state of an inline
    /// limit means the same under every inline limit, so it does not name the one that wrote it.
    #[must_use]
    pub const fn inline_longest(&self) -> Option<Duration> {
        match self.0 {
            Kind::InlineBucket(InlineBucket { longest, .. }) => Some(Duration::from_nanos(longest)),
            Kind::InlineWindow(InlineWindow { period, .. }) => Some(Duration::from_nanos(period)),
            _ => None,
        }
    }

    /// This limit as one that is not inline, with the default debt.
    pub(crate) fn plain(self) -> Self {
        Self(match self.0 {
            Kind::InlineBucket(InlineBucket { mut bucket, .. }) => {
                bucket.max_debt = bucket.capacity;
                Kind::of_bucket(bucket)
            }
            Kind::InlineWindow(InlineWindow { limit, period }) => {
                let (aligned, count_denied) = (false, false);
                Kind::FixedWindow(FixedWindow { limit, period, aligned, count_denied, max_debt: limit })
            }
            plain => plain,
        })
    }

    /// Whether a state that `other` wrote has to be converted to be read under this limit. Live
    /// slots are the same under every number of them.
    pub(crate) fn replaces(&self, other: &Self) -> bool {
        let both = |is: fn(&Self) -> bool| is(self) && is(other);
        self != other && !both(|limit| limit.inline_longest().is_some()) && !both(Self::is_concurrent)
    }
}
