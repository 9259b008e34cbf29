//! Blocks and reservations of one cell.

use super::*;
use crate::rule::Tag;
use crate::store::{Answer, Charge, Effect, OnExpiry, Op, Part, Until};
use crate::{Budget, Key, MINUTE, RuleName, Verdict};
use std::time::Duration;

const NOW: Timestamp = Timestamp::from_secs(1_000);
const HOLD: HoldId = HoldId(7);

fn one(cell: &mut Cell, op: Op, limit: &Limit, cost: u64, now: Timestamp) -> Answer {
    let rule = RuleName::intern("r");
    let key = Key::new(rule, Budget::Rule, 0, b"");
    let tag = Tag::new(rule, Budget::Rule, (*limit).into(), 1);
    let charge = Charge { key, limit, cost, shadow: false, record_denied: false, part: Part::Whole, tag };
    transact(op, &[charge], std::slice::from_mut(cell), now, now).applied.answers[0]
}

fn reserve(secs: u64, on_expiry: OnExpiry) -> Op {
    Op::Reserve { hold: HOLD, ttl: Duration::from_secs(secs), on_expiry }
}

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(1_000 + secs)
}

#[test]
fn c5_a_reservation_that_expires_gives_everything_back_on_its_own() {
    let limit = Limit::sliding_log(10, MINUTE);
    let mut cell = Cell::new(limit);
    assert_eq!(one(&mut cell, reserve(5, OnExpiry::GiveBack), &limit, 8, NOW).outcome.remaining, 2);
    assert_eq!(one(&mut cell, Op::Peek, &limit, 1, at(4)).outcome.remaining, 2);
    assert_eq!(one(&mut cell, Op::Peek, &limit, 1, at(5)).outcome.remaining, 10);
    assert!(!cell.is_idle(at(9)) && cell.is_idle(at(10)), "it can be settled for as long again");
}

#[test]
fn c7_a_settlement_after_the_expiry_records_what_the_expiry_gave_back_and_counts_once() {
    let limit = Limit::sliding_log(10, MINUTE);
    let settle = |cell: &mut Cell, cost, secs| one(cell, Op::Settle { hold: HOLD }, &limit, cost, at(secs));
    for (on_expiry, before, cost) in [(OnExpiry::GiveBack, 10, 7), (OnExpiry::Keep, 2, 9)] {
        let mut cell = Cell::new(limit);
        one(&mut cell, reserve(5, on_expiry), &limit, 8, NOW);
        assert_eq!(one(&mut cell, Op::Peek, &limit, 1, at(6)).outcome.remaining, before);
        let late = settle(&mut cell, cost, 6);
        assert_eq!((late.effect, late.outcome.remaining), (Effect::SettledLate { shortfall: 0 }, 10 - cost));
        let again = settle(&mut cell, cost, 7);
        assert_eq!((again.effect, again.outcome.remaining), (Effect::NotReserved, 10 - cost));
    }
    let mut cell = Cell::new(limit);
    one(&mut cell, reserve(5, OnExpiry::Keep), &limit, 8, NOW);
    let kept = settle(&mut cell.clone(), 1, 9).outcome.remaining;
    assert_eq!(kept, 2, "an estimate that was kept gives nothing back");
    assert_eq!(settle(&mut cell, 7, 10).effect, Effect::NotReserved, "too late");
}

#[test]
fn c7_settling_for_more_than_was_held_records_the_rest() {
    let limit = Limit::fixed_window(10, MINUTE).debt(4);
    let mut cell = Cell::new(limit);
    one(&mut cell, reserve(5, OnExpiry::Keep), &limit, 8, NOW);
    let settled = one(&mut cell, Op::Settle { hold: HOLD }, &limit, 13, NOW);
    assert_eq!((settled.effect, settled.outcome.owed), (Effect::Settled { shortfall: 0 }, 3));
    let recorded = one(&mut cell, Op::Record, &limit, 5, NOW);
    assert_eq!((recorded.effect, recorded.outcome.owed), (Effect::Recorded { shortfall: 4 }, 4));
    assert_eq!(recorded.outcome.verdict, Verdict::Denied { retry_after: MINUTE });
}

