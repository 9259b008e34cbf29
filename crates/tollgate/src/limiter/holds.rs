//! The ledger of holds: how many reservations and slots a limiter may hold, in all and per caller.
//!
//! The bound is the limiter's and not the store's, so it is the same for every store. Where a store
//! is shared, each process counts the holds that it made. A hold leaves the ledger when it is
//! settled or released through this limiter, when it was denied, and at its end.
//!
//! The ledger also remembers the reservations that hold nothing in a store: no rule covered them,
//! or the store failed. They can be settled once, as long as this process lives.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::algorithm::LATE;
use crate::store::{Cause, HoldId, HoldsBound};
use crate::{Caller, Timestamp};

/// The holds that a limiter made.
#[derive(Debug)]
pub(super) struct Ledger {
    max: u64,
    /// The most holds of one caller.
    caller_max: u64,
    entries: Mutex<Entries>,
}

#[derive(Debug, Default)]
struct Entries {
    by_id: HashMap<HoldId, Entry>,
    ends: BTreeSet<(Timestamp, HoldId)>,
    /// The ends of each caller's holds.
    callers: HashMap<u64, BTreeSet<(Timestamp, HoldId)>>,
    newest: Timestamp,
    refused: u64,
}

/// A hold in the ledger.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    caller: Option<u64>,
    made_at: Timestamp,
    ends_at: Timestamp,
    /// The guards that share the hold: a slot that was taken out of a reservation is one.
    guards: u8,
    /// Whether no store has it.
    is_unstored: bool,
}

/// Why there is no room for a hold, and when there will be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full {
    pub(super) cause: Cause,
    pub(super) room_at: Timestamp,
}

impl Ledger {
    pub(super) fn new(max: u64, caller_max: u64) -> Self {
        Self { max, caller_max, entries: Mutex::default() }
    }

    fn lock(&self, now: Timestamp) -> MutexGuard<'_, Entries> {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        entries.observe(now);
        entries
    }

    /// Enters a hold that lasts until `ends_at`, if there is room.
    pub(super) fn enter(
        &self,
        id: HoldId,
        caller: Option<Caller>,
        now: Timestamp,
        ends_at: Timestamp,
    ) -> Result<(), Full> {
        let mut entries = self.lock(now);
        let of_caller = caller.and_then(|caller| {
            let held = entries.callers.get(&caller.id())?;
            let most = self.caller_max.saturating_mul(caller.share().into());
            Some((HoldsBound::Caller, room_at(held, most)?))
        });
        let of_all = room_at(&entries.ends, self.max).map(|at| (HoldsBound::All, at));
        if let Some((bound, _)) = of_caller.or(of_all) {
            let both = of_caller.into_iter().chain(of_all);
            let room_at = both.map(|(_, at)| at).max().unwrap_or(now);
            entries.refused = entries.refused.saturating_add(1);
            return Err(Full { cause: Cause::HoldsFull { bound }, room_at });
        }
        let caller = caller.map(Caller::id);
        entries.insert(id, Entry { caller, made_at: now, ends_at, guards: 1, is_unstored: false });
        Ok(())
    }

    /// Enters the holds that a store was loaded with, which are exempt from the bounds.
    pub(super) fn load(&self, holds: impl IntoIterator<Item = (HoldId, Timestamp)>) {
        let mut entries = self.entries.lock().unwrap_or_else(PoisonError::into_inner);
        for (id, ends_at) in holds {
            let ends_at = entries.by_id.get(&id).map_or(ends_at, |entry| entry.ends_at.max(ends_at));
            let made_at = Timestamp::EPOCH;
            entries.insert(id, Entry { caller: None, made_at, ends_at, guards: 1, is_unstored: false });
        }
    }

    /// Counts one more guard of a hold.
    pub(super) fn share(&self, id: HoldId, now: Timestamp) {
        if let Some(entry) = self.lock(now).by_id.get_mut(&id) {
            entry.guards = entry.guards.saturating_add(1);
        }
    }

    /// Remembers that no store has the hold.
    pub(super) fn mark_unstored(&self, id: HoldId, now: Timestamp) {
        if let Some(entry) = self.lock(now).by_id.get_mut(&id) {
            entry.is_unstored = true;
        }
    }

    /// Whether it is a reservation that no store has.
    pub(super) fn is_unstored(&self, id: HoldId, now: Timestamp) -> bool {
        self.lock(now).by_id.get(&id).is_some_and(|entry| entry.is_unstored)
    }

    /// Takes a reservation that no store has out of the ledger.
    pub(super) fn take_unstored(&self, id: HoldId, now: Timestamp) -> Option<Entry> {
        let mut entries = self.lock(now);
        let is_unstored = entries.by_id.get(&id).is_some_and(|entry| entry.is_unstored);
        if is_unstored { entries.remove(id) } else { None }
    }

    /// Puts back a hold whose settlement failed.
    pub(super) fn put_back(&self, id: HoldId, entry: Entry, now: Timestamp) {
        self.lock(now).insert(id, entry);
    }

    /// Ends one guard of a hold. Returns whether the ledger had it.
    pub(super) fn leave(&self, id: HoldId, now: Timestamp) -> bool {
        let mut entries = self.lock(now);
        match entries.by_id.get_mut(&id) {
            None => false,
            Some(entry) if entry.guards > 1 => {
                entry.guards = entry.guards.saturating_sub(1);
                true
            }
            Some(_) => entries.remove(id).is_some(),
        }
    }

    /// Holds until `ends_at`, unless it is held longer. Returns whether the ledger has it.
    pub(super) fn renew(&self, id: HoldId, now: Timestamp, ends_at: Timestamp) -> bool {
        let mut entries = self.lock(now);
        let Some(entry) = entries.remove(id) else { return false };
        entries.insert(id, Entry { made_at: now, ends_at: entry.ends_at.max(ends_at), ..entry });
        true
    }

    /// The holds, the bound, and how many were refused.
    pub(super) fn counts(&self, now: Timestamp) -> (u64, u64, u64) {
        let entries = self.lock(now);
        (count(&entries.ends), self.max, entries.refused)
    }
}

