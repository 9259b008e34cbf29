//! The way of a check through a limiter whose store answers at once: find the rules that cover it,
//! aim at the states of their budgets, read the clock, and take.

use std::ops::Range;

use smallvec::SmallVec;

use super::plan::Plan;
use super::prepared::Prepared;
use super::{Limiter, Shared};
use crate::decision::{TAGS_MAX, WORDS_MAX};
use crate::key::checked_value;
use crate::memory::{Subject, Target};
use crate::request::{CLIENT, Client};
use crate::rule::Covered;
use crate::stats::Tally;
use crate::store::{Op, Store};
use crate::{AsRequest, Decision, Error, MemoryStore, Request, Rule, Timestamp};

/// How many requests of a batch are aimed at before the first is decided: enough to keep as many
/// cache misses under way as a processor can, few enough that nothing fetched is gone again.
const BATCH: usize = 64;

/// A budget that a request draws on, and the counts of its rule.
type Aimed<'a> = (Target<'a>, &'a Tally);

impl Limiter {
    /// Takes what the request costs if every rule that covers it admits it. Answers at once, with
    /// no async runtime.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted. A denial
    /// is not an error.
    #[inline]
    pub fn check(&self, request: impl AsRequest) -> Result<Decision, Error> {
        request.with_request(|request| self.shared.check(&self.shared.store, &request))
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
        Some(request.with_request(|request| self.shared.check(memory, &request)))
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
    #[inline]
    fn check(&self, memory: &MemoryStore, request: &Request<'_>) -> Result<Decision, Error> {
        let prepared = self.rules.load();
        let decision = match self.aim_plain(memory, &prepared, request) {
            // The state is on its way: time to read the clock.
            Ok(Some(aimed)) => self.take(memory, &prepared, [aimed], request, self.clock.now()),
            Ok(None) => self.check_covered(memory, &prepared, request),
            Err(error) => Err(error),
        };
        prepared.put_back();
        decision
    }

    /// A request under the one rule that there is, which covers everyone alike.
    #[inline(always)]
    fn aim_plain<'a>(
        &self,
        memory: &MemoryStore,
        prepared: &'a Prepared,
        request: &Request<'_>,
    ) -> Result<Option<Aimed<'a>>, Error> {
        let Some((rule, counts, budget)) = prepared.plain(request) else { return Ok(None) };
        let subject = match request.only_client() {
            _ if rule.key_attributes().is_empty() => Subject::Values(&[]),
            Some(client) if rule.is_by_client() => Subject::Client(checked_client(client)?),
            _ => return Ok(None),
        };
        let Some(aim) = &budget.aim else { return Ok(None) };
        let target = memory.target(aim, subject, None, request.checked_cost()?);
        Ok(target.map(|target| (target, &*counts.tally)))
    }

    /// A request under several rules, or one that has to be looked for.
    #[inline(never)]
    fn check_covered(
        &self,
        memory: &MemoryStore,
        prepared: &Prepared,
        request: &Request<'_>,
    ) -> Result<Decision, Error> {
        let aimed: SmallVec<[Aimed<'_>; TAGS_MAX]> = self.aim(memory, prepared, request)?;
        self.decide_aimed(memory, prepared, &aimed, request, self.clock.now())
    }

    /// The budgets that a request draws on; none if it is out of the ordinary: covered by more rules
    /// than a decision has room for, by one that only watches, or with a state that does not pack.
    fn aim<'a, const N: usize>(
        &self,
        memory: &MemoryStore,
        prepared: &'a Prepared,
        request: &Request<'_>,
    ) -> Result<SmallVec<[Aimed<'a>; N]>, Error> {
        let (cost, inline) = (request.checked_cost()?, request.inline_limit());
        let mut aimed = SmallVec::new();
        if let Some(plain) = self.aim_plain(memory, prepared, request)? {
            aimed.push(plain);
            return Ok(aimed);
        }
        let mut covered: SmallVec<[Covered; 4]> = SmallVec::new();
        prepared.rules.cover(request, &mut covered);
        let mut words = 0_usize;
        for covered in covered {
            let Some((rule, counts, budget)) = prepared.get(covered, inline) else { continue };
            let usual = !rule.is_shadow() && aimed.len() < TAGS_MAX && rule.is_inline() == inline.is_some();
            let target = match &budget.aim {
                Some(aim) if usual => {
                    with_subject(rule, request, |subject| memory.target(aim, subject, inline, cost))?
                }
                _ => None,
            };
            let Some(target) = target else { return Ok(SmallVec::new()) };
            words = words.saturating_add(target.words());
            if words > WORDS_MAX || request.is_own() {
                return Ok(SmallVec::new());
            }
            aimed.push((target, &*counts.tally));
        }
        Ok(aimed)
    }

    fn decide_aimed(
        &self,
        memory: &MemoryStore,
        prepared: &Prepared,
        aimed: &[Aimed<'_>],
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        match aimed {
            [one] => self.take(memory, prepared, [*one], request, now),
            [one, two] => self.take(memory, prepared, [*one, *two], request, now),
            [one, two, three] => self.take(memory, prepared, [*one, *two, *three], request, now),
            [one, two, three, four] => self.take(memory, prepared, [*one, *two, *three, *four], request, now),
            _ => self.check_at_length(memory, prepared, request, now),
        }
    }

    /// Takes from budgets that were aimed at.
    #[inline(always)]
    fn take<const N: usize>(
        &self,
        memory: &MemoryStore,
        prepared: &Prepared,
        aimed: [Aimed<'_>; N],
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let mut denied = 0;
        let targets = aimed.map(|(target, _)| target);
        let Some(decision) = memory.take(&targets, request.inline_limit(), request.units(), now, &mut denied)
        else {
            return self.check_at_length(memory, prepared, request, now);
        };
        let stripe = self.total.count_one(denied == 0);
        for (index, (_, tally)) in aimed.iter().enumerate() {
            tally.count_at(stripe, denied >> index & 1 == 0);
        }
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
        prepared: &Prepared,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let (plan, cost) = self.plan(prepared, request)?;
        let applied = memory.apply_now(Op::Take, &plan.charges(cost), now);
        let decision = self.decided(applied, Op::Take, &plan, cost, now)?;
        self.count(&decision, prepared);
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
            let prepared = self.rules.load();
            let mut aims: SmallVec<[Result<SmallVec<[Aimed<'_>; 1]>, Error>; BATCH]> = SmallVec::new();
            for request in batch {
                let aimed = request.with_request(|request| self.aim(memory, &prepared, &request));
                aimed.iter().flatten().for_each(|(target, _)| memory.prefetch_lock(target));
                aims.push(aimed);
            }
            let now = self.clock.now();
            for (request, aimed) in batch.iter().zip(aims) {
                each(aimed.and_then(|aimed| {
                    request
                        .with_request(|request| self.decide_aimed(memory, &prepared, &aimed, &request, now))
                }));
            }
            prepared.put_back();
        }
    }
}

/// Hands `f` the values that a rule counts by.
fn with_subject<R>(rule: &Rule, request: &Request<'_>, f: impl FnOnce(Subject<'_>) -> R) -> Result<R, Error> {
    if let Some(client) = request.only_client().filter(|_| rule.is_by_client()) {
        return Ok(f(Subject::Client(checked_client(client)?)));
    }
    let mut values = SmallVec::new();
    rule.encode_key(request, &mut values)?;
    Ok(f(Subject::Values(&values)))
}

#[inline]
fn checked_client(client: Client<'_>) -> Result<Client<'_>, Error> {
    if let Client::Named(name) = client {
        checked_value(CLIENT, name)?;
    }
    Ok(client)
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
            prepared.put_back();
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
