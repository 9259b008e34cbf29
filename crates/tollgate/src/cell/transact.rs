//! Applying a whole request to its cells.

use smallvec::SmallVec;

use super::{Block, Cell, Hold};
use crate::limit::Kind;
use crate::meter::Skew;
use crate::store::{Answer, Applied, Charge, Effect, Op, Part};
use crate::{Timestamp, Verdict};

mod denied;
mod nothing;
mod overflow;
mod view;

use denied::{record, recorded_units, refuse};
use nothing::act_on_nothing;
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
            let (answers, changed) = match op.nothing() {
                Some(nothing) => act_on_nothing(op, nothing, charges, cells, now, at),
                None => act_on_all(op, charges, cells, now, at),
            };
            let applied = Applied { now: at, answers, changed: false, converted: 0 };
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
    let fits: SmallVec<[bool; 4]> = views
        .iter()
        .zip(charges)
        .zip(&portions)
        .map(|((view, charge), portion)| {
            parts.fits(charge, view, charge.cost) && view.reservable_at(op, *portion) <= at
        })
        .collect();
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
                _ if drawn && *portion > 0 => draw(op, view, *portion),
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
        let mut answer = parts.answer(charge, view, charge.cost, allowed, drawn);
        let reservable_at = view.reservable_at(op, *portion);
        if !admitted && answer.outcome.allowed() && reservable_at > at {
            answer.outcome.verdict = Verdict::Denied { retry_after: reservable_at.since(at) };
        }
        Answer { effect: *effect, ..answer }
    });
    let answers = answers.collect();
    let of_changed = views.into_iter().zip(&changed).filter(|(_, changed)| **changed);
    of_changed.for_each(|(view, _)| view.store());
    let applied = Applied { now: at, answers, changed: false, converted };
    Transaction { applied, changed }.with_changed()
}

/// Takes, reserves or acquires what fits.
fn draw(op: Op, view: &mut CellView<'_>, units: u64) -> bool {
    let (now, is_slot) = (view.now, view.cell().meter.is_concurrent());
    match op {
        Op::Reserve { hold, ttl, .. } | Op::Acquire { hold, ttl } if is_slot => {
            view.change().hold(Hold::slot(hold, now, ttl));
        }
        Op::Reserve { hold: id, holder, ttl, on_expiry } => {
            let expires_at = now.saturating_add(ttl);
            let (lapses_at, has_expired) = (0, false);
            let hold =
                Hold { id, holder, units, made_at: now, expires_at, lapses_at, on_expiry, has_expired };
            view.change().hold(hold);
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
    charges.iter().zip(cells).map(|(charge, cell)| act(op, charge, cell, reading, now)).unzip()
}

/// A cell as an operation that keeps its limit sees it.
fn seen(op: Op, charge: &Charge<'_>, kept: &Cell, now: Timestamp) -> Cell {
    // An idle cell may already have been forgotten, which must not be observable: it takes the
    // charge's limit. A bucket with a reserve stays as it is when units are recorded: after a clock
    // that goes back, they look like a debt, and only the reserve's own state tells what it gave.
    let is_reserve = matches!(charge.limit.0, Kind::Reserve(_));
    let stays = || is_reserve && kept.is_plain(now) && kept.limit() == *charge.limit;
    let mut cell = match op {
        Op::Reset => Cell::new(*charge.limit),
        Op::Record if stays() => kept.clone(),
        _ if kept.is_idle(now) => Cell::new(*charge.limit),
        _ => kept.clone(),
    };
    if cell.meter.written_at() <= now {
        cell.expire(now);
    }
    let draws = matches!(op, Op::Refund | Op::Penalise | Op::Record) || op.nothing().is_some();
    if draws && cell.limit().is_concurrent() {
        // Units of the rate that replaced these slots are no slots.
        cell.retune(charge.limit, now);
    }
    cell
}

/// Acts on one cell on its own. It keeps its limit, unless that has slots and units are drawn or
/// given back.
fn act(op: Op, charge: &Charge<'_>, kept: &mut Cell, reading: Timestamp, now: Timestamp) -> (Answer, bool) {
    let mut cell = seen(op, charge, kept, now);
    let before = cell.meter.clone();
    let effect = match op {
        Op::Refund => {
            let at = cell.meter.not_before(now);
            let before = cell.meter.used(at);
            cell.meter.give(at, charge.cost);
            Effect::GivenBack { units: before.saturating_sub(cell.meter.used(at)) }
        }
        Op::Penalise => Effect::Drawn { units: cell.meter.penalise(now, charge.cost) },
        Op::Block { until } => {
            cell.block = Block::new(until, now);
            Effect::None
        }
        Op::Record => Effect::Recorded { shortfall: cell.record(now, charge.cost) },
        Op::Settle { hold } => cell.settle(hold, now, charge.cost),
        Op::Renew { hold, ttl } if cell.renew(hold, now, ttl) => Effect::Renewed,
        Op::Renew { .. } => Effect::NotReserved,
        Op::Reset => Effect::None,
        // Decided by `decide`.
        Op::Take | Op::Refuse | Op::Reserve { .. } | Op::Acquire { .. } | Op::Peek => Effect::None,
    };
    let holds = matches!(effect, Effect::Settled { .. } | Effect::SettledLate { .. } | Effect::Renewed);
    let changed = holds || matches!(op, Op::Reset | Op::Block { .. }) || cell.meter != before;
    let view = CellView::unconverted(&mut cell, reading, now);
    // A record has no cost to admit any more: its answer says until when units are owed.
    let cost = if op == Op::Record { 0 } else { charge.cost };
    let answer = Answer { effect, ..view.answer(cost, view.fits(cost)) };
    if changed {
        cell.drop_ended(now);
        *kept = cell;
    }
    (answer, changed)
}
