//! Checks on a memory store, which answers synchronously: find the rules that cover the request,
//! locate the states of their budgets, read the clock, and take.

use std::fmt;

use smallvec::SmallVec;

use super::Shared;
use super::prepared::{PlainRules, Prepared};
use crate::decision::{Degraded, TAGS_MAX};
use crate::memory::{Decider, Taken, Target, WIDEST};
use crate::stats::stripe_index;
use crate::store::{Op, Store};
use crate::{AsRequest, Decision, Error, MemoryStore, Report, Reports, Request, Timestamp};

type Targets<'a> = SmallVec<[Target<'a>; TAGS_MAX]>;

/// The synchronous checks of a limiter whose store decides in memory. Made by
/// [`Limiter::in_memory`](crate::Limiter::in_memory).
pub struct InMemory<'a, S> {
    pub(super) shared: &'a Shared<S>,
    pub(super) memory: &'a MemoryStore,
}

impl<S: Store> InMemory<'_, S> {
    /// Checks a request, as [`Limiter::check`](crate::Limiter::check) does.
    ///
    /// # Errors
    /// As [`Limiter::check`](crate::Limiter::check).
    #[inline]
    pub fn check(&self, request: impl AsRequest) -> Result<Decision, Error> {
        self.check_with(self.shared.rules.kept(), &request)
    }

    /// Whether every rule in force applies to every client alike, so that a request needs no other
    /// attribute than its client.
    #[must_use]
    pub fn counts_clients_alike(&self) -> bool {
        self.shared.rules.current().plain.is_some()
    }
}

impl<S> Clone for InMemory<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S> Copy for InMemory<'_, S> {}

impl<S> fmt::Debug for InMemory<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemory").finish_non_exhaustive()
    }
}

