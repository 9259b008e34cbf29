//! Zones and the edges of their calendars, with jiff.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use jiff::civil::{Date, DateTime, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Span, Timestamp};

use super::{NamedZone, Zone};
use crate::{CalendarUnit, Error};

static UTC: NamedZone = NamedZone { name: "UTC", rules: TimeZone::UTC };

impl Zone {
    /// Coordinated Universal Time, without changes of the clock.
    pub const UTC: Self = Self(&UTC);

    /// The zone with this name in the IANA database, in any case: `Europe/Berlin`.
    ///
    /// ```
    /// use tollgate::Zone;
    ///
    /// assert_eq!(Zone::new("europe/berlin")?.name(), "Europe/Berlin");
    /// assert_eq!(Zone::new("UTC")?, Zone::UTC);
    /// assert!(Zone::new("Mars/Olympus_Mons").is_err());
    /// # Ok::<(), tollgate::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::InvalidLimit`] if there is no such zone.
    pub fn new(name: &str) -> Result<Self, Error> {
        static KNOWN: Mutex<BTreeMap<String, Zone>> = Mutex::new(BTreeMap::new());
        if name.eq_ignore_ascii_case(UTC.name) {
            return Ok(Self::UTC);
        }
        let unknown = || {
            let reason = "the name of a time zone in the IANA database, such as Europe/Berlin or UTC";
            Error::InvalidLimit { field: "zone", value: format!("{name:?}"), reason }
        };
        let rules = TimeZone::get(name).map_err(|_| unknown())?;
        let name = rules.iana_name().ok_or_else(unknown)?.to_owned();
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(*known.entry(name).or_insert_with_key(|name| {
            let name = Box::leak(name.clone().into_boxed_str());
            Self(Box::leak(Box::new(NamedZone { name, rules })))
        }))
    }

    /// The zone's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.0.name
    }

    /// The names of all zones.
    pub(crate) fn names() -> Vec<String> {
        jiff::tz::db().available().map(|name| name.as_str().to_owned()).collect()
    }

    pub(crate) fn is_utc(self) -> bool {
        std::ptr::eq(self.0, &UTC)
    }

    /// The start and the end of the unit that contains `now`, in nanoseconds since the epoch: the
    /// last edge that is not after `now`, and the first edge that is.
    ///
    /// The edges near `now` are those of the unit on the local clock, and of two units on each
    /// side: after a change of the clock back across midnight, the local clock shows a day that has
    /// already ended.
    pub(crate) fn edges(self, unit: CalendarUnit, now: u64) -> (u64, u64) {
        let moment = Timestamp::from_nanosecond(now.into()).unwrap_or(Timestamp::MAX);
        let local = start_of(unit, self.0.rules.to_datetime(moment));
        let (mut start, mut end) = (0, u64::MAX);
        for edge in
            (-2..=2).filter_map(|count| shifted(unit, local, count)).flat_map(|at| self.starts(unit, at))
        {
            match edge {
                edge if edge <= now => start = edge.max(start),
                edge => end = edge.min(end),
            }
        }
        (start, end)
    }

    /// The moments at which a unit starts. If the clock is set forward across its start, it starts
    /// with the change. If the clock is set back across its start, it starts the first time; an
    /// hour starts both times.
    fn starts(self, unit: CalendarUnit, start: DateTime) -> impl Iterator<Item = u64> {
        let rules = &self.0.rules;
        let ambiguous = rules.to_ambiguous_timestamp(start);
        let (first, second) = match ambiguous.offset() {
            AmbiguousOffset::Unambiguous { offset } => (offset.to_timestamp(start).ok(), None),
            AmbiguousOffset::Fold { before, after } => {
                let again = (unit == CalendarUnit::Hour).then(|| after.to_timestamp(start).ok()).flatten();
                (before.to_timestamp(start).ok(), again)
            }
            AmbiguousOffset::Gap { before, .. } => {
                let after_change = before.to_timestamp(start).ok();
                let next = after_change.and_then(|at| at.checked_add(Span::new().nanoseconds(1)).ok());
                (next.and_then(|next| rules.preceding(next).next()).map(|change| change.timestamp()), None)
            }
        };
        let nanos = |at: Timestamp| u64::try_from(at.as_nanosecond().max(0)).unwrap_or(u64::MAX);
        first.into_iter().chain(second).map(nanos)
    }
}

/// The start of the unit that contains a local time.
fn start_of(unit: CalendarUnit, local: DateTime) -> DateTime {
    let date = local.date();
    let monday = |date: Date| {
        let days = i64::from(date.weekday().to_monday_zero_offset());
        date.checked_sub(Span::new().days(days)).unwrap_or(date)
    };
    let hour = Time::new(local.hour(), 0, 0, 0).unwrap_or(Time::midnight());
    match unit {
        CalendarUnit::Hour => date.to_datetime(hour),
        CalendarUnit::Day => date.to_datetime(Time::midnight()),
        CalendarUnit::Week => monday(date).to_datetime(Time::midnight()),
        CalendarUnit::Month => date.first_of_month().to_datetime(Time::midnight()),
        CalendarUnit::Year => date.first_of_year().to_datetime(Time::midnight()),
    }
}

/// A local time, `count` units later.
fn shifted(unit: CalendarUnit, local: DateTime, count: i32) -> Option<DateTime> {
    let span = match unit {
        CalendarUnit::Hour => Span::new().hours(count),
        CalendarUnit::Day => Span::new().days(count),
        CalendarUnit::Week => Span::new().weeks(count),
        CalendarUnit::Month => Span::new().months(count),
        CalendarUnit::Year => Span::new().years(count),
    };
    local.checked_add(span).ok()
}
