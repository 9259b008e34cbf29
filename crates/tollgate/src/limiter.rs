//! The limiter: rules, a store, a clock and a failure policy, put together.

use std::fmt;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;
use std::time::Duration;

use crate::decision::Degraded;
use crate::stats::{Stats, Tally};
use crate::store::{Applied, Charge, Op, Store, StoreError, Until};
use crate::time::AnyClock;
use crate::{
    AsRequest, Decision, Error, InlineLimit, Limit, MemoryStore, Request, Rule, RuleSet, Timestamp,
    format_duration,
};

mod builder;
mod check;
mod failure;
mod plan;
mod prepared;
mod reservation;
mod wait;

pub use builder::LimiterBuilder;
pub use check::Together;
use failure::Share;
use plan::Plan;
use prepared::{Current, Prepared};
pub use reservation::{Reservation, Settlement};
use wait::Queues;

const NO_LIMIT: &str = "its limits come with requests; bring one, with Request::under";
const NOT_INLINE: &str = "it has limits of its own; limits come with requests under a Rule::inline";

/// Decides requests.
///
/// Clones are the same limiter: they share all state, so one may be cloned for every connection.
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
    rules: Current,
    store: S,
    clock: AnyClock,
    observer: Option<Box<dyn Observer>>,
    deadline: Duration,
    longest_inline_refill: Duration,
    /// Decides under [`FailurePolicy::Local`](crate::FailurePolicy::Local) while the store is away.
    local: MemoryStore,
    local_share: Share,
    total: Tally,
    store_errors: AtomicU64,
    converted: AtomicU64,
    queues: Queues,
}

/// Sees what a limiter does: the place for metrics and logs. It is called once for each request,
/// on the thread that decides.
pub trait Observer: Send + Sync {
    /// A request was decided. (Peeks are not requests.)
    fn decided(&self, request: &Request<'_>, decision: &Decision) {
        let _ = (request, decision);
    }

    /// The store failed: the raw error, which no caller sees.
    fn store_failed(&self, error: &StoreError) {
        let _ = error;
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
    /// A limiter in memory that gives each client `limit`. The rule is called `per-client`.
    #[must_use]
    pub fn new(limit: Limit) -> Self {
        let store = MemoryStore::new();
        // Who writes a long log into the source means it: a ceiling is for limits that come from elsewhere.
        let store = if store.accepts(&limit).is_err() { store.log_ceiling(limit.capacity()) } else { store };
        Self::builder(RuleSet::per_client(limit)).store(store).assemble()
    }
}

impl<S: Store> Limiter<S> {
    /// Takes what the request costs if every rule that covers it admits it. For stores that have to
    /// be waited for.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted. A denial
    /// is not an error, and a store that fails is a degraded decision.
    pub async fn check_async(&self, request: impl AsRequest) -> Result<Decision, Error> {
        let (plan, cost) = self.plan(&request)?;
        let decision = self.shared.decide(Op::Take, &plan, cost, self.shared.clock.now()).await?;
        self.shared.observe(&request, &decision);
        Ok(decision)
    }

    /// What a check would say, changing nothing. The numbers are those of now, before the request.
    ///
    /// # Errors
    /// As [`check_async`](Self::check_async).
    pub async fn peek(&self, request: impl AsRequest) -> Result<Decision, Error> {
        let (plan, cost) = self.plan(&request)?;
        self.shared.decide(Op::Peek, &plan, cost, self.shared.clock.now()).await
    }

    /// Gives back what a request took: its cost, at every rule that covers it, the most recently
    /// drawn first, never beyond the limit. Says how many units came back at the limit where
    /// most did.
    ///
    /// # Errors
    /// [`Error::StoreUnavailable`] and the like if the store did not do it.
    pub async fn refund(&self, request: impl AsRequest) -> Result<u64, Error> {
        let own = request.with_request(|request| request.is_own());
        let (plan, cost) = if own { self.own_plan(&request)? } else { self.plan(&request)? };
        self.shared.act_units(Op::Refund, &plan, cost).await
    }

    /// Takes up to the request's cost from the client's own budgets, stopping at empty, whatever
    /// the rules say. Says how many units it took at the limit where it took most. Global
    /// budgets are left alone, unless [`Request::only`](crate::Request::only) names their rule.
    ///
    /// # Errors
    /// As [`refund`](Self::refund); [`Error::NotCovered`] if the client has no budget of its own.
    pub async fn penalise(&self, request: impl AsRequest) -> Result<u64, Error> {
        let (plan, cost) = self.own_plan(&request)?;
        self.shared.act_units(Op::Penalise, &plan, cost).await
    }

