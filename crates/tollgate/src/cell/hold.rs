//! The things in a cell that outlive a decision: blocks, and reservations and slots.

use std::time::Duration;

use crate::Timestamp;
use crate::algorithm::{Drawn, LATE};
use crate::store::{OnExpiry, Until};

/// A reservation: units that come back at `expires_at`, or stay drawn, unless settled before.
///
/// An expired reservation is kept for as long again as it lasted, with the units that are still
/// drawn for it: a settlement that comes late is told from one that is sent twice.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Hold {
    /// Units drawn for it. After the expiry, those that it did not give back.
    pub(super) units: u64,
    pub(super) drawn: Drawn,
    /// When it was made, or renewed.
    pub(super) made_at: Timestamp,
    pub(super) expires_at: Timestamp,
    pub(super) on_expiry: OnExpiry,
    pub(super) is_slot: bool,
    pub(super) has_expired: bool,
}

impl Hold {
    /// A new reservation of units that are drawn now.
    pub(super) fn reservation(units: u64, now: Timestamp, ttl: Duration, on_expiry: OnExpiry) -> Self {
        let drawn = Drawn { at: Some(now.as_nanos()), ..Drawn::any((0, 0)) };
        let expires_at = now.saturating_add(ttl);
        Self { units, drawn, made_at: now, expires_at, on_expiry, is_slot: false, has_expired: false }
    }

    /// A new slot.
    pub(super) fn slot(now: Timestamp, ttl: Duration) -> Self {
        let drawn = Drawn::any((0, 0));
        Self { drawn, is_slot: true, ..Self::reservation(1, now, ttl, OnExpiry::GiveBack) }
    }

    /// The hold, lasting its full time to live from now.
    pub(super) fn restarted(self, now: Timestamp) -> Self {
        Self { made_at: now, expires_at: now.saturating_add(self.ttl()), ..self }
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
        if self.is_slot { self.expires_at } else { self.expires_at.saturating_add(self.ttl()) }
    }

    /// Whether its expiry will give units back.
    pub(super) fn gives_back(&self) -> bool {
        !self.has_expired && self.on_expiry == OnExpiry::GiveBack
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

    /// Whether the clock has gone back since the block was set: its duration is then counted from
    /// now.
    pub(super) fn is_ahead(self, now: Timestamp) -> bool {
        self.set_at.as_nanos().saturating_sub(now.as_nanos()) > LATE
    }

    /// The block, for its full duration from now if it is ahead.
    pub(super) fn restarted(self, now: Timestamp) -> Self {
        if self.is_ahead(now) { Self::new(Until::After(self.until.since(self.set_at)), now) } else { self }
    }
}
