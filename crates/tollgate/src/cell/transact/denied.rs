//! What a denial writes.
//!
//! Usually nothing. A limit that counts denied attempts counts the attempt. A limit that itself
//! denied writes its repair. A rule that records denied costs records the cost on every limit of
//! the budget that denied, and counts no attempt beside it.

use smallvec::SmallVec;

use super::CellView;
use super::overflow::Parts;
use crate::store::{Charge, Effect, Op};

/// Writes an attempt, if the limit counts denied attempts, and a repair, if this limit denied.
/// Returns whether there was either.
pub(super) fn refuse(view: &mut CellView<'_>, cost: u64, fits: bool) -> bool {
    let limit = view.limit();
    let counts = limit.counts_denied() && cost > 0 && cost <= limit.capacity();
    let counted = counts && !view.behind && !view.rebased;
    if counted {
        let now = view.now;
        view.change().meter.refuse(now, cost);
    }
    counted || (!fits && view.repairs)
}

/// The units that a denied request records on each limit. An overflow covers its part of them, as
/// of any cost that was used.
pub(super) fn recorded_units(
    op: Op,
    admitted: bool,
    parts: &Parts<'_, '_>,
    fits: &[bool],
) -> SmallVec<[Option<u64>; 4]> {
    let charges = parts.charges;
    let records = !admitted && matches!(op, Op::Take | Op::Refuse);
    if !records || !charges.iter().any(|charge| charge.record_denied) {
        return SmallVec::from_elem(None, charges.len());
    }
    let is_denied = |charge: &Charge<'_>| {
        let mut budget = charges.iter().zip(fits).filter(|(other, _)| other.key.same_budget(&charge.key));
        budget.any(|(_, fits)| !fits)
    };
    let mut recorded: SmallVec<[Charge<'_>; 4]> = charges.into();
    for charge in recorded.iter_mut().filter(|charge| !(charge.record_denied && is_denied(charge))) {
        charge.cost = 0;
    }
    let parts = Parts { charges: &recorded, views: parts.views };
    let units = |charge: &Charge<'_>| {
        Some(parts.used_portion(Op::Record, charge)).filter(|units| *units > 0 || charge.cost > 0)
    };
    recorded.iter().map(units).collect()
}

/// Records these units. Marks the cells that it changes, and returns the effect on each and the
/// units that were drawn.
pub(super) fn record(
    units: &[Option<u64>],
    views: &mut [CellView<'_>],
    changed: &mut [bool],
) -> SmallVec<[(Effect, u64); 4]> {
    let record = |((units, view), changed): ((&Option<u64>, &mut CellView<'_>), &mut bool)| {
        let Some(units) = *units else { return (Effect::None, 0) };
        let mut meter = view.state().clone();
        let drawn = meter.record(view.now, units);
        if drawn > 0 {
            view.change().meter = meter;
            *changed = true;
        }
        (Effect::Recorded { shortfall: units.saturating_sub(drawn) }, drawn)
    };
    units.iter().zip(views).zip(changed).map(record).collect()
}
