//! The queues: who stands where, who is first, and who is to be woken.
//!
//! A waiter stands in the queue of the budget that keeps it waiting, by its arrival, and is listed
//! in the queues of all other budgets that could deny it. It may ask the store if nobody who
//! arrived earlier stands in one of these queues.
//!
//! Nothing here wakes, sleeps or reads a clock: wakers are handed out, and called without the lock.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::task::Waker;

use smallvec::SmallVec;

use super::lines::{Digested, Line, Lines, QueueId};
use super::slab::{Slab, WaiterId};
use crate::Timestamp;

mod wakes;

use wakes::{Call, Offer, Timer};

pub(super) use wakes::OfferChange;

/// The earlier waiters that are counted to find out which budget keeps a waiter.
const COUNTED_MAX: usize = 256;

/// The order of arrival.
pub(super) type Ticket = u64;

/// Wakers that are called, or dropped, without the lock.
pub(super) type Wakers = SmallVec<[Waker; 4]>;

#[derive(Debug, Default)]
pub(super) struct State {
    waiters: Slab,
    queues: HashMap<QueueId, Queue, BuildHasherDefault<Digested>>,
    /// When waiters are to be woken.
    times: BTreeSet<(Timestamp, WaiterId)>,
    /// Queues whose waiters are to be woken.
    calls: VecDeque<Call>,
    /// Waiters that were woken in a crowd and have not been polled since.
    strands: usize,
    timer: Timer,
    offer: Offer,
    tickets: Ticket,
    /// How often the rules were replaced.
    pub(super) generation: u64,
}

/// A request that waits.
#[derive(Debug)]
pub(super) struct Waiter {
    ticket: Ticket,
    deadline: Timestamp,
    /// When it is to be polled: its deadline or, as the first in its queue, when the store said
    /// that there may be enough.
    due: Timestamp,
    /// `None` before its first sleep, and after it was woken.
    waker: Option<Waker>,
    /// The queue that it stands in; `None` while it is about to ask for the first time.
    stands_in: Option<QueueId>,
    /// The queues of all budgets that can deny it.
    listed_in: SmallVec<[QueueId; 2]>,
    /// The rules that it last looked at.
    generation: u64,
    /// Whether somebody has to be admitted before it.
    is_behind: bool,
    /// Whether it is to look at the rules and the queues again.
    is_called: bool,
    /// Whether it then calls the next in its queue.
    calls_next: bool,
    is_strand: bool,
}

/// The requests that one budget may keep waiting.
#[derive(Debug, Default)]
struct Queue {
    waiting: BTreeMap<Ticket, WaiterId>,
    /// Those that another budget keeps waiting.
    elsewhere: BTreeMap<Ticket, WaiterId>,
    /// When the first may be admitted, as the store said.
    retry_at: Timestamp,
    /// Until when the budget is blocked, as far as is known.
    blocked_until: Timestamp,
}

impl Queue {
    fn first(&self) -> Option<WaiterId> {
        self.waiting.first_key_value().map(|(_, id)| *id)
    }

    fn is_first(&self, ticket: Ticket) -> bool {
        self.waiting.first_key_value().is_some_and(|(first, _)| *first == ticket)
    }
}

/// Where a waiter stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// It may ask the store.
    First,
    /// Somebody has to be admitted before it.
    Behind,
    /// Its budget is blocked until after its deadline, until then.
    Blocked(Timestamp),
    /// The rules were replaced meanwhile.
    Outdated,
    /// It does not stand anywhere: too many wait.
    Refused,
}

/// What a waiter does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    Sleep {
        /// Set the timer to this time.
        timer: Option<Timestamp>,
        /// Whether it is this waiter that sleeps for all.
        is_timer: bool,
    },
    /// Look at the rules and the queues again.
    Look,
    /// Its time is up.
    GiveUp,
}

/// What is known about a queue when a waiter leaves it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ahead {
    pub(super) queue: Option<QueueId>,
    /// At most so many had to be admitted before.
    pub(super) waiters: u64,
    /// When the first of them may be admitted.
    pub(super) retry_at: Timestamp,
    pub(super) blocked_until: Timestamp,
}

impl State {
    pub(super) fn len(&self) -> usize {
        self.waiters.len()
    }

