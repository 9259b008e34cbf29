//! The smallest size that denies at most so many requests, found by trying a few in each pass.

use std::time::Duration;

use super::Shape;
use crate::simulate::candidate::Candidate;
use crate::simulate::replay::Consumer;
use crate::simulate::steps::Steps;

/// Sizes that are tried in one pass.
const TRIED: u64 = 6;

/// Counts what a size denies.
#[derive(Debug)]
pub(crate) struct DenialCount {
    candidate: Candidate,
    size: u64,
    denied: u64,
}

impl Consumer for DenialCount {
    fn take(&mut self, steps: &Steps) {
        let Self { candidate, denied, .. } = self;
        candidate.decide(
            steps,
            |_| true,
            |_, decision| {
                *denied += u64::from(decision.is_some_and(|decision| !decision.allowed()));
            },
        );
    }
}

/// Sizes between which the wanted one lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bracket {
    pub(crate) shape: Shape,
    /// Denies too much.
    too_small: u64,
    /// Denies little enough.
    pub(crate) fits: u64,
}

impl Bracket {
    /// All sizes up to one that denies nothing.
    pub(crate) const fn up_to(shape: Shape, fits: u64) -> Self {
        Self { shape, too_small: 0, fits }
    }

    /// Whether the size is found: the one that fits is at most one percent above the smallest that
    /// may.
    pub(crate) const fn is_narrow(&self) -> bool {
        self.fits * 100 <= (self.too_small + 1) * 101
    }

    /// The sizes to try next, none if the bracket is narrow. They are at equal ratios: a limit of
    /// 10 or 11 differs as much as one of 100 or 110.
    fn sizes(&self) -> Vec<u64> {
        if self.is_narrow() {
            return Vec::new();
        }
        let (low, high) = (self.too_small.max(1), self.fits);
        let size = |step: u32| {
            let share = f64::from(step) / f64::from(u32::try_from(TRIED).unwrap_or(1) + 1);
            rounded(float(low) * (float(high) / float(low)).powf(share))
        };
        let mut sizes: Vec<u64> = (0..=u32::try_from(TRIED).unwrap_or(1)).map(size).collect();
        sizes.retain(|size| self.too_small < *size && *size < self.fits);
        sizes.dedup();
        sizes
    }

    /// The trials of the next pass.
    pub(crate) fn trials(&self, period: Duration) -> Result<Vec<DenialCount>, String> {
        let trial = |size| {
            let candidate = Candidate::of_limit(self.shape.limit(size, period)?)?;
            Ok(DenialCount { candidate, size, denied: 0 })
        };
        self.sizes().into_iter().map(trial).collect()
    }

    /// Narrows the bracket by what its trials denied.
    pub(crate) fn narrow(&mut self, trials: &[DenialCount], at_most: u64) {
        let tried: Vec<(u64, bool)> =
            trials.iter().map(|trial| (trial.size, trial.denied <= at_most)).collect();
        self.narrow_by(&tried);
    }

    /// Narrows the bracket by sizes and whether they fit.
    fn narrow_by(&mut self, tried: &[(u64, bool)]) {
        let fitting = tried.iter().filter(|(_, fits)| *fits).map(|(size, _)| *size);
        self.fits = fitting.min().unwrap_or(self.fits).min(self.fits);
        let smaller = tried.iter().map(|(size, _)| *size).filter(|size| *size < self.fits);
        self.too_small = smaller.max().unwrap_or(self.too_small).max(self.too_small);
    }
}

#[expect(clippy::as_conversions, clippy::cast_precision_loss, reason = "where to try next, not a decision")]
const fn float(size: u64) -> f64 {
    size as f64
}

#[expect(
    clippy::as_conversions,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "where to try next, not a decision"
)]
const fn rounded(size: f64) -> u64 {
    size.round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate::MAX_COUNT;

    #[test]
    fn the_smallest_size_that_fits_is_found_to_one_percent_in_few_passes() {
        let small = (1..=600).flat_map(|wanted| [(wanted, 600), (wanted, 9_000)]);
        let large = [(123_456_789, 1_000_000_000), (1, MAX_COUNT), (MAX_COUNT, MAX_COUNT)];
        for (wanted, largest) in small.chain(large) {
            let mut bracket = Bracket::up_to(Shape::FixedWindow, largest);
            let mut passes = 0;
            while !bracket.is_narrow() {
                let tried: Vec<_> = bracket.sizes().into_iter().map(|size| (size, size >= wanted)).collect();
                bracket.narrow_by(&tried);
                passes += 1;
                assert!(passes <= 6, "{wanted} of {largest}");
            }
            let fits = bracket.fits;
            assert!((wanted..=wanted + wanted / 100).contains(&fits), "{wanted} of {largest}: {fits}");
        }
    }
}
