//! Time zones, by their names in the IANA database.
//!
//! The data of a zone is read once for each process: from the system's database or, where the
//! system has none, from the one in the program. Without the feature `calendar` there are no zones.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Range;

use crate::{CalendarUnit, Timestamp};

/// A time zone, such as `Europe/Berlin`.
///
/// Zones are kept for the life of the process. They come from configuration, and there are some six
/// hundred of them.
#[derive(Clone, Copy)]
pub struct Zone(&'static NamedZone);

#[cfg(feature = "calendar")]
struct NamedZone {
    name: &'static str,
    rules: jiff::tz::TimeZone,
}

/// Without the feature `calendar` no zone can be made.
#[cfg(not(feature = "calendar"))]
enum NamedZone {}

impl Zone {
    /// The window of the calendar that contains a moment: from the start of the unit to its end.
    #[must_use]
    pub fn window(self, unit: CalendarUnit, now: Timestamp) -> Range<Timestamp> {
        let (start, end) = self.edges(unit, now.as_nanos());
        Timestamp::from_nanos(start)..Timestamp::from_nanos(end)
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Zone {}

impl Hash for Zone {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(not(feature = "calendar"))]
impl Zone {
    /// The zone with this name.
    ///
    /// # Errors
    /// [`Error::InvalidLimit`](crate::Error::InvalidLimit): the feature `calendar` is missing.
    pub fn new(name: &str) -> Result<Self, crate::Error> {
        let reason = "in a build of the crate tollgate with the feature `calendar`";
        Err(crate::Error::InvalidLimit { field: "zone", value: name.to_owned(), reason })
    }

    /// The zone's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match *self.0 {}
    }

    /// No names.
    pub(crate) const fn names() -> Vec<String> {
        Vec::new()
    }

    pub(crate) const fn is_utc(self) -> bool {
        match *self.0 {}
    }

    pub(crate) const fn edges(self, _unit: CalendarUnit, _now: u64) -> (u64, u64) {
        match *self.0 {}
    }
}

#[cfg(feature = "calendar")]
mod edges;