#[test]
fn c7_a_renewed_reservation_lasts_from_the_renewal_and_an_expired_one_cannot_be_renewed() {
    let limit = Limit::fixed_window(10, MINUTE);
    let mut cell = Cell::new(limit);
    one(&mut cell, reserve(5, OnExpiry::GiveBack), &limit, 8, NOW);
    let renew = Op::Renew { hold: HOLD, ttl: Duration::from_secs(10) };
    assert_eq!(one(&mut cell, renew, &limit, 0, at(4)).effect, Effect::Renewed);
    assert_eq!(one(&mut cell, Op::Peek, &limit, 1, at(13)).outcome.remaining, 2);
    assert_eq!(one(&mut cell, Op::Peek, &limit, 1, at(14)).outcome.remaining, 10);
    assert_eq!(one(&mut cell, renew, &limit, 0, at(14)).effect, Effect::NotReserved);
}

#[test]
fn b3_a_hold_that_is_renewed_for_no_time_is_not_in_the_answer() {
    let limit = Limit::fixed_window(10, MINUTE);
    let mut cell = Cell::new(limit);
    one(&mut cell, reserve(5, OnExpiry::GiveBack), &limit, 8, NOW);
    let renewed = one(&mut cell, Op::Renew { hold: HOLD, ttl: Duration::ZERO }, &limit, 0, NOW);
    assert_eq!((renewed.effect, renewed.outcome.remaining), (Effect::Renewed, 10));
    assert_eq!(one(&mut cell, Op::Peek, &limit, 1, NOW).outcome.remaining, 10);
}

#[test]
fn c5_a_reservation_of_cost_0_is_held_renewed_and_settled_once() {
    for limit in [Limit::per(10, MINUTE), Limit::sliding_log(10, MINUTE)] {
        let mut cell = Cell::new(limit);
        assert!(one(&mut cell, reserve(30, OnExpiry::GiveBack), &limit, 0, NOW).outcome.allowed());
        assert!(!cell.is_idle(at(59)) && cell.is_idle(at(60)), "it can be settled until then");
        let renew = Op::Renew { hold: HOLD, ttl: MINUTE };
        assert_eq!(one(&mut cell, renew, &limit, 0, at(20)).effect, Effect::Renewed);
        let settled = one(&mut cell, Op::Settle { hold: HOLD }, &limit, 4, at(70));
        assert_eq!((settled.effect, settled.outcome.remaining), (Effect::Settled { shortfall: 0 }, 6));
        let again = one(&mut cell, Op::Settle { hold: HOLD }, &limit, 4, at(70));
        assert_eq!((again.effect, again.outcome.remaining), (Effect::NotReserved, 6));
    }
}

#[test]
fn c5_a_reservation_of_cost_0_takes_no_slot_and_is_denied_in_debt() {
    let slots = Limit::concurrent(1);
    let mut cell = Cell::new(slots);
    assert!(one(&mut cell, reserve(30, OnExpiry::GiveBack), &slots, 0, NOW).outcome.allowed());
    assert_eq!(cell, Cell::new(slots));
    let limit = Limit::fixed_window(10, MINUTE);
    let mut cell = Cell::new(limit);
    one(&mut cell, Op::Record, &limit, 12, NOW);
    assert!(!one(&mut cell, reserve(30, OnExpiry::GiveBack), &limit, 0, NOW).outcome.allowed());
    assert!(cell.holds.is_empty());
}

/// The id says nothing: an id that nobody made settles nothing, whatever its bits.
#[test]
fn c5_a_forged_id_settles_nothing() {
    let limit = Limit::fixed_window(10, MINUTE);
    let mut cell = Cell::new(limit);
    for forged in [0, 1, u128::MAX, (0xffff_ffff << 96) | (u128::from(at(600).as_nanos()) << 32)] {
        let settled = one(&mut cell, Op::Settle { hold: HoldId(forged) }, &limit, 3, NOW);
        assert_eq!((settled.effect, settled.outcome.remaining), (Effect::NotReserved, 10), "{forged:x}");
    }
    assert_eq!(cell, Cell::new(limit));
}

#[test]
fn c7_a_late_settlement_records_what_the_expiry_really_gave_back() {
    let limit = Limit::fixed_window(10, MINUTE);
    for (settled_at, remaining) in [(69, 10), (71, 10)] {
        let mut cell = Cell::new(limit);
        one(&mut cell, reserve(70, OnExpiry::GiveBack), &limit, 10, NOW);
        let settled = one(&mut cell, Op::Settle { hold: HOLD }, &limit, 10, at(settled_at));
        assert_eq!(settled.outcome.remaining, remaining, "at {settled_at} s: the window lapsed at 60 s");
    }
    let mut cell = Cell::new(limit);
    one(&mut cell, reserve(70, OnExpiry::GiveBack), &limit, 10, NOW);
    let more = one(&mut cell, Op::Settle { hold: HOLD }, &limit, 12, at(71));
    assert_eq!(more.outcome.remaining, 8, "only what is beyond the reservation is recorded");
}

