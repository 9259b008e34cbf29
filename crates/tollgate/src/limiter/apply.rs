//! Operations on any store: plan the charges, call the store under the deadline, and turn its
//! answer or its failure into a decision.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;

use super::Shared;
use super::plan::Plan;
use super::prepared::Prepared;
use super::queue::Permit;
use super::task::run_to_end;
use crate::decision::Degraded;
use crate::store::{Applied, Op, Store, StoreError, Until};
use crate::{AsRequest, Caller, Decision, Error, MAX_COUNT, Request, Rule, Timestamp};

const NO_LIMIT: &str = "it is an inline rule; pass a limit with Request::under";
const NOT_INLINE: &str = "it is not an inline rule; pass limits only to a rule made by Rule::inline";

impl<S: Store> Shared<S> {
    /// The charges of a request, and the cost to apply them with: 1 if rules have costs of their
    /// own, which are then multipliers.
    pub(super) fn plan(&self, prepared: &Prepared, request: &Request<'_>) -> Result<(Plan, u64), Error> {
        let (mut plan, cost) = (Plan::under(&prepared.rules), request.checked_cost()?);
        let (multiplier, cost) = if request.rule_costs().is_empty() { (1, cost) } else { (cost, 1) };
        self.add(&mut plan, prepared, request, multiplier)?;
        Ok((plan, cost))
    }

    /// Adds the charges of a request. A rule with a cost of its own has that as its multiplier.
    pub(super) fn add(
        &self,
        plan: &mut Plan,
        prepared: &Prepared,
        request: &Request<'_>,
        multiplier: u64,
    ) -> Result<(), Error> {
        if let Some(only) = request.only_rule().filter(|only| prepared.rules.index(only).is_none()) {
            return Err(Error::UnknownRule { rule: only.into() });
        }
        for (rule, cost) in request.rule_costs() {
            if prepared.rules.index(rule).is_none() {
                return Err(Error::UnknownRule { rule: (*rule).into() });
            }
            if *cost > MAX_COUNT {
                return Err(Error::InvalidCost { value: *cost });
            }
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
        prepared.rules.seeing(request, |request| plan.add(prepared, request, multiplier))
    }

    /// Decides a request; if the store fails, by the rules' failure policies.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the store does not support the operation: that is not a temporary
    /// failure. [`Error::Overloaded`] if the call did not reach the store.
    pub(super) async fn decide(
        self: &Arc<Self>,
        op: Op,
        plan: &Plan,
        cost: u64,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let applied = self.apply(op, plan, cost, now).await;
        self.decided(applied, op, plan, cost)
    }

    /// The decision that follows from the store's result.
    pub(super) fn decided(
        &self,
        applied: Result<Applied, StoreError>,
        op: Op,
        plan: &Plan,
        cost: u64,
    ) -> Result<Decision, Error> {
        match applied {
            Ok(applied) => {
                self.count_shortfall(&applied);
                self.count_converted(&applied);
                let Applied { now, answers, .. } = applied;
                Ok(if plan.is_refused() {
                    Decision::uncovered(now)
                } else {
                    plan.decision(now, Degraded::No, &answers)
                })
            }
            Err(error @ (StoreError::Unsupported { .. } | StoreError::Overloaded { .. })) => {
                Err(error.into())
            }
            Err(error) => {
                self.failed(&error);
                Ok(self.decide_without_store(op, plan, cost, self.clock.now()))
            }
        }
    }

    /// Applies an operation that is not a check: a store failure is an error.
    pub(super) async fn act(self: &Arc<Self>, op: Op, plan: &Plan, cost: u64) -> Result<Applied, Error> {
        let applied = self.apply(op, plan, cost, self.clock.now()).await;
        let applied = applied.inspect_err(|error| {
            if !matches!(error, StoreError::Overloaded { .. }) {
                self.failed(error);
            }
        })?;
        self.count_converted(&applied);
        Ok(applied)
    }

    /// A plan under the limits in force: those that it was made under may have been replaced.
    pub(super) fn in_force(&self, plan: &Plan) -> Plan {
        plan.in_force(&self.rules.load())
    }

    /// Counts the states that were converted because their limit was replaced.
    fn count_converted(&self, applied: &Applied) {
        if applied.converted > 0 {
            self.converted.fetch_add(applied.converted, Ordering::Relaxed);
        }
    }

    /// Applies an operation and returns the units moved, the largest number of any limit, with
    /// those of overflows.
    pub(super) async fn act_units(self: &Arc<Self>, op: Op, plan: &Plan, cost: u64) -> Result<u64, Error> {
        let applied = self.act(op, plan, cost).await?;
        let units = |lends: bool| {
            let either = plan.distinct().zip(&applied.answers).filter(|(charge, _)| charge.lends() == lends);
            either.map(|(_, answer)| answer.effect.units()).max().unwrap_or(0)
        };
        Ok(units(false).saturating_add(units(true)))
    }

    /// Applies an operation to the charges of a plan. A store that does not decide in memory is
    /// called when it is the caller's turn, and the call runs to its end even if this is dropped.
    pub(super) async fn apply(
        self: &Arc<Self>,
        op: Op,
        plan: &Plan,
        cost: u64,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        if plan.is_empty() || self.store.decides_in().is_some() {
            return self.apply_here(op, plan, cost, now).await;
        }
        if let Some(recalled) = self.store.recall(op, &plan.charges_of(op, cost), now) {
            return Ok(recalled);
        }
        let shared = Arc::clone(self);
        let plan = plan.clone();
        run_to_end(async move { shared.apply_here(op, &plan, cost, now).await }).await
    }

    /// As [`apply`](Self::apply), but dropping this drops the call: for what runs to its end
    /// anyway.
    pub(super) async fn apply_here(
        &self,
        op: Op,
        plan: &Plan,
        cost: u64,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        if plan.is_empty() {
            return Ok(Applied::nothing(now));
        }
        let applied = self.apply_to_store(op, plan, cost, now).await;
        self.tell_waiters(op, plan, &applied);
        applied
    }

    /// Lets those that wait for the budgets of an operation know that it has changed them, or may
    /// have.
    fn tell_waiters(&self, op: Op, plan: &Plan, applied: &Result<Applied, StoreError>) {
        match op {
            Op::Refund | Op::Penalise | Op::Record | Op::Settle { .. } => self.waiters.budgets_changed(plan),
            Op::Reset => self.waiters.budgets_blocked(plan, Timestamp::EPOCH),
            Op::Block { until } => {
                let now = self.clock.now();
                let end = match (until, applied) {
                    (Until::After(span), _) => now.saturating_add(span),
                    // The date is one of the store's clock.
                    (Until::Date(date), Ok(applied)) => now.saturating_add(date.since(applied.now)),
                    (Until::Date(date), Err(_)) => date,
                };
                self.waiters.budgets_blocked(plan, end);
            }
            _ => {}
        }
    }

    async fn apply_to_store(
        &self,
        op: Op,
        plan: &Plan,
        cost: u64,
        now: Timestamp,
    ) -> Result<Applied, StoreError> {
        let charges = plan.charges_of(op, cost);
        if self.store.decides_in().is_some() {
            let applied = self.within_deadline(self.store.apply(op, &charges, now), now).await?;
            return checked(applied, charges.len());
        }
        let permit = self.permit(plan.caller(), charges.len()).await?;
        let now = self.clock.now();
        let applied = self.within_deadline(self.store.apply(op, &charges, now), now).await;
        if !matches!(applied, Err(StoreError::TimedOut)) {
            permit.answered(self.clock.now());
        }
        checked(applied?, charges.len())
    }

    /// Waits until the store is ready, and then for the caller's turn.
    pub(super) async fn permit(
        &self,
        caller: Option<Caller>,
        charges: usize,
    ) -> Result<Permit<'_>, StoreError> {
        self.store.ready().await;
        let permit = self.queue.enter(caller, charges, &self.clock).await;
        if let Err(StoreError::Overloaded { .. }) = permit {
            self.overloaded.fetch_add(1, Ordering::Relaxed);
            self.observer.iter().for_each(|observer| observer.overloaded(caller));
        }
        permit
    }

