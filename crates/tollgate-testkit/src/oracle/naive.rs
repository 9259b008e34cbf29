//! One limit and its whole history.

use std::time::Duration;

use num_rational::Ratio;
use tollgate::{Algorithm, Limit};

use super::calendar::Calendar;
use super::level::{Level, TwoLevels};
use super::slots::Slots;

pub(super) type Fraction = Ratio<i128>;

/// A limit and its history, for one key.
pub trait Naive: Send {
    /// Units that may be taken at `now`.
    fn available(&self, now: u64) -> u64;
    /// Units in use, possibly more than the limit.
    fn in_use(&self, now: u64) -> u64;
    /// Units recorded beyond the limit and not paid off yet.
    fn owed(&self, now: u64) -> u64;
    /// Units that may be recorded at `now`.
    fn recordable(&self, now: u64) -> u64;
    /// Whether `cost` is admitted at `now`: not even 0 while units are owed.
    fn fits(&self, now: u64, cost: u64) -> bool {
        self.available(now) >= cost && self.owed(now) == 0
    }
    /// This history under a limit that replaces its own: as many units in use.
    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        with_used(limit, now, self.in_use(now), self.owed(now))
    }
    /// Takes `cost` units, available or not.
    fn take(&mut self, now: u64, cost: u64);
    /// Gives back the most recently drawn units.
    fn give(&mut self, now: u64, units: u64);
    /// Gives back units of a reservation that drew at `drawn_at`: its own, as far as they are still
    /// in use. `then` is the history when it had drawn.
    fn give_own(&mut self, now: u64, units: u64, drawn_at: u64, then: &dyn Naive) {
        let _ = drawn_at;
        if then.in_use(now) > 0 {
            self.give(now, units);
        }
    }
    /// Units in use, with the fraction that has not come back yet.
    fn lacking(&self, now: u64) -> Fraction {
        Fraction::from(i128::from(self.in_use(now)))
    }
    /// A copy of the history.
    fn copy(&self) -> Box<dyn Naive>;
    /// Of the units in use, only those up to the limit, and `owed` more, count as taken or owed.
    /// The others were in use when the limit was lowered.
    fn excuse(&mut self, now: u64, owed: u64) {
        let _ = (now, owed);
    }
    /// Takes `cost` units, or one slot by its name.
    fn hold(&mut self, now: u64, cost: u64, name: u64, ttl: u64) {
        let _ = (name, ttl);
        self.take(now, cost);
    }
    /// Holds a slot for `ttl` from now. Returns whether it was live.
    fn renew(&mut self, now: u64, name: u64, ttl: u64) -> bool {
        let _ = (now, name, ttl);
        false
    }
    /// Gives back a slot. Returns whether it was live.
    fn release(&mut self, now: u64, name: u64) -> bool {
        let _ = (now, name);
        false
    }
}

/// The oracle for `limit`.
#[must_use]
pub fn naive(limit: &Limit) -> Box<dyn Naive> {
    let size = Size::of(limit);
    match limit.algorithm() {
        Algorithm::FixedWindow { period, aligned, .. } => {
            Box::new(Window { size, period: nanos(period), aligned, taken: Vec::new() })
        }
        Algorithm::CalendarWindow { unit, zone, .. } => Box::new(Calendar::new(size, unit, zone)),
        Algorithm::SlidingWindow { period, .. } => {
            Box::new(Estimate { size, period: nanos(period), taken: Vec::new() })
        }
        Algorithm::SlidingLog { period, .. } => {
            Box::new(Log { size, period: nanos(period), taken: Vec::new() })
        }
        Algorithm::TokenBucket(bucket) => Box::new(Level::full(bucket, size.debt)),
        Algorithm::Reserve { sustained, reserve } => {
            Box::new(TwoLevels(Level::full(sustained, size.debt), Level::full(reserve, 0)))
        }
        Algorithm::Concurrent { limit } => Box::new(Slots::new(limit)),
        other => unreachable!("an algorithm without an oracle: {other:?}"),
    }
}

/// The units of a limit.
#[derive(Clone, Copy)]
pub(super) struct Size {
    limit: u64,
    debt: u64,
    counts_denied: bool,
    /// Units in use beyond the limit that are no debt: it was lowered.
    excess: u64,
}

impl Size {
    pub(super) fn of(limit: &Limit) -> Self {
        let (counts_denied, excess) = (limit.counts_denied(), 0);
        Self { limit: limit.capacity(), debt: limit.max_debt(), counts_denied, excess }
    }

