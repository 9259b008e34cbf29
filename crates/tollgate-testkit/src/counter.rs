//! A counter in a map.

use std::collections::HashMap;
use std::future::{Future, ready};
use std::sync::Mutex;
use std::time::Duration;

use tollgate::{Clock, Counter, ManualClock, StoreError, Timestamp};

/// A [`Counter`] in a map. It forgets each number as soon as it expires on the given clock.
#[derive(Debug)]
pub struct MapCounter {
    clock: ManualClock,
    numbers: Mutex<HashMap<Vec<u8>, (u64, Timestamp)>>,
}

impl MapCounter {
    /// A counter whose numbers expire on `clock`.
    #[must_use]
    pub fn new(clock: ManualClock) -> Self {
        Self { clock, numbers: Mutex::default() }
    }
}

impl Counter for MapCounter {
    fn add(
        &self,
        name: &[u8],
        n: u64,
        ttl: Duration,
    ) -> impl Future<Output = Result<u64, StoreError>> + Send {
        let now = self.clock.now();
        let mut numbers = self.numbers.lock().expect("no thread panics here");
        numbers.retain(|_, (_, expires_at)| *expires_at > now);
        let sum = match n {
            0 => numbers.get(name).map_or(0, |(value, _)| *value),
            n => {
                let (value, expires_at) = numbers.entry(name.into()).or_default();
                *value += n;
                *expires_at = now.saturating_add(ttl);
                *value
            }
        };
        ready(Ok(sum))
    }
}
