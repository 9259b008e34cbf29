//! Checks on a memory store, which answers synchronously: find the rules that cover the request,
//! locate the states of their budgets, read the clock (first, under one global bucket), and take.

use std::cell::OnceCell;
use std::fmt;

use smallvec::SmallVec;

use super::Shared;
use super::plain::{PlainRules, is_valid, locate_inline, plain_cost};
use super::prepared::{Prepared, RulesGuard};
use crate::decision::{Degraded, TAGS_MAX, WORDS_MAX};
use crate::limit::Kind;
use crate::memory::{Decider, Subject, Taken, Target, WIDEST};
use crate::stats::stripe_index;
use crate::store::{Op, Store};
use crate::{AsRequest, Decision, Error, Limit, MemoryStore, Report, Reports, Request, Rule, Timestamp};

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
        self.shared.check(self.memory, &request)
    }

    /// Whether every rule in force applies to every client alike, so that a request needs no other
    /// attribute than its client.
    #[must_use]
    pub fn counts_clients_alike(&self) -> bool {
        self.shared.rules.plain().is_some()
    }

    /// Checks requests one after the other, as [`Limiter::check_many`](crate::Limiter::check_many)
    /// does.
    pub fn check_many<R: AsRequest>(&self, requests: &[R], each: impl FnMut(Result<Decision, Error>)) {
        self.shared.check_many(self.memory, requests, each);
    }
}

impl<S> fmt::Debug for InMemory<'_, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InMemory").finish_non_exhaustive()
    }
}

impl<S: Store> Shared<S> {
    #[inline(always)]
    pub(super) fn check(&self, memory: &MemoryStore, request: &impl AsRequest) -> Result<Decision, Error> {
        self.check_under(self.rules.plain(), memory, request)
    }

    /// Checks a request under the rules of the entered snapshot, if there is one.
    pub(super) fn check_in_snapshot(
        &self,
        memory: &MemoryStore,
        request: &Request<'_>,
    ) -> Result<Decision, Error> {
        self.check_under(self.rules.plain_in_snapshot(), memory, request)
    }

    /// Checks a request under these rules; under the active ones if they are not plain.
    #[inline(always)]
    fn check_under(
        &self,
        plain: Option<&PlainRules>,
        memory: &MemoryStore,
        request: &impl AsRequest,
    ) -> Result<Decision, Error> {
        match plain {
            Some(plain @ PlainRules { bucket: Some(bucket), .. }) => {
                self.check_plain::<1, 1>(memory, plain, Decider::Bucket(bucket), request)
            }
            plain => self.check_shape(memory, plain, request),
        }
    }

    /// Checks a request under rules that are not one token bucket.
    #[inline(never)]
    fn check_shape(
        &self,
        memory: &MemoryStore,
        plain: Option<&PlainRules>,
        request: &impl AsRequest,
    ) -> Result<Decision, Error> {
        // The same steps, compiled for the number of budgets and the width of their states.
        match plain.map(|rules| (rules, rules.others.len(), rules.width)) {
            Some((rules, 0, 2)) => self.check_plain::<1, 2>(memory, rules, Decider::Steps, request),
            Some((rules, 0, 3)) => self.check_plain::<1, 3>(memory, rules, Decider::Steps, request),
            Some((rules, 0, 4)) => self.check_plain::<1, 4>(memory, rules, Decider::Steps, request),
            Some((rules, 1, 1)) => self.check_plain::<2, 1>(memory, rules, Decider::Steps, request),
            Some((rules, 1, 2)) => self.check_plain::<2, 2>(memory, rules, Decider::Steps, request),
            Some((rules, 2, 1)) => self.check_plain::<3, 1>(memory, rules, Decider::Steps, request),
            _ => request.with_request(|request| self.check_any(memory, plain, &request)),
        }
    }

    /// Checks a request under `N` plain rules whose states have `W` words.
    #[inline(always)]
    fn check_plain<const N: usize, const W: usize>(
        &self,
        memory: &MemoryStore,
        plain: &PlainRules,
        decider: Decider<'_>,
        request: &impl AsRequest,
    ) -> Result<Decision, Error> {
        let Some(targets) = request.with_request(|request| plain.locate::<N>(memory, W, &request)) else {
            return request.with_request(|request| self.check_any(memory, Some(plain), &request));
        };
        // The clock is read while the states are being fetched.
        let now = self.clock.now();
        match memory.take::<N, W>(&targets, decider, now) {
            Some(taken) => self.answer(request, targets, &taken, decider),
            None => request.with_request(move |request| self.take_list(memory, &targets, &request, now)),
        }
    }