    /// Denies the client everything for a [`Duration`], or until a [`Timestamp`]: a past one lifts
    /// the block. Global budgets are left alone, as by [`penalise`](Self::penalise).
    ///
    /// # Errors
    /// As [`refund`](Self::refund); [`Error::StoreFull`] if there is no room to remember it.
    pub async fn block(&self, request: impl AsRequest, until: impl Into<Until>) -> Result<(), Error> {
        let (plan, cost) = self.own_plan(&request)?;
        let until = until.into();
        self.shared.act_units(Op::Block { until }, &plan, cost).await.map(|_| ())
    }

    /// Forgets the client: nothing in use, no block, no reservation. Global budgets are left alone,
    /// as by [`penalise`](Self::penalise).
    ///
    /// # Errors
    /// As [`refund`](Self::refund).
    pub async fn reset(&self, request: impl AsRequest) -> Result<(), Error> {
        let (plan, cost) = self.own_plan(&request)?;
        self.shared.act_units(Op::Reset, &plan, cost).await.map(|_| ())
    }

    /// Goes on under other rules. A rule that keeps its name keeps its history: units in use stay
    /// in use under a changed limit.
    ///
    /// # Errors
    /// What the store has against one of the limits. Then nothing changes.
    pub fn set_rules(&self, rules: RuleSet) -> Result<(), Error> {
        check_accepted(&self.shared.store, &rules)?;
        self.shared.rules.replace(rules, self.shared.store.as_memory());
        Ok(())
    }

    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> RuleSet {
        self.shared.rules.load().rules.clone()
    }

    /// What has been decided so far. Reading it takes none of the locks that requests take.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let prepared = self.shared.rules.load();
        Stats {
            total: self.shared.total.counts(),
            rules: prepared.tallies().map(|(rule, tally)| (rule, tally.counts())).collect(),
            live_keys: self.shared.store.live_keys(),
            store_errors: self.shared.store_errors.load(Ordering::Relaxed),
            converted: self.shared.converted.load(Ordering::Relaxed),
        }
    }

