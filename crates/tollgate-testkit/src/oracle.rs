//! The naive oracle: a reference implementation of each algorithm.
//!
//! Nothing here is optimised. Histories are kept whole, levels are exact fractions, and the time at
//! which units are available is found by search. It shares no code with the implementation under
//! test.

use std::collections::HashMap;
use std::time::Duration;

use tollgate::{Limit, Rule, Timestamp};

mod calendar;
mod holds;
mod level;
mod naive;
mod overflow;
mod slots;

use holds::Held;
use naive::nanos;
pub use naive::{Naive, naive};
pub use overflow::{ExpectedPart, Pair};

/// The first time from `now` on, in steps of `tick`, at which `units` are available. 0 units are
/// available when nothing is owed.
#[must_use]
pub fn first_time(cell: &dyn Naive, now: u64, tick: u64, units: u64) -> u64 {
    first_time_of(now, tick, |at| cell.fits(at, units))
}

/// The first time from `now` on, in steps of `tick`, at which a condition holds that stays true.
fn first_time_of(now: u64, tick: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let available = |steps: u64| holds(now + steps * tick);
    if available(0) {
        return now;
    }
    let (mut not_yet, mut by_then) = (0, 1);
    while !available(by_then) {
        (not_yet, by_then) = (by_then, by_then * 2);
    }
    while not_yet + 1 < by_then {
        let middle = not_yet.midpoint(by_then);
        if available(middle) { by_then = middle } else { not_yet = middle }
    }
    now + by_then * tick
}

/// The expected outcome of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The rule's name.
    pub rule: String,
    /// Whether this limit admits.
    pub allowed: bool,
    /// Units left.
    pub remaining: u64,
    /// Units owed.
    pub owed: u64,
    /// When the whole limit is available again.
    pub reset_at: Timestamp,
    /// The wait; `None` if the cost never fits.
    pub retry_after: Option<Duration>,
}

/// The oracle: rules and the history of every key.
pub struct Oracle {
    rules: Vec<Rule>,
    cells: HashMap<CellKey, Held>,
    tick: u64,
    shortfall: u64,
}

impl std::fmt::Debug for Oracle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Oracle").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// An operation of the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take the cost if it fits everywhere. A rule that records denied costs records what it
    /// denies.
    Check,
    /// Decide as a check that something else denied.
    Refuse,
    /// Take the cost, and a slot of each limit on concurrency, if everything fits.
    Acquire {
        /// The slot.
        name: u64,
        /// How long it is held.
        ttl: Duration,
    },
    /// Take the cost and hold it, if everything fits.
    Reserve {
        /// The reservation.
        name: u128,
        /// How long it is held.
        ttl: Duration,
        /// Whether the units stay taken if it expires.
        keeps: bool,
    },
    /// Take nothing.
    Peek,
    /// Give back the cost.
    Refund,
    /// Take up to the cost, stopping at empty.
    Penalise,
    /// Take the cost, beyond the limit too, up to its debt. The outcome is that of a peek at cost
    /// 0.
    Record,
}

impl Oracle {
    /// An oracle for rules without conditions, at times that are multiples of `tick`.
    #[must_use]
    pub fn new(rules: &[Rule], tick: Duration) -> Self {
        Self { rules: rules.to_vec(), cells: HashMap::new(), tick: nanos(tick), shortfall: 0 }
    }

    /// The units so far that could not be recorded: of each request, the most at any limit.
    #[must_use]
    pub const fn shortfall(&self) -> u64 {
        self.shortfall
    }

    /// Applies `verb` for a request with these attributes, and returns the outcome of each limit
    /// afterwards.
    pub fn ask(
        &mut self,
        verb: Verb,
        attributes: &[(&str, &str)],
        cost: u64,
        now: Timestamp,
    ) -> Vec<Expected> {
        let now = now.as_nanos();
        let charges = self.charges(attributes, cost);
        let fits: Vec<bool> =
            charges.iter().map(|(key, _, cost, _)| self.cells[key].at(now).fits(now, *cost)).collect();
        let admitted =
            verb != Verb::Refuse && charges.iter().zip(&fits).all(|((.., shadow), fits)| *shadow || *fits);
        let mut shortfall = 0;
        for (key, limit, cost, shadow) in &charges {
            let records =
                self.rules.iter().any(|rule| rule.name().as_str() == key.0 && rule.records_denied());
            let same_rule = |(other, ..): &&(CellKey, Limit, u64, bool)| other.0 == key.0;
            let rule_fits = charges.iter().zip(&fits).filter(|(c, _)| same_rule(c)).all(|(_, fits)| *fits);
            let held = self.cells.get_mut(key).expect("made above");
            if let Verb::Reserve { name, ttl, keeps } = verb
                && admitted
                && (!shadow || rule_fits)
            {
                held.reserve(now, *cost, name, nanos(ttl), keeps);
                continue;
            }
            let cell = held.at_mut(now);
            let available = cell.available(now);
            match verb {
                Verb::Peek => {}
                _ if *cost == 0 => {}
                Verb::Check if admitted && (!shadow || rule_fits) => cell.take(now, *cost),
                Verb::Check | Verb::Refuse if !admitted && records && !shadow && !rule_fits => {
                    shortfall = shortfall.max(record(cell, now, *cost));
                }
                Verb::Acquire { name, ttl } if admitted && (!shadow || rule_fits) => {
                    cell.hold(now, *cost, name, nanos(ttl));
                }
                Verb::Check | Verb::Refuse | Verb::Acquire { .. } | Verb::Reserve { .. }
                    if limit.counts_denied() && *cost <= limit.capacity() =>
                {
                    cell.take(now, *cost)
                }
                Verb::Check | Verb::Refuse | Verb::Acquire { .. } | Verb::Reserve { .. } => {}
                Verb::Refund => cell.give(now, *cost),
                Verb::Penalise => cell.take(now, available.min(*cost)),
                Verb::Record => shortfall = shortfall.max(record(cell, now, *cost)),
            }
        }
        self.shortfall += shortfall;
        let takes = matches!(verb, Verb::Check | Verb::Acquire { .. } | Verb::Reserve { .. });
        let asked =
            |(key, limit, cost, shadow)| (key, limit, if verb == Verb::Record { 0 } else { cost }, shadow);
        charges
            .into_iter()
            .map(asked)
            .zip(fits)
            .map(|(charge, fit)| self.expected(&charge, admitted && takes, fit, now))
            .collect()
    }