    /// What the store answers within the deadline. The timer is set up only if the store does not
    /// answer at once.
    pub(super) async fn within_deadline<T>(
        &self,
        answer: impl Future<Output = Result<T, StoreError>>,
        sent_at: Timestamp,
    ) -> Result<T, StoreError> {
        let mut answer = pin!(answer);
        let mut timeout = None;
        poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answered) => Poll::Ready(answered),
            Poll::Pending => timeout
                .get_or_insert_with(|| self.clock.sleep_until(sent_at.saturating_add(self.deadline)))
                .as_mut()
                .poll(context)
                .map(|()| Err(StoreError::TimedOut)),
        })
        .await
    }

    pub(super) fn failed(&self, error: &StoreError) {
        self.store_errors.fetch_add(1, Ordering::Relaxed);
        self.observer.iter().for_each(|observer| observer.store_failed(error));
    }

    /// Counts a decision and notifies the observer.
    pub(super) fn observe(&self, request: &impl AsRequest, decision: &Decision) {
        self.count(decision, &self.rules.load());
        self.notify(request, decision);
    }

    pub(super) fn count(&self, decision: &Decision, prepared: &Prepared) {
        decision.with_limits(|reports| {
            self.total.count(decision, reports);
            for (index, report) in reports.iter().enumerate() {
                if report.only_lends() && report.overflow.drawn() == Some(0) {
                    continue;
                }
                let counted = reports.iter().take(index).any(|earlier| earlier.rule == report.rule);
                if let Some(tally) = prepared.tally(report.rule).filter(|_| !counted) {
                    tally.count_rule(decision, reports, report.rule);
                }
            }
        });
    }

    pub(super) fn notify(&self, request: &impl AsRequest, decision: &Decision) {
        if let Some(observer) = &self.observer {
            request.with_request(|request| observer.decided(&request, decision));
        }
    }
}

/// The store's answer, which must answer every charge.
pub(super) fn checked(applied: Applied, charges: usize) -> Result<Applied, StoreError> {
    if applied.answers.len() == charges {
        return Ok(applied);
    }
    let reason = format!("it answered {} of {charges} charges", applied.answers.len());
    Err(StoreError::Unavailable { reason })
}
