//! The calendar: where hours, days, weeks, months and years begin and end in a time zone.
//!
//! The edges are a pure function of a moment, a unit and a [`Zone`]. No clock is read. Edges divide
//! all time without gaps and overlaps, whatever a zone does: a day has 23 to 25 hours where the
//! clock changes, and a day that a zone skipped has none.

use std::fmt;
use std::time::Duration;

use crate::time::{DAY, HOUR};

#[cfg(all(test, feature = "calendar"))]
mod tests;
mod zone;

pub use zone::Zone;

/// A unit of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CalendarUnit {
    /// From one full hour of the local clock to the next.
    Hour,
    /// From midnight to midnight.
    Day,
    /// From Monday to Sunday.
    Week,
    /// A month, of 28 to 31 days.
    Month,
    /// A year, of 365 or 366 days.
    Year,
}

impl CalendarUnit {
    /// All units, from the shortest to the longest.
    pub const ALL: [Self; 5] = [Self::Hour, Self::Day, Self::Week, Self::Month, Self::Year];

    /// The word for the unit in the notation.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Week => "week",
            Self::Month => "month",
            Self::Year => "year",
        }
    }

    /// The length of the longest such unit, with an hour for a change to winter time.
    #[must_use]
    pub const fn longest(self) -> Duration {
        let (days, hours) = match self {
            Self::Hour => (0, 1),
            Self::Day => (1, 1),
            Self::Week => (7, 1),
            Self::Month => (31, 1),
            Self::Year => (366, 0),
        };
        DAY.saturating_mul(days).saturating_add(HOUR.saturating_mul(hours))
    }

    /// Whether a limit per such a unit is always the calendar's: there is no span of time with that
    /// name.
    pub(crate) const fn is_always_calendar(self) -> bool {
        matches!(self, Self::Month | Self::Year)
    }
}

impl fmt::Display for CalendarUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
