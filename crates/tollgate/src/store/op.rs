//! The operations of a store.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use crate::Timestamp;

/// An operation on the keys of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Draw the cost if it fits everywhere. The limiter sends no charge on a
    /// [concurrent](crate::Limit::concurrent) limit: nobody could release the slot.
    Take,
    /// Answer as [`Take`](Self::Take) would, changing nothing.
    Peek,
    /// Answer as [`Take`](Self::Take) would if something else denied the request: draw nothing,
    /// count the attempt and record denied costs.
    Refuse,
    /// Give back up to the cost, the most recently drawn first, never beyond the limit.
    Refund,
    /// Draw up to the cost, stopping at empty.
    Penalise,
    /// Draw a cost that was already used, beyond the limit too: the excess is owed, up to the
    /// limit's debt. The answer is that of a request of cost 0, which waits until nothing is owed.
    Record,
    /// Forget the keys: no unit in use, no block, no reservation.
    Reset,
    /// Deny everything until then; a date in the past lifts the block.
    Block {
        /// When the block ends.
        until: Until,
    },
    /// [`Take`](Self::Take) under a reservation, to be settled within `ttl`. A cost of 0 is a
    /// reservation of 0 units, and takes no slot.
    Reserve {
        /// The reservation.
        hold: HoldId,
        /// How long the reservation can be settled.
        ttl: Duration,
        /// What happens to the units if the reservation expires unsettled.
        on_expiry: OnExpiry,
    },
    /// [`Take`](Self::Take), and hold the one unit that each charge on a
    /// [concurrent](crate::Limit::concurrent) limit costs: a slot, to be released or renewed within
    /// `ttl`. A reservation holds slots as well; they are given back when it expires.
    Acquire {
        /// The slot.
        hold: HoldId,
        /// How long the slot is held.
        ttl: Duration,
    },
    /// End a reservation at the actual cost: give back the excess, of the very units that it drew,
    /// or record the rest. A reservation that expired at most its time to live ago is settled all
    /// the same: what its expiry gave back is recorded, as far as it was used, and what it kept
    /// stays charged. A slot is given back, whatever the cost.
    Settle {
        /// The reservation.
        hold: HoldId,
    },
    /// Hold a reservation or a slot that has not expired for `ttl` from now.
    Renew {
        /// The reservation or the slot.
        hold: HoldId,
        /// How long it is held from now on.
        ttl: Duration,
    },
}

impl Op {
    /// The operation's name in messages.
    #[must_use]
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Peek => "peek",
            Self::Refuse => "refuse",
            Self::Refund => "refund",
            Self::Penalise => "penalise",
            Self::Record => "record",
            Self::Reset => "reset",
            Self::Block { .. } => "block",
            Self::Reserve { .. } => "reserve",
            Self::Acquire { .. } => "acquire",
            Self::Settle { .. } => "settle",
            Self::Renew { .. } => "renew",
        }
    }
}

/// What happens to the units of a reservation that expires unsettled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnExpiry {
    /// They are given back.
    GiveBack,
    /// They stay drawn: for work that counts even if it never finishes, such as a login attempt.
    Keep,
}

/// When a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At this time.
    Date(Timestamp),
    /// After this long. If the clock turns out to have been wrong, the duration is counted anew.
    After(Duration),
}

impl From<Timestamp> for Until {
    fn from(date: Timestamp) -> Self {
        Self::Date(date)
    }
}

impl From<Duration> for Until {
    fn from(span: Duration) -> Self {
        Self::After(span)
    }
}

/// The id of a reservation or of a slot: 128 random bits, so that it cannot be guessed and is never
/// reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HoldId(pub u128);

impl HoldId {
    /// The id of every slot that holds nothing: no concurrent limit covers the request, or the
    /// store did not see it.
    pub const NO_SLOT: Self = Self(0);

    /// A new id: random bits from the standard library's hash keys.
    pub(crate) fn random() -> Self {
        Self(random_bits() << 64 | random_bits())
    }
}

/// 64 random bits.
fn random_bits() -> u128 {
    u128::from(RandomState::new().hash_one(0))
}