    /// The size when `in_use` units are in use: the excess comes back last.
    pub(super) fn with(self, in_use: u64) -> Self {
        Self { excess: self.excess.min(in_use.saturating_sub(self.limit)), ..self }
    }

    pub(super) fn excused(self, in_use: u64, owed: u64) -> Self {
        Self { excess: in_use.saturating_sub(self.limit + owed.min(self.debt)), ..self }
    }

    pub(super) fn available(self, in_use: u64) -> u64 {
        self.limit.saturating_sub(in_use)
    }

    /// Counted attempts are no debt.
    pub(super) fn owed(self, in_use: u64) -> u64 {
        if self.counts_denied { 0 } else { in_use.saturating_sub(self.limit + self.excess).min(self.debt) }
    }

    pub(super) fn recordable(self, in_use: u64) -> u64 {
        if self.counts_denied {
            return (self.limit + self.debt).saturating_sub(in_use.min(self.limit));
        }
        (self.limit + self.with(in_use).excess + self.debt).saturating_sub(in_use)
    }
}

/// The history of a client that just took `used` units and owed `owed` of them: all of them from a
/// window or a log, at most the capacity and the debt from a bucket.
pub(super) fn with_used(limit: &Limit, now: u64, used: u64, owed: u64) -> Box<dyn Naive> {
    let mut cell = naive(limit);
    let used = match limit.algorithm() {
        Algorithm::TokenBucket(_) | Algorithm::Reserve { .. } => {
            used.min(limit.capacity() + owed.min(limit.max_debt()))
        }
        _ => used,
    };
    if used > 0 {
        cell.take(now, used);
    }
    cell.excuse(now, owed);
    cell
}

/// The history: (time, units), oldest first.
pub(super) type Taken = Vec<(u64, u64)>;

pub(super) fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).expect("a limit's span fits")
}

/// Removes up to `units` from the end of a history, from entries not older than `since`.
fn untake(taken: &mut Taken, since: u64, units: u64) {
    untake_while(taken, |at| at >= since, units);
}

/// Removes up to `units` from the end of a history, while the times of its entries are `recent`.
pub(super) fn untake_while(taken: &mut Taken, recent: impl Fn(u64) -> bool, mut units: u64) {
    while let Some((at, cost)) = taken.last_mut().filter(|(at, _)| recent(*at)) {
        let _ = at;
        let back = units.min(*cost);
        *cost -= back;
        units -= back;
        if *cost > 0 {
            return;
        }
        taken.pop();
    }
}

/// Removes up to `units` from the entries of these times.
fn untake_of(taken: &mut Taken, of: impl Fn(u64) -> bool, mut units: u64) {
    for (_, cost) in taken.iter_mut().filter(|(at, _)| of(*at)) {
        let back = units.min(*cost);
        *cost -= back;
        units -= back;
    }
    taken.retain(|(_, cost)| *cost > 0);
}

#[derive(Clone)]
struct Window {
    size: Size,
    period: u64,
    aligned: bool,
    taken: Taken,
}

impl Window {
    /// The start of the window that contains `now` and the units used in it, by replaying the whole
    /// history.
    fn current(&self, now: u64) -> (u64, u64) {
        let mut window: Option<(u64, u64)> = None;
        for (at, cost) in &self.taken {
            let start = if self.aligned { at - at % self.period } else { *at };
            window = match window {
                Some((open, used)) if at - open < self.period => Some((open, used + cost)),
                _ => Some((start, *cost)),
            };
        }
        window.filter(|(open, _)| now - open < self.period).unwrap_or((now, 0))
    }
}

impl Naive for Window {
    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }

    fn available(&self, now: u64) -> u64 {
        self.size.available(self.in_use(now))
    }

    fn owed(&self, now: u64) -> u64 {
        self.size.owed(self.in_use(now))
    }

    fn recordable(&self, now: u64) -> u64 {
        self.size.recordable(self.in_use(now))
    }

    fn in_use(&self, now: u64) -> u64 {
        self.current(now).1
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        let (open, used) = self.current(now);
        match limit.algorithm() {
            // The window keeps its start, if the new period has not ended it.
            Algorithm::FixedWindow { period, aligned: false, .. } if now - open < nanos(period) => {
                with_used(limit, open, used, self.owed(now))
            }
            _ => with_used(limit, now, used, self.owed(now)),
        }
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.size = self.size.with(self.in_use(now));
        self.taken.push((now, cost));
    }

    fn excuse(&mut self, now: u64, owed: u64) {
        self.size = self.size.excused(self.in_use(now), owed);
    }

    fn give(&mut self, now: u64, units: u64) {
        let (open, used) = self.current(now);
        untake(&mut self.taken, open, units.min(used));
    }
}

