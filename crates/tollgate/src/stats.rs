//! Counting decisions without slowing them down.
//!
//! Each thread counts in a stripe of its own cache lines, so that counting takes no lock and two
//! threads do not fight over a line. Reading adds the stripes up.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::{Decision, Report, RuleName};

/// What a limiter has decided since it was built.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Every decision.
    pub total: Counts,
    /// What each rule said, in the order of the rules. A rule keeps its counts when its limits
    /// change.
    pub rules: Vec<(RuleName, Counts)>,
    /// How many keys the store keeps, if it knows.
    pub live_keys: Option<u64>,
    /// How often the store failed or did not answer in time.
    pub store_errors: u64,
    /// How many states were converted because their limit had been replaced: zero in a fleet that
    /// agrees about its limits.
    pub converted: u64,
}

/// How many decisions of each kind. For one rule: how often it admitted, denied, or would have
/// denied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Admitted.
    pub allowed: u64,
    /// Denied.
    pub denied: u64,
    /// A shadow rule would have denied, whatever the others said.
    pub shadow_denied: u64,
    /// Decided without the store.
    pub degraded: u64,
}

impl Counts {
    /// How many of all were denied, as a percentage: 0 with no traffic.
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

/// The stripe of all threads that came too late for one of their own.
const SHARED: usize = STRIPES - 1;

/// One running set of counts.
#[derive(Debug, Default)]
pub(crate) struct Tally([Stripe; STRIPES]);

/// Two cache lines: processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Stripe {
    allowed: AtomicU64,
    denied: AtomicU64,
    shadow_denied: AtomicU64,
    degraded: AtomicU64,
}

impl Tally {
    /// Counts one decision.
    pub(crate) fn count(&self, decision: &Decision, reports: &[Report]) {
        let shadow_denied = reports.iter().any(|report| report.shadow && !report.outcome.allowed());
        self.add(decision.allowed(), shadow_denied, decision.degraded());
    }

    /// Counts one decision that is not degraded, by rules that enforce, in the stripe of this thread.
    #[inline(always)]
    pub(crate) fn count_at(&self, stripe: usize, allowed: bool) {
        if let Some(counts) = self.0.get(stripe) {
            increment(stripe, if allowed { &counts.allowed } else { &counts.denied });
        }
    }

    /// Counts what one rule said.
    pub(crate) fn count_rule(&self, decision: &Decision, reports: &[Report], rule: RuleName) {
        let mut reports = reports.iter().filter(|report| report.rule == rule);
        let denied = reports.clone().any(|report| !report.outcome.allowed());
        let shadow = reports.any(|report| report.shadow);
        self.add(!denied || shadow, denied && shadow, decision.degraded());
    }

    fn add(&self, allowed: bool, shadow_denied: bool, degraded: bool) {
        let index = stripe_index();
        let Some(stripe) = self.0.get(index) else { return };
        increment(index, if allowed { &stripe.allowed } else { &stripe.denied });
        if shadow_denied {
            increment(index, &stripe.shadow_denied);
        }
        if degraded {
            increment(index, &stripe.degraded);
        }
    }

    pub(crate) fn counts(&self) -> Counts {
        let sum = |part: fn(&Stripe) -> &AtomicU64| {
            self.0.iter().map(|stripe| part(stripe).load(Ordering::Relaxed)).fold(0, u64::saturating_add)
        };
        Counts {
            allowed: sum(|stripe| &stripe.allowed),
            denied: sum(|stripe| &stripe.denied),
            shadow_denied: sum(|stripe| &stripe.shadow_denied),
            degraded: sum(|stripe| &stripe.degraded),
        }
    }
}

/// A stripe that belongs to one thread until that thread ends, and then to another.
struct Own(usize);

/// Stripes that nobody has.
static FREE: Mutex<(usize, Vec<usize>)> = Mutex::new((0, Vec::new()));

impl Own {
    fn take() -> Self {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = free.1.pop() {
            return Self(index);
        }
        let index = free.0.min(SHARED);
        free.0 = index.saturating_add(1);
        Self(index)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        if self.0 != SHARED {
            // The lock orders what this thread counted before what the next one does.
            FREE.lock().unwrap_or_else(PoisonError::into_inner).1.push(self.0);
        }
    }
}

/// The stripe of this thread: no other's while it lives, or the shared one.
#[inline(always)]
pub(crate) fn stripe_index() -> usize {
    thread_local!(static OWN: Own = Own::take());
    OWN.try_with(|own| own.0).unwrap_or(SHARED)
}

/// Adds one. Where nobody else writes, that takes no locked instruction, which would cost more than
/// the rest of it.
#[inline]
fn increment(index: usize, counter: &AtomicU64) {
    if index == SHARED {
        counter.fetch_add(1, Ordering::Relaxed);
    } else {
        counter.store(counter.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
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
                    scope.spawn(|| (0..1_000).for_each(|_| tally.add(true, false, false)));
                }
            });
        }
        assert_eq!(tally.counts().allowed, 160_000);
        let used = tally.0.iter().filter(|stripe| stripe.allowed.load(Ordering::Relaxed) > 0).count();
        assert!(used < 32, "stripes are handed on: {used}");
    }

    #[test]
    fn g1_the_rejection_rate_is_a_percentage_and_zero_with_no_traffic() {
        assert_eq!(Counts::default().rejection_rate(), 0.0);
        let counts = Counts { allowed: 3, denied: 1, ..Counts::default() };
        assert_eq!(counts.rejection_rate(), 25.0);
    }
}
