//! The decision on a request: the outcomes of all limits, merged.
//!
//! A decision is small and lazy. It carries the packed states after the request and computes the
//! numbers on demand: most callers only ask whether the request is allowed.

use std::fmt;
use std::time::Duration;

use crate::rule::Tag;
use crate::store::{Cause, Overflow};
use crate::{Limit, RuleName, Timestamp, Verdict};

mod report;
mod states;

use report::summarise;
pub use report::{Report, Reports, Summary};
use states::{States, report};
pub(crate) use states::{TAGS_MAX, WORDS_MAX, words_of};

/// The answer to a request, with the numbers of every limit that covered it.
#[derive(Clone)]
#[must_use = "an unread decision limits nothing"]
pub struct Decision {
    now: Timestamp,
    /// The request's cost.
    cost: u64,
    allowed: bool,
    degraded: Degraded,
    detail: Detail,
}

/// What the numbers are computed from.
#[derive(Clone)]
enum Detail {
    /// The one-word state of the only budget after the request, and its tag.
    Word(Tag, u64),
    /// The packed states after the request, of rules that enforce.
    States(States),
    /// The reports, where packed states do not suffice.
    Reports(Box<Reported>),
}

#[derive(Clone)]
struct Reported {
    summary: Summary,
    reports: Reports,
    /// The cause of a denial by no limit.
    unlimited: Option<Cause>,
}

/// Whether the store failed, and what followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Degraded {
    /// The store answered.
    No,
    /// The store failed.
    Yes,
    /// The store failed, and the policy of a rule is to deny then.
    Closed,
}

impl Decision {
    /// The decision on budgets that left these packed states: see [`States::new`].
    #[inline(always)]
    pub(crate) fn of_states<const N: usize, const W: usize>(
        now: Timestamp,
        cost: u64,
        allowed: bool,
        budgets: [(Tag, usize); N],
        states: &[[u64; W]; N],
        inline: Option<&Limit>,
    ) -> Self {
        let detail = match (budgets.as_slice(), states.as_flattened()) {
            ([(tag, _)], [word]) => Detail::Word(*tag, *word),
            _ => Detail::States(States::new(budgets, states, inline)),
        };
        Self { now, cost, allowed, degraded: Degraded::No, detail }
    }

    /// Merges the reports of all limits.
    pub(crate) fn merge(
        now: Timestamp,
        degraded: Degraded,
        limits: impl IntoIterator<Item = Report>,
    ) -> Self {
        let reports: Reports = limits.into_iter().collect();
        let summary = summarise(&reports);
        let allowed = summary.verdict == Verdict::Allowed;
        Self {
            now,
            cost: 0,
            allowed,
            degraded,
            detail: Detail::Reports(Box::new(Reported { summary, reports, unlimited: None })),
        }
    }

    /// The denial of a request that no rule covers.
    pub(crate) fn uncovered(now: Timestamp) -> Self {
        Self::denied(now, Verdict::Never, Cause::Uncovered)
    }

    /// The denial of a hold for which the limiter has no room until then.
    pub(crate) fn full(now: Timestamp, cause: Cause, room_at: Timestamp) -> Self {
        Self::denied(now, Verdict::Denied { retry_after: room_at.since(now) }, cause)
    }

    /// A denial by no limit.
    fn denied(now: Timestamp, verdict: Verdict, cause: Cause) -> Self {
        let summary = Summary { verdict, remaining: 0, deciding: None };
        let reported = Reported { summary, reports: Reports::new(), unlimited: Some(cause) };
        let detail = Detail::Reports(Box::new(reported));
        Self { now, cost: 0, allowed: false, degraded: Degraded::No, detail }
    }

    /// Whether the request may go ahead.
    #[must_use]
    #[inline]
    pub const fn allowed(&self) -> bool {
        self.allowed
    }

    /// All numbers at once.
    #[must_use]
    pub fn summary(&self) -> Summary {
        match &self.detail {
            Detail::Reports(reported) => reported.summary,
            Detail::Word(..) | Detail::States(_) => self.with_limits(summarise),
        }
    }

    /// Allowed, denied for a while, or never.
    #[must_use]
    pub fn verdict(&self) -> Verdict {
        if self.allowed { Verdict::Allowed } else { self.summary().verdict }
    }