    /// Hands `f` the rules in force, without copying them.
    pub fn with_rules<R>(&self, f: impl FnOnce(&RuleSet) -> R) -> R {
        f(&self.shared.rules.load().rules)
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &S {
        &self.shared.store
    }

    /// Makes a limit one that can come with requests, by [`Request::under`]: a token bucket that
    /// refills evenly, or a window that opens at the first request.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] if it is another, if a full refill takes longer than
    /// [may come with a request](LimiterBuilder::longest_inline_refill), or if the store cannot keep
    /// it.
    pub fn inline(&self, limit: Limit) -> Result<InlineLimit, Error> {
        let longest = self.shared.longest_inline_refill;
        let Some(inline) = limit.inline(longest) else {
            let reason =
                "a token bucket that refills evenly, or a fixed window that opens at the first request";
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

    /// The same for what is done to a client: only to budgets of its own, unless a rule is named.
    fn own_plan(&self, request: &impl AsRequest) -> Result<(Plan, u64), Error> {
        let (plan, cost) = self.plan(request)?;
        let named = request.with_request(|request| request.only_rule().is_some());
        let plan = if named { plan } else { plan.keyed() };
        if plan.is_empty() { Err(Error::NotCovered) } else { Ok((plan, cost)) }
    }
}

impl<S: Store> Shared<S> {
    /// The charges of a request, and its cost.
    fn plan(&self, prepared: &Prepared, request: &Request<'_>) -> Result<(Plan, u64), Error> {
        let mut plan = Plan::empty();
        self.add(&mut plan, prepared, request, 1)?;
        Ok((plan, request.checked_cost()?))
    }

    /// Adds the charges of a request.
    fn add(
        &self,
        plan: &mut Plan,
        prepared: &Prepared,
        request: &Request<'_>,
        times: u64,
    ) -> Result<(), Error> {
        if let Some(only) = request.only_rule().filter(|only| prepared.rules.index(only).is_none()) {
            return Err(Error::UnknownRule { rule: only.into() });
        }
        let rule = request.only_rule().and_then(|only| prepared.rules.index(only));
        let is_inline = rule.and_then(|index| prepared.rules.rules().get(index)).map(Rule::is_inline);
        match (is_inline, request.inline_limit()) {
            (Some(true), None) if !request.is_own() => {
                let (rule, reason) = (request.only_rule().unwrap_or_default().into(), NO_LIMIT.into());
                return Err(Error::InvalidRule { rule, field: "limit", reason });
            }
            (Some(false), Some(_)) => {
                let (rule, reason) = (request.only_rule().unwrap_or_default().into(), NOT_INLINE.into());
                return Err(Error::InvalidRule { rule, field: "limit", reason });
            }
            _ => {}
        }
        plan.add(prepared, request, times)
    }

    /// Decides a request, by the rules' failure policies if the store does not.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store cannot do this at all: that is no failure that passes.
    async fn decide(&self, op: Op, plan: &Plan, cost: u64, now: Timestamp) -> Result<Decision, Error> {
        let applied = self.apply(op, &plan.charges(cost), now).await;
        self.decided(applied, op, plan, cost, now)
    }

    /// The decision that a store's answer, or its failure to answer, amounts to.
    fn decided(
        &self,
        applied: Result<Applied, StoreError>,
        op: Op,
        plan: &Plan,
        cost: u64,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        match applied {
            Ok(Applied { now, answers, converted, .. }) => {
                if converted > 0 {
                    self.converted.fetch_add(converted, Ordering::Relaxed);
                }
                Ok(plan.decision(now, Degraded::No, &answers))
            }
            Err(StoreError::Unsupported { verb }) => Err(Error::Unsupported { verb }),
            Err(error) => {
                self.failed(&error);
                Ok(self.decide_without_store(op, plan, cost, now))
            }
        }
    }

    /// Does something that is not a check: here a failure is an error.
    async fn act(&self, op: Op, plan: &Plan, cost: u64) -> Result<Applied, Error> {
        let applied = self.apply(op, &plan.charges(cost), self.clock.now()).await;
        applied.inspect_err(|error| self.failed(error)).map_err(Error::from)
    }

    /// The same, and how many units moved at the limit where most did.
    async fn act_units(&self, op: Op, plan: &Plan, cost: u64) -> Result<u64, Error> {
        let applied = self.act(op, plan, cost).await?;
        Ok(applied.answers.iter().map(|answer| answer.units).max().unwrap_or(0))
    }

    /// Asks the store, for as long as the deadline allows. The sleep is set up only if the store
    /// does not answer at once.
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        if charges.is_empty() {
            return Ok(Applied::nothing(now));
        }
        let mut answer = pin!(self.store.apply(op, charges, now));
        let mut out_of_time = None;
        let applied = poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(applied) => Poll::Ready(applied),
            Poll::Pending => out_of_time
                .get_or_insert_with(|| self.clock.sleep_until(now.saturating_add(self.deadline)))
                .as_mut()
                .poll(context)
                .map(|()| Err(StoreError::TimedOut)),
        });
        let applied = applied.await?;
        if applied.answers.len() != charges.len() {
            let reason = format!("it answered {} of {} charges", applied.answers.len(), charges.len());
            return Err(StoreError::Unavailable { reason });
        }
        Ok(applied)
    }

    fn failed(&self, error: &StoreError) {
        self.store_errors.fetch_add(1, Ordering::Relaxed);
        self.observer.iter().for_each(|observer| observer.store_failed(error));
    }

    /// Counts a decision, once, and tells whoever observes.
    fn observe(&self, request: &impl AsRequest, decision: &Decision) {
        self.count(decision, &self.rules.load());
        self.tell(request, decision);
    }

    fn count(&self, decision: &Decision, prepared: &Prepared) {
        let reports = decision.limits();
        self.total.count(decision, &reports);
        for (index, report) in reports.iter().enumerate() {
            let counted = reports.iter().take(index).any(|earlier| earlier.rule == report.rule);
            if let Some(tally) = prepared.tally(report.rule).filter(|_| !counted) {
                tally.count_rule(decision, &reports, report.rule);
            }
        }
    }

    fn tell(&self, request: &impl AsRequest, decision: &Decision) {
        if let Some(observer) = &self.observer {
            request.with_request(|request| observer.decided(&request, decision));
        }
    }
}

fn check_accepted<S: Store>(store: &S, rules: &RuleSet) -> Result<(), Error> {
    for rule in rules.rules() {
        for limit in rules.limited(rule).flat_map(|(_, limits)| limits) {
            store.accepts(limit).map_err(|error| Error::InvalidRule {
                rule: rule.name().to_string(),
                field: "limit",
                reason: format!("{limit}: {error}"),
            })?;
        }
    }
    Ok(())
}
