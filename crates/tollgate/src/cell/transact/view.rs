//! A cell as a request sees it: with what is due by now done, and stored only if that is kept.

use std::borrow::Cow;

use crate::cell::Cell;
use crate::meter::{MeterView, RawOutcome, Skew};
use crate::store::{Answer, Cause, Effect, Op, Overflow};
use crate::{Limit, Timestamp};

/// A cell as seen by a request, under the limit in force.
pub(super) struct CellView<'a> {
    /// The cell as stored. It is changed only if the change is kept.
    stored: &'a mut Cell,
    /// The cell with what is due by now (expiry, conversion, a restart), if anything is.
    current: Option<Box<Cell>>,
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
}

impl<'a> CellView<'a> {
    /// `now` is the reading of the clock, `at` the time to decide at.
    pub(super) fn new(stored: &'a mut Cell, limit: &Limit, now: Timestamp, at: Timestamp) -> Self {
        let [behind, repairs, converted, rebased] = [false; 4];
        let mut view = Self { stored, current: None, now: at, behind, repairs, converted, rebased };
        let current = view.cell().meter.written_at() <= at;
        if current && view.cell().holds.iter().any(|hold| hold.is_due(at)) {
            view.update().expire(at);
        }
        if !view.cell().meter.is_under(limit) {
            // An idle cell may already have been forgotten, which must not be observable: it counts
            // as unconverted.
            view.converted = limit.replaces(&view.cell().limit()) && !view.cell().is_idle(at);
            view.update().retune(limit, at);
        }
        let skew =
            if view.cell().meter.written_at() <= at { Skew::Current } else { view.cell().meter.skew(now) };
        (view.behind, view.rebased) = (skew == Skew::Behind, skew == Skew::Wild);
        if view.rebased {
            view.update().rebase(at);
        }
        let moved = view.cell().block.is_ahead(at) && view.update().restart_block(at);
        let moved = view.cell().has_wild_slots(at) && view.update().restart_slots(at) || moved;
        view.repairs = view.converted || moved || view.rebased;
        view
    }

    /// A cell under its own limit.
    pub(super) fn unconverted(stored: &'a mut Cell, now: Timestamp, at: Timestamp) -> Self {
        let limit = stored.limit();
        Self::new(stored, &limit, now, at)
    }

    pub(super) fn cell(&self) -> &Cell {
        self.current.as_deref().unwrap_or(self.stored)
    }

    /// The cell, to do what is due. The stored one stays as it is.
    fn update(&mut self) -> &mut Cell {
        self.current.get_or_insert_with(|| Box::new(self.stored.clone()))
    }

    /// The cell, to make a change that is kept.
    pub(super) fn change(&mut self) -> &mut Cell {
        self.current.as_deref_mut().unwrap_or(self.stored)
    }

    /// Stores the cell with its changes.
    pub(super) fn store(self) {
        if let Some(current) = self.current {
            *self.stored = *current;
        }
        self.stored.drop_ended(self.now);
    }

    pub(super) fn meter(&self) -> MeterView<'_> {
        MeterView { meter: Cow::Borrowed(&self.cell().meter), at: self.now, behind: self.behind }
    }

    pub(super) fn available(&self) -> u64 {
        if self.is_blocked() { 0 } else { self.meter().available() }
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.cell().is_blocked(self.now)
    }

    /// Units in use.
    pub(super) fn used(&self) -> u64 {
        self.cell().meter.used(self.cell().meter.not_before(self.now))
    }

    pub(super) fn fits(&self, cost: u64) -> bool {
        self.meter().fits(cost) && !self.is_blocked()
    }

    pub(super) fn available_at(&self, units: u64) -> u64 {
        let at = match self.behind || self.cell().holds.is_empty() {
            true => self.meter().available_at(units),
            false => self.cell().available_with_expiry_at(self.now, units),
        };
        at.max(self.cell().block.until.as_nanos())
    }

    /// When one more reservation of `units` can be made; for other verbs, now.
    pub(super) fn reservable_at(&self, op: Op, units: u64) -> Timestamp {
        match op {
            Op::Reserve { holder, .. } if units > 0 && !self.cell().meter.is_concurrent() => {
                self.cell().reservable_at(holder, self.now)
            }
            _ => self.now,
        }
    }

    pub(super) fn answer(&self, cost: u64, allowed: bool) -> Answer {
        let numbers = (self.available(), self.cell().meter.capacity());
        let raw = RawOutcome::new(self.now, cost, allowed, numbers, |units| self.available_at(units));
        let outcome = raw.owing(if numbers.0 == 0 { self.meter().owed() } else { 0 }).into();
        let cause =
            if self.is_blocked() { Cause::Block { until: self.cell().block.until } } else { Cause::Limit };
        Answer { outcome, effect: Effect::None, cause, overflow: Overflow::None }
    }
}
