//! Building a limiter.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::failure::Share;
use super::holds::Ledger;
use super::queue::Queue;
use super::wait::Waiters;
use super::{ActiveRules, Limiter, Observer, Shared, check_accepted};
use crate::stats::Tally;
use crate::store::Store;
use crate::time::{AnyClock, Clock};
use crate::{Error, MAX_SPAN, MemoryStore, RuleSet};

/// The default of `longest_inline_refill`: a year, Envoy's largest unit.
const LEAP_YEAR: Duration = Duration::from_secs(366 * 24 * 60 * 60);

impl Limiter {
    /// A builder for a limiter, in memory unless a store is given.
    #[must_use]
    pub fn builder(rules: RuleSet) -> LimiterBuilder {
        LimiterBuilder {
            rules,
            store: MemoryStore::new(),
            clock: AnyClock::System,
            observer: None,
            deadline: Duration::from_millis(50),
            longest_inline_refill: LEAP_YEAR,
            local_share: 0.25,
            in_flight_max: None,
            waiting_max: 4_096,
            max_holds: 1_000_000,
            holds_per_caller: 0.1,
            max_waiters: 1_000_000,
        }
    }
}

/// Builds a [`Limiter`].
///
/// ```
/// use tollgate::{FailurePolicy, Limit, Limiter, Request, Rule, RuleSet};
///
/// let limiter = Limiter::builder(RuleSet::new([
///     Rule::new("global", Limit::per_second(5_000)),
///     Rule::new("per-client", Limit::per_second(10)).key(["client"]).on_store_error(FailurePolicy::Local),
/// ])?)
/// .build()?;
/// let decision = limiter.check(Request::client("alice").cost(3))?;
/// assert_eq!((decision.allowed(), decision.remaining()), (true, 7));
/// # Ok::<(), tollgate::Error>(())
/// ```
pub struct LimiterBuilder<S = MemoryStore> {
    rules: RuleSet,
    store: S,
    clock: AnyClock,
    observer: Option<Box<dyn Observer>>,
    deadline: Duration,
    longest_inline_refill: Duration,
    local_share: f64,
    in_flight_max: Option<usize>,
    waiting_max: usize,
    max_holds: u64,
    holds_per_caller: f64,
    max_waiters: usize,
}

impl<S> fmt::Debug for LimiterBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimiterBuilder").field("rules", &self.rules).finish_non_exhaustive()
    }
}

impl<S: Store> LimiterBuilder<S> {
    /// Keeps state in `store`.
    #[must_use]
    pub fn store<T: Store>(self, store: T) -> LimiterBuilder<T> {
        let Self { rules, store: _, clock, observer, deadline, longest_inline_refill, .. } = self;
        let Self {
            local_share, in_flight_max, waiting_max, max_holds, holds_per_caller, max_waiters, ..
        } = self;
        LimiterBuilder {
            rules,
            store,
            clock,
            observer,
            deadline,
            longest_inline_refill,
            local_share,
            in_flight_max,
            waiting_max,
            max_holds,
            holds_per_caller,
            max_waiters,
        }
    }

