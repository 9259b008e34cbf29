//! Constructors of calendar windows.

use super::{Algorithm, Limit};
use crate::{CalendarUnit, Zone};

impl Limit {
    /// At most `count` per month of the calendar, in UTC.
    ///
    /// # Panics
    /// If the number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn per_month(count: u64) -> Self {
        Self::per_calendar(count, CalendarUnit::Month, Zone::UTC)
    }

    /// At most `count` per year of the calendar, in UTC.
    ///
    /// # Panics
    /// If the number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn per_year(count: u64) -> Self {
        Self::per_calendar(count, CalendarUnit::Year, Zone::UTC)
    }

    /// At most `count` per hour, day, week, month or year of a zone's calendar.
    ///
    /// ```
    /// use tollgate::{CalendarUnit, Limit, Zone};
    ///
    /// let berlin = Zone::new("Europe/Berlin")?;
    /// let daily = Limit::per_calendar(10, CalendarUnit::Day, berlin);
    /// assert_eq!(daily, "10/day at Europe/Berlin".parse()?);
    /// assert_eq!(Limit::per_month(1000), "1000/month".parse()?);
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Panics
    /// If the number is 0 or too large. [`Limit::new`] returns an error instead.
    #[must_use]
    #[track_caller]
    pub const fn per_calendar(count: u64, unit: CalendarUnit, zone: Zone) -> Self {
        Self::expect(Algorithm::CalendarWindow { limit: count, unit, zone, count_denied: false })
    }
}
