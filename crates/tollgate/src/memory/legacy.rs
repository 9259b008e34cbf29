//! State in the version 1 format of the disk store and of dumps.
//!
//! Version 1 did not name the rule of a key, and gave a client that is a number another identity.
//! Its keys are loaded under a rule with an empty name. Each key is migrated by the first request
//! that draws on its budget. When the last key is migrated or forgotten, migration ends.

use super::MemoryStore;
use super::locked::LockedList;
use super::lookup::shard_of;
use super::shard::{Cells, Unpacked};
use crate::cell::Cell;
use crate::key::Budget;
use crate::store::Charge;
use crate::sync::atomic::Ordering;
use crate::{Algorithm, Limit, Meter, RuleName};

/// Length of a version 1 page's name, with one byte for the shard.
pub(super) const NAME_V1: usize = 2;

impl MemoryStore {
    /// Whether any version 1 keys may be left.
    #[inline]
    pub(super) fn has_legacy(&self) -> bool {
        self.has_legacy.load(Ordering::Relaxed)
    }

    /// Migrates the version 1 state of this charge's budget, if there is any.
    #[cold]
    pub(super) fn migrate(&self, charge: &Charge<'_>) {
        let unnamed = self.room.of(RuleName::intern(""));
        if unnamed.live() == 0 {
            self.has_legacy.store(false, Ordering::Relaxed);
            return;
        }
        let id = self.secrets.identify_v1(&charge.key);
        let (from, to) = (shard_of(self.secrets.home(id)), self.slot_of(&charge.key));
        let mut locked = LockedList::lock(self, [from, to.shard].into_iter());
        let old = locked.shard(from);
        let Some(found) = old.find(id, charge.tag.words()) else { return };
        if old.tag(found).is_none_or(|tag| !tag.rule.is_empty()) {
            return;
        }
        let Some(unpacked) = old.load(found, None) else { return };
        old.forget(found);
        let (now, new) = (old.latest, locked.shard(to.shard));
        self.room.release(&unnamed);
        if new.find(to.id, charge.tag.words()).is_none() {
            let Some(cells) = migrated(unpacked.cells, charge) else { return };
            if new.store(None, to.id, Unpacked { tag: charge.tag, cells }, now) {
                self.room.take(&self.room.of(charge.key.rule()), false);
            }
        }
    }
}

/// The migrated cells of a version 1 budget. In version 1 each inline limit replaced the one
/// before; now the budget keeps its time or its count.
fn migrated(cells: Cells, charge: &Charge<'_>) -> Option<Cells> {
    let state: &[u64] = match (charge.key.budget(), cells.first()) {
        (Budget::Rule, _) => return Some(cells),
        (Budget::InlineTime, Some(cell)) => &[cell.meter().idle_at(), 0, 0],
        (Budget::InlineCount(period), Some(cell)) => match cell.limit().algorithm() {
            Algorithm::FixedWindow { period: was, .. } if was == period => {
                &[cell.meter().idle_at(), cell.meter().used(cell.meter().written_at())]
            }
            _ => return None,
        },
        _ => return None,
    };
    Some(std::iter::once(Cell::plain(Meter::load(*charge.limit, state))).collect())
}

