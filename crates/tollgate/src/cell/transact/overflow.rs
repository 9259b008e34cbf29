//! Overflow: what the limits of a rule do not have of a cost is drawn on the budget of another
//! rule, in the same decision.
//!
//! The law, for a limit with `own` units available and an overflow with `lent` units available
//! (the least of its limits):
//!
//! * A request of `cost` is admitted if `cost <= own + lent`, for every limit of the rule. A cost
//!   of 0 is admitted if nothing is owed, or if the overflow has a unit left.
//! * The overflow covers the largest part that any of these limits lacks, and each of them is
//!   charged the cost without that part. So the rule covers the least that its limits have, and
//!   neither budget ever exceeds its own limits. Rules that share an overflow are covered together.
//! * A denied request draws on neither.
//! * The wait is exact: both refill, and the first time at which they cover the cost together is
//!   the least over all ways to split it (see [`Parts::ready_at`]). A cost above the sum of both
//!   capacities never fits.
//! * A block of the rule denies. A block of the overflow only lends nothing, and so does a debt.
//!
//! A cost that is known afterwards follows the same order, and what both lack is owed by the rule,
//! which pays it off at its own rate. A rule that owes covers nothing, so that requests draw on the
//! overflow alone. A settlement gives back the most recently drawn units first: those of the
//! overflow, then the rule's. A refund does not know what a request drew. As long as the rule has
//! units left, the last ones were drawn on it, and it is given back first; otherwise the overflow
//! is.

use std::time::Duration;

use smallvec::SmallVec;

use super::{CellView, act, seen};
use crate::cell::Cell;
use crate::store::{Answer, Charge, Effect, Op, Overflow, Part};
use crate::{Timestamp, Verdict};

/// The charges of a request and their cells.
pub(super) struct Parts<'a, 'c> {
    pub(super) charges: &'a [Charge<'a>],
    pub(super) views: &'a [CellView<'c>],
}

impl<'a, 'c> Parts<'a, 'c> {
    fn each(&self) -> impl Iterator<Item = (&'a Charge<'a>, &'a CellView<'c>)> {
        self.charges.iter().zip(self.views)
    }

    fn first(&self, number: u16) -> impl Iterator<Item = (&'a Charge<'a>, &'a CellView<'c>)> {
        self.each().filter(move |(charge, _)| charge.part == Part::First(number))
    }

    fn rest(&self, number: u16) -> impl Iterator<Item = (&'a Charge<'a>, &'a CellView<'c>)> {
        self.each().filter(move |(charge, _)| charge.part == Part::Rest(number))
    }

    /// Units that an overflow has left.
    fn lent(&self, number: u16) -> u64 {
        self.rest(number).map(|(_, view)| view.available()).min().unwrap_or(0)
    }

    /// Units that an overflow has to cover: the most that any limit lacks.
    fn lacking(&self, number: u16) -> u64 {
        let lacking =
            |(charge, view): (&Charge<'_>, &CellView<'_>)| charge.cost.saturating_sub(view.available());
        self.first(number).map(lacking).max().unwrap_or(0)
    }

    /// Units that a charge draws if the request is admitted.
    pub(super) fn portion(&self, charge: &Charge<'_>) -> u64 {
        match charge.part {
            Part::Whole => charge.cost,
            Part::First(number) => charge.cost.saturating_sub(self.lacking(number)),
            Part::Rest(number) => charge.cost.max(self.lacking(number)),
        }
    }

    /// Whether a limit admits `cost`, together with its overflow.
    pub(super) fn fits(&self, charge: &Charge<'_>, view: &CellView<'_>, cost: u64) -> bool {
        match charge.part {
            Part::Whole => view.fits(cost),
            Part::Rest(_) => cost == 0 || view.fits(cost),
            Part::First(number) => {
                let (available, lent) = (view.available(), self.lent(number));
                let owes_nothing = cost > 0 || lent > 0 || view.fits(0);
                owes_nothing && !view.is_blocked() && cost <= available.saturating_add(lent)
            }
        }
    }

