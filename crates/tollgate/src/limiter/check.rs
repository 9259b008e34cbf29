//! Checks on a memory store, which answers synchronously: find the rules that cover the request,
//! locate the states of their budgets, read the clock, and take.

use std::cell::OnceCell;
use std::fmt;

use smallvec::SmallVec;

use super::Shared;
use super::prepared::{PlainRule, PlainRules, Prepared, RulesGuard};
use crate::algorithm::token_bucket::Word;
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
        if let Some(PlainRules { bucket: Some(bucket), first, .. }) = self.rules.plain()
            && let Some(target) = request.with_request(|request| first.locate_word(memory, &request))
        {
            // Read the clock while the state is being fetched.
            let now = self.clock.now();
            let step = |word: &mut _, now| target.step_bucket(bucket, word, now);
            return match self.take_one(memory, &target, now, step) {
                Some(taken) if self.observer.is_none() => Ok(decision(&target, &taken)),
                Some(taken) => Ok(self.observed(request, &target, taken)),
                None => request.with_request(|request| self.take(memory, &[target], &request, now)),
            };
        }
        request.with_request(|request| self.check_located(memory, &request))
    }

    /// Checks a request under rules that are not one token bucket.
    #[inline(never)]
    fn check_located(&self, memory: &MemoryStore, request: &Request<'_>) -> Result<Decision, Error> {
        let located = match self.rules.plain() {
            Some(PlainRules { first, others, .. }) if others.is_empty() => first.locate(memory, request),
            _ => None,
        };
        let Some(target) = located else { return self.check_several(memory, request) };
        let now = self.clock.now();
        match target.width() {
            1 => self.check_one::<1>(memory, &target, request, now),
            2 => self.check_one::<2>(memory, &target, request, now),
            3 => self.check_one::<3>(memory, &target, request, now),
            4 => self.check_one::<4>(memory, &target, request, now),
            _ => self.take(memory, &[target], request, now),
        }
    }

    /// Checks a request on its only budget, whose state has `W` words.
    #[inline(always)]
    fn check_one<const W: usize>(
        &self,
        memory: &MemoryStore,
        target: &Target<'_>,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        match self.take_one::<W>(memory, target, now, |words, now| target.step(words, now)) {
            Some(taken) if self.observer.is_none() => Ok(decision(target, &taken)),
            Some(taken) => Ok(self.observed(request, target, taken)),
            None => self.take(memory, &[*target], request, now),
        }
    }

    /// Checks a request under several rules, or one that a plain rule cannot locate.
    fn check_several(&self, memory: &MemoryStore, request: &Request<'_>) -> Result<Decision, Error> {
        let (loaded, mut targets) = (OnceCell::new(), Targets::new());
        self.locate(memory, &loaded, request, &mut targets);
        self.take(memory, &targets, request, self.clock.now())
    }

    /// Appends the budgets that a request draws on; none if the request needs the general path: too
    /// many rules cover it for one decision, one of them is a shadow rule, a state does not pack,
    /// or the request is invalid. Rules that are not plain are `loaded` first.
    #[inline]
    fn locate<'a, A: smallvec::Array<Item = Target<'a>>>(
        &'a self,
        memory: &'a MemoryStore,
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

    /// Takes from the only budget.
    #[inline(always)]
    fn take_one<const W: usize>(
        &self,
        memory: &MemoryStore,
        target: &Target<'_>,
        now: Timestamp,
        step: impl FnOnce(&mut [u64; W], u64) -> Option<bool>,
    ) -> Option<Taken<W>> {
        let (taken, stripe) = (memory.take_one(target, now, step)?, stripe_index());
        target.tally().count_at(stripe, taken.allowed);
        self.total.count_at(stripe, taken.allowed);
        Some(taken)
    }

    #[inline(never)]
    fn observed<const W: usize>(
        &self,
        request: &impl AsRequest,
        target: &Target<'_>,
        taken: Taken<W>,
    ) -> Decision {
        let decision = decision(target, &taken);
        self.notify(request, &decision);
        decision
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
            target.tally().count_at(stripe, verdicts.denied >> index & 1 == 0);
        }
        self.total.count_at(stripe, allowed);
        let decision = Decision::of_states(verdicts.now, request.units(), allowed, left.finish());
        if self.observer.is_some() {
            self.notify(request, &decision);
        }
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

    pub(super) fn check_many<R: AsRequest>(
        &self,
        memory: &MemoryStore,
        requests: &[R],
        mut each: impl FnMut(Result<Decision, Error>),
    ) {
        for batch in requests.chunks(BATCH) {
            match self.rules.plain() {
                Some(PlainRules { bucket: Some(bucket), first, .. }) => {
                    self.check_batch_of_words(bucket, first, memory, batch, &mut each);
                }
                _ => self.check_batch(memory, batch, &mut each),
            }
        }
    }

    /// Checks a batch under the only rule, with one token bucket.
    fn check_batch_of_words<R: AsRequest>(
        &self,
        bucket: &Word,
        rule: &PlainRule,
        memory: &MemoryStore,
        batch: &[R],
        each: &mut impl FnMut(Result<Decision, Error>),
    ) {
        let mut targets = [None; BATCH];
        for (request, target) in batch.iter().zip(&mut targets) {
            *target = request.with_request(|request| rule.locate_word(memory, &request));
        }
        let (now, mut decided) = (self.clock.now(), [0_u64; 2]);
        for (request, target) in batch.iter().zip(&targets) {
            let taken = target.as_ref().and_then(|target| {
                memory.take_one(target, now, |word, now| target.step_bucket(bucket, word, now))
            });
            let (Some(target), Some(taken)) = (target, taken) else {
                each(request.with_request(|request| self.take(memory, target.as_slice(), &request, now)));
                continue;
            };
            let counter = &mut decided[usize::from(taken.allowed)];
            *counter = counter.wrapping_add(1);
            match self.observer {
                None => each(Ok(decision(target, &taken))),
                Some(_) => each(Ok(self.observed(request, target, taken))),
            }
        }
        let stripe = stripe_index();
        rule.lookup.tally().count_many_at(stripe, decided);
        self.total.count_many_at(stripe, decided);
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
    /// The one-word state of a request's budget; `None` if the request needs another path.
    #[inline(always)]
    fn locate_word<'a>(&'a self, memory: &'a MemoryStore, request: &Request<'_>) -> Option<Target<'a>> {
        let (cost, true) = (request.valid_cost()?, request.is_unscoped()) else { return None };
        if !self.by_client {
            return Some(memory.target_global(&self.lookup, cost));
        }
        Some(memory.target_word(&self.lookup, request.only_client().filter(is_valid)?, cost))
    }

    /// The budget of a request under this rule; `None` if the request needs the general path.
    #[inline(always)]
    fn locate<'a>(&'a self, memory: &'a MemoryStore, request: &Request<'_>) -> Option<Target<'a>> {
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

/// The decision on a request with one budget.
#[inline(always)]
fn decision<const W: usize>(target: &Target<'_>, taken: &Taken<W>) -> Decision {
    Decision::of_budget(taken.now, target.cost(), taken.allowed, target.tag(), &taken.left)
}

/// Locates the budgets that a request draws on. `None` if the request needs the general path: too
/// many rules cover it for one decision, one of them is a shadow rule or has a cost of its own, a
/// state does not pack, or the request is invalid.
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