/// A bucket has given back two of the reserved units by itself when the reservation expires.
#[test]
fn c7_a_late_settlement_of_a_bucket_records_what_was_still_drawn() {
    let limit = Limit::token_bucket(10, 1, Duration::from_secs(1));
    let mut cell = Cell::new(limit);
    one(&mut cell, reserve(2, OnExpiry::GiveBack), &limit, 6, NOW);
    assert_eq!(one(&mut cell, Op::Peek, &limit, 1, at(2)).outcome.remaining, 10);
    let settled = one(&mut cell, Op::Settle { hold: HOLD }, &limit, 6, at(2));
    assert_eq!(settled.outcome.remaining, 6, "as if it had been settled just before");
}

#[test]
fn c5_a_reservation_gives_back_its_own_entries_of_a_log() {
    let limit = Limit::sliding_log(5, Duration::from_secs(10));
    let mut cell = Cell::new(limit);
    let take = |cell: &mut Cell, cost, secs| one(cell, Op::Take, &limit, cost, at(secs)).outcome.allowed();
    one(&mut cell, reserve(30, OnExpiry::GiveBack), &limit, 3, NOW);
    assert!(take(&mut cell, 2, 5));
    one(&mut cell, Op::Settle { hold: HOLD }, &limit, 0, at(6));
    assert!(take(&mut cell, 3, 6));
    assert!(!take(&mut cell, 1, 10), "five were used within the last ten seconds");
    assert!(take(&mut cell, 2, 15) && !take(&mut cell, 1, 15));
}

#[test]
fn c5_a_reservation_gives_back_units_of_the_period_that_it_drew_in() {
    let limit = Limit::sliding_window(10, MINUTE);
    let start = Timestamp::from_secs(6_000);
    let at = |secs| start.saturating_add(Duration::from_secs(secs));
    for (settled_at, left) in [(30, 8), (90, 9), (150, 9)] {
        let mut cell = Cell::new(limit);
        let hold = Op::Reserve { hold: HOLD, ttl: 5 * MINUTE, on_expiry: OnExpiry::GiveBack };
        one(&mut cell, hold, &limit, 4, at(0));
        one(&mut cell, Op::Take, &limit, 2, at(1));
        if settled_at > 60 {
            one(&mut cell, Op::Penalise, &limit, 0, at(60));
        }
        if settled_at > 120 {
            one(&mut cell, Op::Take, &limit, 1, at(130));
        }
        let settled = one(&mut cell, Op::Settle { hold: HOLD }, &limit, 0, at(settled_at));
        assert_eq!(settled.outcome.remaining, left, "at {settled_at} s");
    }
}

/// The window that the reservation drew in has lapsed: units of the next one are others'.
#[test]
fn c5_a_reservation_gives_back_nothing_of_a_later_window() {
    let limit = Limit::fixed_window(10, MINUTE);
    let mut cell = Cell::new(limit);
    one(&mut cell, reserve(200, OnExpiry::GiveBack), &limit, 4, NOW);
    one(&mut cell, Op::Take, &limit, 5, at(61));
    let settled = one(&mut cell, Op::Settle { hold: HOLD }, &limit, 0, at(62));
    assert_eq!(settled.outcome.remaining, 5);
}

/// Many reservations of one unit, each expiring a second after the one before.
fn many(limit: Limit, count: u64) -> Cell {
    let mut cell = Cell::new(limit);
    for number in 1..=count {
        let (hold, ttl) = (HoldId(number.into()), Duration::from_secs(number));
        let op = Op::Reserve { hold, ttl, on_expiry: OnExpiry::GiveBack };
        assert!(one(&mut cell, op, &limit, 1, NOW).outcome.allowed());
    }
    cell
}

#[test]
fn c5_one_call_expires_at_most_512_reservations_and_the_next_calls_the_rest() {
    let limit = Limit::fixed_window(2_000, 60 * MINUTE);
    let mut cell = many(limit, 1_200);
    let left = |cell: &mut Cell| one(cell, Op::Peek, &limit, 1, at(1_200)).outcome.remaining;
    assert_eq!([left(&mut cell), left(&mut cell), left(&mut cell)], [800 + 512, 800 + 1_024, 2_000]);
}

