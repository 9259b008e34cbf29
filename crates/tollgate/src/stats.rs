//! Decision counts.
//!
//! Each thread counts in its own stripe of cache lines, so counting takes no lock and threads do
//! not contend for a line. Reading sums the stripes.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::{Decision, Report, RuleName};

/// Statistics of a limiter since it was built.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Counts of all decisions.
    pub total: Counts,
    /// Counts of each rule, in the order of the rules. A rule keeps its counts when its limits
    /// change.
    pub rules: Vec<(RuleName, Counts)>,
    /// Number of keys in the store, if the store knows it.
    pub live_keys: Option<u64>,
    /// Times the store failed or timed out.
    pub store_errors: u64,
    /// Requests refused as [overloaded](crate::Error::Overloaded), which are no failures of the
    /// store and no decisions.
    pub overloaded: u64,
    /// Number of states that were converted because their limit was replaced: zero in a fleet whose
    /// processes have the same limits.
    pub converted: u64,
    /// Units that were used and exceeded the debt of a limit, so that they were not recorded.
    pub shortfall: u64,
    /// Reservations and slots that this limiter holds.
    pub holds: u64,
    /// The [most](crate::LimiterBuilder::max_holds) that it holds.
    pub max_holds: u64,
    /// Reservations and slots that were denied because it held too many.
    pub holds_refused: u64,
    /// Requests that [wait](crate::Limiter::wait).
    pub waiters: u64,
    /// Requests that did not wait because [too many](crate::LimiterBuilder::max_waiters) did.
    pub waiters_refused: u64,
}

/// Number of decisions of each kind. For one rule: how often it admitted, denied, or would have
/// denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests admitted.
    pub allowed: u64,
    /// Requests denied.
    pub denied: u64,
    /// Requests that a shadow rule would have denied.
    pub shadow_denied: u64,
    /// Requests decided without the store.
    pub degraded: u64,
    /// Requests admitted with a warning.
    pub warned: u64,
}

impl Counts {
    /// The share of denied requests, as a percentage: 0 with no traffic.
    #[must_use]
    #[expect(clippy::cast_precision_loss, clippy::as_conversions, reason = "a percentage for people")]
    pub fn rejection_rate(&self) -> f64 {
        match self.allowed.saturating_add(self.denied) {
            0 => 0.0,
            all => self.denied as f64 * 100.0 / all as f64,
        }
    }
}

const STRIPES: usize = 32;

/// The stripe that all threads without their own share.
const SHARED: usize = STRIPES - 1;

/// Running counts, striped by thread.
#[derive(Debug, Default)]
pub(crate) struct Tally([Stripe; STRIPES]);

/// Aligned to two cache lines, since processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    /// Denied and allowed, indexed by whether the request is allowed.
    decided: [AtomicU64; 2],
    shadow_denied: AtomicU64,
    degraded: AtomicU64,
    warned: AtomicU64,
}

impl Tally {
    /// Counts one decision.
    pub(crate) fn count(&self, decision: &Decision, reports: &[Report]) {
        let shadow_denied = reports.iter().any(|report| report.shadow && !report.outcome.allowed());
        let warned = decision.allowed() && reports.iter().any(|report| report.warning().is_some());
        self.add(decision.allowed(), shadow_denied, decision.degraded(), warned);
    }

    /// Counts one decision, not degraded and without shadow rules, in this thread's stripe.
    #[inline(always)]
    pub(crate) fn count_at(&self, stripe: StripeIndex, allowed: bool) {
        add(stripe, &self.0[stripe.0 % STRIPES].decided[usize::from(allowed)], 1);
    }

    /// Counts several decisions: how many were denied and how many allowed.
    pub(crate) fn count_many_at(&self, stripe: StripeIndex, decided: [u64; 2]) {
        for (counter, decided) in self.0[stripe.0 % STRIPES].decided.iter().zip(decided) {
            add(stripe, counter, decided);
        }
    }

    /// Counts the verdict of one rule.
    pub(crate) fn count_rule(&self, decision: &Decision, reports: &[Report], rule: RuleName) {
        let mut reports = reports.iter().filter(|report| report.rule == rule);
        let denied = reports.clone().any(|report| !report.outcome.allowed());
        let warned = decision.allowed() && reports.clone().any(|report| report.warning().is_some());
        let shadow = reports.any(|report| report.shadow);
        self.add(!denied || shadow, denied && shadow, decision.degraded(), warned);
    }

