//! C9: calendar windows.

use proptest::prelude::*;
use tollgate::CalendarUnit::{Day, Hour, Month, Week, Year};
use tollgate::{Algorithm, CalendarUnit, Limit, ManualClock, Request, Rule, Store, Timestamp};

use super::{Laws, per_client};
use crate::oracle::{Oracle, Verb};
use crate::scenario::calendar_of;
use crate::steps;
use crate::world::{CLIENTS, World, run, runtime};

const UNITS: &[CalendarUnit] = &[Hour, Day, Week, Month, Year];

/// Moments shortly before the clock of some zone changes, before the end of a February, and before
/// Samoa skipped a day: seconds since the epoch.
const STARTS: [u64; 6] = [
    1_774_740_600, // 2026-03-28T23:30Z: summer time in Berlin
    1_792_884_600, // 2026-10-24T23:30Z: winter time in Berlin
    1_793_503_800, // 2026-11-01T03:30Z: winter time in Havana
    1_835_384_400, // 2028-02-28T21:00Z: the last day of February is tomorrow
    1_325_232_000, // 2011-12-30T08:00Z: two hours before midnight in Samoa
    1_798_761_599, // 2026-12-31T23:59:59Z
];

impl<S: Store, F: Fn() -> S + Sync> Laws<F> {
    /// C9. Every outcome of an hour, a day, a week, a month and a year is that of the oracle, to
    /// the unit and to the tick, through changes of the clock and leap years.
    pub fn c9_windows_are_those_of_the_calendar(&self) {
        let tick = self.tick;
        let start = prop::sample::select(&STARTS).prop_map(Timestamp::from_secs);
        let limit = (1..10_u64, calendar_of(UNITS), prop::option::of(0..12_u64));
        let limit = limit.prop_map(|(limit, (unit, zone), debt)| {
            let limit = Algorithm::CalendarWindow { limit, unit, zone, count_denied: false };
            let limit = Limit::new(limit).expect("small numbers");
            debt.map_or(limit, |debt| limit.debt(debt))
        });
        let verb = prop_oneof![6 => Just(Verb::Check), 1 => Just(Verb::Refund), 2 => Just(Verb::Record)];
        let script = (limit, start).prop_flat_map(move |(limit, start)| {
            let verbs = prop::collection::vec(verb.clone(), 40);
            (Just(limit), Just(start), steps(tick, limit.period() / 4, 40), verbs)
        });
        self.property(script, |(limit, start, steps, verbs)| {
            let rules: [Rule; 1] = [per_client(limit)];
            let mut oracle = Oracle::new(&rules, tick);
            let world = {
                let _context = runtime().enter();
                World::with_clock(ManualClock::at(start), (self.make)(), rules)
            };
            for (step, verb) in steps.iter().zip(verbs) {
                world.clock.advance(step.wait);
                let client = CLIENTS[step.client];
                let request = Request::client(client).cost(step.cost);
                let expected = oracle.ask(verb, &[("client", client)], step.cost, world.now());
                let decision = match verb {
                    Verb::Refund => {
                        run(world.limiter.refund(request)).expect("the store refunds");
                        world.peek(request)
                    }
                    Verb::Record => {
                        run(world.limiter.record(request)).expect("the store records").decision().clone()
                    }
                    _ => world.check(request),
                };
                let (got, expected) = (decision.limits()[0].outcome, &expected[0]);
                prop_assert_eq!(
                    (got.allowed(), got.remaining, got.owed, got.reset_at, got.verdict.retry_after()),
                    (
                        expected.allowed,
                        expected.remaining,
                        expected.owed,
                        expected.reset_at,
                        expected.retry_after
                    ),
                    "{} at {:?}, {:?} of {}",
                    limit,
                    world.now(),
                    verb,
                    step.cost
                );
            }
            Ok(())
        });
    }
}
