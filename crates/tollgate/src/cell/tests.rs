//! Blocks and reservations of one cell.

use super::*;
use crate::rule::Tag;
use crate::store::{Answer, Charge, Effect, Op, Part};
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
    Op::Reserve { hold: HOLD, holder: 1, ttl: Duration::from_secs(secs), on_expiry }
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
fn c5_one_holder_has_at_most_as_many_reservations_as_are_free() {
    let limit = Limit::per(1_000_000, MINUTE);
    let mut cell = Cell::new(limit);
    let mut ids = 0..;
    let mut reserve = |cell: &mut Cell, holder: u64, secs: u64| {
        let hold = HoldId(ids.next().unwrap());
        let (ttl, on_expiry) = (Duration::from_secs(secs), OnExpiry::GiveBack);
        let op = Op::Reserve { hold, holder, ttl, on_expiry };
        one(cell, op, &limit, 1, NOW).outcome
    };
    assert!((0..HOLDS_MAX / 2).all(|_| reserve(&mut cell, 1, 30).allowed()));
    let refused = reserve(&mut cell, 1, 30);
    assert_eq!(refused.verdict, Verdict::Denied { retry_after: Duration::from_secs(30) });
    assert!((0..HOLDS_MAX / 4).all(|_| reserve(&mut cell, 2, 20).allowed()), "another has room");
    assert!(!reserve(&mut cell, 2, 20).allowed());
    assert!(reserve(&mut cell, 3, 10).allowed());
    assert!(one(&mut cell, Op::Take, &limit, 1, NOW).outcome.allowed(), "requests go on");
    assert_ne!(one(&mut cell, Op::Settle { hold: HoldId(7) }, &limit, 1, NOW).effect, Effect::NotReserved);
    assert!(!reserve(&mut cell, 1, 30).allowed(), "the first still has far more than are free");
    cell.expire(at(30));
    assert_eq!(cell.live_holds().count(), 0);
    cell.expire(at(60));
    assert!(cell.holds.is_empty());
}

#[test]
fn c5_a_reservation_of_cost_0_is_not_stored() {
    let limit = Limit::per(10, MINUTE);
    let mut cell = Cell::new(limit);
    assert!(one(&mut cell, reserve(30, OnExpiry::GiveBack), &limit, 0, NOW).outcome.allowed());
    assert!(cell.holds.is_empty() && cell.is_idle(NOW));
}

#[test]
fn c7_a_settlement_of_nothing_is_noted_until_the_reservation_ends() {
    let limit = Limit::fixed_window(10, MINUTE);
    let mut cell = Cell::new(limit);
    let hold = HoldId::nothing_until(at(100));
    let settle = |cell: &mut Cell, cost, secs| one(cell, Op::Settle { hold }, &limit, cost, at(secs)).effect;
    assert_eq!(settle(&mut cell, 7, 0), Effect::Settled { shortfall: 0 });
    assert_eq!(settle(&mut cell, 7, 0), Effect::NotReserved);
    assert_eq!(one(&mut cell, Op::Peek, &limit, 1, NOW).outcome.remaining, 3);
    let mut stored = Cell::from_numbers(limit, &cell.to_numbers()).expect("its own numbers");
    assert_eq!(settle(&mut stored, 7, 99), Effect::NotReserved, "the window has lapsed, the note has not");
    assert!(!stored.is_idle(at(99)) && stored.is_idle(at(100)));
    stored.rebase(NOW);
    assert_eq!(settle(&mut stored, 7, 99), Effect::NotReserved, "a wild reading does not forget it");
    assert_eq!(settle(&mut Cell::new(limit), 7, 100), Effect::NotReserved, "too late");
}

#[test]
fn c7_a_renewed_reservation_of_nothing_can_be_settled_for_twice_the_time_from_the_renewal() {
    let limit = Limit::fixed_window(10, MINUTE);
    let mut cell = Cell::new(limit);
    let hold = HoldId::nothing_until(at(10));
    let renew = |cell: &mut Cell, secs, ttl| {
        one(cell, Op::Renew { hold, ttl: Duration::from_secs(ttl) }, &limit, 0, at(secs)).effect
    };
    assert_eq!(renew(&mut cell, 9, 20), Effect::Renewed);
    assert_eq!(renew(&mut cell, 10, 1), Effect::Renewed, "never earlier than before");
    let settle = Op::Settle { hold };
    assert_eq!(one(&mut cell.clone(), settle, &limit, 1, at(49)).effect, Effect::NotReserved);
    assert_eq!(one(&mut cell, settle, &limit, 1, at(48)).effect, Effect::Settled { shortfall: 0 });
    assert_eq!(one(&mut cell, settle, &limit, 1, at(48)).effect, Effect::NotReserved);
    assert_eq!(renew(&mut cell, 48, 20), Effect::NotReserved, "it was settled");
}

