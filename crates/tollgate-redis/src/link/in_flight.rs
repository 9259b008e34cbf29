//! Requests in flight.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate::{Clock as _, Timestamp, TokioClock};

use super::Link;

/// A connection without a request in flight for this long is idle. Less than a restart of Redis
/// takes.
const IDLE_MIN: Duration = Duration::from_millis(1);

/// A request in flight. The link knows by these that its connection was idle. One that is dropped
/// unanswered has missed its deadline: a reason to probe, and no more.
pub(super) struct InFlight<'a> {
    link: &'a Arc<Link>,
    slot: u16,
    pub(super) ended: bool,
}

impl<'a> InFlight<'a> {
    pub(super) fn new(link: &'a Arc<Link>, slot: u16) -> Self {
        let ended_at = Timestamp::from_nanos(link.ended_at.load(Ordering::Acquire));
        if link.in_flight.fetch_add(1, Ordering::AcqRel) == 0 && TokioClock.now().since(ended_at) >= IDLE_MIN
        {
            link.maybe_stale.store(true, Ordering::Release);
        }
        Self { link, slot, ended: false }
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.link.ended_at.store(TokioClock.now().as_nanos(), Ordering::Release);
        self.link.in_flight.fetch_sub(1, Ordering::AcqRel);
        if !self.ended {
            self.link.ensure_prober(self.slot);
        }
    }
}
