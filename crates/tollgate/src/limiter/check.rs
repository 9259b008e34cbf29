//! Checks on a memory store, which answers synchronously: find the rules that cover the request,
//! locate the states of their budgets, read the clock, and take.

use std::cell::OnceCell;
use std::ops::Range;

use smallvec::SmallVec;

use super::plan::Plan;
use super::prepared::{PlainRule, PlainRules, Prepared, RulesGuard};
use super::{Limiter, Shared};
use crate::decision::{States, TAGS_MAX, WORDS_MAX};
use crate::key::checked_value;
use crate::memory::{Subject, Taken, Target};
use crate::request::{CLIENT, Client};
use crate::stats::stripe_index;
use crate::store::{Op, Store};
use crate::{AsRequest, Decision, Error, MemoryStore, Request, Rule, Timestamp};

/// Requests of a batch that are located before the first is decided: enough to keep as many cache
/// misses in flight as a processor can, few enough that no prefetched line is evicted again.
const BATCH: usize = 64;

type Targets<'a> = SmallVec<[Target<'a>; TAGS_MAX]>;

impl Limiter {
    /// Takes the request's cost if every rule that covers it admits it. Synchronous, without an
    /// async runtime.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted. A denial
    /// is not an error.
    #[inline]
    pub fn check(&self, request: impl AsRequest) -> Result<Decision, Error> {
        self.shared.check(&self.shared.store, &request)
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
        self.shared.check_batches(&self.shared.store, requests, each);
    }
}

impl<S: Store> Limiter<S> {
    /// [`check_async`](Self::check_async) without awaiting, on a memory store. `None` on any other
    /// store.
    ///
    /// # Errors
    /// As [`check_async`](Self::check_async).
    #[inline]
    pub fn check_now(&self, request: impl AsRequest) -> Option<Result<Decision, Error>> {
        let memory = self.shared.store.as_memory()?;
        Some(self.shared.check(memory, &request))
    }

    /// [`check_many`](Limiter::check_many) on a memory store. On any other store it does nothing
    /// and returns `false`.
    pub fn check_many_now<R: AsRequest>(
        &self,
        requests: &[R],
        each: impl FnMut(Result<Decision, Error>),
    ) -> bool {
        let Some(memory) = self.shared.store.as_memory() else { return false };
        self.shared.check_batches(memory, requests, each);
        true
    }
}

impl<S: Store> Shared<S> {
    #[inline(always)]
    fn check(&self, memory: &MemoryStore, request: &impl AsRequest) -> Result<Decision, Error> {
        let only = self.rules.plain().filter(|plain| plain.others.is_empty()).map(|plain| &plain.first);
        let Some(target) = request.with_request(|request| only?.locate(memory, &request)) else {
            return request.with_request(|request| self.check_several(memory, &request));
        };
        // Read the clock while the state is being fetched.
        let now = self.clock.now();
        match self.take_one(memory, &target, now) {
            Some(taken) if self.observer.is_none() => Ok(taken.decision()),
            Some(taken) => Ok(self.observed(request, taken)),
            None => request.with_request(|request| self.take(memory, &[target], &request, now)),
        }
    }

    #[inline(never)]
    fn observed(&self, request: &impl AsRequest, taken: Taken) -> Decision {
        let decision = taken.decision();
        self.notify(request, &decision);
        decision
    }

    /// Checks a request under several rules, or one that a plain rule cannot locate.
    #[inline(never)]
    fn check_several(&self, memory: &MemoryStore, request: &Request<'_>) -> Result<Decision, Error> {
        let (loaded, mut targets) = (OnceCell::new(), Targets::new());
        self.locate(memory, &loaded, request, &mut targets);
        self.take(memory, &targets, request, self.clock.now())
    }

    /// Appends the budgets that a request draws on; none if the request needs the general path: too
    /// many rules cover it for one decision, one of them is a shadow rule, a state does not pack, or
    /// the request is invalid. Rules that are not plain are `loaded` first.
    #[inline]
    fn locate<'a, A: smallvec::Array<Item = Target<'a>>>(
        &'a self,
        memory: &MemoryStore,
        loaded: &'a OnceCell<RulesGuard>,
        request: &Request<'_>,
        targets: &mut SmallVec<A>,
    ) {
        let before = targets.len();
        let plain = self.rules.plain().and_then(|plain| {
            for rule in std::iter::once(&plain.first).chain(&plain.others) {
                targets.push(rule.locate(memory, request)?);
            }
            Some(())
        });
        if plain.is_none() {
            targets.truncate(before);
            let prepared = loaded.get_or_init(|| self.rules.load());
            if locate(memory, prepared, request, |target| targets.push(target)).is_none() {
                targets.truncate(before);
            }
        }
    }

