//! What a store keeps of one key, and what a whole request does to its keys.
//!
//! A cell is a [`Meter`] with the two things that outlive a decision: a block, and reservations
//! that come back unless they are settled. [`transact`] applies a request to its cells, all or
//! nothing; every store of this crate calls it inside its atomic section, so composition is written
//! once.

use smallvec::SmallVec;

use crate::meter::Numbers;
use crate::store::{Answer, Charge, HoldId, Op};
use crate::{Limit, Meter, Timestamp, Verdict};

/// What is kept of one key.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    meter: Meter,
    blocked_until: Timestamp,
    /// In the order of their expiry.
    holds: Vec<Hold>,
}

/// The most reservations of one key at a time. Every request goes through them, so they are bounded
/// like everything else.
const HOLDS_MAX: usize = 4_096;

/// Units that come back at `expires_at` unless settled before, or stay drawn if they are held
/// firmly.
#[derive(Clone, Copy, Debug)]
struct Hold {
    id: HoldId,
    units: u64,
    expires_at: Timestamp,
    /// When they would have come back on their own: from then on there is nothing to give back.
    lapses_at: u64,
    firm: bool,
}

impl Cell {
    pub(crate) fn new(limit: Limit) -> Self {
        Self::plain(Meter::new(limit))
    }

    /// A cell with no block and no reservation.
    pub(crate) const fn plain(meter: Meter) -> Self {
        Self { meter, blocked_until: Timestamp::EPOCH, holds: Vec::new() }
    }

    /// Whether the meter is all there is to it.
    pub(crate) fn is_plain(&self, now: Timestamp) -> bool {
        self.holds.is_empty() && self.blocked_until <= now
    }

    /// The cell as numbers, all but its limit: its block, how many reservations, those, and its state.
    pub(crate) fn to_numbers(&self) -> Vec<u64> {
        let mut numbers = vec![self.blocked_until.as_nanos(), u64::try_from(self.holds.len()).unwrap_or(0)];
        for Hold { id: HoldId(id), units, expires_at, lapses_at, firm } in &self.holds {
            let [low, high] = halves(*id);
            numbers.extend([low, high, *units, expires_at.as_nanos(), *lapses_at, u64::from(*firm)]);
        }
        numbers.extend(self.meter.numbers());
        numbers
    }

    /// The cell that [`to_numbers`](Self::to_numbers) wrote under this limit.
    pub(crate) fn from_numbers(limit: Limit, numbers: &[u64]) -> Option<Self> {
        let ([blocked_until, holds], rest) = numbers.split_first_chunk()?;
        let length = usize::try_from(*holds).ok()?.checked_mul(HOLD_NUMBERS)?;
        let (holds, state) = rest.split_at_checked(length)?;
        let hold = |numbers: &[u64; HOLD_NUMBERS]| {
            let [low, high, units, expires_at, lapses_at, firm] = *numbers;
            let id = HoldId(u128::from(low) | (u128::from(high) << 64));
            Hold { id, units, expires_at: Timestamp::from_nanos(expires_at), lapses_at, firm: firm != 0 }
        };
        Some(Self {
            meter: Meter::from_numbers(limit, state)?,
            blocked_until: Timestamp::from_nanos(*blocked_until),
            holds: holds.as_chunks().0.iter().map(hold).collect(),
        })
    }

    pub(crate) fn limit(&self) -> Limit {
        self.meter.limit()
    }

    pub(crate) const fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Brings the cell to `now`: what has lapsed or expired is gone.
    pub(crate) fn roll(&mut self, now: Timestamp) {
        let expired = self.holds.partition_point(|hold| hold.expires_at <= now);
        for hold in self.holds.drain(..expired).filter(|hold| !hold.firm) {
            self.meter.give_held(hold.expires_at, hold.units, hold.lapses_at);
        }
        self.meter.roll(now);
    }

    /// Whether forgetting it changes no later outcome. Expects to be rolled to `now`.
    pub(crate) fn is_idle(&self, now: Timestamp) -> bool {
        self.blocked_until <= now
            && self.holds.is_empty()
            && self.meter.available(now) == self.meter.limit().capacity()
    }

