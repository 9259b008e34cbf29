//! The limiter: rules, a store, a clock and failure policies.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::stats::{Stats, Tally};
use crate::store::{Op, Store, StoreError, Until};
use crate::time::AnyClock;
use crate::{
    AsRequest, Caller, Decision, Error, InlineLimit, Limit, MemoryStore, Request, RuleSet, Timestamp,
    format_duration,
};

mod active;
mod apply;
mod batch;
mod builder;
mod check;
mod check_all;
mod failure;
mod holds;
mod plan;
mod prepared;
mod queue;
mod record;
mod reservation;
mod slot;
mod snapshot;
mod task;
mod wait;

use active::ActiveRules;
pub use builder::LimiterBuilder;
pub use check::InMemory;
pub use check_all::AllOrNothing;
use failure::Share;
use holds::Ledger;
use plan::Plan;
use queue::Queue;
pub use record::Recorded;
pub use reservation::{Reservation, Settlement};
pub use slot::Slot;
pub use snapshot::RulesSnapshot;
use wait::Waiters;

/// Decides requests.
///
/// Make one limiter for all requests that share its limits, and clone it for every connection, task
/// or thread: clones are the same limiter and share all state. A limiter made for each connection
/// limits that connection alone, and each has tables of its own.
///
/// Threads that check one key at once take turns at a lock. It is held for nanoseconds and is not
/// fair: with many more threads than processors some are admitted half as often as others, and a
/// thread that the system suspends waits for its next slice of time. The limit is exact all the
/// same. Use as many threads as there are processors, as async runtimes do.
///
/// ```
/// use tollgate::{Limit, Limiter};
///
/// let limiter = Limiter::new(Limit::per_second(10));
/// assert!(limiter.check("alice")?.allowed());
/// # Ok::<(), tollgate::Error>(())
/// ```
pub struct Limiter<S = MemoryStore> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    rules: ActiveRules,
    store: S,
    clock: AnyClock,
    observer: Option<Box<dyn Observer>>,
    deadline: Duration,
    /// The turns at a store that does not decide in memory.
    queue: Queue,
    longest_inline_refill: Duration,
    /// Decides under [`FailurePolicy::Local`](crate::FailurePolicy::Local) while the store fails.
    local: MemoryStore,
    local_share: Share,
    total: Tally,
    store_errors: AtomicU64,
    overloaded: AtomicU64,
    converted: AtomicU64,
    shortfall: AtomicU64,
    waiters: Arc<Waiters>,
    holds: Ledger,
}

/// Observes a limiter, for metrics and logs. Called once per request, on the thread that decides.
pub trait Observer: Send + Sync {
    /// A request was decided. Peeks are not reported.
    fn decided(&self, request: &Request<'_>, decision: &Decision) {
        let _ = (request, decision);
    }

    /// The store failed. Callers never see this error.
    fn store_failed(&self, error: &StoreError) {
        let _ = error;
    }

    /// A call of this caller was refused as [overloaded](Error::Overloaded). `None` is the program
    /// itself.
    fn overloaded(&self, caller: Option<Caller>) {
        let _ = caller;
    }
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter").field("rules", &self.shared.rules.load().rules).finish_non_exhaustive()
    }
}

impl Limiter {
    /// An in-memory limiter that gives each client `limit`. The rule is called `per-client`.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        let store = MemoryStore::new();
        // A long log in source code is intended: the ceiling is for limits from configuration.
        let store =
            if store.accepts(&limit).is_err() { store.log_ceiling(limit.longest_log()) } else { store };
        Self::builder(RuleSet::per_client(limit)).store(store).assemble()
    }

    /// Takes the request's cost if every rule that covers it admits it. Synchronous, without an
    /// async runtime.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted;
    /// [`Error::SlotNeeded`] if a rule [limits concurrency](Limit::concurrent). A denial is not an
    /// error.
    #[inline]
    pub fn check(&self, request: impl AsRequest) -> Result<Decision, Error> {
        InMemory { shared: &self.shared, memory: &self.shared.store }.check(request)
    }

    /// Checks requests one after the other and calls `each` with each decision, in order. The
    /// decisions are those of [`check`](Self::check), with one reading of the clock per 64
    /// requests. The memory that a request needs is prefetched while others are decided, so with
    /// millions of clients this is several times as fast.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::new(Limit::per_minute(2));
    /// let mut allowed = Vec::new();
    /// limiter.check_many(&["alice", "bob", "alice", "alice"], |decision| {
    ///     allowed.push(decision.is_ok_and(|decision| decision.allowed()));
    /// });
    /// assert_eq!(allowed, [true, true, true, false]);
    /// ```
    pub fn check_many<R: AsRequest>(&self, requests: &[R], each: impl FnMut(Result<Decision, Error>)) {
        InMemory { shared: &self.shared, memory: &self.shared.store }.check_many(requests, each);
    }
}