impl<S: Store> InMemory<'_, S> {
    /// Checks a request under these rules or, without any, under those that
    /// [`load`](super::active::ActiveRules::load) returns. One token bucket is decided where the
    /// caller is.
    #[inline(always)]
    pub(super) fn check_with(
        self,
        rules: Option<&Prepared>,
        request: &impl AsRequest,
    ) -> Result<Decision, Error> {
        let Some(rules) = rules else {
            return request.with_request(|request| self.check_loaded(&request));
        };
        match &rules.plain {
            Some(plain @ PlainRules { bucket: Some(bucket), .. }) => {
                self.check_plain::<1, 1>(rules, plain, Decider::Bucket(bucket), request)
            }
            _ => self.check_under(rules, request),
        }
    }

    #[inline(never)]
    fn check_loaded(self, request: &Request<'_>) -> Result<Decision, Error> {
        self.check_with(Some(&self.shared.rules.load()), request)
    }

    /// Checks a request under rules that are not one token bucket.
    #[inline(never)]
    fn check_under(self, rules: &Prepared, request: &impl AsRequest) -> Result<Decision, Error> {
        // The same steps, compiled for the number of budgets and the width of their states.
        let steps = Decider::Steps;
        match rules.plain.as_ref().map(|plain| (plain, plain.others.len(), plain.width)) {
            Some((plain, 0, 2)) => self.check_plain::<1, 2>(rules, plain, steps, request),
            Some((plain, 0, 3)) => self.check_plain::<1, 3>(rules, plain, steps, request),
            Some((plain, 0, 4)) => self.check_plain::<1, 4>(rules, plain, steps, request),
            Some((plain, 1, 1)) => self.check_plain::<2, 1>(rules, plain, steps, request),
            Some((plain, 1, 2)) => self.check_plain::<2, 2>(rules, plain, steps, request),
            Some((plain, 2, 1)) => self.check_plain::<3, 1>(rules, plain, steps, request),
            _ => request.with_request(|request| self.check_any(rules, &request)),
        }
    }

    /// Checks a request under `N` plain rules whose states have `W` words.
    #[inline(always)]
    fn check_plain<const N: usize, const W: usize>(
        self,
        rules: &Prepared,
        plain: &PlainRules,
        decider: Decider<'_>,
        request: &impl AsRequest,
    ) -> Result<Decision, Error> {
        match request.with_request(|request| plain.locate::<N, W>(self.memory, &request)) {
            // The clock is read while the states are being fetched.
            Some(targets) => self.take::<N, W>(rules, targets, decider, request, self.shared.clock.now()),
            None => request.with_request(|request| self.check_any(rules, &request)),
        }
    }

    /// Checks a request that has to be searched for.
    #[inline(never)]
    pub(super) fn check_any(self, rules: &Prepared, request: &Request<'_>) -> Result<Decision, Error> {
        let mut targets = Targets::new();
        rules.locate(self.memory, request, &mut targets);
        self.take_any(rules, &targets, request, self.shared.clock.now())
    }

    /// Decides a request on located budgets.
    #[inline(never)]
    pub(super) fn take_any(
        self,
        rules: &Prepared,
        targets: &[Target<'_>],
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let width = targets.first().map_or(0, Target::width::<WIDEST>);
        let is_alike = |target: &Target<'_>| target.width::<WIDEST>() == width && !target.needs_reports();
        let width = if targets.iter().all(is_alike) { width } else { WIDEST };
        let decider = Decider::of(request);
        // The same steps, compiled for the number of budgets and the width of their states.
        match (targets, width) {
            ([a], 1) => self.take::<1, 1>(rules, [*a], decider, request, now),
            ([a], 2) => self.take::<1, 2>(rules, [*a], decider, request, now),
            ([a], 3) => self.take::<1, 3>(rules, [*a], decider, request, now),
            ([a], 4) => self.take::<1, 4>(rules, [*a], decider, request, now),
            ([a, b], 1) => self.take::<2, 1>(rules, [*a, *b], decider, request, now),
            ([a, b], 2) => self.take::<2, 2>(rules, [*a, *b], decider, request, now),
            ([a, b, c], 1) => self.take::<3, 1>(rules, [*a, *b, *c], decider, request, now),
            _ => self.take_list(rules, targets, request, now),
        }
    }

    /// Decides a request on located budgets whose states have any widths.
    #[inline(never)]
    fn take_list(
        self,
        rules: &Prepared,
        targets: &[Target<'_>],
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let decider = Decider::of(request);
        match *targets {
            [a] => self.take::<1, WIDEST>(rules, [a], decider, request, now),
            [a, b] => self.take::<2, WIDEST>(rules, [a, b], decider, request, now),
            [a, b, c] => self.take::<3, WIDEST>(rules, [a, b, c], decider, request, now),
            [a, b, c, d] => self.take::<4, WIDEST>(rules, [a, b, c, d], decider, request, now),
            _ => self.check_slow(rules, request, now),
        }
    }

    /// Takes from located budgets and answers; if that needs more than this shape, goes on with the
    /// shape of any widths, and from there with the slow path.
    #[inline(always)]
    fn take<const N: usize, const W: usize>(
        self,
        rules: &Prepared,
        targets: [Target<'_>; N],
        decider: Decider<'_>,
        request: &impl AsRequest,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        match self.memory.take::<N, W>(&targets, decider, now) {
            Some(taken) if W == WIDEST && targets.iter().any(Target::needs_reports) => {
                Ok(self.reported(request, &targets, &taken))
            }
            Some(taken) => self.answer(request, targets, &taken, decider),
            None => request.with_request(move |request| match W {
                WIDEST => self.check_slow(rules, &request, now),
                _ => self.take_list(rules, &targets, &request, now),
            }),
        }
    }

    /// The decision that left these states, counted and observed.
    #[inline(always)]
    fn answer<const N: usize, const W: usize>(
        self,
        request: &impl AsRequest,
        targets: [Target<'_>; N],
        taken: &Taken<N, W>,
        decider: Decider<'_>,
    ) -> Result<Decision, Error> {
        let stripe = stripe_index();
        // Two branches: a counter chosen by the verdict would wait for the state and the clock, and
        // the next reading of the clock for the counter.
        if taken.denied == 0 {
            targets.iter().for_each(|target| target.lookup.tally.count_at(stripe, true));
            self.shared.total.count_at(stripe, true);
        } else {
            for (index, target) in targets.iter().enumerate() {
                target.lookup.tally.count_at(stripe, taken.denied >> index & 1 == 0);
            }
            self.shared.total.count_at(stripe, false);
        }
        match self.shared.observer {
            // A decision that nothing borrows is built where the caller wants it. Elsewhere the
            // targets and states are copied, so that they themselves stay in registers.
            None => Ok(decision(&targets, taken, decider)),
            Some(_) => Ok(self.observed(request, &{ targets }, &{ *taken }, decider)),
        }
    }

    #[inline(never)]
    pub(super) fn observed<const N: usize, const W: usize>(
        self,
        request: &impl AsRequest,
        targets: &[Target<'_>; N],
        taken: &Taken<N, W>,
        decider: Decider<'_>,
    ) -> Decision {
        let decision = decision(targets, taken, decider);
        self.shared.notify(request, &decision);
        decision
    }

    /// The decision that left these states, with reports, counted and observed.
    #[inline(never)]
    fn reported<const N: usize, const W: usize>(
        self,
        request: &impl AsRequest,
        targets: &[Target<'_>; N],
        taken: &Taken<N, W>,
    ) -> Decision {
        let Taken { now, denied, allowed, .. } = *taken;
        let reports = |allowed| decision(targets, &Taken { allowed, ..*taken }, Decider::Steps).limits();
        // A budget that was not drawn on reports each limit by its state.
        let (drawn, undrawn) = (reports(allowed), if denied == 0 { Reports::new() } else { reports(false) });
        let target =
            |report: &Report| targets.iter().position(|target| target.lookup.tag.rule == report.rule);
        let complete = |(index, report): (usize, &Report)| {
            let at = target(report)?;
            let report = if denied >> at & 1 == 0 { report } else { undrawn.get(index)? };
            Some(targets.get(at)?.complete(*report))
        };
        let decision = Decision::merge(now, Degraded::No, drawn.iter().enumerate().filter_map(complete));
        decision.with_limits(|reports| {
            self.shared.total.count(&decision, reports);
            targets.iter().for_each(|target| {
                target.lookup.tally.count_rule(&decision, reports, target.lookup.tag.rule)
            });
        });
        self.shared.notify(request, &decision);
        decision
    }

    /// Checks any request, through the general path of the store.
    #[cold]
    fn check_slow(self, rules: &Prepared, request: &Request<'_>, now: Timestamp) -> Result<Decision, Error> {
        let (plan, cost) = self.shared.plan(rules, request)?;
        plan.without_slots()?;
        let applied = self.memory.apply_now(Op::Take, &plan.charges(cost), now);
        let decision = self.shared.decided(applied, Op::Take, &plan, cost)?;
        self.shared.count(&decision, rules);
        self.shared.notify(request, &decision);
        Ok(decision)
    }
}

/// The decision on a request that left these states.
#[inline(always)]
pub(super) fn decision<const N: usize, const W: usize>(
    targets: &[Target<'_>; N],
    taken: &Taken<N, W>,
    decider: Decider<'_>,
) -> Decision {
    let cost = targets.first().map_or(0, |target| target.cost);
    let budgets = targets.map(|target| (target.lookup.tag, target.width::<W>()));
    let inline = if let Decider::Inline(limit) = decider { Some(limit) } else { None };
    Decision::of_states(taken.now, cost, taken.allowed, budgets, &taken.left, inline)
}
