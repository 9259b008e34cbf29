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
    /// [`Take`](Self::Take) under a reservation, to be settled within `ttl`. A cost of 0 reserves
    /// nothing, and nothing is stored.
    Reserve {
        /// The reservation.
        hold: HoldId,
        /// The digest of the client that reserves: one holder cannot use up the reservations of
        /// others.
        holder: u64,
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
    /// End a reservation at the actual cost: give back the excess, or record the rest. A
    /// reservation that expired at most its time to live ago is settled all the same: the units
    /// that its expiry gave back are recorded, and an estimate that was kept stays charged. A slot
    /// is given back, whatever the cost.
    ///
    /// Of a reservation that [holds nothing](HoldId::nothing_ends_at) all of the cost is recorded,
    /// and the keys keep a note that it was settled until it ends: settling counts once, however
    /// often it is sent.
    Settle {
        /// The reservation.
        hold: HoldId,
    },
    /// Hold a reservation or a slot that has not expired for `ttl` from now. A reservation that
    /// holds nothing can be settled for `2 * ttl` from now, of which the keys keep a note.
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

    /// The reservation that the operation settles or renews, and its end, if it holds nothing.
    pub(crate) fn nothing(&self) -> Option<(HoldId, Timestamp)> {
        match *self {
            Self::Settle { hold } | Self::Renew { hold, .. } => Some((hold, hold.nothing_ends_at()?)),
            _ => None,
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

/// The id of a reservation or of a slot: random, so that it cannot be guessed and is never reused.
///
/// A reservation that holds nothing, such as one of cost 0, is not stored. Its id says so, and
/// until when it can be settled: 32 bits that are set, the end in nanoseconds in 64 bits, and 32
/// random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldId(pub u128);

impl HoldId {
    /// The id of every slot that holds nothing: no concurrent limit covers the request, or the
    /// store did not see it.
    pub const NO_SLOT: Self = Self(0);

    /// A unique id of a reservation that holds something, or of a slot: random bits from the
    /// standard library's hash keys.
    pub(crate) fn random() -> Self {
        // The first bit is clear: it is no id of a reservation that holds nothing.
        Self((random_bits() << 64 | random_bits()) >> 1)
    }

    /// A unique id of a reservation that holds nothing and can be settled until then.
    pub(crate) fn nothing_until(end: Timestamp) -> Self {
        Self(NOTHING << 96 | u128::from(end.as_nanos()) << 32 | random_bits() >> 32)
    }

    /// Until when a reservation that holds nothing can be settled, unless it is renewed. `None` for
    /// every other reservation and for slots.
    #[must_use]
    pub fn nothing_ends_at(self) -> Option<Timestamp> {
        let end = u64::try_from((self.0 >> 32) & u128::from(u64::MAX)).ok()?;
        (self.0 >> 96 == NOTHING).then_some(Timestamp::from_nanos(end))
    }
}

/// The first 32 bits of the id of a reservation that holds nothing.
const NOTHING: u128 = 0xffff_ffff;

/// 64 random bits.
fn random_bits() -> u128 {
    u128::from(RandomState::new().hash_one(0))
}