    /// Reads the time, and sleeps, through `clock` instead of the system's.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock + 'static) -> Self {
        self.clock = AnyClock::new(clock);
        self
    }

    /// Notifies `observer` of every decision and every failure of the store.
    #[must_use]
    pub fn observer(mut self, observer: impl Observer + 'static) -> Self {
        self.observer = Some(Box::new(observer));
        self
    }

    /// How long the store may take before it counts as failed, from when a call is sent to it. The
    /// default is 50 milliseconds.
    #[must_use]
    pub const fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// The most charges in flight to a store that does not decide in memory: by default as many as
    /// the store [asks for](Store::in_flight_max). All of them together should take the store less
    /// than half the deadline.
    #[must_use]
    pub const fn in_flight_max(mut self, charges: usize) -> Self {
        self.in_flight_max = Some(charges);
        self
    }

    /// The most charges that wait for their turn at the store: 4096 by default. When there are
    /// more, the caller with the most of them is refused as [overloaded](Error::Overloaded), and so
    /// is a call that has waited for ten deadlines.
    #[must_use]
    pub const fn waiting_max(mut self, charges: usize) -> Self {
        self.waiting_max = charges;
        self
    }

    /// The longest full refill of an [inline limit](Limiter::inline). The default is 366 days. A
    /// client that names keys and passes limits keeps a key busy for at most that long.
    #[must_use]
    pub const fn longest_inline_refill(mut self, longest: Duration) -> Self {
        self.longest_inline_refill = longest;
        self
    }

    /// The share of each limit that applies under
    /// [`FailurePolicy::Local`](crate::FailurePolicy::Local). The default is a quarter. With `n`
    /// processes on one store, a share of `1/n` keeps all of them together within the limit.
    #[must_use]
    pub const fn local_share(mut self, share: f64) -> Self {
        self.local_share = share;
        self
    }

    /// The most reservations and slots that the limiter holds at a time: a million by default. One
    /// more is denied, with [`Cause::HoldsFull`](crate::Cause::HoldsFull). Where processes share a
    /// store, each counts its own.
    #[must_use]
    pub const fn max_holds(mut self, holds: u64) -> Self {
        self.max_holds = holds;
        self
    }

    /// The share of [`max_holds`](Self::max_holds) that one [caller](crate::Caller) has: a tenth by
    /// default. A request without a caller is bounded only in all.
    #[must_use]
    pub const fn holds_per_caller(mut self, share: f64) -> Self {
        self.holds_per_caller = share;
        self
    }

    /// The most requests that [wait](Limiter::wait) at a time: a million by default. One more is
    /// answered at once, as with a timeout of zero.
    #[must_use]
    pub const fn max_waiters(mut self, waiters: usize) -> Self {
        self.max_waiters = waiters;
        self
    }

    /// Checks the settings and builds the limiter. The store is not called yet.
    ///
    /// # Errors
    /// [`Error::InvalidRule`] if the store cannot keep one of the limits, [`Error::InvalidConfig`]
    /// for a setting that is out of range.
    pub fn build(self) -> Result<Limiter<S>, Error> {
        check_accepted(&self.store, &self.rules)?;
        let invalid = |field, value, reason| Err(Error::InvalidConfig { field, value, reason });
        if !(self.local_share > 0.0 && self.local_share <= 1.0) {
            return invalid("local_share", self.local_share.to_string(), "more than 0 and at most 1");
        }
        if !(self.holds_per_caller > 0.0 && self.holds_per_caller <= 1.0) {
            return invalid(
                "holds_per_caller",
                self.holds_per_caller.to_string(),
                "more than 0 and at most 1",
            );
        }
        if self.max_holds == 0 {
            return invalid("max_holds", "0".into(), "at least 1");
        }
        if self.deadline.is_zero() {
            return invalid("deadline", "0".into(), "longer than that; 50ms is usual");
        }
        if self.longest_inline_refill.is_zero() || self.longest_inline_refill > MAX_SPAN {
            let value = format!("{:?}", self.longest_inline_refill);
            return invalid("longest_inline_refill", value, "more than 0 and at most 100 years");
        }
        if self.in_flight_max == Some(0) {
            return invalid("in_flight_max", "0".into(), "at least 1");
        }
        Ok(self.assemble())
    }

    pub(super) fn assemble(self) -> Limiter<S> {
        let Self { rules, store, clock, observer, deadline, longest_inline_refill, .. } = self;
        let local_share = Share::from_fraction(self.local_share);
        let in_flight_max = self.in_flight_max.unwrap_or_else(|| store.in_flight_max());
        let caller_max = Share::from_fraction(self.holds_per_caller).units(self.max_holds).max(1);
        let holds = Ledger::new(self.max_holds, caller_max);
        if let Some(memory) = store.decides_in() {
            holds.load(memory.holds());
        }
        let shared = Shared {
            rules: ActiveRules::new(rules, store.decides_in()),
            queue: Queue::new(in_flight_max, self.waiting_max, deadline),
            store,
            waiters: Arc::new(Waiters::new(self.max_waiters, clock.clone())),
            clock,
            observer,
            deadline,
            longest_inline_refill,
            local: MemoryStore::new(),
            local_share,
            total: Tally::default(),
            store_errors: AtomicU64::new(0),
            overloaded: AtomicU64::new(0),
            converted: AtomicU64::new(0),
            shortfall: AtomicU64::new(0),
            holds,
        };
        Limiter { shared: Arc::new(shared) }
    }
}