impl Entries {
    /// Forgets what has ended. After a clock that went back, each hold lasts its time from now.
    fn observe(&mut self, now: Timestamp) {
        if self.newest.as_nanos().saturating_sub(now.as_nanos()) > LATE {
            self.restart(now);
            self.newest = now;
        }
        self.newest = self.newest.max(now);
        while let Some((_, id)) = self.ends.first().copied().filter(|(end, _)| *end <= now) {
            self.remove(id);
        }
    }

    fn restart(&mut self, now: Timestamp) {
        let is_ahead = |entry: &Entry| entry.made_at > now;
        let by_id: Vec<_> = self.by_id.iter().filter(|(_, entry)| is_ahead(entry)).collect();
        let ahead: Vec<(HoldId, Entry)> = by_id.into_iter().map(|(id, entry)| (*id, *entry)).collect();
        for (id, entry) in ahead {
            let lasts: Duration = entry.ends_at.since(entry.made_at);
            self.insert(id, Entry { made_at: now, ends_at: now.saturating_add(lasts), ..entry });
        }
    }

    /// Adds a hold, instead of the one with the same id.
    fn insert(&mut self, id: HoldId, entry: Entry) {
        self.remove(id);
        self.by_id.insert(id, entry);
        self.ends.insert((entry.ends_at, id));
        if let Some(caller) = entry.caller {
            self.callers.entry(caller).or_default().insert((entry.ends_at, id));
        }
    }

    fn remove(&mut self, id: HoldId) -> Option<Entry> {
        let entry = self.by_id.remove(&id)?;
        self.ends.remove(&(entry.ends_at, id));
        let held = entry.caller.and_then(|caller| Some((caller, self.callers.get_mut(&caller)?)));
        if let Some((caller, held)) = held {
            held.remove(&(entry.ends_at, id));
            if held.is_empty() {
                self.callers.remove(&caller);
            }
        }
        Some(entry)
    }
}

