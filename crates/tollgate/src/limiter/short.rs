//! Checks that answer at once, and the short way through them: a request that one rule covers goes
//! straight to its state.

use smallvec::SmallVec;

use super::active::Active;
use super::{Limiter, Shared, check_own_limits};
use crate::key::checked_value;
use crate::memory::{Aim, Subject};
use crate::meter::Numbers;
use crate::request::CLIENT;
use crate::store::{Op, Store};
use crate::{AsRequest, Decision, Error, Limits, MemoryStore, Outcome, Request, Rule, Timestamp};

/// How many requests of a batch are aimed at before the first is decided: enough to keep as many
/// cache misses under way as a processor can, few enough that nothing fetched is gone again.
const BATCH: usize = 64;

/// A request that one rule covers, and where its state is.
struct Aimed<'a> {
    /// The rule's place in the rule set.
    index: usize,
    rule: &'a Rule,
    limits: Limits,
    /// What to take.
    charge: u64,
    aim: Aim,
}

impl Limiter {
    /// Takes what the request costs if every rule that covers it admits it. Answers at once, with
    /// no async runtime.
    ///
    /// # Errors
    /// [`Error::InvalidKey`] or [`Error::InvalidCost`] if the request cannot be counted. A denial
    /// is not an error.
    #[inline]
    pub fn check(&self, request: impl AsRequest) -> Result<Decision, Error> {
        request.with_request(|request| self.check_request(&self.shared.store, &request))
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
        self.check_batches(&self.shared.store, requests, each);
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
        let store = self.shared.store.as_memory()?;
        Some(request.with_request(|request| self.check_request(store, &request)))
    }

    /// As [`check_many`](Limiter::check_many), if the store is one that answers at once: else says
    /// `false`, and nothing was asked.
    pub fn check_many_now<R: AsRequest>(
        &self,
        requests: &[R],
        each: impl FnMut(Result<Decision, Error>),
    ) -> bool {
        let Some(store) = self.shared.store.as_memory() else { return false };
        self.check_batches(store, requests, each);
        true
    }

    fn check_batches<R: AsRequest>(
        &self,
        store: &MemoryStore,
        requests: &[R],
        mut each: impl FnMut(Result<Decision, Error>),
    ) {
        for batch in requests.chunks(BATCH) {
            let active = self.shared.rules.load();
            let mut aims: SmallVec<[Option<Aimed<'_>>; BATCH]> = SmallVec::new();
            for request in batch {
                // What cannot be counted is told so in its turn.
                let aimed = request.with_request(|request| self.aim(store, &active, &request).ok().flatten());
                if let Some(aimed) = &aimed {
                    store.prefetch_lock(&aimed.aim);
                }
                aims.push(aimed);
            }
            let now = self.shared.clock.now();
            for (request, aimed) in batch.iter().zip(&aims) {
                match aimed {
                    Some(aimed) => self.decide_aimed(store, &active, aimed, request, now, &mut each),
                    None => each(self.check_at_length(store, request, now)),
                }
            }
        }
    }

    fn check_request(&self, store: &MemoryStore, request: &Request<'_>) -> Result<Decision, Error> {
        let active = self.shared.rules.load();
        let Some(aimed) = self.aim(store, &active, request)? else {
            drop(active);
            return self.check_at_length(store, request, self.shared.clock.now());
        };
        // The state is on its way: time to read the clock.
        let now = self.shared.clock.now();
        self.decide_aimed(store, &active, &aimed, request, now, |decision| decision)
    }

    /// Where the state of a request is, if one rule covers it and its state can be aimed at.
    #[inline(always)]
    fn aim<'a>(
        &self,
        store: &MemoryStore,
        active: &'a Active,
        request: &Request<'_>,
    ) -> Result<Option<Aimed<'a>>, Error> {
        let cost = request.checked_cost()?;
        check_own_limits(store, request)?;
        let Some((index, rule, limits)) = active.rules.only_one_covering(request) else { return Ok(None) };
        let aim = match rule.only_value(request) {
            Some(value) => store.aim(rule.name(), Subject::Value(checked_value(CLIENT, value)?), limits),
            None if rule.key_attributes().is_empty() => store.aim(rule.name(), Subject::Everyone, limits),
            None => aim_encoded(store, rule, request, limits)?,
        };
        let charge = cost.saturating_mul(rule.unit_cost());
        Ok(aim.map(|aim| Aimed { index, rule, limits, charge, aim }))
    }

    /// Decides a request, at length if it turns out that only that can, and hands on the decision.
    ///
    /// A decision is large: it is made where it is wanted and not moved about. That is what `done`
    /// is for.
    #[inline(always)]
    fn decide_aimed<R>(
        &self,
        store: &MemoryStore,
        active: &Active,
        aimed: &Aimed<'_>,
        request: &impl AsRequest,
        now: Timestamp,
        done: impl FnOnce(Result<Decision, Error>) -> R,
    ) -> R {
        let Shared { total, observer, .. } = &*self.shared;
        let Aimed { index, rule, limits, charge, aim } = aimed;
        let at_length = || self.check_at_length(store, request, now);
        let tally = active.tallies.get(*index);
        if let (None, [limit]) = (observer, limits.as_slice()) {
            let mut numbers = Numbers::default();
            let Some(now) = store.take(aim, *charge, now, &mut numbers) else { return done(at_length()) };
            total.count_with(tally, numbers.allowed());
            return done(Ok(Decision::of_limit(now, rule, limit, numbers.into())));
        }
        if let (Some(observer), [limit]) = (observer, limits.as_slice()) {
            let mut numbers = Numbers::default();
            let Some(now) = store.take(aim, *charge, now, &mut numbers) else { return done(at_length()) };
            total.count_with(tally, numbers.allowed());
            let decision = Decision::of_limit(now, rule, limit, numbers.into());
            request.with_request(|request| observer.decided(&request, &decision));
            return done(Ok(decision));
        }
        let mut outcomes = SmallVec::new();
        let Some(now) = store.take_several(aim, *charge, now, &mut outcomes) else {
            return done(at_length());
        };
        total.count_with(tally, outcomes.iter().all(Outcome::allowed));
        let decision = Decision::of_limits(now, rule, *limits, &outcomes);
        if let Some(observer) = observer {
            request.with_request(|request| observer.decided(&request, &decision));
        }
        done(Ok(decision))
    }

    /// The long way, which can do everything.
    #[cold]
    fn check_at_length(
        &self,
        store: &MemoryStore,
        request: &impl AsRequest,
        now: Timestamp,
    ) -> Result<Decision, Error> {
        let (plan, cost) = self.plan(request)?;
        let applied = store.apply_now(Op::Take, &plan.charges(cost), now);
        let decision = self.shared.decided(applied, Op::Take, &plan, cost, now)?;
        self.shared.observe(request, &decision, &plan);
        Ok(decision)
    }
}

#[inline(never)]
fn aim_encoded(
    store: &MemoryStore,
    rule: &Rule,
    request: &Request<'_>,
    limits: Limits,
) -> Result<Option<Aim>, Error> {
    let mut encoded = SmallVec::new();
    rule.encode_key(request, &mut encoded)?;
    Ok(store.aim(rule.name(), Subject::Encoded(&encoded), limits))
}
