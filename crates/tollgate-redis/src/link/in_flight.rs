//! Requests in flight, by which a link knows that its connection was idle, or does not answer.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate::{Clock as _, Timestamp, TokioClock};

use super::{IDLE_MIN, Link, MISS_TIME_MIN, MISSES_MAX};

/// A request in flight. Dropped before it has ended, it counts as a miss.
pub(super) struct InFlight<'a> {
    link: &'a Arc<Link>,
    slot: u16,
    sent_at: Timestamp,
    pub(super) ended: bool,
}

impl<'a> InFlight<'a> {
    pub(super) fn new(link: &'a Arc<Link>, slot: u16) -> Self {
        let sent_at = TokioClock.now();
        let ended_at = Timestamp::from_nanos(link.ended_at.load(Ordering::Acquire));
        if link.in_flight.fetch_add(1, Ordering::AcqRel) == 0 && sent_at.since(ended_at) >= IDLE_MIN {
            link.maybe_stale.store(true, Ordering::Release);
        }
        Self { link, slot, sent_at, ended: false }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.link.ended_at.store(TokioClock.now().as_nanos(), Ordering::Release);
        self.link.in_flight.fetch_sub(1, Ordering::AcqRel);
        if self.ended || TokioClock.now().since(self.sent_at) < MISS_TIME_MIN {
            return;
        }
        let misses = self.link.breaker(self.slot).misses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        if misses >= MISSES_MAX {
            self.link.open(self.slot, format!("{misses} requests in a row had no answer in time"));
        }
    }
}
