//! The store interface: one trait with one atomic operation.

use std::fmt;
use std::future::{Future, ready};
use std::time::Duration;

use smallvec::SmallVec;

use crate::rule::Tag;
use crate::{Error, Key, Limit, MemoryStore, Outcome, Rule, Timestamp};

mod op;
mod overflow;

pub use op::{HoldId, OnExpiry, Op, Until};
pub use overflow::{Overflow, Part};

/// The default of [`Store::in_flight_max`].
const IN_FLIGHT_MAX: usize = 64;

/// Keeps the state of every key, and applies whole requests to it.
///
/// # Contract
///
/// **One at a time.** `apply` acts on all charges of a call as one atomic step. Calls that share a
/// key take effect one after the other, in an order that agrees with real time (linearizable per
/// key), whichever threads or processes they come from.
///
/// **All or nothing.** [`Op::Take`], [`Op::Reserve`] and [`Op::Acquire`] draw on every key if every
/// charge that is not a shadow fits, and on none otherwise. (A limit that counts denied attempts
/// counts them, unless they can never fit.) [`Op::Refuse`] draws on none. A shadow charge is drawn
/// if the request is admitted and all shadow charges of the same rule fit. A call has no key twice:
/// the limiter merges such charges.
///
/// **Denied costs.** Where a take is denied, or refused, and a charge that
/// [records](Charge::record_denied) does not fit, the cost is recorded on every charge of its
/// budget, in the same step and as [`Op::Record`] would.
///
/// **Overflow.** Where a charge is only the first [part](Charge::part) of its cost, the charges of
/// the rest cover what it lacks, in the same step.
///
/// **The arithmetic is [`Meter`](crate::Meter)'s.** Same limit, same history, same time, same
/// numbers: to the unit and to the store's resolution in time. Where the stored state was written
/// under another limit than the charge's, every operation sees it
/// [retuned](crate::Meter::retune) to the charge's, and one that changes it stores it so.
/// [`transact`](crate::transact) does all of that, for stores that keep [states](crate::State) in a
/// database of their own.
///
/// **Time.** `now` is the caller's reading. A store with its own clock may use that instead, and
/// reports the time it used in [`Applied::now`]; the times in an [`Op`] are then shifted by the
/// difference. Readings may repeat, jump and go back.
///
/// **Forgetting.** A key with no unit in use, no block, no reservation and no slot may be
/// forgotten at any time; any other may not.
///
/// **Failure.** An `Err` means that the effect is unknown, not that there was none: the limiter
/// then follows the rule's failure policy. A call that does not complete within the limiter's
/// deadline is dropped, and counts as failed.
///
/// **Callers.** The limiter bounds the charges that are in flight to a store which does not
/// [decide in memory](Self::decides_in), and its callers take turns. A caller who leaves does not
/// cut a call short: inside a tokio runtime (feature `tokio`) it runs to its end.
///
/// `tollgate_testkit::conformance!` tests an implementation against all of this in one line.
pub trait Store: Send + Sync + 'static {
    /// Applies `op` to all of `charges` and answers each of them, in order.
    fn apply(
        &self,
        op: Op,
        charges: &[Charge<'_>],
        now: Timestamp,
    ) -> impl Future<Output = Result<Applied, StoreError>> + Send;

    /// Applies several requests one after the other, in order, each as [`apply`](Self::apply) does,
    /// and answers each of them. The limiter passes at most [`batch_max`](Self::batch_max) charges.
    fn apply_each(
        &self,
        op: Op,
        requests: &[&[Charge<'_>]],
        now: Timestamp,
    ) -> impl Future<Output = Vec<Result<Applied, StoreError>>> + Send {
        async move {
            let mut answers = Vec::with_capacity(requests.len());
            for charges in requests {
                answers.push(self.apply(op, charges, now).await);
            }
            answers
        }
    }

    /// The answer that [`apply`](Self::apply) would give without asking anybody, such as a denial
    /// that this process remembers. It takes no turn in the limiter's queue.
    fn recall(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Option<Applied> {
        let _ = (op, charges, now);
        None
    }

    /// The most charges in one call of [`apply_each`](Self::apply_each), unless one request alone
    /// has more. All of them together are answered within one deadline. The default of 1 is for
    /// stores that gain nothing by seeing several requests at once.
    fn batch_max(&self) -> usize {
        1
    }

    /// The most charges that may be in flight to this store at once, so that a call waits for its
    /// turn here, and not in the store behind other callers' calls. The limiter's
    /// [`in_flight_max`](crate::LimiterBuilder::in_flight_max) overrides it.
    fn in_flight_max(&self) -> usize {
        IN_FLIGHT_MAX
    }

    /// Completes once the store can be called without waiting for a connection, or has failed to
    /// connect. The limiter waits for it before the deadline of a call begins.
    fn ready(&self) -> impl Future<Output = ()> + Send {
        ready(())
    }

    /// Forgets every key of a rule, with all units in use, and returns their number. A concurrent
    /// request may or may not find its key.
    fn clear(&self, rule: &str) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let _ = rule;
        ready(Err(StoreError::Unsupported { verb: "clear" }))
    }

    /// Checks that this store can keep `limit`. Called once per limit when a limiter is built,
    /// before any traffic.
    ///
    /// # Errors
    /// The reason why not, usually [`Error::InvalidLimit`].
    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        let _ = limit;
        Ok(())
    }

    /// Checks that this store can decide a rule and the rule that it [overflows](Rule::overflow)
    /// into in one step. Called once per such pair when a limiter is built.
    ///
    /// # Errors
    /// The reason why not, as [`Error::InvalidRule`].
    fn accepts_overflow(&self, rule: &Rule, into: &Rule) -> Result<(), Error> {
        let _ = (rule, into);
        Ok(())
    }

    /// The number of keys kept, if the store knows it without counting.
    fn live_keys(&self) -> Option<u64> {
        None
    }

    /// The memory store in which this store decides, if it does: a limiter then checks without
    /// [`apply`](Self::apply) and without waiting
    /// ([`Limiter::in_memory`](crate::Limiter::in_memory)).
    fn decides_in(&self) -> Option<&MemoryStore> {
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

    fn apply_each(
        &self,
        op: Op,
        requests: &[&[Charge<'_>]],
        now: Timestamp,
    ) -> impl Future<Output = Vec<Result<Applied, StoreError>>> + Send {
        (**self).apply_each(op, requests, now)
    }

    fn recall(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Option<Applied> {
        (**self).recall(op, charges, now)
    }

    fn batch_max(&self) -> usize {
        (**self).batch_max()
    }

    fn in_flight_max(&self) -> usize {
        (**self).in_flight_max()
    }

    fn ready(&self) -> impl Future<Output = ()> + Send {
        (**self).ready()
    }

    fn clear(&self, rule: &str) -> impl Future<Output = Result<u64, StoreError>> + Send {
        (**self).clear(rule)
    }

    fn accepts(&self, limit: &Limit) -> Result<(), Error> {
        (**self).accepts(limit)
    }

    fn accepts_overflow(&self, rule: &Rule, into: &Rule) -> Result<(), Error> {
        (**self).accepts_overflow(rule, into)
    }

    fn live_keys(&self) -> Option<u64> {
        (**self).live_keys()
    }

    fn decides_in(&self) -> Option<&MemoryStore> {
        (**self).decides_in()
    }
}

/// A charge: the cost that one limit of a budget is charged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Charge<'a> {
    /// The budget and the limit's index in it.
    pub key: Key<'a>,
    /// The limit in force.
    pub limit: &'a Limit,
    /// Units to charge.
    pub cost: u64,
    /// Whether the rule is a shadow rule, which never denies.
    pub shadow: bool,
    /// Whether the cost is recorded if a limit of the budget denies it.
    pub record_denied: bool,
    /// The part of the cost that the limit covers.
    pub part: Part,
    /// The budget and all limits in force for it.
    pub(crate) tag: Tag,
}

/// The result of [`Store::apply`].
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// The time at which the operation was applied.
    pub now: Timestamp,
    /// One answer per charge, in order.
    pub answers: SmallVec<[Answer; 4]>,
    /// Whether any stored state has changed.
    pub changed: bool,
    /// Number of states that were converted because their limit was replaced.
    pub converted: u64,
}

impl Applied {
    /// The result of no charges.
    pub(crate) fn nothing(now: Timestamp) -> Self {
        Self { now, answers: SmallVec::new(), changed: false, converted: 0 }
    }
}

/// The answer to one charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The verdict and the numbers afterwards. After a denial the numbers are those that a peek of
    /// the same request would report next.
    pub outcome: Outcome,
    /// What the operation did besides.
    pub effect: Effect,
    /// The cause of a denial.
    pub cause: Cause,
    /// The limit's part in an overflow.
    pub overflow: Overflow,
}

/// The effect of an operation that moves units without a verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Effect {
    /// None: the operation takes, reserves, peeks, blocks or resets.
    #[default]
    None,
    /// A refund gave units back.
    GivenBack {
        /// How many: at most as many as were in use.
        units: u64,
    },
    /// A penalty drew units.
    Drawn {
        /// How many: at most as many as were left.
        units: u64,
    },
    /// A record drew the cost, or a denied check was [recorded](Charge::record_denied).
    Recorded {
        /// The part of the cost beyond the limit's debt, which was not drawn.
        shortfall: u64,
    },
    /// A settlement ended the reservation.
    Settled {
        /// The part of the actual cost beyond the limit's debt, which was not drawn.
        shortfall: u64,
    },
    /// A settlement ended a reservation that had expired.
    SettledLate {
        /// The part of the actual cost beyond the limit's debt, which was not drawn.
        shortfall: u64,
    },
    /// The reservation was renewed.
    Renewed,
    /// There is no such reservation to settle or to renew.
    NotReserved,
}

impl Effect {
    /// The units given back or drawn.
    pub(crate) const fn units(self) -> u64 {
        match self {
            Self::GivenBack { units } | Self::Drawn { units } => units,
            _ => 0,
        }
    }

    /// The units that were used and could not be recorded.
    pub(crate) const fn shortfall(self) -> u64 {
        match self {
            Self::Recorded { shortfall } | Self::Settled { shortfall } | Self::SettledLate { shortfall } => {
                shortfall
            }
            _ => 0,
        }
    }
}

/// The cause of a denial.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The limit.
    #[default]
    Limit,
    /// A block, which denies everything until it ends.
    Block {
        /// When the block ends.
        until: Timestamp,
    },
    /// The store has no room for one more busy key.
    StoreFull,
    /// No rule covers the request, and the rule set denies such requests.
    Uncovered,
    /// The limiter holds as many reservations and slots as it may.
    HoldsFull {
        /// Whose holds are too many.
        bound: HoldsBound,
    },
}