    /// Adds a waiter, which stands in no queue yet.
    pub(super) fn arrive(&mut self, deadline: Timestamp) -> WaiterId {
        self.tickets = self.tickets.wrapping_add(1);
        self.waiters.insert(Waiter {
            ticket: self.tickets,
            deadline,
            due: deadline,
            waker: None,
            stands_in: None,
            listed_in: SmallVec::new(),
            generation: self.generation,
            is_behind: false,
            is_called: false,
            calls_next: false,
            is_strand: false,
        })
    }

    /// Whether nobody waits for one of these budgets.
    pub(super) fn is_free(&self, lines: &Lines) -> bool {
        lines.queues().all(|id| self.queues.get(&id).is_none_or(|queue| queue.waiting.is_empty()))
    }

    /// Finds out whether a waiter may ask, and lets it stand where it belongs.
    pub(super) fn stand(
        &mut self,
        id: WaiterId,
        lines: &Lines,
        generation: u64,
        now: Timestamp,
        woken: &mut Wakers,
    ) -> Standing {
        if generation != self.generation {
            return Standing::Outdated;
        }
        let waits = self.waits_for_the_rules(id);
        let waiter = &mut self.waiters[id];
        waiter.is_called = false;
        if waits {
            return Standing::Behind;
        }
        let is_outdated = std::mem::replace(&mut waiter.generation, generation) != generation;
        let (ticket, deadline, stands_in) = (waiter.ticket, waiter.deadline, waiter.stands_in);
        let calls_next = std::mem::take(&mut waiter.calls_next);
        let is_earlier = |queue: &QueueId| {
            let first = self.queues.get(queue).and_then(|queue| queue.waiting.first_key_value());
            first.is_some_and(|(first, _)| *first < ticket)
        };
        let ahead = lines.queues().find(is_earlier);
        let target = match ahead {
            Some(ahead) => self.kept_by(ticket, lines, ahead),
            None => {
                let stays = stands_in.filter(|queue| lines.contains(*queue));
                let Some(target) = stays.or_else(|| lines.queues().next()) else { return Standing::First };
                target
            }
        };
        if calls_next {
            self.call_next(stands_in, ticket, woken);
        }
        self.place(id, target, lines, woken);
        self.waiters[id].is_behind = ahead.is_some();
        if is_outdated {
            lines.queues().for_each(|queue| self.call_behind(queue, id, woken));
        }
        if ahead.is_none() {
            return Standing::First;
        }
        self.set_due(id, deadline);
        let blocked = lines.queues().filter_map(|id| self.queues.get(&id).map(|queue| queue.blocked_until));
        match blocked.max() {
            Some(until) if until > deadline && until > now => Standing::Blocked(until),
            _ => Standing::Behind,
        }
    }

    /// Whether a waiter is behind one in another queue that has not looked at the rules in force.
    fn waits_for_the_rules(&self, id: WaiterId) -> bool {
        let waiter = &self.waiters[id];
        let is_outdated = |waiter: &Waiter| waiter.generation != self.generation;
        let queue = waiter.stands_in.filter(|_| waiter.is_behind && is_outdated(waiter));
        let Some(queue) = queue.and_then(|queue| self.queues.get(&queue)) else { return false };
        let mut before = queue.elsewhere.range(..waiter.ticket).rev().take(COUNTED_MAX);
        before.any(|(_, id)| is_outdated(&self.waiters[*id]))
    }

    /// Calls the first in a queue if it is behind one in another.
    fn call_behind(&mut self, queue: QueueId, other_than: WaiterId, woken: &mut Wakers) {
        let first = self.queues.get(&queue).and_then(Queue::first);
        if let Some(first) = first.filter(|first| *first != other_than && self.waiters[*first].is_behind) {
            self.call(first, woken);
        }
    }

    /// The queue for a waiter that is behind somebody in the queue `ahead`: that, or one of a
    /// budget closer to its client, if those there use up all that the budget can have. It need not
    /// follow each of them from queue to queue then.
    fn kept_by(&self, ticket: Ticket, lines: &Lines, ahead: QueueId) -> QueueId {
        let is_kept = |line: &&Line| {
            let Some(queue) = self.queues.get(&line.queue) else { return false };
            let before = queue.elsewhere.range(..ticket).rev().take(COUNTED_MAX);
            let before = before.filter(|(_, id)| self.waiters[**id].stands_in == Some(ahead)).count();
            u64::try_from(before).unwrap_or(u64::MAX) >= line.fits
        };
        let closer = lines.iter().take_while(|line| line.queue != ahead);
        closer.filter(is_kept).map(|line| line.queue).next().unwrap_or(ahead)
    }

