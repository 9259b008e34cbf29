//! The reservations and slots of a cell, by id and by time.
//!
//! An operation touches the holds that it is about and those that are due, each in logarithmic
//! time, and never walks the others. Three operations rebuild the index: a limit that is replaced,
//! a state from a wild reading of the clock, and slots from one.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use smallvec::SmallVec;

use super::hold::Hold;
use crate::algorithm::LATE;
use crate::store::{HoldId, OnExpiry};
use crate::{Meter, Timestamp};

/// The most holds that one operation expires. The next operations expire the rest.
pub(super) const EXPIRE_MAX: usize = 512;

/// The most holds that give back units which a retry time is computed from.
pub(super) const WALK_MAX: usize = 64;

/// Due holds up to which an operation that writes nothing else leaves them unwritten.
const UNWRITTEN_MAX: usize = 16;

/// The holds of a cell. Most cells have none.
#[derive(Clone, Default)]
pub(super) struct Holds(Option<Box<Index>>);

#[derive(Clone, Default)]
struct Index {
    by_id: HashMap<HoldId, Hold>,
    /// Live holds whose expiry gives units back, by expiry.
    giving: BTreeSet<(Timestamp, HoldId)>,
    /// Live holds whose expiry keeps units, by expiry.
    keeping: BTreeSet<(Timestamp, HoldId)>,
    /// All holds, by end.
    ends: BTreeSet<(Timestamp, HoldId)>,
    /// No hold was made after this time.
    newest: Timestamp,
}

/// What the expiry of some holds does to a cell. Decided first, and applied if it is kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Expiry {
    /// Holds that expire, with the units that stay drawn for them, in order of expiry.
    expired: SmallVec<[(HoldId, u64); 2]>,
    /// Holds that end.
    ended: SmallVec<[HoldId; 2]>,
    /// Of those that expire, how many give units back.
    given: usize,
}

impl Expiry {
    /// Whether it is written by an operation that writes nothing else.
    pub(super) fn is_large(&self) -> bool {
        self.expired.len().saturating_add(self.ended.len()) > UNWRITTEN_MAX
    }

    /// Of the holds that expire, how many give units back.
    pub(super) fn given(&self) -> usize {
        self.given
    }

    /// A hold as the expiry leaves it.
    fn after(&self, id: HoldId, hold: Hold) -> Option<Hold> {
        if self.ended.contains(&id) {
            return None;
        }
        let units = self.expired.iter().find(|(expired, _)| *expired == id).map(|(_, units)| *units);
        Some(units.map_or(hold, |units| Hold { units, has_expired: true, ..hold }))
    }
}

impl Holds {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(super) fn len(&self) -> usize {
        self.0.as_ref().map_or(0, |index| index.by_id.len())
    }

    pub(super) fn get(&self, id: HoldId) -> Option<Hold> {
        self.0.as_ref()?.by_id.get(&id).copied()
    }

    /// A hold as an expiry that is not applied yet leaves it.
    pub(super) fn get_after(&self, id: HoldId, expiry: &Expiry) -> Option<Hold> {
        expiry.after(id, self.get(id)?)
    }

    /// Adds a hold, instead of the one with the same id.
    pub(super) fn insert(&mut self, id: HoldId, hold: Hold) {
        self.remove(id);
        let index = self.0.get_or_insert_default();
        index.by_id.insert(id, hold);
        index.ends.insert((hold.ends_at(), id));
        index.newest = index.newest.max(hold.made_at);
        if let Some(live) = index.live(&hold) {
            live.insert((hold.expires_at, id));
        }
    }

    pub(super) fn remove(&mut self, id: HoldId) -> Option<Hold> {
        let index = self.0.as_mut()?;
        let hold = index.by_id.remove(&id)?;
        index.ends.remove(&(hold.ends_at(), id));
        if let Some(live) = index.live(&hold) {
            live.remove(&(hold.expires_at, id));
        }
        if index.by_id.is_empty() {
            self.0 = None;
        }
        Some(hold)
    }

    /// All holds by end.
    pub(super) fn ends(&self) -> impl Iterator<Item = (HoldId, Timestamp)> {
        self.0.iter().flat_map(|index| &index.ends).map(|(end, id)| (*id, *end))
    }

    /// When the last hold ends; the epoch without any.
    pub(super) fn ends_at(&self) -> Timestamp {
        let last = self.0.as_ref().and_then(|index| index.ends.last());
        last.map_or(Timestamp::EPOCH, |(end, _)| *end)
    }