#[test]
fn b2_a_peek_and_a_denial_write_an_expiry_only_if_more_than_16_reservations_are_due() {
    let limit = Limit::fixed_window(50, 60 * MINUTE);
    let written = many(limit, 50);
    for (secs, is_written) in [(16, false), (17, true)] {
        for (op, cost) in [(Op::Peek, 1), (Op::Take, 50)] {
            let mut cell = written.clone();
            let left = one(&mut cell, op, &limit, cost, at(secs)).outcome.remaining;
            assert_eq!((left, cell != written), (secs, is_written), "{op:?} after {secs} s");
        }
    }
}

#[test]
fn b4_a_retry_time_looks_at_64_reservations_and_is_never_too_late() {
    let limit = Limit::fixed_window(100, 60 * MINUTE);
    let mut cell = many(limit, 100);
    let wait = |cell: &mut Cell, cost| one(cell, Op::Peek, &limit, cost, NOW).outcome.verdict;
    for (cost, secs) in [(1, 1), (64, 64), (65, 64), (100, 64)] {
        let retry_after = Duration::from_secs(secs);
        assert_eq!(wait(&mut cell, cost), Verdict::Denied { retry_after }, "{cost} units");
    }
}

#[test]
fn c8_an_expired_slot_is_not_renewed_even_if_more_are_due_than_one_call_expires() {
    let limit = Limit::concurrent(1_000);
    let mut cell = Cell::new(limit);
    for number in 1..=1_000 {
        let op = Op::Acquire { hold: HoldId(number), ttl: MINUTE };
        assert!(one(&mut cell, op, &limit, 1, NOW).outcome.allowed());
    }
    let renew = Op::Renew { hold: HoldId(1_000), ttl: MINUTE };
    assert_eq!(one(&mut cell, renew, &limit, 0, at(60)).effect, Effect::NotReserved);
}

#[test]
fn e1_the_numbers_of_a_cell_have_its_reservations_and_damaged_ones_are_refused() {
    let limit = Limit::sliding_log(10, MINUTE);
    let mut cell = Cell::new(limit);
    for (number, on_expiry, secs) in [(1, OnExpiry::Keep, 5), (2, OnExpiry::GiveBack, 9)] {
        let hold = HoldId(number << 70 | 1);
        let op = Op::Reserve { hold, ttl: Duration::from_secs(secs), on_expiry };
        one(&mut cell, op, &limit, 2, NOW);
    }
    one(&mut cell, Op::Take, &limit, 1, at(6));
    let numbers = cell.to_numbers();
    assert_eq!(Cell::from_numbers(limit, &numbers), Some(cell));
    let damaged = |index: usize, number: u64| {
        let mut numbers = numbers.clone();
        numbers[index] = number;
        Cell::from_numbers(limit, &numbers)
    };
    assert_eq!(damaged(2, 1), None, "the number of reservations");
    assert_eq!(damaged(3 + 5, u64::MAX - 1), None, "a time that does not exist");
    assert_eq!(damaged(3 + 8, 4), None, "an unknown flag");
    assert_eq!(damaged(3 + 3, u64::MAX >> 1), None, "made after its expiry");
    let twice = [&numbers[..3], &numbers[3..12], &numbers[3..12], &numbers[21..]].concat();
    assert_eq!(Cell::from_numbers(limit, &twice), None, "one id twice");
}

#[test]
fn b11_every_verb_acts_under_the_limit_of_its_charge_and_an_unchanged_cell_stays_as_it_is() {
    let (old, new) = (Limit::fixed_window(10, MINUTE), Limit::fixed_window(4, MINUTE).debt(0));
    let hold = HOLD;
    let changes = [
        (Op::Record, 5, Effect::Recorded { shortfall: 3 }),
        (Op::Refund, 1, Effect::GivenBack { units: 1 }),
        (Op::Penalise, 5, Effect::Drawn { units: 2 }),
        (Op::Settle { hold }, 5, Effect::Settled { shortfall: 1 }),
        (Op::Renew { hold, ttl: MINUTE }, 0, Effect::Renewed),
        (Op::Block { until: Until::Date(at(9)) }, 0, Effect::None),
        (Op::Reset, 0, Effect::None),
    ];
    for (op, cost, effect) in changes {
        let mut cell = Cell::new(old);
        one(&mut cell, reserve(30, OnExpiry::GiveBack), &old, 2, NOW);
        assert_eq!(one(&mut cell, op, &new, cost, NOW).effect, effect, "{op:?}");
        assert_eq!(cell.limit(), new, "{op:?}");
    }
    let mut cell = Cell::new(old);
    one(&mut cell, Op::Take, &old, 4, NOW);
    let before = cell.clone();
    for op in [Op::Peek, Op::Penalise, Op::Record, Op::Settle { hold }] {
        assert_eq!(one(&mut cell, op, &new, 1, NOW).outcome.remaining, 0, "{op:?}");
        assert_eq!(cell, before, "{op:?}");
    }
}