    /// When it turns idle if nothing more arrives. Expects to be rolled to `now`.
    pub(crate) fn idle_at(&self, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(self.available_at(now, self.meter.limit().capacity()))
    }

    fn retune(&mut self, limit: &Limit, now: Timestamp) {
        if self.meter.limit() == *limit {
            return;
        }
        let used = |meter: &Meter| meter.limit().capacity().saturating_sub(meter.available(now));
        let before = used(&self.meter);
        self.meter.retune(*limit, now);
        // What the new limit has no room for is no longer in use, and cannot be given back.
        let mut gone = before.saturating_sub(used(&self.meter));
        for hold in &mut self.holds {
            let cut = gone.min(hold.units);
            hold.units = hold.units.saturating_sub(cut);
            hold.lapses_at = self.meter.available_at(now, limit.capacity());
            gone = gone.saturating_sub(cut);
        }
    }

    fn available(&self, now: Timestamp) -> u64 {
        if self.blocked_until > now { 0 } else { self.meter.available(now) }
    }

    /// Whether there is no room for one more reservation.
    fn is_full(&self) -> bool {
        self.holds.len() >= HOLDS_MAX
    }

    fn fits(&self, now: Timestamp, cost: u64) -> bool {
        self.blocked_until <= now && cost <= self.meter.available(now)
    }

    /// When `units` are available if nothing more arrives: reservations that expire before count.
    fn available_at(&self, now: Timestamp, units: u64) -> u64 {
        let unheld = if self.holds.is_empty() {
            self.meter.available_at(now, units)
        } else {
            self.unheld_at(now, units)
        };
        unheld.max(self.blocked_until.as_nanos())
    }

    fn unheld_at(&self, now: Timestamp, units: u64) -> u64 {
        let (mut meter, mut now) = (self.meter.clone(), now);
        for hold in self.holds.iter().filter(|hold| !hold.firm) {
            let at = meter.available_at(now, units);
            if at <= hold.expires_at.as_nanos() {
                return at;
            }
            now = now.max(hold.expires_at);
            meter.give_held(now, hold.units, hold.lapses_at);
        }
        meter.available_at(now, units)
    }

    /// Takes `units` and holds them.
    fn hold(&mut self, id: HoldId, units: u64, now: Timestamp, expires_at: Timestamp, firm: bool) {
        self.meter.take(now, units);
        let lapses_at = self.meter.available_at(now, self.meter.limit().capacity());
        let place = self.holds.partition_point(|hold| hold.expires_at <= expires_at);
        self.holds.insert(place, Hold { id, units, expires_at, lapses_at, firm });
    }

    /// Ends a reservation at its actual cost. Says how many units that lacked, or `None` if it is
    /// not held.
    fn settle(&mut self, id: HoldId, now: Timestamp, cost: u64) -> Option<u64> {
        let place = self.holds.iter().position(|hold| hold.id == id)?;
        let hold = self.holds.remove(place);
        match cost.checked_sub(hold.units) {
            Some(more) => Some(more.saturating_sub(self.meter.penalise(now, more))),
            None => {
                self.meter.give_held(now, hold.units.saturating_sub(cost), hold.lapses_at);
                Some(0)
            }
        }
    }

    fn answer(&self, now: Timestamp, cost: u64, allowed: bool) -> Answer {
        let numbers = (self.available(now), self.meter.limit().capacity());
        let outcome = Numbers::new(now, cost, allowed, numbers, |units| self.available_at(now, units)).into();
        Answer { outcome, units: 0, held: false }
    }
}

/// How many numbers a reservation is.
const HOLD_NUMBERS: usize = 6;

/// The lower and the upper half.
#[expect(clippy::cast_possible_truncation, clippy::as_conversions, reason = "halves are what is wanted")]
const fn halves(wide: u128) -> [u64; 2] {
    [wide as u64, (wide >> 64) as u64]
}

