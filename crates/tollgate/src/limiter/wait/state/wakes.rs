//! Who is woken, and when: the first in a queue, those whose time has come, and those that have to
//! look at changed rules or at a block.

use std::collections::BTreeMap;
use std::task::Waker;
use std::time::Duration;

use super::{Queue, QueueId, State, Ticket, Turn, Wakers};

use crate::Timestamp;
use crate::limiter::wait::slab::WaiterId;

/// How many waiters that are due, or are to look at changed rules, are woken at a time. Whoever is
/// polled wakes the next, so that a crowd is not in the way of a runtime's other tasks.
const STRANDS: usize = 64;

/// How long the timer leaves those that were woken alone, before it wakes as many again.
const STRAND_TIMEOUT: Duration = Duration::from_millis(5);

/// Waiters that are to be woken, a few at a time.
#[derive(Debug)]
pub(super) enum Call {
    /// The first in each of these queues, after a change of the rules. It calls the next.
    Rules(Vec<QueueId>),
    /// Everyone in this queue after a ticket: it is blocked.
    Blocked(QueueId, Ticket),
}

/// The sleep that wakes whoever is due next. One of the waiters sleeps for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Timer {
    #[default]
    Off,
    /// This waiter was woken to set the timer.
    Offered(WaiterId),
    /// This waiter sleeps until then.
    Set(Timestamp, WaiterId),
}

/// The last offer of the timer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Offer {
    #[default]
    None,
    /// It was made after the last look.
    New,
    /// A sleep ends if it is not taken.
    Watched,
}

/// What became of an offer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::limiter::wait) enum OfferChange {
    Made,
    /// The timer is set, or nobody waits.
    Taken,
}

impl State {
    /// Notes until when a budget is blocked, and calls everyone that it keeps waiting.
    pub(in crate::limiter::wait) fn blocked(&mut self, queue: QueueId, until: Timestamp) {
        let Some(known) = self.queues.get_mut(&queue) else { return };
        if known.blocked_until < until {
            self.calls.push_back(Call::Blocked(queue, 0));
        }
        known.blocked_until = until;
    }

    /// Calls the first in a queue: there may be more, or less, for it.
    pub(in crate::limiter::wait) fn call_first(&mut self, queue: QueueId, woken: &mut Wakers) {
        if let Some(first) = self.queues.get(&queue).and_then(Queue::first) {
            self.call(first, woken);
        }
    }

    /// Calls everyone, the first in each queue to begin with: the rules were replaced.
    pub(in crate::limiter::wait) fn rules_changed(&mut self, generation: u64) {
        self.generation = generation;
        if !self.queues.is_empty() {
            self.calls.push_back(Call::Rules(self.queues.keys().copied().collect()));
        }
    }

    pub(super) fn call(&mut self, id: WaiterId, woken: &mut Wakers) {
        let waiter = &mut self.waiters[id];
        waiter.is_called = true;
        woken.extend(waiter.waker.take());
    }

    /// Calls the next in a queue after `ticket` that has not looked at the rules in force.
    pub(super) fn call_next(&mut self, queue: Option<QueueId>, ticket: Ticket, woken: &mut Wakers) {
        let Some(queue) = queue.and_then(|queue| self.queues.get(&queue)) else { return };
        let mut later = queue.waiting.range(ticket.saturating_add(1)..);
        let next = later.find(|(_, id)| self.waiters[**id].generation != self.generation);
        if let Some(id) = next.map(|(_, id)| *id) {
            self.waiters[id].calls_next = true;
            self.call(id, woken);
        }
    }

    /// What a waiter that was polled does next. If it sleeps, `waker` wakes it, and the one that it
    /// replaces is returned.
    pub(in crate::limiter::wait) fn turn(
        &mut self,
        id: WaiterId,
        now: Timestamp,
        is_asking: bool,
        waker: &mut Option<Waker>,
        woken: &mut Wakers,
    ) -> Turn {
        self.end_strand(id);
        let waiter = &self.waiters[id];
        let queue = waiter.stands_in.and_then(|queue| self.queues.get(&queue));
        let is_first = !waiter.is_behind && queue.is_some_and(|queue| queue.is_first(waiter.ticket));
        let looks = !is_asking && (waiter.is_called || is_first && now >= waiter.due);
        let turn = match now >= waiter.deadline {
            true if now > waiter.deadline || !looks => Some(Turn::GiveUp),
            _ => looks.then_some(Turn::Look),
        };
        if let Some(turn) = turn {
            self.wake_due(now, woken);
            return turn;
        }
        if is_asking || now >= self.waiters[id].due {
            // The store wakes it, or whoever has come before it meanwhile.
            self.set_due(id, self.waiters[id].deadline);
        }
        let waiter = &mut self.waiters[id];
        std::mem::swap(&mut waiter.waker, waker);
        self.times.insert((waiter.due, id));
        self.wake_due(now, woken);
        let timer = self.timer_for(id, now);
        Turn::Sleep { timer, is_timer: matches!(self.timer, Timer::Set(_, sleeper) if sleeper == id) }
    }