    /// The answer of a limit to a request of `cost`, of which it covers `drawn` units.
    pub(super) fn answer(
        &self,
        charge: &Charge<'_>,
        view: &CellView<'_>,
        cost: u64,
        allowed: bool,
        drawn: u64,
    ) -> Answer {
        match charge.part {
            Part::Whole => view.answer(cost, allowed),
            Part::Rest(_) => {
                Answer { overflow: Overflow::Into { drawn }, ..view.answer(cost, allowed || cost == 0) }
            }
            Part::First(number) => {
                let lent = if view.is_blocked() { 0 } else { self.lent(number) };
                let mut answer =
                    Answer { overflow: Overflow::From { drawn, lent }, ..view.answer(cost, true) };
                if !allowed {
                    answer.outcome.verdict = match self.ready_at(view, number, cost) {
                        None => Verdict::Never,
                        Some(at) => {
                            let wait = at.saturating_sub(view.now.as_nanos()).max(1);
                            Verdict::Denied { retry_after: Duration::from_nanos(wait) }
                        }
                    };
                }
                answer
            }
        }
    }

    /// The first time at which a limit and its overflow cover `cost` if no more requests arrive.
    /// `None` if they never do.
    ///
    /// If the limit covers `units` of the cost, the request waits for the later of two times: one
    /// grows with `units`, the other shrinks. The least of these waits is where they cross.
    fn ready_at(&self, view: &CellView<'_>, number: u16, cost: u64) -> Option<u64> {
        let capacity = |view: &CellView<'_>| view.state().capacity();
        let lends = self.rest(number).map(|(_, view)| capacity(view)).min().unwrap_or(0);
        let has = capacity(view);
        if cost > has.saturating_add(lends) {
            return None;
        }
        let now = view.now.as_nanos();
        let own_at = |units: u64| if units == 0 { now } else { view.available_at(units) };
        let rest_at = |units: u64| match units {
            0 => now,
            _ => self.rest(number).map(|(_, view)| view.available_at(units)).max().unwrap_or(u64::MAX),
        };
        let at = if cost == 0 {
            // When nothing is owed any more, or the overflow has a unit.
            view.available_at(0).min(if lends > 0 { rest_at(1) } else { u64::MAX })
        } else {
            let least = cost.saturating_sub(lends);
            let (mut low, mut high) = (least, cost.min(has));
            while low < high {
                let middle = low.midpoint(high);
                if own_at(middle) >= rest_at(cost.saturating_sub(middle)) {
                    high = middle;
                } else {
                    low = middle.saturating_add(1);
                }
            }
            let at = |units: u64| own_at(units).max(rest_at(cost.saturating_sub(units)));
            at(low).min(if low > least { at(low.saturating_sub(1)) } else { u64::MAX })
        };
        Some(at.max(view.blocked_until().as_nanos()))
    }
}