/// Applies `op` to the cells of a request, one charge each, no key twice, and answers each charge.
pub(crate) fn transact(
    op: Op,
    charges: &[Charge<'_>],
    cells: &mut [Cell],
    now: Timestamp,
) -> SmallVec<[Answer; 4]> {
    let both = || charges.iter().zip(0..);
    let mut untuned: SmallVec<[(usize, Cell); 0]> = SmallVec::new();
    for ((charge, cell), index) in charges.iter().zip(cells.iter_mut()).zip(0..) {
        cell.roll(now);
        let asks = op == Op::Peek || op == Op::Take && charge.cost == 0;
        if asks && cell.meter.limit() != *charge.limit() {
            untuned.push((index, cell.clone()));
        }
        // An idle cell may have been forgotten by now: nobody can tell, so it has the limit of whoever comes.
        if op.is_request() || cell.is_idle(now) {
            cell.retune(charge.limit(), now);
        }
    }
    match op {
        Op::Take | Op::Reserve { .. } | Op::Peek => {
            let full: SmallVec<[bool; 4]> =
                cells.iter().map(|cell| matches!(op, Op::Reserve { .. }) && cell.is_full()).collect();
            let fits = charges.iter().zip(cells.iter()).zip(&full);
            let fits: SmallVec<[bool; 4]> =
                fits.map(|((charge, cell), full)| !full && cell.fits(now, charge.cost)).collect();
            let fit = |index: usize| fits.get(index).copied().unwrap_or(false);
            let admitted = both().all(|(charge, index)| charge.shadow || fit(index));
            for (charge, cell) in charges.iter().zip(cells.iter_mut()) {
                let rule = charge.key.rule();
                let watched = |(other, at): (&Charge<'_>, usize)| other.key.rule() != rule || fit(at);
                let takes = admitted && (!charge.shadow || both().all(watched));
                match op {
                    Op::Peek => {}
                    _ if !takes => cell.meter.refuse(now, charge.cost),
                    Op::Reserve { hold, expires_at, firm } => {
                        cell.hold(hold, charge.cost, now, expires_at, firm);
                    }
                    _ => cell.meter.take(now, charge.cost),
                }
            }
            // After a denial each limit answers as a peek would next: counting the attempt may have used up
            // its room.
            let allowed = |index, cell: &Cell, cost| if admitted { fit(index) } else { cell.fits(now, cost) };
            let answer = |((charge, cell), index): ((&Charge<'_>, &Cell), usize)| {
                let mut answer = cell.answer(now, charge.cost, allowed(index, cell, charge.cost));
                if let (true, Some(first)) = (full[index] && answer.outcome.allowed(), cell.holds.first()) {
                    answer.outcome.verdict = Verdict::Denied { retry_after: first.expires_at.since(now) };
                }
                answer
            };
            let answers = charges.iter().zip(cells.iter()).zip(0..).map(answer).collect();
            // Who only asks changes nothing, not even under which limit the state is kept.
            for (index, cell) in untuned {
                cells[index] = cell;
            }
            answers
        }
        _ => charges.iter().zip(cells.iter_mut()).map(|(charge, cell)| act(op, charge, cell, now)).collect(),
    }
}

/// The verbs that treat each cell by itself.
fn act(op: Op, charge: &Charge<'_>, cell: &mut Cell, now: Timestamp) -> Answer {
    let (mut units, mut held) = (0, false);
    match op {
        Op::Refund => {
            let before = cell.meter.available(now);
            cell.meter.give(now, charge.cost);
            units = cell.meter.available(now).saturating_sub(before);
        }
        Op::Penalise => units = cell.meter.penalise(now, charge.cost),
        Op::Reset => *cell = Cell::new(*charge.limit()),
        Op::Block { until } => cell.blocked_until = until,
        Op::Settle { hold } => match cell.settle(hold, now, charge.cost) {
            Some(lacking) => (units, held) = (lacking, true),
            None => held = false,
        },
        Op::Take | Op::Reserve { .. } | Op::Peek => {}
    }
    let allowed = cell.fits(now, charge.cost);
    Answer { units, held, ..cell.answer(now, charge.cost, allowed) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Key, MINUTE, RuleName};
    use std::time::Duration;

    const NOW: Timestamp = Timestamp::from_secs(1_000);
    const HOLD: HoldId = HoldId(7);

    fn one(cell: &mut Cell, op: Op, limit: &Limit, cost: u64, now: Timestamp) -> Answer {
        let key = Key::new(RuleName::intern("r"), 0, b"");
        let charge = Charge { key, limits: (*limit).into(), cost, shadow: false };
        transact(op, &[charge], std::slice::from_mut(cell), now)[0]
    }

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(1_000 + secs)
    }

    #[test]
    fn c5_a_reservation_that_expires_gives_everything_back_on_its_own() {
        let limit = Limit::sliding_log(10, MINUTE);
        let mut cell = Cell::new(limit);
        let reserve = Op::Reserve { hold: HOLD, expires_at: at(5), firm: false };
        assert_eq!(one(&mut cell, reserve, &limit, 8, NOW).outcome.remaining, 2);
        assert_eq!(one(&mut cell, Op::Peek, &limit, 1, at(4)).outcome.remaining, 2);
        assert_eq!(one(&mut cell, Op::Peek, &limit, 1, at(5)).outcome.remaining, 10);
        assert!(!one(&mut cell, Op::Settle { hold: HOLD }, &limit, 8, at(6)).held);
        assert!(cell.is_idle(at(6)));
    }

    #[test]
    fn e5_the_reservations_of_a_key_are_bounded() {
        let limit = Limit::per(1_000_000, MINUTE);
        let mut cell = Cell::new(limit);
        let reserve = |cell: &mut Cell, id: usize| {
            let hold = HoldId(id.try_into().unwrap());
            one(cell, Op::Reserve { hold, expires_at: at(30), firm: false }, &limit, 1, NOW).outcome
        };
        assert!((0..HOLDS_MAX).all(|id| reserve(&mut cell, id).allowed()));
        let refused = reserve(&mut cell, HOLDS_MAX);
        assert_eq!(refused.verdict, Verdict::Denied { retry_after: Duration::from_secs(30) });
        assert_eq!(cell.holds.len(), HOLDS_MAX);
        assert!(one(&mut cell, Op::Take, &limit, 1, NOW).outcome.allowed(), "others go on");
        assert!(one(&mut cell, Op::Settle { hold: HoldId(7) }, &limit, 1, NOW).held);
        assert!(reserve(&mut cell, HOLDS_MAX).allowed());
        cell.roll(at(30));
        assert!(cell.holds.is_empty());
    }

    #[test]
    fn b11_what_is_done_to_a_client_leaves_its_limit_as_it_is() {
        let (base, gold) = (Limit::fixed_window(10, MINUTE), Limit::fixed_window(1_000, MINUTE));
        let mut cell = Cell::new(gold);
        one(&mut cell, Op::Take, &gold, 600, NOW);
        // Whoever administers may not know of the client's plan.
        assert_eq!(one(&mut cell, Op::Penalise, &base, 50, NOW).units, 50);
        one(&mut cell, Op::Block { until: NOW }, &base, 0, NOW);
        assert_eq!(one(&mut cell, Op::Peek, &gold, 1, NOW).outcome.remaining, 350);
    }

    #[test]
    fn b4_the_wait_ends_when_a_reservation_expires_if_that_is_sooner() {
        let limit = Limit::fixed_window(10, MINUTE);
        let mut cell = Cell::new(limit);
        one(&mut cell, Op::Reserve { hold: HOLD, expires_at: at(5), firm: false }, &limit, 8, NOW);
        let wait = |cell: &mut Cell, cost| one(cell, Op::Peek, &limit, cost, NOW).outcome.verdict;
        assert_eq!(wait(&mut cell, 3), Verdict::Denied { retry_after: Duration::from_secs(5) });
        one(&mut cell, Op::Take, &limit, 2, NOW);
        assert_eq!(wait(&mut cell, 9), Verdict::Denied { retry_after: MINUTE }, "two stay in use");
    }

    #[test]
    fn c5_settling_gives_back_what_was_not_needed_or_takes_what_was_lacking() {
        let limit = Limit::fixed_window(10, MINUTE);
        for (actual, remaining, lacking) in [(3, 7, 0), (5, 5, 0), (8, 2, 0), (12, 0, 2)] {
            let mut cell = Cell::new(limit);
            one(&mut cell, Op::Reserve { hold: HOLD, expires_at: at(30), firm: false }, &limit, 5, NOW);
            let answer = one(&mut cell, Op::Settle { hold: HOLD }, &limit, actual, at(1));
            assert_eq!((answer.held, answer.units, answer.outcome.remaining), (true, lacking, remaining));
        }
    }

    #[test]
    fn c5_a_block_denies_everything_until_it_ends_and_keeps_the_key() {
        let limit = Limit::fixed_window(10, MINUTE);
        let mut cell = Cell::new(limit);
        one(&mut cell, Op::Block { until: at(90) }, &limit, 0, NOW);
        let blocked = one(&mut cell, Op::Take, &limit, 1, NOW).outcome;
        assert_eq!(blocked.verdict, Verdict::Denied { retry_after: Duration::from_secs(90) });
        assert_eq!((blocked.remaining, blocked.reset_at), (0, at(90)));
        assert!(!cell.is_idle(at(89)) && cell.is_idle(at(90)));
        one(&mut cell, Op::Block { until: Timestamp::EPOCH }, &limit, 0, NOW);
        assert!(one(&mut cell, Op::Take, &limit, 1, NOW).outcome.allowed());
    }

    #[test]
    fn b11_settling_a_reservation_of_an_older_limit_does_not_bring_that_limit_back() {
        let (old, new) = (Limit::fixed_window(10, MINUTE), Limit::fixed_window(100, MINUTE));
        let mut cell = Cell::new(old);
        one(&mut cell, Op::Reserve { hold: HOLD, expires_at: at(30), firm: false }, &old, 10, NOW);
        assert_eq!(one(&mut cell, Op::Take, &new, 40, NOW).outcome.remaining, 50);
        assert_eq!(one(&mut cell, Op::Settle { hold: HOLD }, &old, 4, NOW).outcome.remaining, 56);
    }

    #[test]
    fn c5_what_is_held_firmly_stays_drawn_when_nobody_settles_it_in_time() {
        let limit = Limit::fixed_window(10, MINUTE);
        let mut cell = Cell::new(limit);
        one(&mut cell, Op::Reserve { hold: HOLD, expires_at: at(5), firm: true }, &limit, 8, NOW);
        let mut settled = cell.clone();
        one(&mut settled, Op::Settle { hold: HOLD }, &limit, 1, at(4));
        assert_eq!(
            one(&mut settled, Op::Peek, &limit, 1, at(4)).outcome.remaining,
            9,
            "in time as any other"
        );
        let denied = one(&mut cell, Op::Peek, &limit, 3, at(4));
        assert_eq!(denied.outcome.verdict, Verdict::Denied { retry_after: Duration::from_secs(56) });
        assert_eq!(one(&mut cell, Op::Peek, &limit, 1, at(5)).outcome.remaining, 2);
        assert!(!one(&mut cell, Op::Settle { hold: HOLD }, &limit, 0, at(5)).held);
        assert!(Cell::from_numbers(cell.limit(), &cell.to_numbers()).is_some());
    }

    #[test]
    fn c5_a_peek_under_another_limit_leaves_reservations_alone() {
        let (limit, small) = (Limit::fixed_window(100, MINUTE), Limit::fixed_window(10, MINUTE));
        let mut cell = Cell::new(limit);
        one(&mut cell, Op::Reserve { hold: HOLD, expires_at: at(30), firm: false }, &limit, 80, NOW);
        assert_eq!(one(&mut cell, Op::Peek, &small, 1, NOW).outcome.remaining, 0);
        one(&mut cell, Op::Settle { hold: HOLD }, &limit, 0, NOW);
        assert_eq!(one(&mut cell, Op::Peek, &limit, 1, NOW).outcome.remaining, 100);
    }
}
