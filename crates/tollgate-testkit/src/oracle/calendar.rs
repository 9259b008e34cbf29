//! Calendar windows: at most so many units under one label of the local calendar.
//!
//! The oracle looks up the local time of a moment, never the moment of a local time. So it shares
//! nothing with the implementation but the zone's data. It does not know days that end and come
//! back: no clock of the laws is set back across midnight.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tollgate::{Algorithm, CalendarUnit, Limit, Zone};

use super::naive::{Naive, Size, Taken, untake_while, with_used};

#[derive(Clone)]
pub(super) struct Calendar {
    size: Size,
    unit: CalendarUnit,
    zone: Zone,
    rules: TimeZone,
    taken: Taken,
}

impl Calendar {
    pub(super) fn new(size: Size, unit: CalendarUnit, zone: Zone) -> Self {
        let rules = TimeZone::get(zone.name()).expect("a zone of a limit");
        Self { size, unit, zone, rules, taken: Vec::new() }
    }

    /// The name of a window: its unit on the local calendar. An hour that comes twice has two.
    fn label(&self, at: u64) -> [i32; 4] {
        let moment = Timestamp::from_nanosecond(at.into()).expect("a time of a test");
        let local = self.rules.to_datetime(moment);
        let (year, month) = (i32::from(local.year()), i32::from(local.month()));
        let day = i32::from(local.day());
        match self.unit {
            CalendarUnit::Hour => {
                let hour = (month * 31 + day) * 24 + i32::from(local.hour());
                [4, year, hour, self.rules.to_offset(moment).seconds()]
            }
            CalendarUnit::Day => [3, year, month, day],
            CalendarUnit::Week => {
                let week = local.date().iso_week_date();
                [2, week.year().into(), week.week().into(), 0]
            }
            CalendarUnit::Month => [1, year, month, 0],
            CalendarUnit::Year => [0, year, 0, 0],
            other => unreachable!("a unit without an oracle: {other}"),
        }
    }
}

impl Naive for Calendar {
    fn copy(&self) -> Box<dyn Naive> {
        Box::new(self.clone())
    }

    fn available(&self, now: u64) -> u64 {
        self.size.available(self.in_use(now))
    }

    fn owed(&self, now: u64) -> u64 {
        self.size.owed(self.in_use(now))
    }

    fn recordable(&self, now: u64) -> u64 {
        self.size.recordable(self.in_use(now))
    }

    fn in_use(&self, now: u64) -> u64 {
        let label = self.label(now);
        self.taken.iter().filter(|(at, _)| self.label(*at) == label).map(|(_, cost)| cost).sum()
    }

    fn replaced_by(&self, limit: &Limit, now: u64) -> Box<dyn Naive> {
        match limit.algorithm() {
            Algorithm::CalendarWindow { unit, zone, .. } if (unit, zone) == (self.unit, self.zone) => {
                let mut replaced = Self::new(Size::of(limit), unit, zone);
                replaced.taken.clone_from(&self.taken);
                replaced.excuse(now, self.owed(now));
                Box::new(replaced)
            }
            _ => with_used(limit, now, self.in_use(now), self.owed(now)),
        }
    }

    fn take(&mut self, now: u64, cost: u64) {
        self.size = self.size.with(self.in_use(now));
        self.taken.push((now, cost));
    }

    fn excuse(&mut self, now: u64, owed: u64) {
        self.size = self.size.excused(self.in_use(now), owed);
    }

    fn give(&mut self, now: u64, units: u64) {
        let label = self.label(now);
        let mut taken = std::mem::take(&mut self.taken);
        untake_while(&mut taken, |at| self.label(at) == label, units);
        self.taken = taken;
    }
}
