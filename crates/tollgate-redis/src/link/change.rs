//! What the link tells an operator.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A change of health that an operator wants to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Change {
    /// The circuit breaker opened: Redis, or a part of a Cluster, cannot be used, and requests no
    /// longer wait for it.
    Down {
        /// The error that opened it.
        reason: String,
    },
    /// The circuit breaker is still open, for a reason that was not told yet.
    StillDown {
        /// The error of the last probe.
        reason: String,
    },
    /// Every circuit breaker is closed again.
    Back,
    /// The connection is now to another master, which the Sentinels name.
    Moved {
        /// Host and port of the old master.
        from: String,
        /// Host and port of the new one.
        to: String,
    },
    /// Redis is nearly as far away as the deadline allows: a response now and then will be late.
    /// Told once.
    Slow {
        /// The time that a probe took.
        round_trip: Duration,
        /// The longest response time of a healthy Redis.
        deadline: Duration,
    },
}

/// Callback for a [`Change`].
pub(crate) type OnChange = Box<dyn Fn(&Change) + Send + Sync>;

/// The most reasons told while a breaker is open.
const REASONS_MAX: usize = 8;

/// Tells changes, and each reason once.
#[derive(Default)]
pub(super) struct Changes {
    on_change: Option<OnChange>,
    /// The reasons told since the breaker opened.
    reasons: Mutex<Vec<String>>,
}

impl Changes {
    pub(super) fn new(on_change: Option<OnChange>) -> Self {
        Self { on_change, reasons: Mutex::default() }
    }

    pub(super) fn tell(&self, change: &Change) {
        self.on_change.iter().for_each(|call| call(change));
    }

    /// A breaker opened, or is still open.
    pub(super) fn down(&self, reason: String, is_first: bool) {
        let mut reasons = self.reasons.lock().unwrap_or_else(PoisonError::into_inner);
        if is_first {
            reasons.clear();
        } else if reasons.contains(&reason) || reasons.len() >= REASONS_MAX {
            return;
        }
        reasons.push(reason.clone());
        drop(reasons);
        self.tell(&if is_first { Change::Down { reason } } else { Change::StillDown { reason } });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn each_reason_is_told_once_while_the_breaker_is_open() {
        let told = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&told);
        let changes =
            Changes::new(Some(Box::new(move |change| recorded.lock().unwrap().push(change.clone()))));
        changes.down("refused".into(), true);
        changes.down("refused".into(), false);
        changes.down("WRONGPASS".into(), false);
        changes.down("refused".into(), false);
        changes.down("refused".into(), true);
        let down = |reason: &str| Change::Down { reason: reason.into() };
        let still = |reason: &str| Change::StillDown { reason: reason.into() };
        assert_eq!(*told.lock().unwrap(), [down("refused"), still("WRONGPASS"), down("refused")]);
        (0..99).for_each(|number| changes.down(number.to_string(), false));
        assert_eq!(told.lock().unwrap().len(), 3 + REASONS_MAX - 1);
    }
}
