//! A plan and the credits that it falls back on, of one client.
//!
//! As the other oracles it is slow and obvious: the time at which both cover a cost is found by
//! trying times, not by splitting the cost.

use std::time::Duration;

use tollgate::{Limit, Timestamp};

use super::{Expected, Naive, Verb, first_time, first_time_of, naive, record};

/// The limits of a rule and their histories.
type Budget = Vec<(Limit, Box<dyn Naive>)>;

/// The expected outcome of a limit, and the units drawn on it.
pub type ExpectedPart = (Expected, u64);

/// A rule, `plan`, that overflows into another, `credits`.
pub struct Pair {
    plan: Budget,
    credits: Budget,
    /// Units of the plan per unit of a request's cost.
    unit_cost: u64,
    tick: u64,
}

impl std::fmt::Debug for Pair {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pair").field("unit_cost", &self.unit_cost).finish_non_exhaustive()
    }
}

fn least(budget: &Budget, value: impl Fn(&dyn Naive) -> u64) -> u64 {
    budget.iter().map(|(_, cell)| value(&**cell)).min().expect("a rule has a limit")
}

fn most(budget: &Budget, value: impl Fn(&dyn Naive) -> u64) -> u64 {
    budget.iter().map(|(_, cell)| value(&**cell)).max().expect("a rule has a limit")
}

impl Pair {
    /// A client that was never seen, at times that are multiples of `tick`.
    #[must_use]
    pub fn new(plan: &[Limit], credits: &[Limit], unit_cost: u64, tick: Duration) -> Self {
        let budget = |limits: &[Limit]| limits.iter().map(|limit| (*limit, naive(limit))).collect();
        let tick = u64::try_from(tick.as_nanos()).expect("a tick fits");
        Self { plan: budget(plan), credits: budget(credits), unit_cost, tick }
    }

    /// Applies `verb`, and returns the outcome of each limit afterwards: the plan's, then those of
    /// the credits.
    pub fn ask(&mut self, verb: Verb, cost: u64, now: Timestamp) -> Vec<ExpectedPart> {
        let (now, cost) = (now.as_nanos(), cost * self.unit_cost);
        let fits = (0..self.plan.len()).map(|index| self.fits(index, now, cost)).collect::<Vec<_>>();
        let admitted = fits.iter().all(|fits| *fits);
        let (from_plan, from_credits) = match verb {
            Verb::Check | Verb::Peek if admitted => self.split(now, cost),
            Verb::Check | Verb::Peek => (0, 0),
            Verb::Record => {
                // What both lack is owed by the plan.
                let credits = self.split(now, cost).1.min(least(&self.credits, |cell| cell.available(now)));
                (cost - credits, credits)
            }
            Verb::Refund => {
                let used = |cell: &dyn Naive| cell.in_use(now).min(cost);
                if least(&self.plan, |cell| cell.available(now)) > 0 {
                    (cost, cost - most(&self.plan, used))
                } else {
                    (cost - most(&self.credits, used), cost)
                }
            }
            Verb::Penalise => unreachable!("a penalty reaches the plan alone"),
            Verb::Refuse => unreachable!("the laws of overflows refuse nothing"),
            Verb::Acquire { .. } => unreachable!("a slot is no unit that an overflow lends"),
            Verb::Reserve { .. } => unreachable!("the laws of overflows reserve nothing"),
        };
        let drawn = |cell: &dyn Naive, units: u64| match verb {
            Verb::Record => cell.recordable(now).min(units),
            Verb::Refund => 0,
            _ => units,
        };
        let of_plan: Vec<u64> = self.plan.iter().map(|(_, cell)| drawn(&**cell, from_plan)).collect();
        for (limit, cell) in &mut self.plan {
            match verb {
                Verb::Check if !admitted && limit.counts_denied() && cost <= limit.capacity() && cost > 0 => {
                    cell.take(now, cost);
                }
                verb => move_units(verb, &mut **cell, from_plan, now),
            }
        }
        let of_credits: Vec<u64> =
            self.credits.iter().map(|(_, cell)| drawn(&**cell, from_credits)).collect();
        self.credits.iter_mut().for_each(|(_, cell)| move_units(verb, &mut **cell, from_credits, now));
        let asked = if verb == Verb::Record { 0 } else { cost };
        let stays = admitted && verb == Verb::Check;
        let plan = of_plan.into_iter().enumerate().map(|(index, drawn)| {
            let allowed = if stays { fits[index] } else { self.fits(index, now, asked) };
            (self.of_plan(index, allowed, now, asked), drawn)
        });
        let credits = self.credits.iter().zip(of_credits);
        let credits = credits.map(|((limit, cell), drawn)| (self.of_credits(limit, &**cell, now), drawn));
        plan.chain(credits).collect()
    }

    /// The part of a cost that the plan covers, and the rest.
    fn split(&self, now: u64, cost: u64) -> (u64, u64) {
        let plan = least(&self.plan, |cell| cell.available(now)).min(cost);
        (plan, cost - plan)
    }

    fn fits(&self, index: usize, now: u64, cost: u64) -> bool {
        let (plan, lent) = (&self.plan[index].1, least(&self.credits, |cell| cell.available(now)));
        match cost {
            0 => plan.owed(now) == 0 || lent > 0,
            cost => cost <= plan.available(now) + lent,
        }
    }

    fn of_plan(&self, index: usize, allowed: bool, now: u64, cost: u64) -> Expected {
        let (limit, cell) = &self.plan[index];
        let credits = self.credits.iter().map(|(limit, _)| limit.capacity()).min().expect("a limit");
        let retry_after = match allowed {
            true => Some(Duration::ZERO),
            false if cost > limit.capacity() + credits => None,
            false => {
                let at = first_time_of(now, self.tick, |at| self.fits(index, at, cost));
                Some(Duration::from_nanos(at - now))
            }
        };
        Expected {
            rule: "plan".into(),
            allowed,
            remaining: cell.available(now),
            owed: cell.owed(now),
            reset_at: Timestamp::from_nanos(first_time(&**cell, now, self.tick, limit.capacity())),
            retry_after,
        }
    }

    fn of_credits(&self, limit: &Limit, cell: &dyn Naive, now: u64) -> Expected {
        Expected {
            rule: "credits".into(),
            allowed: true,
            remaining: cell.available(now),
            owed: cell.owed(now),
            reset_at: Timestamp::from_nanos(first_time(cell, now, self.tick, limit.capacity())),
            retry_after: Some(Duration::ZERO),
        }
    }
}

fn move_units(verb: Verb, cell: &mut dyn Naive, units: u64, now: u64) {
    match verb {
        _ if units == 0 => {}
        Verb::Check => cell.take(now, units),
        Verb::Refund => cell.give(now, units),
        Verb::Record => _ = record(cell, now, units),
        Verb::Peek | Verb::Refuse | Verb::Penalise | Verb::Acquire { .. } | Verb::Reserve { .. } => {}
    }
}