    /// The time that a waiter that is about to sleep sets the timer to, if it is not set to one as
    /// early.
    fn timer_for(&mut self, id: WaiterId, now: Timestamp) -> Option<Timestamp> {
        let (next, _) = *self.times.first()?;
        // Those that are due were not woken, since enough others were.
        let until = if next > now { next } else { now.saturating_add(STRAND_TIMEOUT) };
        if matches!(self.timer, Timer::Set(at, _) if at <= until) {
            return None;
        }
        self.timer = Timer::Set(until, id);
        Some(until)
    }

    /// The timer has ended: wakes those that are due, and one that sets it again.
    pub(in crate::limiter::wait) fn timer_ended(&mut self, now: Timestamp, woken: &mut Wakers) {
        self.timer = Timer::Off;
        // Whoever was woken and is not polled holds up nobody.
        self.strands = 0;
        self.wake_due(now, woken);
        self.offer_timer(woken);
    }

    /// Wakes somebody to set the timer, unless somebody was, or it is set.
    pub(super) fn offer_timer(&mut self, woken: &mut Wakers) {
        if self.timer != Timer::Off {
            return;
        }
        // Whoever was woken before and is not polled may be busy.
        let asleep = self.times.iter().find(|(_, id)| self.waiters[*id].waker.is_some());
        if let Some((_, id)) = asleep.copied() {
            self.timer = Timer::Offered(id);
            self.offer = Offer::New;
            woken.extend(self.waiters[id].waker.take());
        }
    }

    /// What became of the offer of the timer since the last call.
    pub(in crate::limiter::wait) fn offer_change(&mut self) -> Option<OfferChange> {
        let is_open = matches!(self.timer, Timer::Offered(_));
        match (self.offer, is_open) {
            (Offer::New, true) => {
                self.offer = Offer::Watched;
                Some(OfferChange::Made)
            }
            (Offer::New, false) => {
                self.offer = Offer::None;
                None
            }
            (Offer::Watched, false) => {
                self.offer = Offer::None;
                Some(OfferChange::Taken)
            }
            (Offer::Watched, true) | (Offer::None, _) => None,
        }
    }

    /// Whoever was woken to set the timer may be busy: another is.
    pub(in crate::limiter::wait) fn offer_ended(&mut self, now: Timestamp, woken: &mut Wakers) {
        if matches!(self.timer, Timer::Offered(_)) {
            self.timer_ended(now, woken);
        }
    }

    /// Wakes those that are due or called, as many as may be under way at a time.
    pub(in crate::limiter::wait) fn wake_due(&mut self, now: Timestamp, woken: &mut Wakers) {
        while self.strands < STRANDS {
            let due = self.times.first().copied().filter(|(at, _)| *at <= now);
            let id = match due {
                Some((at, id)) => {
                    self.times.remove(&(at, id));
                    id
                }
                None => match self.next_call() {
                    Some(id) => id,
                    None => return,
                },
            };
            let waiter = &mut self.waiters[id];
            if let Some(waker) = waiter.waker.take() {
                woken.push(waker);
                if !std::mem::replace(&mut waiter.is_strand, true) {
                    self.strands = self.strands.saturating_add(1);
                }
            }
        }
    }

    /// The next waiter that is called after a change of the rules, or by a block.
    fn next_call(&mut self) -> Option<WaiterId> {
        loop {
            let id = match self.calls.front_mut()? {
                Call::Rules(queues) => queues
                    .pop()
                    .map(|queue| self.queues.get(&queue).and_then(Queue::first).map(|id| (id, true))),
                Call::Blocked(queue, after) => self.queues.get(queue).and_then(|queue| {
                    let later = |waiters: &BTreeMap<Ticket, WaiterId>| {
                        let (ticket, id) = waiters.range(after.saturating_add(1)..).next()?;
                        Some((*ticket, *id))
                    };
                    let next = later(&queue.waiting).into_iter().chain(later(&queue.elsewhere)).min();
                    next.map(|(ticket, id)| {
                        *after = ticket;
                        Some((id, false))
                    })
                }),
            };
            match id {
                None => drop(self.calls.pop_front()),
                Some(None) => {}
                Some(Some((id, calls_next))) => {
                    self.waiters[id].is_called = true;
                    self.waiters[id].calls_next |= calls_next;
                    return Some(id);
                }
            }
        }
    }

    pub(super) fn end_strand(&mut self, id: WaiterId) {
        if std::mem::take(&mut self.waiters[id].is_strand) {
            self.strands = self.strands.saturating_sub(1);
        }
    }
}
