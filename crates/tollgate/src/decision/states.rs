//! The packed states that a request left, from which a decision computes its numbers on demand.

use std::time::Duration;

use super::{Report, Reports};
use crate::algorithm::inline::{InlineBucket, InlineWindow};
use crate::algorithm::token_bucket::TokenBucket;
use crate::key::Budget;
use crate::limit::Kind;
use crate::meter::packed;
use crate::rule::Tag;
use crate::store::{Cause, Overflow};
use crate::{Limit, Meter, Timestamp};

/// The most budgets of a decision with packed states, and the most words of all their states.
pub(crate) const TAGS_MAX: usize = 4;
pub(crate) const WORDS_MAX: usize = 8;

/// The packed states of a request's budgets, one after the other. The state of an inline budget is
/// followed by its limit.
#[derive(Clone, Copy)]
pub(crate) struct States {
    tags: [Option<Tag>; TAGS_MAX],
    words: [u64; WORDS_MAX],
}

impl States {
    /// The packed states of budgets with these tags and widths, zero-padded to `W` words each.
    /// `inline` is the limit that came with the request.
    #[inline(always)]
    pub(crate) fn new<const N: usize, const W: usize>(
        budgets: [(Tag, usize); N],
        states: &[[u64; W]; N],
        inline: Option<&Limit>,
    ) -> Self {
        let (mut words, mut end) = ([0; WORDS_MAX], 0_usize);
        let mut push = |state: &[u64]| {
            let rest = words.get_mut(end..).unwrap_or_default();
            rest.iter_mut().zip(state).for_each(|(to, from)| *to = *from);
            end = end.wrapping_add(state.len());
        };
        for ((_, width), state) in budgets.iter().zip(states) {
            push(state.get(..*width).unwrap_or_default());
        }
        match inline.map(|limit| &limit.0) {
            Some(Kind::InlineBucket(inline)) => push(&inline_words(inline)),
            Some(Kind::InlineWindow(window)) => push(&[window.limit, window.period]),
            _ => {}
        }
        Self { tags: std::array::from_fn(|index| budgets.get(index).map(|(tag, _)| *tag)), words }
    }

    /// Calls `f` with the reports of all limits on a request of this cost.
    pub(super) fn with_reports<R>(
        &self,
        now: Timestamp,
        cost: u64,
        allowed: bool,
        f: impl FnOnce(&[Report]) -> R,
    ) -> R {
        let (mut reports, mut words) = (Reports::new(), self.words.as_slice());
        for tag in self.tags.iter().flatten() {
            // A request with an inline limit names its rule, so there is no other budget.
            if let Some((budget, limit)) = read_inline(*tag, words) {
                return f(&[Report { budget, ..report(tag, &limit, words, now, cost, allowed) }]);
            }
            for (index, limit) in (0..).zip(tag.limits.as_slice()) {
                reports.push(Report { index, ..report(tag, limit, words, now, cost, allowed) });
                words = words.get(Meter::words(limit).unwrap_or(0)..).unwrap_or_default();
            }
        }
        f(&reports)
    }
}

/// The report of a limit on a request of this cost, which left the state at the start of `words`.
pub(super) fn report(
    tag: &Tag,
    limit: &Limit,
    words: &[u64],
    now: Timestamp,
    cost: u64,
    allowed: bool,
) -> Report {
    let charge = cost.saturating_mul(tag.unit_cost);
    Report {
        rule: tag.rule,
        budget: tag.budget,
        index: 0,
        limit: limit.plain(),
        unit_cost: tag.unit_cost,
        shadow: false,
        warn_at: None,
        outcome: packed::outcome(limit, words, now, charge, allowed),
        cause: Cause::Limit,
        overflow: Overflow::None,
    }
}

/// Words that a budget takes in [`States`], with a state of `width` words.
pub(crate) const fn words_of(budget: Budget, width: usize) -> usize {
    match budget {
        Budget::InlineTime => 6,
        Budget::InlineCount(_) => 4,
        Budget::Rule | Budget::Override(_) | Budget::InlineSlots => width,
    }
}

/// The words of an inline token bucket, which [`read_inline`] reads.
const fn inline_words(inline: &InlineBucket) -> [u64; 3] {
    let (token, parts) = inline.bucket.token();
    [inline.bucket.capacity, token, parts]
}

/// The inline budget and limit that follow a state.
fn read_inline(tag: Tag, words: &[u64]) -> Option<(Budget, Limit)> {
    match (tag.budget, words) {
        (Budget::InlineTime, [_, _, _, capacity, token, parts, ..]) => {
            let bucket = TokenBucket::reduced(*capacity, *token, *parts);
            Some((tag.budget, Limit(Kind::InlineBucket(InlineBucket { bucket, longest: u64::MAX }))))
        }
        (Budget::InlineCount(_), [_, _, limit, period, ..]) => {
            let window = InlineWindow { limit: *limit, period: *period };
            let budget = Budget::InlineCount(Duration::from_nanos(*period));
            Some((budget, Limit(Kind::InlineWindow(window))))
        }
        _ => None,
    }
}