    fn add(&self, allowed: bool, shadow_denied: bool, degraded: bool, warned: bool) {
        let index = stripe_index();
        let stripe = &self.0[index.0 % STRIPES];
        self.count_at(index, allowed);
        if shadow_denied {
            add(index, &stripe.shadow_denied, 1);
        }
        if degraded {
            add(index, &stripe.degraded, 1);
        }
        if warned {
            add(index, &stripe.warned, 1);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let sum = |part: fn(&Stripe) -> &AtomicU64| {
            self.0.iter().map(|stripe| part(stripe).load(Ordering::Relaxed)).fold(0, u64::saturating_add)
        };
        Counts {
            allowed: sum(|stripe| &stripe.decided[1]),
            denied: sum(|stripe| &stripe.decided[0]),
            shadow_denied: sum(|stripe| &stripe.shadow_denied),
            degraded: sum(|stripe| &stripe.degraded),
            warned: sum(|stripe| &stripe.warned),
        }
    }
}

/// The index of a stripe.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct StripeIndex(usize);

/// A stripe that belongs to one thread until that thread ends, and is then reused.
struct ThreadStripe(StripeIndex);

/// The next unused stripe, and the stripes of ended threads.
static FREE: Mutex<(usize, Vec<usize>)> = Mutex::new((0, Vec::new()));

impl ThreadStripe {
    fn take() -> Self {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = free.1.pop() {
            return Self(StripeIndex(index));
        }
        let index = free.0.min(SHARED);
        free.0 = index.saturating_add(1);
        Self(StripeIndex(index))
    }
}

impl Drop for ThreadStripe {
    fn drop(&mut self) {
        // Whatever the thread still counts goes into the shared stripe.
        STRIPE.set(SHARED);
        if self.0.0 != SHARED {
            // The lock orders this thread's counts before those of the next owner.
            FREE.lock().unwrap_or_else(PoisonError::into_inner).1.push(self.0.0);
        }
    }
}

/// No stripe yet.
const UNKNOWN: usize = STRIPES;

thread_local! {
    /// The index of this thread's stripe. Without a destructor, so that reading it is one load.
    static STRIPE: Cell<usize> = const { Cell::new(UNKNOWN) };
    static OWNED: ThreadStripe = ThreadStripe::take();
}

/// The index of this thread's stripe: its own while it lives, or the shared one.
#[inline(always)]
pub(crate) fn stripe_index() -> StripeIndex {
    match STRIPE.get() {
        UNKNOWN => take_stripe(),
        index => StripeIndex(index),
    }
}

#[cold]
#[inline(never)]
fn take_stripe() -> StripeIndex {
    let index = OWNED.try_with(|stripe| stripe.0).unwrap_or(StripeIndex(SHARED));
    STRIPE.set(index.0);
    index
}

/// Adds to a counter. In an unshared stripe this takes no locked instruction, which would cost more
/// than the rest.
#[inline]
fn add(stripe: StripeIndex, counter: &AtomicU64, decided: u64) {
    if stripe.0 == SHARED {
        counter.fetch_add(decided, Ordering::Relaxed);
    } else {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(decided), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g1_threads_that_come_and_go_lose_no_count() {
        let tally = Tally::default();
        for _ in 0..20 {
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| (0..1_000).for_each(|_| tally.add(true, false, false, false)));
                }
            });
        }
        assert_eq!(tally.counts().allowed, 160_000);
        let used = tally.0.iter().filter(|stripe| stripe.decided[1].load(Ordering::Relaxed) > 0).count();
        assert!(used < 32, "stripes are reused: {used}");
    }

    #[test]
    fn g1_the_rejection_rate_is_a_percentage_and_zero_with_no_traffic() {
        assert_eq!(Counts::default().rejection_rate(), 0.0);
        let counts = Counts { allowed: 3, denied: 1, ..Counts::default() };
        assert_eq!(counts.rejection_rate(), 25.0);
    }
}