impl<S: Store> Limiter<S> {
    /// The synchronous checks, if the store decides in memory.
    #[inline]
    pub fn in_memory(&self) -> Option<InMemory<'_, S>> {
        self.shared.store.decides_in().map(|memory| InMemory { shared: &self.shared, memory })
    }

    /// Takes the request's cost if every rule that covers it admits it. For any store.
    ///
    /// # Errors
    /// As [`check`](Limiter::check). A store that fails is a degraded decision.
    pub async fn check_async(&self, request: impl AsRequest) -> Result<Decision, Error> {
        if let Some(in_memory) = self.in_memory() {
            let rules = self.shared.rules.kept_in_snapshot();
            return request.with_request(|request| in_memory.check_with(rules, &request));
        }
        // In a box, since the future of a store is large, and callers embed this one.
        Box::pin(async {
            let (plan, cost) = self.plan(&request)?;
            plan.without_slots()?;
            let decision = self.shared.decide(Op::Take, &plan, cost, self.shared.clock.now()).await?;
            self.shared.observe(&request, &decision);
            Ok(decision)
        })
        .await
    }

    /// The decision that a check would make, changing nothing. The numbers are those before the
    /// request.
    ///
    /// # Errors
    /// As [`check_async`](Self::check_async).
    pub async fn peek(&self, request: impl AsRequest) -> Result<Decision, Error> {
        let (plan, cost) = self.plan(&request)?;
        self.shared.decide(Op::Peek, &plan, cost, self.shared.clock.now()).await
    }

    /// Gives back a request's cost at every rule that covers it, the most recently drawn units
    /// first, never beyond the limit. Returns the units given back, the largest number of any
    /// limit, with those of overflows.
    ///
    /// A rule that has units left was drawn on last, and is given back before its
    /// [overflow](crate::Rule::overflow); otherwise the overflow is. A refund that
    /// [names](crate::Request::only) a rule goes to that rule alone.
    ///
    /// # Errors
    /// [`Error::StoreUnavailable`], [`Error::StoreFull`] or [`Error::Unsupported`] if the store did
    /// not do it.
    pub async fn refund(&self, request: impl AsRequest) -> Result<u64, Error> {
        let (own, named) = request.with_request(|request| (request.is_own(), request.only_rule().is_some()));
        let (plan, cost) = if own { self.keyed_plan(&request)? } else { self.plan(&request)? };
        let plan = if named { plan.without_overflow() } else { plan };
        self.shared.act_units(Op::Refund, &plan.only(false), cost).await
    }

    /// Takes up to the request's cost from the client's keyed budgets, stopping at empty, even if a
    /// rule would deny it. Returns the units taken, the largest number of any limit. Global budgets
    /// are not touched, unless [`Request::only`](crate::Request::only) names their rule.
    ///
    /// # Errors
    /// As [`refund`](Self::refund); [`Error::NotCovered`] if the client has no keyed budget.
    pub async fn penalise(&self, request: impl AsRequest) -> Result<u64, Error> {
        let (plan, cost) = self.keyed_plan(&request)?;
        self.shared.act_units(Op::Penalise, &plan.only(false), cost).await
    }

    /// Denies the client everything for a [`Duration`], or until a
    /// [`Timestamp`](crate::Timestamp): one in the past lifts the block. Global budgets are not
    /// touched, as by [`penalise`](Self::penalise). Returns the end of the block by the store's
    /// clock.
    ///
    /// # Errors
    /// As [`refund`](Self::refund); [`Error::StoreFull`] if there is no room to store the block.
    pub async fn block(&self, request: impl AsRequest, until: impl Into<Until>) -> Result<Timestamp, Error> {
        let (plan, cost) = self.keyed_plan(&request)?;
        let until = until.into();
        let applied = self.shared.act(Op::Block { until }, &plan, cost).await?;
        Ok(match until {
            Until::Date(date) => date,
            Until::After(span) => applied.now.saturating_add(span),
        })
    }

    /// Counts a failure of an operation that was sent to the [`store`](Self::store) itself, and
    /// tells the observer.
    pub fn store_failed(&self, error: &StoreError) {
        self.shared.failed(error);
    }

    /// Forgets the client: no unit in use, no block, no reservation, no slot. Global budgets are
    /// not touched, as by [`penalise`](Self::penalise).
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn reset(&self, request: impl AsRequest) -> Result<(), Error> {
        let (plan, cost) = self.keyed_plan(&request)?;
        self.shared.act_units(Op::Reset, &plan, cost).await.map(|_| ())
    }

    /// Replaces the rules. A rule that keeps its name keeps its history: units in use stay in use
    /// under a changed limit. Requests that [wait](Self::wait) go on under the new rules.
    ///
    /// # Errors
    /// [`Error::InvalidRule`] if the store cannot keep one of the limits. Nothing changes then.
    pub fn set_rules(&self, rules: RuleSet) -> Result<(), Error> {
        check_accepted(&self.shared.store, &rules)?;
        self.shared.rules.replace(rules, self.shared.store.decides_in());
        self.shared.waiters.rules_changed();
        Ok(())
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> RuleSet {
        self.shared.rules.load().rules.clone()
    }

    /// The limiter's statistics. Reading them takes no lock that checks
    /// take.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let prepared = self.shared.rules.load();
        let (holds, max_holds, holds_refused) = self.shared.holds.counts(self.shared.clock.now());
        let (waiters, waiters_refused) = self.shared.waiters.counts();
        Stats {
            total: self.shared.total.counts(),
            rules: prepared.tallies().map(|(rule, tally)| (rule, tally.counts())).collect(),
            live_keys: self.shared.store.live_keys(),
            store_errors: self.shared.store_errors.load(Ordering::Relaxed),
            overloaded: self.shared.overloaded.load(Ordering::Relaxed),
            converted: self.shared.converted.load(Ordering::Relaxed),
            shortfall: self.shared.shortfall.load(Ordering::Relaxed),
            holds,
            max_holds,
            holds_refused,
            waiters,
            waiters_refused,
        }
    }

    /// Calls `f` with the rules in force, without copying them.
    pub fn with_rules<R>(&self, f: impl FnOnce(&RuleSet) -> R) -> R {
        f(&self.shared.rules.load().rules)
    }

    /// A number that only clones of this limiter have in this process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.shared.rules.id()
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Prepares a limit for [`Request::under`]: a token bucket that refills evenly, a window that
    /// opens at the first request, or slots.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] if it is another kind of limit, if its full refill takes longer than
    /// [`longest_inline_refill`](LimiterBuilder::longest_inline_refill), or if the store cannot
    /// keep it.
    pub fn inline(&self, limit: Limit) -> Result<InlineLimit, Error> {
        if limit.is_concurrent() {
            self.shared.store.accepts(&limit)?;
            return Ok(InlineLimit(limit));
        }
        let longest = self.shared.longest_inline_refill;
        let Some(inline) = limit.inline(longest) else {
            let reason = "a token bucket that refills evenly, a fixed window that opens at the first request, or slots";
            return Err(Error::InvalidLimit { field: "algorithm", value: limit.to_string(), reason });
        };
        if limit.period() > longest {
            let value = format_duration(limit.period());
            let reason = "at most `longest_inline_refill`";
            return Err(Error::InvalidLimit { field: "full refill", value, reason });
        }
        self.shared.store.accepts(&inline)?;
        Ok(InlineLimit(inline))
    }

    /// The charges of a request, and its cost.
    fn plan(&self, request: &impl AsRequest) -> Result<(Plan, u64), Error> {
        request.with_request(|request| self.shared.plan(&self.shared.rules.load(), &request))
    }

    /// The charges of an administrative verb: keyed budgets only, unless the request names a rule.
    fn keyed_plan(&self, request: &impl AsRequest) -> Result<(Plan, u64), Error> {
        let (plan, cost) = self.plan(request)?;
        let named = request.with_request(|request| request.only_rule().is_some());
        let plan = plan.without_overflow();
        let plan = if named { plan } else { plan.keyed() };
        if plan.is_empty() { Err(Error::NotCovered) } else { Ok((plan, cost)) }
    }
}

fn check_accepted<S: Store>(store: &S, rules: &RuleSet) -> Result<(), Error> {
    for rule in rules.rules() {
        for limit in rules.budgets(rule).flat_map(|(_, limits)| limits) {
            store.accepts(limit).map_err(|error| Error::InvalidRule {
                rule: rule.name().to_string(),
                field: "limit",
                reason: format!("{limit}: {error}"),
            })?;
        }
        let into = rule.overflow_rule().and_then(|name| rules.rules().get(rules.index(&name)?));
        into.map_or(Ok(()), |into| store.accepts_overflow(rule, into))?;
    }
    Ok(())
}