    /// Holds a reservation for `ttl` from now. Returns whether it was live.
    pub fn renew_reservation(
        &mut self,
        attributes: &[(&str, &str)],
        name: u128,
        ttl: Duration,
        now: Timestamp,
    ) -> bool {
        let mut renewed = false;
        for (key, ..) in self.charges(attributes, 0) {
            let held = self.cells.get_mut(&key).expect("made above");
            renewed |= held.renew(now.as_nanos(), name, nanos(ttl));
        }
        renewed
    }

    /// Settles a reservation and returns the shortfall. `None` if it was settled before, or has
    /// ended.
    pub fn settle(
        &mut self,
        attributes: &[(&str, &str)],
        name: u128,
        cost: u64,
        now: Timestamp,
    ) -> Option<u64> {
        let (now, mut shortfall) = (now.as_nanos(), None);
        for (key, _, cost, _) in self.charges(attributes, cost) {
            let held = self.cells.get_mut(&key).expect("made above");
            let Some(units) = held.settle(now, name, cost) else { continue };
            let rest = record(held.at_mut(now), now, units);
            shortfall = shortfall.max(Some(rest));
        }
        self.shortfall += shortfall.unwrap_or(0);
        shortfall
    }

    /// Holds a slot for `ttl` from now. Returns whether it was live.
    pub fn renew(&mut self, attributes: &[(&str, &str)], name: u64, ttl: Duration, now: Timestamp) -> bool {
        self.of_slot(attributes, now, |cell| cell.renew(now.as_nanos(), name, nanos(ttl)))
    }

    /// Gives back a slot. Returns whether it was live.
    pub fn release(&mut self, attributes: &[(&str, &str)], name: u64, now: Timestamp) -> bool {
        self.of_slot(attributes, now, |cell| cell.release(now.as_nanos(), name))
    }

    /// Replaces the rules by others with the same names and as many limits.
    pub fn replace(&mut self, rules: &[Rule], now: Timestamp) {
        self.rules = rules.to_vec();
        for ((name, index, _), held) in &mut self.cells {
            let rule = rules.iter().find(|rule| rule.name().as_str() == name).expect("the same names");
            let limit = *rule.limits().get(*index).expect("as many limits");
            if limit.is_concurrent() {
                held.replace(held.at(now.as_nanos()).replaced_by(&limit, now.as_nanos()));
            }
        }
    }

    /// Whether `f` is true of any cell of a request.
    fn of_slot(
        &mut self,
        attributes: &[(&str, &str)],
        now: Timestamp,
        f: impl Fn(&mut dyn Naive) -> bool,
    ) -> bool {
        let mut found = false;
        for (key, ..) in self.charges(attributes, 0) {
            found |= f(self.cells.get_mut(&key).expect("made above").at_mut(now.as_nanos()));
        }
        found
    }

    fn expected(
        &self,
        (key, limit, cost, _): &(CellKey, Limit, u64, bool),
        admitted: bool,
        fit: bool,
        now: u64,
    ) -> Expected {
        let held = &self.cells[key];
        let cell = held.at(now);
        let at = |units| first_time_of(now, self.tick, |at| held.at(at).fits(at, units));
        let allowed = if admitted { fit } else { cell.fits(now, *cost) };
        let retry_after = match allowed {
            true => Some(Duration::ZERO),
            false if *cost > limit.capacity() => None,
            false => Some(Duration::from_nanos(at(*cost) - now)),
        };
        let reset_at = Timestamp::from_nanos(at(limit.capacity()));
        let (remaining, owed) = (cell.available(now), cell.owed(now));
        Expected { rule: key.0.clone(), allowed, remaining, owed, reset_at, retry_after }
    }

    fn charges(&mut self, attributes: &[(&str, &str)], cost: u64) -> Vec<(CellKey, Limit, u64, bool)> {
        let mut charges = Vec::new();
        for rule in &self.rules {
            let value = |name: &String| {
                attributes.iter().find(|(n, _)| n == name).map(|(_, value)| (*value).to_owned())
            };
            let Some(subject) = rule.key_attributes().iter().map(value).collect::<Option<Vec<_>>>() else {
                continue;
            };
            for (index, limit) in rule.limits().iter().enumerate() {
                let key = (rule.name().to_string(), index, subject.clone());
                self.cells.entry(key.clone()).or_insert_with(|| Held::new(naive(limit)));
                // One slot, whatever the cost.
                let cost = if limit.is_concurrent() { 1 } else { cost * rule.unit_cost() };
                charges.push((key, *limit, cost, rule.is_shadow()));
            }
        }
        charges
    }
}

/// Takes up to `cost`, beyond the limit up to its debt, and returns the rest.
fn record(cell: &mut dyn Naive, now: u64, cost: u64) -> u64 {
    let recorded = cell.recordable(now).min(cost);
    // A window that nothing is taken from does not open.
    if recorded > 0 {
        cell.take(now, recorded);
    }
    cost - recorded
}

type CellKey = (String, usize, Vec<String>);
