//! The naive oracle: each algorithm once more, as its description reads.
//!
//! Nothing here is clever. Histories are kept whole, levels are exact fractions, and the time at
//! which something becomes possible is found by trying. It shares no code with what it judges.

use std::collections::HashMap;
use std::time::Duration;

use num_rational::Ratio;
use tollgate::{Algorithm, Bucket, Limit, Rule, Timestamp};

type Fraction = Ratio<i128>;

/// A limit and its history, for one key.
pub trait Naive: Send {
    /// How many units may be taken at `now`.
    fn available(&self, now: u64) -> u64;
    /// Takes them, whether they are there or not.
    fn take(&mut self, now: u64, cost: u64);
    /// Gives back the most recently drawn.
    fn give(&mut self, now: u64, units: u64);
}

/// The oracle for `limit`.
#[must_use]
pub fn naive(limit: &Limit) -> Box<dyn Naive> {
    match limit.algorithm() {
        Algorithm::FixedWindow { limit, period, aligned, .. } => {
            Box::new(Window { limit, period: nanos(period), aligned, taken: Vec::new() })
        }
        Algorithm::SlidingWindow { limit, period, .. } => {
            Box::new(Estimate { limit, period: nanos(period), taken: Vec::new() })
        }
        Algorithm::SlidingLog { limit, period } => {
            Box::new(Log { limit, period: nanos(period), taken: Vec::new() })
        }
        Algorithm::TokenBucket(bucket) => Box::new(Level::full(bucket)),
        Algorithm::Reserve { sustained, reserve } => {
            Box::new(TwoLevels(Level::full(sustained), Level::full(reserve)))
        }
        other => unreachable!("an algorithm without an oracle: {other:?}"),
    }
}

/// When what was taken: (time, units), oldest first.
type Taken = Vec<(u64, u64)>;

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).expect("a limit's span fits")
}

/// Removes up to `units` from the end of a history, from entries not older than `since`.
fn untake(taken: &mut Taken, since: u64, mut units: u64) {
    while let Some((at, cost)) = taken.last_mut().filter(|(at, _)| *at >= since) {
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

struct Window {
    limit: u64,
    period: u64,
    aligned: bool,
    taken: Taken,
}

impl Window {
    /// Start and use of the window that `now` is in, found by going through the whole history.
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
    fn available(&self, now: u64) -> u64 {
        self.limit.saturating_sub(self.current(now).1)
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.taken.push((now, cost));
    }

    fn give(&mut self, now: u64, units: u64) {
        let (open, used) = self.current(now);
        untake(&mut self.taken, open, units.min(used));
    }
}

struct Estimate {
    limit: u64,
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
    fn available(&self, now: u64) -> u64 {
        let start = now - now % self.period;
        let current = self.count(start);
        let previous = if start >= self.period { self.count(start - self.period) } else { 0 };
        let share = Fraction::new(i128::from(self.period - (now - start)), i128::from(self.period));
        let estimate = Fraction::from(i128::from(current)) + share * i128::from(previous);
        self.limit.saturating_sub(u64::try_from(estimate.floor().to_integer()).expect("a count fits"))
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.taken.push((now, cost));
    }

    fn give(&mut self, now: u64, units: u64) {
        let start = now - now % self.period;
        untake(&mut self.taken, start.saturating_sub(self.period), units);
    }
}

struct Log {
    limit: u64,
    period: u64,
    taken: Taken,
}

impl Naive for Log {
    fn available(&self, now: u64) -> u64 {
        let counts = |(at, _): &&(u64, u64)| now - at < self.period;
        let used: u64 = self.taken.iter().filter(counts).map(|(_, cost)| cost).sum();
        self.limit.saturating_sub(used)
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.taken.push((now, cost));
    }

    fn give(&mut self, now: u64, units: u64) {
        untake(&mut self.taken, (now + 1).saturating_sub(self.period), units);
    }
}

/// A bucket as a level that rises with time.
struct Level {
    bucket: Bucket,
    level: Fraction,
    as_of: u64,
}

impl Level {
    fn full(bucket: Bucket) -> Self {
        Self { bucket, level: Fraction::from(i128::from(bucket.capacity)), as_of: 0 }
    }

    fn at(&self, now: u64) -> Fraction {
        let interval = nanos(self.bucket.interval);
        let amount = i128::from(self.bucket.amount);
        let refill = if self.bucket.stepped {
            Fraction::from(i128::from(now / interval - self.as_of / interval) * amount)
        } else {
            Fraction::new(i128::from(now - self.as_of) * amount, i128::from(interval))
        };
        (self.level + refill).min(Fraction::from(i128::from(self.bucket.capacity)))
    }

    fn change(&mut self, now: u64, units: i128) {
        let capacity = Fraction::from(i128::from(self.bucket.capacity));
        self.level = (self.at(now) + Fraction::from(units)).min(capacity);
        self.as_of = now;
    }
}

impl Naive for Level {
    fn available(&self, now: u64) -> u64 {
        u64::try_from(self.at(now).floor().to_integer()).expect("a level is never negative")
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.change(now, -i128::from(cost));
    }

    fn give(&mut self, now: u64, units: u64) {
        self.change(now, i128::from(units));
    }
}

/// The sustained bucket and the reserve.
struct TwoLevels(Level, Level);

impl Naive for TwoLevels {
    fn available(&self, now: u64) -> u64 {
        self.0.available(now) + self.1.available(now)
    }

    fn take(&mut self, now: u64, cost: u64) {
        let sustained = cost.min(self.0.available(now));
        self.0.take(now, sustained);
        self.1.take(now, cost - sustained);
    }

    fn give(&mut self, now: u64, units: u64) {
        let lacking = self.1.bucket.capacity - self.1.available(now);
        self.1.give(now, units.min(lacking));
        self.0.give(now, units - units.min(lacking));
    }
}

/// The first moment from `now` on, in steps of `tick`, at which `limit` has `units`.
#[must_use]
pub fn first_time(cell: &dyn Naive, now: u64, tick: u64, units: u64) -> u64 {
    let there = |steps: u64| cell.available(now + steps * tick) >= units;
    if there(0) {
        return now;
    }
    let (mut not_yet, mut by_then) = (0, 1);
    while !there(by_then) {
        (not_yet, by_then) = (by_then, by_then * 2);
    }
    while not_yet + 1 < by_then {
        let middle = not_yet.midpoint(by_then);
        if there(middle) { by_then = middle } else { not_yet = middle }
    }
    now + by_then * tick
}

/// What one limit is expected to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expected {
    /// The rule's name.
    pub rule: String,
    /// Whether this limit admits.
    pub allowed: bool,
    /// What is left of it.
    pub remaining: u64,
    /// When all of it is back.
    pub reset_at: Timestamp,
    /// How long to wait; `None` if it never fits.
    pub retry_after: Option<Duration>,
}

/// Rules and all their keys.
pub struct Oracle {
    rules: Vec<Rule>,
    cells: HashMap<(String, usize, Vec<String>), Box<dyn Naive>>,
    tick: u64,
}

impl std::fmt::Debug for Oracle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Oracle").field("rules", &self.rules).finish_non_exhaustive()
    }
}