    /// How long until the same request is admitted if no other arrives: zero if it was allowed,
    /// `None` if it never will be.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.verdict().retry_after()
    }

    /// How many more requests like this one, of cost 1, would be admitted right now. [`u64::MAX`]
    /// if no limit enforces anything on it.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.summary().remaining
    }

    /// Units that are owed, the largest number of any limit that enforces: they were
    /// [recorded](crate::Limiter::record) beyond the limit, and nothing is admitted until they are
    /// paid off.
    #[must_use]
    pub fn owed(&self) -> u64 {
        self.with_limits(|limits| {
            let enforcing = limits.iter().filter(|report| !report.shadow);
            enforcing.map(|report| report.outcome.owed).max().unwrap_or(0)
        })
    }

    /// The capacity of the deciding limit. [`u64::MAX`] if no limit enforces anything.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.deciding().map_or(u64::MAX, |report| report.limit.capacity())
    }

    /// When the deciding limit is wholly available again if no more requests arrive.
    #[must_use]
    pub fn reset_at(&self) -> Timestamp {
        self.deciding().map_or(self.now, |report| report.outcome.reset_at)
    }

    /// The rule of the deciding limit, if any limit enforces.
    #[must_use]
    pub fn rule(&self) -> Option<RuleName> {
        self.deciding().map(|report| report.rule)
    }

    /// The limit that decided: of those that enforce, the one with the longest wait; on an
    /// admission, the one with the fewest requests left.
    #[must_use]
    pub fn deciding(&self) -> Option<Report> {
        self.summary().deciding
    }

    /// The outcomes of all limits that cover the request, in the order of the rules.
    #[must_use]
    pub fn limits(&self) -> Reports {
        self.with_limits(Reports::from_slice)
    }

    /// Calls `f` with the outcomes of all limits that cover the request, in the order of the rules:
    /// [`limits`](Self::limits), borrowed.
    pub fn with_limits<R>(&self, f: impl FnOnce(&[Report]) -> R) -> R {
        match &self.detail {
            Detail::Reports(reported) => f(&reported.reports),
            Detail::Word(tag, word) => match tag.limits.first() {
                Some(limit) => f(&[report(tag, limit, &[*word], self.now, self.cost, self.allowed)]),
                None => f(&[]),
            },
            Detail::States(states) => states.with_reports(self.now, self.cost, self.allowed, f),
        }
    }

    /// Whether a rule covers the request.
    #[must_use]
    pub fn is_covered(&self) -> bool {
        // Packed states come from rules.
        let Detail::Reports(reported) = &self.detail else { return true };
        reported.unlimited.map_or(!reported.reports.is_empty(), |cause| cause != Cause::Uncovered)
    }

    /// The limits that warn of an admitted request: see [`Rule::warn_at`](crate::Rule::warn_at). A
    /// denial warns of nothing.
    #[must_use]
    pub fn warnings(&self) -> Reports {
        match &self.detail {
            Detail::Reports(reported) if self.allowed => {
                reported.reports.iter().filter(|report| report.warning().is_some()).copied().collect()
            }
            // Rules that warn have reports.
            _ => Reports::new(),
        }
    }

    /// Whether a rule that covers the request has an [overflow](crate::Rule::overflow).
    #[must_use]
    pub fn overflows(&self) -> bool {
        // Packed states come from limits that cover the whole cost.
        let Detail::Reports(reported) = &self.detail else { return false };
        reported.reports.iter().any(|report| report.overflow != Overflow::None)
    }

    /// Whether the store failed, so that this decision follows the rules' failure policies.
    #[must_use]
    pub const fn degraded(&self) -> bool {
        !matches!(self.degraded, Degraded::No)
    }

    /// Whether the request was denied for lack of a store: the store failed and the policy of a
    /// rule is to deny then, or the store is full. That is not the client's fault: over HTTP it is
    /// a 503 and not a 429.
    #[must_use]
    pub fn unavailable(&self) -> bool {
        matches!(self.degraded, Degraded::Closed) || self.cause() == Cause::StoreFull
    }

    /// The cause of a denial: the deciding limit, a block, a full store, too many holds, or that no
    /// rule covers the request.
    #[must_use]
    pub fn cause(&self) -> Cause {
        match &self.detail {
            Detail::Reports(reported) if !self.allowed => {
                let deciding = reported.summary.deciding.map(|report| report.cause);
                reported.unlimited.or(deciding).unwrap_or(Cause::Uncovered)
            }
            // Packed states come from limits alone.
            _ => Cause::Limit,
        }
    }

    /// The time of the decision.
    #[must_use]
    pub const fn now(&self) -> Timestamp {
        self.now
    }

    /// This decision marked degraded: the store did not confirm it.
    pub(crate) const fn degrade(mut self) -> Self {
        self.degraded = Degraded::Yes;
        self
    }

    /// The decision on some of the limits.
    pub(crate) fn merged(&self, limits: impl IntoIterator<Item = Report>) -> Self {
        Self::merge(self.now, self.degraded, limits)
    }

    /// This decision turned into a denial with at least this `retry_after`: the budget may have
    /// enough left, but earlier requests are still waiting.
    pub(crate) fn overtaken(self, retry_after: Duration) -> Self {
        if self.verdict().retry_after().is_none_or(|known| known >= retry_after) {
            return self;
        }
        let mut denied = self.merged(self.limits());
        denied.allowed = false;
        if let Detail::Reports(reported) = &mut denied.detail {
            reported.summary.verdict = Verdict::Denied { retry_after };
        }
        denied
    }
}

impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        (self.now, self.allowed, self.degraded) == (other.now, other.allowed, other.degraded)
            && self.summary() == other.summary()
            && self.with_limits(|limits| other.with_limits(|others| limits == others))
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("now", &self.now)
            .field("verdict", &self.verdict())
            .field("degraded", &self.degraded)
            .field("limits", &self.limits())
            .finish()
    }
}