    /// Checks a request under any rules.
    #[inline(never)]
    pub(super) fn check_any(
        &self,
        memory: &MemoryStore,
        plain: Option<&PlainRules>,
        request: &Request<'_>,
    ) -> Result<Decision, Error> {
        let (loaded, mut targets) = (OnceCell::new(), Targets::new());
        self.locate(memory, plain, &loaded, request, &mut targets);
        self.take_any(memory, &targets, request, self.clock.now())
    }

    /// Decides a request on located budgets.
    #[inline(never)]
    pub(super) fn take_any(
        &self,
        memory: &MemoryStore,
        targets: &[Target<'_>],
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        if let ([target], Some(limit @ Limit(Kind::InlineBucket(_)))) = (targets, request.inline_limit())
            && let Some(taken) = memory.take::<1, 3>(&[*target], Decider::Inline(limit), now)
        {
            return self.answer(request, [*target], &taken, Decider::Inline(limit));
        }
        self.take_list(memory, targets, request, now)
    }

    /// Decides a request on located budgets whose states have any widths.
    #[inline(never)]
    fn take_list(
        &self,
        memory: &MemoryStore,
        targets: &[Target<'_>],
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        match *targets {
            [a] => self.take_array(memory, [a], request, now),
            [a, b] => self.take_array(memory, [a, b], request, now),
            [a, b, c] => self.take_array(memory, [a, b, c], request, now),
            [a, b, c, d] => self.take_array(memory, [a, b, c, d], request, now),
            _ => self.check_slow(memory, request, now),
        }
    }

    #[inline(always)]
    fn take_array<const N: usize>(
        &self,
        memory: &MemoryStore,
        targets: [Target<'_>; N],
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let decider = request.inline_limit().map_or(Decider::Steps, Decider::Inline);
        match memory.take::<N, WIDEST>(&targets, decider, now) {
            Some(taken) if targets.iter().any(Target::needs_reports) => {
                Ok(self.reported(request, &targets, &taken))
            }
            Some(taken) => self.answer(request, targets, &taken, decider),
            None => self.check_slow(memory, request, now),
        }
    }

    /// The decision that left these states, counted and observed.
    #[inline(always)]
    fn answer<const N: usize, const W: usize>(
        &self,
        request: &impl AsRequest,
        targets: [Target<'_>; N],
        taken: &Taken<N, W>,
        decider: Decider<'_>,
    ) -> Result<Decision, Error> {
        let stripe = stripe_index();
        // Two branches: a counter chosen by the verdict would wait for the state and the clock, and
        // the next reading of the clock for the counter.
        if taken.denied == 0 {
            targets.iter().for_each(|target| target.tally().count_at(stripe, true));
            self.total.count_at(stripe, true);
        } else {
            for (index, target) in targets.iter().enumerate() {
                target.tally().count_at(stripe, taken.denied >> index & 1 == 0);
            }
            self.total.count_at(stripe, false);
        }
        match self.observer {
            // A decision that nothing borrows is built where the caller wants it. Elsewhere the
            // targets and states are copied, so that they themselves stay in registers.
            None => Ok(decision(&targets, taken, decider)),
            Some(_) => Ok(self.observed(request, &{ targets }, &{ *taken }, decider)),
        }
    }

    #[inline(never)]
    pub(super) fn observed<const N: usize, const W: usize>(
        &self,
        request: &impl AsRequest,
        targets: &[Target<'_>; N],
        taken: &Taken<N, W>,
        decider: Decider<'_>,
    ) -> Decision {
        let decision = decision(targets, taken, decider);
        self.notify(request, &decision);
        decision
    }

    /// The decision that left these states, with reports, counted and observed.
    #[inline(never)]
    fn reported<const N: usize, const W: usize>(
        &self,
        request: &Request<'_>,
        targets: &[Target<'_>; N],
        taken: &Taken<N, W>,
    ) -> Decision {
        let Taken { now, denied, allowed, .. } = *taken;
        let reports = |allowed| decision(targets, &Taken { allowed, ..*taken }, Decider::Steps).limits();
        // A budget that was not drawn on reports each limit by its state.
        let (drawn, undrawn) = (reports(allowed), if denied == 0 { Reports::new() } else { reports(false) });
        let target = |report: &Report| targets.iter().position(|target| target.tag().rule == report.rule);
        let complete = |(index, report): (usize, &Report)| {
            let at = target(report)?;
            let report = if denied >> at & 1 == 0 { report } else { undrawn.get(index)? };
            Some(targets.get(at)?.complete(*report))
        };
        let decision = Decision::merge(now, Degraded::No, drawn.iter().enumerate().filter_map(complete));
        decision.with_limits(|reports| {
            self.total.count(&decision, reports);
            targets
                .iter()
                .for_each(|target| target.tally().count_rule(&decision, reports, target.tag().rule));
        });
        self.notify(request, &decision);
        decision
    }

    /// Appends the budgets that a request draws on; none if the request needs the general path: too
    /// many rules cover it for one decision, one of them records denied costs, a state does not
    /// pack, or the request is invalid. Rules that are not plain, or cannot locate it, are `loaded`
    /// first.
    #[inline]
    pub(super) fn locate<'a, A: smallvec::Array<Item = Target<'a>>>(
        &'a self,
        memory: &'a MemoryStore,
        plain: Option<&'a PlainRules>,
        loaded: &'a OnceCell<RulesGuard>,
        request: &Request<'_>,
        targets: &mut SmallVec<A>,
    ) {
        let before = targets.len();
        let by_plain = plain.and_then(|plain| {
            if let Some((rule, limit)) = request.named_limit() {
                targets.push(locate_inline(memory, plain.inline(rule, limit)?, limit, request)?);
                return Some(());
            }
            let cost = plain_cost(request)?;
            let mut rules = std::iter::once(&plain.first).chain(&plain.others);
            rules.try_for_each(|rule| {
                targets.push(rule.locate(memory, rule.lookup.width(), cost, request)?);
                Some(())
            })
        });
        if by_plain.is_none() {
            targets.truncate(before);
            let prepared = loaded.get_or_init(|| self.rules.load());
            if locate(memory, prepared, request, |target| targets.push(target)).is_none() {
                targets.truncate(before);
            }
        }
    }

    /// Checks any request, through the general path of the store.
    #[cold]
    fn check_slow(
        &self,
        memory: &MemoryStore,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let prepared = self.rules.load();
        let (plan, cost) = self.plan(&prepared, request)?;
        plan.without_slots()?;
        let applied = memory.apply_now(Op::Take, &plan.charges(cost), now);
        let decision = self.decided(applied, Op::Take, &plan, cost, now)?;
        self.count(&decision, &prepared);
        self.notify(request, &decision);
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
    let cost = targets.first().map_or(0, Target::cost);
    let budgets = targets.map(|target| (target.tag(), target.width::<W>()));
    let inline = if let Decider::Inline(limit) = decider { Some(limit) } else { None };
    Decision::of_states(taken.now, cost, taken.allowed, budgets, &taken.left, inline)
}

/// Locates the budgets that a request draws on. `None` if the request needs the general path: too
/// many rules cover it for one decision, one of them records denied costs or has a cost of its own,
/// a state does not pack, or the request is invalid.
fn locate<'a>(
    memory: &'a MemoryStore,
    prepared: &'a Prepared,
    request: &Request<'_>,
    mut found: impl FnMut(Target<'a>),
) -> Option<()> {
    let (cost, inline) = (request.valid_cost()?, request.inline_limit());
    if request.is_own() || !request.rule_costs().is_empty() {
        return None;
    }
    let (mut words, mut rules) = (0_usize, 0_usize);
    let mut locate = |covered| {
        let (rule, budget) = prepared.get(covered, inline)?;
        let is_inline = rule.is_inline();
        if rule.records_denied() || is_inline != inline.is_some() || is_inline && rule.needs_reports() {
            return None;
        }
        let lookup = budget.lookup.as_ref()?;
        let target = with_subject(rule, request, |subject| memory.target(lookup, subject, inline, cost))?;
        (rules, words) = (rules.saturating_add(1), words.saturating_add(lookup.words()));
        (rules <= TAGS_MAX && words <= WORDS_MAX).then(|| found(target))
    };
    prepared.rules.cover(request, |covered| locate(covered).ok_or(())).ok()
}

/// Calls `f` with the subject of a request under a rule, if its values are valid.
fn with_subject<R>(
    rule: &Rule,
    request: &Request<'_>,
    f: impl FnOnce(Subject<'_>) -> Option<R>,
) -> Option<R> {
    if let Some(client) = request.only_client().filter(|_| rule.is_by_client()) {
        return f(Subject::Client(Some(client).filter(is_valid)?));
    }
    if rule.key_attributes().is_empty() {
        return f(Subject::Values(&[]));
    }
    let mut values = SmallVec::new();
    rule.encode_key(request, &mut values).ok()?;
    f(Subject::Values(&values))
}