#[test]
fn c7_notes_are_bounded_and_reservations_come_first() {
    let limit = Limit::per(1_000_000, MINUTE);
    let mut cell = Cell::new(limit);
    let settle = |cell: &mut Cell, hold| one(cell, Op::Settle { hold }, &limit, 1, NOW).effect;
    let nothing: Vec<HoldId> = (1..=200).map(|secs| HoldId::nothing_until(at(secs))).collect();
    assert!(nothing.iter().all(|hold| settle(&mut cell, *hold) != Effect::NotReserved));
    assert_eq!(cell.holds.len(), NOTES_MAX);
    assert_eq!(settle(&mut cell, nothing[199]), Effect::NotReserved);
    assert_ne!(settle(&mut cell, nothing[0]), Effect::NotReserved, "the first to end is forgotten");
    let mut made = 0;
    let mut reserve = |cell: &mut Cell| {
        made += 1;
        let (hold, holder) = (HoldId(made), u64::try_from(made).unwrap());
        let op = Op::Reserve { hold, holder, ttl: MINUTE, on_expiry: OnExpiry::Keep };
        one(cell, op, &limit, 1, NOW).outcome.allowed()
    };
    assert!((1..HOLDS_MAX).all(|_| reserve(&mut cell)), "each of another holder");
    assert_eq!((cell.live_holds().count(), cell.holds.len()), (HOLDS_MAX - 1, HOLDS_MAX));
    assert_ne!(settle(&mut cell, nothing[1]), Effect::NotReserved);
    assert_eq!(settle(&mut cell, nothing[1]), Effect::NotReserved, "in the place of the last note");
    cell.holds.retain(|hold| !hold.is_note());
    cell.hold(Hold { units: 1, ..Hold::slot(HoldId(0), NOW, MINUTE) });
    let before = cell.meter.used(NOW);
    assert_ne!(settle(&mut cell, nothing[1]), Effect::NotReserved);
    assert_eq!((cell.live_holds().count(), cell.meter.used(NOW)), (HOLDS_MAX, before + 1), "recorded");
}

/// The note is kept by the cell with the fewest, and found in any.
#[test]
fn c7_the_note_of_a_settlement_is_in_one_cell_of_the_request() {
    let limits = [Limit::per(1_000, MINUTE), Limit::per(100, MINUTE), Limit::per(100, MINUTE)];
    let rule = RuleName::intern("r");
    let each = limits.iter().zip([false, false, true]).map(|(limit, shadow)| {
        let tag = Tag::new(rule, Budget::Rule, (*limit).into(), 1);
        let (key, part, record_denied) = (Key::new(rule, Budget::Rule, 0, b""), Part::Whole, false);
        Charge { key, limit, cost: 5, shadow, part, record_denied, tag }
    });
    let charges: Vec<Charge<'_>> = each.collect();
    let mut cells = limits.map(Cell::new);
    one(&mut cells[0], reserve(30, OnExpiry::Keep), &limits[0], 1, NOW);
    let settle = Op::Settle { hold: HoldId::nothing_until(at(60)) };
    assert_eq!(transact(settle, &charges, &mut cells, NOW, NOW).changed.as_slice(), [true; 3]);
    assert_eq!(cells.each_ref().map(|cell| cell.holds.len()), [1, 1, 0], "a shadow rule comes last");
    let again = transact(settle, &charges, &mut cells, NOW, NOW);
    assert!(again.applied.answers.iter().all(|answer| answer.effect == Effect::NotReserved));
    assert_eq!(again.changed.as_slice(), [false; 3]);
}

#[test]
fn b11_an_administrative_verb_leaves_the_client_s_limit_unchanged() {
    let (base, gold) = (Limit::fixed_window(10, MINUTE), Limit::fixed_window(1_000, MINUTE));
    let mut cell = Cell::new(gold);
    one(&mut cell, Op::Take, &gold, 600, NOW);
    // An administrator may not know the client's plan.
    assert_eq!(one(&mut cell, Op::Penalise, &base, 50, NOW).effect, Effect::Drawn { units: 50 });
    one(&mut cell, Op::Block { until: Until::Date(NOW) }, &base, 0, NOW);
    assert_eq!(one(&mut cell, Op::Peek, &gold, 1, NOW).outcome.remaining, 350);
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
fn b11_settling_a_reservation_of_an_older_limit_does_not_bring_that_limit_back() {
    let (old, new) = (Limit::fixed_window(10, MINUTE), Limit::fixed_window(100, MINUTE));
    let mut cell = Cell::new(old);
    one(&mut cell, reserve(30, OnExpiry::GiveBack), &old, 10, NOW);
    assert_eq!(one(&mut cell, Op::Take, &new, 40, NOW).outcome.remaining, 50);
    assert_eq!(one(&mut cell, Op::Settle { hold: HOLD }, &old, 4, NOW).outcome.remaining, 56);
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