/// A version 1 cell: its block, the number of reservations, six numbers per reservation, and the
/// state.
pub(super) fn cell_of_v1(limit: &Limit, numbers: &[u64]) -> Option<Cell> {
    const HOLD_NUMBERS: usize = 6;
    let ([blocked_until, holds], rest) = numbers.split_first_chunk()?;
    let length = usize::try_from(*holds).ok()?.checked_mul(HOLD_NUMBERS)?;
    let (held, state) = rest.split_at_checked(length)?;
    let mut now = vec![0, *blocked_until, *holds];
    for [low, high, units, expires_at, lapses_at, firm] in held.as_chunks::<HOLD_NUMBERS>().0 {
        // Version 1 did not record the holder and the time of a reservation.
        now.extend([*low, *high, 0, *units, 0, *expires_at, *lapses_at, *firm]);
    }
    now.extend(state);
    Cell::from_numbers(*limit, &now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::HoldId;
    use crate::{HOUR, Limiter, ManualClock, Request, Rule, RuleSet, Timestamp, block_on};

    /// Version 1 state in hexadecimal: the id of a reservation, then names and contents of pages.
    /// Clients alice (cost 3) and 42 (cost 5) had been checked, bob had reserved 6, eve was blocked
    /// for ten minutes. Alice had also drawn 10 under an inline limit of 60 an hour, and 4 under an
    /// inline window of 9 an hour.
    const WRITTEN: &str = include_str!("legacy/v1.txt");

    fn bytes(hex: &str) -> Vec<u8> {
        let byte = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    fn limiter() -> (Limiter, HoldId) {
        let store = MemoryStore::new().seeded([1, 2]);
        let (hold, pages) = WRITTEN.split_once('\n').unwrap();
        for page in pages.lines() {
            let (name, content) = page.split_once(' ').unwrap();
            store.loader().load(&bytes(name), &bytes(content)).unwrap();
        }
        let per_client = [Limit::per_hour(100), Limit::fixed_window(40, HOUR)];
        let rules = RuleSet::new([
            Rule::new("per-client", per_client).key(["client"]),
            Rule::new("log", Limit::sliding_log(20, HOUR)).key(["client"]),
            Rule::new("global", Limit::per_hour(7).burst(70)),
            Rule::inline("cl.throttle").key(["client"]),
            Rule::inline("envoy.override").key(["client"]),
        ]);
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let limiter = Limiter::builder(rules.unwrap()).store(store).clock(clock).build().unwrap();
        let hold = u128::from_str_radix(hold.strip_prefix("hold 0x").unwrap(), 16).unwrap();
        (limiter, HoldId(hold))
    }

    #[test]
    fn version_1_state_is_migrated_by_the_client_s_next_request() {
        let (limiter, hold) = limiter();
        assert_eq!(limiter.stats().live_keys, Some(11));
        let left = |request: Request<'_>| -> Vec<u64> {
            let decision = block_on(limiter.peek(request)).unwrap();
            decision.limits().iter().map(|report| report.outcome.remaining).collect()
        };
        assert_eq!(left(Request::client("alice")), [97, 37, 17, 56]);
        assert_eq!(left(Request::client("42")), [95, 35, 15, 56], "a number has another identity now");
        assert_eq!(left(Request::client("new")), [100, 40, 20, 56]);
        let (bucket, window) = (
            limiter.inline(Limit::per_hour(60)).unwrap(),
            limiter.inline(Limit::fixed_window(9, HOUR)).unwrap(),
        );
        assert_eq!(left(Request::client("alice").under("cl.throttle", &bucket)), [50]);
        assert_eq!(left(Request::client("alice").under("envoy.override", &window)), [5]);
        let eve = limiter.check("eve").unwrap();
        assert_eq!(eve.retry_after(), Some(HOUR / 6));
        assert!(limiter.check(Request::client("42").cost(5)).unwrap().allowed());
        assert_eq!(left(Request::client("42")), [90, 30, 10, 51]);
        block_on(limiter.settle(hold, Request::client("bob").cost(1))).unwrap();
        assert_eq!(left(Request::client("bob")), [99, 39, 19, 56]);
        assert!(!limiter.store().has_legacy(), "all of it is migrated");
        assert_eq!(limiter.stats().live_keys, Some(11));
    }

    #[test]
    fn version_1_state_that_no_request_migrated_is_kept_in_pages() {
        let (limiter, _) = limiter();
        limiter.store().set_tracked(true);
        limiter.store().all_pages_changed();
        let again = MemoryStore::new().seeded([1, 2]);
        limiter.store().changed_pages(|name, content| {
            if !content.is_empty() {
                again.loader().load(name, content).unwrap();
            }
        });
        assert!(again.has_legacy());
        assert_eq!(again.memory_stats().live, 11);
    }
}