/// What to ask the oracle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Take if it fits everywhere.
    Check,
    /// Only look.
    Peek,
    /// Give back.
    Refund,
    /// Take up to the cost.
    Penalise,
}

impl Oracle {
    /// An oracle for rules that match on nothing, for times that are multiples of `tick`.
    #[must_use]
    pub fn new(rules: &[Rule], tick: Duration) -> Self {
        Self { rules: rules.to_vec(), cells: HashMap::new(), tick: nanos(tick) }
    }

    /// Does what `verb` says for a request with these attributes, and tells what each limit says
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
            charges.iter().map(|(key, _, cost, _)| self.available(key, now) >= *cost).collect();
        let admitted = charges.iter().zip(&fits).all(|((.., shadow), fits)| *shadow || *fits);
        for (key, limit, cost, shadow) in &charges {
            let same_rule = |(other, ..): &&(CellKey, Limit, u64, bool)| other.0 == key.0;
            let rule_fits = charges.iter().zip(&fits).filter(|(c, _)| same_rule(c)).all(|(_, fits)| *fits);
            let available = self.available(key, now);
            let cell = self.cells.get_mut(key).expect("made above");
            match verb {
                Verb::Peek => {}
                _ if *cost == 0 => {}
                Verb::Check if admitted && (!shadow || rule_fits) => cell.take(now, *cost),
                Verb::Check if counts_denied(limit) && *cost <= limit.capacity() => cell.take(now, *cost),
                Verb::Check => {}
                Verb::Refund => cell.give(now, *cost),
                Verb::Penalise => cell.take(now, available.min(*cost)),
            }
        }
        charges
            .iter()
            .zip(fits)
            .map(|(charge, fit)| self.expected(charge, admitted && verb == Verb::Check, fit, now))
            .collect()
    }

    fn expected(
        &self,
        (key, limit, cost, _): &(CellKey, Limit, u64, bool),
        admitted: bool,
        fit: bool,
        now: u64,
    ) -> Expected {
        let cell = &*self.cells[key];
        let at = |units| first_time(cell, now, self.tick, units);
        let allowed = if admitted { fit } else { cell.available(now) >= *cost };
        let retry_after = match allowed {
            true => Some(Duration::ZERO),
            false if *cost > limit.capacity() => None,
            false => Some(Duration::from_nanos(at(*cost) - now)),
        };
        let reset_at = Timestamp::from_nanos(at(limit.capacity()));
        Expected { rule: key.0.clone(), allowed, remaining: cell.available(now), reset_at, retry_after }
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
            for (place, limit) in rule.limits().iter().enumerate() {
                let key = (rule.name().to_string(), place, subject.clone());
                self.cells.entry(key.clone()).or_insert_with(|| naive(limit));
                charges.push((key, *limit, cost * rule.unit_cost(), rule.is_shadow()));
            }
        }
        charges
    }

    fn available(&self, key: &CellKey, now: u64) -> u64 {
        self.cells[key].available(now)
    }
}

type CellKey = (String, usize, Vec<String>);

fn counts_denied(limit: &Limit) -> bool {
    matches!(
        limit.algorithm(),
        Algorithm::FixedWindow { count_denied: true, .. }
            | Algorithm::SlidingWindow { count_denied: true, .. }
    )
}
