//! Portable state: meters and cells as plain numbers, for other databases.

use crate::cell::Cell;
use crate::{Limit, Meter};

/// The state of a [`Meter`] or a [`Cell`] as plain numbers, and the limit that wrote it.
///
/// Store it anywhere, in a row of your own database for example, and load it again to decide. With
/// the feature `serde` it is `{"limit": "10/minute", "numbers": [1800000000000000000]}`.
///
/// * **Lossless.** A meter or a cell restored from its state answers everything as the original
///   would have, now and later.
/// * **The limit is the version.** Numbers mean something only under the limit that wrote them, so
///   they are loaded under that limit. [`Meter::retune`] converts them to another limit, and
///   [`transact`](crate::transact) does so on its own.
/// * **Numbers are not trusted.** `from_state` returns `None` if the limit cannot have written the
///   numbers. An accepted state never panics, and never admits more than the limit at once.
/// * **A meter is not a cell.** `from_state` of one never accepts the state of the other.
///
/// The layout of the numbers belongs to this version of the crate. It may change with the next
/// incompatible version; the changelog then says how to convert.
///
/// ```
/// use tollgate::{Limit, Meter, State, Timestamp};
///
/// let (old, new) = (Limit::per_minute(10), Limit::per_minute(100));
/// let now = Timestamp::from_secs(1_800_000_000);
/// let mut meter = Meter::new(old);
/// assert!(meter.decide(now, 10).allowed());
/// let State { limit, numbers } = meter.state();
/// let row = (limit.map(|limit| limit.to_string()), numbers); // into the database …
///
/// let limit = row.0.map(|limit| limit.parse()).transpose()?; // … and out of it
/// let mut meter = Meter::from_state(new, &State { limit, numbers: row.1 }).expect("a state");
/// if meter.limit() != new {
///     meter.retune(new, now); // the limit was raised in between
/// }
/// assert_eq!(meter.decide(now, 1).remaining, 89);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct State {
    /// The limit that wrote the numbers. `None` for an inline limit ([`Limit::inline_longest`]):
    /// such a state means the same under every inline limit.
    pub limit: Option<Limit>,
    /// Times in nanoseconds since the epoch, and counts; each may need all 64 bits.
    pub numbers: Vec<u64>,
}

impl State {
    fn new(limit: Limit, numbers: Vec<u64>) -> Self {
        Self { limit: Some(limit).filter(|limit| limit.inline_longest().is_none()), numbers }
    }

    /// The limit to read the numbers under.
    fn written_under(&self, in_force: Limit) -> Option<Limit> {
        self.limit.or_else(|| in_force.inline_longest().map(|_| in_force))
    }
}

impl Meter {
    /// The state as plain numbers.
    #[must_use]
    pub fn state(&self) -> State {
        State::new(self.limit(), self.numbers())
    }

    /// The meter with this state, under the limit that wrote it. `in_force` is used if that was an
    /// inline limit. `None` if it is not the state of a meter.
    #[must_use]
    pub fn from_state(in_force: Limit, state: &State) -> Option<Self> {
        Self::from_numbers(state.written_under(in_force)?, &state.numbers)
    }
}

impl Cell {
    /// The state as plain numbers: the meter's, the block and the reservations.
    #[must_use]
    pub fn state(&self) -> State {
        State::new(self.limit(), self.to_numbers())
    }

    /// The cell with this state, under the limit that wrote it. `in_force` is used if that was an
    /// inline limit. `None` if it is not the state of a cell.
    #[must_use]
    pub fn from_state(in_force: Limit, state: &State) -> Option<Self> {
        Self::from_numbers(state.written_under(in_force)?, &state.numbers)
    }
}
