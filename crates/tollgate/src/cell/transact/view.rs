//! A cell as a request sees it: with what is due by now done, and stored only if that is kept.

use std::borrow::Cow;

use crate::cell::{Block, Cell, EXPIRE_MAX, Expiry, Hold};
use crate::meter::{MeterView, RawOutcome, Skew};
use crate::store::{Answer, Cause, Effect, HoldId, Overflow};
use crate::{Limit, Meter, Timestamp};

/// A cell as seen by a request, under the limit in force.
pub(super) struct CellView<'a> {
    /// The cell as stored. It is changed only if the change is kept, or if many holds are due.
    stored: &'a mut Cell,
    /// The holds that expire, and the meter with their units.
    expiry: Option<Box<(Meter, Expiry)>>,
    /// The whole cell with what is due by now done, if that is more than an expiry.
    current: Option<Box<Cell>>,
    /// The block, restarted if the clock has gone back.
    block: Block,
    /// The cell re-based, to answer with: an operation that is no check writes no repair.
    answering: Option<Box<Cell>>,
    pub(super) now: Timestamp,
    /// Whether the state is far ahead of the clock and counts as exactly empty.
    pub(super) behind: bool,
    /// Whether a denial by this limit writes the cell: it was converted or re-based, or its block
    /// or its slots restarted.
    pub(super) repairs: bool,
    /// Whether a replaced limit wrote the state.
    pub(super) converted: bool,
    /// Whether a wild reading of the clock wrote the state.
    pub(super) rebased: bool,
    /// Whether the stored cell has changed: many holds were due.
    has_expired: bool,
}

impl<'a> CellView<'a> {
    /// `now` is the reading of the clock, `at` the time to decide at.
    pub(super) fn new(stored: &'a mut Cell, limit: &Limit, now: Timestamp, at: Timestamp) -> Self {
        let mut view = Self::expired(stored, at);
        view.convert(limit);
        if view.skew(now) == Skew::Wild {
            view.rebased = true;
            view.update().rebase(at);
        }
        let has_wild_slots = view.holder().has_wild_slots(at);
        if has_wild_slots {
            view.update().restart_slots(at);
        }
        let is_ahead = view.block.is_ahead(at);
        view.block = view.block.restarted(at);
        view.repairs = view.converted || is_ahead || has_wild_slots || view.rebased;
        view
    }

    /// A cell with the holds expired that are due.
    pub(super) fn expired(stored: &'a mut Cell, now: Timestamp) -> Self {
        let mut pending = None;
        let mut has_expired = false;
        if stored.is_due(now) {
            let mut meter = stored.meter.clone();
            let expiry = stored.holds.expire(&mut meter, now, EXPIRE_MAX);
            has_expired = expiry.is_large();
            if has_expired {
                stored.meter = meter;
                stored.holds.apply(expiry);
            } else {
                pending = Some(Box::new((meter, expiry)));
            }
        }
        let block = stored.block;
        let [behind, repairs, converted, rebased] = [false; 4];
        Self {
            stored,
            expiry: pending,
            current: None,
            block,
            answering: None,
            now,
            behind,
            repairs,
            converted,
            rebased,
            has_expired,
        }
    }

    /// Sees the cell under the limit in force.
    pub(super) fn convert(&mut self, limit: &Limit) {
        if !self.state().is_under(limit) {
            let now = self.now;
            self.converted = self.stored.is_replaced_by(limit, now);
            self.update().retune(limit, now);
        }
    }

    /// Sees the cell as an answer does: a hold that was renewed for no time has expired, and a
    /// state that is far ahead of the clock counts as exactly empty. None of it is stored.
    pub(super) fn answer_at(&mut self, reading: Timestamp) {
        let skew = self.skew(reading);
        let is_wild = skew == Skew::Wild;
        let is_due = self.pending().is_none() && self.holder().is_due(self.now);
        if is_due || is_wild || self.holder().has_wild_slots(self.now) || self.block.is_ahead(self.now) {
            let mut cell = self.whole();
            if is_due {
                let expiry = cell.holds.expire(&mut cell.meter, self.now, EXPIRE_MAX);
                cell.holds.apply(expiry);
            }
            cell.block = cell.block.restarted(self.now);
            if is_wild {
                cell.rebase(self.now);
            }
            if cell.has_wild_slots(self.now) {
                cell.restart_slots(self.now);
            }
            self.answering = Some(Box::new(cell));
        }
    }

    /// Sees the cell as it is again.
    pub(super) fn forget_answer(&mut self) {
        self.answering = None;
    }

    /// How far the state is ahead, which also says whether it is behind.
    fn skew(&mut self, reading: Timestamp) -> Skew {
        let is_current = self.state().written_at() <= self.now;
        let skew = if is_current { Skew::Current } else { self.state().skew(reading) };
        self.behind = skew == Skew::Behind;
        skew
    }