    /// Whether a hold has to expire, or has ended.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let due = |set: &BTreeSet<(Timestamp, HoldId)>| set.first().is_some_and(|(at, _)| *at <= now);
        self.0.as_ref().is_some_and(|index| due(&index.giving) || due(&index.keeping) || due(&index.ends))
    }

    /// Expires the first holds that are due by `now`: the meter is given back their units. The
    /// holds themselves change when the expiry is [applied](Self::apply).
    pub(super) fn expire(&self, meter: &mut Meter, now: Timestamp, max: usize) -> Expiry {
        let mut expiry = Expiry::default();
        let Some(index) = &self.0 else { return expiry };
        for id in index.live_until(now).take(max) {
            let Some(hold) = index.by_id.get(&id) else { continue };
            let mut units = hold.units;
            if hold.gives_back() {
                units = units.saturating_sub(meter.give_held(hold.expires_at, units, hold.drawn));
                expiry.given = expiry.given.saturating_add(1);
            }
            if hold.ends_at() <= now {
                expiry.ended.push(id);
            } else {
                expiry.expired.push((id, units));
            }
        }
        let acted = expiry.expired.len().saturating_add(expiry.ended.len());
        let ended = index.ends.iter().take_while(|(end, _)| *end <= now).map(|(_, id)| *id);
        let ended = ended.filter(|id| index.by_id.get(id).is_some_and(|hold| hold.has_expired));
        expiry.ended.extend(ended.take(max.saturating_sub(acted)));
        expiry
    }

    pub(super) fn apply(&mut self, expiry: Expiry) {
        for id in expiry.ended {
            self.remove(id);
        }
        for (id, units) in expiry.expired {
            if let Some(hold) = self.remove(id) {
                self.insert(id, Hold { units, has_expired: true, ..hold });
            }
        }
    }

    /// When `units` are available if no more requests arrive, counting the holds that give back
    /// units before, without the first `given` of them: the meter has their units already.
    ///
    /// At most [`WALK_MAX`] holds are looked at. If they are too few, it is the expiry of the last
    /// one of them, which is not later than the true time.
    pub(super) fn available_at(&self, meter: &Meter, given: usize, now: Timestamp, units: u64) -> u64 {
        let Some(index) = &self.0 else { return meter.available_at(now, units) };
        let mut giving = index.giving.iter().skip(given);
        let (mut meter, mut now) = (meter.clone(), now);
        for (expires_at, id) in giving.by_ref().take(WALK_MAX) {
            let at = meter.available_at(now, units);
            if at <= expires_at.as_nanos() {
                return at;
            }
            now = now.max(*expires_at);
            if let Some(hold) = index.by_id.get(id) {
                meter.give_held(now, hold.units, hold.drawn);
            }
        }
        if giving.next().is_some() { now.as_nanos() } else { meter.available_at(now, units) }
    }

    /// Whether any hold may be from a wild reading of the clock.
    pub(super) fn has_wild(&self, now: Timestamp) -> bool {
        let Some(index) = &self.0 else { return false };
        let is_ahead = index.newest.as_nanos().saturating_sub(now.as_nanos()) > LATE;
        is_ahead && index.by_id.values().any(|hold| hold.is_wild(now))
    }

    /// All holds in order of expiry.
    pub(super) fn in_order(&self) -> Vec<(HoldId, Hold)> {
        let holds = self.0.iter().flat_map(|index| &index.by_id);
        let mut holds: Vec<(HoldId, Hold)> = holds.map(|(id, hold)| (*id, *hold)).collect();
        holds.sort_unstable_by_key(|(id, hold)| (hold.expires_at, *id));
        holds
    }

    /// Replaces every hold, in order of expiry. Those that `change` returns nothing for are
    /// dropped.
    pub(super) fn rebuild(&mut self, mut change: impl FnMut(Hold) -> Option<Hold>) {
        for (id, hold) in std::mem::take(self).in_order() {
            if let Some(hold) = change(hold) {
                self.insert(id, hold);
            }
        }
    }
}

impl PartialEq for Holds {
    fn eq(&self, other: &Self) -> bool {
        self.in_order() == other.in_order()
    }
}

impl fmt::Debug for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.in_order()).finish()
    }
}

impl Index {
    /// The live holds among which this one is; `None` if it has expired.
    fn live(&mut self, hold: &Hold) -> Option<&mut BTreeSet<(Timestamp, HoldId)>> {
        match hold.on_expiry {
            _ if hold.has_expired => None,
            OnExpiry::GiveBack => Some(&mut self.giving),
            OnExpiry::Keep => Some(&mut self.keeping),
        }
    }

    /// The live holds that expire by `now`, in order of expiry.
    fn live_until(&self, now: Timestamp) -> impl Iterator<Item = HoldId> {
        let mut giving = self.giving.iter().take_while(move |(at, _)| *at <= now).peekable();
        let mut keeping = self.keeping.iter().take_while(move |(at, _)| *at <= now).peekable();
        std::iter::from_fn(move || {
            let next = match (giving.peek(), keeping.peek()) {
                (Some(gives), Some(keeps)) if gives <= keeps => giving.next(),
                (Some(_), None) => giving.next(),
                _ => keeping.next(),
            };
            next.map(|(_, id)| *id)
        })
    }
}
