//! Applying a whole request to its cells.

use smallvec::SmallVec;

use super::{Block, Cell, Hold};
use crate::limit::Kind;
use crate::meter::Skew;
use crate::store::{Answer, Applied, Charge, Effect, Op, Part};
use crate::{Meter, Timestamp};

mod denied;
mod overflow;
mod view;

use denied::{record, recorded_units, refuse};
use overflow::{Parts, act_on_parts};
use view::CellView;

/// The result of a request, and which of its cells to write.
#[derive(Clone, Debug, PartialEq)]
pub struct Transaction {
    /// The store's answer.
    pub applied: Applied,
    /// For each cell, whether it has to be written.
    pub changed: SmallVec<[bool; 4]>,
}

/// Applies `op` to the cells of a request: the arithmetic, the composition, the blocks and the
/// reservations of a [`Store`](crate::Store). The store provides a transaction and a row per key.
///
/// `cells` are the cells of `charges`, one each, in order. No key occurs twice: the limiter merges
/// duplicates. The cell of a new key is [`Cell::new`] of the charge's limit.
///
/// A denied request and a peek write nothing. There are three exceptions, all for a check that the
/// limit itself denies: a state from a wild reading of the clock is re-based, a state that a
/// replaced limit wrote is converted, and a [denied cost](Charge::record_denied) is recorded.
///
/// `now` is the reading of the clock. `newest` is the newest reading that the store has seen, if
/// the store keeps it and `now` may merely have come late; otherwise pass `now`.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::Mutex;
/// use tollgate::{Applied, Cell, Charge, Limit, Limiter, Op, Rule, RuleSet, State, Store, StoreError};
/// use tollgate::{Timestamp, Transaction, block_on, transact};
///
/// /// A database with one table, locked as a whole.
/// #[derive(Default)]
/// struct Table(Mutex<HashMap<Vec<u8>, State>>);
///
/// impl Store for Table {
///     async fn apply(&self, op: Op, charges: &[Charge<'_>], now: Timestamp) -> Result<Applied, StoreError> {
///         let mut rows = self.0.lock().map_err(|error| StoreError::Unavailable { reason: error.to_string() })?;
///         let (mut keys, mut cells) = (Vec::new(), Vec::new());
///         for Charge { key, limit, .. } in charges {
///             let mut encoded = Vec::new();
///             key.encode(&mut encoded);
///             cells.push(match rows.get(&encoded) {
///                 None => Cell::new(**limit),
///                 Some(state) => Cell::from_state(**limit, state)
///                     .ok_or_else(|| StoreError::Unavailable { reason: format!("no state: {state:?}") })?,
///             });
///             keys.push(encoded);
///         }
///         let Transaction { applied, changed } = transact(op, charges, &mut cells, now, now);
///         let changes = keys.into_iter().zip(&cells).zip(changed).filter(|(_, changed)| *changed);
///         rows.extend(changes.map(|((key, cell), _)| (key, cell.state())));
///         Ok(applied)
///     }
/// }
///
/// let rules = RuleSet::new([Rule::new("per-client", Limit::per_minute(10)).key(["client"])])?;
/// let limiter = Limiter::builder(rules).store(Table::default()).build()?;
/// assert_eq!(block_on(limiter.check_async("alice"))?.remaining(), 9);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[must_use = "the changed cells have to be written"]
pub fn transact(
    op: Op,
    charges: &[Charge<'_>],
    cells: &mut [Cell],
    now: Timestamp,
    newest: Timestamp,
) -> Transaction {
    let mut cells: SmallVec<[&mut Cell; 4]> = cells.iter_mut().collect();
    transact_in_place(op, charges, &mut cells, now, newest)
}

/// As [`transact`], on cells wherever they are. Cells that have not changed are as before.
pub(crate) fn transact_in_place(
    op: Op,
    charges: &[Charge<'_>],
    cells: &mut [&mut Cell],
    now: Timestamp,
    newest: Timestamp,
) -> Transaction {
    let at = cells.iter().try_fold(now.max(newest), |at, cell| match cell.meter.skew(now) {
        Skew::Current => Ok(at),
        Skew::Late => Ok(at.max(cell.meter.written_at())),
        Skew::Behind | Skew::Wild => Err(now),
    });
    // With a state far ahead of the clock, the reading counts as it is: the distance must not
    // depend on the other cells of the request.
    let at = at.unwrap_or_else(|now| {
        let late = cells.iter().filter(|cell| cell.meter.skew(now) == Skew::Late);
        late.map(|cell| cell.meter.written_at()).fold(now, Timestamp::max)
    });
    match op {
        Op::Take | Op::Refuse | Op::Reserve { .. } | Op::Acquire { .. } | Op::Peek => {
            decide(op, charges, cells, now, at)
        }
        _ => {
            let replaced: SmallVec<[bool; 4]> = charges
                .iter()
                .zip(&*cells)
                .map(|(charge, cell)| op != Op::Reset && cell.is_replaced_by(charge.limit, at))
                .collect();
            let (answers, changed) = act_on_all(op, charges, cells, now, at);
            let converted = replaced.iter().zip(&changed).filter(|(one, changed)| **one && **changed);
            let converted = u64::try_from(converted.count()).unwrap_or(u64::MAX);
            let applied = Applied { now: at, answers, changed: false, converted };
            Transaction { applied, changed }.with_changed()
        }
    }
}

impl Transaction {
    fn with_changed(mut self) -> Self {
        self.applied.changed = self.changed.contains(&true);
        self
    }
}

/// Take, refuse, reserve, acquire and peek: all or nothing.
fn decide(
    op: Op,
    charges: &[Charge<'_>],
    cells: &mut [&mut Cell],
    now: Timestamp,
    at: Timestamp,
) -> Transaction {
    let mut views: SmallVec<[CellView<'_>; 4]> =
        charges.iter().zip(cells).map(|(charge, cell)| CellView::new(cell, charge.limit, now, at)).collect();
    let parts = Parts { charges, views: &views };
    let portions: SmallVec<[u64; 4]> = charges.iter().map(|charge| parts.portion(charge)).collect();
    let fits: SmallVec<[bool; 4]> =
        views.iter().zip(charges).map(|(view, charge)| parts.fits(charge, view, charge.cost)).collect();
    let both = || charges.iter().zip(&fits);
    let admitted = op != Op::Refuse && both().all(|(charge, fits)| charge.shadow || *fits);
    let recorded = recorded_units(op, admitted, &parts, &fits);
    let mut changed: SmallVec<[bool; 4]> = views
        .iter_mut()
        .zip(both().zip(&portions).zip(&recorded))
        .map(|(view, (((charge, fits), portion), recorded))| {
            let of_rule = |(other, _): &(&Charge<'_>, &bool)| other.key.rule() == charge.key.rule();
            let drawn = admitted && (!charge.shadow || both().filter(of_rule).all(|(_, fits)| *fits));
            // Whether this limit by itself has enough.
            let has = if charge.part == Part::Whole { *fits } else { view.fits(charge.cost.max(*portion)) };
            match op {
                Op::Peek => false,
                _ if drawn && (*portion > 0 || holds_nothing(op, charge, view)) => draw(op, view, *portion),
                _ if charge.cost.max(*portion) == 0 => false,
                // An overflow covers all of the cost, or a denied cost is recorded instead.
                _ if drawn || recorded.is_some() => !has && view.repairs,
                _ => refuse(view, charge.cost, has),
            }
        })
        .collect();
    let effects = record(&recorded, &mut views, &mut changed);
    let converted = views.iter().zip(&changed).map(|(view, changed)| u64::from(*changed && view.converted));
    let converted = converted.sum();
    let parts = Parts { charges, views: &views };
    let answers = views.iter().zip(charges).zip(&fits).zip(portions.iter().zip(&effects));
    let answers = answers.map(|(((view, charge), fits), (portion, (effect, recorded)))| {
        // After a denial each limit answers as a peek would next: a counted attempt or a record may
        // have used up its units.
        let allowed = if admitted { *fits } else { parts.fits(charge, view, charge.cost) };
        let drawn = if admitted { *portion } else { *recorded };
        Answer { effect: *effect, ..parts.answer(charge, view, charge.cost, allowed, drawn) }
    });
    let answers = answers.collect();
    for (view, changed) in views.iter_mut().zip(&mut changed) {
        *changed = view.store(*changed);
    }
    let applied = Applied { now: at, answers, changed: false, converted };
    Transaction { applied, changed }.with_changed()
}

/// Whether a reservation of cost 0 is held here: a slot cannot be empty, and an overflow covers
/// nothing of it.
fn holds_nothing(op: Op, charge: &Charge<'_>, view: &CellView<'_>) -> bool {
    let is_reserve = matches!(op, Op::Reserve { .. });
    is_reserve && charge.cost == 0 && !matches!(charge.part, Part::Rest(_)) && !view.is_concurrent()
}

/// Takes, reserves or acquires what fits.
fn draw(op: Op, view: &mut CellView<'_>, units: u64) -> bool {
    let (now, is_slot) = (view.now, view.is_concurrent());
    match op {
        Op::Reserve { hold, ttl, .. } | Op::Acquire { hold, ttl } if is_slot => {
            view.change().hold(hold, Hold::slot(now, ttl));
        }
        Op::Reserve { hold, ttl, on_expiry } => {
            view.change().hold(hold, Hold::reservation(units, now, ttl, on_expiry));
        }
        _ => view.change().meter.take(now, units),
    }
    true
}

/// Refund, penalise, record, block, settle, renew and reset.
fn act_on_all(
    op: Op,
    charges: &[Charge<'_>],
    cells: &mut [&mut Cell],
    reading: Timestamp,
    now: Timestamp,
) -> (SmallVec<[Answer; 4]>, SmallVec<[bool; 4]>) {
    if charges.iter().any(|charge| charge.part != Part::Whole) {
        return act_on_parts(op, charges, cells, reading, now);
    }
    let each = charges.iter().zip(cells);
    each.map(|(charge, cell)| {
        let mut view = seen(op, charge, cell, now);
        let (effect, is_kept) = act(op, charge.cost, &mut view);
        let changed = view.store(is_kept);
        view.answer_at(reading);
        // A record has no cost to admit any more: its answer says until when units are owed.
        let cost = if op == Op::Record { 0 } else { charge.cost };
        (Answer { effect, ..view.answer(cost, view.fits(cost)) }, changed)
    })
    .unzip()
}

/// A cell as an operation that does not decide a request sees it: under the charge's limit.
fn seen<'a>(op: Op, charge: &Charge<'_>, kept: &'a mut Cell, now: Timestamp) -> CellView<'a> {
    // An idle cell may already have been forgotten, which must not be observable: it takes the
    // charge's limit. A bucket with a reserve stays as it is when units are recorded: after a clock
    // that goes back, they look like a debt, and only the reserve's own state tells what it gave.
    let is_reserve = matches!(charge.limit.0, Kind::Reserve(_));
    let stays = is_reserve && kept.is_plain(now) && kept.limit() == *charge.limit;
    let mut view = CellView::expired(kept, now);
    if op == Op::Reset || (view.is_idle() && !(op == Op::Record && stays)) {
        view.replace(Cell::new(*charge.limit));
    }
    view.convert(charge.limit);
    view
}

/// Acts on one cell on its own. Returns whether the cell has changed: it is then stored under the
/// charge's limit.
fn act(op: Op, cost: u64, view: &mut CellView<'_>) -> (Effect, bool) {
    let now = view.now;
    match op {
        Op::Settle { hold } if view.hold(hold).is_some() => (view.change().settle(hold, now, cost), true),
        Op::Renew { hold, ttl } if view.hold(hold).is_some_and(|hold| !hold.has_expired) => {
            match view.change().renew(hold, now, ttl) {
                true => (Effect::Renewed, true),
                false => (Effect::NotReserved, true),
            }
        }
        Op::Settle { .. } | Op::Renew { .. } => (Effect::NotReserved, false),
        Op::Block { until } => {
            view.set_block(Block::new(until, now));
            (Effect::None, true)
        }
        Op::Reset => (Effect::None, true),
        Op::Refund | Op::Penalise | Op::Record => {
            let mut before = view.state().clone();
            if op == Op::Refund {
                // What has lapsed is no change.
                before.give(now, 0);
            }
            let mut meter = before.clone();
            let effect = move_units(op, cost, &mut meter, now);
            let has_changed = meter != before;
            if has_changed {
                view.change().meter = meter;
            }
            (effect, has_changed)
        }
        // Decided by `decide`.
        Op::Take | Op::Refuse | Op::Reserve { .. } | Op::Acquire { .. } | Op::Peek => (Effect::None, false),
    }
}

/// Refunds, penalises or records units.
fn move_units(op: Op, cost: u64, meter: &mut Meter, now: Timestamp) -> Effect {
    match op {
        Op::Refund => {
            let at = meter.not_before(now);
            let before = meter.used(at);
            meter.give(at, cost);
            Effect::GivenBack { units: before.saturating_sub(meter.used(at)) }
        }
        Op::Penalise => Effect::Drawn { units: meter.penalise(now, cost) },
        _ => Effect::Recorded { shortfall: cost.saturating_sub(meter.record(now, cost)) },
    }
}