    /// The meter with what is due done.
    pub(super) fn state(&self) -> &Meter {
        match self.pending() {
            Some((meter, _)) => meter,
            None => &self.holder().meter,
        }
    }

    /// The expiry that the cell of [`holder`](Self::holder) lacks.
    fn pending(&self) -> Option<&(Meter, Expiry)> {
        let is_whole = self.answering.is_some() || self.current.is_some();
        self.expiry.as_deref().filter(|_| !is_whole)
    }

    /// The cell that has the holds. Some of them may have to expire.
    fn holder(&self) -> &Cell {
        self.answering.as_deref().or(self.current.as_deref()).unwrap_or(self.stored)
    }

    /// A copy of the whole cell with what is due done.
    fn whole(&self) -> Cell {
        let mut cell = self.holder().clone();
        if let Some((meter, expiry)) = self.pending().cloned() {
            cell.meter = meter;
            cell.holds.apply(expiry);
        }
        cell.block = self.block;
        cell
    }

    /// The cell, to do what is due. The stored one stays as it is.
    pub(super) fn update(&mut self) -> &mut Cell {
        let current = self.current.take();
        let current = current.unwrap_or_else(|| Box::new(self.whole()));
        self.current.insert(current)
    }

    /// Sees another cell instead, which is stored if that is kept.
    pub(super) fn replace(&mut self, cell: Cell) {
        self.block = cell.block;
        self.current = Some(Box::new(cell));
    }

    /// The stored cell with what is due done, to make a change that is kept.
    pub(super) fn change(&mut self) -> &mut Cell {
        self.answering = None;
        let expiry = self.expiry.take();
        if let Some(current) = self.current.take() {
            *self.stored = *current;
        } else if let Some(expiry) = expiry {
            let (meter, expiry) = *expiry;
            self.stored.meter = meter;
            self.stored.holds.apply(expiry);
        }
        self.stored.block = self.block;
        self.stored
    }

    /// Sets the block, which is kept.
    pub(super) fn set_block(&mut self, block: Block) {
        self.block = block;
        self.change();
    }

    /// Stores the cell with its changes if they are kept. Returns whether the cell has to be
    /// written.
    pub(super) fn store(&mut self, is_kept: bool) -> bool {
        if is_kept {
            let now = self.now;
            self.change().drop_ended(now);
            self.block = self.stored.block;
        }
        is_kept || self.has_expired
    }

    pub(super) fn limit(&self) -> Limit {
        self.state().limit()
    }

    pub(super) fn is_concurrent(&self) -> bool {
        self.state().is_concurrent()
    }

    /// Whether forgetting the cell changes no later outcome.
    pub(super) fn is_idle(&self) -> bool {
        self.stored.is_idle(self.now)
    }

    /// A reservation or a slot.
    pub(super) fn hold(&self, id: HoldId) -> Option<Hold> {
        match self.pending() {
            Some((_, expiry)) => self.stored.holds.get_after(id, expiry),
            None => self.holder().holds.get(id),
        }
    }

    pub(super) fn meter(&self) -> MeterView<'_> {
        MeterView { meter: Cow::Borrowed(self.state()), at: self.now, behind: self.behind }
    }

    pub(super) fn available(&self) -> u64 {
        if self.is_blocked() { 0 } else { self.meter().available() }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked_until() > self.now
    }

    pub(super) fn blocked_until(&self) -> Timestamp {
        self.answering.as_ref().map_or(self.block, |cell| cell.block).until
    }

    /// Units in use.
    pub(super) fn used(&self) -> u64 {
        self.state().used(self.state().not_before(self.now))
    }

    pub(super) fn fits(&self, cost: u64) -> bool {
        self.meter().fits(cost) && !self.is_blocked()
    }

    pub(super) fn available_at(&self, units: u64) -> u64 {
        let at = if self.behind {
            self.meter().available_at(units)
        } else {
            let given = self.pending().map_or(0, |(_, expiry)| expiry.given());
            self.holder().holds.available_at(self.state(), given, self.now, units)
        };
        at.max(self.blocked_until().as_nanos())
    }

    pub(super) fn answer(&self, cost: u64, allowed: bool) -> Answer {
        let numbers = (self.available(), self.state().capacity());
        let raw = RawOutcome::new(self.now, cost, allowed, numbers, |units| self.available_at(units));
        let outcome = raw.owing(if numbers.0 == 0 { self.meter().owed() } else { 0 }).into();
        let cause =
            if self.is_blocked() { Cause::Block { until: self.blocked_until() } } else { Cause::Limit };
        Answer { outcome, effect: Effect::None, cause, overflow: Overflow::None }
    }
}