    /// Takes from the only located budget, on the fastest path.
    #[inline(always)]
    fn take_one(&self, memory: &MemoryStore, target: &Target<'_>, now: Timestamp) -> Option<Taken> {
        let (taken, stripe) = (memory.take_one(target, now)?, stripe_index());
        target.count(stripe, taken.allowed);
        self.total.count_at(stripe, taken.allowed);
        Some(taken)
    }

    /// Takes from the located budgets.
    #[inline(never)]
    fn take(
        &self,
        memory: &MemoryStore,
        targets: &[Target<'_>],
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let mut left = States::builder();
        let Some(verdicts) = memory.take(targets, request.inline_limit(), now, &mut left) else {
            return self.check_slow(memory, request, now);
        };
        let (stripe, allowed) = (stripe_index(), verdicts.denied == 0);
        for (index, target) in targets.iter().enumerate() {
            target.count(stripe, verdicts.denied >> index & 1 == 0);
        }
        self.total.count_at(stripe, allowed);
        let decision = Decision::of_states(verdicts.now, request.units(), allowed, left.finish());
        self.notify(request, &decision);
        Ok(decision)
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
        let applied = memory.apply_now(Op::Take, &plan.charges(cost), now);
        let decision = self.decided(applied, Op::Take, &plan, cost, now)?;
        self.count(&decision, &prepared);
        self.notify(request, &decision);
        Ok(decision)
    }

    fn check_batches<R: AsRequest>(
        &self,
        memory: &MemoryStore,
        requests: &[R],
        mut each: impl FnMut(Result<Decision, Error>),
    ) {
        for batch in requests.chunks(BATCH) {
            match self.rules.plain() {
                Some(PlainRules { first, others }) if others.is_empty() => {
                    self.check_batch_under(first, memory, batch, &mut each);
                }
                _ => self.check_batch(memory, batch, &mut each),
            }
        }
    }

    /// Checks a batch under the only rule.
    fn check_batch_under<R: AsRequest>(
        &self,
        rule: &PlainRule,
        memory: &MemoryStore,
        batch: &[R],
        each: &mut impl FnMut(Result<Decision, Error>),
    ) {
        let mut targets = [None; BATCH];
        for (request, target) in batch.iter().zip(&mut targets) {
            *target = request.with_request(|request| rule.locate(memory, &request));
        }
        let now = self.clock.now();
        for (request, target) in batch.iter().zip(&targets) {
            let target = target.as_slice();
            match target.first().and_then(|target| self.take_one(memory, target, now)) {
                Some(taken) if self.observer.is_none() => each(Ok(taken.decision())),
                Some(taken) => each(Ok(self.observed(request, taken))),
                None => each(request.with_request(|request| self.take(memory, target, &request, now))),
            }
        }
    }

    /// Checks a batch under any rules.
    fn check_batch<R: AsRequest>(
        &self,
        memory: &MemoryStore,
        batch: &[R],
        each: &mut impl FnMut(Result<Decision, Error>),
    ) {
        let loaded = OnceCell::new();
        let mut targets: SmallVec<[Target<'_>; BATCH]> = SmallVec::new();
        let mut ends: SmallVec<[usize; BATCH]> = SmallVec::new();
        for request in batch {
            request.with_request(|request| self.locate(memory, &loaded, &request, &mut targets));
            ends.push(targets.len());
        }
        let (now, mut start) = (self.clock.now(), 0);
        for (request, end) in batch.iter().zip(ends) {
            let of_request = targets.get(start..end).unwrap_or_default();
            start = end;
            each(request.with_request(|request| self.take(memory, of_request, &request, now)));
        }
    }
}

impl PlainRule {
    /// The budget of a request under this rule; `None` if the request needs the general path.
    #[inline(always)]
    fn locate<'a>(&'a self, memory: &MemoryStore, request: &Request<'_>) -> Option<Target<'a>> {
        if !request.is_unscoped() {
            return None;
        }
        let subject = match request.only_client() {
            _ if !self.by_client => Subject::Values(&[]),
            client => Subject::Client(client.filter(is_valid)?),
        };
        memory.target(&self.lookup, subject, None, request.valid_cost()?)
    }
}

/// Locates the budgets that a request draws on. `None` if the request needs the general path: too
/// many rules cover it for one decision, one of them is a shadow rule, a state does not pack, or
/// the request is invalid.
fn locate<'a>(
    memory: &MemoryStore,
    prepared: &'a Prepared,
    request: &Request<'_>,
    mut found: impl FnMut(Target<'a>),
) -> Option<()> {
    let (cost, inline) = (request.valid_cost()?, request.inline_limit());
    if request.is_own() {
        return None;
    }
    let (mut words, mut rules) = (0_usize, 0_usize);
    let mut locate = |covered| {
        let (rule, budget) = prepared.get(covered, inline)?;
        if rule.is_shadow() || rule.is_inline() != inline.is_some() {
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

#[inline]
fn is_valid(client: &Client<'_>) -> bool {
    match client {
        Client::Named(name) => checked_value(CLIENT, name).is_ok(),
        Client::Numbered(_) => true,
    }
}

/// The decision on several requests as one: all admitted, or nothing taken.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "an unread decision limits nothing"]
pub struct Together {
    whole: Decision,
    each: Vec<Decision>,
}

impl Together {
    /// The decision on all requests, with the reports of every limit. A budget that several
    /// requests draw on is reported once.
    pub const fn whole(&self) -> &Decision {
        &self.whole
    }

    /// The decision each request would have got alone, in order. An allowed one was still not
    /// admitted if the whole was denied.
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// The decision each request would have got alone, by value.
    pub fn into_each(self) -> Vec<Decision> {
        self.each
    }
}

impl<S: Store> Limiter<S> {
    /// Decides several requests as one: all costs are taken if every rule that covers any of them
    /// admits, and nothing otherwise. Each request has its own attributes and cost. A budget that
    /// several requests draw on is charged once, with the largest cost. Of two inline limits for
    /// the same budget, the smaller applies.
    ///
    /// ```
    /// use tollgate::{Limit, Limiter, Request, block_on};
    ///
    /// let limiter = Limiter::new(Limit::per_minute(2));
    /// let both = |cost| block_on(limiter.check_together(&[
    ///     Request::client("sender"),
    ///     Request::client("receiver").cost(cost),
    /// ]));
    /// let denied = both(3)?;
    /// assert!(!denied.whole().allowed());
    /// assert!(denied.each()[0].allowed(), "it was the other");
    /// assert_eq!(both(1)?.each()[0].remaining(), 1, "nothing had been taken");
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`check_async`](Self::check_async), if any request cannot be counted.
    pub async fn check_together<R: AsRequest>(&self, requests: &[R]) -> Result<Together, Error> {
        let shared = &*self.shared;
        let (mut plan, mut parts) = (Plan::empty(), Vec::<Range<usize>>::with_capacity(requests.len()));
        {
            let prepared = shared.rules.load();
            for request in requests {
                let start = plan.planned().len();
                request.with_request(|request| {
                    shared.add(&mut plan, &prepared, &request, request.checked_cost()?)
                })?;
                parts.push(start..plan.planned().len());
            }
        }
        let now = shared.clock.now();
        let applied = shared.apply(Op::Take, &plan.charges(1), now).await;
        let decision = shared.decided(applied, Op::Take, &plan, 1, now)?;
        let (each, whole) = if plan.is_empty() {
            (vec![decision.clone(); requests.len()], decision)
        } else {
            split(&decision, &plan, &parts)
        };
        shared.count(&whole, &shared.rules.load());
        for request in requests {
            shared.notify(request, &whole);
        }
        Ok(Together { whole, each })
    }
}

/// The decision on each request of a plan, and on all of them.
fn split(decision: &Decision, plan: &Plan, parts: &[Range<usize>]) -> (Vec<Decision>, Decision) {
    let reports = decision.limits();
    let part = |part: &Range<usize>| reports.get(part.clone()).unwrap_or_default().iter().copied();
    let each = parts.iter().map(|range| decision.merged(part(range))).collect();
    let duplicate = plan.planned().iter().map(super::plan::PlannedCharge::is_duplicate);
    let distinct = reports.iter().zip(duplicate).filter(|(_, duplicate)| !duplicate);
    (each, decision.merged(distinct.map(|(report, _)| *report)))
}
