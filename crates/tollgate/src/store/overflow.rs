//! The parts of two budgets in one cost.

/// The part of a cost that one charge covers. The numbers tell the overflows of a call apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    #[default]
    Whole,
    /// What the limits of all first parts of this overflow have.
    First(u16),
    /// What the first parts of this overflow lack. The charge's own cost is usually 0; a cost above
    /// that was charged to the limit by itself, and the larger of the two is drawn.
    Rest(u16),
}

/// A limit's part in a request whose cost two budgets may cover.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// None: the limit covers the whole cost.
    #[default]
    None,
    /// The limit belongs to a rule that has an [overflow](crate::Rule::overflow).
    From {
        /// Units drawn on the limit, or that a peek would draw: 0 if the request is denied and not
        /// recorded.
        drawn: u64,
        /// Units that the overflow has left besides.
        lent: u64,
    },
    /// The limit belongs to the overflow of another rule.
    Into {
        /// Units drawn on the limit, or that a peek would draw: 0 if the request is denied and not
        /// recorded.
        drawn: u64,
    },
}

impl Overflow {
    /// Units drawn on the limit, if it takes part in an overflow.
    #[must_use]
    pub const fn drawn(self) -> Option<u64> {
        match self {
            Self::None => None,
            Self::From { drawn, .. } | Self::Into { drawn } => Some(drawn),
        }
    }

    /// Units that the overflow has left besides the limit's own.
    #[must_use]
    pub const fn lent(self) -> u64 {
        if let Self::From { lent, .. } = self { lent } else { 0 }
    }
}
