//! Rate limiting: exact, fast; in memory, on disk or in Redis.
//!
//! ```
//! use tollgate::{Limit, Limiter};
//!
//! let limiter = Limiter::new(Limit::per_second(10));
//! assert!(limiter.check("alice")?.allowed());
//! # Ok::<(), tollgate::Error>(())
//! ```
//!
//! * A [`Limit`] is a number of units per period, under one of five algorithms, all in exact
//!   integer arithmetic.
//! * A [`Rule`] says which requests its limits cover and which attributes they are counted by; a
//!   [`RuleSet`] applies all its rules to a request, all or nothing.
//! * A [`Limiter`] applies rules through a [`Store`] and a [`Clock`], and follows a failure policy
//!   when the store is down.
//! * A [`Decision`] says whether the request is allowed, how much is left, and when to retry.
//!
//! | algorithm | choose it when |
//! |---|---|
//! | token bucket, [`Limit::per_second`] | in doubt: a steady rate with bursts, eight bytes a client |
//! | fixed window, [`Limit::fixed_window`] | people have to understand it: *your minute starts with your first request* |
//! | sliding window, [`Limit::sliding_window`] | no burst may straddle two windows, and an estimate suffices |
//! | sliding log, [`Limit::sliding_log`] | it must be exact in any span of time, and the limit is small |
//! | bucket with a reserve, [`Limit::reserve`] | a deep burst is fine now and then, but not repeatedly |
//!
//! Several limits, different costs, and a manual clock:
//!
//! ```
//! use tollgate::{Limit, Limiter, MINUTE, ManualClock, Request, Rule, RuleSet, SECOND};
//!
//! let clock = ManualClock::default();
//! let rules = RuleSet::new([
//!     Rule::new("global", Limit::per_second(5_000)),
//!     Rule::new("per-client", [Limit::per_second(10), Limit::fixed_window(15, MINUTE)]).key(["client"]),
//! ])?;
//! let limiter = Limiter::builder(rules).clock(clock.clone()).build()?;
//!
//! assert!(limiter.check(Request::client("alice").cost(10))?.allowed());
//! clock.advance(SECOND);
//! let denied = limiter.check(Request::client("alice").cost(10))?;
//! assert_eq!(denied.rule().unwrap().as_str(), "per-client");
//! assert_eq!(denied.retry_after(), Some(59 * SECOND)); // the limit per minute is spent
//! assert_eq!(denied.remaining(), 5);
//! # Ok::<(), tollgate::Error>(())
//! ```
#![warn(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::unwrap_used
)]
#![cfg_attr(
    test,
    expect(
        clippy::arithmetic_side_effects,
        clippy::as_conversions,
        reason = "a test that overflows must fail"
    )
)]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod algorithm;
mod block_on;
mod calendar;
mod cell;
mod counter;
mod decision;
mod error;
mod key;
mod limit;
mod limiter;
mod memory;
mod meter;
mod notation;
mod request;
mod rule;
mod state;
mod stats;
mod store;
mod sync;
mod time;

pub use block_on::block_on;
pub use calendar::{CalendarUnit, Zone};
pub use cell::{Cell, Transaction, transact};
pub use counter::{Counter, CounterStore};
pub use decision::{Decision, Report, Reports, Summary};
pub use error::Error;
pub use key::{Budget, Key, MAX_VALUE_BYTES};
pub use limit::{Algorithm, Bucket, Limit, MAX_COUNT, MAX_SLOTS, MAX_SPAN};
pub use limiter::{
    AllOrNothing, InMemory, Limiter, LimiterBuilder, Observer, Recorded, Reservation, RulesSnapshot,
    Settlement, Slot,
};
pub use memory::{Loader, MemoryStats, MemoryStore, OnFull};
pub use meter::{Meter, Outcome, Verdict};
pub use notation::{format_duration, parse_duration};
pub use request::{AsRequest, CLIENT, Caller, InlineLimit, KeyPart, Request, RequestBuf};
pub use rule::{Coverage, FailurePolicy, Limits, Obstacle, Override, Paths, Rule, RuleName, RuleSet, Values};
pub use state::State;
pub use stats::{Counts, Stats};
pub use store::{
    Answer, Applied, Cause, Charge, Effect, HoldId, HoldsBound, OnExpiry, Op, Overflow, Part, Store,
    StoreError, Until,
};
#[cfg(feature = "tokio")]
pub use time::TokioClock;
pub use time::{Clock, CoarseClock, DAY, HOUR, MINUTE, ManualClock, SECOND, Sleep, SystemClock, Timestamp};
