//! One request that waits: it looks at the rules and the queues, asks, sleeps, and gives up.

use std::hash::{BuildHasher, RandomState};
use std::task::{Context, Poll};
use std::time::Duration;

use super::lines::{Lines, exceeds_a_limit};
use super::state::{Ahead, Standing, Turn};
use super::waiters::Place;
use super::{Ask, Asked, Asking, Waited};
use crate::limiter::Limiter;
use crate::limiter::plan::Plan;
use crate::store::{Cause, Op, Store};
use crate::{AsRequest, Decision, Error, Timestamp, Verdict};

/// The least retry time of a request that gave up.
const RETRY_MIN: Duration = Duration::from_millis(1);

/// The shortest wait before a store that other processes use is asked for a slot again, and the
/// spread, in milliseconds.
const SLOT_PACE: Duration = Duration::from_millis(50);
const SLOT_PACE_SPREAD: u64 = 200;

/// A request that waits. It holds no plan: one is made each time the request asks.
pub(in crate::limiter) struct Waiting<'a, S: Store, R, A: Ask<S>> {
    limiter: &'a Limiter<S>,
    pub(in crate::limiter) request: R,
    ask: A,
    timeout: Duration,
    place: Place<'a>,
    /// Whether it is to look at the rules and the queues.
    looks: bool,
    asking: Option<Asking<A::Granted>>,
    /// Whether it only asks if it can ever fit.
    peeks: bool,
    asked_at: Timestamp,
}

/// How a wait ended, if it has.
type End<T> = Option<Result<Waited<T>, Error>>;

impl<'a, S: Store, R: AsRequest, A: Ask<S>> Waiting<'a, S, R, A> {
    /// Begins to wait: the timeout counts from now.
    pub(in crate::limiter) fn new(limiter: &'a Limiter<S>, request: R, ask: A, timeout: Duration) -> Self {
        let deadline = limiter.shared.clock.now().saturating_add(timeout);
        Self {
            limiter,
            request,
            ask,
            timeout,
            place: Place::new(&limiter.shared.waiters, deadline),
            looks: true,
            asking: None,
            peeks: false,
            asked_at: Timestamp::EPOCH,
        }
    }

