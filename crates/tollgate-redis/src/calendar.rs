//! Windows of the calendar for the script, which has no time zones.
//!
//! The script decides by the clock of Redis, so only it knows which window a request opens. The
//! caller hands in the windows that contain its own time. If the script needs another one, because
//! the clocks differ or because a stored state was written at another time, it changes nothing and
//! names the calendar and the moment. The caller adds that window and repeats the call.

use std::fmt::Write as _;
use std::ops::Range;

use redis::Value;
use tollgate::{Algorithm, CalendarUnit, Timestamp, Zone};

use crate::script::{ScriptCharge, micros};

/// The windows of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct Windows(Vec<(CalendarUnit, Zone, Range<Timestamp>)>);

impl Windows {
    /// The windows that contain `now`, of all calendars of a request.
    pub(crate) fn of(charges: &[ScriptCharge], now: Timestamp) -> Self {
        let mut windows = Self::default();
        for charge in charges {
            if let Algorithm::CalendarWindow { unit, zone, .. } = charge.limit.algorithm() {
                windows.add(unit, zone, now);
            }
        }
        windows
    }

    /// Adds the window of a calendar that contains `at`. Returns whether it was missing.
    fn add(&mut self, unit: CalendarUnit, zone: Zone, at: Timestamp) -> bool {
        let has = |window: &(CalendarUnit, Zone, Range<Timestamp>)| {
            (window.0, window.1) == (unit, zone) && window.2.contains(&at)
        };
        let missing = !self.0.iter().any(has);
        if missing {
            self.0.push((unit, zone, zone.window(unit, at)));
        }
        missing
    }

    /// Adds the window that the script asks for, if its reply does: `[calendar, moment]`.
    pub(crate) fn add_requested(&mut self, reply: &Value) -> bool {
        let Value::Array(values) = reply else { return false };
        let [Value::BulkString(calendar), Value::Int(at)] = values.as_slice() else { return false };
        let Some((unit, zone)) = str::from_utf8(calendar).ok().and_then(|name| name.split_once(' ')) else {
            return false;
        };
        let unit = CalendarUnit::ALL.into_iter().find(|known| known.name() == unit);
        let at = Timestamp::from_nanos(at.unsigned_abs().saturating_mul(1_000));
        // A zone that this process does not know was written by one with other zone data.
        unit.zip(Zone::new(zone).ok()).is_some_and(|(unit, zone)| self.add(unit, zone, at))
    }

    /// The last argument of the call, if there are any windows: `@day Europe/Berlin 1800 1900;…`,
    /// in microseconds.
    pub(crate) fn argument(&self) -> Option<String> {
        let mut text = String::new();
        for (unit, zone, window) in &self.0 {
            text.push(if text.is_empty() { '@' } else { ';' });
            let _ = write!(text, "{unit} {zone} {} {}", micros(window.start), micros(window.end));
        }
        (!text.is_empty()).then_some(text)
    }
}
