//! A cell as plain numbers, for pages, dumps and databases.

use std::collections::HashSet;

use super::{Block, Cell, Hold, Holds};
use crate::algorithm::Drawn;
use crate::store::{HoldId, OnExpiry};
use crate::{Limit, Meter, Timestamp};

/// Numbers per hold, of which the last has these flags.
const HOLD_NUMBERS: usize = 9;
const KEPT: u64 = 1;
const EXPIRED: u64 = 2;

/// The time at which units were drawn, if they are any units in use.
const ANY_UNITS: u64 = u64::MAX;

impl Cell {
    /// The cell as numbers, without its limit: the block, the number of holds, the holds, and the
    /// meter's state.
    pub(crate) fn to_numbers(&self) -> Vec<u64> {
        let Block { set_at, until } = self.block;
        let holds = u64::try_from(self.holds.len()).unwrap_or(u64::MAX);
        let mut numbers = vec![set_at.as_nanos(), until.as_nanos(), holds];
        for (id, hold) in self.holds.in_order() {
            numbers.extend(hold_numbers(id, &hold));
        }
        numbers.extend(self.meter.numbers());
        numbers
    }

    /// The cell that [`to_numbers`](Self::to_numbers) wrote under this limit. `None` if the limit
    /// cannot have written these numbers.
    pub(crate) fn from_numbers(limit: Limit, numbers: &[u64]) -> Option<Self> {
        let ([set_at, until, count], rest) = numbers.split_first_chunk()?;
        let count = usize::try_from(*count).ok()?;
        let (held, state) = rest.split_at_checked(count.checked_mul(HOLD_NUMBERS)?)?;
        let block = Block { set_at: time(*set_at)?, until: time(*until)? };
        let meter = Meter::from_numbers(limit, state)?;
        let held: Vec<(HoldId, Hold)> = held
            .as_chunks()
            .0
            .iter()
            .map(|numbers| hold_of(numbers, limit.is_concurrent()))
            .collect::<Option<_>>()?;
        let in_order = held.is_sorted_by_key(|(id, hold)| (hold.expires_at, *id));
        let ids: HashSet<HoldId> = held.iter().map(|(id, _)| *id).collect();
        (in_order && ids.len() == count).then_some(())?;
        let mut holds = Holds::default();
        held.into_iter().for_each(|(id, hold)| holds.insert(id, hold));
        let mut cell = Self { meter, block, holds };
        cell.count_slots();
        Some(cell)
    }
}

fn hold_numbers(HoldId(id): HoldId, hold: &Hold) -> [u64; HOLD_NUMBERS] {
    let [low, high] = halves(id);
    let is_kept = u64::from(hold.on_expiry == OnExpiry::Keep);
    let flags = if hold.has_expired { is_kept | EXPIRED } else { is_kept };
    let Drawn { at, lapses_at, rest } = hold.drawn;
    let drawn_at = at.unwrap_or(ANY_UNITS);
    let (made_at, expires_at) = (hold.made_at.as_nanos(), hold.expires_at.as_nanos());
    [low, high, hold.units, made_at, expires_at, drawn_at, lapses_at, rest, flags]
}

/// The hold that these numbers encode. `None` if no limit of this kind can have written them.
fn hold_of(numbers: &[u64; HOLD_NUMBERS], is_slot: bool) -> Option<(HoldId, Hold)> {
    let [low, high, units, made_at, expires_at, drawn_at, lapses_at, rest, flags] = *numbers;
    let id = HoldId(u128::from(low) | (u128::from(high) << 64));
    let (made_at, expires_at) = (time(made_at)?, time(expires_at)?);
    let at = if drawn_at == ANY_UNITS { None } else { Some(time(drawn_at)?.as_nanos()) };
    let on_expiry = if flags & KEPT == 0 { OnExpiry::GiveBack } else { OnExpiry::Keep };
    let (drawn, has_expired) = (Drawn { at, lapses_at, rest }, flags & EXPIRED != 0);
    let hold = Hold { units, drawn, made_at, expires_at, on_expiry, is_slot, has_expired };
    let is_valid = made_at <= expires_at && flags <= KEPT | EXPIRED && units <= crate::MAX_COUNT;
    let is_kind = !is_slot || hold == Hold { drawn, ..Hold::slot(made_at, hold.ttl()) };
    (is_valid && is_kind).then_some((id, hold))
}

fn time(nanos: u64) -> Option<Timestamp> {
    Some(Timestamp::from_nanos(nanos)).filter(|time| time.as_nanos() == nanos)
}

/// The lower and the upper half of a number.
#[expect(clippy::cast_possible_truncation, clippy::as_conversions, reason = "both halves are kept")]
const fn halves(wide: u128) -> [u64; 2] {
    [wide as u64, (wide >> 64) as u64]
}
