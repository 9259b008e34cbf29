//! Where state is kept: one seam, one atomic verb.

use std::fmt;
use std::future::{Future, ready};
use std::time::Duration;

use smallvec::SmallVec;

use crate::rule::Tag;
use crate::{Error, Key, Limit, MemoryStore, Outcome, Timestamp};

/// Keeps what has been drawn on every key, and applies whole requests to it.
///
/// # Contract
///
/// **One at a time.** `apply` acts on all charges of a call as one atomic step. Calls that share a
/// key take effect one after the other, in an order that agrees with real time (linearizable per
/// key), whichever threads or processes they come from.
///
/// **All or nothing.** [`Op::Take`] and [`Op::Reserve`] draw on every key if every charge that is
/// not a shadow fits, and on none otherwise. (A limit that counts denied attempts counts them,
/// unless they can never fit.) A shadow charge is drawn if the request is admitted and all shadow
/// charges of the same rule fit. The same key twice in one call is charged once, with the larger
/// cost.
///
/// **The arithmetic is [`Meter`](crate::Meter)'s.** Same limit, same history, same time, same
/// numbers: to the unit and to the store's resolution in time. Where the stored state was written
/// under another limit than the charge's, it is first [retuned](crate::Meter::retune);
/// the other verbs leave the limit as it is. [`transact`](crate::transact) does all of that, for
/// stores that keep [states](crate::State) in a database of their own.
///
/// **Time.** `now` is the caller's reading. A store with a clock of its own may use that instead,
/// and says in [`Applied::now`] which time it used; the times in an [`Op`] then mean as long from
/// that as they are from `now`. Readings may repeat, jump and go back.
///
/// **Forgetting.** A key with nothing in use, no block and no reservation may be forgotten at any
/// time; any other may not.
///
/// **Failure.** An `Err` means that nothing is known of what happened, not that nothing did: the
/// limiter then follows the rule's policy. A call that does not complete within the limiter's
/// deadline is dropped, and counts as failed.
///
/// `tollgate_testkit::conformance!` tests an implementation against all of this in one line.
pub trait Store: Send + Sync {
    /// Does `op` to all of `charges` and answers each of them, in order.
    fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Applied, StoreError>> + Send;

    /// Forgets every key of a rule, whatever it has in use, and says how many there were. Requests that
    /// come meanwhile may find theirs or not.
    fn clear(&self, rule: &str) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let _ = rule;
        ready(Err(StoreError::Unsupported { verb: "clear" }))
    }

    /// Whether this store can keep such a limit: asked once for each limit when a limiter is built,
    /// before any traffic.
    ///
    /// # Errors
    /// Whatever keeps it from doing so, usually [`Error::InvalidLimit`].
    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        let _ = limit;
        Ok(())
    }

    /// How many keys are kept, if the store knows without looking.
    fn live_keys(&self) -> Option<u64> {
        None
    }

    /// The memory store that this is, if it is one: then a limiter answers at once, with nothing to
    /// wait for ([`Limiter::check_now`](crate::Limiter::check_now)).
    fn as_memory(&self) -> Option<&MemoryStore> {
        None
    }
}

impl<S: Store> Store for std::sync::Arc<S> {
    fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Applied, StoreError>> + Send {
        (**self).apply(op, charges, now)
    }

    fn clear(&self, rule: &str) -> impl Future<Output = Result<u64, StoreError>> + Send {
        (**self).clear(rule)
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        (**self).accepts(limit)
    }

    fn live_keys(&self) -> Option<u64> {
        (**self).live_keys()
    }

    fn as_memory(&self) -> Option<&MemoryStore> {
        (**self).as_memory()
    }
}

