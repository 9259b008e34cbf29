//! The queues: who stands where, who is first, and who is to be woken.
//!
//! A waiter stands in the queue of the budget that keeps it waiting, by its arrival, and is listed
//! in the queues of all other budgets that could deny it. It may ask the store if nobody who
//! arrived earlier stands in one of these queues.
//!
//! Nothing here wakes, sleeps or reads a clock: wakers are handed out, and called without the lock.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::task::Waker;
use std::time::Duration;

use smallvec::SmallVec;

use super::lines::{Line, Lines, QueueId};
use super::slab::{Slab, WaiterId};
use crate::Timestamp;

/// How many waiters that are due, or are to look at changed rules, are woken at a time. Whoever is
/// polled wakes the next, so that a crowd is not in the way of a runtime's other tasks.
const STRANDS: usize = 64;

/// How long the timer leaves those that were woken alone, before it wakes as many again.
const STRAND_TIMEOUT: Duration = Duration::from_millis(5);

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

/// Waiters that are to be woken, a few at a time.
#[derive(Debug)]
enum Call {
    /// The first in each of these queues, after a change of the rules. It calls the next.
    Rules(Vec<QueueId>),
    /// Everyone in this queue after a ticket: it is blocked.
    Blocked(QueueId, Ticket),
}

/// The sleep that wakes whoever is due next. One of the waiters sleeps for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Timer {
    #[default]
    Off,
    /// This waiter was woken to set the timer.
    Offered(WaiterId),
    /// This waiter sleeps until then.
    Set(Timestamp, WaiterId),
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
            generation: 0,
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

    /// Notes until when a budget is blocked, and calls everyone that it keeps waiting.
    pub(super) fn blocked(&mut self, queue: QueueId, until: Timestamp) {
        let Some(known) = self.queues.get_mut(&queue) else { return };
        if known.blocked_until < until {
            self.calls.push_back(Call::Blocked(queue, 0));
        }
        known.blocked_until = until;
    }

    /// Calls the first in a queue: there may be more, or less, for it.
    pub(super) fn call_first(&mut self, queue: QueueId, woken: &mut Wakers) {
        if let Some(first) = self.queues.get(&queue).and_then(Queue::first) {
            self.call(first, woken);
        }
    }

    /// Calls everyone, the first in each queue to begin with: the rules were replaced.
    pub(super) fn rules_changed(&mut self, generation: u64) {
        self.generation = generation;
        if !self.queues.is_empty() {
            self.calls.push_back(Call::Rules(self.queues.keys().copied().collect()));
        }
    }

    fn call(&mut self, id: WaiterId, woken: &mut Wakers) {
        let waiter = &mut self.waiters[id];
        waiter.is_called = true;
        woken.extend(waiter.waker.take());
    }

    /// Calls the next in a queue after `ticket` that has not looked at the rules in force.
    fn call_next(&mut self, queue: Option<QueueId>, ticket: Ticket, woken: &mut Wakers) {
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
    pub(super) fn turn(
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
        if is_asking {
            // The store wakes it.
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
    pub(super) fn timer_ended(&mut self, now: Timestamp, woken: &mut Wakers) {
        self.timer = Timer::Off;
        // Whoever was woken and is not polled holds up nobody.
        self.strands = 0;
        self.wake_due(now, woken);
        self.offer_timer(woken);
    }

    /// Wakes somebody to set the timer, unless somebody was, or it is set.
    fn offer_timer(&mut self, woken: &mut Wakers) {
        if self.timer != Timer::Off {
            return;
        }
        if let Some((_, id)) = self.times.first().copied() {
            self.timer = Timer::Offered(id);
            woken.extend(self.waiters[id].waker.take());
        }
    }

    /// Wakes those that are due or called, as many as may be under way at a time.
    pub(super) fn wake_due(&mut self, now: Timestamp, woken: &mut Wakers) {
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

    fn end_strand(&mut self, id: WaiterId) {
        if std::mem::take(&mut self.waiters[id].is_strand) {
            self.strands = self.strands.saturating_sub(1);
        }
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

/// The hasher of a map whose keys are digests.
#[derive(Debug, Default)]
pub(super) struct Digested(u64);

impl Hasher for Digested {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0.rotate_left(8) ^ u64::from(*byte));
    }

    fn write_u64(&mut self, digest: u64) {
        self.0 = digest;
    }
}