    /// Notes that the store has denied a waiter until `at`, in the queue of the budget that denies
    /// it. Returns false if it is to ask again at once.
    pub(super) fn denied(
        &mut self,
        id: WaiterId,
        queue: QueueId,
        lines: &Lines,
        at: Timestamp,
        woken: &mut Wakers,
    ) -> bool {
        if self.waiters[id].is_called {
            return false;
        }
        self.place(id, queue, lines, woken);
        let (ticket, deadline) = (self.waiters[id].ticket, self.waiters[id].deadline);
        let Some(queue) = self.queues.get_mut(&queue) else { return false };
        let is_first = queue.is_first(ticket);
        if is_first {
            queue.retry_at = at;
        }
        self.set_due(id, if is_first { at.min(deadline) } else { deadline });
        true
    }

    /// What had to be admitted before a waiter.
    pub(super) fn ahead(&self, id: WaiterId) -> Ahead {
        let waiter = &self.waiters[id];
        let Some(queue_id) = waiter.stands_in else { return Ahead::default() };
        let Some(queue) = self.queues.get(&queue_id) else { return Ahead::default() };
        let first = queue.waiting.first_key_value().map_or(waiter.ticket, |(first, _)| *first);
        let others = u64::try_from(queue.waiting.len().saturating_sub(1)).unwrap_or(u64::MAX);
        Ahead {
            queue: Some(queue_id),
            waiters: waiter.ticket.saturating_sub(first).min(others),
            retry_at: queue.retry_at,
            blocked_until: queue.blocked_until,
        }
    }

    /// Removes a waiter, and wakes whoever is first after it.
    pub(super) fn leave(&mut self, id: WaiterId, now: Timestamp, woken: &mut Wakers) {
        self.end_strand(id);
        let waiter = &self.waiters[id];
        if waiter.calls_next {
            let (queue, ticket) = (waiter.stands_in, waiter.ticket);
            self.call_next(queue, ticket, woken);
        }
        self.unlist(id, woken);
        let Some(waiter) = self.waiters.remove(id) else { return };
        self.times.remove(&(waiter.due, id));
        woken.extend(waiter.waker);
        self.wake_due(now, woken);
        if matches!(self.timer, Timer::Offered(other) | Timer::Set(_, other) if other == id) {
            self.timer = Timer::Off;
        }
        self.offer_timer(woken);
        if self.waiters.len() == 0 {
            *self = Self { generation: self.generation, tickets: self.tickets, ..Self::default() };
        }
    }

    /// Lets a waiter stand in a queue, and lists it in those of all its budgets.
    fn place(&mut self, id: WaiterId, queue: QueueId, lines: &Lines, woken: &mut Wakers) {
        let waiter = &self.waiters[id];
        if waiter.stands_in == Some(queue) && lines.queues().eq(waiter.listed_in.iter().copied()) {
            return;
        }
        self.unlist(id, woken);
        let waiter = &mut self.waiters[id];
        waiter.stands_in = Some(queue);
        waiter.listed_in = lines.queues().collect();
        for listed in lines.queues() {
            let entry = self.queues.entry(listed).or_default();
            let list = if listed == queue { &mut entry.waiting } else { &mut entry.elsewhere };
            list.insert(waiter.ticket, id);
        }
    }

    /// Takes a waiter out of all queues, and calls whoever may be first now.
    fn unlist(&mut self, id: WaiterId, woken: &mut Wakers) {
        let ticket = self.waiters[id].ticket;
        for listed in std::mem::take(&mut self.waiters[id].listed_in) {
            let Some(queue) = self.queues.get_mut(&listed) else { continue };
            let was_first = queue.is_first(ticket);
            if queue.waiting.remove(&ticket).is_none() {
                queue.elsewhere.remove(&ticket);
            }
            if queue.waiting.is_empty() && queue.elsewhere.is_empty() {
                self.queues.remove(&listed);
                continue;
            }
            // The first may be behind one that stood elsewhere.
            let first = queue.first().filter(|first| was_first || self.waiters[*first].is_behind);
            if let Some(first) = first {
                self.call(first, woken);
            }
        }
        self.waiters[id].stands_in = None;
    }

    fn set_due(&mut self, id: WaiterId, due: Timestamp) {
        let waiter = &mut self.waiters[id];
        if waiter.due != due {
            self.times.remove(&(waiter.due, id));
            waiter.due = due;
        }
    }
}
