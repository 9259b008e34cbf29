//! Portable state: it is lossless, and numbers from outside are not trusted.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use proptest::prelude::*;
use tollgate::{
    Applied, Cell, Charge, Limit, MINUTE, Meter, OnExpiry, Op, Request, Rule, RuleSet, SECOND, State, Store,
    StoreError, Timestamp, Transaction, transact,
};
use tollgate_testkit::{World, any_limit, run};

/// A store that keeps only states.
#[derive(Default)]
struct Table(Mutex<HashMap<Vec<u8>, State>>);

impl Store for Table {
    async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
        let mut rows = self.0.lock().unwrap();
        let read = |charge: &Charge<'_>| {
            let mut key = Vec::new();
            charge.key.encode(&mut key);
            let cell = match rows.get(&key) {
                Some(state) => Cell::from_state(*charge.limit, state),
                None => Some(Cell::new(*charge.limit)),
            };
            cell.map(|cell| (key, cell))
        };
        let read: Option<Vec<_>> = charges.iter().map(read).collect();
        let (keys, mut cells): (Vec<_>, Vec<_>) =
            read.ok_or(StoreError::Unavailable { reason: "not a state".into() })?.into_iter().unzip();
        let Transaction { applied, changed } = transact(op, charges, &mut cells, now, now);
        for ((key, cell), _) in keys.into_iter().zip(cells).zip(changed).filter(|(_, changed)| *changed) {
            rows.insert(key, through_serde(&cell.state()));
        }
        Ok(applied)
    }
}

fn through_serde(state: &State) -> State {
    #[cfg(feature = "serde")]
    return serde_json::from_str(&serde_json::to_string(state).unwrap()).unwrap();
    #[cfg(not(feature = "serde"))]
    state.clone()
}

tollgate_testkit::conformance!(a_store_of_states, Table::default);

const TICK: Duration = Duration::from_nanos(1);

/// Times at and near the ends of the range.
fn any_time() -> impl Strategy<Value = Timestamp> {
    let back = prop_oneof![Just(0), 0..1_000_000_000_u64, 0..200_000_000_000_u64];
    let times = [0, 1_800_000_000_000_000_000, Timestamp::MAX.as_nanos()];
    (prop::sample::select(times.to_vec()), back)
        .prop_map(|(time, back)| Timestamp::from_nanos(time.saturating_sub(back)))
}

/// Hostile numbers.
fn any_number() -> impl Strategy<Value = u64> {
    let edge = Timestamp::MAX.as_nanos();
    prop_oneof![
        0..20_u64,
        any_time().prop_map(Timestamp::as_nanos),
        prop::sample::select(vec![edge - 1, edge, edge + 1, edge + 3_153_600_000_000_000_000]),
        prop::sample::select(vec![u64::MAX - 1, u64::MAX]),
        any::<u64>(),
    ]
}

/// Applies the verb with this number to a meter.
fn act(meter: &mut Meter, verb: u8, limit: Limit, now: Timestamp, cost: u64) -> String {
    match verb {
        0 => meter.give(now, cost),
        1 => return format!("{}", meter.penalise(now, cost)),
        2 => meter.retune(limit, now),
        _ => return format!("{:?}", meter.decide(now, cost)),
    }
    String::new()
}

