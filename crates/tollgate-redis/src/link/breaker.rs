//! A circuit breaker.
//!
//! It judges Redis alone: neither a slow command of one key nor a caller who leaves opens it. What
//! opens it is a broken connection, an error about the server, or a probe without an answer. A call
//! without an answer in time is only a reason to probe.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use tollgate::Timestamp;

/// The first wait between probes of an open breaker. Each later wait is twice as long, up to
/// [`PROBE_INTERVAL_MAX`].
const PROBE_INTERVAL_MIN: Duration = Duration::from_millis(100);
/// The longest wait between probes.
const PROBE_INTERVAL_MAX: Duration = Duration::from_secs(1);
/// A breaker that opens again this soon after it closed has relapsed.
const RELAPSE_WINDOW: Duration = Duration::from_secs(10);
/// The wait before the first probe doubles with each relapse, at most this many times.
const RELAPSES_MAX: u32 = 6;
/// Probes in a row that must be answered before an open breaker closes. Twice as many with each
/// relapse: where every second response is late, three in a row are no evidence.
const PROBES_TO_CLOSE: u32 = 3;
/// The number of those probes doubles at most this many times.
const MORE_PROBES_MAX: u32 = 4;

#[derive(Default)]
pub(super) struct Breaker {
    /// Why the breaker is open; `None` while it is closed.
    open: ArcSwapOption<String>,
    /// Whether a prober runs.
    pub(super) probing: AtomicBool,
    /// When the breaker last closed, in nanoseconds.
    closed_at: AtomicU64,
    /// Relapses in a row.
    relapses: AtomicU32,
}

impl Breaker {
    /// Why the breaker is open, if it is.
    pub(super) fn open_reason(&self) -> Option<Arc<String>> {
        self.open.load_full()
    }

    pub(super) fn is_open(&self) -> bool {
        self.open.load().is_some()
    }

    /// Opens the breaker, or replaces the reason it is open. Returns whether it was closed.
    pub(super) fn open(&self, reason: String, now: Timestamp) -> bool {
        let was_closed = self.open.swap(Some(Arc::new(reason))).is_none();
        if was_closed {
            let closed_for = now.since(Timestamp::from_nanos(self.closed_at.load(Ordering::Relaxed)));
            match closed_for < RELAPSE_WINDOW {
                true => self.relapses.fetch_add(1, Ordering::Relaxed),
                false => self.relapses.swap(0, Ordering::Relaxed),
            };
        }
        was_closed
    }

    /// Closes the breaker. Returns whether it was open.
    pub(super) fn close(&self, now: Timestamp) -> bool {
        self.closed_at.store(now.as_nanos(), Ordering::Relaxed);
        self.open.swap(None).is_some()
    }

    /// The wait before the first probe after the breaker opened.
    pub(super) fn first_wait(&self) -> Duration {
        match self.relapses.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            relapses => jittered(PROBE_INTERVAL_MIN.saturating_mul(1 << relapses.min(RELAPSES_MAX))),
        }
    }

    /// Probes in a row that must be answered before the breaker closes.
    pub(super) fn probes_to_close(&self) -> u32 {
        PROBES_TO_CLOSE << self.relapses.load(Ordering::Relaxed).min(MORE_PROBES_MAX)
    }

    /// The wait after so many probes without an answer.
    pub(super) fn wait_after(failures: u32) -> Duration {
        let doublings = failures.saturating_sub(1).min(RELAPSES_MAX);
        jittered(PROBE_INTERVAL_MIN.saturating_mul(1 << doublings).min(PROBE_INTERVAL_MAX))
    }
}

/// Between half of a span and all of it, so that a fleet does not probe in step.
pub(super) fn jittered(span: Duration) -> Duration {
    let share = u32::from(RandomState::new().hash_one(0).to_le_bytes()[0]);
    span / 2 + span / 2 * share / 255
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e4_a_breaker_that_relapses_waits_longer_and_needs_more_probes_each_time() {
        let breaker = Breaker::default();
        let mut now = Timestamp::from_secs(1_000);
        assert!(breaker.open("first".into(), now) && !breaker.open("again".into(), now));
        assert_eq!((breaker.first_wait(), breaker.probes_to_close()), (Duration::ZERO, 3));
        for relapses in 1..9_u32 {
            assert!(breaker.close(now) && !breaker.close(now));
            now = now.saturating_add(RELAPSE_WINDOW - Duration::from_nanos(1));
            assert!(breaker.open("relapse".into(), now));
            let longest = PROBE_INTERVAL_MIN * (1 << relapses.min(RELAPSES_MAX));
            assert!((longest / 2..=longest).contains(&breaker.first_wait()), "{relapses}");
            assert_eq!(breaker.probes_to_close(), 3 << relapses.min(4));
        }
        assert!(breaker.close(now));
        assert!(breaker.open("healthy for long".into(), now.saturating_add(RELAPSE_WINDOW)));
        assert_eq!((breaker.first_wait(), breaker.probes_to_close()), (Duration::ZERO, 3));
        assert!((1..99).all(|failures| Breaker::wait_after(failures) <= PROBE_INTERVAL_MAX));
    }
}