/// When fewer than `most` of these holds are left; `None` if that is so now.
fn room_at(ends: &BTreeSet<(Timestamp, HoldId)>, most: u64) -> Option<Timestamp> {
    let beyond = count(ends).checked_sub(most)?;
    let end = ends.iter().nth(usize::try_from(beyond).unwrap_or(usize::MAX));
    Some(end.map_or(Timestamp::MAX, |(end, _)| *end))
}

fn count(ends: &BTreeSet<(Timestamp, HoldId)>) -> u64 {
    u64::try_from(ends.len()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(1_000 + secs)
    }

    fn full(bound: HoldsBound, room_at: Timestamp) -> Result<(), Full> {
        Err(Full { cause: Cause::HoldsFull { bound }, room_at })
    }

    #[test]
    fn c5_a_full_ledger_says_whose_bound_it_is_and_when_there_is_room() {
        let ledger = Ledger::new(4, 2);
        let [one, other] = [Caller::new(1), Caller::new(2)];
        let enter = |id, caller, secs| ledger.enter(HoldId(id), caller, NOW, at(secs));
        assert_eq!([enter(1, Some(one), 30), enter(2, Some(one), 20)], [Ok(()), Ok(())]);
        assert_eq!(enter(3, Some(one), 5), full(HoldsBound::Caller, at(20)));
        assert_eq!([enter(4, Some(other), 10), enter(5, None, 40)], [Ok(()), Ok(())]);
        assert_eq!(enter(6, Some(other), 5), full(HoldsBound::All, at(10)));
        assert_eq!(enter(6, None, 5), full(HoldsBound::All, at(10)));
        assert_eq!(enter(6, Some(one), 5), full(HoldsBound::Caller, at(20)), "both are full until then");
        assert_eq!(ledger.counts(NOW), (4, 4, 4));
        assert!(ledger.leave(HoldId(2), NOW) && !ledger.leave(HoldId(2), NOW));
        assert_eq!(enter(7, Some(one.with_share(3)), 5), Ok(()), "a larger share");
        assert_eq!(ledger.enter(HoldId(8), None, at(10), at(11)), Ok(()), "two have ended");
    }

    #[test]
    fn b7_holds_from_a_wild_reading_of_the_clock_last_their_time_from_now() {
        let ledger = Ledger::new(1, 1);
        assert_eq!(ledger.enter(HoldId(1), None, at(90_000), at(90_030)), Ok(()));
        assert_eq!(ledger.enter(HoldId(2), None, NOW, at(9)), full(HoldsBound::All, at(30)));
    }

    #[test]
    fn c7_a_reservation_that_no_store_has_is_taken_once() {
        let ledger = Ledger::new(9, 9);
        assert_eq!(ledger.enter(HoldId(1), None, NOW, at(60)), Ok(()));
        assert!(ledger.take_unstored(HoldId(1), NOW).is_none(), "a store has it");
        ledger.mark_unstored(HoldId(1), NOW);
        assert!(ledger.renew(HoldId(1), NOW, at(90)) && ledger.is_unstored(HoldId(1), at(89)));
        let taken = ledger.take_unstored(HoldId(1), at(89)).expect("it has not ended");
        assert!(ledger.take_unstored(HoldId(1), at(89)).is_none());
        ledger.put_back(HoldId(1), taken, at(89));
        assert!(!ledger.is_unstored(HoldId(1), at(90)), "it has ended");
    }

    #[test]
    fn c8_a_hold_that_two_guards_share_leaves_with_the_last() {
        let ledger = Ledger::new(9, 9);
        assert_eq!(ledger.enter(HoldId(1), None, NOW, at(60)), Ok(()));
        ledger.share(HoldId(1), NOW);
        assert!(ledger.leave(HoldId(1), NOW));
        assert_eq!(ledger.counts(NOW).0, 1);
        assert!(ledger.leave(HoldId(1), NOW));
        assert_eq!(ledger.counts(NOW).0, 0);
    }
}