#[derive(Clone)]
struct Estimate {
    size: Size,
    period: u64,
    taken: Taken,
}

impl Estimate {
    fn count(&self, from: u64) -> u64 {
        self.taken
            .iter()
            .filter(|(at, _)| from <= *at && *at < from + self.period)
            .map(|(_, cost)| cost)
            .sum()
    }
}

impl Naive for Estimate {
    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }

    fn give_own(&mut self, now: u64, units: u64, drawn_at: u64, _then: &dyn Naive) {
        let number = drawn_at / self.period;
        if now / self.period - number <= 1 {
            untake_of(&mut self.taken, |at| at / self.period == number, units);
        }
    }

    fn available(&self, now: u64) -> u64 {
        self.size.available(self.in_use(now))
    }

    fn owed(&self, now: u64) -> u64 {
        self.size.owed(self.in_use(now))
    }

    fn recordable(&self, now: u64) -> u64 {
        self.size.recordable(self.in_use(now))
    }

    fn in_use(&self, now: u64) -> u64 {
        u64::try_from(self.lacking(now).floor().to_integer()).expect("a count fits")
    }

    /// The estimate before it is rounded.
    fn lacking(&self, now: u64) -> Fraction {
        let start = now - now % self.period;
        let current = self.count(start);
        let previous = if start >= self.period { self.count(start - self.period) } else { 0 };
        let share = Fraction::new(i128::from(self.period - (now - start)), i128::from(self.period));
        Fraction::from(i128::from(current)) + share * i128::from(previous)
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        match limit.algorithm() {
            Algorithm::SlidingWindow { period, .. } if nanos(period) == self.period => {
                let (size, taken) = (Size::of(limit), self.taken.clone());
                let mut cell = Self { size, taken, period: self.period };
                cell.excuse(now, self.owed(now));
                Box::new(cell)
            }
            _ => with_used(limit, now, self.in_use(now), self.owed(now)),
        }
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.size = self.size.with(self.in_use(now));
        self.taken.push((now, cost));
    }

    fn excuse(&mut self, now: u64, owed: u64) {
        self.size = self.size.excused(self.in_use(now), owed);
    }

    fn give(&mut self, now: u64, units: u64) {
        let start = now - now % self.period;
        untake(&mut self.taken, start.saturating_sub(self.period), units);
    }
}

#[derive(Clone)]
struct Log {
    size: Size,
    period: u64,
    taken: Taken,
}

impl Naive for Log {
    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }

    fn give_own(&mut self, now: u64, units: u64, drawn_at: u64, _then: &dyn Naive) {
        if now - drawn_at < self.period {
            untake_of(&mut self.taken, |at| at == drawn_at, units);
        }
    }

    fn available(&self, now: u64) -> u64 {
        self.size.available(self.in_use(now))
    }

    fn owed(&self, now: u64) -> u64 {
        self.size.owed(self.in_use(now))
    }

    fn recordable(&self, now: u64) -> u64 {
        self.size.recordable(self.in_use(now))
    }

    fn in_use(&self, now: u64) -> u64 {
        let counts = |(at, _): &&(u64, u64)| now - at < self.period;
        self.taken.iter().filter(counts).map(|(_, cost)| cost).sum()
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        match limit.algorithm() {
            // The entries keep their times. Lapsed entries do not come back.
            Algorithm::SlidingLog { period, .. } => {
                let period = nanos(period);
                let counts = |(at, _): &&(u64, u64)| now - at < self.period.min(period);
                let taken = self.taken.iter().filter(counts).copied().collect();
                let mut cell = Self { size: Size::of(limit), period, taken };
                cell.excuse(now, self.owed(now));
                Box::new(cell)
            }
            _ => with_used(limit, now, self.in_use(now), self.owed(now)),
        }
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.size = self.size.with(self.in_use(now));
        self.taken.push((now, cost));
    }

    fn excuse(&mut self, now: u64, owed: u64) {
        self.size = self.size.excused(self.in_use(now), owed);
    }

    fn give(&mut self, now: u64, units: u64) {
        untake(&mut self.taken, (now + 1).saturating_sub(self.period), units);
    }
}