proptest! {
    #[test]
    fn b10_a_meter_restored_from_its_state_answers_as_the_original(
        limits in prop::collection::vec(any_limit(TICK), 1..3),
        start in any_time(),
        script in prop::collection::vec((0..8_u8, 0..90_000_000_000_u64, any::<bool>(), 0..6_u64), 1..40),
    ) {
        let (mut original, mut now) = (Meter::new(limits[0]), start);
        let mut restored = original.clone();
        for (verb, wait, back, cost) in script {
            let wait = Duration::from_nanos(wait);
            now = if back { now.saturating_sub(wait / 4) } else { now.saturating_add(wait) };
            let other = limits[usize::from(back) % limits.len()];
            let state = through_serde(&restored.state());
            restored = Meter::from_state(other, &state).expect("its own state");
            let answers = [&mut original, &mut restored].map(|meter| act(meter, verb, other, now, cost));
            prop_assert_eq!(&answers[0], &answers[1]);
            prop_assert_eq!(&original, &restored);
        }
        let cell = Cell::new(limits[0]).state();
        prop_assert_eq!(Meter::from_state(limits[0], &cell), None, "a cell is no meter");
        prop_assert_eq!(Cell::from_state(limits[0], &original.state()), None, "a meter is no cell");
    }

    #[test]
    fn d3_hostile_numbers_are_refused_or_keep_the_limit(
        limit in any_limit(TICK),
        numbers in prop::collection::vec(any_number(), 0..8),
        asks in prop::collection::vec((any_time(), 0..8_u8, any_limit(TICK), any_number()), 1..8),
    ) {
        let numbers = State { limit: Some(limit), numbers };
        let short = |length| State { numbers: numbers.numbers[..length].to_vec(), ..numbers.clone() };
        for length in 0..=numbers.numbers.len() {
            let Some(mut meter) = Meter::from_state(limit, &short(length)) else { continue };
            prop_assert_eq!(meter.state(), short(length));
            for (now, verb, other, cost) in &asks {
                act(&mut meter, *verb, *other, *now, *cost);
                prop_assert!(meter.peek(*now, 1).remaining <= meter.limit().capacity());
                let state = meter.state();
                let back = Meter::from_state(limit, &state);
                prop_assert_eq!(back.as_ref(), Some(&meter), "{:?}", state);
            }
        }
    }

    #[test]
    fn d3_a_hostile_row_is_refused_or_keeps_the_limit(
        limit in any_limit(TICK),
        inline in prop::option::of(prop_oneof![
            Just(Limit::per_minute(7)), Just(Limit::per_second(9)), Just(Limit::fixed_window(7, MINUTE))
        ]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any_number()), 1..4),
        asks in prop::collection::vec((any_time(), 0..7_u8, 0..9_u64), 1..8),
    ) {
        let world = World::new(Table::default(), [Rule::new("own", limit).key(["client"])]);
        let rules = [Rule::new("own", limit).key(["client"]), Rule::inline("inline").key(["client"])];
        world.limiter.set_rules(RuleSet::new(rules).unwrap()).unwrap();
        let inline_limit = inline.map(|limit| world.limiter.inline(limit).unwrap());
        let request = |cost| {
            let request = Request::client("a").cost(cost);
            match &inline_limit {
                Some(limit) => request.under("inline", limit),
                None => request,
            }
        };
        let hold = run(world.limiter.reserve(request(1), MINUTE, OnExpiry::GiveBack)).unwrap().detach();
        let _ = run(world.limiter.block(request(1), SECOND));
        for state in world.limiter.store().0.lock().unwrap().values_mut() {
            for (index, number) in &changes {
                let index = index.index(state.numbers.len());
                state.numbers[index] = *number;
            }
        }
        for (now, verb, cost) in asks {
            world.clock.set(now);
            let limiter = &world.limiter;
            match verb {
                0 => drop(run(limiter.refund(request(cost)))),
                1 => drop(run(limiter.penalise(request(cost)))),
                2 => drop(run(limiter.reserve(request(cost), SECOND, OnExpiry::GiveBack)).map(tollgate::Reservation::detach)),
                3 => drop(hold.map(|hold| run(limiter.settle(hold, request(cost))))),
                4 => drop(run(limiter.block(request(cost), SECOND))),
                _ => {
                    let decision = run(limiter.check_async(request(cost))).unwrap();
                    prop_assert!(decision.degraded() || decision.remaining() <= decision.limit());
                }
            }
        }
    }
}