/// Refund, record, settle and renew where an overflow takes part.
pub(super) fn act_on_parts(
    op: Op,
    charges: &[Charge<'_>],
    cells: &mut [&mut Cell],
    reading: Timestamp,
    now: Timestamp,
) -> (SmallVec<[Answer; 4]>, SmallVec<[bool; 4]>) {
    let mut views: SmallVec<[CellView<'_>; 4]> =
        charges.iter().zip(cells).map(|(charge, cell)| seen(op, charge, cell, now)).collect();
    let held: SmallVec<[bool; 4]> = views.iter().map(|view| held(op, view).is_some()).collect();
    views.iter_mut().for_each(|view| view.answer_at(reading));
    let parts = Parts { charges, views: &views };
    let portions: SmallVec<[u64; 4]> = charges.iter().map(|charge| parts.used_portion(op, charge)).collect();
    let is_held = |part: Part| {
        let mut both = charges.iter().zip(&held).filter(|(other, _)| number(other.part) == number(part));
        number(part).is_some() && both.any(|(_, held)| *held)
    };
    let each = charges.iter().zip(&mut views).zip(portions.iter().zip(&held));
    let (effects, changed): (SmallVec<[Effect; 4]>, SmallVec<[bool; 4]>) = each
        .map(|((charge, view), (portion, held))| {
            // The other part of the cost is reserved, and this one is not.
            let records = !held && is_held(charge.part);
            view.forget_answer();
            let (effect, is_kept) = act(if records { Op::Record } else { op }, *portion, view);
            let effect = match effect {
                Effect::Recorded { shortfall } if records => Effect::Settled { shortfall },
                effect => effect,
            };
            let changed = view.store(is_kept);
            view.answer_at(reading);
            (effect, changed)
        })
        .unzip();
    let parts = Parts { charges, views: &views };
    let answer = |(((charge, view), effect), portion): (((&Charge<'_>, &CellView<'_>), Effect), u64)| {
        // A record has no cost to admit any more: its answer says until when units are owed.
        let cost = if op == Op::Record { 0 } else { charge.cost };
        let drawn = match effect {
            Effect::Recorded { shortfall }
            | Effect::Settled { shortfall }
            | Effect::SettledLate { shortfall } => portion.saturating_sub(shortfall),
            _ => 0,
        };
        let answer = parts.answer(charge, view, cost, parts.fits(charge, view, cost), drawn);
        Answer { effect, ..answer }
    };
    (parts.each().zip(effects).zip(portions.iter().copied()).map(answer).collect(), changed)
}

impl Parts<'_, '_> {
    /// The part of a cost that a charge covers, of a cost that was used or is given back.
    pub(super) fn used_portion(&self, op: Op, charge: &Charge<'_>) -> u64 {
        match (charge.part, op) {
            (Part::First(number), Op::Refund) => charge.cost.saturating_sub(self.given_back_first(number)),
            (Part::Rest(number), Op::Refund) => self.given_back(number),
            (Part::First(number), Op::Record | Op::Settle { .. }) => {
                charge.cost.saturating_sub(self.spent(op, number))
            }
            (Part::Rest(number), Op::Record | Op::Settle { .. }) => self.spent(op, number),
            _ => charge.cost,
        }
    }

    /// Units that an overflow covers of a cost that was used. A reservation keeps its rule's units
    /// first. What it lacks is drawn on the rule, then on the overflow, and the rest is owed by the
    /// rule. Blocks deny nothing here.
    fn spent(&self, op: Op, number: u16) -> u64 {
        let reserved = |view: &CellView<'_>| held(op, view).unwrap_or(0);
        let lent_before = self.rest(number).map(|(_, view)| reserved(view)).max().unwrap_or(0);
        let lent = self.rest(number).map(|(_, view)| view.meter().available()).min().unwrap_or(0);
        let lacking = |(charge, view): (&Charge<'_>, &CellView<'_>)| {
            let beyond = charge.cost.saturating_sub(reserved(view));
            match beyond.checked_sub(lent_before) {
                None => beyond,
                Some(more) => lent_before.saturating_add(more.saturating_sub(view.meter().available())),
            }
        };
        let lacking = self.first(number).map(lacking).max().unwrap_or(0);
        lacking.min(lent_before.saturating_add(lent))
    }

    /// Whether a rule was drawn on last: it has units left.
    fn is_first_left(&self, number: u16) -> bool {
        self.first(number).all(|(_, view)| view.meter().available() > 0)
    }

    /// Units of a refund that go to an overflow.
    fn given_back(&self, number: u16) -> u64 {
        let is_first_left = self.is_first_left(number);
        let kept = |(charge, view): (&Charge<'_>, &CellView<'_>)| {
            charge.cost.saturating_sub(if is_first_left { view.used() } else { 0 })
        };
        self.first(number).map(kept).min().unwrap_or(0)
    }

    /// Units of a refund that go to an overflow before its rule is given any.
    fn given_back_first(&self, number: u16) -> u64 {
        if self.is_first_left(number) {
            return 0;
        }
        let used = self.rest(number).map(|(_, view)| view.used()).max().unwrap_or(0);
        used.min(self.given_back(number))
    }
}

const fn number(part: Part) -> Option<u16> {
    match part {
        Part::Whole => None,
        Part::First(number) | Part::Rest(number) => Some(number),
    }
}

/// The units that a reservation holds in a cell, if the operation settles one that is there.
fn held(op: Op, view: &CellView<'_>) -> Option<u64> {
    let Op::Settle { hold } = op else { return None };
    view.hold(hold).map(|hold| hold.units)
}
