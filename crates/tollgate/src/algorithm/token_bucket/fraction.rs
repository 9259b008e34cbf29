//! The fraction of a nanosecond in the time of a token: none, or a numerator in the state.

use std::fmt::Debug;

/// The fractions of a nanosecond that a bucket counts in.
pub(crate) trait Fraction: Copy + Debug + Eq {
    /// The stored fraction of a nanosecond.
    type Rest: Copy + Debug + Default + PartialEq;
    /// The words of a packed state.
    const WORDS: usize;
    /// Parts of a nanosecond: the denominator.
    fn parts(self) -> u64;
    fn keep(numerator: u64) -> Self::Rest;
    fn numerator(rest: Self::Rest) -> u64;
}

/// A token is a whole number of nanoseconds: there is no fraction, and the state is eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Whole;

impl Fraction for Whole {
    type Rest = ();

    const WORDS: usize = 1;

    fn parts(self) -> u64 {
        1
    }

    fn keep(_numerator: u64) {}

    fn numerator((): ()) -> u64 {
        0
    }
}

/// A token is a fraction of nanoseconds with this denominator: the state carries the numerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Parts(pub(super) u64);

impl Fraction for Parts {
    type Rest = u64;

    const WORDS: usize = 2;

    fn parts(self) -> u64 {
        self.0
    }

    fn keep(numerator: u64) -> u64 {
        numerator
    }

    fn numerator(rest: u64) -> u64 {
        rest
    }
}
