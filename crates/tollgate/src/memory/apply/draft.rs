//! A budget while an operation is applied to it, with or without room for its key.

use std::time::Duration;

use smallvec::SmallVec;

use super::{Group, ReservedRoom};
use crate::cell::Cell;
use crate::memory::locked::LockedList;
use crate::memory::shard::{Location, Unpacked};
use crate::store::{Answer, Cause, Charge, Overflow, Part};
use crate::{Outcome, Timestamp, Verdict};

/// The shortest `retry_after` of a new key when every slot is busy.
const FULL_RETRY: Duration = Duration::from_millis(1);

/// A budget while an operation is applied to it.
pub(super) struct Draft<'a> {
    pub(super) group: &'a Group<'a>,
    pub(super) found: Option<Location>,
    /// Whether the key is new and there is no room for it.
    pub(super) lacks_room: bool,
    pub(super) reserved: Option<ReservedRoom<'a>>,
    pub(super) unpacked: Unpacked,
}

impl<'a> Draft<'a> {
    /// Loads the cells of the budget, at least one per limit. A request may charge only some of
    /// them: slots are released apart from the rates beside them.
    pub(super) fn load(&mut self, locked: &mut LockedList<'_>) {
        let Self { group, unpacked, .. } = self;
        let limit = group.charges.first().map(|charge| charge.limit);
        let inline = limit.filter(|limit| limit.inline_longest().is_some());
        let load = |found| locked.shard(group.slot.shard).load(found, inline);
        if let Some(loaded) = self.found.and_then(load) {
            *unpacked = loaded;
        }
        let charged =
            |index: usize| group.charges.iter().find(|charge| usize::from(charge.key.index()) == index);
        for (index, limit) in group.tag.limits.iter().enumerate().skip(unpacked.cells.len()) {
            unpacked.cells.push(Cell::new(charged(index).map_or(*limit, |charge| *charge.limit)));
        }
    }

    /// Whether the request is denied for lack of room. A shadow charge denies nothing, and an
    /// overflow without room lends nothing.
    pub(super) fn is_refused(&self) -> bool {
        let denies = |charge: &Charge<'_>| !charge.shadow;
        self.lacks_room && !self.group.only_lends() && self.group.charges.iter().any(denies)
    }

    /// The charges of the budget. An overflow without room is detached from its rule.
    pub(super) fn charges(&self) -> impl Iterator<Item = Charge<'a>> + use<'a> {
        let detached = self.lacks_room && self.group.only_lends();
        let charges = self.group.charges.iter().copied();
        charges.map(move |charge| if detached { Charge { part: Part::Whole, ..charge } } else { charge })
    }

    /// The cells of the charges.
    pub(super) fn cells(&mut self) -> impl Iterator<Item = &mut Cell> {
        let mut cells: SmallVec<[_; 4]> = self.unpacked.cells.iter_mut().map(Some).collect();
        let charges = self.group.charges.iter();
        charges.filter_map(move |charge| cells.get_mut(usize::from(charge.key.index()))?.take())
    }

    pub(super) fn put_back(self, locked: &mut LockedList<'_>) {
        if let Some(found) = self.found {
            locked.shard(self.group.slot.shard).put_back(found, self.unpacked);
        }
    }

    /// Answers that every slot is busy until `room_at`: a denial, or an overflow that lends
    /// nothing.
    pub(super) fn refuse(&self, answer: &mut Answer, now: Timestamp, room_at: Timestamp) {
        if answer.outcome.verdict == Verdict::Never {
            return;
        }
        let later = room_at.max(now.saturating_add(FULL_RETRY));
        let verdict = Verdict::Denied { retry_after: later.since(now) };
        let outcome = Outcome { now, verdict, remaining: 0, owed: 0, reset_at: later, grows_at: later };
        *answer = Answer { outcome, cause: Cause::StoreFull, ..*answer };
        if self.group.only_lends() {
            answer.outcome.verdict = Verdict::Allowed;
            (answer.cause, answer.overflow) = (Cause::Limit, Overflow::Into { drawn: 0 });
        }
    }
}
