//! Parsing calendar windows: the part after `1000/` in `1000/month` and `10/day at Europe/Berlin`.

use super::parser::{Parser, suggestion};
use crate::{Algorithm, CalendarUnit, Error, Zone};

/// Words for units of the calendar.
const UNITS: [(CalendarUnit, [&str; 3]); 5] = [
    (CalendarUnit::Hour, ["hour", "hours", "h"]),
    (CalendarUnit::Day, ["day", "days", "d"]),
    (CalendarUnit::Week, ["week", "weeks", "w"]),
    (CalendarUnit::Month, ["month", "months", "month"]),
    (CalendarUnit::Year, ["year", "years", "year"]),
];

fn unit_of(word: &str) -> Option<CalendarUnit> {
    let known = UNITS.iter().find(|(_, words)| words.iter().any(|known| known.eq_ignore_ascii_case(word)));
    known.map(|(unit, _)| *unit)
}

impl Parser<'_> {
    /// A calendar window of `limit` units, if one follows: a month or a year, or another unit with
    /// a zone.
    pub(super) fn calendar_window(&mut self, limit: u64) -> Result<Option<Algorithm>, Error> {
        let number = self.peek().filter(|token| token.is_number());
        let index = usize::from(number.is_some());
        let Some(unit) = self.peek_at(index).and_then(|word| unit_of(word.text)) else { return Ok(None) };
        let has_zone = self.peek_at(index.saturating_add(1)).is_some_and(|word| word.text == "at");
        if !has_zone && !unit.is_always_calendar() {
            return Ok(None);
        }
        if let Some(number) = number.filter(|number| number.text != "1") {
            let reason = format!("{:?} of the calendar's units", number.text);
            let hint = format!("a calendar window is one unit: write \"{limit}/{unit}\"");
            return Err(self.error_at(number, reason, hint));
        }
        self.skip(index.saturating_add(1));
        let zone = self.zone()?;
        Ok(Some(Algorithm::CalendarWindow { limit, unit, zone, count_denied: self.counting_denied()? }))
    }

    /// `at Europe/Berlin`, or UTC.
    fn zone(&mut self) -> Result<Zone, Error> {
        if !self.word("at") {
            return Zone::new("UTC").map_err(|error| self.zone_error(1, "UTC", error));
        }
        self.has_zone = true;
        let Some(name) = self.peek() else {
            let hint = "write a zone of the IANA database, such as Europe/Berlin or UTC";
            return Err(self.error_at_end("a time zone is missing", hint));
        };
        self.skip(1);
        Zone::new(name.text).map_err(|error| self.zone_error(name.column, name.text, error))
    }

    fn zone_error(&self, column: usize, name: &str, error: Error) -> Error {
        let Error::InvalidLimit { reason, .. } = error else { return error };
        let names = Zone::names();
        if names.is_empty() {
            let hint = "build the crate tollgate with the feature `calendar`";
            return self.error(column, "this program has no calendar windows", hint);
        }
        let hint = suggestion(name, names.iter().map(String::as_str));
        let hint = hint.unwrap_or_else(|| format!("write {reason}"));
        self.error(column, format!("unknown time zone {name:?}"), hint)
    }
}