#[test]
fn d3_numbers_that_the_limit_cannot_have_written_are_refused() {
    let late = Timestamp::MAX.as_nanos() + 1;
    let minute = 60_000_000_000;
    let meter = |limit: Limit, numbers: &[u64]| {
        Meter::from_state(limit, &State { limit: Some(limit), numbers: numbers.to_vec() }).is_some()
    };
    let fixed = Limit::fixed_window(10, MINUTE);
    assert!(meter(fixed, &[late - 1, 3]) && !meter(fixed, &[late, 3]), "after the latest timestamp");
    assert!(!meter(fixed, &[1]) && !meter(fixed, &[1, 2, 3]), "too few, too many");
    let whole = Limit::per_minute(10).debt(0);
    assert!(meter(whole, &[late - 1 + minute]) && !meter(whole, &[late + minute]));
    let thirds = Limit::per_second(3);
    assert!(meter(thirds, &[1, 2]) && !meter(thirds, &[1, 3]), "three thirds of a nanosecond");
    let reserve = Limit::per_second(3).reserve(3, 3, SECOND);
    assert!(meter(reserve, &[1, 2, 1, 2]) && !meter(reserve, &[1, 3, 1, 2]));
    assert!(!meter(reserve, &[1, 2, 1, 3]) && !meter(reserve, &[1, 2, late + minute, 2]));
    let log = Limit::sliding_log(10, MINUTE);
    assert!(meter(log, &[1, 1, 2, 1]) && !meter(log, &[2, 1, 1, 1]), "entries out of order");
    assert!(!meter(log, &[1, u64::MAX, 2, 1]) && !meter(log, &[late, 1]) && !meter(log, &[1]));

    let cell = |numbers: &[u64]| {
        Cell::from_state(fixed, &State { limit: Some(fixed), numbers: numbers.to_vec() }).is_some()
    };
    let hold = |expires_at: u64| [expires_at, 7, 1, 0, expires_at, 0, 2, 0, 0];
    let held =
        |holds: &[[u64; 9]]| cell(&[&[0, 0, holds.len() as u64], holds.as_flattened(), &[1, 2]].concat());
    assert!(cell(&[1, 2, 0, 1, 2]) && !cell(&[late, 2, 0, 1, 2]) && !cell(&[1, late, 0, 1, 2]));
    assert!(!cell(&[1, 2, 1, 1, 2]) && !cell(&[1, 2, u64::MAX, 1, 2]), "missing reservations");
    assert!(held(&[hold(5), hold(6)]) && !held(&[hold(6), hold(5)]) && !held(&[hold(late)]));
    assert!(!held(&[hold(5), hold(5)]), "one reservation twice");
}

#[test]
fn b12_an_inline_state_is_restored_under_any_inline_limit() {
    let refused = State { limit: None, numbers: vec![1, 0, 0] };
    assert_eq!(Meter::from_state(Limit::per_minute(1), &refused), None, "no inline limit is in force");
    let table = World::new(Table::default(), [Rule::inline("inline").key(["client"])]);
    let [one, other] = [Limit::per_minute(7), Limit::per_second(9)].map(|limit| table.limiter.inline(limit));
    assert!(table.check(Request::client("a").under("inline", &one.unwrap())).allowed());
    let plant = |numbers: &[u64]| {
        let mut rows = table.limiter.store().0.lock().unwrap();
        let state = rows.values_mut().next().unwrap();
        assert_eq!(state.limit, None);
        state.numbers = [&[0, 0, 0], numbers].concat();
    };
    let other = other.unwrap();
    let check = || table.check(Request::client("a").under("inline", &other));
    assert!(!check().degraded());
    for (numbers, read) in
        [([1, 2, 3], true), ([1, 3, 3], false), ([1, 1, 0], false), ([u64::MAX, 0, 0], false)]
    {
        plant(&numbers);
        assert_eq!(!check().degraded(), read, "{numbers:?}");
    }
}

#[cfg(feature = "dump")]
#[test]
fn d3_a_dump_with_a_number_that_its_limit_cannot_have_written_is_refused() {
    use tollgate::{Limiter, ManualClock, MemoryStore};
    let rules = RuleSet::new([Rule::new("per-client", Limit::per_minute(60)).key(["client"])]).unwrap();
    let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
    let limiter = Limiter::builder(rules).clock(clock).build().unwrap();
    assert!(limiter.check("a").unwrap().allowed());
    let mut dump = Vec::new();
    limiter.store().dump(&mut dump).unwrap();
    assert!(MemoryStore::restore(&*dump).is_ok());
    let hostile = String::from_utf8(dump).unwrap().replace("1800000001000000000", &u64::MAX.to_string());
    let error = MemoryStore::restore(hostile.as_bytes()).unwrap_err();
    assert!(error.to_string().contains("not a key and its state"), "{error}");
}

#[cfg(feature = "serde")]
#[test]
fn a_state_in_json_is_its_limit_and_its_numbers() {
    let mut meter = Meter::new(Limit::fixed_window(10, MINUTE));
    assert!(meter.decide(Timestamp::from_secs(1_800_000_000), 3).allowed());
    let json = serde_json::to_string(&meter.state()).unwrap();
    assert_eq!(json, r#"{"limit":"10/minute fixed","numbers":[1800000000000000000,3]}"#);
    assert!(serde_json::from_str::<State>(&json.replace("minute", "minuet")).is_err());
}
