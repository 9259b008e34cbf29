//! The things in a cell that outlive a decision: blocks, and reservations and slots.

use std::time::Duration;

use crate::Timestamp;
use crate::algorithm::LATE;
use crate::store::{HoldId, OnExpiry, Until};

/// A reservation: units that come back at `expires_at`, or stay drawn, unless settled before.
///
/// An expired reservation is kept for as long again as it lasted, with the units that are still
/// drawn for it: a settlement that comes late is told from one that is sent twice.
///
/// A *note* is about a reservation that holds nothing: it was settled, or renewed. It is stored as
/// a reservation of 0 units that has expired, was made at the epoch and ends at `expires_at`; one
/// that was renewed and not settled is kept ([`OnExpiry::Keep`]).
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hold {
    pub(super) id: HoldId,
    /// The digest of the client that made it.
    pub(super) holder: u64,
    pub(super) units: u64,
    pub(super) made_at: Timestamp,
    pub(super) expires_at: Timestamp,
    /// When the units would have come back without the reservation: from then on there is nothing
    /// to give back.
    pub(super) lapses_at: u64,
    pub(super) on_expiry: OnExpiry,
    pub(super) has_expired: bool,
}

impl Hold {
    /// A new slot.
    pub(super) fn slot(id: HoldId, now: Timestamp, ttl: Duration) -> Self {
        let (made_at, expires_at, on_expiry) = (now, now.saturating_add(ttl), OnExpiry::GiveBack);
        let (holder, units, lapses_at, has_expired) = (0, 1, 0, false);
        Self { id, holder, units, made_at, expires_at, lapses_at, on_expiry, has_expired }
    }

    /// A note of a reservation that holds nothing, kept until its end.
    pub(super) fn note(id: HoldId, end: Timestamp, is_settled: bool) -> Self {
        let (made_at, expires_at, has_expired) = (Timestamp::EPOCH, end, true);
        let on_expiry = if is_settled { OnExpiry::GiveBack } else { OnExpiry::Keep };
        let (holder, units, lapses_at) = (0, 0, 0);
        Self { id, holder, units, made_at, expires_at, lapses_at, on_expiry, has_expired }
    }

    pub(super) fn is_note(&self) -> bool {
        self.id.nothing_ends_at().is_some()
    }

    /// Whether a wild reading of the clock made it: it is ahead of `now` by more than its time to
    /// live.
    pub(super) fn is_wild(&self, now: Timestamp) -> bool {
        let ahead = self.made_at.since(now);
        ahead > self.ttl() && ahead > Duration::from_nanos(LATE)
    }

    pub(super) fn ttl(&self) -> Duration {
        self.expires_at.since(self.made_at)
    }

    /// Until when it can be settled.
    pub(super) fn ends_at(&self) -> Timestamp {
        // A note. An older version did not keep when a reservation was made either.
        if self.made_at == Timestamp::EPOCH {
            return self.expires_at;
        }
        self.expires_at.saturating_add(self.ttl())
    }

    /// Whether it has to expire, or to be forgotten.
    pub(super) fn is_due(&self, now: Timestamp) -> bool {
        let due_at = if self.has_expired { self.ends_at() } else { self.expires_at };
        due_at <= now
    }
}

/// A span of time in which everything is denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Block {
    /// When it was set, for a block with a duration; the epoch for a block with an end date.
    pub(super) set_at: Timestamp,
    pub(super) until: Timestamp,
}

impl Block {
    pub(super) fn new(until: Until, now: Timestamp) -> Self {
        match until {
            // A lifted block is not in force again when the clock goes back.
            Until::Date(until) if until <= now => Self::default(),
            Until::Date(until) => Self { set_at: Timestamp::EPOCH, until },
            Until::After(span) => Self { set_at: now, until: now.saturating_add(span) },
        }
    }

    pub(super) fn lasts(self) -> Duration {
        self.until.since(self.set_at)
    }

    /// Whether the clock has gone back since the block was set: its duration is then counted from
    /// now.
    pub(super) fn is_ahead(self, now: Timestamp) -> bool {
        self.set_at.as_nanos().saturating_sub(now.as_nanos()) > LATE
    }
}