/// What to do to a request's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Op {
    /// Draw the cost if it fits everywhere.
    Take,
    /// Say what [`Take`](Self::Take) would say, changing nothing.
    Peek,
    /// Give back up to the cost, the most recently drawn first, never beyond the limit.
    Refund,
    /// Draw up to the cost, stopping at empty.
    Penalise,
    /// Forget the keys: nothing in use, no block, no reservation.
    Reset,
    /// Deny everything until then; a date that is past lifts the block.
    Block {
        /// When the block ends.
        until: Until,
    },
    /// As [`Take`](Self::Take), remembering what was drawn under `hold` until it is settled or
    /// `ttl` has passed: then it is given back, or, if it is `firm`, kept. A cost of 0 holds
    /// nothing.
    Reserve {
        /// The reservation.
        hold: HoldId,
        /// Whose it is, as a number: one holder cannot use up the places that others need.
        holder: u64,
        /// How long it can be settled.
        ttl: Duration,
        /// Whether what is not settled by then stays drawn.
        firm: bool,
    },
    /// End a reservation: give back what was held beyond the cost, or draw what it lacks, stopping
    /// at empty.
    Settle {
        /// The reservation.
        hold: HoldId,
    },
}

impl Op {
    /// What it is called in messages.
    #[must_use]
    pub const fn verb(&self) -> &'static str {
        match self {
            Self::Take => "take",
            Self::Peek => "peek",
            Self::Refund => "refund",
            Self::Penalise => "penalise",
            Self::Reset => "reset",
            Self::Block { .. } => "block",
            Self::Reserve { .. } => "reserve",
            Self::Settle { .. } => "settle",
        }
    }
}

/// When a block ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    /// At this time.
    Date(Timestamp),
    /// After this long, whatever the clock shows now: if it turns out to have been wrong, the rest
    /// of the time is counted anew.
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

/// Identifies a reservation: random, so that it cannot be guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HoldId(pub u128);

impl HoldId {
    /// Any reservation of a cost of 0: it is held nowhere, and a settlement takes all of the cost.
    pub const NOTHING: Self = Self(0);
}

/// One limit of a budget that a request draws on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Charge<'a> {
    /// Which.
    pub key: Key<'a>,
    /// The limit that is in force.
    pub limit: &'a Limit,
    /// How much.
    pub cost: u64,
    /// Whether it only watches.
    pub shadow: bool,
    /// The budget, and all limits that are in force for it.
    pub(crate) tag: Tag,
}

/// What a store did.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The time it was done at.
    pub now: Timestamp,
    /// An answer for each charge, in order.
    pub answers: SmallVec<[Answer; 4]>,
    /// Whether anything that is kept has changed.
    pub changed: bool,
    /// How many states were converted from a limit that was replaced.
    pub converted: u64,
}

impl Applied {
    /// Nothing was asked for.
    pub(crate) fn nothing(now: Timestamp) -> Self {
        Self { now, answers: SmallVec::new(), changed: false, converted: 0 }
    }
}

/// What became of one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The verdict and the numbers afterwards. After a denial they are what a peek of the same
    /// request would say next.
    pub outcome: Outcome,
    /// How many units moved: given back by a refund, drawn by a penalty; for a settlement, how many
    /// it lacked.
    pub units: u64,
    /// For a settlement, whether the reservation was still there.
    pub held: bool,
    /// What a denial is due to.
    pub cause: Cause,
}

/// What a denial is due to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The limit.
    #[default]
    Limit,
    /// A block, which denies everything until it ends.
    Block {
        /// When it ends.
        until: Timestamp,
    },
    /// The store has no room for one more key that is in use.
    StoreFull,
}

/// Why a store could not answer. For logs and metrics; clients never see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// It could not be reached, or failed.
    Unavailable {
        /// In its own words.
        reason: String,
    },
    /// It did not answer within the deadline.
    TimedOut,
    /// It has no room for one more key that is in use.
    Full,
    /// It cannot do this.
    Unsupported {
        /// What it was asked to do.
        verb: &'static str,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { reason } => write!(f, "the store is unavailable: {reason}"),
            Self::TimedOut => f.write_str("the store did not answer within its deadline"),
            Self::Full => f.write_str("the store is full of keys in use"),
            Self::Unsupported { verb } => write!(f, "the store cannot {verb}"),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Full => Self::StoreFull,
            StoreError::Unsupported { verb } => Self::Unsupported { verb },
            StoreError::Unavailable { .. } | StoreError::TimedOut => Self::StoreUnavailable,
        }
    }
}