/// A bound on the reservations and slots that a limiter holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HoldsBound {
    /// [All](crate::LimiterBuilder::max_holds) that the limiter holds.
    All,
    /// The holds of the request's [caller](crate::Caller).
    Caller,
}

/// The reason why a store could not answer. For logs and metrics; clients never see it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreError {
    /// The store could not be reached, or failed.
    Unavailable {
        /// The store's own message.
        reason: String,
    },
    /// The store did not answer within the deadline.
    TimedOut,
    /// More calls wait for the store than it can answer, and the caller of this one has the most of
    /// them. The call did not reach the store. That is no failure of the store.
    Overloaded {
        /// When to try again.
        retry_after: Duration,
    },
    /// The store has no room for one more busy key.
    Full,
    /// The store does not support this operation.
    Unsupported {
        /// The operation's name.
        verb: &'static str,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable { reason } => write!(f, "the store is unavailable: {reason}"),
            Self::TimedOut => f.write_str("the store did not answer within its deadline"),
            Self::Overloaded { .. } => {
                f.write_str("more calls wait for the store than it can answer, most of them from this caller")
            }
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
            StoreError::Overloaded { retry_after } => Self::Overloaded { retry_after },
            StoreError::Unsupported { verb } => Self::Unsupported { verb },
            StoreError::Unavailable { reason } => Self::StoreUnavailable { reason },
            StoreError::TimedOut => Self::StoreUnavailable { reason: StoreError::TimedOut.to_string() },
        }
    }
}
