//! The way of a check through a limiter whose store answers at once: find the rules that cover it,
//! aim at the states of their budgets, read the clock, and take.

use std::ops::Range;

use smallvec::SmallVec;

use super::plan::Plan;
use super::prepared::{Plain, Prepared};
use super::{Limiter, Shared};
use crate::decision::{TAGS_MAX, WORDS_MAX};
use crate::key::checked_value;
use crate::memory::{Subject, Taken, Target};
use crate::request::{CLIENT, Client};
use crate::rule::Covered;
use crate::stats::stripe_index;
use crate::store::{Op, Store};
use crate::{AsRequest, Decision, Error, MemoryStore, Request, Rule, Timestamp};

/// How many requests of a batch are aimed at before the first is decided: enough to keep as many
/// cache misses under way as a processor can, few enough that nothing fetched is gone again.
const BATCH: usize = 64;

impl Limiter {
    /// Takes what the request costs if every rule that covers it admits it. Answers at once, with
    /// no async runtime.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted. A denial
    /// is not an error.
    #[inline]
    pub fn check(&self, request: impl AsRequest) -> Result<Decision, Error> {
        self.shared.check(&self.shared.store, &request)
    }

    /// Checks one request after the other, and hands each answer to `each`, in order: the same
    /// answers as from [`check`](Self::check), up to 64 as of one reading of the clock. The memory
    /// that a request needs is fetched while others are decided, so with millions of clients
    /// this is several times as fast.
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
    /// What [`check_async`](Self::check_async) would answer, if the store is one that answers at
    /// once: `None` if it has to be waited for.
    ///
    /// # Errors
    /// As [`check_async`](Self::check_async).
    #[inline]
    pub fn check_now(&self, request: impl AsRequest) -> Option<Result<Decision, Error>> {
        let memory = self.shared.store.as_memory()?;
        Some(self.shared.check(memory, &request))
    }

