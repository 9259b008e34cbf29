//! Reservations that hold nothing: of cost 0, covered by no rule, or made without the store.
//!
//! Nothing is stored when one is made. Its settlement records all of the cost, and leaves a note in
//! one cell of the request, so that it counts once, however often it is sent. A renewal leaves a
//! note too. The note is in the cell with the fewest reservations and notes, so that a budget that
//! many clients share is not the one that keeps those of all.

use smallvec::SmallVec;

use super::{act_on_all, seen};
use crate::Timestamp;
use crate::cell::{Cell, Hold};
use crate::store::{Answer, Charge, Effect, HoldId, OnExpiry, Op, Part};

/// Settles or renews reservation `id`, which holds nothing and ends at `end`, unless it was settled
/// or has ended.
pub(super) fn act_on_nothing(
    op: Op,
    (id, end): (HoldId, Timestamp),
    charges: &[Charge<'_>],
    cells: &mut [&mut Cell],
    reading: Timestamp,
    now: Timestamp,
) -> (SmallVec<[Answer; 4]>, SmallVec<[bool; 4]>) {
    let note_in = |cell: &Cell| cell.holds.iter().find(|hold| hold.id == id).copied();
    let noted = cells.iter().enumerate().find_map(|(index, cell)| Some((index, note_in(cell)?)));
    let end = noted.map_or(end, |(_, note)| note.expires_at);
    let is_settled = noted.is_some_and(|(_, note)| note.on_expiry == OnExpiry::GiveBack);
    if is_settled || end <= now {
        return act_on_all(op, charges, cells, reading, now);
    }
    let (acted, end, is_settled) = match op {
        Op::Renew { ttl, .. } => (op, end.max(now.saturating_add(ttl).saturating_add(ttl)), false),
        _ => (Op::Record, end, true),
    };
    let (mut answers, mut changed) = act_on_all(acted, charges, cells, reading, now);
    for answer in &mut answers {
        answer.effect = match answer.effect {
            Effect::Recorded { shortfall } => Effect::Settled { shortfall },
            _ => Effect::Renewed,
        };
    }
    // A store that is full may drop the cells of shadow rules and of overflows.
    let may_be_dropped = |charge: &Charge<'_>| charge.shadow || matches!(charge.part, Part::Rest(_));
    let each = charges.iter().zip(cells).zip(&mut changed).enumerate();
    let chosen = each
        .map(|(index, ((charge, cell), changed))| (index, charge, seen(op, charge, cell, now), cell, changed))
        .min_by_key(|(index, charge, seen, ..)| {
            (noted.is_none_or(|(noted, _)| noted != *index), may_be_dropped(charge), seen.holds.len())
        });
    if let Some((_, _, mut seen, cell, changed)) = chosen {
        seen.note(Hold::note(id, end, is_settled));
        seen.drop_ended(now);
        **cell = seen;
        *changed = true;
    }
    (answers, changed)
}