    pub(in crate::limiter) fn poll(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Waited<A::Granted>, Error>> {
        loop {
            let now = self.limiter.shared.clock.now();
            if self.asking.is_some() {
                let Some(answer) = self.answer(now, context) else { return Poll::Pending };
                if let Some(end) = answer {
                    return Poll::Ready(end);
                }
                continue;
            }
            if !self.looks {
                match self.place.turn(now, false, context) {
                    Turn::Sleep { .. } => return Poll::Pending,
                    Turn::GiveUp => return Poll::Ready(self.give_up(None, now)),
                    Turn::Look => {}
                }
            }
            self.looks = false;
            if let Some(end) = self.look(now) {
                return Poll::Ready(end);
            }
        }
    }

    /// Polls the question under way. `None` if the store has not answered yet.
    fn answer(&mut self, now: Timestamp, context: &mut Context<'_>) -> Option<End<A::Granted>> {
        let is_late = now > self.place.deadline() && !self.asks_once();
        let asking = self.asking.as_mut().filter(|_| !is_late);
        match asking.map(|asking| asking.as_mut().poll(context)) {
            Some(Poll::Ready(answer)) => {
                self.asking = None;
                Some(self.answered(answer, None, now))
            }
            Some(Poll::Pending)
                if self.asks_once() || self.place.turn(now, true, context) != Turn::GiveUp =>
            {
                None
            }
            // What the store grants later is given back.
            _ => {
                self.asking = None;
                Some(Some(self.give_up(None, now)))
            }
        }
    }

    /// With no time to wait, the one answer of the store is awaited.
    const fn asks_once(&self) -> bool {
        self.timeout.is_zero()
    }

    /// Looks at the rules in force and the queues, and asks if it is its turn.
    fn look(&mut self, now: Timestamp) -> End<A::Granted> {
        let generation = self.limiter.shared.waiters.generation();
        let planned = self.limiter.plan(&self.request);
        let planned = planned.and_then(|(plan, cost)| self.ask.accepts(&plan).map(|()| (plan, cost)));
        let (plan, cost) = match planned {
            Ok(planned) => planned,
            Err(error) => return Some(Err(error)),
        };
        let lines = Lines::new(&plan, cost);
        if lines.is_empty() {
            return self.ask(plan, cost, &lines, now);
        }
        match self.place.stand(&lines, generation, now) {
            Standing::First => self.ask(plan, cost, &lines, now),
            Standing::Behind if exceeds_a_limit(&plan, cost) => self.ask_whether_it_fits(plan, cost, now),
            Standing::Behind => None,
            Standing::Blocked(until) => Some(self.give_up(Some(until), now)),
            Standing::Refused => Some(self.give_up(None, now)),
            Standing::Outdated => {
                self.looks = true;
                None
            }
        }
    }

    fn ask(&mut self, plan: Plan, cost: u64, lines: &Lines, now: Timestamp) -> End<A::Granted> {
        self.asked_at = now;
        self.peeks = false;
        let caller = self.request.with_request(|request| request.sender());
        match self.ask.ask(self.limiter, plan, cost, caller, now) {
            Asked::Answered(answer) => self.answered(answer, Some(lines), now),
            Asked::Pending(asking) => {
                self.asking = Some(asking);
                None
            }
        }
    }

    /// Asks whether a request that is not its turn can ever fit.
    fn ask_whether_it_fits(&mut self, plan: Plan, cost: u64, now: Timestamp) -> End<A::Granted> {
        self.peeks = true;
        if let Some(memory) = self.limiter.shared.store.decides_in() {
            let peeked = self.limiter.apply_in(memory, Op::Peek, &plan, cost, now);
            return self.answered(peeked.map(Waited::Denied), None, now);
        }
        let limiter = self.limiter.clone();
        self.asking = Some(Box::pin(async move {
            let decided = limiter.shared.decide(Op::Peek, &plan, cost, limiter.shared.clock.now());
            Ok(Waited::Denied(decided.await?))
        }));
        None
    }

    /// Ends the wait by the store's answer, or goes on.
    fn answered(
        &mut self,
        answer: Result<Waited<A::Granted>, Error>,
        lines: Option<&Lines>,
        now: Timestamp,
    ) -> End<A::Granted> {
        let decision = match answer {
            Ok(Waited::Denied(decision)) => decision,
            ended => {
                self.place.leave(now);
                return Some(ended);
            }
        };
        if self.peeks {
            self.peeks = false;
            return (decision.verdict() == Verdict::Never).then_some(Ok(Waited::Denied(decision)));
        }
        let Verdict::Denied { retry_after } = decision.verdict() else {
            return Some(Ok(Waited::Denied(decision)));
        };
        match lines {
            Some(lines) => self.denied(decision, retry_after, lines),
            // The plan went with the question.
            None => match self.limiter.plan(&self.request) {
                Ok((plan, cost)) => self.denied(decision, retry_after, &Lines::new(&plan, cost)),
                Err(error) => Some(Err(error)),
            },
        }
    }

    fn denied(&mut self, decision: Decision, retry_after: Duration, lines: &Lines) -> End<A::Granted> {
        let deadline = self.place.deadline();
        // On this limiter's clock: the store may have another.
        let mut at = self.asked_at.saturating_add(retry_after.max(Duration::from_nanos(1)));
        let queue = lines.denied_by(&decision).filter(|_| self.place.is_taken());
        let (Some(queue), false) = (queue, decision.degraded() || self.asked_at >= deadline) else {
            return Some(Ok(Waited::Denied(decision)));
        };
        let is_blocked = matches!(decision.cause(), Cause::Block { .. });
        self.place.blocked(queue, if is_blocked { at } else { Timestamp::EPOCH });
        // A slot may be released before the first expires.
        let is_slot = !is_blocked && decision.deciding().is_some_and(|report| report.limit.is_concurrent());
        if at > deadline && !is_slot {
            return Some(Ok(Waited::Denied(decision)));
        }
        // By another process, without a word here.
        if is_slot && self.limiter.shared.store.decides_in().is_none() {
            at = at.min(self.asked_at.saturating_add(pace()));
        }
        self.looks = !self.place.denied(queue, lines, at);
        None
    }

    /// Ends the wait without the store having admitted the request: it was not its turn in time, or
    /// its budget is blocked for longer than it waits.
    fn give_up(
        &mut self,
        blocked_until: Option<Timestamp>,
        now: Timestamp,
    ) -> Result<Waited<A::Granted>, Error> {
        let ahead = self.place.leave(now);
        let (plan, cost) = self.limiter.plan(&self.request)?;
        let lines = Lines::new(&plan, cost);
        let blocked_until = blocked_until.or(Some(ahead.blocked_until)).filter(|until| *until > now);
        let retry_after = retry_after(&ahead, &lines, blocked_until, now);
        if let Some(memory) = self.limiter.shared.store.decides_in() {
            let peeked = self.limiter.apply_in(memory, Op::Peek, &plan, cost, now)?;
            return Ok(Waited::Denied(peeked.overtaken(retry_after)));
        }
        // Many may give up at a time, and a store that answers later is not asked by any of them.
        let line = ahead.queue.and_then(|queue| lines.get(queue)).or_else(|| lines.iter().next());
        let cause = blocked_until.map_or(Cause::Limit, |until| Cause::Block { until });
        let denied_by = line.map(|line| (line.rule, line.budget));
        Ok(Waited::Denied(plan.overtaken(denied_by, retry_after, cause, now)))
    }
}

/// When a request that gave up might have been admitted: after those ahead of it.
fn retry_after(ahead: &Ahead, lines: &Lines, blocked_until: Option<Timestamp>, now: Timestamp) -> Duration {
    let line = ahead.queue.and_then(|queue| lines.get(queue));
    let each = line.map_or(Duration::ZERO, |line| {
        let fits = u32::try_from(line.fits).unwrap_or(u32::MAX);
        line.period.checked_div(fits).unwrap_or(line.period)
    });
    let others = each.saturating_mul(u32::try_from(ahead.waiters).unwrap_or(u32::MAX));
    let first = ahead.retry_at.max(blocked_until.unwrap_or_default());
    first.since(now).saturating_add(others).max(RETRY_MIN)
}

/// How long to wait before a store is asked for a slot again: not the same for all processes.
fn pace() -> Duration {
    let spread = RandomState::new().hash_one(0).checked_rem(SLOT_PACE_SPREAD).unwrap_or(0);
    SLOT_PACE.saturating_add(Duration::from_millis(spread))
}