#[test]
fn b4_the_wait_ends_when_a_reservation_expires_if_that_is_sooner() {
    let limit = Limit::fixed_window(10, MINUTE);
    let mut cell = Cell::new(limit);
    one(&mut cell, reserve(5, OnExpiry::GiveBack), &limit, 8, NOW);
    let wait = |cell: &mut Cell, cost| one(cell, Op::Peek, &limit, cost, NOW).outcome.verdict;
    assert_eq!(wait(&mut cell, 3), Verdict::Denied { retry_after: Duration::from_secs(5) });
    one(&mut cell, Op::Take, &limit, 2, NOW);
    assert_eq!(wait(&mut cell, 9), Verdict::Denied { retry_after: MINUTE }, "two stay in use");
}

#[test]
fn c5_settling_gives_back_the_excess_or_takes_the_shortfall() {
    let limit = Limit::fixed_window(10, MINUTE).debt(0);
    for (actual, remaining, shortfall) in [(3, 7, 0), (5, 5, 0), (8, 2, 0), (12, 0, 2)] {
        let mut cell = Cell::new(limit);
        one(&mut cell, reserve(30, OnExpiry::GiveBack), &limit, 5, NOW);
        let answer = one(&mut cell, Op::Settle { hold: HOLD }, &limit, actual, at(1));
        assert_eq!((answer.effect, answer.outcome.remaining), (Effect::Settled { shortfall }, remaining));
    }
}

#[test]
fn c5_a_block_denies_everything_until_it_ends_and_keeps_the_key() {
    let limit = Limit::fixed_window(10, MINUTE);
    let mut cell = Cell::new(limit);
    one(&mut cell, Op::Block { until: Until::Date(at(90)) }, &limit, 0, NOW);
    let blocked = one(&mut cell, Op::Take, &limit, 1, NOW).outcome;
    assert_eq!(blocked.verdict, Verdict::Denied { retry_after: Duration::from_secs(90) });
    assert_eq!((blocked.remaining, blocked.reset_at), (0, at(90)));
    assert!(!cell.is_idle(at(89)) && cell.is_idle(at(90)));
    one(&mut cell, Op::Block { until: Until::Date(Timestamp::EPOCH) }, &limit, 0, NOW);
    assert!(one(&mut cell, Op::Take, &limit, 1, NOW).outcome.allowed());
}

#[test]
fn c5_a_kept_reservation_stays_drawn_when_it_expires_unsettled() {
    let limit = Limit::fixed_window(10, MINUTE);
    let mut cell = Cell::new(limit);
    one(&mut cell, reserve(5, OnExpiry::Keep), &limit, 8, NOW);
    let mut settled = cell.clone();
    one(&mut settled, Op::Settle { hold: HOLD }, &limit, 1, at(4));
    assert_eq!(
        one(&mut settled, Op::Peek, &limit, 1, at(4)).outcome.remaining,
        9,
        "settled in time like any other"
    );
    let denied = one(&mut cell, Op::Peek, &limit, 3, at(4));
    assert_eq!(denied.outcome.verdict, Verdict::Denied { retry_after: Duration::from_secs(56) });
    assert_eq!(one(&mut cell, Op::Peek, &limit, 1, at(5)).outcome.remaining, 2);
    assert!(!cell.holds.is_empty());
    assert_eq!(one(&mut cell, Op::Settle { hold: HOLD }, &limit, 0, at(10)).effect, Effect::NotReserved);
    assert!(Cell::from_numbers(cell.limit(), &cell.to_numbers()).is_some());
}

#[test]
fn c5_a_peek_under_another_limit_leaves_reservations_alone() {
    let (limit, small) = (Limit::fixed_window(100, MINUTE), Limit::fixed_window(10, MINUTE));
    let mut cell = Cell::new(limit);
    one(&mut cell, reserve(30, OnExpiry::GiveBack), &limit, 80, NOW);
    assert_eq!(one(&mut cell, Op::Peek, &small, 1, NOW).outcome.remaining, 0);
    one(&mut cell, Op::Settle { hold: HOLD }, &limit, 0, NOW);
    assert_eq!(one(&mut cell, Op::Peek, &limit, 1, NOW).outcome.remaining, 100);
}