    /// As [`check_many`](Limiter::check_many), if the store is one that answers at once: else says
    /// `false`, and nothing was asked.
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
        let Some(plain) = self.rules.plain() else {
            return request.with_request(|request| self.check_covered(memory, &request));
        };
        let Some(target) = request.with_request(|request| aim_plain(memory, plain, &request)) else {
            return request.with_request(|request| self.check_covered(memory, &request));
        };
        // The state is on its way: time to read the clock.
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
        self.tell(request, &decision);
        decision
    }

    /// A request under several rules, or one that is out of the ordinary.
    #[inline(never)]
    fn check_covered(&self, memory: &MemoryStore, request: &Request<'_>) -> Result<Decision, Error> {
        let prepared = self.rules.load();
        let mut targets: SmallVec<[Target<'_>; TAGS_MAX]> = SmallVec::new();
        if aim(memory, &prepared, request, |target| targets.push(target)).is_none() {
            targets.clear();
        }
        let decision = self.take(memory, &targets, request, self.clock.now());
        drop(targets);
        prepared.put_back();
        decision
    }

    /// Takes from the one budget that was aimed at, on the shortest way.
    #[inline(always)]
    fn take_one(&self, memory: &MemoryStore, target: &Target<'_>, now: Timestamp) -> Option<Taken> {
        let (taken, stripe) = (memory.take_one(target, now)?, stripe_index());
        target.count(stripe, taken.allowed);
        self.total.count_at(stripe, taken.allowed);
        Some(taken)
    }

    /// Takes from the budgets that were aimed at.
    #[inline(never)]
    fn take(
        &self,
        memory: &MemoryStore,
        targets: &[Target<'_>],
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let (inline, mut denied) = (request.inline_limit(), 0);
        let known = match targets {
            [one] => memory.take_known(one, inline, now, &mut denied),
            _ => None,
        };
        let taken = known.or_else(|| memory.take_all(targets, inline, request.units(), now, &mut denied));
        let Some(decision) = taken else { return self.check_at_length(memory, request, now) };
        let stripe = stripe_index();
        for (index, target) in targets.iter().enumerate() {
            target.count(stripe, denied >> index & 1 == 0);
        }
        self.total.count_at(stripe, denied == 0);
        if let Some(observer) = &self.observer {
            observer.decided(request, &decision);
        }
        Ok(decision)
    }

    /// Whatever is out of the ordinary.
    #[cold]
    fn check_at_length(
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
        prepared.put_back();
        if let Some(observer) = &self.observer {
            observer.decided(request, &decision);
        }
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
                Some(plain) => self.check_plain_batch(memory, plain, batch, &mut each),
                None => self.check_batch(memory, batch, &mut each),
            }
        }
    }

    /// Some requests under the one rule that there is.
    fn check_plain_batch<R: AsRequest>(
        &self,
        memory: &MemoryStore,
        plain: &Plain,
        batch: &[R],
        each: &mut impl FnMut(Result<Decision, Error>),
    ) {
        let mut targets = [None; BATCH];
        for (request, target) in batch.iter().zip(&mut targets) {
            *target = request.with_request(|request| aim_plain(memory, plain, &request));
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

    /// Some requests, under whatever rules.
    fn check_batch<R: AsRequest>(
        &self,
        memory: &MemoryStore,
        batch: &[R],
        each: &mut impl FnMut(Result<Decision, Error>),
    ) {
        let prepared = self.rules.load();
        let mut targets: SmallVec<[Target<'_>; BATCH]> = SmallVec::new();
        let mut ends: SmallVec<[usize; BATCH]> = SmallVec::new();
        for request in batch {
            let before = targets.len();
            let found = |target| targets.push(target);
            if request.with_request(|request| aim(memory, &prepared, &request, found)).is_none() {
                targets.truncate(before);
            }
            ends.push(targets.len());
        }
        let (now, mut start) = (self.clock.now(), 0);
        for (request, end) in batch.iter().zip(ends) {
            let its = targets.get(start..end).unwrap_or_default();
            start = end;
            each(request.with_request(|request| self.take(memory, its, &request, now)));
        }
        drop(targets);
        prepared.put_back();
    }
}

/// The budget of a request under the one rule that there is; none if it is out of the ordinary.
#[inline(always)]
fn aim_plain<'a>(memory: &MemoryStore, plain: &'a Plain, request: &Request<'_>) -> Option<Target<'a>> {
    if !request.is_unscoped() {
        return None;
    }
    let subject = match request.only_client() {
        _ if !plain.by_client => Subject::Values(&[]),
        client => Subject::Client(client.filter(is_valid)?),
    };
    memory.target(&plain.aim, subject, None, request.valid_cost()?)
}

/// The budgets that a request draws on; none if it is out of the ordinary: covered by more rules
/// than a decision has room for, by one that only watches, with a state that does not pack, or with
/// a mistake in it.
fn aim<'a>(
    memory: &MemoryStore,
    prepared: &'a Prepared,
    request: &Request<'_>,
    mut found: impl FnMut(Target<'a>),
) -> Option<()> {
    let (cost, inline) = (request.valid_cost()?, request.inline_limit());
    let mut covered: SmallVec<[Covered; 4]> = SmallVec::new();
    prepared.rules.cover(request, &mut covered);
    let (mut words, mut rules) = (0_usize, 0_usize);
    for covered in covered {
        let (rule, budget) = prepared.get(covered, inline)?;
        rules = rules.saturating_add(1);
        if rule.is_shadow() || rules > TAGS_MAX || rule.is_inline() != inline.is_some() || request.is_own() {
            return None;
        }
        let aim = budget.aim.as_ref()?;
        let target = with_subject(rule, request, |subject| memory.target(aim, subject, inline, cost))?;
        words = words.saturating_add(target.words());
        if words > WORDS_MAX {
            return None;
        }
        found(target);
    }
    Some(())
}

/// Hands `f` the values that a rule counts by, if they are valid.
fn with_subject<R>(
    rule: &Rule,
    request: &Request<'_>,
    f: impl FnOnce(Subject<'_>) -> Option<R>,
) -> Option<R> {
    if let Some(client) = request.only_client().filter(|_| rule.is_by_client()) {
        return f(Subject::Client(Some(client).filter(is_valid)?));
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

/// What became of several requests that were decided as one: all admitted, or nothing taken.
#[derive(Clone, Debug, PartialEq)]
#[must_use = "a decision that nobody looks at limits nothing"]
pub struct Together {
    whole: Decision,
    each: Vec<Decision>,
}

impl Together {
    /// The one decision, with what every limit said to any of the requests. A budget that several
    /// draw on is in it once.
    pub const fn whole(&self) -> &Decision {
        &self.whole
    }

    /// What each request would have got by itself, in order. One that is allowed here was still
    /// not admitted if the whole was denied.
    pub fn each(&self) -> &[Decision] {
        &self.each
    }

    /// The same, to keep.
    pub fn into_each(self) -> Vec<Decision> {
        self.each
    }
}

impl<S: Store> Limiter<S> {
    /// Decides several requests as one: what all of them cost is taken if every rule that covers
    /// any of them admits it, and nothing otherwise. Each has its own attributes and cost; where
    /// several draw on the same budget it is charged once, with the largest cost. Of two limits that
    /// came with requests for the same budget, the smaller holds.
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
    /// As [`check_async`](Self::check_async), if any of them cannot be counted.
    pub async fn check_together<R: AsRequest>(&self, requests: &[R]) -> Result<Together, Error> {
        let shared = &*self.shared;
        let (mut plan, mut parts) = (Plan::empty(), Vec::<Range<usize>>::with_capacity(requests.len()));
        {
            let prepared = shared.rules.load();
            for request in requests {
                let start = plan.lines().len();
                request.with_request(|request| {
                    shared.add(&mut plan, &prepared, &request, request.checked_cost()?)
                })?;
                parts.push(start..plan.lines().len());
            }
        }
        let now = shared.clock.now();
        let applied = shared.apply(Op::Take, &plan.charges(1), now).await;
        let decision = shared.decided(applied, Op::Take, &plan, 1, now)?;
        let reports = decision.limits();
        let part = |part: &Range<usize>| reports.get(part.clone()).unwrap_or_default().iter().copied();
        let each = parts.iter().map(|range| decision.merged(part(range))).collect();
        let repeated = plan.lines().iter().map(super::plan::Line::is_repeated);
        let once = reports.iter().zip(repeated).filter(|(_, repeated)| !repeated);
        let whole = decision.merged(once.map(|(report, _)| *report));
        shared.count(&whole, &shared.rules.load());
        for request in requests {
            shared.tell(request, &whole);
        }
        Ok(Together { whole, each })
    }
}
