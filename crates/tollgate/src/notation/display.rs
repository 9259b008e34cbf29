//! Formatting limits.

use std::fmt;
use std::time::Duration;

use super::UNITS;
use crate::{Algorithm, Bucket, Limit};

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", Spelled(self.algorithm()))?;
        if self.has_default_debt() { Ok(()) } else { write!(f, " debt {}", self.max_debt()) }
    }
}

/// An algorithm without a debt.
struct Spelled(Algorithm);

impl fmt::Display for Spelled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counting = |count_denied| if count_denied { " counting denied" } else { "" };
        match self.0 {
            Algorithm::FixedWindow { limit, period, aligned, count_denied } => {
                let aligned = if aligned { " aligned" } else { "" };
                write!(f, "{limit}/{} fixed{aligned}{}", Per(period), counting(count_denied))
            }
            Algorithm::CalendarWindow { limit, unit, zone, count_denied } => {
                write!(f, "{limit}/{unit}")?;
                if !(zone.is_utc() && unit.is_always_calendar()) {
                    write!(f, " at {zone}")?;
                }
                f.write_str(counting(count_denied))
            }
            Algorithm::SlidingWindow { limit, period, count_denied } => {
                write!(f, "{limit}/{} sliding{}", Per(period), counting(count_denied))
            }
            Algorithm::SlidingLog { limit, period } => write!(f, "{limit}/{} log", Per(period)),
            Algorithm::TokenBucket(Bucket { capacity, amount, interval, stepped: false }) => {
                write!(f, "{amount}/{}", Per(interval))?;
                if capacity == amount { Ok(()) } else { write!(f, " burst {capacity}") }
            }
            Algorithm::TokenBucket(bucket) => write!(f, "{}", Refilled(bucket)),
            Algorithm::Reserve { sustained, reserve } => {
                write!(f, "{} reserve {}", Refilled(sustained), Refilled(reserve))
            }
            Algorithm::Concurrent { limit } => write!(f, "{limit} concurrent"),
        }
    }
}

/// `100 refill 10 every 100ms`
struct Refilled(Bucket);

impl fmt::Display for Refilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bucket { capacity, amount, interval, stepped } = self.0;
        match stepped {
            true => write!(f, "{capacity} refill {amount} every {}", Per(interval)),
            false => write!(f, "{capacity} refill {amount}/{}", Per(interval)),
        }
    }
}

/// A period in the longest unit that divides it: `90s`, `minute`.
pub(super) struct Per(pub(super) Duration);

impl fmt::Display for Per {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let nanos = crate::time::nanos_of(self.0);
        for (unit, short, words) in UNITS {
            if nanos.checked_rem(unit) == Some(0) {
                return match nanos.checked_div(unit) {
                    Some(1) => f.write_str(words.first().unwrap_or(&short)),
                    Some(count) => write!(f, "{count}{short}"),
                    None => Ok(()),
                };
            }
        }
        Ok(())
    }
}
